"""The lines of each image of a list, and the numbers of its boxes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, plural, printable
from packer.sources.list_columns import LineColumns
from packer.sources.list_lines import Lines, split_line
from packer.sources.path_finder import NOT_FOUND, Manner, PathFinder
from packer.sources.paths import IMAGE_EXTENSIONS, MOST_CLASSES, as_text, class_id, extension_of, is_utf8, quoted_value

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
        self._numbers: NDArray[np.float64] = np.zeros((0, 4))
        """Of each line, as in a `Block`."""
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
        self._codes = np.zeros(0, np.int32)
        self._sound = np.zeros(len(self._tree), np.bool_)
        """Which images have lines that `boxes_of` can take together."""
        if len(self._numbers) and not self._unlike:
            self._collect_boxes(class_lines, class_codes)

    @property
    def found(self) -> int:
        """Number of lines that name an image."""
        return len(self._images) - int(self._ends[0])

    @property
    def images_found(self) -> int:
        """Number of images that lines name."""
        return int(np.count_nonzero(np.diff(self._ends)))

    def lines_of(self, image: bytes) -> list[int]:
        """Return the indices of an image's lines, in order."""
        number = self._number(image)
        if number < 0:
            return []
        self._next = number + 1
        return self._lines_at(number)

    def _number(self, image: bytes) -> int:
        """Return the number of an image; NOT_FOUND for one that is not in the tree."""
        number = self._next  # images are asked for in their order
        if number >= len(self._tree) or self._tree[number] != image:
            number = bisect_left(self._tree, image)
            if number >= len(self._tree) or self._tree[number] != image:
                return NOT_FOUND
        return number

    def boxes_of(self, image: bytes) -> tuple[list[Any], list[int], Any] | None:
        """Return boxes, numbers of their classes in `names`, and size of an image, if its lines say nothing else.

        None if they must be read one by one: they say more, are wrong, repeat each other, or differ in the size.
        """
        number = self._number(image)
        if number < 0 or not self._sound[number]:
            return None
        at = slice(self._ends[number], self._ends[number + 1])
        numbers = self._numbers[at]
        boxes = list(map(tuple, numbers[:, :4].tolist()))
        if not boxes or len({*boxes}) < len(boxes):
            return None
        return boxes, self._codes[at].tolist(), tuple(map(int, numbers[0, 4:].tolist()))

    def _collect_boxes(self, class_lines: Int32, class_codes: Int32) -> None:
        """Put the numbers of boxes and their classes in the order of the images."""
        codes = np.full(len(self._order), -1, np.int32)
        codes[class_lines] = class_codes
        if (self._order[1:] > self._order[:-1]).all():  # they are already, which saves a copy of all
            self._codes = codes
        else:
            self._codes, self._numbers = codes[self._order], self._numbers[self._order]
        bad = np.isnan(self._numbers).any(axis=1)
        if "class" in self._columns.head:
            bad |= self._codes < 0
        images, sizes = self._images[self._order], self._numbers[:, 4:]
        differ = (images[1:] == images[:-1]) & (sizes[1:] != sizes[:-1]).any(axis=1)
        sound = np.ones(len(self._tree) + 1, np.bool_)  # the last is that of lines of no image
        sound[images[bad]] = sound[images[1:][differ]] = False
        self._sound = sound[:-1]

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
            found = self.finder.find_all(self.manner, block.paths)
            of_line: Any = slice(None) if block.path_codes is None else block.path_codes
            part = slice(block.start - self._start, block.start - self._start + len(found[of_line]))
            images[part] = found[of_line]
            if block.numbers is not None:
                if not len(self._numbers):
                    self._numbers = np.full((len(images), block.numbers.shape[1]), np.nan)
                self._numbers[part] = block.numbers
            if hashes is not None:
                hashes[part] = np.array([hash(path) for path in block.paths], np.int64)[of_line]
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
        if self._columns.has_objects or self._ends[number + 1] - self._ends[number] < 2:
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
