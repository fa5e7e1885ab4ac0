"""Arithmetic on checksums (CRC-32C), without the bytes that they are of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Checksums = NDArray[np.uint32]


def crc32c_after(begins: Checksums, wholes: Checksums, sizes: NDArray[np.int64]) -> Checksums:
    """Return the CRC-32C of the ends of some texts, of which only the checksums are known, (n,).

    Args:
        begins: The CRC-32C of the beginning of each text.
        wholes: The CRC-32C of each text.
        sizes: The number of bytes of each end.

    That of a whole is that of its end, and that of its beginning with as many zeros after it as the end has bytes
    (the crc32_combine of zlib). What so many zeros do to a checksum is linear: a table for each of its four bytes.
    """
    moved, zeros = begins.copy(), _one_zero()
    for bit in range(int(sizes.max(initial=0)).bit_length()):
        rows = np.flatnonzero(sizes >> bit & 1)
        moved[rows] = _after(zeros, moved[rows])
        zeros = _after(zeros, zeros)  # of twice as many
    ends: Checksums = wholes ^ moved
    return ends


def _after(zeros: Checksums, checksums: Checksums) -> Checksums:
    found: Checksums = zeros[0][checksums & 255]
    for byte in range(1, 4):
        found ^= zeros[byte][checksums >> 8 * byte & 255]
    return found


def _one_zero() -> Checksums:
    """Return what a zero byte makes of checksums with only one byte that is not zero, (4, 256)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> 1 ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    bytes_of = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    zeros: Checksums = table[bytes_of & 255] ^ bytes_of >> 8
    return zeros
