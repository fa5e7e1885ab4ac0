"""Turns off OpenCV's threads and log messages while packer works.

Both settings apply to the whole process, and are restored afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2

from packer.system import at_fork

__all__ = ["cv2", "quiet_opencv"]

_logging: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # 4, 5


class _Switches:
    """OpenCV's settings, and the number of users that need them off."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may end an iteration while it is held
        self.users = 0
        self.threads = self.log_level = 0

    def turn_off(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.threads, self.log_level = cv2.getNumThreads(), _logging.getLogLevel()
                cv2.setNumThreads(0)
                _logging.setLogLevel(0)

    def put_back(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:  # keep a value that others have set in the meantime
                if cv2.getNumThreads() == 1 != self.threads:
                    cv2.setNumThreads(self.threads)
                if _logging.getLogLevel() == 0:
                    _logging.setLogLevel(self.log_level)

    def unlock(self) -> None:
        self.lock = threading.RLock()


_SWITCHES = _Switches()
at_fork(after_in_child=_SWITCHES.unlock)  # another thread may hold the lock at that moment


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """Turn off OpenCV's threads and log messages in this context. Thread-safe.

    The build and the loader use their own processes and threads: OpenCV's would compete for the cores, and a child
    forked while its thread pool is working can hang. packer's errors about a damaged image replace its log messages.
    """
    _SWITCHES.turn_off()
    try:
        yield
    finally:
        _SWITCHES.put_back()
