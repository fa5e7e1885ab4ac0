"""The fields of an annotation as one table, from which all code that treats fields alike follows.

A row says how a field's values are stored, and what they have to do with boxes, pixels and classes. The schema of an
index, its columns both ways, JSON both ways, the conversion of what sources give, what moves with the pixels, what goes
with a box, what two packs are compared by: all of it is asked of the rows. A new field is a row, an attribute of
`Annotation`, and what is truly new: a source that finds it, a target that uses it.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import printable
from packer.model.annotation import Annotation
from packer.model.strict_json import MOST_DEEP, check_json, read_json

Scale = tuple[float, float]
"""What x and y are multiplied by to be in pixels."""
Points = Callable[[NDArray[Any]], NDArray[np.float64]]
"""Moves points, (..., 2)."""

_encoded = json.JSONEncoder(allow_nan=False).encode  # json.dumps would make an encoder for each record


@dataclass(frozen=True)
class Number:
    """One number for each image. A missing one is null, with -1 below it, so that the mapped column needs no copy."""

    dtype: str
    is_numeric = True

    @property
    def arrow(self) -> Any:
        """The type of the column."""
        return pa.from_numpy_dtype(np.dtype(self.dtype))

    def array(self, values: Sequence[Any]) -> Any:
        """Return a column of values of annotations."""
        numbers = np.array([-1 if value is None else value for value in values], self.dtype)
        return pa.array(numbers, self.arrow, mask=np.array([value is None for value in values], np.bool_))

    def of_raw(self, value: Any, scale: Scale) -> Any:
        """Return the value of an annotation from that of a `RawAnnotation`."""
        return value

    def to_json(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        return value

    def of_json(self, value: Any) -> Any:
        """Return the value that JSON has."""
        return value

    def of_row(self, row: Any, boxes: int) -> Any:
        """Return the value in a row of a column (`annotation_columns.column`), for an image with so many boxes."""
        return int(row)


@dataclass(frozen=True)
class Rows:
    """Rows of numbers for each image, (n, width); width 0 is a plain list of numbers, (n,)."""

    dtype: str
    width: int = 0
    is_numeric = True

    @property
    def arrow(self) -> Any:
        """The type of the column."""
        item = pa.from_numpy_dtype(np.dtype(self.dtype))
        return pa.list_(pa.list_(item, self.width) if self.width else item)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a value; None for sides of any length."""
        return None, self.width

    def array(self, values: Sequence[Any]) -> Any:
        """Return a column of values of annotations."""
        return _list_array(values, self.items)

    def items(self, values: list[Any]) -> Any:
        """Return the rows of all values, one after another, as an Arrow array."""
        joined = np.concatenate([self._none, *values], dtype=self.dtype, casting="unsafe")
        flat = pa.array(joined.ravel())
        return pa.FixedSizeListArray.from_arrays(flat, self.width) if self.width else flat

    @property
    def _none(self) -> NDArray[Any]:
        return np.zeros((0, self.width) if self.width else 0, self.dtype)

    def of_raw(self, value: Any, scale: Scale) -> Any:
        """Return the value of an annotation from that of a `RawAnnotation`, computed in float64."""
        if not self.width:
            return np.array(value, self.dtype)
        factors = (*scale, *scale) if self.width == 4 else (*scale, 1.0)[: self.width]
        values = np.array(value, np.float64).reshape(-1, self.width)
        return (values if {*factors} == {1.0} else values * factors).astype(self.dtype)

    def to_json(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        return value.tolist()

    def of_json(self, value: Any) -> Any:
        """Return the value that JSON has."""
        found = np.array(value, self.dtype)
        return found.reshape(len(value), self.width) if self.width else found

    def of_row(self, row: Any, boxes: int) -> Any:
        """Return the value in a row of a column, a view."""
        return row

    def select(self, value: Any, keep: NDArray[np.bool_]) -> Any:
        """Return the rows to keep."""
        return value[keep]

    def moved(self, value: Any, points: Points) -> Any:
        """Return boxes, or points with what follows their x and y, where `points` moves them.

        A box becomes that around its two moved corners, which is exact for rotations by 90 degrees, flips and scales.
        """
        if self.width == 4:
            corners = points(value.reshape(-1, 2, 2))
            return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(self.dtype)
        found = value.astype(self.dtype)
        found[..., :2] = points(value[..., :2])
        return found


@dataclass(frozen=True)
class Lists:
    """A list of rows for each object of an image: arrays of any lengths, or (n, k, width) if they are alike."""

    item: Rows
    alike: bool = False
    """Whether all objects of an image have as many rows."""
    count: int = 0
    """How many all objects of all images have; 0: it is not fixed."""
    is_numeric = True

    @property
    def arrow(self) -> Any:
        """The type of the column."""
        return pa.list_(self.item.arrow)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a value, if all objects have as many rows; None for sides of any length."""
        return None, self.count or None, self.item.width

    def array(self, values: Sequence[Any]) -> Any:
        """Return a column of values of annotations."""
        return _list_array(values, lambda rows: self.item.array([item for row in rows for item in row]))

    def of_raw(self, value: Any, scale: Scale) -> Any:
        """Return the value of an annotation from that of a `RawAnnotation`: points, or array("d") of x, y, x, y, ..."""
        if self.alike:
            shape = (len(value), self.count or (-1 if value else 0), self.item.width)
            return self.item.of_raw(value, scale).reshape(shape)
        # one array of which all are views takes half the time
        flat = [one if isinstance(one, array) else array("d", chain.from_iterable(one)) for one in value]
        ends = list(accumulate(len(one) // self.item.width for one in flat))
        rows = self.item.of_raw(np.frombuffer(b"".join(flat), np.float64), scale)
        return tuple(rows[start:stop] for start, stop in zip([0, *ends], ends, strict=False))

    def to_json(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        return [one.tolist() for one in value]

    def of_json(self, value: Any) -> Any:
        """Return the value that JSON has."""
        if self.alike:
            rows = self.count or (len(value[0]) if value else 0)
            return np.array(value, self.item.dtype).reshape(len(value), rows, self.item.width)
        return tuple(map(self.item.of_json, value))

    def of_row(self, row: Any, boxes: int) -> Any:
        """Return the value in a row of a column, of views."""
        if not self.alike:
            return tuple(row)
        found = np.asarray(row)
        return found.reshape(len(found), self.count, self.item.width) if self.count else found

    def select(self, value: Any, keep: NDArray[np.bool_]) -> Any:
        """Return what the objects to keep have."""
        return value[keep] if self.alike else tuple(value[i] for i in np.flatnonzero(keep).tolist())

    def moved(self, value: Any, points: Points) -> Any:
        """Return the rows where `points` moves them."""
        return self.item.moved(value, points) if self.alike else tuple(self.item.moved(one, points) for one in value)


@dataclass(frozen=True)
class AsciiTexts(Lists):
    """A text for each object of an image, (m,) of ASCII codes; "" for an object without."""

    item: Rows = Rows("uint8")

    def of_raw(self, value: Any, scale: Scale) -> Any:
        """Return the value of an annotation from that of a `RawAnnotation`."""
        return tuple(value)

    def to_json(self, value: Any) -> Any:
        """Return a value as JSON has it: a list of texts."""
        return [one.tobytes().decode("ascii", "replace") for one in value]

    def of_json(self, value: Any) -> Any:
        """Return the value that JSON has."""
        return tuple(np.frombuffer(one.encode("ascii"), np.uint8) for one in value)


@dataclass(frozen=True)
class Members:
    """A mapping for each image, as JSON text; `per_box`: each member is a tuple with a value for each box."""

    per_box: bool = False
    is_numeric = False

    @property
    def arrow(self) -> Any:
        """The type of the column."""
        return pa.string()

    def array(self, values: Sequence[str | None]) -> Any:
        """Return a column of texts (`text`)."""
        return pa.array(values, pa.string())

    def text(self, value: Mapping[str, Any]) -> str | None:
        """Return a mapping as ASCII JSON, with undecodable bytes of names as escaped surrogates; None if it is empty.

        Raises:
            ValueError: JSON cannot hold a value, or `read_json` would not read it.
        """
        if not value:
            return None
        try:
            text = _encoded(dict(value))
        except RecursionError:
            raise ValueError(f"its lists or objects are more than {MOST_DEEP} in each other") from None
        check_json(text, value)
        return text

    def of_raw(self, value: Any, scale: Scale) -> Any:
        """Return the value of an annotation from that of a `RawAnnotation`."""
        return dict(value)

    def to_json(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        return dict(value)

    def of_json(self, value: Any) -> Any:
        """Return the value that JSON has."""
        return {name: tuple(values) for name, values in value.items()} if self.per_box else value

    def of_row(self, row: Any, boxes: int) -> Any:
        """Return the value in a row of a column, its text. Raise ValueError if it is not such a mapping."""
        return self.of_json(box_fields_of(row, boxes) if self.per_box else object_of(row))

    def select(self, value: Any, keep: NDArray[np.bool_]) -> Any:
        """Return what the boxes to keep have."""
        places = np.flatnonzero(keep).tolist()
        return {name: tuple(values[i] for i in places) for name, values in value.items()}


Kind: TypeAlias = Number | Rows | Lists | Members


@dataclass(frozen=True)
class Field:
    """One field of an annotation."""

    name: str
    """Of the attribute of `Annotation` and `RawAnnotation`, the column of an index, and the member of JSON."""
    kind: Any
    """A Kind; Any, because not each can do all: what is asked of it follows from the other attributes."""
    per_box: bool = False
    """Whether it has a value for each box, which goes with its box."""
    moves: bool = False
    """Whether it is a place in the image, which moves with the pixels."""
    classes: str = ""
    """The name of the member of JSON with the names of its class ids; "" if it holds none."""
    flips: bool = False
    """Whether it has left and right points, which change places in a mirrored image (`Manifest.flip_index`)."""
    renamed: str = ""
    """Its name in the target of a sample, if that is another: torchvision's ``labels``."""
    fill: float | None = None
    """What stands in an array for an image, or a box, that lacks it; None: nothing can."""
    whole: bool = False
    """Whether an image without it counts as one without objects, so that packs with and without it do not mix."""
    says: bool = True
    """Whether an image that has it has a label; else it only adds to others."""
    since: int = 2
    """The version of an index that knows it. What is newer than the first has a column only where a record has it."""

    @property
    def target(self) -> str:
        """Its name in the target of a sample."""
        return self.renamed or self.name

    @property
    def optional(self) -> bool:
        """Whether an index may lack its column."""
        return self.since > FIRST_VERSION

    @property
    def has_members(self) -> bool:
        """Whether `Manifest.fields` lists its members: ``box_fields.pose``."""
        return self.per_box and not self.kind.is_numeric

    def has(self, value: Any) -> bool:
        """Return whether an image with this value has the field."""
        return value is not None if self.kind.is_numeric else bool(value)


FIRST_VERSION = 2
FIELDS = (
    Field("label", Number("int32"), classes="class", fill=-1),
    Field("boxes", Rows("float32", 4), per_box=True, moves=True, whole=True),
    Field("box_labels", Rows("int64"), per_box=True, classes="box_classes", renamed="labels", fill=-1, says=False),
    Field("landmarks", Rows("float32", 2), moves=True, flips=True),
    Field("polygons", Lists(Rows("float32", 2)), per_box=True, moves=True, says=False),
    Field("keypoints", Lists(Rows("float32", 3), alike=True), per_box=True, moves=True, flips=True, says=False),
    Field("box_fields", Members(per_box=True), per_box=True, says=False),
    Field("extras", Members(), says=False),
    Field("tags", Rows("uint8"), fill=0, whole=True, since=3),
    Field("rles", AsciiTexts(), per_box=True, renamed="masks", says=False, since=5),
    Field("value", Rows("float32"), fill=math.nan, since=6),
    Field("obb", Lists(Rows("float32", 2), alike=True, count=4), per_box=True, moves=True, says=False, since=6),
    Field("window", Rows("int32"), says=False, since=7),
)
"""In the order of the columns of an index."""
FIELD_NAMES = tuple(field.name for field in FIELDS)
BY_NAME = {field.name: field for field in FIELDS}
POLYGONS = BY_NAME["polygons"]
INSTANCES = BY_NAME["rles"]
NUMERIC = tuple(field for field in FIELDS if field.kind.is_numeric)
"""Those that are not JSON."""
LISTS = tuple(field for field in NUMERIC if not isinstance(field.kind, Number))
"""Those whose column is Ragged."""
TEXTS = tuple(field for field in FIELDS if not field.kind.is_numeric)
OF_BOXES = tuple(field for field in LISTS if field.per_box and field.name != "boxes")
"""Those with an item for each box of an image, or nothing."""
FLIPS = tuple(field.name for field in FIELDS if field.flips)
WHOLE = tuple(field.name for field in FIELDS if field.whole)
CLASS_IDS = tuple(field.name for field in FIELDS if field.classes)
OBJECTS = ("boxes", "box_labels")
"""Those that are empty, and not missing, for an image without objects."""
_WITH_MEMBERS = tuple(field for field in FIELDS if field.has_members)
IN_JSON = (*NUMERIC, *TEXTS)
"""In the order of the members of an annotation's JSON."""

Texts = tuple[str | None, ...]
"""The TEXTS of an annotation as JSON; None if it has none."""
NO_TEXTS: Texts = (None,) * len(TEXTS)


def texts_of(annotation: Annotation) -> Texts:
    """Return the TEXTS of an annotation.

    Raises:
        ValueError: JSON cannot hold a value, or `read_json` would not read it.
    """
    return tuple([field.kind.text(getattr(annotation, field.name)) for field in TEXTS])


def annotation_arrays(annotations: Sequence[Annotation], texts: Sequence[Texts]) -> list[Any]:
    """Return annotations, with the `texts_of` each, as Arrow arrays: FIELDS, in their order."""
    encoded = dict(zip(TEXTS, zip(*texts, strict=True) if texts else ((),) * len(TEXTS), strict=True))
    return [
        field.kind.array(encoded[field] if field in encoded else [getattr(one, field.name) for one in annotations])
        for field in FIELDS
    ]


def label_arrays(labels: NDArray[np.int32]) -> list[Any]:
    """Return annotations that have at most a class as `annotation_arrays` does; -1 means none."""
    first, *others = FIELDS
    return [
        pa.array(labels, first.kind.arrow, mask=labels < 0),
        *(pa.nulls(len(labels), field.kind.arrow) for field in others),
    ]


def listed_fields(annotation: Annotation) -> Iterator[str]:
    """Yield the fields of an annotation as `Manifest.fields` lists them."""
    yield from (f.name for f in FIELDS if not f.has_members and f.has(getattr(annotation, f.name)))
    yield from listed_members(annotation)


def listed_members(annotation: Annotation) -> Iterator[str]:
    """Yield those that are members of a field: ``box_fields.pose``."""
    for field in _WITH_MEMBERS:
        yield from (f"{field.name}.{name}" for name in getattr(annotation, field.name))


def moved(annotation: Annotation, points: Points) -> Annotation:
    """Return the annotation with all places in the image moved; nothing is clipped or dropped."""
    there = [(field, getattr(annotation, field.name)) for field in FIELDS if field.moves]
    return replace(
        annotation, **{field.name: field.kind.moved(value, points) for field, value in there if value is not None}
    )


def with_boxes(annotation: Annotation, keep: NDArray[np.bool_] | Sequence[bool]) -> Annotation:
    """Return the annotation with only the boxes for which `keep` is true, and what belongs to them."""
    mask = np.asarray(keep, np.bool_)
    there = [(field, getattr(annotation, field.name)) for field in FIELDS if field.per_box]
    return replace(
        annotation, **{field.name: field.kind.select(value, mask) for field, value in there if field.has(value)}
    )


def only_boxes(annotation: Annotation, keep: NDArray[np.bool_] | Sequence[bool]) -> Annotation:
    """Return the boxes for which `keep` is true with what belongs to them, and nothing of the image."""
    return with_boxes(Annotation(**{f.name: getattr(annotation, f.name) for f in FIELDS if f.per_box}), keep)


def with_class_ids(annotation: Annotation, ids: NDArray[np.int64]) -> Annotation:
    """Return the annotation with the class `ids[i]` in place of class i."""
    there = [(name, getattr(annotation, name)) for name in CLASS_IDS]
    changes: dict[str, Any] = {name: ids[old] for name, old in there if old is not None}
    changes = {name: new if new.ndim else int(new) for name, new in changes.items()}
    return replace(annotation, **changes)


def object_of(text: NDArray[np.uint8] | None) -> dict[str, Any]:
    """Return the JSON object of a row of texts; empty if it has none. Raise ValueError if it is not one."""
    if text is None or not len(text):
        return {}
    if not isinstance(found := read_json(text.tobytes()), dict):
        raise ValueError(f"a JSON object is expected, not {type(found).__name__}")
    return found


def box_fields_of(text: NDArray[np.uint8] | None, boxes: int) -> dict[str, list[Any]]:
    """Return the JSON object of a row of texts that has a list of one value for each of so many boxes in each member.

    Raises:
        ValueError: It is not such an object.
    """
    found = object_of(text)
    for name, values in found.items():
        if not isinstance(values, list) or len(values) != boxes:
            raise ValueError(f"the box field {printable(name)} is not a list of one value for each of {boxes} boxes")
    return found


def check_target_name(name: str, fields: Collection[str]) -> None:
    """Raise ValueError if a part or sidecar of this name would replace a field of boxes among these in targets."""
    if f"box_fields.{name}" in fields:
        raise ValueError(f"{name!r} has another meaning in targets: it is a field of the boxes")


def _list_array(values: Sequence[Any], items_of: Callable[[list[Any]], Any]) -> Any:
    """Return a list array with one row per value, null if it is None."""
    there = [value for value in values if value is not None]
    offsets = pa.array(np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int32))
    absent = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(offsets, items_of(there), mask=absent)
