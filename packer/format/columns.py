"""Reads a mapped index: whole columns, or the annotation of one row, as numpy views.

numpy reads Arrow's buffers with bounds checks, so an altered index can give wrong numbers (which its digest
reveals) but cannot crash the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, printable
from packer.format.ragged import Ragged
from packer.format.typed import read_json
from packer.types import Annotation

# by name: Arrow's own table of numpy dtypes asks for pandas in some versions
_DTYPES = {"float": np.float32, **{name: np.dtype(name) for name in ("int8", "int32", "int64", "uint8", "uint32")}}
OPTIONAL = ("tags",)
"""Columns that an index may lack."""


def column(table: Any, name: str) -> NDArray[Any] | Ragged:
    """Return column `name` of an index (packer/format/schema.py) without a copy.

    Numbers: array (n,); `label` has -1 if there is none; `dtype` and `encoding` are codes (int8) of
    index.DTYPES and index.ENCODINGS; `source_xxh3`: uint8 (n, 16). Lists: Ragged, in which a missing list
    is empty. Text and bytes (`key`, `path`, `box_fields`, `extras`): Ragged of uint8.
    """
    if name in OPTIONAL and name not in table.column_names:
        return Ragged(np.zeros(0, np.uint8), np.zeros(len(table) + 1, np.int32))
    values: NDArray[Any] | Ragged = _values(_array(table, name))
    return values


def present(table: Any, name: str) -> NDArray[np.bool_]:
    """Return which rows have a value in the column `name`, bool (n,); an empty list counts."""
    flags = (
        _bitmap(table, name) if name in table.column_names or name not in OPTIONAL else np.zeros(len(table), np.bool_)
    )
    return np.ones(len(table), np.bool_) if flags is None else flags


def annotation_of(table: Any, i: int) -> Annotation:
    """Return the annotation of row `i`; for many rows, use `Annotations`."""
    return Annotations(table)[i]


def object_of(text: NDArray[np.uint8] | None) -> dict[str, Any]:
    """Return the JSON object of a row of `extras`; empty if it has none. Raise ValueError if it is not one."""
    if text is None or not len(text):
        return {}
    if not isinstance(found := read_json(text.tobytes()), dict):
        raise ValueError(f"a JSON object is expected, not {type(found).__name__}")
    return found


def box_fields_of(text: NDArray[np.uint8] | None, boxes: int) -> dict[str, list[Any]]:
    """Return the JSON object of a row of `box_fields`, which has a list of one value per box for each field.

    Raises:
        ValueError: It is not such an object.
    """
    fields = object_of(text)
    for name, values in fields.items():
        if not isinstance(values, list) or len(values) != boxes:
            raise ValueError(f"the box field {printable(name)} is not a list of one value for each of {boxes} boxes")
    return fields


class Annotations:
    """The annotations of an index, created on demand; arrays are read-only views of the map."""

    _LISTS = ("boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras", "tags")

    def __init__(self, table: Any, path: AnyPath = "") -> None:
        """Read from this index; the file name is for messages."""
        self._path = path
        self._rows = len(table)
        there = [name for name in self._LISTS if name in table.column_names]  # a plan has no column for absent fields
        self._labels = column(table, "label") if "label" in table.column_names else None
        self._lists: dict[str, Any] = {name: column(table, name) for name in there}
        self._bits = {name: _bitmap(table, name) for name in there}

    def __len__(self) -> int:
        return self._rows

    @property
    def labels_only(self) -> list[int] | None:
        """The labels of all rows, -1 if there is none; None if any row has more than a label."""
        if self._lists:
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
        if not self._lists:
            return Annotation(label=None if label < 0 else label)
        polygons, keypoints = self._row("polygons", row), self._row("keypoints", row)
        boxes = self._row("boxes", row)
        fields = box_fields_of(self._row("box_fields", row), 0 if boxes is None else len(boxes))
        extras = object_of(self._row("extras", row))
        return Annotation(
            label=None if label < 0 else label,
            boxes=boxes,
            box_labels=self._row("box_labels", row),
            landmarks=self._row("landmarks", row),
            polygons=None if polygons is None else tuple(polygons),
            keypoints=None if keypoints is None else np.asarray(keypoints),
            box_fields={name: tuple(values) for name, values in fields.items()},
            extras=extras,
            tags=self._row("tags", row),
        )

    def _row(self, name: str, row: int) -> Any:
        if name not in self._lists:
            return None
        bits = self._bits[name]
        if bits is not None and not bits[row]:
            return None
        return self._lists[name][row]


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
