"""Shards of arrays (docs/formats.md): their data until it is written, the zip file, what Zarr, N5 and pth share."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from math import prod
from typing import IO, Any

import numpy as np
import pyarrow as pa

from packer.containers.container import Entry, FileFormat, Places, ShardSpec, Writer, check_raw_size
from packer.containers.stored_zip import StoredZip
from packer.files.array_files import ArrayFile
from packer.model.annotation import MISSING, OF_PIXELS, Annotation, Record, parts_of
from packer.model.annotation_columns import Ragged, column, present
from packer.model.fields import LISTS, NUMERIC, Field, Lists
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system.storage import storage_errors

_IN_MEMORY_BYTES = 256 << 20
_ROWS_A_CHUNK = 4096
BYTE = np.dtype(np.uint8)
_RAGGED = {field.name for field in LISTS if isinstance(field.kind, Lists) and not field.kind.alike}
_IN_ARRAYS = sorted(
    (field for field in NUMERIC if field.name not in _RAGGED), key=lambda field: isinstance(field.kind, Lists)
)
"""In the order of the datasets."""


class BytesColumn:
    """Byte strings one after another: not copied up to 256 MiB, then in an unnamed file beside `path`."""

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path) or "."
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._bounds: Any = None
        self._lengths = array("q", [0])
        self.total = 0

    def __del__(self) -> None:
        self.close()

    def append(self, item: bytes) -> None:
        self._held.append(item)
        self._bounds = None
        self._held_bytes += len(item)
        self._lengths.append(len(item))
        self.total += len(item)
        if self._held_bytes > _IN_MEMORY_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._file.seek(0, os.SEEK_END)
        self._file.writelines(self._held)
        self._held, self._held_bytes = [], 0

    def offsets(self) -> Any:
        """The start of each item, and the end of the last, int64 (n + 1,)."""
        return np.cumsum(np.frombuffer(self._lengths, np.int64))

    def read(self, start: int, stop: int) -> bytes:
        if self._file is not None:
            self._spill()
            self._file.seek(start)
            return self._file.read(stop - start)
        if self._bounds is None:
            self._bounds = self.offsets()
        number = int(np.searchsorted(self._bounds, start, "right")) - 1
        parts = []
        while start < stop:
            first, item = int(self._bounds[number]), memoryview(self._held[number])
            parts.append(item[start - first : stop - first])
            start, number = first + len(item), number + 1
        return b"".join(parts)

    def close(self) -> None:
        self._held = []
        if self._file is not None:
            self._file.close()


class PartColumns:
    """The parts of a shard's records besides their images: the bytes of each part, one record after another."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._specs = spec.parts
        self.columns = {part.name: BytesColumn(path) for part in spec.parts}
        self._missing: dict[str, list[int]] = {name: [] for name in self.columns}
        self._of_pixels: dict[str, set[tuple[int, int] | None]] = {name: set() for name in self.columns}
        self._records = 0

    def append(self, record: Record) -> None:
        found = parts_of(record, self._specs)
        for name, content in self.columns.items():
            if name not in found:
                self._missing[name].append(self._records)
            part = found.get(name)
            content.append(b"" if part is None else part.data)
            is_raw = part is not None and part.encoding == "raw"
            self._of_pixels[name].add((record.height, record.width) if is_raw else None)
        self._records += 1

    def form_of(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Return shape and dtype of the array of a part: pixels of one size (n, height, width, ...), else (bytes,)."""
        spec = next(spec for spec in self._specs if spec.name == name)
        shapes, total = self._of_pixels[name], self.columns[name].total
        if spec.kind in OF_PIXELS and not self._missing[name] and len(shapes) == 1 and (size := next(iter(shapes))):
            dtype = np.dtype(spec.dtype)
            channels, rest = divmod(total, max(1, self._records * size[0] * size[1] * dtype.itemsize))
            if channels and not rest:
                return (self._records, *size, channels)[: 3 if channels == 1 and spec.kind != "image" else 4], dtype
        return (total,), BYTE

    def places(self, name: str, base: int) -> Places:
        """Return the places of a part whose bytes begin here in the file."""
        starts = base + self.columns[name].offsets()
        offsets, sizes = starts[:-1].copy(), np.diff(starts)
        offsets[self._missing[name]], sizes[self._missing[name]] = MISSING
        return Places(offsets, sizes)


class AnnotationColumns:
    """The annotations of a shard as the arrays that docs/formats.md lists."""

    def __init__(self) -> None:
        self._waiting: list[Annotation] = []
        self._chunks: list[Any] = []

    def append(self, annotation: Annotation) -> None:
        self._waiting.append(annotation)
        if len(self._waiting) >= _ROWS_A_CHUNK:
            self._flush()

    def _flush(self) -> None:
        values = {field: [getattr(one, field.name) for one in self._waiting] for field in _IN_ARRAYS}
        self._chunks.append(pa.table({field.name: field.kind.array(of_field) for field, of_field in values.items()}))
        self._waiting = []

    def arrays(self) -> dict[str, Any]:
        """Return the datasets by name, without fields that no record has."""
        self._flush()
        table = pa.concat_tables(self._chunks)
        return {name: array for field in _IN_ARRAYS for name, array in _arrays(field, table)}


def _arrays(field: Field, table: Any) -> Iterator[tuple[str, Any]]:
    """Yield the datasets of a field; what they cannot hold is in the JSON of each record."""
    rows, there, boxes = column(table, field.name), present(table, field.name), column(table, "boxes")
    assert isinstance(boxes, Ragged)
    if not isinstance(rows, Ragged):
        if there.any():
            yield f"{field.name}s", rows.astype(np.int64)
    elif field.name == "boxes":
        if there.any():
            yield "boxes", rows.flat()
    elif field.per_box:
        yield from _of_boxes(field, rows, boxes, bool(present(table, "boxes").any()))
    elif there.any():
        yield from _of_images(field, rows, there)


def _of_boxes(field: Field, rows: Ragged, boxes: Ragged, has_boxes: bool) -> Iterator[tuple[str, Any]]:
    """Yield an array with a row for each box, and with class ids, which are always there, where each image begins."""
    count = len(boxes.flat())
    if field.fill is not None and has_boxes:
        values = np.full(count, field.fill, field.kind.dtype)
        values[np.repeat(rows.lengths == boxes.lengths, boxes.lengths)] = rows.flat()
        yield field.name, values
        yield "box_offsets", boxes.offsets.astype(np.int64)
    elif isinstance(field.kind, Lists) and 0 < count == len(rows.flat()):
        objects = rows.flat()
        if len(set(objects.lengths.tolist())) == 1:
            yield field.name, objects.flat().reshape(count, -1, field.kind.item.width)


def _of_images(field: Field, rows: Ragged, there: Any) -> Iterator[tuple[str, Any]]:
    """Yield one array for all images if they have as many rows each, else their rows and where each image begins."""
    flat, lengths = rows.flat(), set(rows.lengths[there].tolist())
    if len(lengths) == 1 and (there.all() or field.fill is not None):
        values = np.full((len(rows), *lengths, *flat.shape[1:]), field.fill or 0, flat.dtype)
        values[there] = flat.reshape(int(there.sum()), *lengths, *flat.shape[1:])
        yield field.name, values
    else:
        yield field.name, flat
        yield f"{field.name.removesuffix('s')}_offsets", rows.offsets.astype(np.int64)


_COPY_BYTES = 4 << 20
_TEXTS = ("keys", "key_offsets", "annotations", "annotation_offsets")


class CollectingWriter:
    """Collects everything but the images until it is closed; a format stores those."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._path = path
        self._spec = spec
        self._item_shape = spec.shape if spec.encoding == "raw" else None
        self._encodings: set[str] = set()
        self._shapes: list[tuple[int, int, int]] = []
        self._sizes: list[int] = []
        self._keys = BytesColumn(path)
        self._texts = BytesColumn(path)
        self._columns = AnnotationColumns()
        self._parts = PartColumns(path, spec)

    def write(self, record: Record) -> None:
        text = annotation_json(record, self._spec.classes).encode("ascii")
        if record.encoding == "raw":
            check_raw_size(record)
        if self._item_shape is not None and record.shape != self._item_shape:
            raise ValueError(f"record {record.key} of shape {record.shape}, planned: {self._item_shape}")
        with storage_errors(self._path):
            self._append_image(record.data)
            self._keys.append(record.key.encode("ascii"))
            self._texts.append(text)
            self._parts.append(record)
        self._sizes.append(len(record.data))
        self._shapes.append(record.shape)
        self._encodings.add(record.encoding)
        self._columns.append(record.annotation)

    def _append_image(self, data: bytes) -> None:
        """Add the next image."""
        raise NotImplementedError

    def _encoding(self) -> str:
        """Return the encoding of all images; what was planned if they have none, or several."""
        return self._encodings.pop() if len(self._encodings) == 1 else self._spec.encoding


class ArraysWriter(CollectingWriter):
    """Writes a zip file of arrays; a format says how an array is written."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        super().__init__(path, spec)
        self._zip = StoredZip(path)

    def close(self) -> Places:
        offsets = self._write_images()
        with storage_errors(self._path):
            for name, array in self._arrays():
                self._write_array(name, array)
            parts = dict(self._write_parts())
        self._write_root({"classes": list(self._spec.classes), "encoding": self._encoding()})
        self._zip.close()
        return Places(offsets, np.array(self._sizes, np.int64), parts)

    def _write_parts(self) -> Iterator[tuple[str, Places]]:
        for name, data in self._parts.columns.items():
            base = self._write_bytes(name, data, *self._parts.form_of(name))
            self._write_array(f"{name}_offsets", data.offsets())
            yield name, self._parts.places(name, base)

    def _write_bytes(self, name: str, data: BytesColumn, shape: tuple[int, ...] = (), dtype: Any = BYTE) -> int:
        """Write an array of this shape, by default (bytes,), and return where its bytes begin in the file."""
        shape = shape or (data.total,)
        base = self._begin_bytes(name, shape, dtype)
        for start in range(0, data.total, _COPY_BYTES):
            self._zip.append(data.read(start, min(start + _COPY_BYTES, data.total)))
        self._end_bytes(name, shape, dtype)
        return base

    def _write_images(self) -> Any:
        """Write the rest of the array of images, and return the offset of each in the file, int64 (n,)."""
        raise NotImplementedError

    def _write_array(self, name: str, array: Any) -> None:
        """Write an array that is not of images."""
        raise NotImplementedError

    def _begin_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> int:
        """Begin the entry of an array, unless it is empty, and return where its bytes begin in the file."""
        raise NotImplementedError

    def _end_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """End it, and write what describes it."""
        raise NotImplementedError

    def _write_root(self, attributes: dict[str, Any]) -> None:
        """Write the metadata of the folder."""
        raise NotImplementedError

    def _starts(self) -> Any:
        """Where each image begins among the images, and the end of the last, int64 (n + 1,)."""
        return np.cumsum([0, *self._sizes], dtype=np.int64)

    def _arrays(self) -> Iterator[tuple[str, Any]]:
        if self._item_shape is None:
            yield "image_offsets", self._starts()
            yield "image_shapes", np.array(self._shapes, np.int64).reshape(-1, 3)
        for name, data in (("key", self._keys), ("annotation", self._texts)):
            yield f"{name}s", np.frombuffer(data.read(0, data.total), np.uint8)
            yield f"{name}_offsets", data.offsets()
            data.close()
        yield from self._columns.arrays().items()


def scan_entries(arrays: ArrayFile) -> Iterator[Entry]:
    """Yield the records of a file that packer wrote.

    Raises:
        ValueError: An array is missing, or they do not fit together.
    """
    axes, open_array, data = arrays.axes, arrays.open, arrays.data
    if missing := [name for name in ("images", *_TEXTS) if f"{name}/" not in axes]:
        raise ValueError(f"it has no array {missing[0]}")
    images = open_array("images/")
    texts = {name: open_array(f"{name}/").read(data) for name in _TEXTS}
    if "image_offsets/" in axes:
        bounds = open_array("image_offsets/").read(data)
        _check_bounds(bounds, prod(images.shape) * images.dtype.itemsize, "image")
        offsets, sizes = images.base() + bounds[:-1], np.diff(bounds)
    else:
        offsets = images.offsets()
        sizes = np.full(len(offsets), images.item_bytes)
    keys, annotations = (_strings(texts, name, len(offsets)) for name in ("key", "annotation"))
    bounds = {}
    for name in (one.removesuffix("_offsets/") for one in axes if one.endswith("_offsets/")):
        if f"{name}/" in axes and name != "image":
            content, bounds_of = open_array(f"{name}/"), open_array(f"{name}_offsets/").read(data)
            _check_bounds(bounds_of, prod(content.shape) * content.dtype.itemsize, name)
            bounds[name] = content.base() + bounds_of
    for i, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
        text = packer_annotation(annotations[i])
        parts = {} if text is None else part_places(text, i, bounds)
        yield Entry(keys[i].decode("utf-8", "backslashreplace"), offset, size, text, parts)


def array_format(
    name: str,
    suffix: str,
    overhead_bytes: int,
    create: Callable[[str, ShardSpec], Writer],
    open_arrays: Callable[[str], AbstractContextManager[ArrayFile]],
) -> FileFormat:
    """Return the container of files that `open_arrays` opens."""

    def scan(path: str) -> Iterator[Entry]:
        with open_arrays(path) as arrays:
            yield from scan_entries(arrays)

    return FileFormat(name, suffix, 1, overhead_bytes, create, scan)


def part_places(text: bytes, number: int, bounds: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return where the parts of a record are.

    Args:
        text: Its annotation.
        number: Of the record.
        bounds: Where each record begins in the array of each part, as places in the file, and the end.
    """
    found = {}
    for name, size in part_sizes(text).items():
        of_part = bounds.get(name, ())
        if not number + 1 < len(of_part) or of_part[number + 1] - of_part[number] != size:
            raise ValueError(f"the part {name} has another size than its record says")
        found[name] = int(of_part[number]), size
    return found


def _strings(arrays: dict[str, Any], name: str, count: int) -> list[bytes]:
    """Return the texts in the array ``NAMEs`` that ``NAME_offsets`` divides."""
    text, bounds = arrays[f"{name}s"].tobytes(), arrays[f"{name}_offsets"]
    _check_bounds(bounds, len(text), name)
    if len(bounds) != count + 1:
        raise ValueError(f"{len(bounds) - 1} {name}s for {count} images")
    stops = bounds.tolist()
    return [text[a:b] for a, b in pairwise(stops)]


def _check_bounds(bounds: Any, total: int, name: str) -> None:
    """Raise ValueError if offsets do not divide `total` bytes."""
    if bounds.ndim != 1 or bounds.dtype != np.int64 or len(bounds) < 1:
        raise ValueError(f"{name}_offsets are not int64 (n + 1,)")
    if bounds[0] != 0 or bounds[-1] != total or (np.diff(bounds) < 0).any():
        raise ValueError(f"{name}_offsets do not cover the {name}s")
