"""YOLO: one TXT file per image, in ``labels/`` with the image's relative path, or beside the image.

One row per object: ``class cx cy w h``, ``class x1 y1 ... xm ym`` (a polygon of m >= 3 points), or, if data.yaml has
``kpt_shape: [k, dims]``, ``class cx cy w h`` and k times ``x y [visibility]``. A row of four points is an oriented box
if data.yaml says ``task: obb``, or with ``--labels yolo-obb``. All coordinates are fractions of the image's width and
height. (Format: Ultralytics, "Datasets overview", detect/segment/pose/obb.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from packer.errors import BadLabel, NoImage, UsageError, plural, printable
from packer.model.annotation import Point, RawAnnotation
from packer.sources.box_corners import Box, corners, extent
from packer.sources.by_name import VISIBLE, Keypoint
from packer.sources.by_stem import ByStemSource, Matches, choice_by_stem
from packer.sources.paths import (
    MOST_CLASSES,
    are_splits,
    as_text,
    class_id,
    extension_of,
    folder_of,
    folder_splits,
    in_order,
    number,
    quoted_value,
    spread,
    stem_of,
)
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.yolo_config import NAME_FILES, Split, YoloConfig, find_split, read_config

BLANKS = re.compile(rb"[ \t]+")
MOST_COLUMNS = 20_000
SHOWN_BYTES = 60

MOST_LABEL_BYTES = 16 * MIB
IMAGES_TO_LABELS = {
    b"images": b"labels",
    b"Images": b"Labels",
    b"IMAGES": b"LABELS",
    b"JPEGImages": b"labels",  # darknet's rule for VOC
}
LABELS_TO_IMAGES = {b"labels": b"images", b"Labels": b"Images", b"LABELS": b"IMAGES"}


def label_of(image: bytes, files: set[bytes]) -> bytes | None:
    """Return the label file of an image, or None: the mirrored one before the one beside the image."""
    name = stem_of(image) + b".txt"
    mirrored = _swap_folder(folder_of(image), IMAGES_TO_LABELS)
    for folder in (mirrored, folder_of(image)):
        if folder is not None and (path := folder + b"/" + name if folder else name) in files:
            return path
    return None


class YoloSource(ByStemSource):
    """A YOLO dataset. Coordinates stay fractions of the image (``relative``).

    Raises:
        UsageError: data.yaml is invalid, or ``--split`` is not found.
    """

    ending = b".txt"
    next_step = "add an empty file if nothing is in the image"
    oriented = False
    """Whether rows of four points are oriented boxes whatever data.yaml says."""
    of_split: Split | None

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._config = read_config(tree)
        if self.oriented:
            self._config = replace(self._config, oriented=True, kpt_shape=None, flip_index=None)
        files = [path for path in tree.files if extension_of(path) == b".txt"]
        texts, images_of = set(files), dict[bytes, list[bytes]]()
        for image in tree.images:
            if (path := label_of(image, texts)) is not None:
                images_of.setdefault(path, []).append(image)
        matches = Matches(unclaimed=[path for path in files if path not in images_of])
        for path, images in images_of.items():
            matches.take(images, [path])
        super().__init__(tree, matches)
        self.of_split = None if options.split is None else find_split(tree, self._config, options.split)
        names = self._config.names
        self.classes: tuple[str, ...] | None = self._numbered(images_of) if names is None else names
        self.flip_index = self._config.flip_index
        self.label_files = {*images_of, self._config.origin}

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return YOLO if images have a text file of the same name, and a few of those follow the grammar."""
        texts = {path for path in tree.files if extension_of(path) == b".txt"}
        labels = [path for image in tree.images if (path := label_of(image, texts)) is not None] if texts else []
        if not labels:
            return []
        try:
            config = read_config(tree)
        except UsageError:
            config = YoloConfig()  # opening the source will raise the error
        seen = spread(labels, LOOKS)
        are_labels = (_has_rows(tree, path, config.kpt_shape, empty=True) for path in seen)
        found = choice_by_stem("yolo", "YOLO text file", len(labels), len(tree.images), are_labels)
        if config.kpt_shape is not None or not found or not _have_four_points(tree, seen):
            return found
        read = "polygons; oriented boxes with --labels yolo-obb, or with task: obb in data.yaml"
        read = "oriented boxes, as task: obb says" if config.oriented else read
        return [found[0]._replace(why=f"{found[0].why}; rows of four points are {read}")]

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the splits of data.yaml, else the usual folders, that have images and are not all the same."""
        config = read_config(tree)
        found: dict[frozenset[bytes], str] = {}
        for name in [n for n in config.splits if are_splits([n])] or folder_splits(tree):
            with suppress(UsageError):  # data.yaml names folders that were not downloaded
                split = find_split(tree, config, name)
                found.setdefault(frozenset(image for image in tree.images if split.in_split(image)), name)
        found.pop(frozenset(), None)
        return in_order(found.values())

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the objects of the image; none for an empty file.

        Raises:
            NoLabel: There is no label file.
            BadLabel: The file is invalid; the error names file, line and value.
        """
        path = self.label_file(image)
        num_classes = MOST_CLASSES if self._config.names is None else len(self._config.names)
        try:
            data, config = read_file(self._tree, path, MOST_LABEL_BYTES), self._config
            rows = parse_rows(data, num_classes, config.kpt_shape, config.oriented)
        except BadRow as error:
            raise BadLabel(f"{printable(path)}:{error.line}", error.problem, error.next_step) from None
        return self._annotation(rows, path)

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield label files without an image.

        Outside ``labels``, a text file counts only if it is beside images and holds YOLO rows, unlike a README.txt.
        """
        if self.of_split is not None:
            yield from self.of_split.missing
        image_folders = {folder_of(image) for image in self._tree.images}
        for path in self.matches.unclaimed:
            if path.rpartition(b"/")[2].lower() in NAME_FILES:
                continue
            images_folder = _swap_folder(folder_of(path), LABELS_TO_IMAGES)
            if self.of_split is not None and not _in_split(self.of_split, path, images_folder):
                continue
            beside = folder_of(path) in image_folders
            if images_folder is not None or (beside and _has_rows(self._tree, path, self._config.kpt_shape)):
                self.label_files.add(path)
                yield NoImage(path, "has no image", "add the image, or remove the label")

    def _annotation(self, rows: YoloRows, path: bytes) -> RawAnnotation:
        assert self.classes is not None
        return RawAnnotation(
            origin=as_text(path),
            boxes=tuple(rows.boxes),
            box_labels=tuple(self.classes[i] for i in rows.classes),
            box_lines=tuple(rows.lines),
            box_texts=tuple(rows.texts),
            polygons=tuple(rows.polygons) if any(rows.polygons) else None,
            keypoints=None if self._config.kpt_shape is None else tuple(rows.keypoints),
            obb=tuple(rows.obb) if self._config.oriented else None,
            relative=True,
        )

    def _numbered(self, labels: Iterable[bytes]) -> tuple[str, ...]:
        """Use numbers as class names, if the dataset has no names."""
        highest = -1
        for path in labels:
            with suppress(BadLabel):  # `annotate` reports it
                highest = max(highest, highest_class(read_file(self._tree, path, MOST_LABEL_BYTES)))
        return tuple(str(i) for i in range(highest + 1))


class YoloObbSource(YoloSource):
    """A YOLO dataset of oriented boxes; `YoloSource` recognizes it."""

    oriented = True

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return nothing: the rows may be polygons."""
        return []


def _have_four_points(tree: Tree, paths: Iterable[bytes]) -> bool:
    """Return whether files have polygons, and all of four points, as the rows of oriented boxes."""
    sizes = set[int]()
    for path in paths:
        with suppress(BadLabel, BadRow):
            sizes.update(map(len, parse_rows(read_file(tree, path, MOST_LABEL_BYTES)).polygons))
    return sizes - {0} == {4}


def _has_rows(tree: Tree, path: bytes, kpt_shape: tuple[int, int] | None, empty: bool = False) -> bool:
    """Return whether the file follows the grammar; with `empty`, also if it is in a labels folder without rows."""
    try:
        rows = parse_rows(read_file(tree, path, MOST_LABEL_BYTES), kpt_shape=kpt_shape)
    except (BadLabel, BadRow):
        return False
    return bool(rows.classes) or (empty and b"/labels/" in b"/" + path.lower())


def _swap_folder(folder: bytes, names: dict[bytes, bytes]) -> bytes | None:
    """Return the folder with its last component of these names replaced; None if it has none."""
    parts = folder.split(b"/")
    for i in reversed(range(len(parts))):
        if parts[i] in names:
            parts[i] = names[parts[i]]
            return b"/".join(parts)
    return None


def _in_split(split: Split, path: bytes, images_folder: bytes | None) -> bool:
    place = path if images_folder is None else images_folder + b"/" + path.rpartition(b"/")[2]
    return split.in_split(place)


@dataclass(slots=True)
class YoloRows:
    """The objects of one file, in order; an object without a polygon has ()."""

    classes: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """From 1."""
    texts: list[str] = field(default_factory=list)
    """The rows as they are in the file; long ones are cut."""
    boxes: list[Box] = field(default_factory=list)
    """xyxy, fractions."""
    polygons: list[tuple[Point, ...]] = field(default_factory=list)
    keypoints: list[tuple[Keypoint, ...]] = field(default_factory=list)
    obb: list[tuple[Point, ...]] = field(default_factory=list)


class BadRow(ValueError):
    """A row that does not follow the grammar; `line` counts from 1."""

    def __init__(self, line: int, problem: str, next_step: str = "fix the row") -> None:
        super().__init__(line, problem, next_step)
        self.line, self.problem, self.next_step = line, problem, next_step


def parse_rows(
    data: bytes, num_classes: int = MOST_CLASSES, kpt_shape: tuple[int, int] | None = None, oriented: bool = False
) -> YoloRows:
    """Return all rows of a file, ignoring blank lines. Raise BadRow for an invalid row."""
    rows = YoloRows()
    for count, line in enumerate(lines_of(data), 1):
        tokens = BLANKS.split(line.strip(b" \t"))
        if tokens == [b""]:
            continue
        try:
            _check_columns(len(tokens), kpt_shape, oriented)
            rows.classes.append(_class(tokens[0], num_classes))
            values = [number(token) for token in tokens[1:]]
            is_outline = kpt_shape is None and len(values) > 4
            points = tuple(zip(values[::2], values[1::2], strict=True)) if is_outline else ()
            rows.boxes.append(extent(points) if points else _xyxy(values[:4]))
            rows.polygons.append(() if oriented else points)
            if oriented:
                rows.obb.append(points or corners(rows.boxes[-1]))
            if kpt_shape is not None:
                rows.keypoints.append(_keypoints(values[4:], kpt_shape[1]))
            rows.lines.append(count)
            rows.texts.append(as_text(line if len(line) <= SHOWN_BYTES else line[:SHOWN_BYTES] + b"..."))
        except BadRow as error:
            raise BadRow(count, error.problem, error.next_step) from None
        except ValueError as error:
            raise BadRow(count, str(error)) from None
    return rows


def highest_class(data: bytes) -> int:
    """Return the highest class id in a file, ignoring invalid rows; -1 if there is none."""
    tokens = (BLANKS.split(line.strip(b" \t"), maxsplit=1)[0] for line in lines_of(data))
    return max((found for token in tokens if (found := class_id(token)) is not None), default=-1)


def _check_columns(count: int, kpt_shape: tuple[int, int] | None, oriented: bool) -> None:
    if kpt_shape is not None:
        points, dims = kpt_shape
        if count != 5 + points * dims:
            problem = f"has {plural(count, 'column')}, but kpt_shape [{points}, {dims}] needs {5 + points * dims}"
            raise BadRow(0, problem, "fix the row, or kpt_shape in data.yaml")
    elif oriented and count not in (5, 9):
        problem = f"has {plural(count, 'column')}, but an oriented box has 9: class x1 y1 x2 y2 x3 y3 x4 y4"
        raise BadRow(0, problem, "fix the row; --labels=yolo without task: obb reads polygons")
    elif count > MOST_COLUMNS:
        raise BadRow(0, f"has {count} columns, more than {MOST_COLUMNS}")
    elif count < 5:
        raise BadRow(0, f"has {plural(count, 'column')}, but a box needs 5: class cx cy w h")
    elif count > 5 and count % 2 == 0:
        problem = f"has {count} columns, but a box has 5 and a polygon an odd number"
        raise BadRow(0, problem, "for keypoints, set kpt_shape in data.yaml; remove a confidence column")


def _class(token: bytes, num_classes: int) -> int:
    found = class_id(token)
    if found is None:
        raise ValueError(f"class {quoted_value(token)} is not a whole number from 0 to {MOST_CLASSES - 1}")
    if found >= num_classes:
        raise BadRow(0, f"class {found} is not among the {plural(num_classes, 'class')}", "fix the row, or the names")
    return found


def _xyxy(values: list[float]) -> Box:
    cx, cy, width, height = values
    if width < 0 or height < 0:
        name, value = ("width", width) if width < 0 else ("height", height)
        raise ValueError(f"{name} {value:g} is below 0")
    return cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2


def _keypoints(values: list[float], dims: int) -> tuple[Keypoint, ...]:
    if dims == 2:
        return tuple((x, y, VISIBLE) for x, y in zip(values[::2], values[1::2], strict=True))
    return tuple(zip(values[::3], values[1::3], values[2::3], strict=True))
