"""Open Images: the CSV files of image labels, boxes and masks, whose rows name an image by its id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from packer.errors import BadInput, BadLabel, BadMask, NoImage, NoLabel, UsageError, option, plural, printable
from packer.images.header import read_header
from packer.images.masks import color_codes
from packer.images.pillow import decode_values
from packer.model.annotation import RawAnnotation
from packer.model.rle import as_shape
from packer.sources.by_name import LabelledObjects
from packer.sources.list_lines import COMMA, rows_of
from packer.sources.list_source import DESCRIPTIONS, MOST_LIST_BYTES
from packer.sources.paths import (
    FolderSplit,
    as_text,
    extension_of,
    folder_splits,
    number,
    quoted_value,
    some_paths,
    stem_of,
)
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, needed, read_file, read_head

BOXES, LABELS, MASKS, INFO = "boxes", "labels", "masks", "info"
EDGES = (b"XMin", b"YMin", b"XMax", b"YMax")
COLUMNS = {
    MASKS: (b"ImageID", b"LabelName", *(b"Box" + edge for edge in EDGES), b"MaskPath"),
    BOXES: (b"ImageID", b"LabelName", *EDGES, b"IsOccluded", b"IsTruncated", b"IsGroupOf"),
    LABELS: (b"ImageID", b"LabelName", b"Confidence"),
    INFO: (b"ImageID", b"Subset", b"OriginalURL"),  # of images: nothing of it is read
}
"""Those that are read of each kind of file."""
FLAGS = ("occluded", "truncated", "iscrowd")
LIKELY = 0.5
"""Least confidence of a tag: people say 0 or 1, machines what is between."""
HEAD_BYTES = 1024
MOST_IMAGE_BYTES = 256 * MIB


class _Row(NamedTuple):
    kind: str
    where: str
    """File and line."""
    name: str
    """The id of its class."""
    cells: list[bytes]
    """The others of the COLUMNS."""


class OpenImagesSource(BaseSource):
    """All CSV files of Open Images in a tree. Their rows are held in memory.

    Raises:
        UsageError: There is no such file, or one cannot be read.
    """

    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        files = files_in(tree)
        if not files:
            raise UsageError(tree.root, "no CSV file of Open Images was found", "choose another kind of --labels")
        self.notes: list[str] = []
        self.of_split = FolderSplit.of(tree, options.split)
        self._tree, self._with_masks = tree, options.instance_masks
        self._rows: dict[bytes, list[_Row]] = defaultdict(list)
        self._bad: list[NoImage | BadLabel] = []
        self._has_boxes = bool({BOXES, MASKS} & {*files.values()})
        for path, kind in files.items():
            if kind != INFO:
                self._read(path, kind)
        rows = [row for of_image in self._rows.values() for row in of_image]
        self._names, described = _names_in(tree)
        self.label_files = {*files, *described}
        if unnamed := {row.name for row in rows} - self._names.keys():
            what = f"{plural(len(unnamed), 'class has', 'classes have')} no name, such as {printable(min(unnamed))}"
            self.notes.append(f"{what}: put {DESCRIPTIONS.decode()}.csv into the source")
        self.tags = tuple(sorted({self._name(row) for row in rows if row.kind == LABELS})) or None
        masks = {row.cells[-1].rpartition(b"/")[2] for row in rows if row.kind == MASKS}
        self._masks = {name: path for path in tree.images if (name := path.rpartition(b"/")[2]) in masks}
        self._mask_paths = frozenset(self._masks.values())
        if masks and not self._with_masks:
            packs = f"{option('instance-masks')} packs them"
            self.notes.append(f"{plural(len(masks), 'mask', 'masks')} not packed, but their boxes are; {packs}")
        stems = {stem_of(image) for image in tree.images}
        self._bad += [
            NoImage(of_image[0].where, f"no image {quoted_value(name)}", "add the image, or remove its rows")
            for name, of_image in self._rows.items()
            if name not in stems
        ]

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return this source if there are image labels or masks; boxes alone are a list."""
        files = files_in(tree)
        if {*files.values()} in (set(), {BOXES}, {INFO}):
            return []
        verb = "has" if len(files) == 1 else "have"
        return [Choice("openimages", f"{some_paths(files)} {verb} the columns of Open Images")]

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the labels, boxes and masks of the image.

        Raises:
            NoLabel: No row names it.
            BadLabel: A row is invalid.
            BadMask: A mask cannot be read.
        """
        rows = self._rows.get(stem_of(image))
        if rows is None:
            raise NoLabel(image, "no CSV file of Open Images names it", "add its rows, or remove the image")
        objects = LabelledObjects()
        places: dict[Any, int] = {}
        """Class and box -> the first object with them that has no mask yet."""
        sure: dict[str, float] = {}
        for row in sorted(rows, key=lambda row: row.kind):  # boxes before masks
            try:
                values = [number(cell) for cell in row.cells[: None if row.kind != MASKS else len(EDGES)]]
            except ValueError as error:
                raise BadLabel(row.where, str(error), "fix the line") from None
            name = self._name(row)
            if row.kind == LABELS:
                sure[name] = max(values[0], sure.get(name, 0.0))
                continue
            key = name, *(round(edge, 4) for edge in values[:4])
            place = places.pop(key, None) if row.kind == MASKS else None
            if place is None:
                place = len(objects.boxes)
                flags = [int(value > 0) for value in (*values[4:], 0, 0, 0)]
                objects.add(name, values[:4], fields=dict(zip(FLAGS, flags, strict=False)))
            if row.kind == BOXES:
                places.setdefault(key, place)
            elif self._with_masks:
                objects.shapes[place] = self._shape(row, image)
        objects.extras = {"confidence": sure} if sure else {}
        tags = None if self.tags is None else tuple(sure.get(name, 0.0) >= LIKELY for name in self.tags)
        return replace(objects.annotation(rows[0].where, None, self._has_boxes), tags=tags, relative=True)

    def _shape(self, row: _Row, image: bytes) -> dict[str, Any]:
        """Return a mask at the size of its image: its file may have another one."""
        name = row.cells[-1]
        path = self._masks.get(name.rpartition(b"/")[2])
        if path is None:
            raise BadLabel(row.where, f"there is no mask {quoted_value(name)}", "add it, or remove the row")
        try:
            size = read_header(read_file(self._tree, image, MOST_IMAGE_BYTES)).upright_size
            data = read_file(self._tree, path, MOST_IMAGE_BYTES)
            values = decode_values(data, read_header(data))
            values = color_codes(values) if values.ndim == 3 else values
            rows, columns = (np.arange(n) * m // n for n, m in zip(size[::-1], values.shape, strict=True))
            return as_shape(values[np.ix_(rows, columns)])[1]
        except (BadInput, ValueError) as error:
            raise BadMask(path, str(getattr(error, "problem", error)), "replace it, or remove its row") from None

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the rows that name no image, of each the first."""
        return iter(self._bad)

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not packed that is a mask."""
        return "a mask" if image in self._mask_paths else None

    def _read(self, path: bytes, kind: str) -> None:
        with needed(path):
            lines = lines_of(read_file(self._tree, path, MOST_LIST_BYTES))
        header = lines[0].split(COMMA)
        at = [header.index(column) for column in COLUMNS[kind] if column in header]
        for count, line in enumerate(lines[1:], 2):
            cells, where = line.split(COMMA), f"{printable(path)}:{count}"
            if len(cells) == len(header):
                image, name, *others = (cells[i] for i in at)
                self._rows[image].append(_Row(kind, where, as_text(name), others))
            elif line.strip():
                problem = f"has {len(cells)} cells, not {len(header)} as the header"
                self._bad.append(BadLabel(where, problem, "fix the line"))

    def _name(self, row: _Row) -> str:
        return self._names.get(row.name, row.name)


def files_in(tree: Tree) -> dict[bytes, str]:
    """Return the CSV files of Open Images, each with what it has by its header."""
    found = {path: kind_of(tree, path) for path in tree.files if extension_of(path) == b".csv"}
    return {path: kind for path, kind in found.items() if kind}


def kind_of(tree: Tree, path: bytes) -> str:
    """Return what a CSV file of Open Images has; "" for another file."""
    try:
        header = lines_of(read_head(tree, path, HEAD_BYTES))[:1]
    except BadLabel:
        return ""
    there = {*header[0].split(COMMA)} if header else set[bytes]()
    return next((kind for kind, names in COLUMNS.items() if there.issuperset(names[:6])), "")


def _names_in(tree: Tree) -> tuple[dict[str, str], list[bytes]]:
    """Return the names of classes by their ids, and the files that have them."""
    files = [path for path in tree.files if DESCRIPTIONS in path.rpartition(b"/")[2]]
    with needed(tree.root):
        rows = [row for path in files for row in rows_of(lines_of(read_file(tree, path, MOST_IMAGE_BYTES)), COMMA)]
    return {as_text(row[0]): as_text(row[1]) for row in rows if len(row) == 2}, files
