"""Parquet of Hugging Face: the columns beside the images; classes, boxes, tags, and others as fields of the image."""

from __future__ import annotations

import os
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np

from packer.errors import NoLabel, UsageError, option, plural, printable
from packer.model.annotation import Json, RawAnnotation
from packer.sources.parquet_columns import FORMATS, BoxFormat, ParquetMeaning, Votes, layout_of, objects_of
from packer.sources.parquet_file import ParquetFile, images_below, name_of, parquet_files, stem_folder
from packer.sources.paths import MOST_CLASSES, FolderSplit, folder_of, folder_splits, some_paths
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree

ROWS_AT_ONCE = 1024


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
        self.notes: list[str] = []
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
                layouts.append(layout_of(file, options.file))
                if layouts[-1] != layouts[0]:
                    problem = f"has other columns or classes than {printable(paths[0])}"
                    raise UsageError(file.name, problem, "pack them one by one")
                self._parts[stem_folder(path)] = self._part(path, file)
                table = file.read(list(layouts[0].columns))
                numbers = max(numbers, layouts[0].highest_class(table))
                votes.add(table, layouts[0])
        self._layout = layouts[0]
        self.notes += self._layout.notes
        self.classes: tuple[str, ...] | None = self._layout.names
        if self.classes is None and 0 <= numbers < MOST_CLASSES:
            self.classes = tuple(map(str, range(numbers + 1)))
        self.tags: tuple[str, ...] | None = self._layout.tag_names
        self._boxes = self._box_format(votes, options.columns)
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
        values = self._values(part, number)
        layout = self._layout
        label = None
        if layout.label is not None:
            label = layout.label.name_of(values[layout.label.column], origin)
            if label is None:
                raise NoLabel(
                    origin, f'has no class in "{printable(layout.label.column)}"', "add it, or remove the row"
                )
        extras: dict[str, Json] = {name: layout.plain(name, values[name]) for name in layout.extras}
        size = tuple(values[name] for name in layout.size)
        objects: dict[str, Any] = {}
        if layout.objects is not None:
            objects = objects_of(layout.objects, values[layout.objects.column], self._boxes, origin)
        return RawAnnotation(
            origin=origin,
            label=label,
            tags=layout.tags_of(values, origin),
            extras=extras,
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
            raise UsageError(
                option("columns"), "says what the numbers of boxes are in Parquet files", f"pass one of {choices}"
            )
        found = votes.result(columns)
        if votes.count:
            self.notes.append(votes.describe(found))
        return found
