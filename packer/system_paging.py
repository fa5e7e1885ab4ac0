"""Asks the kernel about the pages of a mapped pack: are they in memory, fetch them, keep them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from packer.types import Int64

MADV_WILLNEED = 3  # the same on Linux, macOS and the BSDs
SAMPLED_PAGES = 64
CGROUP = "/sys/fs/cgroup"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def fetch(region: NDArray[np.uint8], offsets: Int64, sizes: Int64) -> None:
    """Ask for byte ranges of a mapped region to be read from the disk in the background; returns at once.

    Ranges that follow one another are asked for together. The kernel may ignore it.
    """
    first = offsets // mmap.PAGESIZE
    end = -(-(offsets + sizes) // mmap.PAGESIZE)
    order = np.argsort(first, kind="stable")
    first, end = first[order], np.maximum.accumulate(end[order])
    begins = np.flatnonzero(np.concatenate([[True], first[1:] > end[:-1]]))
    stops = np.concatenate([begins[1:], [len(first)]]) - 1
    base = region.ctypes.data
    for begin, stop in zip(first[begins].tolist(), end[stops].tolist(), strict=True):
        _libc.madvise(base + begin * mmap.PAGESIZE, (stop - begin) * mmap.PAGESIZE, MADV_WILLNEED)


def share_in_memory(region: NDArray[np.uint8], offsets: Int64) -> float:
    """About which share of the bytes at these offsets of a mapped region is in memory; 1.0 where nobody can say.

    A few of them, evenly drawn, are looked at. The container's own pages do not count: reading never brings them in.
    """
    if not len(offsets):
        return 1.0
    state = (ctypes.c_ubyte * 1)()
    drawn = offsets[np.linspace(0, len(offsets) - 1, min(SAMPLED_PAGES, len(offsets))).astype(np.int64)]
    found = 0
    for offset in drawn.tolist():
        page = offset // mmap.PAGESIZE * mmap.PAGESIZE
        if _libc.mincore(region.ctypes.data + page, mmap.PAGESIZE, state) != 0:
            return 1.0
        found += state[0] & 1
    return found / len(drawn)


def keep(region: NDArray[np.uint8], start: int, size: int) -> bool:
    """Read a part of a mapped region and lock it in memory; False where that is not allowed."""
    locked: int = _libc.mlock(region.ctypes.data + start, size)
    return locked == 0


def available_bytes() -> int:
    """Memory that can be taken without swapping: of the machine, or of the container's limit (cgroup v2)."""
    try:
        with open("/proc/meminfo", "rb") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"MemAvailable:"))
    except (OSError, StopIteration):
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        available = min(available, _cgroup_bytes(CGROUP))
    return available


def _cgroup_bytes(folder: str) -> int:
    """What a container's limit leaves; the page cache counts as used there, and is given up when it is needed."""
    with open(f"{folder}/memory.max", "rb") as limit, open(f"{folder}/memory.current", "rb") as current:
        left = int(limit.read()) - int(current.read())
    with open(f"{folder}/memory.stat", "rb") as file:
        numbers = dict(line.split() for line in file)
    return left + int(numbers.get(b"active_file", 0)) + int(numbers.get(b"inactive_file", 0))
