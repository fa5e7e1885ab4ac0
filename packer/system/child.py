"""The main loop of a worker process, which reads jobs from standard input and writes results to standard output.

Its counters are in a file that it shares with its parent, so that they outlive it.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any, NoReturn

from packer.errors import PackerError
from packer.system import end_group, ignore_group_signals

DONE, BAD, DECODING, TURNS, ROW = range(5)
"""Counters of a job: rows done, bad rows among them, images being decoded, decodes started and ended so far, and
1 + the row started last."""
COUNTERS_BYTES = 5 * 8
READY = b"\0packer\n"
"""Precedes the first result, because the user's Python may print something when it starts (sitecustomize)."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error raised in a worker, with its traceback."""

    error: Exception
    trace: str


def counters_in(file_or_path: int | str) -> memoryview:
    """Return the counters in a file, shared with all other processes that map it. Close the file."""
    with open(file_or_path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), COUNTERS_BYTES)).cast("q")


Report = Callable[[int, int], None]
"""Called with (images done, bad images among them) since the last call."""
Decoding = Callable[[int], AbstractContextManager[None]]
"""Returns a context for decoding the row with this number. Thread-safe."""


def unmarked(row: int) -> AbstractContextManager[None]:
    """Return a context that does nothing."""
    return nullcontext()


class Reporter:
    """Counts the progress of a job; its threads may share it."""

    def __init__(self, counters: memoryview) -> None:
        self._counters = counters
        self._lock = threading.Lock()

    def report(self, done: int, bad: int) -> None:
        """Add to the counts of rows done and bad rows."""
        self._counters[DONE] += done
        self._counters[BAD] += bad

    def decoding(self, row: int) -> Reporter:
        """Return a context in which `row` is being decoded. Called too often for the overhead of contextmanager."""
        with self._lock:
            self._counters[ROW] = row + 1
            self._counters[DECODING] += 1
            self._counters[TURNS] += 1
        return self

    def __enter__(self) -> None:
        """Do nothing: `decoding` has already counted."""

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._counters[DECODING] -= 1
            self._counters[TURNS] += 1


def serve(counters: int | str, preload: str) -> NoReturn:
    """Load the modules `preload`, then do one job after another until the parent is gone."""
    ignore_group_signals()
    source, target = _channel()
    reporter = Reporter(counters_in(counters))
    target.write(READY)
    for module in preload.split():
        with suppress(Exception):  # a job that needs the module will raise the error
            importlib.import_module(module)
    jobs: SimpleQueue[Any] = SimpleQueue()
    # after the imports above: unpickling a job imports modules too, and two threads must not import the same one
    threading.Thread(target=_receive, args=(source, jobs), daemon=True).start()
    while True:
        work, job = jobs.get()
        try:
            answer = work(job, reporter.report, reporter.decoding)
        except Exception as error:
            sure = isinstance(error, PackerError) or type(error).__module__ == "builtins"  # certain to be picklable
            answer = RemoteError(error if sure else RuntimeError(f"{error!r}"), traceback.format_exc())
        with suppress(OSError):  # the parent is gone: `_receive` ends this process
            pickle.dump(answer, target)
            target.flush()


def _channel() -> tuple[IO[bytes], IO[bytes]]:
    """Return the pipes from and to the parent, moved to other descriptors because libraries may print."""
    spare = os.open(os.devnull, os.O_RDWR)
    while spare < 3:  # fill standard descriptors that were closed
        spare = os.dup(spare)
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(spare, 0)
    os.dup2(2, 1)
    os.close(spare)
    return source, target


def _receive(source: IO[bytes], jobs: SimpleQueue[Any]) -> None:
    """Pass jobs to the main thread. If the parent is gone, end the process immediately."""
    try:
        while True:
            jobs.put(pickle.load(source))
    except Exception as error:
        if not isinstance(error, EOFError):
            traceback.print_exc()
    end_group()  # a job may have started processes in a group of its own
    os._exit(1)
