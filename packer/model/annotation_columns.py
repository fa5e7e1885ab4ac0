"""Reads a mapped index: whole columns, or the annotation of one row, as numpy views.

numpy reads Arrow's buffers with bounds checks, so an altered index can give wrong numbers (which its digest
reveals) but cannot crash the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from packer.errors import AnyPath, DamagedPack
from packer.model.annotation import Annotation
from packer.model.fields import BY_NAME, FIELDS


class Ragged:
    """n rows; row i is ``values[offsets[i]:offsets[i + 1]]``, a view.

    `values` is an array of any shape, or another Ragged (polygons: images of objects of points).
    `offsets` are n + 1 non-decreasing integers; the first need not be 0.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: NDArray[Any] | Ragged, offsets: NDArray[np.integer[Any]]) -> None:
        if len(offsets) < 1:
            raise ValueError("offsets must hold at least one number, got none")
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int | slice | NDArray[Any]) -> Any:
        """Return row `index`, or the Ragged of a slice of rows with step 1, without a copy; of an array of rows one."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise IndexError(f"only slices of step 1, got step {step}")
            return Ragged(self.values, self.offsets[start : max(start, stop) + 1])
        if isinstance(index, np.ndarray) and index.ndim:
            starts, stops = (bounds[index].astype(np.int64) for bounds in (self.offsets[:-1], self.offsets[1:]))
            lengths = stops - starts
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            return Ragged(self.values[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)], offsets)
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[Any]:
        bounds = self.offsets.tolist()
        return (self.values[a:b] for a, b in pairwise(bounds))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {len(self.flat())} in all)"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return an array (n, k, ...). Raise ValueError unless all rows have the same length k."""
        lengths = self.lengths
        k = int(lengths[0]) if len(lengths) else 0
        if not (lengths == k).all():
            raise ValueError(f"rows of {lengths.min()} to {lengths.max()} items do not form an array; use the rows")
        flat = np.asarray(self.flat())
        if copy is False and dtype is not None and flat.dtype != dtype:
            raise ValueError("an array of another dtype needs a copy")
        shaped = flat.reshape(len(self), k, *flat.shape[1:])
        return np.array(shaped, dtype=dtype) if copy else np.asarray(shaped, dtype=dtype)

    @property
    def lengths(self) -> NDArray[np.integer[Any]]:
        """Length of each row, (n,)."""
        return np.diff(self.offsets)

    def flat(self) -> Any:
        """Return all rows one after another: the part of `values` that they cover."""
        return self.values[int(self.offsets[0]) : int(self.offsets[-1])]

    @staticmethod
    def concat(parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of all `parts`, in order; a single part is returned unchanged."""
        if not parts:
            raise ValueError("concat needs at least one Ragged, got none")
        if len(parts) == 1:
            return parts[0]
        flats = [part.flat() for part in parts]
        nested = isinstance(flats[0], Ragged)
        starts = np.cumsum([0, *(len(flat) for flat in flats)], dtype=np.int64)
        # shift the offsets of each part to begin where the previous one ended
        moved = [p.offsets[1:] - p.offsets[0] + s for p, s in zip(parts, starts[:-1], strict=True)]
        offsets = np.concatenate([np.zeros(1, np.int64), *moved])
        return Ragged(Ragged.concat(flats) if nested else np.concatenate(flats), offsets)


# by name: Arrow's own table of numpy dtypes asks for pandas in some versions
_DTYPES = {"float": np.float32, **{name: np.dtype(name) for name in ("int8", "int32", "int64", "uint8", "uint32")}}


def column(table: Any, name: str) -> NDArray[Any] | Ragged:
    """Return column `name` of an index (packer/format/index.py) without a copy.

    Numbers: array (n,); `label` has -1 if there is none; `dtype` and `encoding` are codes (int8) of
    index.DTYPES and index.ENCODINGS; `source_xxh3`: uint8 (n, 16). Lists: Ragged, in which a missing list
    is empty. Text and bytes (`key`, `path`, `box_fields`, `extras`): Ragged of uint8.
    """
    left_out = _is_left_out(table, name)
    values: NDArray[Any] | Ragged = _values(
        pa.nulls(len(table), BY_NAME[name].kind.arrow) if left_out else _array(table, name)
    )
    return values


def present(table: Any, name: str) -> NDArray[np.bool_]:
    """Return which rows have a value in the column `name`, bool (n,); an empty list counts."""
    if _is_left_out(table, name):
        return np.zeros(len(table), np.bool_)
    flags = _bitmap(table, name)
    return np.ones(len(table), np.bool_) if flags is None else flags


def _is_left_out(table: Any, name: str) -> bool:
    """Return whether an index has no such column because none of its records has the field."""
    return name not in table.column_names and name in BY_NAME and BY_NAME[name].optional


def annotation_of(table: Any, i: int) -> Annotation:
    """Return the annotation of row `i`; for many rows, use `Annotations`."""
    return Annotations(table)[i]


class Annotations:
    """The annotations of an index, created on demand; arrays are read-only views of the map."""

    def __init__(self, table: Any, path: AnyPath = "") -> None:
        """Read from this index; the file name is for messages."""
        self._path = path
        self._rows = len(table)
        self._labels = column(table, "label") if "label" in table.column_names else None
        # a plan has no column for absent fields
        self._fields = [field for field in FIELDS[1:] if field.name in table.column_names]
        self._columns: dict[str, Any] = {field.name: column(table, field.name) for field in self._fields}
        self._bits = {field.name: _bitmap(table, field.name) for field in self._fields}

    def __len__(self) -> int:
        return self._rows

    @property
    def labels_only(self) -> list[int] | None:
        """The labels of all rows, -1 if there is none; None if any row has more than a label."""
        if self._fields:
            return None
        return [-1] * self._rows if self._labels is None else np.asarray(self._labels).tolist()

    def __getitem__(self, i: int) -> Annotation:
        """Return the annotation of row `i`. Raise DamagedPack if the row is invalid."""
        row = range(len(self))[i]
        try:
            return self._annotation(row)
        except ValueError as error:  # text that is not JSON, points that are not an array
            raise DamagedPack(self._path, f"row {row} of the index is damaged: {error}") from error

    def _annotation(self, row: int) -> Annotation:
        label = -1 if self._labels is None else int(self._labels[row])
        boxes = self._row("boxes", row)
        count = 0 if boxes is None else len(boxes)
        values: dict[str, Any] = {
            field.name: field.kind.of_row(value, count)
            for field in self._fields
            if (value := self._row(field.name, row)) is not None
        }
        return Annotation(label=None if label < 0 else label, **values)

    def _row(self, name: str, row: int) -> Any:
        if (column := self._columns.get(name)) is None:
            return None
        bits = self._bits[name]
        return None if bits is not None and not bits[row] else column[row]


def _array(table: Any, name: str) -> Any:
    found = table.column(name)
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def _bitmap(table: Any, name: str) -> NDArray[np.bool_] | None:
    """Return which rows are present, bool (n,); None if all are."""
    array = _array(table, name)
    bits = array.buffers()[0]
    if bits is None:
        return None
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=array.offset + len(array), bitorder="little")
    return flags[array.offset :].view(np.bool_)


def _values(array: Any) -> Any:
    kind, start, stop = array.type, array.offset, array.offset + len(array)  # a slice shares its array's buffers
    if pa.types.is_dictionary(kind):
        return _values(array.indices)
    if pa.types.is_fixed_size_list(kind):
        return _values(array.values).reshape(-1, kind.list_size)[start:stop]
    if pa.types.is_list(kind):
        return Ragged(_values(array.values), _numbers(array.buffers()[1], np.int32, stop + 1)[start:])
    if pa.types.is_fixed_size_binary(kind):
        numbers = _numbers(array.buffers()[1], np.uint8, stop * kind.byte_width)
        return numbers.reshape(-1, kind.byte_width)[start:]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = array.buffers()
        return Ragged(_numbers(data, np.uint8, None), _numbers(offsets, np.int32, stop + 1)[start:])
    return _numbers(array.buffers()[1], _DTYPES[str(kind)], stop)[start:]


def _numbers(buffer: Any, dtype: Any, count: int | None) -> NDArray[Any]:
    if buffer is None or not buffer.size:  # Arrow may leave the buffers of an empty column out
        return np.zeros(count or 0, dtype)
    return np.frombuffer(buffer, dtype, -1 if count is None else count)
