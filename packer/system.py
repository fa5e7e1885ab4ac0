"""What packer asks of the operating system: cores, locks, and names that change in one step."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

POLL_S = 0.02
AT_FDCWD = -100
RENAME_EXCHANGE = 2  # linux/fs.h
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def usable_cores() -> int:
    """The cores that this process may use: its CPU affinity, and the quota of its container (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", "rb") as file:
            quota, period = file.read(100).split()
        if quota != b"max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return cores


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


def exchange_names(a: str, b: str) -> bool:
    """Let the names change places; False where the system or the file system cannot. Raises OSError."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux, glibc 2.28
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), b)
