"""Digests of whole files: SHA-256 for `verify`, and CRC-32C for readers: ten times as fast."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from crc32c import crc32c

BLOCK_BYTES = 4 << 20
"""A thread that hashes waits for the GIL once a block, up to 5 ms where another thread computes: small ones would wait
longer than they take."""

Report = Callable[[int], None]


def _no_progress(size: int) -> None:
    pass


def sha256_of(path: str, progress: Report = _no_progress) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; `progress` gets the bytes read. Raises OSError."""
    digest = hashlib.sha256()
    _feed(path, digest.update, progress)
    return digest.hexdigest()


def crc32c_of(path: str) -> int:
    """Return the CRC-32C of a file. It is read, not mapped: no page stays with the process. Raises OSError."""
    checksum = 0

    def update(block: memoryview) -> None:
        nonlocal checksum
        checksum = crc32c(block, checksum)

    _feed(path, update, _no_progress)
    return int(checksum)


def _feed(path: str, update: Callable[[memoryview], None], progress: Report) -> None:
    memory = memoryview(bytearray(BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(memory):
            update(memory[:size])
            progress(size)
