"""Kernel locks on directories: they end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

POLL_S = 0.02


def try_lock(folder: str) -> int | None:
    """Lock a directory for this process alone: the descriptor that holds the lock; None where another has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def in_use(folder: str) -> Iterator[None]:
    """Say that this process writes to a directory, as others may at the same time; see `wait_until_unused`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def wait_until_unused(folder: str, timeout_s: float) -> bool:
    """Wait until no process says that it writes to a directory; False where one still does after that time."""
    end = time.monotonic() + timeout_s
    while (descriptor := try_lock(folder)) is None:
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    os.close(descriptor)
    return True
