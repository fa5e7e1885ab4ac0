"""Digests of whole files: SHA-256, which `verify` looks at, and CRC-32C, which readers look at: ten times as fast."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from crc32c import crc32c

BLOCK_BYTES = 4 << 20
"""A thread that hashes waits for the GIL once a block, up to 5 ms where another thread computes: small ones would wait
longer than they take."""

Progress = Callable[[int], None]


def _no_progress(size: int) -> None:
    pass


def sha256_of(path: str, progress: Progress = _no_progress) -> str:
    """SHA-256 of a file as hexadecimal digits; `progress` is told of bytes read. Raises OSError."""
    digest = hashlib.sha256()
    _feed(path, digest.update, progress)
    return digest.hexdigest()


def crc32c_of(path: str) -> int:
    """CRC-32C (Castagnoli) of a file. Read, not mapped: no page of it stays with the process. Raises OSError."""
    checksum = 0

    def update(block: memoryview) -> None:
        nonlocal checksum
        checksum = crc32c(block, checksum)

    _feed(path, update, _no_progress)
    return int(checksum)


def _feed(path: str, update: Callable[[memoryview], None], progress: Progress) -> None:
    memory = memoryview(bytearray(BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(memory):
            update(memory[:size])
            progress(size)
