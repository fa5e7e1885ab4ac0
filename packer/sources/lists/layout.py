"""The layout of a list: its separator, the lines before its data, and its columns, given or recognized."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from packer.errors import UsageError, plural, printable
from packer.sources.lists.columns import NUMBERS, TAGS, Columns, parse_columns
from packer.sources.lists.guess import Rows, by_header, by_shape, example, unclear, words_of
from packer.sources.lists.header import Opening, Shape
from packer.sources.lists.lines import Lines
from packer.sources.path_finder import PathFinder
from packer.sources.paths import as_bytes, is_number, is_utf8, quoted
from packer.sources.points import flip_index_of

FIRST_LINES, SPREAD_LINES = 64, 448
"""Lines from which the layout is recognized."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the lines of a list are read."""

    separator: bytes
    opening: Opening
    columns: Columns
    relative: bool
    """Whether coordinates are fractions of the image's width and height."""
    tags: tuple[str, ...] | None
    """The names of the tag columns: those of the header, else numbers."""
    flip_index: tuple[int, ...] | None
    notes: tuple[str, ...]


def read_layout(lines: Lines, finder: PathFinder, text: str | None, name: str) -> Layout:
    """Return the layout of a list.

    Args:
        lines: The lines of the list.
        finder: Finds images.
        text: ``--columns``, if given.
        name: The file, for messages.

    Raises:
        UsageError: The list is empty, or its columns are not clear, or not those of ``--columns``.
    """
    given = None if text is None else parse_columns(text)
    sample = lines.sample(FIRST_LINES, SPREAD_LINES)
    if not sample:
        raise UsageError(name, "is empty", "give a list with one image per line")
    shape = Shape(sample, finder, given)
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
            raise _wrong_count(columns, counts, Shape(sample, finder, None), lines, name)
    relative = _are_fractions(columns, shape.rows)
    if relative:
        notes.append(f"{name}: coordinates are fractions of the image's width and height")
    columns = replace(columns, negative=_has_negative(columns, shape.rows, name))
    names = opening.names(columns)
    places = [i for i, column in enumerate(columns.head) if column == "tag"]
    tags = tuple(names[i] if names else str(number) for number, i in enumerate(places)) or None
    if odd := next((tag for tag in tags or () if not is_utf8(as_bytes(tag))), None):
        raise UsageError(name, f"the name {quoted(odd)} in its header is not in UTF-8", "save the list as UTF-8")
    if tags and len(set(tags)) < len(tags):
        twice = next(tag for tag, count in Counter(tags).items() if count > 1)
        raise UsageError(name, f"two tag columns are called {printable(twice)}", "rename one in the header")
    return Layout(shape.separator, opening, columns, relative, tags, _flip_index(columns, names), tuple(notes))


def guess(shape: Shape, opening: Opening, name: str) -> tuple[Columns, list[str]]:
    """Return the columns by the header, or by the shape of the lines, and the names of those that are skipped.

    Raises:
        UsageError: They are not clear; the error says what can be written.
    """
    rows = [row for row in shape.rows if len(row) == shape.width]
    if 2 * len(rows) <= len(shape.rows):
        raise unclear(name, "its columns are not clear")
    header = opening.names(Columns(("path",) * shape.width)) if shape.place == 0 else ()
    if len(opening.header) == shape.width:
        header = tuple(cell.decode("utf-8", "surrogateescape") for cell in opening.header)
    head = by_header(words_of(header), rows, shape.place) if header else by_shape(rows, shape.place, name)
    if any("region_shape_attributes" in cell for cell in header):
        raise UsageError(
            name, "is a table of VGG Image Annotator, which packer does not read", "export it as COCO there"
        )
    if head is None:
        problem = f"the meaning of its columns is not clear: {printable(', '.join(header))}"
        raise unclear(name, problem, example(rows, shape.place, boxes=False))
    skipped = [word for word, column in zip(header, head, strict=False) if column == "_" and word]
    return parse_columns(" ".join(head)), skipped


def _wrong_count(columns: Columns, counts: Counter[int], shape: Shape, lines: Lines, name: str) -> UsageError:
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


def _has_negative(columns: Columns, rows: Rows, name: str) -> bool | None:
    """Return whether tag columns have -1 for "no"; None if they have neither."""
    no = {value[:1] == b"-" for value in columns.tags(rows) if not TAGS.get(value, True)}
    if len(no) > 1:
        problem = "its tag columns have 0 and -1, and only one of them can mean that an image lacks the class"
        raise UsageError(name, problem, "write 0 or 1, and leave out the images that are not labelled")
    return no.pop() if no else None


def _are_fractions(columns: Columns, rows: Rows) -> bool:
    """Return whether all coordinates are between 0 and 1, and some are not whole."""
    names = columns.head + columns.tail
    cells = {cell for row in rows for name, cell in zip(names, row, strict=False) if name in NUMBERS}
    values = [float(cell) for cell in cells if is_number(cell)]
    return any(not value.is_integer() for value in values) and min(values) >= 0 and max(values) <= 1


def _flip_index(columns: Columns, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the index of the mirror image of each point, if a header has names such as lefteye_x; else None."""
    if not names:
        return None
    of_x = [name.strip().lower() for name, column in zip(names, columns.head, strict=True) if column == "x"]
    return flip_index_of([re.sub(r"(^x[_ .])|([_ .]?x$)", "", name) for name in of_x])
