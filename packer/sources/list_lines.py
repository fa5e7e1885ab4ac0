"""The lines of a list and their cells: one line at a time, or the paths and classes of many lines at once.

A plain CSV, without blanks around cells and with orderly quotes, goes through pyarrow's reader, which takes a third of
the time. Everything else, such as a block with one odd line, is split here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, plural, printable
from packer.sources.list_columns import LineColumns
from packer.sources.path_finder import NOT_FOUND, Manner, PathFinder
from packer.sources.paths import IMAGE_EXTENSIONS, MOST_CLASSES, as_text, class_id, extension_of, is_utf8, quoted_value
from packer.sources.tree import MIB

TAB, COMMA, SEMICOLON, BLANKS, MIXED = b"\t", b",", b";", b" ", b" ,"
SEPARATORS = (TAB, COMMA, SEMICOLON, BLANKS, MIXED)
"""MIXED: ``a.jpg 10,20,30,40,cat 50,60,70,80,dog``, as keras-yolo3 writes it."""
_END = {TAB: rb"\t", COMMA: rb",", SEMICOLON: rb";", BLANKS: rb"[ \t]+", MIXED: rb"[ \t,]+"}
_FIELD = {
    separator: re.compile(rb'[%s]*"((?:[^"]|"")*)"[ \t]*?(%s|\Z)|([^%s]*)(%s|\Z)' % (blanks, end, stop, end))
    for separator, end in _END.items()
    for blanks in [rb" " if separator == TAB else rb" \t"]  # a tab before a quote ends an empty cell
    for stop in [separator.replace(b" ", rb" \t")]
}
MOST_LINE_BYTES = MIB
BLOCK_BYTES = 4 * MIB
NEWLINE, QUOTE = b"\n"[0], b'"'[0]


def split_line(line: bytes, separator: bytes) -> list[bytes]:
    """Return the columns of a line without surrounding blanks; quotes follow the rules of CSV (RFC 4180).

    The csv module cannot do this: it reads no bytes, and allows neither blanks around quotes nor runs of separators.

    Raises:
        ValueError: A quote is not closed, or the line is too long.
    """
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"has {len(line)} bytes, more than {MOST_LINE_BYTES}")
    if b'"' not in line:
        if separator == BLANKS:
            return re.split(rb"[ \t]+", line.strip(b" \t"))
        if separator == MIXED:
            return re.split(rb"[ \t,]+", line.strip(b" \t,"))
        return [cell.strip(b" \t") for cell in line.split(separator)]
    line = line.strip(b" \t,") if separator == MIXED else line.strip(b" " if separator == TAB else b" \t")
    cells = []
    position = 0
    while True:
        field = _FIELD[separator].match(line, position)
        if field is None or (field[1] is None and field[3].lstrip(b" \t").startswith(b'"')):
            raise ValueError("has a quote that is not closed, or text after one")
        cells.append(field[1].replace(b'""', b'"') if field[1] is not None else field[3].strip(b" \t"))
        if not (field[2] or field[4]):  # no separator follows, so this is the last column
            return cells
        position = field.end()


def rows_of(lines: Sequence[bytes], separator: bytes) -> list[list[bytes]]:
    """Return the cells of the lines, without blank and invalid ones."""
    rows = []
    for line in lines:
        try:
            rows += [split_line(line, separator)] if line.strip(b" \t") else []
        except ValueError:
            continue  # a bad line, reported as such
    return rows


@dataclass(slots=True, eq=False)
class Block:
    """The paths and classes of some lines."""

    start: int
    """Index of the first line."""
    paths: list[bytes]
    """b"" for a line that is blank, invalid, or has no path."""
    names: list[bytes]
    """Labels and classes, which may repeat."""
    lines: NDArray[np.int64]
    """Index of the line of each label or class that is there."""
    codes: NDArray[np.int64]
    """Its place in `names`."""


class Lines:
    """The lines of a list: its bytes, and 8 bytes per line for the start of each."""

    def __init__(self, data: bytes) -> None:
        """Use these bytes, whose lines end in LF."""
        self._data = data
        ends = [
            np.flatnonzero(np.frombuffer(data, np.uint8, min(BLOCK_BYTES, len(data) - start), start) == NEWLINE) + start
            for start in range(0, len(data), BLOCK_BYTES)
        ]
        last = [] if data.endswith(b"\n") or not data else [np.array([len(data)])]
        self._starts = np.concatenate([np.array([-1]), *ends, *last]) + 1

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._data[self._starts[index] : self._starts[index + 1] - 1]

    def sample(self, first: int, spread: int) -> list[bytes]:
        """Return some lines that are not blank: the first ones, and others evenly spaced."""
        full = islice((i for i in range(len(self)) if self[i].strip(b" \t")), first)
        chosen = list(full)
        start = chosen[-1] + 1 if chosen else 0
        chosen += range(start, len(self), max(1, (len(self) - start) // spread))
        return [line for line in map(self.__getitem__, chosen) if line.strip(b" \t")]

    def blocks(self, start: int, separator: bytes, columns: LineColumns) -> Iterator[Block]:
        """Yield the lines from `start` on in blocks."""
        while start < len(self):
            position = int(self._starts[start])
            stop = int(np.searchsorted(self._starts, position + BLOCK_BYTES, side="right")) - 1
            stop = max(start + 1, min(stop, len(self)))
            data = self._data[position : self._starts[stop] - 1]
            block = None
            if np.diff(self._starts[start : stop + 1]).max() <= MOST_LINE_BYTES:
                block = _plain_block(start, stop, data, separator, columns)
            yield block or _any_block(start, data, separator, columns)
            start = stop


def _any_block(start: int, data: bytes, separator: bytes, columns: LineColumns) -> Block:
    paths, names, lines = [], [], []
    for index, line in enumerate(data.split(b"\n"), start):
        try:
            cells = split_line(line, separator)
        except ValueError:
            paths.append(b"")
            continue
        paths.append(columns.path(cells) or b"")
        for name in columns.classes(cells):
            names.append(name)
            lines.append(index)
    return Block(start, paths, names, np.array(lines, np.int64), np.arange(len(names)))


def _plain_block(start: int, stop: int, data: bytes, separator: bytes, columns: LineColumns) -> Block | None:
    """Return the block by pyarrow's reader; None if that would read it differently from `split_line`."""
    if (
        len(separator) > 1
        or separator == BLANKS
        or columns.tail
        or len(columns.head) < 2
        or not _is_plain(data, separator)
    ):
        return None
    import pyarrow as pa
    from pyarrow import csv

    names = [f"{name} {place}" for place, name in enumerate(columns.head)]
    wanted = [name for name in names if name.split(" ")[0] in ("path", "label", "class")]
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, column_names=names, block_size=2 * len(data) + 1024),
            csv.ParseOptions(delimiter=separator.decode(), ignore_empty_lines=False),
            csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.binary())),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != stop - start:
        return None
    found, lines, codes = list[bytes](), [], []
    for name in wanted:
        if not name.startswith("path"):
            column: Any = table.column(name).combine_chunks().dictionary_encode()
            values = column.dictionary.to_pylist()
            there = np.array([bool(value) for value in values], np.bool_)
            its_codes = column.indices.to_numpy().astype(np.int64)
            places = np.flatnonzero(there[its_codes])
            lines.append(places + start)
            codes.append(its_codes[places] + len(found))
            found += values
    empty = np.zeros(0, np.int64)
    paths = table.column(next(name for name in wanted if name.startswith("path"))).to_pylist()
    return Block(start, paths, found, np.concatenate([empty, *lines]), np.concatenate([empty, *codes]))


def _is_plain(data: bytes, separator: bytes) -> bool:
    """Return whether no cell has blanks around it, and each quote begins or ends a cell of one line."""
    ends = (separator, b"\n")
    blanks = (b" ", b"\t".replace(separator, b" "))
    if any(end + blank in data or blank + end in data for end in ends for blank in blanks):
        return False
    if data[:1] in blanks or data[-1:] in blanks or b"\0" in data:
        return False
    if b'"' not in data:
        return True
    values = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    quotes = np.flatnonzero(values == QUOTE)
    if len(quotes) % 2:
        return False
    opens, closes = quotes[::2], quotes[1::2]
    edges = [NEWLINE, separator[0]]
    lines = np.searchsorted(np.flatnonzero(values == NEWLINE), quotes)
    return bool(
        np.isin(values[opens - 1], edges).all()
        and np.isin(values[closes + 1], edges).all()
        and (lines[::2] == lines[1::2]).all()
    )


def as_lines(data: bytes, file: str) -> bytes:
    """Return the bytes of a list with LF line ends and in UTF-8. Raise UsageError if it is not text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            data = data.decode("utf-16").encode("utf-8")
        except ValueError:
            raise UsageError(file, "begins like UTF-16 but is not", "save it as UTF-8") from None
    if b"\r" in data or data.startswith(b"\xef\xbb\xbf"):
        data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\0" in data[:MIB]:
        raise UsageError(file, "is not a text file", "name the list")
    return data


MOST_PATHS = 100_000
"""Number of paths looked at to learn how paths are to be compared, if none of the first leads to an image."""
Int32 = NDArray[np.int32]


class ListTable:
    """The lines of each image.

    Args:
        lines: The lines of the list.
        start: Index of the first line of data.
        columns: The columns.
        separator: The separator of the columns.
        finder: Finds images.

    Raises:
        UsageError: None of the paths leads to an image.
    """

    def __init__(self, lines: Lines, start: int, columns: LineColumns, separator: bytes, finder: PathFinder) -> None:
        self._lines, self._start = lines, start
        self._columns, self._separator = columns, separator
        self.finder = finder
        self._tree = finder.images
        self._next = 0
        self.manner: Manner | None = None
        """How paths are compared if none leads to an image as written."""
        self.example = ""
        """A path with its image, if there is a `manner`."""
        self._find_manner()
        images, hashes, class_lines, class_codes, names = self._place()
        self._images = images
        self._order: Int32 = np.argsort(images, kind="stable").astype(np.int32)
        counts = np.bincount(images + 1, minlength=len(self._tree) + 1)
        self._ends: Int32 = np.cumsum(counts).astype(np.int32)
        """Of image i, the lines are those from `_ends[i]` to `_ends[i + 1]` in `_order`."""
        self._unlike = set[int]()
        """Images to which lines with different paths lead."""
        if hashes is not None:
            ordered, own = images[self._order], hashes[self._order]
            unlike = (ordered[1:] == ordered[:-1]) & (own[1:] != own[:-1]) & (ordered[1:] != NOT_FOUND)
            self._unlike = set(ordered[1:][unlike].tolist())
        self._several: dict[int, bool] = {}
        self._refuse_unknown_encoding(names)
        if names and 2 * sum(extension_of(name) in IMAGE_EXTENSIONS for name in names) > len(names):
            problem = f"its labels are images, such as {quoted_value(names[0])}"
            step = 'name them as masks, --columns="path mask", or leave them out, --columns="path _"'
            raise UsageError("", problem, step)
        self.names = [as_text(name) for name in names]
        """All labels and classes of the list, in order of appearance."""
        self.classes, self.odd = self._numbered_classes(class_lines, class_codes, names)

    @property
    def found(self) -> int:
        """Number of lines that name an image."""
        return len(self._images) - int(self._ends[0])

    def lines_of(self, image: bytes) -> list[int]:
        """Return the indices of an image's lines, in order."""
        number = self._next  # images are asked for in their order
        if number >= len(self._tree) or self._tree[number] != image:
            number = bisect_left(self._tree, image)
            if number >= len(self._tree) or self._tree[number] != image:
                return []
        self._next = number + 1
        return self._lines_at(number)

    def is_ambiguous(self, image: bytes) -> bool:
        """Return whether different paths lead to an image, which can only be if there is a `manner`."""
        return bool(self._unlike) and bisect_left(self._tree, image) in self._unlike

    def unplaced(self) -> Iterator[int]:
        """Yield the indices of the lines that name no image, also blank ones."""
        yield from np.sort(self._order[: self._ends[0]] + self._start).tolist()

    def row(self, index: int) -> list[bytes]:
        """Return the cells of a line. Raise ValueError if it cannot be split."""
        return split_line(self._lines[index], self._separator)

    def _lines_at(self, number: int) -> list[int]:
        a, b = int(self._ends[number]), int(self._ends[number + 1])
        if b - a == 1:
            return [int(self._order[a]) + self._start]
        return (self._order[a:b] + self._start).tolist()  # type: ignore[no-any-return]

    def _refuse_unknown_encoding(self, names: list[bytes]) -> None:
        """Raise UsageError if a class is not text: unlike the bytes of a path, its letters matter."""
        for name in names:
            if not is_utf8(name):
                line = next((i + 1 for i in range(self._start, len(self._lines)) if name in self._lines[i]), 0)
                raise UsageError(
                    "", f"the class {quoted_value(name)} in line {line} is not in UTF-8", "save the list as UTF-8"
                )

    def _find_manner(self) -> None:
        """Find out how paths are compared: as written if one of some leads to an image so."""
        for count in (512, MOST_PATHS):
            paths = self._some_paths(count)
            if any(self.finder.find(path) != NOT_FOUND for path in paths):
                return
            if (found := self.finder.manner(paths)) is not None:
                self.manner = found[0]
                self.example = self.finder.example(found[0], paths)
                return
        if not paths:
            return
        line, path = next((i, path) for i in range(self._start, len(self._lines)) if (path := self._path(i)))
        count = sum(bool(self._path(i)) for i in range(self._start, len(self._lines)))
        problem = f"none of its {plural(count, 'path')} leads to an image"
        problem += f", for example line {line + 1} {quoted_value(path)}"
        if alike := self.finder.alike(path):
            problem += f"; {' and '.join(map(printable, alike[:2]))} {'has' if len(alike) == 1 else 'have'} that name"
        raise UsageError("", problem, "give the folder of its images as SRC, or the right list")

    def _some_paths(self, count: int) -> list[bytes]:
        step = max(1, (len(self._lines) - self._start) // count)
        return [path for i in range(self._start, len(self._lines), step) if (path := self._path(i))]

    def _path(self, index: int) -> bytes:
        try:
            return self._columns.path(self.row(index)) or b""
        except ValueError:
            return b""

    def _place(self) -> tuple[Int32, NDArray[np.int64] | None, Int32, Int32, list[bytes]]:
        """Return the image of each line, the hash of its path if there is a `manner`, and labels and classes.

        Of the last: the lines (from `start` on) that have one, the place of each in the list of names, and that list.
        """
        images = np.full(len(self._lines) - self._start, NOT_FOUND, np.int32)
        hashes = None if self.manner is None else np.zeros(len(images), np.int64)
        codes: dict[bytes, int] = {}
        class_lines, class_codes = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for block in self._lines.blocks(self._start, self._separator, self._columns):
            part = slice(block.start - self._start, block.start - self._start + len(block.paths))
            images[part] = self.finder.find_all(self.manner, block.paths)
            if hashes is not None:
                hashes[part] = [hash(path) for path in block.paths]
            its_codes = np.array([codes.setdefault(name, len(codes)) for name in block.names], np.int32)
            class_lines.append((block.lines - self._start).astype(np.int32))
            class_codes.append(its_codes[block.codes])
        return images, hashes, np.concatenate(class_lines), np.concatenate(class_codes), list(codes)

    def _numbered_classes(
        self, lines: Int32, codes: Int32, names: list[bytes]
    ) -> tuple[tuple[str, ...] | None, tuple[int, str] | None]:
        """Return the classes if all labels are whole numbers, else None and a line with another label.

        Lines that are rejected do not count.
        """
        placed = self._images[lines] != NOT_FOUND
        lines, codes = lines[placed], codes[placed]
        order = np.argsort(codes, kind="stable")
        lines, codes = lines[order], codes[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        stops = np.append(starts[1:], len(codes))
        highest = -1
        odd: tuple[int, str] | None = None
        for group in np.argsort(lines[starts], kind="stable").tolist():
            code, found = int(codes[starts[group]]), map(int, lines[starts[group] : stops[group]])
            value = class_id(names[code])
            if (value is None and odd is not None) or (value is not None and value <= highest):
                continue
            index = next((line for line in found if self._is_sound(line)), NOT_FOUND)
            if index == NOT_FOUND:
                continue
            if value is None:
                odd = index + self._start, quoted_value(names[code])
            else:
                highest = value
            if odd is not None and highest >= 0:
                break
        if odd is not None or not 0 <= highest < MOST_CLASSES:
            return None, odd if highest >= 0 else None
        return tuple(str(i) for i in range(highest + 1)), None

    def _has_several(self, number: int) -> bool:
        """Return whether an image has several lines although one says all."""
        if self._columns.has_box or self._ends[number + 1] - self._ends[number] < 2:
            return False
        if number not in self._several:
            self._several[number] = len({self._lines[i] for i in self._lines_at(number)}) > 1
        return self._several[number]

    def _is_sound(self, line: int) -> bool:
        """Return whether a line (from `start` on) can be read and is not rejected for another line of its image."""
        number = int(self._images[line])
        if number in self._unlike or self._has_several(number):
            return False
        try:
            self._columns.read(self.row(line + self._start))
        except ValueError:
            return False
        return True
