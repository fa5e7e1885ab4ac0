"""Writes and maps shard files, with fsync and errors that name the file."""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from packer.errors import DamagedPack, PackerError, StorageError, option

if TYPE_CHECKING:
    from typing_extensions import Buffer
import re
import stat
import struct
import sys
from typing import Any

from packer.system import PORTABLE, _libc

_BUFFER_BYTES = 1 << 20
_DIRECT_BYTES = 64 << 10
"""Larger parts are written as they are: a copy in the buffer would take longer than the call that it saves."""
FREE_SPACE = "free some space"
"""What to do about a full disk where nothing else can be done."""


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn the OSError of a write into a StorageError that names `path`."""
    try:
        yield
    except PackerError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: str, error: OSError) -> StorageError:
    """Return the StorageError for a write to `path` that failed."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    next_step = f"{FREE_SPACE}, or choose another {option('out')}" if full else ""
    reason = os.strerror(error.errno or 0) if full else error.strerror or error  # Arrow's has more than the reason
    found = StorageError(path, f"cannot write: {reason}", next_step)
    found.full = full
    return found


class NewFile:
    """A file written sequentially and fsynced when closed; `path` must not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        with storage_errors(path):
            self._raw = open(path, "xb", buffering=0)  # noqa: SIM115
        self._file = io.BufferedWriter(self._raw, _BUFFER_BYTES)

    def __del__(self) -> None:
        # an abandoned writer: only its descriptor must be closed
        if hasattr(self, "_file"):
            with suppress(OSError):
                self._file.close()

    def append(self, *parts: bytes) -> None:
        """Write the parts, one after another."""
        try:  # not `storage_errors`, which takes as long as writing a small image
            for part in parts:
                if len(part) < _DIRECT_BYTES:
                    self._file.write(part)
                else:
                    self._file.flush()
                    rest = memoryview(part)
                    while rest:
                        rest = rest[self._raw.write(rest) :]
        except OSError as error:
            raise write_error(self._path, error) from error

    def close(self) -> None:
        """Flush and fsync. A failed fsync is never retried, because the kernel reports it only once."""
        with storage_errors(self._path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def mapped(path: str) -> Iterator[mmap.mmap]:
    """Map the finished file at `path`. Raise DamagedPack if it is missing or empty."""
    try:
        with open(path, "rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise DamagedPack(path, "the shard is missing") from error
    except ValueError as error:
        raise DamagedPack(path, "the shard is empty") from error
    except OSError as error:
        raise StorageError(path, f"cannot read: {error.strerror or error}") from error
    try:
        yield view
    finally:
        with suppress(BufferError):  # an array in a traceback may still refer to the map and keep it open
            view.close()


MEMORY_BYTES = 1 << 20


class Spill:
    """Bytes that are appended, then read. From MEMORY_BYTES on they are in a temporary file without a name."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None

    def append(self, data: Buffer) -> None:
        """Append bytes. Raise StorageError if the disk does not take them."""
        self._buffer += data
        if len(self._buffer) >= MEMORY_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="packer-spill-")  # noqa: SIM115
            self._file.write(self._buffer)
            self._file.flush()
        except OSError as error:
            step = "make room in the folder for temporary files, or choose another one with TMPDIR"
            raise StorageError(tempfile.gettempdir(), f"cannot be written: {error.strerror}", step) from None
        self._buffer = bytearray()

    def finish(self) -> bytes | mmap.mmap:
        """Return all bytes; nothing may be appended any more."""
        if self._file is None:
            return bytes(self._buffer)
        self._flush()
        with self._file as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


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
