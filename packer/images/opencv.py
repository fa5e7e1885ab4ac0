"""Turns off OpenCV's log messages while packer works, and its threads in packer's own worker processes.

The number of OpenCV's threads belongs to the whole process, and to whoever runs it. OpenCV divides by it, so that a
change ends the process with SIGFPE if any thread is within OpenCV. Images of up to 98,303 pixels are one piece of work,
and need no threads; for larger ones, they cost a loader 0 to 5 percent more processor time on two cores, and up to 16
percent where there are eight of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2

from packer.system import at_fork

__all__ = ["cv2", "quiet_opencv"]

REST_S = 0.005
"""Time in which OpenCV's threads fall asleep after their work: they look for more for about 1 ms."""

_logging: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # 4, 5


class _Log:
    """OpenCV's log level, and the number of users that need it off."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may end an iteration while it is held
        self.users = 0
        self.level = 0

    def turn_off(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.level = _logging.getLogLevel()
                _logging.setLogLevel(0)

    def put_back(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0 and _logging.getLogLevel() == 0:  # keep a value that others have set in the meantime
                _logging.setLogLevel(self.level)

    def unlock(self) -> None:
        self.lock = threading.RLock()


_LOG = _Log()


def _let_threads_rest() -> None:
    """Before a fork, wait until OpenCV's threads sleep: a child forked while one of them wakes up may hang."""
    if cv2.getNumThreads() > 1:
        time.sleep(REST_S)


# in a child, another thread may have held the lock at that moment
at_fork(before=_let_threads_rest, after_in_child=_LOG.unlock)


@contextmanager
def quiet_opencv(in_worker: bool = False) -> Iterator[None]:
    """Turn off OpenCV's log messages in this context: packer's errors replace them. Thread-safe.

    Args:
        in_worker: This is a worker process of packer's, no thread of which is within OpenCV: OpenCV's threads, which
            would compete with the other workers for the cores, are turned off from here on.
    """
    if in_worker:
        cv2.setNumThreads(0)
    _LOG.turn_off()
    try:
        yield
    finally:
        _LOG.put_back()
