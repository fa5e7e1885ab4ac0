"""The frames of a RecordIO file of MXNet.

Each is the magic word, a word of 3 bits (0: a whole record) and 29 bits (the length of the data), the data, and zeros
up to a multiple of 4 bytes.

https://mxnet.apache.org/versions/1.9.1/api/architecture/note_data_loading
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

from packer.errors import DamagedPack

MAGIC = 0xCED7230A
FRAME_HEAD = struct.Struct("<II")
HEADER = struct.Struct("<IfQQ")
"""IRHeader: the number of floats after it (0: none), the label, and two ids."""
MOST_BYTES = (1 << 29) - 1


def frames(path: str, view: mmap.mmap | memoryview) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each record's data."""
    position, end = 0, len(view)
    while position < end:
        start = position + FRAME_HEAD.size
        magic, word = FRAME_HEAD.unpack_from(view, position) if start <= end else (0, 0)
        if magic != MAGIC:
            raise DamagedPack(path, f"no record at byte {position}")
        if word >> 29:
            problem = f"the record at byte {position} is split into parts, so that its image is not in one piece"
            raise DamagedPack(path, problem, "it holds the format's magic word; pack the images again")
        stop = start + (word & MOST_BYTES)
        position = stop + (start - stop) % 4
        if position > end:
            raise DamagedPack(path, f"the record at byte {start - FRAME_HEAD.size} is truncated")
        yield start, stop
