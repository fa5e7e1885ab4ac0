"""Maps files read-only into memory, one after another in one range of addresses.

One range for all shards lets a whole batch be gathered in one call, whichever shards its records lie in.
The maps hold no file descriptor (a pack of thousands of shards stays below any limit on open files),
which Python's own `mmap` cannot do before 3.13.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedPack, StorageError

MAP_FIXED = 0x10  # the same on Linux, macOS and the BSDs; Python's mmap module does not name it
MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_files(files: Sequence[tuple[str, int]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Map (path, size in bytes) pairs into one read-only array.

    Sizes are compared with the files before anything is mapped: a page of a map that the file does not cover would kill
    the process (SIGBUS) when touched.

    Returns:
        The bytes of all files, and where each begins.

    Raises:
        DamagedPack: A file is missing or of another size.
        StorageError: A file cannot be opened or mapped.
    """
    starts = np.zeros(len(files), np.int64)
    total = 0
    for i, (path, size) in enumerate(files):
        starts[i] = total
        total += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        check_size(path, size)
    if not total:
        return np.zeros(0, np.uint8), starts
    base = _reserve(total)
    try:
        for (path, size), start in zip(files, starts.tolist(), strict=True):
            if size:
                _map_at(base + start, path, size)
    except BaseException:
        _libc.munmap(base, total)
        raise
    memory = (ctypes.c_uint8 * total).from_address(base)
    unmap = weakref.finalize(memory, _libc.munmap, base, total)  # when the last array over it is gone
    unmap.atexit = False  # at exit other threads may still read; the kernel unmaps
    return np.frombuffer(memoryview(memory).toreadonly(), np.uint8), starts


def check_size(path: str, size: int) -> None:
    """Raise DamagedPack if a file is missing or does not have `size` bytes."""
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise DamagedPack(path, "is missing", "restore it or build the pack again") from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    if found != size:
        raise DamagedPack(
            path, f"has {found} bytes where the pack says {size}", "restore it or build the pack again"
        )


def _reserve(total: int) -> int:
    """Reserve addresses for `total` bytes, with nothing behind them yet."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | getattr(mmap, "MAP_NORESERVE", 0)
    base = _libc.mmap(None, total, 0, flags, -1, 0)
    if base == MAP_FAILED:
        raise StorageError("", f"cannot reserve {total} bytes of addresses: {os.strerror(ctypes.get_errno())}")
    return int(base)


def _map_at(address: int, path: str, size: int) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DamagedPack(path, "is missing", "restore it or build the pack again") from None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
    try:
        if os.fstat(fd).st_size != size:
            raise DamagedPack(path, "changed its size while it was opened", "open the pack again")
        flags = mmap.MAP_SHARED | MAP_FIXED
        if _libc.mmap(address, size, mmap.PROT_READ, flags, fd, 0) == MAP_FAILED:
            raise StorageError(path, f"cannot be mapped: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)
