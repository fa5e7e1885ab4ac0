"""The index of a shard: an Arrow file with one row per record, written once and memory-mapped.

`IndexBuilder` or `write_index` writes it, `read_index` maps it; packer/model/annotation_columns.py reads it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, StorageError
from packer.format.manifest import IndexEntry
from packer.format.mmap import map_file
from packer.model.annotation import ENCODINGS as PART_ENCODINGS
from packer.model.annotation import Annotation, PartSpec, Record, check_names, key_of, names_in
from packer.model.fields import BY_NAME, FIELDS, FIRST_VERSION, annotation_arrays, texts_of

if TYPE_CHECKING:  # reading needs no container
    from packer.containers.container import Places

ENCODINGS = ("raw", "jpeg", "png", "bmp", "gif", "webp", "tiff", "avif", "jp2", "pnm")
FIRST_ENCODINGS = ENCODINGS[:7]
"""All names that an index lists if it needs no others, as those of earlier versions."""
DTYPES = ("uint8", "uint16")

_NAME = pa.dictionary(pa.int8(), pa.string())
_FACTS = (
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
    pa.field("source_xxh3", pa.binary(16), nullable=False),
)


PARTS_SINCE = 4
"""The version of an index that knows parts of records."""
PART_COLUMNS = {"offset": pa.int64(), "size": pa.int64(), "crc32c": pa.uint32(), "encoding": _NAME}
"""The columns of each part: ``NAME_offset``, ... The size is -1 if a record lacks it."""


def schema_with(optional: Collection[str] = (), parts: Sequence[str] = ()) -> Any:
    """Return the schema of an index that has these optional fields and parts besides all others.

    Its version is that of the newest that it has, so that an index without new ones is as those of earlier versions.
    """
    fields = [field for field in FIELDS if not field.optional or field.name in optional]
    version = max(*(field.since for field in fields), PARTS_SINCE if parts else 0)
    columns = [*_FACTS, *(pa.field(field.name, field.kind.arrow) for field in fields)]
    columns += [pa.field(f"{name}_{of}", kind, nullable=False) for name in parts for of, kind in PART_COLUMNS.items()]
    return pa.schema(columns, metadata={"packer.index": str(version)})


def schema_of(names: Collection[str]) -> Any:
    """Return the schema of the index that has these columns."""
    return schema_with([n for n in names if n in BY_NAME and BY_NAME[n].since > FIRST_VERSION], names_in(names))


SCHEMA = schema_with()
"""A missing field is null; an empty list means "none in this image". A missing label is null with the value -1."""
FULL_SCHEMA = schema_with([field.name for field in FIELDS])
"""With the columns of all fields: of tables in memory and of inputs."""


LACKING = (-1, 0, 0)
"""Size, crc32c and encoding of a part that a record lacks."""


def rows_batch(rows: list[tuple[Any, ...]], annotations: list[Annotation]) -> Any:
    """Return rows as one record batch: FULL_SCHEMA without `offset`.

    A row is (key, size, crc32c, height, width, channels, codes of dtype and encoding, path, source_xxh3).
    """
    schema, names = FULL_SCHEMA.remove(FULL_SCHEMA.get_field_index("offset")), {"dtype": DTYPES, "encoding": ENCODINGS}
    facts = zip(*rows, strict=True) if rows else [()] * (len(_FACTS) - 1)
    columns = [
        dictionary_column(values, names[field.name]) if field.name in names else pa.array(values, field.type)
        for field, values in zip(schema, facts, strict=False)
    ]
    columns += annotation_arrays(annotations, list(map(texts_of, annotations)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def part_arrays(rows: Sequence[Mapping[str, tuple[int, int, int]]], names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of parts but `offset`, by name; a row has size, checksum and code of the encoding of each."""
    columns: dict[str, Any] = {}
    for name in names:
        sizes, crcs, codes = zip(*(row.get(name, LACKING) for row in rows), strict=True) if rows else ((), (), ())
        columns[f"{name}_size"] = pa.array(sizes, pa.int64())
        columns[f"{name}_crc32c"] = pa.array(crcs, pa.uint32())
        columns[f"{name}_encoding"] = dictionary_column(codes, PART_ENCODINGS)
    return columns


def dictionary_column(codes: Any, names: tuple[str, ...]) -> Any:
    """Return codes with their names, as the columns `dtype` and `encoding`."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))


_ROWS_A_CHUNK = 4096


class IndexBuilder:
    """Collects the rows of one shard in the order of its records, then writes them with their places.

    It takes about as much memory as the file, and twice as much while writing.
    """

    def __init__(self, parts: Sequence[PartSpec] = ()) -> None:
        """Begin the index of a shard whose records may have these parts besides their image."""
        self._part_names = sorted(part.name for part in parts)
        self._facts: list[tuple[Any, ...]] = []
        self._annotations: list[Annotation] = []
        self._parts: list[dict[str, tuple[int, int, int]]] = []
        self._chunks: list[dict[str, Any]] = []
        self._flushed = 0

    def __len__(self) -> int:
        return self._flushed + len(self._facts)

    def add(self, record: Record) -> int:
        """Add the row of `record` and return the checksum of its image. The bytes are not kept."""
        key = record.key.encode()
        checksum = int(crc32c(record.data, crc32c(key)))
        self._facts.append((
            record.key, len(record.data), checksum, record.height, record.width, record.channels,
            DTYPES.index(record.dtype), ENCODINGS.index(record.encoding), record.path, record.source_xxh3,
        ))  # fmt: skip
        self._annotations.append(record.annotation)
        if self._part_names:
            self._parts.append(
                {
                    part.name: (
                        len(part.data),
                        crc32c(part.data, crc32c(key_of(key, part.name))),
                        PART_ENCODINGS.index(part.encoding),
                    )
                    for part in record.parts
                }
            )
        if len(self._facts) >= _ROWS_A_CHUNK:
            self._flush()
        return checksum

    def write(self, path: AnyPath, places: Places) -> IndexEntry:
        """Write the index to `path`, which must not exist, and fsync it.

        Args:
            path: The new file.
            places: Where the records are in the container.

        Returns:
            Expected size and digests of the file.

        Raises:
            DamagedPack: The places do not match the added records.
            StorageError: The file cannot be written.
        """
        self._flush()
        return write_index(path, self._one_batch(path, places))

    def _flush(self) -> None:
        if self._facts or not self._chunks:
            batch = rows_batch(self._facts, self._annotations)
            chunk = dict(zip(batch.schema.names, batch.columns, strict=True))
            self._chunks.append(chunk | part_arrays(self._parts, self._part_names))
            self._flushed += len(self._facts)
            self._facts, self._annotations, self._parts = [], [], []

    def _one_batch(self, path: AnyPath, places: Places) -> Any:
        columns = {
            name: _concatenated_column(path, [chunk[name] for chunk in self._chunks]) for name in self._chunks[0]
        }
        if len(places.offsets) != len(self):
            raise DamagedPack(path, f"the shard has {len(places.offsets)} records, but {len(self)} were written")
        columns["offset"] = _offsets(path, columns["size"], places)
        for name in self._part_names:
            columns[f"{name}_offset"] = _offsets(path, columns[f"{name}_size"], places.parts[name], f"{name} of ")
        return _batch(columns)


def _offsets(path: AnyPath, column: Any, places: Places, what: str = "") -> Any:
    """Return where records begin as a column. Raise DamagedPack if one has another size than the column says."""
    written = column.to_numpy()
    has_no_place = (written == 0) & (places.sizes < 0)  # some formats have none for no bytes
    for number in np.flatnonzero((written != places.sizes) & ~has_no_place)[:1].tolist():
        problem = f"{what}record {number} has {places.sizes[number]} bytes, but {written[number]} were written"
        raise DamagedPack(path, problem)
    return pa.array(np.where(written < 0, 0, places.offsets))


def _concatenated_column(path: AnyPath, chunks: list[Any], kind: Any = None) -> Any:
    # one array, so that it can be mapped without a copy
    try:
        return pa.concat_arrays(chunks) if chunks else pa.array([], kind)
    except pa.ArrowInvalid as error:
        problem = f"a column exceeds what the index can hold: {_first_line(error)}"
        raise StorageError(path, problem, "choose a smaller --shard-size") from error


def batch_of(path: AnyPath, table: Any) -> Any:
    """Return a table of FULL_SCHEMA as the batch of an index. Raise StorageError if an index cannot hold it."""
    columns = zip(table.column_names, table.columns, strict=True)
    return _batch({name: _concatenated_column(path, column.chunks, column.type) for name, column in columns})


def _batch(columns: dict[str, Any]) -> Any:
    """Return the columns of FULL_SCHEMA, and of parts, as the batch of an index."""
    codes = columns["encoding"].indices
    if len(codes) == 0 or int(codes.to_numpy().max()) < len(FIRST_ENCODINGS):
        columns["encoding"] = pa.DictionaryArray.from_arrays(codes, pa.array(FIRST_ENCODINGS, pa.string()))
    there = [name for name, column in columns.items() if column.null_count < len(codes) or name.endswith("_offset")]
    schema = schema_of(there)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def write_index(path: AnyPath, batch: Any) -> IndexEntry:
    """Write a record batch of the columns of an index as an Arrow file, and fsync it.

    Args:
        path: The new file, which must not exist.
        batch: The rows.

    Returns:
        Expected size and digests of the file.

    Raises:
        StorageError: The file cannot be written.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = memoryview(sink.getvalue())
    from packer.system.atomic import write_new  # which reading does not need
    from packer.system.storage import storage_errors

    with storage_errors(os.fsdecode(path)):
        write_new(path, data)
    name = os.path.basename(os.fsdecode(path))
    return IndexEntry(name, len(data), hashlib.sha256(data).hexdigest(), int(crc32c(data)))


def read_index(path: AnyPath, data: NDArray[np.uint8] | None = None, known: bool = False) -> Any:
    """Return the index as a pyarrow.Table over a memory map, fully validated by Arrow.

    `data` is the content of the file if the caller has already mapped it; `path` then is only for messages. What is
    `known` has been validated before.
    Raise DamagedPack if it is not an index of this version, StorageError if it cannot be opened. The caller
    must check the file's size first.
    """
    if data is None:
        data = _map_index(path)
    batch = one_batch(path, data, _is_index, None if known else partial(_check_layout, path))
    return pa.Table.from_batches([batch])


def _is_index(found: Any) -> bool:
    if found.metadata and names_in(found.names):
        check_names(names_in(found.names))
    return len(set(found.names)) == len(found.names) and bool(found.equals(schema_of(found.names), check_metadata=True))


def one_batch(
    path: AnyPath, data: NDArray[np.uint8], fits: Callable[[Any], bool], check: Callable[[Any], None] | None
) -> Any:
    """Return the only record batch of an Arrow file over its content, without a copy.

    Args:
        path: The file, for messages.
        data: Its content.
        fits: Whether a schema is that of such a file.
        check: Checks the batch when Arrow has validated it. None: it has been validated before.

    Raises:
        DamagedPack: It is not such a file, it is compressed, or its values are not valid.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        if not fits(reader.schema):
            raise DamagedPack(path, "not an index of this version of packer", "build the pack again")
        if reader.num_record_batches != 1:
            raise DamagedPack(path, f"an index of {reader.num_record_batches} parts, not one")
        batch = reader.get_batch(0)
        if check is not None:
            _check_mapped(data, batch)
            batch.validate(full=True)  # takes 30 ms for a million rows: checks offsets, codes and UTF-8
            check(batch)
        return batch
    except DamagedPack:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:  # OSError: raised by Arrow for a truncated file
        problem = f"the index cannot be read: {_first_line(error)}"
        raise DamagedPack(path, problem, "restore it or build the pack again") from error


def _map_index(path: AnyPath) -> NDArray[np.uint8]:
    # not with Arrow's map, which accepts only UTF-8 paths
    name = os.fsdecode(path)
    try:
        size = os.path.getsize(name)
    except FileNotFoundError as error:
        raise DamagedPack(path, "the index is missing", "build the pack again") from error
    except OSError as error:
        raise StorageError(path, f"cannot open the index: {error.strerror}") from error
    return map_file(name, size)


def _check_mapped(data: NDArray[np.uint8], batch: Any) -> None:
    # Arrow decompresses silently, but columns must not take memory
    start = data.ctypes.data
    for buffer in (buffer for array in batch.columns for buffer in array.buffers() if buffer is not None):
        if buffer.size and not start <= buffer.address <= start + len(data) - buffer.size:
            raise ValueError("it is compressed")


def _check_layout(path: AnyPath, batch: Any) -> None:
    for field in batch.schema:
        if not field.nullable and batch.column(field.name).null_count:
            raise DamagedPack(path, f"rows of the index have no {field.name}", "restore it or build the pack again")
    of_parts = ((f"{name}_encoding", PART_ENCODINGS) for name in names_in(batch.schema.names))
    for name, *expected in (("dtype", DTYPES), ("encoding", ENCODINGS, FIRST_ENCODINGS), *of_parts):
        names = batch.column(name).dictionary
        names.validate(full=True)  # the dictionaries are small, so their values are checked here
        found = tuple(names.to_pylist())
        if found not in expected and not (expected[0] == PART_ENCODINGS and found == PART_ENCODINGS[: len(found)]):
            raise DamagedPack(path, f"the index lists other values of {name} than {', '.join(expected[0])}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
