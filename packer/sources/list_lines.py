"""The lines of a list and their cells: one line at a time, or the paths and classes of many lines at once.

A plain CSV, without blanks around cells and with orderly quotes, goes through pyarrow's reader, which takes a third of
the time. Everything else, such as a block with one odd line, is split here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.sources.list_cells import numbers_in_cells
from packer.sources.list_columns import LineColumns
from packer.sources.paths import (
    LARGEST,
)
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
NAME_AND_CLASS = re.compile(rb"Image(?:Id)?_(?:ClassId|Label),")
"""The header of tables of Kaggle whose first column is a path, _ and a class: Severstal's, that of clouds."""
BLOCK_BYTES = 4 * MIB
NEWLINE, QUOTE = b"\n"[0], b'"'[0]
OF_VIA = b"region_shape_attributes"
"""In the header of a table of VIA, whose cells are JSON."""
OF_LABEL_STUDIO = re.compile(rb"(?=[^\r\n]*\bannotation_id\b)(?=[^\r\n]*\blead_time\b)(?=[^\r\n]*\bannotator\b)")
"""The header of a table of Label Studio, whose cells are JSON, too."""


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


def has_json_cells(header: bytes) -> bool:
    """Return whether the cells of a table with this header are JSON: that of a tool, and no list."""
    return OF_VIA in header or OF_LABEL_STUDIO.match(header) is not None


@dataclass(slots=True, eq=False)
class Block:
    """The paths and classes of some lines."""

    start: int
    """Index of the first line."""
    paths: list[bytes]
    """That of each line, or of all lines each once; b"" for a line that is blank, invalid, or has no path."""
    names: list[bytes]
    """Labels and classes, which may repeat."""
    lines: NDArray[np.int64]
    """Index of the line of each label or class that is there."""
    codes: NDArray[np.int64]
    """Its place in `names`."""
    path_codes: NDArray[np.int32] | None = None
    """The place in `paths` of that of each line."""
    numbers: NDArray[np.float64] | None = None
    """The numbers of the box of each line, and the size of its image, if that is all it says; NaN: read it alone."""


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
        or (columns.tail and columns.plain_box is None)
        or len(columns.head) < 2
        or not _is_plain(data, separator)
    ):
        return None
    box = columns.plain_box
    table = box and _read_plain(stop - start, data, separator, columns, box)
    numbers = None if not box or table is None else _numbers_in(table, columns, box)
    table = table or _read_plain(stop - start, data, separator, columns, ())
    if table is None:
        return None
    found, lines, codes = list[bytes](), [], []
    for name in table.column_names:
        if name.startswith(("label", "class")):
            column: Any = table.column(name).combine_chunks().dictionary_encode()
            values = column.dictionary.to_pylist()
            there = np.array([bool(value) for value in values], np.bool_)
            its_codes = column.indices.to_numpy().astype(np.int64)
            places = np.flatnonzero(there[its_codes])
            lines.append(places + start)
            codes.append(its_codes[places] + len(found))
            found += values
    empty = np.zeros(0, np.int64)
    paths, path_codes = table.column(next(name for name in table.column_names if name.startswith("path"))), None
    if columns.has_objects:  # many lines are of one image
        encoded: Any = paths.combine_chunks().dictionary_encode()
        paths, path_codes = encoded.dictionary, encoded.indices.to_numpy()
    of_names = np.concatenate([empty, *lines]), np.concatenate([empty, *codes])
    return Block(start, paths.to_pylist(), found, *of_names, path_codes, numbers)


def _read_plain(count: int, data: bytes, separator: bytes, columns: LineColumns, box: Sequence[str]) -> Any:
    """Return paths, classes and numbers of boxes as pyarrow reads them; None if it refuses, or finds other lines."""
    import pyarrow as pa
    from pyarrow import csv

    names = [f"{name} {place}" for place, name in enumerate(columns.head)]
    numbers = {*box, "width", "height"} if box else set()
    types = {name: pa.float64() if name.split(" ")[0] in numbers else pa.binary() for name in names}
    wanted = [name for name in names if name.split(" ")[0] in {"path", "label", "class", *numbers}]
    wanted += [names[columns.cell]] if box and columns.cell is not None else []
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, column_names=names, block_size=2 * len(data) + 1024),
            csv.ParseOptions(delimiter=separator.decode(), ignore_empty_lines=False),
            csv.ConvertOptions(include_columns=wanted, column_types=types),
        )
    except pa.ArrowInvalid:
        return None
    return table if len(table) == count else None


def _numbers_in(table: Any, columns: LineColumns, box: Sequence[str]) -> NDArray[np.float64] | None:
    """Return `Block.numbers`; None if there are none."""
    found = {name.split(" ")[0]: table.column(name).to_numpy() for name in table.column_names if "path" not in name}
    if columns.cell is not None:
        boxes = numbers_in_cells(table.column(f"_ {columns.cell}"))
        if boxes is None:
            return None
    else:
        boxes = np.stack([found[name] for name in box], axis=1)
    boxes[~(np.abs(boxes) <= LARGEST)] = np.nan
    low, high = boxes[:, :2], boxes[:, 2:]
    if box[2] == "w":
        high[high < 0] = np.nan
        low, high = (low, low + high) if box[0] == "xmin" else (low - high / 2, low + high / 2)
    sizes = [found[name] for name in ("width", "height") if name in found]
    sizes = [np.where((size == np.floor(size)) & (np.abs(size) <= LARGEST), size, np.nan) for size in sizes]
    return np.column_stack([low, high, *sizes])


def _is_plain(data: bytes, separator: bytes) -> bool:
    """Return whether no cell has blanks around it, and each quote begins or ends a cell of one line."""
    ends = (separator, b"\n")
    blanks = (b" ", b"\t".replace(separator, b" "))
    has_blanks = any(end + blank in data or blank + end in data for end in ends for blank in blanks)
    if data[:1] in blanks or data[-1:] in blanks or b"\0" in data:
        return False
    if b'"' not in data:
        return not has_blanks
    values = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    quotes = np.flatnonzero(values == QUOTE)
    if has_blanks:
        is_end, is_blank = ((values == ord(a)) | (values == ord(b or a)) for a, b in (ends, blanks))
        places = np.flatnonzero((is_end[1:] & is_blank[:-1]) | (is_blank[1:] & is_end[:-1]))
        if not (np.searchsorted(quotes, places, "right") % 2).all():  # outside a pair of quotes
            return False
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
    if NAME_AND_CLASS.match(data):
        data = re.sub(rb"(?m)^([^,\n]*)_([^,_\n]*)(?=,)", rb"\1,\2", data)
    return data
