"""PTS: one text file of landmarks per image, as of 300-W and Menpo, matched by stem.

    version: 1
    n_points: 2
    {
    30.5 41
    50 41.5
    }

Points count from 1, at the center of the first pixel: "landmarks on a 480x480 image are in the range [1-480]" (menpo,
io/input/landmark.py). In packer's frame that center is at 0.5, so that (x, y) becomes (x - 0.5, y - 0.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy

from packer.errors import BadLabel, NoImage, NoLabel, plural, printable
from packer.model.annotation import Point, RawAnnotation
from packer.sources.base import LOOKS, BaseSource, Choice, SourceOptions, Tree
from packer.sources.paths import as_text, class_id, extension_of, number, quoted, spread, stem_of
from packer.sources.splits import FolderSplit, folder_splits
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.voc import match_by_stem

MOST_BYTES = MIB
FIRST_CENTER = 0.5
BLANKS = re.compile(rb"[ \t]+")


class PtsSource(BaseSource):
    """Landmarks from ``.pts`` files."""

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self._tree = tree
        self._split = None if options.split is None else FolderSplit(tree, options.split)
        self._matches = match_by_stem(tree.images, (path for path in tree.files if extension_of(path) == b".pts"))
        self.label_files = {*self._matches.label_of.values(), *self._matches.unclaimed}

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return PTS if images have such a file of their name, and a few of those can be read."""
        files = [path for path in tree.files if extension_of(path) == b".pts"]
        matches = match_by_stem(tree.images, files) if files else None
        if matches is None or not (fitting := len(matches.label_of) + len(matches.refused)):
            return []
        if not any(_is_readable(tree, path) for path in spread(files, LOOKS)):
            return []
        images = plural(len(tree.images), "image has", "images have")
        return [Choice("pts", f"{fitting} of {images} a .pts file of their name")]

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the folders of splits."""
        return folder_splits(tree)

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in a folder of the split."""
        return self._split is None or self._split.in_split(image)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the landmarks of the image.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or the file is invalid.
        """
        path = self._matches.of(image)
        if path is None:
            raise NoLabel(image, f"has no label file {printable(stem_of(image))}.pts", "add it, or remove the image")
        return RawAnnotation(origin=as_text(path), landmarks=read_points(self._tree, path))

    def for_images(self, images: Sequence[bytes]) -> PtsSource | None:
        """Return a copy for a worker, with the label files of these images."""
        if (tree := self._tree.without_files) is None:
            return None
        part = copy(self)
        part._tree, part._matches, part._split, part.label_files = tree, self._matches.of_images(images), None, set()
        return part

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the files without an image."""
        for path in self._matches.unclaimed:
            if self._split is None or self._split.in_split(path):
                yield NoImage(path, "has no image", "add the image, or remove the label")


def read_points(tree: Tree, path: bytes) -> tuple[Point, ...]:
    """Return the points of a file, in packer's frame. Raise BadLabel if it is invalid."""
    lines = [(count, line.strip()) for count, line in enumerate(lines_of(read_file(tree, path, MOST_BYTES)), 1)]
    at = 0
    try:
        expected, body = _header([(count, line) for count, line in lines if line])
        points = []
        for at, line in body:  # noqa: B007  # named in the error
            values = [number(cell) for cell in BLANKS.split(line)]
            if len(values) != 2:
                raise ValueError(f"has {plural(len(values), 'number')}, not x and y")
            points.append((values[0] - FIRST_CENTER, values[1] - FIRST_CENTER))
    except ValueError as error:
        where = f"{printable(path)}:{at}" if at else path
        raise BadLabel(where, str(error), "fix the line" if at else "fix the file") from None
    if expected is not None and expected != len(points):
        problem = f"says n_points: {expected}, but has {plural(len(points), 'point')}"
        raise BadLabel(path, problem, "correct the number, or complete the file")
    return tuple(points)


def _header(lines: list[tuple[int, bytes]]) -> tuple[int | None, list[tuple[int, bytes]]]:
    """Return the number of points, if it is given, and the lines between the braces."""
    expected = None
    for i, (_, line) in enumerate(lines):
        name, colon, value = line.removesuffix(b"{").partition(b":")
        if colon and name.strip().lower() == b"n_points":
            expected = class_id(value.strip())
            if expected is None:
                raise ValueError(f"n_points: {quoted(value.strip())} is not a number of points")
        elif not colon and line != b"{":
            break
        if line.endswith(b"{"):
            if lines[-1][1] != b"}":
                raise ValueError("does not end with }, so that it may be truncated")
            return expected, lines[i + 1 : -1]
    raise ValueError("has no points between { and }, as PTS files have")


def _is_readable(tree: Tree, path: bytes) -> bool:
    try:
        return bool(read_points(tree, path))
    except BadLabel:
        return False
