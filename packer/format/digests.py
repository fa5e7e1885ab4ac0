"""Digests of whole files: SHA-256 for `verify`, and CRC-32C, ten times as fast, for readers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from crc32c import crc32c

from packer.system import regular_descriptor

BLOCK_BYTES = 4 << 20
"""A hashing thread waits for the GIL once per block, up to 5 ms if another thread computes: for small blocks that would
take longer than hashing."""

Report = Callable[[int], None]


def _no_progress(size: int) -> None:
    pass


def sha256_of(path: str, progress: Report = _no_progress) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; `progress` receives the bytes read. Raise OSError."""
    digest = hashlib.sha256()
    _feed(path, digest.update, progress)
    return digest.hexdigest()


def crc32c_of(path: str) -> int:
    """Return the CRC-32C of a file without mapping it, so that no pages stay in the process. Raise OSError."""
    checksum = 0

    def update(block: memoryview) -> None:
        nonlocal checksum
        checksum = crc32c(block, checksum)

    _feed(path, update, _no_progress)
    return int(checksum)


def _feed(path: str, update: Callable[[memoryview], None], progress: Report) -> None:
    with open(regular_descriptor(path), "rb", buffering=0) as file:
        # less for a small file: to clear a whole block would take longer than to read it
        memory = memoryview(bytearray(min(BLOCK_BYTES, max(1, os.fstat(file.fileno()).st_size))))
        while size := file.readinto(memory):
            update(memory[:size])
            progress(size)
