"""What a cache of blocks asks of the system: sparse files, and locks on bytes of a file that end with its process.

The locks belong to an open descriptor (Linux, `F_OFD_SETLK`), not to a process: closing another descriptor of the file
does not release them, and two descriptors of one process exclude each other.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import sys
from contextlib import suppress
from typing import Any

from packer.system import PORTABLE, _libc

with suppress(ImportError):  # Windows
    import fcntl  # not when it is needed, which may be at the end of the interpreter

HAS_BYTE_LOCKS = not PORTABLE and sys.platform.startswith("linux")
"""Whether files can be shared between processes block by block."""
MOUNTS = "/proc/self/mounts"
OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
"""How a space in the name of a folder is written there."""
PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
FLOCK = struct.Struct("hhqqi4x")
"""struct flock of Linux: type, whence, start, length, pid."""


def has_one_name(descriptor: int, size: int) -> bool:
    """Return whether an open file is a regular one of that size that has no second name."""
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_size == size and found.st_nlink == 1


def file_system(path: str) -> str:
    """Return the type of the file system of a folder, such as ``ext4``; empty if the system does not say it."""
    path, found = os.path.realpath(path), ("", "")
    with suppress(OSError), open(MOUNTS, "rb") as file:
        for line in file:
            _, escaped, kind = line.split()[:3]
            place = os.fsdecode(OCTAL.sub(lambda code: bytes([int(code[1], 8)]), escaped))
            inside = (path + "/").startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(found[0]):
                found = place, os.fsdecode(kind)
    return found[1]


def lock_bytes(descriptor: int, start: int, count: int, shared: bool = False) -> bool:
    """Lock bytes of an open file, which need not exist; return False at once if another descriptor has one of them."""
    try:
        _set_lock(descriptor, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, start, count)
    except BlockingIOError:
        return False
    return True


def unlock_bytes(descriptor: int, start: int, count: int) -> None:
    """Release locks on bytes of an open file."""
    _set_lock(descriptor, fcntl.F_UNLCK, start, count)


def _set_lock(descriptor: int, kind: int, start: int, count: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, start, count, 0))


def write_at(descriptor: int, data: Any, offset: int) -> None:
    """Write all of `data` at an offset of an open file. Raise OSError on failure."""
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def punch_hole(descriptor: int, start: int, size: int) -> None:
    """Give the disk space of a range back; it reads as zeros then, also in maps. Raise OSError on failure."""
    import ctypes

    call = _libc().fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while call(descriptor, PUNCH, start, size) != 0:
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))
