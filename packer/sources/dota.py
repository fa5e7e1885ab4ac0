"""DOTA: a text file of oriented boxes for each image, ``labelTxt/P0000.txt``.

A line is an object: ``x1 y1 x2 y2 x3 y3 x4 y4 class difficult``, pixels from the top left corner; lines before them may
name the date and the source of the image and its resolution. (Format: DOTA 1.0, 1.5 and 2.0, "Annotation format".)
"""

from __future__ import annotations

import re

from packer.errors import BadLabel, plural, printable
from packer.model.annotation import Json, RawAnnotation
from packer.sources.box_corners import extent
from packer.sources.by_stem import ByStemSource, choice_by_stem, match_by_stem
from packer.sources.paths import (
    FolderSplit,
    as_text,
    class_id,
    extension_of,
    folder_of,
    folder_splits,
    is_number,
    number,
    quoted_value,
    spread,
)
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.yolo_config import NAME_FILES

FACTS = ("acquisition dates", "imagesource", "gsd")
"""What the lines before the objects may say of the image: extras."""
FACT = re.compile(rb"'?(%s)'?:(.*)" % "|".join(FACTS).encode(), re.DOTALL)
UPRIGHT = re.compile(rb"hbb|rec_?label", re.IGNORECASE)
"""In the names of folders with the same objects as upright boxes."""
MOST_BYTES = 64 * MIB


class DotaSource(ByStemSource):
    """Oriented boxes of DOTA. Of the two sets of labels that it comes with, that of upright boxes is not read."""

    ending = b".txt"
    next_step = "add an empty file if nothing is in the image"
    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        files, upright = _files(tree)
        super().__init__(tree, match_by_stem(tree.images, files))
        self.matches.unclaimed = [path for path in self.matches.unclaimed if _is_dota(tree, path)]
        self.label_files = {*self.matches.label_of.values(), *self.matches.unclaimed}
        self.of_split = FolderSplit.of(tree, options.split)
        if upright:
            self.notes.append(f"left out: {plural(upright, 'file')} with the same objects as upright boxes")

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return DOTA if images have a text file of their name, and a few of those have its lines."""
        files, _ = _files(tree)
        if not files:
            return []
        matches = match_by_stem(tree.images, files)
        seen = (_is_dota(tree, path) for path in spread(list(matches.label_of.values()), LOOKS))
        return choice_by_stem("dota", "text file of DOTA", matches.fitting, len(tree.images), seen)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the objects of the image; none for a file without any.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or a line is invalid.
        """
        path = self.label_file(image)
        return parse_dota(read_file(self._tree, path, MOST_BYTES), path)


def _files(tree: Tree) -> tuple[list[bytes], int]:
    """Return the text files that may be labels, and how many of upright boxes are left out beside them."""
    texts = [path for path in tree.files if extension_of(path) == b".txt"]
    texts = [path for path in texts if path.rpartition(b"/")[2].lower() not in NAME_FILES]
    oriented = [path for path in texts if not UPRIGHT.search(folder_of(path))]
    return (oriented, len(texts) - len(oriented)) if oriented else (texts, 0)


def _is_dota(tree: Tree, path: bytes) -> bool:
    """Return whether a file can be read, and is not empty."""
    try:
        found = parse_dota(read_file(tree, path, MOST_BYTES), path)
    except BadLabel:
        return False
    return bool(found.boxes or found.extras)


def parse_dota(data: bytes, path: bytes) -> RawAnnotation:
    """Return the objects of a file. Raise BadLabel for an invalid line."""
    lines, names, obb, difficult = list[int](), list[str](), list[tuple[tuple[float, float], ...]](), list[int | None]()
    extras: dict[str, Json] = {}
    for count, line in enumerate(lines_of(data), 1):
        if not (tokens := line.split()):
            continue
        if fact := FACT.fullmatch(line.strip()):
            extras[as_text(fact[1])] = _fact(fact[2].strip())
            continue
        try:
            if len(tokens) not in (9, 10):
                raise ValueError(f"has {plural(len(tokens), 'column')}, not 10: x1 y1 ... x4 y4 class difficult")
            if len(tokens) == 9 and is_number(tokens[8]):
                raise ValueError("has 9 numbers, as YOLO's rows, and not a class after 8")
            values = [number(token) for token in tokens[:8]]
            flag = class_id(tokens[9]) if len(tokens) > 9 else None
            if flag is None and len(tokens) > 9:
                raise ValueError(f"difficult: {quoted_value(tokens[9])} is not a whole number")
        except ValueError as error:
            raise BadLabel(f"{printable(path)}:{count}", str(error), "fix the line") from None
        lines.append(count)
        names.append(as_text(tokens[8]))
        obb.append(tuple(zip(values[::2], values[1::2], strict=True)))
        difficult.append(flag)
    has_flags = any(flag is not None for flag in difficult)
    return RawAnnotation(
        origin=as_text(path),
        boxes=tuple(map(extent, obb)),
        box_labels=tuple(names),
        box_lines=tuple(lines),
        obb=tuple(obb),
        box_fields={"difficult": tuple(flag or 0 for flag in difficult)} if has_flags else {},
        extras=extras,
    )


def _fact(text: bytes) -> Json:
    """Return what a line before the objects says: a number if it is one."""
    try:
        return number(text)
    except ValueError:
        return as_text(text)
