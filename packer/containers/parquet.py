"""Parquet shards: a table with a column of image files; choose it for Hugging Face datasets and DuckDB."""

from __future__ import annotations

import json
import os
import re
import struct
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.containers.container import (
    HEADER_BYTES,
    Entry,
    FileFormat,
    Places,
    ShardSpec,
    check_raw_size,
    npy_header,
    npy_payload_offset,
)
from packer.errors import DamagedPack
from packer.files.parquet_pages import binary_places
from packer.model.annotation import Annotation, PartSpec, Record, parts_of
from packer.model.fields import BY_NAME, LISTS, Field
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system.storage import mapped, storage_errors

_GROUP_BYTES = 32 << 20
"""Of a row group, which is held in memory until it is written."""
_ROW_BYTES = 256
"""Of a row in memory, without image and annotation."""
_PAGE_BYTES = 1 << 20
_LAST_VERSION = 3
"""Fields that only later versions of an index know have no column: it would change the files of packs without them."""
_ROWS_A_CHECK = 64  # after so many rows Arrow compares a page with its size
_LARGEST = (1 << 31) - (1 << 20)  # a page's size is an int32
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_OBJECTS = {"boxes": BY_NAME["boxes"], "labels": BY_NAME["box_labels"]}
_LISTS = [field for field in LISTS if field not in _OBJECTS.values() and field.since <= _LAST_VERSION]
_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("image", _IMAGE),
        ("encoding", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("channels", pa.int32()),
        ("dtype", pa.string()),
        ("label", pa.int64()),
        ("objects", pa.struct([(member, field.kind.arrow) for member, field in _OBJECTS.items()])),
        *((field.name, field.kind.arrow) for field in _LISTS),
        ("annotation", pa.string()),
    ]
)
"""The same in every shard, as the files of a dataset must have."""
_UNREADABLE = (OSError, LookupError, ValueError, TypeError, AttributeError)
_NEEDED = ["key", "encoding", "annotation"]
_OF_RECORD = ("key", "encoding", "height", "width", "channels", "dtype")
_PNM = re.compile(rb"P[56]\n\d{1,10} \d{1,10}\n255\n")
_PNM_KINDS = {1: 5, 3: 6}
"""Channels -> the digit of the format's magic number."""


class ParquetWriter:
    """Writes a row per record, in row groups of up to 32 MiB.

    Arrow writes the pages. Values are plain and not compressed, so that an image is one run of bytes in the file.
    """

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._path = path
        self._classes = spec.classes
        self._parts = spec.parts
        self._schema = pa.schema([*_SCHEMA, *((part.name, _type_of(part)) for part in spec.parts)])
        self._headers: list[int] = []
        with storage_errors(path):
            # it stays open for the fsync, which reports write errors of any descriptor to this one
            self._created = open(path, "xb", buffering=0)  # noqa: SIM115
            self._sink = pa.OSFile(os.fsencode(path), "wb")
            self._parquet = pq.ParquetWriter(
                self._sink,
                self._schema.with_metadata({"huggingface": _features(spec)}),
                compression="none",
                use_dictionary=False,
                write_statistics=["key", "label"],
                data_page_size=_PAGE_BYTES,
                write_batch_size=_ROWS_A_CHECK,
            )
        self._group = _Group(self._schema)

    def __del__(self) -> None:
        if hasattr(self, "_parquet"):  # an abandoned writer: only its descriptors must be closed
            self._parquet.is_open = False
        if hasattr(self, "_sink"):
            with suppress(OSError, pa.ArrowException):
                self._sink.close()
        if hasattr(self, "_created"):
            self._created.close()

    def write(self, record: Record) -> None:
        text = annotation_json(record, self._classes)
        header = _header(record)
        parts = {name: part.data for name, part in parts_of(record, self._parts).items()}
        size = max(len(header) + len(record.data), *map(len, parts.values()), 0)
        if size > _LARGEST:
            raise ValueError(f"record {record.key} of {size} bytes does not fit a page of Parquet")
        size = len(header) + len(record.data) + sum(map(len, parts.values()))
        if self._group.bytes + size + len(text) > _GROUP_BYTES:
            self._write_group()
        self._group.append(record, header, text, parts)
        self._headers.append(len(header))

    def close(self) -> Places:
        self._write_group()
        with storage_errors(self._path), self._created:
            self._parquet.close()
            self._sink.close()
            os.fsync(self._created.fileno())
        columns = ["image.bytes", *(_leaf(self._schema, part.name) for part in self._parts)]
        places: dict[str, list[tuple[int, int]]] = {column: [] for column in columns}
        with mapped(self._path) as view, memoryview(view) as data, open(self._path, "rb") as source:
            metadata = pq.read_metadata(source)
            for group in range(metadata.num_row_groups):
                for column in columns:
                    places[column] += _places(data, metadata, group, column)
        headers = np.array(self._headers, np.int64)
        images, *others = (np.array(found, np.int64).reshape(-1, 2).T for found in places.values())
        parts = {part.name: Places(*place) for part, place in zip(self._parts, others, strict=True)}
        return Places(images[0] + headers, images[1] - headers, parts)

    def _write_group(self) -> None:
        group, self._group = self._group, _Group(self._schema)
        if group.bytes:
            with storage_errors(self._path):
                self._parquet.write_table(group.table(), group.rows)


class _Group:
    """The records of a row group, in memory."""

    def __init__(self, schema: Any) -> None:
        self.bytes = 0
        self._schema = schema
        self._images = bytearray()
        self._ends = array("i", [0])
        self._paths: list[str] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names if name != "image"}

    @property
    def rows(self) -> int:
        return len(self._paths)

    def append(self, record: Record, header: bytes, text: str, parts: Mapping[str, bytes]) -> None:
        self._images += header
        self._images += record.data
        self._ends.append(len(self._images))
        self._paths.append(record.path.decode("utf-8", "backslashreplace"))
        for name in _OF_RECORD:
            self._columns[name].append(getattr(record, name))
        for name, value in _values(record.annotation):
            self._columns[name].append(value)
        self._columns["annotation"].append(text)
        for name in self._schema.names[len(_SCHEMA) :]:
            data = parts.get(name)
            is_file = self._schema.field(name).type == _IMAGE and data is not None
            self._columns[name].append({"bytes": data, "path": f"{record.key}.{name}.png"} if is_file else data)
        self.bytes += len(header) + len(record.data) + len(text) + sum(map(len, parts.values())) + _ROW_BYTES

    def table(self) -> Any:
        images = pa.Array.from_buffers(
            pa.binary(), self.rows, [None, pa.py_buffer(self._ends), pa.py_buffer(self._images)]
        )
        files = pa.StructArray.from_arrays([images, pa.array(self._paths, pa.string())], fields=list(_IMAGE))
        return pa.table(
            [files if f.name == "image" else pa.array(self._columns[f.name], f.type) for f in self._schema],
            schema=self._schema,
        )


def scan(path: str) -> Iterator[Entry]:
    """Yield the records of a file that `ParquetWriter` wrote."""
    try:
        yield from _entries(path)
    except DamagedPack:
        raise
    except (*_UNREADABLE, pa.ArrowException, OverflowError, struct.error) as error:
        raise DamagedPack(path, f"not a Parquet file of images: {error}") from error


def _entries(path: str) -> Iterator[Entry]:
    with (
        mapped(path) as view,
        memoryview(view) as data,
        open(path, "rb") as source,
        pq.ParquetFile(source, pre_buffer=False) as file,
    ):
        parts = file.schema_arrow.names[len(_SCHEMA) :]
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, _NEEDED, use_threads=False)
            keys, encodings, annotations = (table.column(name).to_pylist() for name in _NEEDED)
            places = list(_places(data, file.metadata, group, "image.bytes"))
            others = {name: list(_places(data, file.metadata, group, _leaf(file.schema_arrow, name))) for name in parts}
            for i, (offset, size) in enumerate(places):
                skip = 0
                if encodings[i] == "raw":
                    skip = _header_bytes(bytes(data[offset : offset + min(size, HEADER_BYTES)]))
                annotation = packer_annotation(annotations[i].encode("utf-8"))
                its = {name: others[name][i] for name in part_sizes(annotation)}
                yield Entry(str(keys[i]), offset + skip, size - skip, annotation, its)


def _type_of(part: PartSpec) -> Any:
    """Return the type of the column of a part: masks are pictures, as the images are."""
    if _is_picture(part):
        return _IMAGE
    return pa.string() if part.kind in ("text", "json") else pa.binary()


def _is_picture(part: PartSpec) -> bool:
    """Return whether the values of a part are stored as pictures, unless somebody wants them in another way."""
    return part.kind in ("mask", "image") or (part.kind == "map" and part.dtype[0] == "u" and part.channels == 1)


def _leaf(schema: Any, name: str) -> str:
    """Return the path of the column with the bytes of a part."""
    return f"{name}.bytes" if pa.types.is_struct(schema.field(name).type) else name


def _places(data: memoryview, metadata: Any, group: int, column: str) -> Iterator[tuple[int, int]]:
    """Yield the place of the image of each row of a row group."""
    found = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column]
    leaf, chunk = metadata.schema.column(found[0]), metadata.row_group(group).column(found[0])
    if leaf.max_repetition_level or chunk.file_path:
        raise ValueError(f"the column {column} is a list, or in another file")
    if chunk.num_values != metadata.row_group(group).num_rows:
        raise ValueError(f"{chunk.num_values} images in {metadata.row_group(group).num_rows} rows")
    return binary_places(data, chunk, leaf.max_definition_level)


def _header(record: Record) -> bytes:
    """Return what makes a picture file of raw pixels: PNM, or .npy for those that PNM has not."""
    if record.encoding != "raw":
        return b""
    check_raw_size(record)
    if record.dtype == "uint8" and record.channels in _PNM_KINDS:
        return b"P%d\n%d %d\n255\n" % (_PNM_KINDS[record.channels], record.width, record.height)
    return npy_header(record.shape, record.dtype)


def _header_bytes(start: bytes) -> int:
    """Return how long the header of raw pixels is."""
    found = _PNM.match(start)
    return found.end() if found else npy_payload_offset(start)


def _features(spec: ShardSpec) -> str:
    """Return what `datasets` of Hugging Face cannot see in the types: the column of pictures, and the class names."""
    features: dict[str, Any] = {}
    height_width_channels = spec.shape or (1, 1, 3)
    if spec.encoding != "raw" or (spec.dtype == "uint8" and height_width_channels[2] in _PNM_KINDS):
        features["image"] = {"_type": "Image"}
    features |= {part.name: {"_type": "Image"} for part in spec.parts if _is_picture(part)}
    if spec.classes:
        features["label"] = {"names": spec.classes, "_type": "ClassLabel"}
        boxes = {"feature": {"dtype": "float32", "_type": "Value"}, "length": 4, "_type": "Sequence"}
        labels = {"feature": features["label"], "_type": "Sequence"}
        features["objects"] = {"boxes": {"feature": boxes, "_type": "Sequence"}, "labels": labels}
    return json.dumps({"info": {"features": features}})


def _values(a: Annotation) -> Iterator[tuple[str, Any]]:
    """Yield the columns of an annotation as plain values."""
    yield "label", a.label
    objects = {member: _plain(field, a) for member, field in _OBJECTS.items()}
    yield "objects", None if a.boxes is None else objects
    for field in _LISTS:
        yield field.name, _plain(field, a)


def _plain(field: Field, annotation: Annotation) -> Any:
    value = getattr(annotation, field.name)
    return None if value is None else field.kind.to_json(value)


CONTAINER = FileFormat("parquet", ".parquet", block_bytes=1, overhead_bytes=192, create=ParquetWriter, scan=scan)
