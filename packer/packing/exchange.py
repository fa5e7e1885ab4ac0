"""Lets two paths change names in one step, so that there is no moment at which a pack has none."""

from __future__ import annotations

import ctypes
import errno
import os

AT_FDCWD = -100
RENAME_EXCHANGE = 2  # linux/fs.h
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(a: str, b: str) -> bool:
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
