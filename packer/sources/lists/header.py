"""Recognizes the separator of a list, the column of its paths, and the lines before its data.

A header is recognized by its shape: it names no image where the lines below do, has words above numbers, or another
number of columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from packer.errors import BadLabel
from packer.sources.base import LOOKS, Tree
from packer.sources.lists.columns import Columns
from packer.sources.lists.guess import MEANING, words_of
from packer.sources.lists.lines import BLANKS, COMMA, SEMICOLON, SEPARATORS, TAB, Lines, rows_of
from packer.sources.path_finder import NOT_FOUND, PathFinder
from packer.sources.paths import IMAGE_EXTENSIONS, extension_of, is_number, spread
from packer.sources.tree import MIB, lines_of, read_head

LOOKED_AT, CELLS = 64, 32
"""Lines, and columns at each end of a line, in which paths are searched to recognize a list."""
FEWEST_ALIKE = 2
"""Fewer paths that are not written as those of the images may be chance."""
MOST_PLACES = 128
"""Number of columns searched for a path, half of them at each end."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The lines before the data of a list."""

    lines: int = 0
    """Number of lines before the data, including blank lines."""
    count: int | None = None
    """The number of images given in the first line."""
    header: tuple[bytes, ...] = ()
    """The cells of the header line."""
    header_line: int = 0
    """Number of the header line."""

    def names(self, columns: Columns) -> tuple[str, ...]:
        """Return the header's name of each column of `columns.head`; empty if it has none."""
        header, wanted = self.header, len(columns.head)
        if header and len(header) == wanted - 1 and columns.head[0] == "path":
            header = (b"", *header)  # as in CelebA
        if len(header) != wanted or columns.tail:
            return ()
        return tuple(cell.decode("utf-8", "surrogateescape") for cell in header)


class Shape:
    """The first lines of a list, by which its separator, its header and its columns are recognized.

    Args:
        lines: Lines that are not blank, in order.
        finder: Finds images.
        columns: ``--columns``, if given.
    """

    def __init__(self, lines: Sequence[bytes], finder: PathFinder, columns: Columns | None) -> None:
        self._finder = finder
        self._columns = columns
        self.separator = _separator(lines, columns, lambda path: finder.find(path) != NOT_FOUND)
        self._counts = bool(re.fullmatch(rb"[0-9]{1,12}", _count(lines[0]))) and not self._found(_count(lines[0]))
        first = lines[self._counts : self._counts + 1]
        self._first = (rows_of([line.removeprefix(b"#") for line in first], self.separator) or [[]])[0]
        self.rows = rows_of(lines[self._counts + 1 :], self.separator)
        """The cells of the lines below the first line that is not a number."""
        self.width = _most_common(map(len, self.rows or [self._first]))
        self._same = [row for row in self.rows if len(row) == self.width]
        self.place = self._path_column()
        """Index of the column of the path."""
        self.has_header = self._is_header()
        if not self.has_header:
            self.rows = [self._first, *self.rows] if self._first else self.rows
            self.width = self.width if self._columns else _most_common(map(len, self.rows))

    def opening(self, lines: Lines) -> Opening:
        """Return the lines before the data of the list, including blank ones."""
        full = list(islice((i for i in range(len(lines)) if lines[i].strip(b" \t")), 2))
        count = int(_count(lines[full[0]])) if self._counts else None
        before = full[self._counts] if len(full) > self._counts else full[-1] + 1
        if self.has_header:
            return Opening(before + 1, count, tuple(self._first), before + 1)
        return Opening(before if self._counts else 0, count)

    def _found(self, path: bytes) -> bool:
        return self._finder.find(path) != NOT_FOUND

    def _path_column(self) -> int:
        if self._columns is not None:
            return self._columns.head.index("path")
        if not self.width:  # there is only a number of images
            return 0
        width = self.width
        places = [*range(min(width, MOST_PLACES // 2)), *range(max(MOST_PLACES // 2, width - MOST_PLACES // 2), width)]
        words = [MEANING.get(word) for word in _words(self._first)] if len(self._first) == width else []
        rows = self._same or [self._first]

        exact = {place: sum(self._found(row[place]) for row in rows) for place in places}
        is_exact = any(exact.values())  # then the images need not be compared by their names, which takes long

        def rank(place: int) -> tuple[int, int, bool, int]:
            is_named = place < len(words) and words[place] == "path"
            return exact[place], 0 if is_exact else self._loosely([row[place] for row in rows]), is_named, -place

        best = max(places, key=rank, default=0)
        if not any(rank(best)[:2]):  # no column leads to images
            named = [i for i in places if 2 * sum(_looks_like_file(row[i]) for row in rows) > len(rows)]
            named += [place for place, word in enumerate(words) if word == "path"]
            best = named[0] if named else 0
        return best

    def _loosely(self, cells: Sequence[bytes]) -> int:
        manner = self._finder.manner(cells)
        return 0 if manner is None else manner[1]

    def _is_header(self) -> bool:
        """Return whether the first line (after a number of images) is a header, judged by its shape."""
        cells, rows, place = self._first, self._same, self.place
        if not cells or any(_looks_like_file(cell) or self._found(cell) for cell in cells):
            return False
        if not rows:
            return bool(MEANING.keys() & set(_words(cells))) and not any(map(is_number, cells))
        expected = self._columns.fits if self._columns is not None else (lambda count: count == self.width)
        paths = [row[place] for row in rows if place < len(row)]
        exact = any(map(self._found, paths))
        manner = None if exact else self._finder.manner(paths)
        own = cells[place] if place < len(cells) else b""
        if not exact and manner is not None and self._finder.find_by(manner[0], own) != NOT_FOUND:
            return False
        if not expected(len(cells)) or len(cells) != self.width:
            return exact or manner is not None or not any(map(is_number, cells))
        columns = list(zip(*rows, strict=True))
        if any(_is_above_numbers(cell, column) for cell, column in zip(cells, columns, strict=True)):
            return True
        if any(map(is_number, cells)):
            return False
        if any(map(_looks_like_file, paths)):
            return exact or bool(MEANING.keys() & set(_words(cells)))
        others = [cell not in columns[i] for i, cell in enumerate(cells) if i != place and cell]
        return (exact or manner is not None or bool(MEANING.keys() & set(_words(cells)))) and all(others)


def names_images(tree: Tree, path: bytes, finder: PathFinder) -> bool:
    """Return whether lines name images and have other columns; a list of paths alone is a split.

    One path as written is enough. Of paths that are compared in another way, half of those that differ must match, or
    as many as half of the images; for whole numbers, which may be anything, half of the images.
    """
    try:
        lines = lines_of(read_head(tree, path, MIB))
    except BadLabel:
        return False
    some = [*lines[:LOOKS], *spread(lines[LOOKS:], LOOKED_AT)]  # the first may all be of one image
    for separator in SEPARATORS:
        rows = [[*row[:CELLS], *row[CELLS:][-CELLS:]] for row in rows_of(some, separator) if len(row) > 1]
        if rows and all(_is_image_name(cell) for row in rows for cell in row):
            return False  # images and their masks
        if any(finder.find(cell) != NOT_FOUND for row in rows[:LOOKS] for cell in row):
            return True
        for cells in zip(*rows, strict=False):
            found = finder.manner(cells)
            numbers = all(cell.isdigit() for cell in cells[1:])
            enough = len(tree.images) if numbers else min(len(tree.images), len(set(cells)))
            if found is not None and found[1] >= max(FEWEST_ALIKE, enough / 2):
                return True
    return False


def _is_image_name(cell: bytes) -> bool:
    return extension_of(cell) in IMAGE_EXTENSIONS


def _separator(lines: Sequence[bytes], columns: Columns | None, finds: Callable[[bytes], bool]) -> bytes:
    """Return the separator that fits most of the lines; tab before comma before semicolon before blanks.

    One that leaves the names of images alone in their cells comes first: the comma of ``a.jpg;1,5`` is of a number.
    """

    def sense(separator: bytes) -> int:
        points = 0
        for cells in rows_of(lines, separator):
            if columns is not None and columns.fits(len(cells)):
                path = columns.path(cells) or b""
                points += 2 if _looks_like_file(path) or finds(path) else len(cells) > 1
        return points

    best = max(SEPARATORS, key=sense)  # the first of equals
    if columns is not None and sense(best):
        return best

    def names(separator: bytes) -> int:
        return sum(any(map(_looks_like_file, cells)) for cells in rows_of(lines, separator))

    found = [s for s in (TAB, COMMA, SEMICOLON) if 2 * sum(s in line for line in lines) > len(lines)]
    return max(found, key=names) if found else BLANKS


def _count(line: bytes) -> bytes:
    return line.strip(b" \t,")


def _most_common(counts: Sequence[int] | map[int]) -> int:
    return max(Counter(counts).items(), key=lambda item: item[1], default=(0, 0))[0]


def _words(cells: Sequence[bytes]) -> list[str]:
    return words_of([cell.decode("utf-8", "replace") for cell in cells])


def _looks_like_file(cell: bytes) -> bool:
    return extension_of(cell.replace(b"\\", b"/")) in IMAGE_EXTENSIONS


def _is_above_numbers(cell: bytes, column: Sequence[bytes]) -> bool:
    """Return whether a cell is a word above numbers."""
    return bool(cell) and not is_number(cell) and any(column) and all(is_number(c) for c in column if c)
