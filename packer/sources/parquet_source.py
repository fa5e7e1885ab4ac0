"""Parquet of Hugging Face: the columns beside the images, whose meaning is told by metadata, types and a few names."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.errors import BadLabel, NoLabel, UsageError, option, plural, printable
from packer.model.annotation import Json, RawAnnotation
from packer.sources.box_corners import Box
from packer.sources.box_forms import FORMATS, BoxFormat, Numbers, Votes
from packer.sources.by_name import NO_CLASS
from packer.sources.parquet_file import (
    Classes,
    ParquetFile,
    class_names,
    images_below,
    members_of,
    name_of,
    parquet_files,
    stem_folder,
)
from packer.sources.parquet_values import is_float, is_list, is_scalar, numbers_of, plain, value_columns
from packer.sources.paths import MOST_CLASSES, FolderSplit, folder_of, folder_splits, some_paths
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree

LABELS = ("label", "labels", "class", "class_name", "category", "target")
"""Names of columns of classes, the likeliest first."""
BOXES = ("bbox", "bboxes", "boxes", "box")
OF_OBJECTS = ("category", "categories", "category_id", "label", "labels", "class", "classes", "class_id", "name")
SIZE, VALUE = ("width", "height"), "value"
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class ObjectColumns:
    """The column of objects: a struct of lists, or a list of structs."""

    column: str
    box: str
    """The member with the boxes."""
    category: Classes | None
    others: tuple[str, ...]
    """Members that become box fields."""
    left: tuple[str, ...]
    """Members that packer has no field for."""


@dataclass(frozen=True)
class ParquetMeaning:
    """The meaning of the columns."""

    label: Classes | None
    tags: Classes | None
    objects: ObjectColumns | None
    values: tuple[str, ...]
    """The columns of the numbers of an image."""
    extras: tuple[str, ...]
    size: tuple[str, ...]
    extra_names: Mapping[str, tuple[str, ...]]
    """The names of classes in columns of `extras`."""
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        found = [part.column for part in (self.label, self.tags, self.objects) if part is not None]
        return (*found, *self.values, *self.extras, *self.size)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The classes in the order of their numbers, if the metadata have them."""
        of_objects = None if self.objects is None else self.objects.category
        return next((one.names for one in (of_objects, self.label) if one is not None and one.names), None)

    @property
    def tag_names(self) -> tuple[str, ...] | None:
        """The names of the tags."""
        return None if self.tags is None else self.tags.names

    def highest_class(self, table: Any) -> int:
        """Return the largest number of a class without a name, -1 if there is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.label is None or self.label.names is not None or self.objects is not None:
            return -1
        column = table.column(self.label.column)
        return (pc.max(column).as_py() or 0) if pa.types.is_integer(column.type) else -1

    def tags_of(self, values: Mapping[str, Any], origin: str) -> tuple[bool, ...] | None:
        """Return which tags a row has. Raise BadLabel if one is not among the names."""
        if self.tags is None or self.tags.names is None:
            return None
        there = {self.tags.name_of(number, origin) for number in values[self.tags.column] or ()}
        return tuple(name in there for name in self.tags.names)

    def plain(self, column: str, value: Any) -> Json:
        """Return a value as JSON has it: classes by their names, numbers that are none as null."""
        names = self.extra_names.get(column)
        if names is not None and type(value) is int and 0 <= value < len(names):
            return names[value]
        return plain(value)


def layout_of(file: ParquetFile, label: str | None, are_values: bool = False) -> ParquetMeaning:
    """Return what the columns of a file mean.

    Args:
        file: The file.
        label: The column of classes, or of values, if the user says it.
        are_values: Whether whole numbers in `label` are values.

    Raises:
        UsageError: There are images in several columns, several columns may be the classes, or none is a label.
    """
    if len(file.image_columns) > 1:
        others = ", ".join(map(printable, file.image_columns[1:]))
        problem = f'has images in "{printable(file.image)}", and also in {others}'
        step = f'remove them, call masks "mask", or pass --labels=none to pack "{printable(file.image)}" alone'
        raise UsageError(file.name, problem, step)
    pictures = {file.image, *file.mask_columns}
    columns = [column for column in file.schema if column.name not in pictures]
    objects = next((found for column in columns if (found := _objects(column, file.features.get(column.name)))), None)
    classes = {column.name: class_names(file.features.get(column.name)) for column in columns}
    tags = [column.name for column in columns if is_list(column.type) and classes[column.name]]
    values = value_columns(columns, label, are_values)
    chosen = None if label in values else _label(file, columns, classes, label, objects)
    if label is None and (chosen or tags or objects):
        values = ()
    scalars = [column.name for column in columns if is_scalar(column.type)]
    size = SIZE if all(name in scalars and pa.types.is_integer(file.schema.field(name).type) for name in SIZE) else ()
    taken = {*size, *values, *tags[:1], *([objects.column] if objects else []), *([chosen.column] if chosen else [])}
    extras = tuple(name for name in scalars if name not in taken)
    left = [name for name in file.schema.names if name not in {*pictures, *taken, *extras}]
    left += [f"{objects.column}.{name}" for name in objects.left] if objects else []
    if left and not (taken - set(size)) and not extras and not file.mask_columns:
        problem = f"has no column that packer reads as labels: {', '.join(map(printable, left))}"
        raise UsageError(file.name, problem, "pass --labels=none to pack the images without them")
    names = {name: known for name in extras if (known := classes[name])}
    return ParquetMeaning(
        label=chosen,
        tags=Classes(tags[0], classes[tags[0]]) if tags else None,
        objects=objects,
        values=values,
        extras=extras,
        size=size,
        extra_names=names,
        notes=tuple(_notes(chosen, tags[:1], values, extras, left)),
    )


def _notes(
    label: Classes | None, tags: list[str], values: Sequence[str], extras: tuple[str, ...], left: list[str]
) -> list[str]:
    notes = []
    if values:
        notes.append(f"values are those of {', '.join(map(printable, values))}")
    if label is not None:
        notes.append(f'classes are those of the column "{printable(label.column)}"')
    if tags:
        notes.append(f'tags are those of the column "{printable(tags[0])}"')
    if extras:
        notes.append(f"kept as fields of the image: {', '.join(map(printable, extras))}")
    if left:
        what = plural(len(left), "column was", "columns were")
        notes.append(f"{what} left out, because packer has no field for them: {', '.join(map(printable, left))}")
    return notes


def _label(
    file: ParquetFile,
    columns: list[Any],
    classes: Mapping[str, tuple[str, ...] | None],
    asked: str | None,
    objects: ObjectColumns | None,
) -> Classes | None:
    """Return the column of classes of the image. Raise UsageError if that is not clear."""
    fits = [column.name for column in columns if is_scalar(column.type)]
    if asked is not None:
        if asked not in fits:
            choices = ", ".join(map(printable, fits)) or "none"
            spec = option("labels", f"parquet:{asked}")
            raise UsageError(spec, "is not a column of classes", f"its columns are: {choices}")
        return Classes(asked, classes[asked])
    found = [name for name in fits if classes[name]]
    if objects is not None and objects.category is not None:
        found = [name for name in found if classes[name] == objects.category.names]  # there is one list of classes
    elif not found:
        found = [name for name in fits if name.lower() in LABELS and not is_float(file.schema.field(name).type)]
    likely = [name for name in found if name.lower() in LABELS]
    if len(found) > 1 and len(likely) != 1:
        names = ", ".join(map(printable, found))
        step = f"choose one: {', '.join(option('labels', f'parquet:{printable(name)}') for name in found)}"
        raise UsageError(file.name, f"has several columns of classes: {names}", step)
    one = likely[0] if len(likely) == 1 else next(iter(found), None)
    return None if one is None else Classes(one, classes[one])


def _objects(column: Any, feature: Any) -> ObjectColumns | None:
    """Return the parts of a column of objects; None if it has no boxes."""
    kind = column.type.value_type if is_list(column.type) else column.type
    if not pa.types.is_struct(kind):
        return None
    members = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    box = next((name for name in BOXES if name in members), None)
    if box is None:
        return None
    features = members_of(feature)
    named = [name for name in members if class_names(features.get(name))]
    category = (named or [name for name in OF_OBJECTS if name in members] or [None])[0]
    lists = not is_list(column.type)
    others = [
        name for name, type_of in members.items()
        if name not in (box, category) and is_scalar(type_of.value_type if lists and is_list(type_of) else type_of)
    ]  # fmt: skip
    classes = None if category is None else Classes(category, class_names(features.get(category)))
    left = tuple(name for name in members if name not in (box, category, *others))
    return ObjectColumns(column.name, box, classes, tuple(others), left)


def count_boxes(votes: Votes, table: Any, layout: ParquetMeaning) -> None:
    """Count the boxes of a table."""
    if layout.objects is None or not len(table):
        return
    boxes, rows = _boxes(table.column(layout.objects.column), layout.objects.box)
    if not len(boxes):
        return
    size = np.full((len(table), 2), np.inf)
    if layout.size:
        size = np.stack([table.column(name).to_numpy().astype(np.float64) for name in layout.size], axis=1)
        size[~(size > 0)] = np.inf
    votes.add(boxes, size[rows])


def objects_of(columns: ObjectColumns, value: Any, form: BoxFormat, origin: str) -> dict[str, Any]:
    """Return the fields of a `RawAnnotation` for the objects of an image.

    Args:
        columns: The parts of the column.
        value: The objects of the row; None for none.
        form: What the numbers of a box are.
        origin: The row, for messages.

    Raises:
        BadLabel: A box or class is invalid, or the lists have different lengths.
    """
    if isinstance(value, list):
        members = {name: [(one or {}).get(name) for one in value] for name in _names(columns)}
    else:
        members = {name: (value or {}).get(name) or [] for name in _names(columns)}
    count = len(members[columns.box])
    lengths = {name: len(values) for name, values in members.items() if len(values) != count}
    if any(lengths.values()) or (columns.category is not None and columns.category.column in lengths):
        name, other = next(iter(lengths.items()))
        raise BadLabel(origin, f"has {plural(count, 'box', 'boxes')}, but {other} of {name}", "correct the row")
    boxes: list[Box] = []
    names: list[str] = []
    for number, written in enumerate(members[columns.box]):
        try:
            boxes.append(form.box(written or ()))
        except ValueError as error:
            raise BadLabel(origin, f"box {number + 1} {error}", "correct it, or remove it") from None
        known: str | None = NO_CLASS
        if columns.category is not None:
            known = columns.category.name_of(members[columns.category.column][number], origin)
        if known is None:
            raise BadLabel(origin, f"box {number + 1} has no class", "add it, or remove the box")
        names.append(known)
    fields = {name: tuple(map(plain, members[name])) for name in columns.others if name not in lengths}
    return {"boxes": tuple(boxes), "box_labels": tuple(names), "box_fields": fields, "relative": form.relative}


def _names(columns: ObjectColumns) -> list[str]:
    category = [] if columns.category is None else [columns.category.column]
    return [columns.box, *category, *columns.others]


def _boxes(column: Any, member: str) -> tuple[Numbers, NDArray[np.int64]]:
    """Return all boxes of four numbers in a column of objects, and the row of each."""
    column = column.combine_chunks()
    is_struct = pa.types.is_struct(column.type)
    lists = pc.struct_field(column, member) if is_struct else column
    rows = pc.list_parent_indices(lists).to_numpy()
    boxes = pc.list_flatten(lists)
    if not is_struct:
        boxes = pc.struct_field(boxes, member)
    whole = pc.fill_null(pc.equal(pc.list_value_length(boxes), 4), False)
    flat = pc.list_flatten(boxes.filter(whole)).cast(pa.float64())
    return flat.to_numpy(zero_copy_only=False).reshape(-1, 4), rows[whole.to_numpy(zero_copy_only=False)]


class _Part(NamedTuple):
    """What is known of one of the files."""

    path: bytes
    first: int
    """Number of its first image in the tree; its images are sorted by their names."""
    order: Any
    """int32: the row of each of its images."""


class ParquetSource(BaseSource):
    """The columns of one or more Parquet files with images; ``parquet:COLUMN`` says which one has the classes.

    Raises:
        UsageError: The files have different columns, several could be the classes, or none is a label.
    """

    takes_file = "optional"
    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._tree = tree
        paths = parquet_files(tree)
        if not paths:
            raise UsageError(tree.root, "has no Parquet files with images", "choose another kind of --labels")
        self.label_files = frozenset(paths)
        self.of_split = FolderSplit.of(tree, options.split)
        self._parts: dict[bytes, _Part] = {}
        votes, numbers = Votes(), -1
        layouts: list[ParquetMeaning] = []
        for path in paths:
            with ParquetFile.of(tree, path) as file:
                layouts.append(layout_of(file, options.file, options.columns == VALUE))
                if layouts[-1] != layouts[0]:
                    problem = f"has other columns or classes than {printable(paths[0])}"
                    raise UsageError(file.name, problem, "pack them one by one")
                self._parts[stem_folder(path)] = self._part(path, file)
                table = file.read(list(layouts[0].columns))
                numbers = max(numbers, layouts[0].highest_class(table))
                count_boxes(votes, table, layouts[0])
        self._layout = layouts[0]
        self.notes: list[str] = list(self._layout.notes)
        self.classes: tuple[str, ...] | None = self._layout.names
        if self.classes is None and 0 <= numbers < MOST_CLASSES:
            self.classes = tuple(map(str, range(numbers + 1)))
        self.tags: tuple[str, ...] | None = self._layout.tag_names
        words = None if self._layout.values and options.columns == VALUE else options.columns
        self._boxes = self._box_format(votes, words)
        self._open: tuple[bytes, Any] | None = None
        self._chunk: tuple[bytes, int, list[dict[str, Any]]] = (b"", -1, [])

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return Parquet if the images are in such files."""
        paths = parquet_files(tree)
        if not paths:
            return []
        files = some_paths([path or os.path.basename(tree.root) for path in paths])
        return [Choice("parquet", f"the images are in {plural(len(paths), 'Parquet file')} ({files})")]

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not part of the dataset: it is in another archive."""
        return None if self._part_of(image) else "not in a Parquet file"

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return what the columns say of an image.

        Raises:
            NoLabel: Its class is null, or -1 as in the test sets of Hugging Face.
            BadLabel: A value is invalid.
        """
        part = self._part_of(image)
        if part is None:
            raise NoLabel(image, "is in no Parquet file", "choose another kind of --labels")
        number = bisect_left(self._tree.images, image) - part.first
        origin = f"{name_of(self._tree, part.path)} (row {part.order[number]})"
        layout = self._layout
        values = self._values(part, number) if layout.columns else {}
        label = None
        if layout.label is not None:
            label = layout.label.name_of(values[layout.label.column], origin)
            if label is None:
                problem = f'has no class in "{printable(layout.label.column)}"'
                raise NoLabel(origin, problem, "add it, or remove the row")
        size = tuple(values[name] for name in layout.size)
        objects: dict[str, Any] = {}
        if layout.objects is not None:
            objects = objects_of(layout.objects, values[layout.objects.column], self._boxes, origin)
        return RawAnnotation(
            origin=origin,
            label=label,
            tags=layout.tags_of(values, origin),
            value=numbers_of(layout.values, values, origin),
            extras={name: layout.plain(name, values[name]) for name in layout.extras},
            image_size=size if len(size) == 2 and all(size) else None,
            **objects,
        )

    def _part(self, path: bytes, file: ParquetFile) -> _Part:
        first, count = images_below(self._tree, stem_folder(path))
        if count != file.rows:
            problem = f"has {plural(file.rows, 'row')}, but {plural(count, 'image')} of that name are in the source"
            raise UsageError(file.name, problem, "rename it, or the archives or images beside it")
        names = file.names()
        return _Part(path, first, np.array(sorted(range(count), key=names.__getitem__), np.int32))

    def _part_of(self, image: bytes) -> _Part | None:
        folder = folder_of(image)
        while folder and folder not in self._parts:
            folder = folder_of(folder)
        return self._parts.get(folder)

    def _values(self, part: _Part, number: int) -> dict[str, Any]:
        """Return the columns of an image; some rows are held, because images are asked for in their order."""
        start = number - number % ROWS_AT_ONCE
        if self._chunk[:2] != (part.path, start):
            if self._open is None or self._open[0] != part.path:
                with ParquetFile.of(self._tree, part.path) as file:
                    self._open = part.path, file.read(list(self._layout.columns))
            rows = self._open[1].take(part.order[start : start + ROWS_AT_ONCE])
            self._chunk = part.path, start, rows.to_pylist()
        return self._chunk[2][number - start]

    def _box_format(self, votes: Votes, columns: str | None) -> BoxFormat:
        """Return what the numbers of boxes are; say it if there are boxes."""
        if columns is not None and (columns not in FORMATS or self._layout.objects is None):
            choices = ", ".join(f'"{words}"' for words in FORMATS)
            problem = "says what the numbers of boxes are in Parquet files"
            raise UsageError(option("columns"), problem, f"pass one of {choices}")
        found = votes.result(columns)
        if votes.count:
            self.notes.append(votes.describe(found))
        return found
