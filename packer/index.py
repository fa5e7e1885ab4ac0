"""The index of a shard: an Arrow file with one row per record, written once and memory-mapped.

`IndexBuilder` writes it, `read_index` maps it; packer/columns.py reads numbers out of the mapped table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.columns import Annotations, annotation_of, column
from packer.errors import AnyPath, BadLabel, DamagedPack, StorageError
from packer.mapping import map_files
from packer.sample import Annotation, Record

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

ENCODINGS = ("raw", "jpeg", "png", "bmp", "gif", "webp", "tiff")
DTYPES = ("uint8", "uint16")
INDEX_SUFFIX = ".index.arrow"

_NAME = pa.dictionary(pa.int8(), pa.string())
_BOX = pa.list_(pa.float32(), 4)
_XY = pa.list_(pa.float32(), 2)
_XYV = pa.list_(pa.float32(), 3)

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("channels", pa.int8(), nullable=False),
        pa.field("dtype", _NAME, nullable=False),
        pa.field("encoding", _NAME, nullable=False),
        pa.field("path", pa.binary(), nullable=False),
        pa.field("label", pa.int32()),
        pa.field("boxes", pa.list_(_BOX)),
        pa.field("box_labels", pa.list_(pa.int64())),
        pa.field("landmarks", pa.list_(_XY)),
        pa.field("polygons", pa.list_(pa.list_(_XY))),
        pa.field("keypoints", pa.list_(pa.list_(_XYV))),
        pa.field("box_fields", pa.string()),
        pa.field("extras", pa.string()),
    ],
    metadata={"packer.index": "1"},
)
"""A field that an image lacks is null; an empty list says "none here". No label: null over the value -1."""

_ROWS_A_CHUNK = 4096


class _Row(NamedTuple):
    """What the index keeps of a record: all but the image bytes."""

    record_facts: tuple[str, int, int, int, int, int, int, int, bytes]
    annotation: Annotation
    box_fields: str | None
    extras: str | None


class IndexBuilder:
    """Collects the rows of one shard in the order of its records, then writes them with their locations.

    Memory: about the size of the file that it writes, twice while it writes.
    """

    def __init__(self, expected: int) -> None:
        """Args: the number of records that will come at most (`ShardSpec.planned_records`)."""
        self._expected = expected
        self._rows: list[_Row] = []
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
        facts = (
            record.key,
            len(record.data),
            record.crc32c(),
            record.height,
            record.width,
            record.channels,
            DTYPES.index(record.dtype),
            ENCODINGS.index(record.encoding),
            record.path,
        )
        a = record.annotation
        self._rows.append(_Row(facts, a, _json(record.path, a.box_fields), _json(record.path, a.extras)))
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
            self._chunks.append(_table(self._rows))
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
        chunks = self._chunks or [_table([])]
        try:
            arrays = [pa.concat_arrays([c.column(i) for c in chunks]) for i in range(chunks[0].num_columns)]
        except pa.ArrowInvalid as error:
            problem = f"a column exceeds what the index can hold: {_first_line(error)}"
            raise StorageError(path, problem, "choose a smaller --shard-size") from error
        arrays.insert(SCHEMA.get_field_index("offset"), pa.array(offsets))
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def read_index(path: AnyPath, data: NDArray[np.uint8] | None = None) -> Any:
    """The index as a pyarrow.Table (columns as in SCHEMA) over a memory map; no row is read.

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
        batch = reader.get_batch(0)
        batch.validate()  # buffers as long as the row count says; their values are not read
        _check_layout(path, batch)
        return pa.Table.from_batches([batch])
    except (pa.ArrowException, ValueError, OSError) as error:  # OSError: Arrow's own, of a file that is cut
        raise DamagedPack(path, f"the index cannot be read: {_first_line(error)}") from error


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
    for name, expected in (("dtype", DTYPES), ("encoding", ENCODINGS)):
        names = batch.column(name).dictionary
        names.validate(full=True)  # they are few, and they are read here
        if tuple(names.to_pylist()) != expected:
            raise DamagedPack(path, f"the index lists other values of {name} than {', '.join(expected)}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _json(path: bytes, fields: Mapping[str, Any]) -> str | None:
    """ASCII JSON (undecodable bytes of names survive as escaped surrogates); None for no fields."""
    if not fields:
        return None
    try:
        return json.dumps(dict(fields), allow_nan=False)
    except ValueError as error:
        raise BadLabel(path, f"an annotation that JSON cannot hold: {error}") from error


def _keys_and_sizes(batch: Any) -> tuple[list[str], list[int]]:
    return batch.column("key").to_pylist(), batch.column("size").to_pylist()


def _table(rows: list[_Row]) -> Any:
    """The rows as one record batch: SCHEMA without `offset`."""
    facts = list(zip(*(row.record_facts for row in rows), strict=True)) or [()] * 9
    keys, sizes, crcs, heights, widths, channels, dtypes, encodings, paths = facts
    notes = [row.annotation for row in rows]
    labels = np.array([-1 if a.label is None else a.label for a in notes], np.int32)
    columns = [
        pa.array(keys, pa.string()),
        pa.array(sizes, pa.int64()),
        pa.array(crcs, pa.uint32()),
        pa.array(heights, pa.int32()),
        pa.array(widths, pa.int32()),
        pa.array(channels, pa.int8()),
        _names(dtypes, DTYPES),
        _names(encodings, ENCODINGS),
        pa.array(paths, pa.binary()),
        # -1 stands under the nulls, so that the mapped numbers are the labels without a copy
        pa.array(labels, pa.int32(), mask=np.array([a.label is None for a in notes], np.bool_)),
        _lists([a.boxes for a in notes], _floats(4)),
        _lists([a.box_labels for a in notes], _integers),
        _lists([a.landmarks for a in notes], _floats(2)),
        _lists([a.polygons for a in notes], _nested(2)),
        _lists([a.keypoints for a in notes], _nested(3)),
        pa.array([row.box_fields for row in rows], pa.string()),
        pa.array([row.extras for row in rows], pa.string()),
    ]
    schema = SCHEMA.remove(SCHEMA.get_field_index("offset"))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _names(codes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))


def _lists(rows: list[Any], values_of: Callable[[list[Any]], Any]) -> Any:
    """A list array of one row per item of `rows`, null where it is None."""
    present = [row for row in rows if row is not None]
    lengths = [0 if row is None else len(row) for row in rows]
    offsets = pa.array(np.cumsum([0, *lengths], dtype=np.int32))
    absent = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(offsets, values_of(present), mask=absent)


def _integers(rows: list[Any]) -> Any:
    return pa.array(np.concatenate([np.zeros(0, np.int64), *(np.asarray(r, np.int64) for r in rows)]))


def _floats(width: int) -> Callable[[list[Any]], Any]:
    def values(rows: list[Any]) -> Any:
        flat = [np.asarray(row, np.float32).reshape(-1, width) for row in rows]
        joined = np.concatenate([np.zeros((0, width), np.float32), *flat])
        return pa.FixedSizeListArray.from_arrays(pa.array(joined.ravel()), width)

    return values


def _nested(width: int) -> Callable[[list[Any]], Any]:
    def values(rows: list[Any]) -> Any:
        return _lists([item for row in rows for item in row], _floats(width))

    return values
