"""Finds fields in the bytes of a protobuf message, and features in those of a tf.train.Example.

Wire format: https://protobuf.dev/programming-guides/encoding. An Example is a field 1 (features) of fields 1 (entries
of a map: key 1, feature 2); a feature is one of three lists, whose values are fields 1 (numbers are packed).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

BYTES_LIST = 1
"""The field of a feature that is a list of bytes."""

_FIXED_BYTES = {1: 8, 5: 4}  # by wire type


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
