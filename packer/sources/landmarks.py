"""Landmarks: dlib's XML, as imglab writes it, and PTS, a text file for each image, as of 300-W and Menpo."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax import SAXException, SAXParseException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

from defusedxml.common import DefusedXmlException
from defusedxml.sax import parse

from packer.errors import BadImage, BadLabel, NoImage, NoLabel, PackerError, UsageError, plural, printable
from packer.model.annotation import Point, RawAnnotation
from packer.sources.box_corners import Box
from packer.sources.by_name import VISIBLE, Keypoint
from packer.sources.by_stem import ByStemSource, choice_by_stem, match_by_stem
from packer.sources.path_finder import FileImages, ImageNames, only_image
from packer.sources.paths import (
    FolderSplit,
    as_bytes,
    as_text,
    check_count,
    class_id,
    extension_of,
    file_of,
    flip_index_of,
    folder_splits,
    number,
    quoted_value,
    some_paths,
    spread,
)
from packer.sources.places import stream_of
from packer.sources.source import LOOKS, BaseSource, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, read_file, read_head
from packer.stores import joined

FLAGS = ("difficult", "truncated", "occluded", "ignore")
UNNAMED = "object"
PIXEL_CENTER = 0.5
MOST_LABEL_CHARACTERS = 4096
MOST_POINTS = 65536
DEEPEST = 5
"""Elements that are read lie no deeper."""


# Reads dlib's XML from the events of the parser, so that neither the text nor a tree of it is held.
#
# Boxes are whole pixels, counted from 0: left, top, width and height cover (left, top, left + width, top + height).
# Parts are numbers of pixels, counted from 0, so that half a pixel leads to their centers (dlib, rectangle.h and
# data_io.h).


@dataclass(slots=True)
class DlibBox:
    """A box of an image."""

    marks: tuple[int, ...]
    """Whether it has each of the FLAGS."""
    label: str = UNNAMED
    edges: Box = (0.0, 0.0, 0.0, 0.0)
    parts: array[float] = field(default_factory=lambda: array("d"))
    """The number of the name, x and y of each part; tuples would need five times the memory."""


@dataclass(slots=True)
class DlibImage:
    """The entry of an image."""

    line: int
    boxes: list[DlibBox] = field(default_factory=list)
    problem: BadLabel | None = None


@dataclass(slots=True)
class DlibEntries:
    """The entries of a file."""

    of: dict[bytes, DlibImage] = field(default_factory=dict)
    bad: list[NoImage | BadLabel] = field(default_factory=list)
    """Those that name no image."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Name of a part -> its number in the order of the file."""
    points: list[str] = field(default_factory=list)
    """The names of the parts, in order."""

    def keypoints(self, box: DlibBox) -> tuple[Keypoint, ...]:
        """Return the parts of a box, in order; (0, 0, 0) for one that is not there."""
        parts = iter(box.parts)
        found = {number_of: (x, y, VISIBLE) for number_of, x, y in zip(parts, parts, parts, strict=True)}
        return tuple(found.get(self.numbers[name], (0.0, 0.0, 0.0)) for name in self.points)


class _DlibHandler(ContentHandler):
    """Fills the entries from the events of the parser."""

    _locator: Locator

    def __init__(self, entries: DlibEntries, name: str, images: FileImages) -> None:
        super().__init__()
        self._entries, self._name, self._images = entries, name, images
        self._path: list[str] = []
        self._text: list[str] | None = None
        self._entry = DlibImage(0)
        self._here: set[int] = set()

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802  # the names of SAX
        self._path.append(name)
        if len(self._path) == 1 and name != "dataset":
            raise UsageError(
                self._where(), f"its root is <{printable(name)[:40]}>, not dlib's <dataset>", "name another"
            )
        below = self._path[2:] if len(self._path) <= DEEPEST else []
        try:
            if below == ["image"]:
                self._image(attrs)
            elif below == ["image", "box"]:
                self._box(attrs)
            elif below == ["image", "box", "part"]:
                self._part(attrs)
            elif below == ["image", "box", "label"]:
                self._text = []
        except ValueError as error:
            self._refuse(str(error))

    def characters(self, content: str) -> None:
        if self._text is not None:
            self._text.append(content)

    def endElement(self, name: str) -> None:  # noqa: N802
        if self._text is not None and self._path[-1] == "label":
            label = "".join(self._text).strip()
            self._entry.boxes[-1].label = label[:MOST_LABEL_CHARACTERS] or UNNAMED
            self._text = None
        self._path.pop()

    def _image(self, attrs: AttributesImpl) -> None:
        self._entry = DlibImage(self._line())
        written = as_bytes(attrs.get("file", ""))
        if not written:
            self._entries.bad.append(BadLabel(self._where(), "an <image> has no file", "add it, or remove the entry"))
            return
        image = only_image(self._images, written, self._where)
        if not isinstance(image, bytes):
            self._entries.bad.append(image)
        elif (first := self._entries.of.setdefault(image, self._entry)) is not self._entry:
            problem = f"names {printable(written)}, as line {first.line} does"
            first.problem = first.problem or BadLabel(self._where(), problem, "keep one of the entries")

    def _box(self, attrs: AttributesImpl) -> None:
        self._here.clear()
        box = DlibBox(tuple(int(attrs.get(name, "0").strip() not in ("", "0", "false")) for name in FLAGS))
        self._entry.boxes.append(box)
        left, top, width, height = (_number(attrs, name) for name in ("left", "top", "width", "height"))
        if width < 0 or height < 0:
            raise ValueError(f"the {'width' if width < 0 else 'height'} of a box is below 0")
        box.edges = left, top, left + width, top + height

    def _part(self, attrs: AttributesImpl) -> None:
        name, numbers = attrs.get("name", "").strip(), self._entries.numbers
        if not name:
            raise ValueError("a <part> has no name")
        number_of = numbers.setdefault(name, len(numbers))
        if len(numbers) > MOST_POINTS:
            raise UsageError(self._where(), f"there are more than {MOST_POINTS} names of parts", "correct them")
        if number_of in self._here:
            raise ValueError(f"a box has two parts {quoted_value(name)}")
        self._here.add(number_of)
        x, y = _number(attrs, "x") + PIXEL_CENTER, _number(attrs, "y") + PIXEL_CENTER
        self._entry.boxes[-1].parts.extend((number_of, x, y))

    def _refuse(self, problem: str) -> None:
        self._entry.problem = self._entry.problem or BadLabel(self._where(), problem, "fix the label")

    def setDocumentLocator(self, locator: Locator) -> None:  # noqa: N802
        self._locator = locator

    def _line(self) -> int:
        return self._locator.getLineNumber() or 1

    def _where(self) -> str:
        return f"{self._name}:{self._line()}"


def _number(attrs: AttributesImpl, name: str) -> float:
    if name not in attrs:
        raise ValueError(f"has no {name}")
    try:
        return number(attrs[name].strip().encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def read_dlib(tree: Tree, path: bytes, name: str, images: FileImages) -> DlibEntries:
    """Read a file.

    Args:
        tree: The tree of the source.
        path: The absolute path of the file.
        name: The file, for messages.
        images: Finds the images that it names.

    Raises:
        UsageError: It is not XML of dlib.
    """
    entries = DlibEntries()
    try:
        with tree.open(path) as file:
            handler = _DlibHandler(entries, name, images)
            parse(stream_of(file), handler, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except SAXParseException as error:
        problem = f"is not readable as XML: {error.getMessage()}"
        raise UsageError(f"{name}:{error.getLineNumber()}", problem, "fix the file") from None
    except DefusedXmlException:
        raise UsageError(name, "has entities, which may hide an attack", "remove its <!DOCTYPE") from None
    except BadImage as error:
        raise UsageError(name, error.problem, error.next_step) from None
    except PackerError:
        raise
    except (SAXException, ValueError, LookupError) as error:
        raise UsageError(name, f"is not readable as XML: {error}", "fix the file") from None
    except OSError as error:
        raise UsageError(name, f"cannot be read: {error.strerror}", "check its name and permissions") from None
    entries.points = sorted(entries.numbers, key=_in_order)
    return entries


def _in_order(name: str) -> tuple[bool, int, str]:
    """Return the key to sort names of parts: numbers as numbers."""
    found = class_id(name.encode("utf-8", "surrogatepass"))
    return found is None, found or 0, name


HEAD_BYTES = 4096
MOST_CANDIDATES = 64


class DlibSource(BaseSource):
    """An XML file of dlib. Images that it does not name are not part of the dataset.

    Raises:
        UsageError: There is no such file, there are several, or it is not XML.
    """

    takes_file = "optional"
    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.of_split = FolderSplit.of(tree, options.split)
        path = file_of(tree, "dlib", options.file) if options.file else _only(tree)
        self.label_files = {tree.below(path)}
        names = ImageNames(tree)
        self._name = printable(names.told(path))
        found = names.of_file(path)
        self._entries = read_dlib(tree, path, self._name, found)
        points = self._entries.points
        self.flip_index = flip_index_of(points) if points else None
        self.notes: list[str] = found.notes(self._name)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the XML files whose root is that of dlib."""
        found = _candidates(tree)
        if len(found) == 1:
            return [Choice("dlib", f"{printable(found[0])} is an XML file of dlib")]
        return [Choice(f"dlib:{as_text(joined(tree.root, path))}", "an XML file of dlib") for path in found]

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not part of the dataset: the file does not name it."""
        return None if image in self._entries.of else f"not in {self._name}"

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the boxes of the image, with their parts as keypoints.

        Raises:
            NoLabel: The file does not name the image.
            BadLabel: Its entry is invalid, or there are several.
        """
        entry = self._entries.of.get(image)
        if entry is None:
            raise NoLabel(image, f"is not in {self._name}", "add it, or remove the image")
        if entry.problem is not None:
            raise entry.problem
        origin, boxes = f"{self._name}:{entry.line}", entry.boxes
        try:
            check_count(len(boxes), len(self._entries.points))
        except ValueError as error:
            raise BadLabel(origin, str(error), "give the parts of all boxes the same names") from None
        return RawAnnotation(
            origin=origin,
            boxes=tuple(box.edges for box in boxes),
            box_labels=tuple(box.label for box in boxes),
            keypoints=tuple(map(self._entries.keypoints, boxes)) if self._entries.points else None,
            box_fields={name: tuple(box.marks[i] for box in boxes) for i, name in enumerate(FLAGS)},
        )

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the entries that name no image."""
        return iter(self._entries.bad)


def _candidates(tree: Tree) -> list[bytes]:
    found = sorted((p for p in tree.files if extension_of(p) == b".xml"), key=lambda path: (path.count(b"/"), path))
    return [path for path in found[:MOST_CANDIDATES] if _is_dlib(tree, path)]


def _is_dlib(tree: Tree, path: bytes) -> bool:
    try:
        head = read_head(tree, path, HEAD_BYTES)
    except BadLabel:
        return False
    return b"<dataset" in head and b"<image" in head


def _only(tree: Tree) -> bytes:
    found = _candidates(tree)
    if len(found) != 1:
        problem = f"{len(found)} XML files of dlib: {some_paths(found)}" if found else "holds no XML file of dlib"
        raise UsageError(tree.root, problem, "name one: --labels=dlib:FILE")
    return joined(tree.root, found[0])


MOST_BYTES = MIB
FIRST_CENTER = 0.5
BLANKS = re.compile(rb"[ \t]+")


# PTS: one text file of landmarks per image, as of 300-W and Menpo, matched by stem.
#
#     version: 1
#     n_points: 2
#     {
#     30.5 41
#     50 41.5
#     }
#
# Points count from 1, at the center of the first pixel: "landmarks on a 480x480 image are in the range [1-480]" (menpo,
# io/input/landmark.py). In packer's frame that center is at 0.5, so that (x, y) becomes (x - 0.5, y - 0.5).


class PtsSource(ByStemSource):
    """Landmarks from ``.pts`` files."""

    ending = b".pts"
    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        super().__init__(tree, match_by_stem(tree.images, _pts_files(tree)))
        self.of_split = FolderSplit.of(tree, options.split)

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return PTS if images have such a file of their name, and a few of those can be read."""
        files = _pts_files(tree)
        fitting = match_by_stem(tree.images, files).fitting if files else 0
        are_labels = (_is_readable(tree, path) for path in spread(files, LOOKS))
        return choice_by_stem("pts", ".pts file", fitting, len(tree.images), are_labels)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the landmarks of the image.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or the file is invalid.
        """
        path = self.label_file(image)
        return RawAnnotation(origin=as_text(path), landmarks=read_points(self._tree, path))


def _pts_files(tree: Tree) -> list[bytes]:
    return [path for path in tree.files if extension_of(path) == b".pts"]


def read_points(tree: Tree, path: bytes) -> tuple[Point, ...]:
    """Return the points of a file, in packer's frame. Raise BadLabel if it is invalid."""
    lines = [(count, line.strip()) for count, line in enumerate(lines_of(read_file(tree, path, MOST_BYTES)), 1)]
    at = 0
    try:
        expected, body = _header([(count, line) for count, line in lines if line])
        points = []
        for at, line in body:  # noqa: B007  # named in the error
            values = [number(cell) for cell in BLANKS.split(line)]
            if len(values) != 2:
                raise ValueError(f"has {plural(len(values), 'number')}, not x and y")
            points.append((values[0] - FIRST_CENTER, values[1] - FIRST_CENTER))
    except ValueError as error:
        where = f"{printable(path)}:{at}" if at else path
        raise BadLabel(where, str(error), "fix the line" if at else "fix the file") from None
    if expected is not None and expected != len(points):
        problem = f"says n_points: {expected}, but has {plural(len(points), 'point')}"
        raise BadLabel(path, problem, "correct the number, or complete the file")
    return tuple(points)


def _header(lines: list[tuple[int, bytes]]) -> tuple[int | None, list[tuple[int, bytes]]]:
    """Return the number of points, if it is given, and the lines between the braces."""
    expected = None
    for i, (_, line) in enumerate(lines):
        name, colon, value = line.removesuffix(b"{").partition(b":")
        if colon and name.strip().lower() == b"n_points":
            expected = class_id(value.strip())
            if expected is None:
                raise ValueError(f"n_points: {quoted_value(value.strip())} is not a number of points")
        elif not colon and line != b"{":
            break
        if line.endswith(b"{"):
            if lines[-1][1] != b"}":
                raise ValueError("does not end with }, so that it may be truncated")
            return expected, lines[i + 1 : -1]
    raise ValueError("has no points between { and }, as PTS files have")


def _is_readable(tree: Tree, path: bytes) -> bool:
    try:
        return bool(read_points(tree, path))
    except BadLabel:
        return False
