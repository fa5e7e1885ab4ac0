"""What shards of arrays in a zip file share: the arrays of an HDF5 shard (docs/formats.md), one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from packer.containers.annotation_columns import AnnotationColumns, BytesColumn, PartColumns
from packer.containers.base import Entry, Places, ShardSpec
from packer.containers.npy import check_raw_size
from packer.containers.stored_zip import StoredZip
from packer.files.array_files import ArrayFile
from packer.model.annotation import Record
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system.storage import storage_errors

_COPY_BYTES = 4 << 20
_TEXTS = ("keys", "key_offsets", "annotations", "annotation_offsets")


class ArraysWriter:
    """Collects everything but the images; a format stores those, and says how an array is written."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._path = path
        self._spec = spec
        self._zip = StoredZip(path)
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

    def close(self) -> Places:
        offsets = self._write_images()
        with storage_errors(self._path):
            for name, array in self._arrays():
                self._write_array(name, array)
            parts = dict(self._write_parts())
        encoding = self._encodings.pop() if len(self._encodings) == 1 else self._spec.encoding
        self._write_root({"classes": list(self._spec.classes), "encoding": encoding})
        self._zip.close()
        return Places(offsets, np.array(self._sizes, np.int64), parts)

    def _write_parts(self) -> Iterator[tuple[str, Places]]:
        for name, column in self._parts.columns.items():
            base = self._begin_bytes(name, column.total)
            for start in range(0, column.total, _COPY_BYTES):
                self._zip.append(column.read(start, min(start + _COPY_BYTES, column.total)))
            if column.total:
                self._zip.end()
            self._end_bytes(name, column.total)
            self._write_array(f"{name}_offsets", column.offsets())
            yield name, self._parts.places(name, base)

    def _append_image(self, data: bytes) -> None:
        """Add the next image."""
        raise NotImplementedError

    def _write_images(self) -> Any:
        """Write the rest of the array of images, and return the offset of each in the file, int64 (n,)."""
        raise NotImplementedError

    def _write_array(self, name: str, array: Any) -> None:
        """Write an array that is not of images."""
        raise NotImplementedError

    def _begin_bytes(self, name: str, total: int) -> int:
        """Begin the entry of an array of bytes, unless it has none, and return where they begin in the file."""
        raise NotImplementedError

    def _end_bytes(self, name: str, total: int) -> None:
        """Write what describes it."""

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
        for name, column in (("key", self._keys), ("annotation", self._texts)):
            yield f"{name}s", np.frombuffer(column.read(0, column.total), np.uint8)
            yield f"{name}_offsets", column.offsets()
            column.close()
        yield from self._columns.arrays().items()


def scanned(arrays: ArrayFile) -> Iterator[Entry]:
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
        if f"{name}/" in axes and axes[f"{name}/"] == 1:
            content, bounds_of = open_array(f"{name}/"), open_array(f"{name}_offsets/").read(data)
            _check_bounds(bounds_of, prod(content.shape) * content.dtype.itemsize, name)
            bounds[name] = content.base() + bounds_of
    for i, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
        text = packer_annotation(annotations[i])
        parts = {} if text is None else part_places(text, i, bounds)
        yield Entry(keys[i].decode("utf-8", "backslashreplace"), offset, size, text, parts)


def part_places(text: bytes, number: int, bounds: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return where the parts of a record are.

    Args:
        text: Its annotation.
        number: Of the record.
        bounds: Where each record begins in the array of each part, as places in the file, and the end.
    """
    found = {}
    for name, size in part_sizes(text).items():
        if (of_part := bounds.get(name)) is not None and number + 1 < len(of_part):
            if of_part[number + 1] - of_part[number] != size:
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
