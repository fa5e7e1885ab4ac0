"""Parquet files whose column of images is not compressed, as Hugging Face's datasets writes it.

https://parquet.apache.org/docs/file-format/: a column chunk is pages; a plain page holds (4 bytes of length, value) for
each row; page headers are of Thrift's compact protocol.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packer.errors import UsageError, printable
from packer.repack.formats.base import ForeignFile, FormatOptions, Row
from packer.repack.formats.huggingface import Columns
from packer.repack.formats.thrift import read_struct
from packer.sources.archives.places import SourceFile
from packer.sources.parquet.file import ParquetFile

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY = 0, 2, 8
AGAIN = (
    'write the column of images again with compression="none" and use_dictionary=False (pyarrow.parquet.write_table), '
    "or pack the file: packer build FILE --encode copy"
)
Places = list[tuple[int, int]]


class Parquet:
    """Reads the images of a Parquet file; the roles are image and label."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self.classes: tuple[str, ...] | None = None
        self.tags: tuple[str, ...] | None = None
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        with SourceFile(os.fsencode(file.path)) as source:
            table_file = ParquetFile(source, file.path)
            columns = Columns(table_file, self._options)
            self.classes, self.tags, self.notes = columns.classes, columns.tags, columns.notes
            number = 0
            try:
                chunks = _chunks(file, table_file)
                table = table_file.read(list(columns.layout.columns)) if columns.layout.columns else None
                names = table_file.names()
                known = columns.known(file, _Rows(table_file.rows) if table is None else table)
                for chunk, levels in chunks:
                    for offset, size in _places(file, chunk, levels):
                        yield names[number], offset, size, next(known), None
                        number += 1
            except UsageError:
                raise
            except (ValueError, IndexError, KeyError, StopIteration) as error:
                raise file.damaged(f"its column of images cannot be read: {error}") from None
            if number != table_file.rows:
                raise file.damaged(f"has {number} images in {table_file.rows} rows")


class _Rows:
    """A table without columns."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.column_names: list[str] = []

    def __len__(self) -> int:
        return self._rows

    def slice(self, start: int, count: int) -> _Rows:
        """Return some of the rows."""
        return _Rows(max(0, min(count, self._rows - start)))


def _chunks(file: ForeignFile, table_file: ParquetFile) -> list[tuple[Any, int]]:
    """Return the metadata of the chunks of the column of images, with its definition levels."""
    metadata: Any = pq.read_metadata(pa.BufferReader(pa.py_buffer(file.view)))
    names = (f"{table_file.image}.bytes", table_file.image)
    found = []
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            if chunk.path_in_schema in names:
                if chunk.compression != "UNCOMPRESSED":
                    column, codec = printable(table_file.image), chunk.compression.lower()
                    raise UsageError(file.path, f'its column "{column}" is compressed by {codec}', AGAIN)
                schema = metadata.schema.column(number)
                if schema.max_repetition_level or schema.physical_type != "BYTE_ARRAY":
                    raise UsageError(
                        file.path, f'its column "{printable(table_file.image)}" is not one image a row', AGAIN
                    )
                found.append((chunk, schema.max_definition_level))
    if len(found) != metadata.num_row_groups:
        raise UsageError(file.path, f'its column "{printable(table_file.image)}" has no bytes of images', AGAIN)
    return found


def _places(file: ForeignFile, chunk: Any, levels: int) -> Iterator[tuple[int, int]]:
    """Yield the place of each row's image; a missing one has the size 0. Raise ValueError if it is damaged."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    if at < 4 or end > file.size:
        raise ValueError("a chunk lies outside the file")
    rows, dictionary = 0, []
    while rows < chunk.num_values:
        header, at = read_struct(file.view, at, end)
        size, kind = header[3], header[1]
        stop = at + size
        if size < 0 or stop > end or size != header[2]:
            raise ValueError(f"the page at byte {at} has no valid size")
        if kind == DICTIONARY:
            dictionary = list(_plain(file, at, stop, header[7][1]))
        elif kind in (DATA, DATA_V2):
            about = header[5 if kind == DATA else 8]
            count, encoding = about[1], about[2 if kind == DATA else 4]
            if not 0 < count <= min(chunk.num_values - rows, file.size):
                raise ValueError(f"the page at byte {at} has {count} rows")
            start, there = _there(file, at, stop, (count, levels, about if kind == DATA_V2 else None))
            present = count if there is None else int(there.sum())
            yield from _rows(_values(file, start, stop, (encoding, present, dictionary)), there)
            rows += count
        at = stop


def _rows(values: Iterator[tuple[int, int]], there: NDArray[np.bool_] | None) -> Iterator[tuple[int, int]]:
    if there is None:
        yield from values
        return
    for present in there.tolist():
        yield next(values) if present else (0, 0)


def _there(file: ForeignFile, at: int, stop: int, page: tuple[int, int, Any]) -> tuple[int, NDArray[np.bool_] | None]:
    """Return where the values of a page begin, and which rows have one; None if all have."""
    count, levels, version_2 = page
    if version_2 is not None:
        size, start = version_2[5], at + version_2[6]
    elif not levels:
        return at, None
    else:
        size, start = int.from_bytes(file.view[at : at + 4], "little"), at + 4
    if not 0 <= size <= stop - start or start < at:
        raise ValueError(f"the page at byte {at} has no valid levels")
    if not levels:
        return start + size, None
    found = _hybrid(file.view[start : start + size], levels.bit_length(), count)
    return start + size, np.asarray(found == levels)


def _values(file: ForeignFile, start: int, stop: int, page: tuple[int, int, Places]) -> Iterator[tuple[int, int]]:
    """Yield the place of each value of a page."""
    encoding, count, dictionary = page
    if encoding == PLAIN:
        yield from _plain(file, start, stop, count)
    elif encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
        width = file.view[start] if start < stop else 0
        if width > 32:
            raise ValueError(f"the page at byte {start} has numbers of {width} bits")
        for number in _hybrid(file.view[start + 1 : stop], width, count).tolist() if count else ():
            yield dictionary[number]
    else:
        raise UsageError(file.path, "its column of images is not stored plainly", AGAIN)


def _plain(file: ForeignFile, at: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
    view = file.view
    for _ in range(count):
        size = int.from_bytes(view[at : at + 4], "little")
        at += 4
        if at + size > stop:
            raise ValueError(f"the image at byte {at} ends behind its page")
        yield at, size
        at += size


def _hybrid(data: bytes, width: int, count: int) -> NDArray[np.int64]:
    """Return `count` numbers of `width` bits, in runs or packed (Parquet's RLE)."""
    parts: list[NDArray[np.int64]] = []
    found = at = 0
    whole = (width + 7) // 8
    while found < count:
        head = shift = 0
        while True:
            byte = data[at]
            head |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128 or shift > 28:
                break
        if head & 1:
            size = (head >> 1) * width
            bits: Any = np.unpackbits(np.frombuffer(data[at : at + size], np.uint8), bitorder="little")
            bits = bits[: len(bits) // width * width if width else 0].reshape(-1, max(1, width))
            values = (
                bits.astype(np.int64) @ (1 << np.arange(width, dtype=np.int64)) if width else np.zeros(count, np.int64)
            )
            if len(values) < min(head >> 1 << 3, count - found):
                raise ValueError("levels end too early")
            at += size
        else:
            run = head >> 1
            if not run or at + whole > len(data):
                raise ValueError("levels end too early")
            values = np.full(min(run, count - found), int.from_bytes(data[at : at + whole], "little"), np.int64)
            at += whole
        parts.append(values[: count - found])
        found += len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
