"""The index of a shard: an Arrow file with one row per record, written once and memory-mapped.

`IndexBuilder` writes it, `read_index` maps it; packer/format/columns.py reads numbers out of the mapped table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, StorageError
from packer.format.columns import Annotations, annotation_of, column
from packer.format.index_layout import check_plain
from packer.format.index_rows import Row, row_of, rows_batch
from packer.format.mmap import map_files
from packer.format.schema import DTYPES, ENCODINGS, SCHEMA
from packer.types import Record

__all__ = [
    "DTYPES",
    "ENCODINGS",
    "INDEX_SUFFIX",
    "SCHEMA",
    "Annotations",
    "IndexBuilder",
    "annotation_of",
    "column",
    "read_index",
]

INDEX_SUFFIX = ".index.arrow"

_ROWS_A_CHUNK = 4096


class IndexBuilder:
    """Collects the rows of one shard in the order of its records, then writes them with their locations.

    Memory: about the size of the file that it writes, twice while it writes.
    """

    def __init__(self, expected: int) -> None:
        """Args: the number of records that will come at most (`ShardSpec.planned_records`)."""
        self._expected = expected
        self._rows: list[Row] = []
        self._chunks: list[Any] = []
        self._flushed = 0

    def __len__(self) -> int:
        return self._flushed + len(self._rows)

    def add(self, record: Record) -> None:
        """Add the row of `record`; its image bytes are not kept.

        Raises BadLabel, and adds nothing, where a field has a number that JSON cannot hold.
        """
        if len(self) >= self._expected:
            raise ValueError(f"record {record.key}: more than the {self._expected} records that were planned")
        self._rows.append(row_of(record))
        if len(self._rows) >= _ROWS_A_CHUNK:
            self._flush()

    def write(self, path: AnyPath, locations: Iterable[tuple[str, int, int]]) -> None:
        """Write the index to `path`, which must not exist, and fsync it.

        `locations` are (key, offset, size) of each record in order. Raises DamagedPack where they are not
        the records that were added, StorageError where the disk refuses.
        """
        self._flush()
        offsets = np.fromiter(self._checked_offsets(path, locations), np.int64)
        batch = self._one_batch(path, offsets)
        try:
            with open(path, "xb") as file:
                with pa.ipc.new_file(file, SCHEMA) as writer:
                    writer.write_batch(batch)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(path, f"cannot write the index: {error.strerror or error}") from error

    def _flush(self) -> None:
        if self._rows:
            self._chunks.append(rows_batch(self._rows))
            self._flushed += len(self._rows)
            self._rows = []

    def _checked_offsets(self, path: AnyPath, locations: Iterable[tuple[str, int, int]]) -> Iterator[int]:
        expected = ((k, s) for c in self._chunks for k, s in zip(*_keys_and_sizes(c), strict=True))
        found = iter(locations)
        for number, (key, size) in enumerate(expected):
            location = next(found, None)
            if location is None:
                raise DamagedPack(path, f"the shard holds {number} records, {len(self)} were written to it")
            if (location[0], location[2]) != (key, size):
                at = f"key {location[0]!r}, {location[2]} bytes"
                raise DamagedPack(path, f"record {number} is {at}; written: key {key!r}, {size} bytes")
            yield location[1]
        if next(found, None) is not None:
            raise DamagedPack(path, f"the shard holds more than the {len(self)} records written to it")

    def _one_batch(self, path: AnyPath, offsets: Any) -> Any:
        # one batch, so that a column is one array and is mapped without a copy
        chunks = self._chunks or [rows_batch([])]
        try:
            arrays = [pa.concat_arrays([c.column(i) for c in chunks]) for i in range(chunks[0].num_columns)]
        except pa.ArrowInvalid as error:
            problem = f"a column exceeds what the index can hold: {_first_line(error)}"
            raise StorageError(path, problem, "choose a smaller --shard-size") from error
        arrays.insert(SCHEMA.get_field_index("offset"), pa.array(offsets))
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def read_index(path: AnyPath, data: NDArray[np.uint8] | None = None) -> Any:
    """The index as a pyarrow.Table (columns as in SCHEMA) over a memory map; Arrow has looked at every row.

    `data` are the file's bytes where the caller has mapped them already; `path` then only names them.
    Raises DamagedPack where it is no index of this version, StorageError where it cannot be opened.
    The caller checks the file's size first: a map of a file that shrinks later cannot be read safely.
    """
    if data is None:
        data = _mapped(path)
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        if not reader.schema.equals(SCHEMA, check_metadata=True):
            raise DamagedPack(path, "not an index of this version of packer", "build the pack again")
        if reader.num_record_batches != 1:
            raise DamagedPack(path, f"an index of {reader.num_record_batches} parts, not one")
        check_plain(data.data)
        batch = reader.get_batch(0)
        batch.validate(full=True)  # 30 ms for a million rows: offsets that grow, codes that exist, text that is UTF-8
        _check_layout(path, batch)
        return pa.Table.from_batches([batch])
    except (pa.ArrowException, ValueError, OSError) as error:  # OSError: Arrow's own, of a file that is cut
        problem = f"the index cannot be read: {_first_line(error)}"
        raise DamagedPack(path, problem, "restore it or build the pack again") from error


def _mapped(path: AnyPath) -> NDArray[np.uint8]:
    # not by Arrow: its own map takes no path that is not UTF-8
    name = os.fsdecode(path)
    try:
        size = os.path.getsize(name)
    except FileNotFoundError as error:
        raise DamagedPack(path, "the index is missing", "build the pack again") from error
    except OSError as error:
        raise StorageError(path, f"cannot open the index: {error.strerror}") from error
    return map_files([(name, size)])[0][:size]


def _check_layout(path: AnyPath, batch: Any) -> None:
    for field in SCHEMA:
        if not field.nullable and batch.column(field.name).null_count:
            raise DamagedPack(path, f"rows of the index have no {field.name}", "restore it or build the pack again")
    for name, expected in (("dtype", DTYPES), ("encoding", ENCODINGS)):
        names = batch.column(name).dictionary
        names.validate(full=True)  # they are few, and they are read here
        if tuple(names.to_pylist()) != expected:
            raise DamagedPack(path, f"the index lists other values of {name} than {', '.join(expected)}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _keys_and_sizes(batch: Any) -> tuple[list[str], list[int]]:
    return batch.column("key").to_pylist(), batch.column("size").to_pylist()
