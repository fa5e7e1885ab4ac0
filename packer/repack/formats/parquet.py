"""Parquet files whose column of images is not compressed, as Hugging Face's datasets writes it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import UsageError, printable
from packer.files.parquet_pages import binary_places
from packer.repack.formats.base import ForeignFile, FormatOptions, Row
from packer.repack.formats.huggingface import Columns
from packer.sources.archives.places import SourceFile
from packer.sources.parquet.file import ParquetFile

PLAIN = frozenset(("PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"))
"""Encodings of values that are as they were given, and of levels."""
AGAIN = (
    'write the column of images again with compression="none" and use_dictionary=False (pyarrow.parquet.write_table), '
    "or pack the file: packer build FILE --encode copy"
)


class Parquet:
    """Reads the images of a Parquet file; the roles are image and label."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self.classes: tuple[str, ...] | None = None
        self.tags: tuple[str, ...] | None = None
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        with SourceFile(os.fsencode(file.path)) as source, memoryview(file.view) as view:
            table_file = ParquetFile(source, file.path)
            if table_file.rows > file.size:
                raise file.damaged(f"is damaged: {table_file.rows:,} rows are more than it has bytes")
            columns = Columns(table_file, self._options)
            self.classes, self.tags, self.notes = columns.classes, columns.tags, columns.notes
            number = 0
            try:
                chunks = _chunks(file, table_file)
                table = table_file.read(list(columns.layout.columns)) if columns.layout.columns else None
                names = table_file.names()
                known = columns.known(file, _Rows(table_file.rows) if table is None else table)
                for chunk, levels in chunks:
                    for offset, size in binary_places(view, chunk, levels):
                        yield names[number], offset, max(0, size), next(known), None  # null: as without bytes
                        number += 1
            except UsageError:
                raise
            except (ValueError, LookupError, struct.error, StopIteration) as error:
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
                if not PLAIN.issuperset(chunk.encodings):
                    raise UsageError(
                        file.path, f'its column "{printable(table_file.image)}" is not stored plainly', AGAIN
                    )
                schema = metadata.schema.column(number)
                if schema.max_repetition_level or schema.physical_type != "BYTE_ARRAY":
                    raise UsageError(
                        file.path, f'its column "{printable(table_file.image)}" is not one image a row', AGAIN
                    )
                found.append((chunk, schema.max_definition_level))
    if len(found) != metadata.num_row_groups:
        raise UsageError(file.path, f'its column "{printable(table_file.image)}" has no bytes of images', AGAIN)
    return found
