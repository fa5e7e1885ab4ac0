"""Counters of worker processes in shared memory, which outlive the worker: what it has done, what it was decoding.

A nameless file of a page, and no lock: neither `/dev/shm` nor semaphores need to be there.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import Any

DONE, BAD, DECODING, TURNS, ROW = range(5)
"""Of a worker's job: rows that are done, bad ones among them, images being decoded at this moment, decodes begun and
ended so far, and 1 + the row begun last."""
COUNTERS = 5


class Counters:
    """One row of counters for each place; goes to a process that is being started."""

    def __init__(self, places: int, fd: int | None = None) -> None:
        self.places = places
        size = places * COUNTERS * 8
        if fd is None:
            fd = _nameless_file()
            os.write(fd, bytes(size))  # a page that a full disk does not give would be SIGBUS later
        self._fd = fd
        self._values = memoryview(mmap.mmap(fd, size)).cast("q")

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self.places, DupFd(self._fd))

    def get(self, place: int, field: int) -> int:
        """One counter."""
        return self._values[place * COUNTERS + field]

    def add(self, place: int, field: int, number: int) -> None:
        """Only one process writes to a place."""
        self._values[place * COUNTERS + field] += number

    def set(self, place: int, field: int, number: int) -> None:
        """Set one counter."""
        self._values[place * COUNTERS + field] = number

    def clear(self, place: int) -> None:
        """Set all of a place to zero."""
        for field in range(COUNTERS):
            self.set(place, field, 0)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("packer")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _attached(places: int, fd: Any) -> Counters:
    return Counters(places, fd.detach())


class Reporter:
    """Writes the counters of one worker; its threads may share it."""

    def __init__(self, counters: Counters, place: int) -> None:
        self._counters = counters
        self._place = place
        self._lock = threading.Lock()

    def report(self, done: int, bad: int) -> None:
        """Count rows that are done."""
        self._counters.add(self._place, DONE, done)
        self._counters.add(self._place, BAD, bad)

    @contextmanager
    def decoding(self, row: int) -> Iterator[None]:
        """Says meanwhile that `row` is being decoded."""
        with self._lock:
            self._counters.set(self._place, ROW, row + 1)
            self._counters.add(self._place, DECODING, 1)
            self._counters.add(self._place, TURNS, 1)
        try:
            yield
        finally:
            with self._lock:
                self._counters.add(self._place, DECODING, -1)
                self._counters.add(self._place, TURNS, 1)
