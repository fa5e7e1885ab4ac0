"""The frames of TFRecord and RecordIO files, and the fields of the protobuf messages in them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from itertools import islice

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


def tfrecord_frames(path: str, data: memoryview) -> Iterator[tuple[int, int]]:
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


MAGIC = 0xCED7230A
FRAME_HEAD = struct.Struct("<II")
HEADER = struct.Struct("<IfQQ")
"""IRHeader: the number of floats after it (0: none), the label, and two ids."""
MOST_BYTES = (1 << 29) - 1


def recordio_frames(path: str, view: mmap.mmap | memoryview) -> Iterator[tuple[int, int]]:
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


BYTES_LIST = 1
"""The field of a feature that is a list of bytes."""

_FIXED_BYTES = {1: 8, 5: 4}  # by wire type


# Finds fields in the bytes of a protobuf message, and features in those of a tf.train.Example.
#
# Wire format: https://protobuf.dev/programming-guides/encoding. An Example is a field 1 (features) of fields 1 (entries
# of a map: key 1, feature 2); a feature is one of three lists, whose values are fields 1 (numbers are packed).


def bytes_features(data: memoryview, names: Collection[bytes]) -> dict[bytes, tuple[int, int]]:
    """Return the (start, stop) of the first value of these bytes features of an Example, by name.

    Features that are missing, empty or of another type are left out.

    Raises:
        ValueError: It is not a protobuf message.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for features in fields_of(data, 0, len(data), 1):
        for entry in fields_of(data, *features, 1):
            for start, stop in fields_of(data, *entry, 1):
                if (name := bytes(data[start:stop])) in names:
                    found.update((name, value) for value in _first_value(data, *entry))
    return found


def _first_value(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, int]]:
    for feature in fields_of(data, start, stop, 2):
        for values in fields_of(data, *feature, BYTES_LIST):
            yield from islice(fields_of(data, *values, 1), 1)


def fields_of(data: memoryview, position: int, stop: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each length-delimited field `wanted` of a message, ignoring others."""
    while position < stop:
        tag, position = read_varint(data, position)
        kind = tag & 7
        if kind == 0:
            _, position = read_varint(data, position)
            continue
        size = _FIXED_BYTES.get(kind, -1)
        if kind == 2:
            size, position = read_varint(data, position)
        if size < 0 or position + size > stop:
            raise ValueError(f"no field of a message before byte {position}")
        if kind == 2 and tag >> 3 == wanted:
            yield position, position + size
        position += size


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    number = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        number |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return number, position
        shift += 7
    raise ValueError(f"a number that does not end before byte {position}")
