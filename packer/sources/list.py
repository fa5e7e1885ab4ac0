"""A list: a text or CSV file with one image per line, its columns given by ``--columns``."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from itertools import islice

from packer.errors import BadLabel, NoImage, NoLabel, PackerError, UsageError, plural, printable
from packer.sources.base import LOOKS, Choice, SourceOptions, Tree
from packer.sources.columns import Columns, parse_columns
from packer.sources.list_lines import (
    COMMA,
    MIXED,
    SAMPLE_LINES,
    TAB,
    Opening,
    find_separator,
    guess_columns,
    header_columns,
    point_flip_index,
    read_opening,
    split_line,
)
from packer.sources.paths import PathFinder, as_bytes, as_text, class_id, extension_of, folder_of, quoted, stem_of
from packer.sources.tree import MIB, lines_of, read_file, read_head
from packer.sources.yolo_config import NAME_FILES
from packer.types import RawAnnotation

MOST_LIST_BYTES = 2048 * MIB
MOST_LINE_BYTES = MIB
LIST_EXTENSIONS = frozenset({b".txt", b".csv", b".tsv", b".lst", b".list"})
MOST_CANDIDATES = 64
CELLS = 64
"""Number of columns at each end of a line searched for a path, to recognize a list."""


class ListSource:
    """Labels from a list. Its paths are looked up once; a line is parsed when its image is annotated.

    Raises:
        UsageError: The file does not exist, or its columns are not clear.
    """

    takes_file = True

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        file = options.file or ""
        self._name = printable(file.rpartition("/")[2])
        self._data, folder = _read(file)
        self.label_files = {os.path.relpath(os.path.realpath(as_bytes(file)), tree.root)}
        self._starts = array("Q")
        self._cut()
        self._finder = PathFinder(tree, folder)
        self.notes: list[str] = []
        if options.split is not None:
            self.notes.append(f"{self._name}: a list has no splits; --split {options.split} does not choose lines")
        self._columns, self._separator, self._opening = self._layout(options.columns)
        self.flip_index = point_flip_index(self._columns, self._opening.header)
        self._line_of: dict[bytes, int] = {}
        """Image -> index of its first line."""
        self._repeats: dict[bytes, list[int]] = {}
        """Image -> indices of its further lines."""
        self._bad: list[NoImage | BadLabel] = []
        self._scan()
        self.classes: tuple[str, ...] | None = self._numbered_classes()

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the lists near the root that name images with labels."""
        images = {stem_of(image) for image in tree.images}
        candidates = (
            path
            for path in tree.files
            if path.count(b"/") <= 1
            and extension_of(path) in LIST_EXTENSIONS
            and path.rpartition(b"/")[2].lower() not in NAME_FILES
            and stem_of(path) not in images
        )
        found = []
        for path in islice(candidates, MOST_CANDIDATES):
            folder = tree.root + b"/" + folder_of(path) if b"/" in path else tree.root
            if _names_images(tree, path, PathFinder(tree, folder)):
                file = as_text(tree.root.rstrip(b"/") + b"/" + path)
                found.append(Choice(f"list:{file}", f"{printable(path)} names images and has labels for them"))
        return found

    def in_split(self, image: bytes) -> bool:
        """Return True: a list has no splits."""
        return True

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the annotation in the image's line.

        Raises:
            NoLabel: The list does not name the image.
            BadLabel: The line is invalid; the error names file, line and value.
        """
        index = self._line_of.get(image)
        if index is None:
            raise NoLabel(image, f"is not in {self._name}", "add a line for it, or remove the image")
        if image in self._repeats:
            lines = ", ".join(self._where(i) for i in (index, *self._repeats[image]))
            raise BadLabel(image, f"appears in several lines: {lines}", "keep one")
        try:
            row = self._columns.read(split_line(self._line(index), self._separator))
        except ValueError as error:
            raise self._error(index, str(error)) from None
        label, box_labels = row.label, row.box_labels
        if self.classes is not None:  # 07 is class 7
            label = None if label is None else str(int(label))
            if box_labels is not None:
                box_labels = tuple(str(int(name)) for name in box_labels)
        return RawAnnotation(
            origin=self._where(index), label=label, boxes=row.boxes, box_labels=box_labels, landmarks=row.landmarks
        )

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield lines that do not name an image of the source."""
        return iter(self._bad)

    def _cut(self) -> None:
        """Store the start of each line: 8 bytes per line, instead of 40 or more for a list of bytes objects."""
        start = 0
        while start < len(self._data):
            self._starts.append(start)
            end = self._data.find(b"\n", start)
            start = len(self._data) if end < 0 else end + 1
        self._starts.append(len(self._data) + (not self._data.endswith(b"\n")))

    def _line(self, index: int) -> bytes:
        return self._data[self._starts[index] : self._starts[index + 1] - 1]

    def _where(self, index: int) -> str:
        return f"{self._name}:{index + 1}"

    def _error(self, index: int, problem: str, next_step: str = "fix the line") -> BadLabel:
        return BadLabel(self._where(index), problem, next_step)

    def _layout(self, columns_text: str | None) -> tuple[Columns, bytes, Opening]:
        """Return the columns, the separator, and the lines before the data."""
        columns = None if columns_text is None else parse_columns(columns_text)
        first = [self._line(i) for i in range(min(len(self._starts) - 1, SAMPLE_LINES * 2))]
        sample = [line for line in first if line.strip(b" \t")][:SAMPLE_LINES]
        if not sample:
            raise UsageError(self._name, "is empty", "give a list with one image per line")

        def found(path: bytes) -> bool:
            return self._finder.find(path) is not None

        separator = find_separator(sample, columns, found)
        opening = read_opening(first, separator, columns, found)
        if opening.header:
            self.notes.append(f"{self._name}:{opening.header_line} is taken as a header")
        if columns is None and (named := header_columns(opening.header)) is not None:
            columns, skipped = named
            columns = parse_columns(" ".join(columns.head))  # checks that they go together
            if skipped:
                self.notes.append(f"{self._name}: columns that are skipped: {printable(', '.join(skipped))}")
        if columns is None:
            rows = []
            for line in first[opening.lines :]:
                try:
                    rows += [split_line(line, separator)] if line.strip(b" \t") else []
                except ValueError:
                    continue  # a bad line, reported as such
            columns = guess_columns(rows, self._name)
        return columns, separator, opening

    def _scan(self) -> None:
        """Look up every path."""
        lines = 0
        for index in range(self._opening.lines, len(self._starts) - 1):
            line = self._line(index)
            if not line.strip(b" \t"):
                continue
            lines += 1
            try:
                if len(line) > MOST_LINE_BYTES:
                    raise ValueError(f"has {len(line)} bytes, more than {MOST_LINE_BYTES}")
                self._place(index, split_line(line, self._separator))
            except ValueError as error:
                self._bad.append(self._error(index, str(error)))
        if self._opening.count not in (None, lines):
            problem = (
                f"says {plural(self._opening.count or 0, 'image')}, but {plural(lines, 'line follows', 'lines follow')}"
            )
            self._bad.insert(0, self._error(0, problem, "correct the number, or complete the list"))

    def _numbered_classes(self) -> tuple[str, ...] | None:
        """Return the classes if all labels are whole numbers, else None. Rejected lines do not count."""
        highest = -1
        odd: tuple[int, bytes] | None = None
        for image, index in self._line_of.items():
            if image in self._repeats:
                continue
            cells = split_line(self._line(index), self._separator)
            for cell in self._columns.classes(cells):
                value = class_id(cell)
                if value is None:
                    if odd is None and self._is_sound(cells):
                        odd = (index, cell)
                elif value > highest and self._is_sound(cells):
                    highest = value
        if odd and highest >= 0:
            self.notes.append(
                f"{self._where(odd[0])}: {quoted(odd[1])} is not a whole number, so that the classes are not numbered "
                "by the list but by the order of their names"
            )
        return tuple(str(i) for i in range(highest + 1)) if highest >= 0 and not odd else None

    def _is_sound(self, cells: list[bytes]) -> bool:
        try:
            self._columns.read(cells)
        except ValueError:
            return False
        return True

    def _place(self, index: int, cells: list[bytes]) -> None:
        """Store the line for its image, or the reason why it has none."""
        path = self._columns.path(cells)
        if path is None:
            raise ValueError("names no image")
        image = self._finder.find(path)
        if image is None:
            if self._finder.escapes(path):
                problem = f"{quoted(path)} is outside the source folder"
                self._bad.append(self._error(index, problem, "move it into the source"))
            else:
                problem = f"there is no image {quoted(path)}"
                self._bad.append(NoImage(self._where(index), problem, "add the image, or remove the line"))
        elif image in self._line_of:
            self._repeats.setdefault(image, []).append(index)
        else:
            self._line_of[image] = index


def _read(file: str) -> tuple[bytes, bytes]:
    """Return the list with LF line ends and in UTF-8, and the absolute path of its folder."""
    path = os.path.realpath(as_bytes(file) if file else b"")
    if not file or not os.path.isfile(path):
        raise UsageError(f"--labels list:{file}", "there is no such file", "name the list, relative to this folder")
    try:
        data = read_file(b"/", path, MOST_LIST_BYTES)
    except PackerError as error:
        raise UsageError(file, error.problem, error.next_step) from None
    return as_lines(data, file), os.path.dirname(path)


def as_lines(data: bytes, file: str) -> bytes:
    """Return the bytes of a list with LF line ends and in UTF-8. Raise UsageError if it is not text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            data = data.decode("utf-16").encode("utf-8")
        except ValueError:
            raise UsageError(file, "begins like UTF-16 but is not", "save it as UTF-8") from None
    if b"\r" in data or data.startswith(b"\xef\xbb\xbf"):
        data = b"\n".join(lines_of(data))
    if b"\0" in data[:MIB]:
        raise UsageError(file, "is not a text file", "name the list")
    return data


def _names_images(tree: Tree, path: bytes, finder: PathFinder) -> bool:
    """Return whether one of the first lines names an image and has other columns; a list of paths alone is a split."""
    try:
        data = read_head(tree.root, path, MIB)
    except BadLabel:
        return False
    for line in lines_of(data)[:LOOKS]:
        for separator in (TAB, COMMA, MIXED):
            try:
                cells = split_line(line, separator)
            except ValueError:
                continue
            looked_at = [*cells[:CELLS], *cells[CELLS:][-CELLS:]]
            if len(cells) > 1 and any(finder.find(cell) is not None for cell in looked_at):
                return True
    return False
