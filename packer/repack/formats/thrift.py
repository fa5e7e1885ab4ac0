"""Reads structs of Thrift's compact protocol: the page headers of Parquet, which pyarrow does not show.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import mmap
from typing import Any

DEEPEST = 8
TRUE, FALSE, BYTE, DOUBLE, BINARY, STRUCT = 1, 2, 3, 7, 8, 12
NUMBERS = (4, 5, 6)
LISTS = (9, 10)


def read_struct(data: mmap.mmap | bytes, at: int, stop: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct by number, and the position behind it.

    Numbers are ints, structs are dicts; the values of others are left out.

    Raises:
        ValueError: It is damaged, or ends behind `stop`.
    """
    fields: dict[int, Any] = {}
    number = 0
    while True:
        if at >= stop or depth > DEEPEST:
            raise ValueError(f"no page header before byte {at}")
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            value, at = _varint(data, at, stop)
            number = _signed(value)
        if kind in (TRUE, FALSE):
            fields[number] = kind == TRUE
        else:
            fields[number], at = _value(data, at, stop, (kind, depth))


def _value(data: mmap.mmap | bytes, at: int, stop: int, kind_depth: tuple[int, int]) -> tuple[Any, int]:
    kind, depth = kind_depth
    if kind in NUMBERS:
        value, at = _varint(data, at, stop)
        return _signed(value), at
    if kind == STRUCT:
        return read_struct(data, at, stop, depth + 1)
    if kind == BINARY:
        size, at = _varint(data, at, stop)
        return None, at + size
    if kind in (BYTE, TRUE, FALSE):
        return None, at + 1
    if kind == DOUBLE:
        return None, at + 8
    if kind in LISTS and at < stop:
        count, inner = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _varint(data, at, stop)
        for _ in range(count):
            _, at = _value(data, at, stop, (inner, depth + 1))
            if at > stop:
                break
        return None, at
    raise ValueError(f"no page header before byte {at}")


def _varint(data: mmap.mmap | bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError(f"no page header before byte {at}")


def _signed(value: int) -> int:
    return value >> 1 ^ -(value & 1)
