"""The frames of a TFRecord file.

https://www.tensorflow.org/tutorials/load_data/tfrecord ("TFRecords format details").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from packer.errors import DamagedPack

CRC = struct.Struct("<I")
_HEAD = struct.Struct("<QI")


class FRAME:
    """Bytes of a frame before its data (length and its checksum) and after it (checksum of the data)."""

    head = 12
    tail = 4


def masked_crc32c(*parts: bytes | memoryview) -> int:
    """Return the masked CRC of the framing: the CRC of data that contains CRCs is weak, so they are transformed."""
    crc = 0
    for part in parts:
        crc = int(crc32c(part, crc))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frames(path: str, data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each frame's data, with both checksums verified.

    Raises:
        DamagedPack: A frame is truncated, or fails a checksum.
    """
    position, end = 0, len(data)
    unpack, unpack_crc, checksum = _HEAD.unpack_from, CRC.unpack_from, crc32c
    while position < end:
        start = position + FRAME.head
        if start > end:
            raise DamagedPack(path, f"no frame at byte {position}")
        length, expected = unpack(data, position)
        crc = checksum(data[position : start - 4])  # masked here: a million calls would take as long as all the rest
        if expected != (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF:
            raise DamagedPack(path, f"no frame at byte {position}")
        stop = start + length
        if stop + FRAME.tail > end:
            raise DamagedPack(path, f"the frame at byte {position} is truncated")
        crc = checksum(data[start:stop])
        if unpack_crc(data, stop)[0] != (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF:
            raise DamagedPack(path, f"the frame at byte {position} fails its checksum")
        yield start, stop
        position = stop + FRAME.tail
