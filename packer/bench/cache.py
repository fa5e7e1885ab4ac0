"""The page cache: drop a file from it without root, and look whether that was done."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from packer.format.mmap import map_files
from packer.system import PORTABLE, forget_pages


def drop(path: str) -> None:
    """Ask the kernel to forget the pages of a file; those that are not on disk yet are written first."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        forget_pages(descriptor)
    finally:
        os.close(descriptor)


def pages_in_memory(paths: Sequence[str]) -> float | None:
    """About which share of the bytes of these files is in the page cache: file systems may ignore `drop`.

    None where nobody can say: Linux tells it to those who own a file or may write to it.
    """
    total = found = 0.0
    for path in paths:
        facts = os.stat(path)
        size = facts.st_size
        if not size or PORTABLE or not (facts.st_uid == os.geteuid() or os.access(path, os.W_OK)):
            continue
        share = map_files([(path, size)])[0].share_in_memory(np.arange(0, size, mmap.PAGESIZE, dtype=np.int64))
        total += size
        found += share * size
    return found / total if total else None
