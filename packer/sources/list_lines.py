"""Splits the lines of a list into columns: separator, quotes, count line and header."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packer.errors import UsageError
from packer.sources.columns import NAMES, Columns
from packer.sources.paths import extension_of, is_number
from packer.sources.points import flip_index_of
from packer.sources.tree import IMAGE_EXTENSIONS

TAB, COMMA, BLANKS, MIXED = b"\t", b",", b" ", b" ,"
SEPARATORS = (TAB, COMMA, BLANKS, MIXED)
"""MIXED: ``a.jpg 10,20,30,40,cat 50,60,70,80,dog``, as keras-yolo3 writes it."""
PATH_WORDS = frozenset({
    "path", "image", "img", "file", "filename", "filepath", "file_name", "file_path",
    "image_path", "img_path", "image_name", "img_name", "image_id", "name",
})  # fmt: skip
_END = {TAB: rb"\t", COMMA: rb",", BLANKS: rb"[ \t]+", MIXED: rb"[ \t,]+"}
_FIELD = {
    separator: re.compile(rb'[ \t]*"((?:[^"]|"")*)"[ \t]*?(%s|\Z)|([^%s]*)(%s|\Z)' % (end, stop, end))
    for separator, end in _END.items()
    for stop in [separator.replace(b" ", rb" \t")]
}
SAMPLE_LINES = 32

Finds = Callable[[bytes], bool]
"""Whether a path of the list names an image."""


def split_line(line: bytes, separator: bytes) -> list[bytes]:
    """Return the columns of a line without surrounding blanks; quotes follow the rules of CSV (RFC 4180).

    The csv module cannot do this: it reads no bytes, and allows neither blanks around quotes nor runs of separators.

    Raises:
        ValueError: A quote is not closed.
    """
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


def find_separator(lines: Sequence[bytes], columns: Columns | None, finds: Finds) -> bytes:
    """Return the separator that fits most of the lines; tab before comma before blanks."""
    if columns is None:
        halves = len(lines) / 2
        return next((s for s in (TAB, COMMA) if sum(s in line for line in lines) > halves), BLANKS)

    def sense(separator: bytes) -> int:
        points = 0
        for line in lines:
            try:
                cells = split_line(line, separator)
            except ValueError:
                continue
            if columns.fits(len(cells)):
                points += 2 if finds(columns.path(cells) or b"") else 1
        return points

    return max(SEPARATORS, key=sense)  # the first of equals


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


def read_opening(lines: Sequence[bytes], separator: bytes, columns: Columns | None, finds: Finds) -> Opening:
    """Recognize a line with the number of images, and a header line."""
    full = [(i, line) for i, line in enumerate(lines[: SAMPLE_LINES * 2]) if line.strip(b" \t")][:2]
    opening = Opening()
    if full and re.fullmatch(rb"[0-9]{1,12}", token := full[0][1].strip(b" \t,")) and not finds(token):
        opening = Opening(full[0][0] + 1, int(token))
        del full[0]
    if full:
        i, line = full[0]
        try:
            cells = split_line(line.removeprefix(b"#"), separator)
        except ValueError:
            return opening
        if _is_header(cells, columns, finds, counted=opening.count is not None) or (
            _is_unlike_data(cells, columns, finds) and _name_images(lines[i + 1 :], separator, columns, finds)
        ):
            return Opening(i + 1, opening.count, tuple(cells), i + 1)
    return opening


def _is_header(cells: Sequence[bytes], columns: Columns | None, finds: Finds, counted: bool) -> bool:
    if any(finds(cell) for cell in cells) or any(is_number(cell) for cell in cells):
        return False
    words = {_word(cell) for cell in cells}
    if columns is None:
        return bool(words & PATH_WORDS)
    place = columns.head.index("path")
    if counted or (len(cells) == len(columns.head) and _word(cells[place]) in PATH_WORDS):
        return True
    return len(cells) != len(columns.head) and bool(words & (NAMES | PATH_WORDS))


def _is_unlike_data(cells: Sequence[bytes], columns: Columns | None, finds: Finds) -> bool:
    """Return whether a line names no image, not even a missing one, and has no numbers or does not fit."""
    if any(extension_of(cell) in IMAGE_EXTENSIONS or finds(cell) for cell in cells):
        return False
    return (columns is not None and not columns.fits(len(cells))) or not any(is_number(cell) for cell in cells)


def _name_images(lines: Sequence[bytes], separator: bytes, columns: Columns | None, finds: Finds) -> bool:
    """Return whether one of these lines names an image."""
    for line in lines:
        try:
            cells = split_line(line, separator)
        except ValueError:
            continue
        if any(map(finds, cells if columns is None else [columns.path(cells) or b""])):
            return True
    return False


def header_columns(header: Sequence[bytes]) -> tuple[Columns, list[str]] | None:
    """Return the columns that a header names, and the names that are skipped; None if the header has no known names."""
    words = [_word(cell) for cell in header]
    paths = [i for i, word in enumerate(words) if word in PATH_WORDS]
    if not paths or not set(words) & (NAMES - {"path", "_"}):
        return None
    best = words.index("path") if "path" in words else paths[0]
    head = ["path" if i == best else w if w in NAMES - {"path"} else "_" for i, w in enumerate(words)]
    if "class" in head and not {"xmin", "cx"} & set(head):
        head = ["label" if name == "class" else name for name in head]
    skipped = [word for word, name in zip(words, head, strict=True) if name == "_" and word != "_"]
    return Columns(tuple(head)), skipped


def point_flip_index(columns: Columns, header: Sequence[bytes]) -> tuple[int, ...] | None:
    """Return the index of the mirror image of each point, if a header has names such as lefteye_x; else None."""
    if len(header) == len(columns.head) - 1 and columns.head[0] == "path":
        header = (b"", *header)  # as in CelebA
    if len(header) != len(columns.head) or columns.tail:
        return None
    names = [_word(cell) for cell, name in zip(header, columns.head, strict=True) if name == "x"]
    return flip_index_of([re.sub(r"(^x[_ .])|([_ .]?x$)", "", name) for name in names])


def guess_columns(rows: Sequence[Sequence[bytes]], where: str) -> Columns:
    """Return ``path label`` if that is the only reading. Otherwise raise UsageError with the possible readings."""
    counts = {len(cells) for cells in rows}
    if counts == {2}:
        return Columns(("path", "label"))
    numbers = all(is_number(cell) for cells in rows for cell in cells[1:])
    if len(counts) == 1 and numbers and (more := counts.pop() - 1) > 0 and more % 2 == 0:
        raise UsageError(where, f"a path and {more} numbers can be read in several ways", _readings(more))
    example = '--columns "path (xmin ymin xmax ymax class)*"'
    raise UsageError(where, "its columns are not clear", f"say what they are, for example {example}")


def _readings(numbers: int) -> str:
    if numbers == 2:
        return 'write --columns "path x y" for a point'
    k = numbers // 2
    points = f'--columns "path (x y)*{k}" for x1 y1 x2 y2, or --columns "path x*{k} y*{k}" for x1 x2 y1 y2'
    box = ', or --columns "path xmin ymin xmax ymax" or "path xmin ymin w h" for a box' if numbers == 4 else ""
    return f"write {points}{box}"


def _word(cell: bytes) -> str:
    return cell.decode("utf-8", "replace").strip().lower()
