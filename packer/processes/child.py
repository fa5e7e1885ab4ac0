"""What runs in a worker process: jobs come on its standard input, results leave on its standard output.

Its counters lie in a file that it shares with its parent, so that they outlive it.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any, NoReturn

from packer.errors import PackerError
from packer.processes.signals import ignore_group_signals

DONE, BAD, DECODING, TURNS, ROW = range(5)
"""Counters of a job: rows that are done, bad ones among them, images being decoded at this moment, decodes begun and
ended so far, and 1 + the row begun last."""
COUNTERS_BYTES = 5 * 8
READY = b"\0packer\n"
"""What precedes the first result: what the user's Python prints when it starts (sitecustomize) is skipped."""
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error of a worker, and where it was raised there."""

    error: Exception
    trace: str


def send(file: IO[bytes], data: bytes) -> None:
    """Write one message. Raises OSError if nobody reads it."""
    file.write(_SIZE.pack(len(data)))
    file.write(data)
    file.flush()


def receive(file: IO[bytes]) -> bytes | None:
    """The next message, None if the other side has gone."""
    try:
        head = file.read(_SIZE.size)
        data = file.read(*_SIZE.unpack(head)) if len(head) == _SIZE.size else None
    except (OSError, ValueError):  # ValueError: closed
        return None
    return None if data is None or len(data) < _SIZE.unpack(head)[0] else data


def counters_in(path: str) -> memoryview:
    """The counters in the file at `path`, shared with whoever else has mapped it."""
    with open(path, "r+b") as file:
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


def serve(counters: str, preload: str) -> NoReturn:
    """Do one job after another until the parent is gone; what the modules `preload` need is loaded before the first."""
    ignore_group_signals()
    source, target = _channel()
    reporter = Reporter(counters_in(counters))
    with suppress(OSError):  # Windows: not while it is open; then the parent removes it
        os.unlink(counters)
    target.write(READY)
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(source, jobs), daemon=True).start()
    for module in preload.split():
        with suppress(Exception):  # the job that needs it will say so
            importlib.import_module(module)
    while True:
        data = jobs.get()
        try:
            work, job = pickle.loads(data)
            answer = pickle.dumps(work(job, reporter.report, reporter.decoding))
            del work, job
        except Exception as error:
            answer = pickle.dumps(RemoteError(_sendable(error), traceback.format_exc()))
        with suppress(OSError):  # the parent is gone: `_receive` ends this process
            send(target, answer)


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


def _receive(source: IO[bytes], jobs: SimpleQueue[bytes]) -> None:
    while (data := receive(source)) is not None:
        jobs.put(data)
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():  # a job has made it a group, to end with it
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """The error, or one that surely survives the way to the parent."""
    if isinstance(error, PackerError) or type(error).__module__ == "builtins":
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def unpickled(data: bytes) -> Any:
    """What a worker has sent. Raises what its job has raised there."""
    result = pickle.loads(data)
    if isinstance(result, RemoteError):
        raise result.error from RuntimeError(f"in a worker:\n{result.trace}")
    return result


def import_path() -> list[str]:
    """Where a worker imports from: as this process, but never from the current folder because Python was started so.

    packer itself may have been found there, so its own folder comes last.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    entries = [entry for entry in sys.path if isinstance(entry, str) and entry]
    return entries if home in entries else [*entries, home]
