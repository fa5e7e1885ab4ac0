"""OpenCV as packer uses it: without threads of its own and without words on the terminal.

Both are switches of the whole process. They are set while packer works, and put back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2

__all__ = ["cv2", "quiet_opencv"]

_logging: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # 4, 5


class _Switches:
    """OpenCV's switches, and who needs them off."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may end a loader's iteration while it is held
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
            if self.users == 0:  # what somebody else has set meanwhile stays
                if cv2.getNumThreads() == 1 != self.threads:
                    cv2.setNumThreads(self.threads)
                if _logging.getLogLevel() == 0:
                    _logging.setLogLevel(self.log_level)

    def unlock(self) -> None:
        self.lock = threading.RLock()


_SWITCHES = _Switches()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock at that moment
    os.register_at_fork(after_in_child=_SWITCHES.unlock)


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """Meanwhile OpenCV starts no threads and logs nothing; any number of threads may be in here at a time.

    The build and the loader bring their own processes and threads: OpenCV's would fight them for the cores, and a child
    forked while its thread pool is at work can hang. What it logs of a broken image, packer's error says with the
    file's name.
    """
    _SWITCHES.turn_off()
    try:
        yield
    finally:
        _SWITCHES.put_back()
