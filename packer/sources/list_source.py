"""A list: a text or CSV file with lines for images, its columns given by ``--columns`` or by its header.

Only the place of each line and the number of its image are kept; a line is parsed when its image is annotated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from packer.errors import BadLabel, NoImage, NoLabel, UsageError, option, plural, printable
from packer.model.annotation import RawAnnotation
from packer.sources.by_stem import Matches
from packer.sources.list_cells import looks_like, read_runs
from packer.sources.list_columns import NO_CLASS, LineColumns, ListRow
from packer.sources.list_header import names_images, read_layout
from packer.sources.list_lines import COMMA, Lines, as_lines, rows_of
from packer.sources.list_table import ListTable
from packer.sources.path_finder import NOT_FOUND, PathFinder
from packer.sources.paths import (
    LIST_EXTENSIONS,
    FolderSplit,
    are_splits,
    as_bytes,
    as_text,
    class_id,
    extension_of,
    file_of,
    files_beside,
    folder_of,
    folder_splits,
    in_order,
    quoted_value,
    splits_of,
    stem_of,
)
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, image_size, lines_of, needed, read_file, read_head
from packer.sources.yolo_config import is_not_a_list
from packer.stores import joined

MOST_LIST_BYTES = 2048 * MIB
MOST_CANDIDATES = 64
SPLITS = {"train": b"0", "val": b"1", "valid": b"1", "validation": b"1", "test": b"2"}
"""How CelebA's list_eval_partition numbers the splits."""
SHOWN_LINES, MOST_SPLITS = 3, 8
MOST_NAMES_BYTES = 16 * MIB
FEWEST_OWN, OWN = 24, 0.9
"""Classes of which so many are a mistake, if there are more than this share of the images."""
OPEN_IMAGES_ID = re.compile(r"/[mgt]/\w+")
DESCRIPTIONS = b"class-descriptions"
"""In the name of the file in which Open Images gives the names of its classes."""
KERAS_NAMES = b"_classes.txt"
"""Beside a list of Roboflow's for keras-yolo: the names of the classes in the order of their ids."""


class ListSource(BaseSource):
    """Labels from a list.

    Raises:
        UsageError: The file does not exist, its columns are not clear, or none of its paths leads to an image.
    """

    takes_file = True

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        file = options.file or ""
        self._name = printable(file.rpartition("/")[2])
        path = file_of(tree, "list", file)
        with needed(file):
            self._lines = Lines(as_lines(read_file(tree, path, MOST_LIST_BYTES), file))
        self._tree = tree
        self.label_files = {tree.below(path)}
        folder = folder_of(path)
        finder = PathFinder(tree, folder)
        self._layout = layout = read_layout(self._lines, finder, options.columns, self._name)
        self._columns = layout.columns
        self.notes = list(layout.notes)
        self.flip_index, self.tags = layout.flip_index, layout.tags
        try:
            self._table = ListTable(self._lines, layout.opening.lines, layout.columns, layout.separator, finder)
        except UsageError as error:
            raise UsageError(self._name, error.problem, error.next_step) from None
        if options.columns is None:
            self._refuse_as_many_classes()
        self.classes: tuple[str, ...] | None = self._table.classes
        self._display = self._display_names(tree, folder)
        self._texts = [self._text(name) for name in self._table.names]
        self._add_notes()
        if "mask" in self._columns.head and (tree.below(path) or path) not in tree.mask_lists:
            self.notes.append(f"{self._name}: the masks that it names are not packed")
        self._selects = not options.by_auto
        self.has_splits = "split" in self._columns.head
        if options.split is not None and not self.has_splits and splits_of(tree):
            with suppress(UsageError):  # no folder is of that split
                self.of_split, self.has_splits = FolderSplit(tree, options.split), True
        wanted = options.split if self.of_split is None else None
        self._split = None if wanted is None else self._find_split(wanted)
        if self.has_splits and options.split is None and (values := sorted(self._split_values())):
            few = f"{', '.join(map(printable, values[:MOST_SPLITS]))}{', ...' * (len(values) > MOST_SPLITS)}"
            self.notes.append(f"{self._name}: the splits in its column are packed together: {few} (--split packs one)")
        self._size_of = b"", (0, 0)
        """An image whose header was read, and its size."""
        self._repeats: dict[bytes, int] = {}
        """Image -> number of its lines that repeat another one."""

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the lists near the root that name images with labels."""
        found = []
        finder = PathFinder(tree, tree.root)
        for path in lists_near(tree):
            if names_images(tree, path, finder.at(joined(tree.root, folder_of(path)))):
                file = as_text(joined(tree.root, path))
                found.append(Choice(f"list:{file}", f"{printable(path)} names images and has labels for them"))
        return found

    @staticmethod
    def columns_of(tree: Tree, path: bytes, columns: str | None) -> LineColumns | None:
        """Return the columns of the list at an absolute path by its first lines; None if they are not clear."""
        with suppress(BadLabel, UsageError):
            head = as_lines(read_head(tree, path, MIB), "")
            lines = Lines(head[: head.rfind(b"\n") + 1] if len(head) >= MIB else head)
            return read_layout(lines, PathFinder(tree, folder_of(path)), columns, "").columns
        return None

    def masks(self) -> Matches:
        """Return the masks that the lines name, of a list with such a column that was opened with them in the tree."""
        finder, found = self._table.finder, Matches(step="correct the list, or add the mask")
        named: dict[bytes, tuple[bytes, list[int]]] = {}
        for image in finder.images:
            lines = self._table.lines_of(image)
            if cells := {self._cell("mask", line) for line in lines} - {b""}:
                named[image] = min(cells), lines
                if len(cells) > 1:
                    found.refused[image] = f"has several masks in {self._where(lines)}"
        paths = [path for path, _ in named.values()]
        is_exact = any(finder.find(path) != NOT_FOUND for path in paths)
        manner = None if is_exact or (way := finder.manner(paths)) is None else way[0]
        numbers = finder.find_all(manner, paths).tolist()
        for (image, (path, lines)), number in zip(named.items(), numbers, strict=True):
            if number < 0:
                found.refused[image] = f"has the mask {quoted_value(path)} in {self._where(lines)}, which is not there"
            elif image not in found.refused:
                found.label_of[image] = finder.images[number]
        return found

    @classmethod
    def splits(cls, tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the values of the column of splits, if all are names of splits; without one, the folders of splits."""
        source = cls(tree, options)
        if not source.has_splits:
            listed = [image for image in tree.images if source.left_out(image) is None]
            return folder_splits(replace(tree, images=listed))
        values = source._split_values()
        if values and values <= set(SPLITS.values()):
            return in_order(name for name in ("train", "val", "test") if SPLITS[name] in values)
        names = [as_text(value) for value in values]
        return in_order(names) if are_splits(names) else ()

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is of the chosen split (True for every image without ``--split``).

        A column of the list says so, or else the image's folder.
        """
        if self._split is None:
            return super().in_split(image)
        lines = self._table.lines_of(image)
        return bool(lines) and self._cell("split", lines[0]) == self._split

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not packed that the list does not name; None for all if ``auto`` chose the list."""
        return f"not in {self._name}" if self._selects and not self._table.lines_of(image) else None

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the annotation in the image's lines.

        Raises:
            NoLabel: The list does not name the image.
            BadLabel: A line is invalid, or lines contradict one another; the error names file, line and value.
        """
        found, lines = self._table.boxes_of(image), self._table.lines_of(image)
        if not lines:
            next_step = "add a line for it, or pass --labels=list:FILE to pack only the images that it names"
            if self._columns.has_objects:
                next_step = (
                    f"{option('missing-labels', 'empty')} packs it without objects, --labels=list:FILE leaves it out"
                )
            raise NoLabel(image, f"is not in {self._name}", next_step)
        if found is not None:
            boxes, codes, size = found
            names = [self._texts[code] for code in codes] if "class" in self._columns.head else [NO_CLASS] * len(boxes)
            return RawAnnotation(
                origin=self._where(lines),
                boxes=tuple(boxes),
                box_labels=tuple(names),
                relative=self._layout.relative,
                image_size=size or None,
            )
        row = self._row(lines[0], image) if len(lines) == 1 else self._joined(image, lines)
        label, box_labels = row.label, row.box_labels
        label = None if label is None else self._text(label)
        box_labels = None if box_labels is None else tuple(map(self._text, box_labels))
        return RawAnnotation(
            origin=self._where(lines),
            label=label,
            boxes=row.boxes,
            box_labels=box_labels,
            rles=row.masks or None,
            obb=row.obb,
            landmarks=row.landmarks,
            tags=row.tags,
            value=row.value,
            box_fields=row.box_fields,
            extras={} if row.text is None else {"text": row.text},
            relative=self._layout.relative,
            image_size=row.image_size,
        )

    def _text(self, name: str) -> str:
        """Return the name of a class that the list calls so: 07 is class 7."""
        number = None if self.classes is None else class_id(as_bytes(name))
        name = name if number is None else str(number)
        return self._display.get(name, name)

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the lines that name no image of the source; of several with one path, the first."""
        if self._repeats:
            what = plural(sum(self._repeats.values()), "line repeats", "lines repeat")
            self.notes.append(f"{self._name}: {what} another line of the same image; each is counted once")
        seen = set[bytes]()
        bad = [index for index in self._table.unplaced() if self._lines[index].strip(b" \t")]
        found = self._table.found + len(bad)
        if self._layout.opening.count not in (None, found):
            says = f"says {plural(self._layout.opening.count or 0, 'image')}, but"
            problem = f"{says} {plural(found, 'line follows', 'lines follow')}"
            yield BadLabel(self._where([0]), problem, "correct the number, or complete the list")
        for index in bad:
            try:
                path = self._columns.path(self._table.row(index))
                if path is None:
                    raise ValueError("names no image")
            except ValueError as error:
                yield BadLabel(self._where([index]), str(error), "fix the line")
                continue
            if path not in seen:
                seen.add(path)
                yield self._no_image(index, path)

    def _no_image(self, index: int, path: bytes) -> NoImage | BadLabel:
        where, finder = self._where([index]), self._table.finder
        if self._table.manner is None and finder.escapes(path):
            return BadLabel(where, f"{quoted_value(path)} is outside the source folder", "move it into the source")
        if self._table.manner is not None and len(alike := finder.alike(path)) > 1:
            problem = f"{quoted_value(path)} may be {printable(alike[0])} or {printable(alike[1])}"
            return BadLabel(where, problem, "write the whole path")
        return NoImage(where, f"no image {quoted_value(path)}", "add the image, or remove the line")

    def _where(self, lines: Sequence[int]) -> str:
        """Return file and line: ``a.csv:7``, ``a.csv:7-9``, or ``a.csv:7,9,12 and 4 more``."""
        numbers = [index + 1 for index in lines]
        if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{self._name}:{numbers[0]}-{numbers[-1]}"
        more = f" and {len(numbers) - SHOWN_LINES} more" if len(numbers) > SHOWN_LINES else ""
        return f"{self._name}:{','.join(map(str, numbers[:SHOWN_LINES]))}{more}"

    def _row(self, index: int, image: bytes) -> ListRow:
        try:
            row = self._columns.read(self._table.row(index))
            return self._with_masks(row, image) if row.masks else row
        except ValueError as error:
            raise BadLabel(self._where([index]), str(error), "fix the line") from None

    def _with_masks(self, row: ListRow, image: bytes) -> ListRow:
        """Return a line with the boxes and masks that its run lengths are in their image."""
        if row.image_size is None and self._size_of[0] != image:
            self._size_of = image, image_size(self._tree, image)
        size, by_rows = row.image_size or self._size_of[1], "rle:rows" in self._columns.head
        boxes, masks = zip(*(read_runs(cell, size, by_rows) for cell in row.masks or ()), strict=True)
        return replace(row, boxes=boxes, masks=masks)

    def _joined(self, image: bytes, lines: Sequence[int]) -> ListRow:
        """Return what several lines say of one image: all their boxes, and else the same."""
        if self._table.is_ambiguous(image):
            raise BadLabel(image, f"is meant by different paths: {self._where(lines)}", "write whole paths")
        texts = {self._lines[index]: index for index in reversed(lines)}
        if len(texts) < len(lines):
            self._repeats[image] = len(lines) - len(texts)
        rows = [self._row(index, image) for index in sorted(texts.values())]
        first = rows[0]
        if not self._columns.has_objects and len(rows) > 1:
            step = f'keep one, or write the columns of boxes: they were read as --columns "{self._columns.text}"'
            raise BadLabel(image, f"appears in several lines: {self._where(lines)}", step)
        for index, row in zip(sorted(texts.values()), rows, strict=True):
            for name in ("label", "landmarks", "tags", "value", "text", "image_size"):
                if getattr(row, name) != getattr(first, name):
                    problem = f"gives another {name.replace('_', ' ')} than line {lines[0] + 1}"
                    raise BadLabel(self._where([index]), problem, "fix one of them")
        if len(rows) == 1:
            return first
        return replace(
            first,
            boxes=None if first.boxes is None else tuple(box for row in rows for box in row.boxes or ()),
            obb=None if first.obb is None else tuple(corners for row in rows for corners in row.obb or ()),
            masks=None if first.masks is None else tuple(mask for row in rows for mask in row.masks or ()),
            box_labels=tuple(name for row in rows for name in row.box_labels or ()),
            box_fields={name: tuple(v for row in rows for v in row.box_fields[name]) for name in first.box_fields},
        )

    def _refuse_as_many_classes(self) -> None:
        """Raise UsageError if nearly every image has a class of its own: they are something else."""
        table, columns = self._table, self._columns
        images, count = table.images_found, len(table.names)
        if "label" not in columns.head or count < FEWEST_OWN or count <= OWN * images or table.found > images:
            return
        cells = list(map(as_bytes, table.names))
        what, word = looks_like(cells)
        word = "label" if word in columns.head else word
        head = [word if name == "label" else name for name in columns.head]
        problem = f"{plural(count, 'class', 'classes')} for {plural(images, 'image')}"
        problem += f", such as {quoted_value(cells[0])}: they look like {what}"
        option_text = f'{option("columns")}="{columns.text}"'
        step = f'write {option("columns")}="{" ".join(head)}", or {option_text} if they are classes'
        raise UsageError(self._name, problem, step if word != "label" else f"if they are classes, write {option_text}")

    def _add_notes(self) -> None:
        table = self._table
        if table.manner is not None:
            how = f"paths lead to no image as written, and are compared by {table.manner.describe()}"
            self.notes.append(f"{self._name}: {how}: {table.example}")
        if table.odd is not None:
            index, name = table.odd
            self.notes.append(
                f"{self._where([index])}: {name} is not a whole number, so that the classes are not numbered by the "
                "list but by the order of their names"
            )
        if self.classes is None and _are_several_classes(table.names):
            what = "labels seem to be several classes in one cell, and each combination is a class"
            self.notes.append(
                f"{self._name}: {what}; for several classes of an image, write a column of 0 and 1 for each"
            )
        if self._display:
            names = KERAS_NAMES.decode() if self.classes else f"{DESCRIPTIONS.decode()}*.csv"
            self.notes.append(f"{self._name}: names of classes are from {names}")

    def _cell(self, column: str, index: int) -> bytes:
        try:
            cells = self._table.row(index)
        except ValueError:
            return b""
        place = self._columns.head.index(column)
        return cells[place] if place < len(cells) else b""

    def _find_split(self, split: str) -> bytes | None:
        """Return the value of the split column for ``--split``; None if the list has none."""
        if "split" not in self._columns.head:
            self.notes.append(f"{self._name}: has no column of splits; --split {split} does not choose lines")
            return None
        values = self._split_values()
        wanted = as_bytes(split)
        alike = [value for value in sorted(values) if value.lower() == wanted.lower()]
        if wanted in values or alike:
            return wanted if wanted in values else alike[0]
        if values <= set(SPLITS.values()) and SPLITS.get(split) in values:
            return SPLITS[split]
        few = ", ".join(map(printable, sorted(values)[:MOST_SPLITS]))
        raise UsageError(self._name, f"has no split {printable(split)}", f"its splits are {few}")

    def _split_values(self) -> set[bytes]:
        """Return the values of the column of splits."""
        return {self._cell("split", index) for index in range(self._layout.opening.lines, len(self._lines))} - {b""}

    def _display_names(self, tree: Tree, folder: bytes) -> dict[str, str]:
        """Return the names of classes that are ids of Open Images, from the file beside the list that has them."""
        names = self._table.names
        if self.classes is not None and (file := joined(folder, KERAS_NAMES)) in files_beside(tree, folder):
            lines = [as_text(line.strip()) for line in lines_of(read_file(tree, file, MOST_NAMES_BYTES))]
            if len(self.classes) <= len(lines) == len({*lines}) and all(lines):
                self.classes = tuple(lines)
                return {str(i): name for i, name in enumerate(lines)}
        if self.classes is not None or not names or not all(map(OPEN_IMAGES_ID.fullmatch, names)):
            return {}
        found: dict[str, str] = {}
        for file in files_beside(tree, folder):
            if DESCRIPTIONS not in file.rpartition(b"/")[2]:
                continue
            rows = rows_of(lines_of(read_file(tree, file, MOST_NAMES_BYTES)), COMMA)
            found |= {as_text(row[0]): as_text(row[1]) for row in rows if len(row) == 2}
        if found.keys() >= set(names):
            return found
        hint = f"put {DESCRIPTIONS.decode()}-boxable.csv beside the list for their names"
        self.notes.append(f"{self._name}: classes are ids of Open Images; {hint}")
        return {}


def _are_several_classes(names: Sequence[str]) -> bool:
    """Return whether names of classes seem to be several in one cell: their parts are fewer than they are.

    ``No Finding`` is one class beside ``Mass|Nodule``, so that each separator is tried; no class has a | in its name.
    """
    parts = [{part.strip() for name in names for part in re.split(mark, name)} for mark in (r"[\s|;,]+", "[;,]")]
    return any("|" in name for name in names) or any(len(every) < len(names) for every in parts)


def lists_near(tree: Tree) -> Iterator[bytes]:
    """Yield the files near the root that may be lists."""
    lists = [
        path
        for path in tree.files
        if path.count(b"/") <= 1 and extension_of(path) in LIST_EXTENSIONS and not is_not_a_list(path)
    ]
    images = {stem_of(image) for image in tree.images} if lists else set[bytes]()
    return islice((path for path in lists if stem_of(path) not in images), MOST_CANDIDATES)
