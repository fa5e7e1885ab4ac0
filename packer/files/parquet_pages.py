"""Finds the values of a binary column in a Parquet file: Arrow reads values, and does not say where they are.

Format: https://parquet.apache.org/docs/file-format/data-pages. A page begins with a header in Thrift's compact
protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from packer.files.record_frames import read_varint

_LENGTH = struct.Struct("<I")
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_PLAIN, _RLE, _DICTIONARY_INDEXES = 0, 3, (2, 8)
_DEEPEST = 8
_MOST_VALUES = 1 << 26
"""In a page; what a damaged header says must not be allocated."""
NO_PLACE = (0, -1)
"""The place of a null."""


class _Page(NamedTuple):
    kind: int
    header: dict[int, Any]
    """The fields of its own header, by id."""
    start: int
    stop: int


def binary_places(data: memoryview, chunk: Any, levels: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of each value of a chunk, `NO_PLACE` for null.

    Args:
        data: The file.
        chunk: Arrow's metadata of the chunk of the column in a row group (`ColumnChunkMetaData`).
        levels: The column's highest definition level; it has no repetition level.

    Raises:
        ValueError: The values are compressed, or the file is damaged.
    """
    if chunk.compression != "UNCOMPRESSED":
        problem = f"the column {chunk.path_in_schema} is compressed ({chunk.compression})"
        raise ValueError(f"{problem}: no image has a place of its own in the file")
    dictionary: list[tuple[int, int]] = []
    for page in _pages(data, chunk):
        if page.kind == _DICTIONARY:
            dictionary = list(_plain(data, page.start, page.stop, page.header[1]))
            continue
        there, encoding, start = _levels(data, page, levels)
        count = int(there.sum())
        if encoding == _PLAIN:
            values = _plain(data, start, page.stop, count)
        elif encoding in _DICTIONARY_INDEXES:
            indexes = _hybrid(data[start + 1 : page.stop], data[start], count) if count else np.zeros(0, np.int64)
            values = iter([dictionary[index] for index in indexes.tolist()])
        else:
            raise ValueError(f"the column {chunk.path_in_schema} has the encoding {encoding}, which is not plain")
        if count == len(there):
            yield from values
        else:
            yield from (next(values) if is_there else NO_PLACE for is_there in there.tolist())


def _pages(data: memoryview, chunk: Any) -> Iterator[_Page]:
    """Yield the pages of a chunk that hold values."""
    starts = [chunk.data_page_offset, *([chunk.dictionary_page_offset] if chunk.has_dictionary_page else [])]
    position = min(start for start in starts if start)
    end, values = min(len(data), position + chunk.total_compressed_size), 0
    if position < 4:
        raise ValueError(f"a column begins at byte {position}")
    while values < chunk.num_values:
        header, start = _struct(data[:end], position)
        position = start + header[3]
        if header[3] < 0 or position > end:
            raise ValueError(f"a page extends beyond its column at byte {start}")
        kind = header[1]
        if kind in (_DATA, _DICTIONARY, _DATA_V2):
            page = _Page(kind, header[{_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}[kind]], start, position)
            values += 0 if kind == _DICTIONARY else _count(page.header[1])
            yield page


def _count(number: int) -> int:
    if not 0 < number <= _MOST_VALUES:
        raise ValueError(f"a page of {number} values")
    return number


def _levels(data: memoryview, page: _Page, levels: int) -> tuple[Any, int, int]:
    """Return which values of a page are there, their encoding, and where they begin."""
    header, start = page.header, page.start
    count = header[1]
    if page.kind == _DATA_V2:
        size, encoding = header[5], header[4]
        start += header[6]  # repetition levels
    else:
        size, encoding = 0, header[2]
        if levels:
            if header[3] != _RLE:
                raise ValueError("definition levels that are not run-length encoded")
            size, start = _LENGTH.unpack_from(data, start)[0], start + _LENGTH.size
    if min(size, start - page.start) < 0 or start + size > page.stop:
        raise ValueError(f"levels extend beyond their page at byte {start}")
    if not levels or not size:
        return np.ones(count, bool), encoding, start + size
    there = _hybrid(data[start : start + size], levels.bit_length(), count) == levels
    return there, encoding, start + size


def _plain(data: memoryview, position: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the place of each value: its length in four bytes, then the value."""
    unpack = _LENGTH.unpack_from
    for _ in range(count):
        (size,) = unpack(data, position)
        position += 4
        if position + size > stop:
            raise ValueError(f"a value extends beyond its page at byte {position}")
        yield position, size
        position += size


def _hybrid(data: memoryview, bits: int, count: int) -> Any:
    """Return `count` numbers: runs of one number, and of packed ones ("RLE/bit-packing hybrid")."""
    if bits > 32:
        raise ValueError(f"numbers of {bits} bits")
    parts, position = [np.zeros(0, np.int64)], 0
    left = count if bits else 0
    while left > 0:
        run, position = read_varint(data, position)
        if run & 1:
            packed = np.frombuffer(data[position : position + (run >> 1) * bits], np.uint8)
            position += (run >> 1) * bits
            columns = np.unpackbits(packed, bitorder="little")[: len(packed) * 8 // bits * bits].reshape(-1, bits)
            part = columns[:left] @ (1 << np.arange(bits, dtype=np.int64))
        else:
            size = (bits + 7) // 8
            part = np.full(min(run >> 1, left), int.from_bytes(data[position : position + size], "little"))
            position += size
        if not len(part):
            raise ValueError("an empty run of numbers")
        parts.append(part)
        left -= len(part)
    return np.concatenate(parts) if bits else np.zeros(count, np.int64)


def _struct(data: memoryview, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the fields of a Thrift struct by id, and the position after it."""
    fields: dict[int, Any] = {}
    field = 0
    while kind := data[position]:
        position += 1
        if kind >> 4:
            field += kind >> 4
        else:
            zigzag, position = read_varint(data, position)
            field = zigzag >> 1 ^ -(zigzag & 1)
        fields[field], position = _value(data, position, kind & 15, depth)
    return fields, position + 1


def _value(data: memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, position
    if kind == 3:
        return data[position], position + 1
    if kind in (4, 5, 6):
        zigzag, position = read_varint(data, position)
        return zigzag >> 1 ^ -(zigzag & 1), position
    if kind == 7:
        return None, position + 8
    if kind == 8:  # binary: statistics
        size, position = read_varint(data, position)
        return None, position + size
    if kind == 12 and depth < _DEEPEST:
        return _struct(data, position, depth + 1)
    raise ValueError(f"no page header: a field of type {kind} before byte {position}")
