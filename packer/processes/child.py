"""What runs in a worker process: jobs come on its standard input, results leave on its standard output.

Its counters lie in a file that it shares with its parent, so that they outlive it.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any, NoReturn

from packer.errors import PackerError
from packer.processes.signals import OF_THE_GROUP

DONE, BAD, DECODING, TURNS, ROW = range(5)
"""Counters of a job: rows that are done, bad ones among them, images being decoded at this moment, decodes begun and
ended so far, and 1 + the row begun last."""
COUNTERS_BYTES = 5 * 8
READY = b"\0packer\n"
"""What precedes the first result: what the user's Python prints when it starts (sitecustomize) is skipped."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error of a worker, and where it was raised there."""

    error: Exception
    trace: str


def counters_in(file_or_path: int | str) -> memoryview:
    """The counters in a file, which is closed; they are shared with whoever else has mapped it."""
    with open(file_or_path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), COUNTERS_BYTES)).cast("q")


class Reporter:
    """Counts what a job does; its threads may share it."""

    def __init__(self, counters: memoryview) -> None:
        self._counters = counters
        self._lock = threading.Lock()

    def report(self, done: int, bad: int) -> None:
        """Count rows that are done."""
        self._counters[DONE] += done
        self._counters[BAD] += bad

    @contextmanager
    def decoding(self, row: int) -> Iterator[None]:
        """Says meanwhile that `row` is being decoded."""
        with self._lock:
            self._counters[ROW] = row + 1
            self._counters[DECODING] += 1
            self._counters[TURNS] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counters[DECODING] -= 1
                self._counters[TURNS] += 1


def serve(counters: int | str, preload: str) -> NoReturn:
    """Load the modules `preload`, then do one job after another until the parent is gone."""
    for number in OF_THE_GROUP:  # the parent decides what they mean
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_GROUP)
    source, target = _channel()
    reporter = Reporter(counters_in(counters))
    target.write(READY)
    for module in preload.split():
        with suppress(Exception):  # the job that needs it will say so
            importlib.import_module(module)
    jobs: SimpleQueue[Any] = SimpleQueue()
    # not earlier: it imports what a job needs, and two threads must not import the same
    threading.Thread(target=_receive, args=(source, jobs), daemon=True).start()
    while True:
        work, job = jobs.get()
        try:
            answer = work(job, reporter.report, reporter.decoding)
        except Exception as error:
            sure = isinstance(error, PackerError) or type(error).__module__ == "builtins"  # to survive the way
            answer = RemoteError(error if sure else RuntimeError(f"{error!r}"), traceback.format_exc())
        with suppress(OSError):  # the parent is gone: `_receive` ends this process
            pickle.dump(answer, target)
            target.flush()


def _channel() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes from and to the parent, out of the way of libraries that print."""
    spare = os.open(os.devnull, os.O_RDWR)
    while spare < 3:  # a standard file was closed: now it is there
        spare = os.dup(spare)
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(spare, 0)
    os.dup2(2, 1)
    os.close(spare)
    return source, target


def _receive(source: IO[bytes], jobs: SimpleQueue[Any]) -> None:
    """Hand on jobs; where the parent is gone, end the process, whatever it is at."""
    try:
        while True:
            jobs.put(pickle.load(source))
    except Exception as error:
        if not isinstance(error, EOFError):
            traceback.print_exc()
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():  # a job has made it a group, to end with it
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
