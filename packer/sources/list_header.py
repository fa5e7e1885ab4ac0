"""Recognizes the separator of a list, the column of its paths, and the lines before its data.

A header is recognized by its shape: it names no image where the lines below do, has words above numbers, or another
number of columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from packer.errors import BadInput, BadLabel, UsageError, option, plural, printable
from packer.sources.box_forms import Votes
from packer.sources.list_cells import LEADS, UNKNOWN, Size, are_by_rows, are_runs, named_reading, readings_of, values_in
from packer.sources.list_columns import BOX_FORMS, NUMBERS, TAGS, LineColumns, parse_columns
from packer.sources.list_lines import (
    BLANKS,
    COMMA,
    SEMICOLON,
    SEPARATORS,
    TAB,
    Lines,
    as_lines,
    has_json_cells,
    rows_of,
)
from packer.sources.list_meaning import (
    GROUPS,
    MEANING,
    OF_OBJECTS,
    Rows,
    are_class_names,
    by_header,
    by_shape,
    flip_index_in,
    in_groups,
    refuse_lists_of_classes,
    suggestions,
    unclear,
    with_corners,
    with_decimal_commas,
    with_four_corners,
    with_values,
    words_of,
)
from packer.sources.path_finder import NOT_FOUND, PathFinder
from packer.sources.paths import (
    IMAGE_EXTENSIONS,
    as_bytes,
    extension_of,
    is_number,
    is_utf8,
    quoted_value,
    spread,
)
from packer.sources.source import LOOKS, Tree
from packer.sources.tree import MIB, image_size, read_head

LOOKED_AT, CELLS = 64, 32
"""Lines, and columns at each end of a line, in which paths are searched to recognize a list."""
FEWEST_ALIKE = 2
"""Fewer paths that are not written as those of the images may be chance."""
MOST_PLACES = 128
"""Number of columns searched for a path, half of them at each end."""
OF_LABELS = {"label", "xmin", "cx", "value", *OF_OBJECTS}
"""Meanings of columns with labels."""


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

    def names(self, columns: LineColumns) -> tuple[str, ...]:
        """Return the header's name of each column of `columns.head`; empty if it has none."""
        header, wanted = self.header, len(columns.head)
        if header and len(header) == wanted - 1 and columns.head[0] == "path":
            header = (b"", *header)  # as in CelebA
        if columns.tail and columns.cell is None:
            header = header[:wanted]  # those of objects, if there are any, follow
        if len(header) != wanted or columns.cell is not None:
            return ()
        return tuple(cell.decode("utf-8", "surrogateescape") for cell in header)


class FirstLines:
    """The first lines of a list, by which its separator, its header and its columns are recognized.

    Args:
        lines: Lines that are not blank, in order.
        finder: Finds images.
        columns: ``--columns``, if given.
    """

    def __init__(self, lines: Sequence[bytes], finder: PathFinder, columns: LineColumns | None) -> None:
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

    def sizes(self, rows: Rows, size_at: Sequence[int]) -> list[Size]:
        """Return the sizes of the images of some rows: by the columns of width and height, or the headers of a few."""
        if size_at:
            cells = [[row[i] for i in size_at] for row in rows]
            return [(float(w), float(h)) if is_number(w) and is_number(h) else UNKNOWN for w, h in cells]
        finder, paths = self._finder, [row[self.place] for row in rows]
        exact = any(map(self._found, paths))
        manner = None if exact or (found := finder.manner(paths)) is None else found[0]
        numbers = finder.find_all(manner, paths).tolist()
        known: dict[int, Size] = {NOT_FOUND: UNKNOWN}
        for number in spread([*dict.fromkeys(numbers)], LOOKED_AT):
            with suppress(BadInput):
                known.setdefault(number, image_size(finder.tree, finder.images[number]))
        return [known.get(number, UNKNOWN) for number in numbers]

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
    if path in tree.mask_lists:
        return True
    try:
        lines = as_lines(read_head(tree, path, MIB), "").split(b"\n")
    except (BadLabel, UsageError):
        return False
    if lines and has_json_cells(lines[0]):
        return False
    some = [*lines[:LOOKS], *spread(lines[LOOKS:], LOOKED_AT)]  # the first may all be of one image
    if are_class_names(lines):
        return False
    for separator in SEPARATORS:
        rows = [[*row[:CELLS], *row[CELLS:][-CELLS:]] for row in rows_of(some, separator) if len(row) > 1]
        if rows and all(_is_image_name(cell) for row in rows for cell in row):
            return False  # pairs of images
        if any(finder.find(cell) != NOT_FOUND for row in rows[:LOOKS] for cell in row):
            return True
        for cells in zip(*rows, strict=False):
            found = finder.manner(cells)
            numbers = all(cell.isdigit() for cell in cells[1:])
            enough = len(tree.images) if numbers else min(len(tree.images), len(set(cells)))
            if found is not None and found[1] >= max(FEWEST_ALIKE, enough / 2):
                return True
    return False


def has_header_of_labels(text: bytes) -> bool:
    """Return whether the first line has words of a path and of a label, box or value, and lines follow."""
    lines = [line for line in text.split(b"\n") if line.strip()][: LOOKED_AT + 1]
    for rows in (rows_of(lines, separator) for separator in SEPARATORS[:3]):
        words = with_corners(_words(rows[0])) if len(rows) > FEWEST_ALIKE and 1 < len(rows[0]) <= CELLS else []
        meanings = {MEANING.get(word) for word in words if word != "name"}  # which may be that of a class
        if "path" in meanings and meanings & OF_LABELS and len(rows[1]) == len(rows[0]):
            return not are_class_names(lines[1:])
    return False


def _is_image_name(cell: bytes) -> bool:
    return extension_of(cell) in IMAGE_EXTENSIONS


def _separator(lines: Sequence[bytes], columns: LineColumns | None, finds: Callable[[bytes], bool]) -> bytes:
    """Return the separator that fits most of the lines; tab before comma before semicolon before blanks.

    One that leaves the names of images alone in their cells comes first, and one that is in the first line, too: the
    comma of ``a.jpg;1,5`` is of a number.
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
    return max(found, key=lambda separator: (names(separator), separator in lines[0])) if found else BLANKS


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


IN_GROUPS = re.compile(rb"\S+(?:[ \t]+[-+.0-9]+,[-+.0-9]+,[-+.0-9]+,[-+.0-9]+,[^\s,]+)(?:\s|\Z)")
FIRST_LINES, SPREAD_LINES = 64, 448
"""Lines from which the layout is recognized."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How the lines of a list are read."""

    separator: bytes
    opening: Opening
    columns: LineColumns
    relative: bool
    """Whether coordinates are fractions of the image's width and height."""
    tags: tuple[str, ...] | None
    """The names of the tag columns: those of the header, else numbers."""
    flip_index: tuple[int, ...] | None
    notes: tuple[str, ...]


def read_layout(lines: Lines, finder: PathFinder, text: str | None, name: str) -> LineFormat:
    """Return the layout of a list.

    Args:
        lines: The lines of the list.
        finder: Finds images.
        text: ``--columns``, if given.
        name: The file, for messages.

    Raises:
        UsageError: The list is empty, or its columns are not clear, or not those of ``--columns``.
    """
    sample = lines.sample(FIRST_LINES, SPREAD_LINES)
    if text is None and 2 * sum(map(bool, map(IN_GROUPS.match, sample))) > len(sample):
        text = GROUPS
    given = None if text is None else parse_columns(text)
    if not sample:
        raise UsageError(name, "is empty", "give a list with one image per line")
    shape = FirstLines(sample, finder, given)
    opening = shape.opening(lines)
    notes = [f"{name}:{opening.header_line} is taken as a header"] if opening.header else []
    if given is None:
        columns, skipped = guess(shape, opening, name)
        if columns.text != "path label":
            notes.append(f'{name}: --columns "{columns.text}"')
        if skipped:
            notes.append(f"{name}: columns that are skipped: {printable(', '.join(skipped))}")
    else:
        columns = given
        counts = Counter(map(len, shape.rows))
        if counts and not any(map(columns.fits, counts)):
            raise _wrong_count(columns, counts, FirstLines(sample, finder, None), lines, name)
    relative = _are_fractions(columns, shape.rows)
    if relative:
        notes.append(f"{name}: coordinates are fractions of the image's width and height")
    columns = replace(columns, negative=_has_negative(columns, shape.rows, name))
    names = opening.names(columns)
    places = [i for i, column in enumerate(columns.head) if column == "tag"]
    tags = tuple(names[i] if names else str(number) for number, i in enumerate(places)) or None
    if odd := next((tag for tag in tags or () if not is_utf8(as_bytes(tag))), None):
        raise UsageError(name, f"the name {quoted_value(odd)} in its header is not in UTF-8", "save the list as UTF-8")
    if tags and len(set(tags)) < len(tags):
        twice = next(tag for tag, count in Counter(tags).items() if count > 1)
        raise UsageError(name, f"two tag columns are called {printable(twice)}", "rename one in the header")
    return LineFormat(shape.separator, opening, columns, relative, tags, flip_index_in(columns, names), tuple(notes))


def guess(shape: FirstLines, opening: Opening, name: str) -> tuple[LineColumns, list[str]]:
    """Return the columns by the header, or by the shape of the lines, and the names of those that are skipped.

    Raises:
        UsageError: They are not clear; the error says what can be written.
    """
    rows = [row for row in shape.rows if len(row) == shape.width]
    if 2 * len(rows) <= len(shape.rows):
        raise in_groups(shape.rows, name)
    header = opening.names(LineColumns(("path",) * shape.width)) if shape.place == 0 else ()
    if len(opening.header) == shape.width:
        header = tuple(cell.decode("utf-8", "surrogateescape") for cell in opening.header)
    words = with_four_corners(words_of(header), rows, shape.place, name)
    words = _with_origin(shape, with_corners(words), rows, name)
    head = by_header(words, rows, shape.place) if header else by_shape(rows, shape.place, name)
    if any("region_shape_attributes" in cell for cell in header):
        raise UsageError(
            name, "is a table of VGG Image Annotator, which packer does not read", "export it as COCO there"
        )
    if head is None and (commas := with_decimal_commas(rows, name)):
        raise commas
    if head is None:
        problem = f"the meaning of its columns is not clear: {printable(', '.join(header))}"
        raise unclear(name, problem, suggestions(rows, shape.place, header))
    head = with_values(head, header, rows, name)
    place = next((i for i, column in enumerate(head) if column in OF_OBJECTS), None)
    if place is not None:
        head = with_cell(shape, head, rows, place, (name, suggestions(rows, shape.place, header)))
    skipped = [word for word, column in zip(header, head, strict=False) if column == "_" and word]
    return parse_columns(" ".join(head)), skipped


OF_VGG_FACE = "nameid"
"""VGG-Face2's loose_bb_train.csv, whose X and Y are the corner of a box."""


def _with_origin(shape: FirstLines, words: list[str], rows: Rows, name: str) -> list[str]:
    """Return the words of a header in which x and y before w and h have the names of a box's corner, or of its center.

    Raises:
        UsageError: They may be either.
    """
    meanings = [MEANING.get(word, word) for word in words]
    x = next((i for i in range(len(words)) if meanings[i : i + 4] == ["x", "y", "w", "h"]), None)
    if x is None:
        return words
    there = [row for row in rows if all(map(is_number, row[x : x + 4]))]
    votes = Votes()
    votes.add(
        np.array([row[x : x + 4] for row in there], np.float64).reshape(-1, 4),
        np.array(shape.sizes(there, ())).reshape(-1, 2),
    )
    of_corner, _, of_center = votes.misfits[int(votes.relative)].tolist()
    corner, center = ([*words[:x], *form[:2], *words[x + 2 :]] for form in (BOX_FORMS[2], BOX_FORMS[1]))
    if there and of_corner == of_center and OF_VGG_FACE not in words:
        heads = [by_header(form, rows, shape.place) for form in (corner, center)]
        choices = " or ".join(option("columns", f'"{" ".join(head or ())}"') for head in heads)
        raise unclear(name, f"x and y of {plural(len(there), 'box', 'boxes')} may be a corner or the center", choices)
    return corner if of_corner <= of_center or OF_VGG_FACE in words else center


def with_cell(shape: FirstLines, head: Sequence[str], rows: Rows, place: int, otherwise: tuple[str, str]) -> list[str]:
    """Return the names of columns, with what the values in the cells of objects are.

    Args:
        shape: Knows the images.
        head: The names of the columns.
        rows: The cells of some lines.
        place: Index of the column of objects.
        otherwise: The file, and the ``--columns`` that leave these cells out.

    Raises:
        UsageError: They may be several things, or nothing that is known.
    """
    (name, like), with_values = otherwise, [row for row in rows if values_in(row[place])]
    cells = [row[place] for row in with_values]
    sizes = shape.sizes(with_values, [head.index(side) for side in ("width", "height") if side in head])
    if head[place] == "rle":
        readings = ["rle:rows" if are_by_rows(cells, sizes) else "rle"] if are_runs(cells, fewest=1) else []
    else:
        leads = LEADS if head[place] == "boxes" else (*LEADS[1:], LEADS[0])
        named = named_reading(cells)
        readings = [f"[{reading}]" for reading in ([named] if named else readings_of(cells, sizes, leads))]
    found = []
    for reading in readings:
        others = ["_" if column == "class" and "class" in reading else column for column in head]
        found.append([*others[:place], reading, *others[place + 1 :]])
    if len(found) == 1:
        refuse_lists_of_classes(found[0], with_values, place, name)
        return found[0]
    what = f"cells such as {quoted_value(cells[0]) if cells else 'those of no image'}"
    if not found:
        raise unclear(name, f"{what} hold neither boxes nor run lengths", like)
    choices = " or ".join(option("columns", f'"{parse_columns(" ".join(columns)).text}"') for columns in found)
    raise unclear(name, f"{what} can be read in several ways", choices)


def _wrong_count(columns: LineColumns, counts: Counter[int], shape: FirstLines, lines: Lines, name: str) -> UsageError:
    """Return the error of a list none of whose lines has as many columns as ``--columns``."""
    count = counts.most_common(1)[0][0]
    more = f" and any number of {len(columns.tail)} more" if columns.tail else ""
    have = "each line has" if len(counts) == 1 else "most lines have"
    problem = f"{have} {plural(count, 'column')}, but --columns names {len(columns.head)}{more}"
    try:
        fitting = guess(shape, shape.opening(lines), name)[0].text
    except UsageError:
        if count < len(columns.head):
            return UsageError(name, problem, "name each column once, and _ for one to skip")
        fitting = replace(columns, head=columns.head + ("_",) * (count - len(columns.head)), tail=()).text
    return UsageError(name, problem, f'write --columns="{fitting}"')


def _has_negative(columns: LineColumns, rows: Rows, name: str) -> bool | None:
    """Return whether tag columns have -1 for "no"; None if they have neither."""
    no = {value[:1] == b"-" for value in columns.tags(rows) if not TAGS.get(value, True)}
    if len(no) > 1:
        problem = "its tag columns have 0 and -1, and only one of them can mean that an image lacks the class"
        raise UsageError(name, problem, "write 0 or 1, and leave out the images that are not labelled")
    return no.pop() if no else None


def _are_fractions(columns: LineColumns, rows: Rows) -> bool:
    """Return whether all coordinates are between 0 and 1, and some are not whole."""
    names = columns.head + columns.tail * (MOST_PLACES if columns.cell is not None else 1)
    cells = set()
    for row in rows:
        with suppress(ValueError):
            whole = columns.unfolded(row) if columns.fits(len(row)) else row
            cells |= {cell for name, cell in zip(names, whole, strict=False) if name in NUMBERS}
    values = [float(cell) for cell in cells if is_number(cell)]
    return any(not value.is_integer() for value in values) and min(values) >= 0 and max(values) <= 1
