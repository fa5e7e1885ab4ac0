"""Collects the data of a shard of arrays before it is written: runs of bytes, and annotations as arrays."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa

from packer.containers.base import Places, ShardSpec
from packer.model.annotation import Annotation, Record
from packer.model.columns import column, present
from packer.model.fields import LISTS, NUMERIC, Field, Lists
from packer.model.parts import MISSING, parts_of
from packer.model.ragged import Ragged

_IN_MEMORY_BYTES = 256 << 20
_ROWS_A_CHUNK = 4096
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
        self._records = 0

    def append(self, record: Record) -> None:
        found = parts_of(record, self._specs)
        for name, content in self.columns.items():
            if name not in found:
                self._missing[name].append(self._records)
            content.append(found[name].data if name in found else b"")
        self._records += 1

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
        yield f"{field.name[:-1]}_offsets", rows.offsets.astype(np.int64)
