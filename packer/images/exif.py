"""Reads the orientation out of an Exif block; anything malformed counts as upright (1)."""

from __future__ import annotations

import struct

ORIENTATION_TAG = 274
_SHORT = 3
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def orientation_of(block: bytes) -> int:
    """The orientation (1..8) in an Exif block, with or without its ``Exif\\0\\0`` prefix; 1 where in doubt.

    Only the first directory is read, once and in order, so no chain of offsets can make it loop.
    """
    if block.startswith(b"Exif\0\0"):
        block = block[6:]
    order = _BYTE_ORDERS.get(block[:4])
    if order is None or len(block) < 14:
        return 1
    (start,) = struct.unpack_from(order + "I", block, 4)
    if start + 2 > len(block):
        return 1
    (count,) = struct.unpack_from(order + "H", block, start)
    first = start + 2
    for at in range(first, min(first + 12 * count, len(block) - 11), 12):
        tag, kind, number, value = struct.unpack_from(order + "HHIH", block, at)
        if tag == ORIENTATION_TAG:
            return value if kind == _SHORT and number == 1 and 1 <= value <= 8 else 1
    return 1
