"""Reads dlib's XML from the events of the parser, so that neither the text nor a tree of it is held.

Boxes are whole pixels, counted from 0: left, top, width and height cover (left, top, left + width, top + height). Parts
are numbers of pixels, counted from 0, so that half a pixel leads to their centers (dlib, rectangle.h and data_io.h).
"""

from __future__ import annotations

from array import array
from xml.sax import SAXException, SAXParseException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

from defusedxml.common import DefusedXmlException
from defusedxml.sax import parse

from packer.errors import BadImage, BadLabel, NoImage, PackerError, UsageError, printable
from packer.sources.archives.decompress import stream_of
from packer.sources.base import Tree
from packer.sources.image_names import FileImages
from packer.sources.paths import as_bytes, class_id, named, number, quoted

FLAGS = ("difficult", "truncated", "occluded", "ignore")
UNNAMED = "object"
VISIBLE = 2.0  # COCO's value for a labelled and visible point
PIXEL_CENTER = 0.5
MOST_LABEL_CHARACTERS = 4096
MOST_POINTS = 65536
DEEPEST = 5
"""Elements that are read lie no deeper."""


class Entries:
    """The entries of a file, as flat arrays."""

    def __init__(self) -> None:
        self.of: dict[bytes, int] = {}
        """Image -> number of its entry."""
        self.lines = array("l")
        self.boxes_end = array("l")
        """After the last box of each entry; the same for the parts of each box."""
        self.problems: dict[int, BadLabel] = {}
        self.bad: list[NoImage | BadLabel] = []
        self.labels: list[str] = []
        self.flags = array("B")
        self.points: tuple[str, ...] = ()
        """The names of the parts, in order."""
        self.edges = array("d")
        self.parts_end = array("l")
        self.part_names = array("l")
        self.part_places = array("d")

    def box(self, i: int) -> tuple[float, float, float, float]:
        """Return box `i`."""
        left, top, right, bottom = self.edges[4 * i : 4 * i + 4]
        return left, top, right, bottom

    def keypoints(self, i: int) -> tuple[tuple[float, float, float], ...]:
        """Return the parts of box `i`, in order; (0, 0, 0) for one that is not there."""
        points = [(0.0, 0.0, 0.0)] * len(self.points)
        for part in range(self.parts_end[i - 1] if i else 0, self.parts_end[i]):
            points[self.part_names[part]] = (self.part_places[2 * part], self.part_places[2 * part + 1], VISIBLE)
        return tuple(points)


class _Handler(ContentHandler):
    """Fills the entries from the events of the parser."""

    _locator: Locator

    def __init__(self, entries: Entries, name: str, images: FileImages) -> None:
        super().__init__()
        self._entries, self._name, self._images = entries, name, images
        self._path: list[str] = []
        self._text: list[str] | None = None
        self.numbers: dict[str, int] = {}
        """Name of a part -> its number in the order of the file."""
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
            self._entries.labels[-1] = label[:MOST_LABEL_CHARACTERS] or UNNAMED
            self._text = None
        self._path.pop()

    def _image(self, attrs: AttributesImpl) -> None:
        entries = self._entries
        row = len(entries.lines)
        entries.lines.append(self._line())
        entries.boxes_end.append(len(entries.labels))
        written = as_bytes(attrs.get("file", ""))
        places = self._images.find(written) if written else []
        if len(places) == 1:
            first = entries.of.setdefault(places[0], row)
            if first != row:
                problem = f"names {printable(written)}, as line {entries.lines[first]} does"
                entries.problems.setdefault(first, BadLabel(self._where(), problem, "keep one of the entries"))
        elif places:
            problem = f"{quoted(written)} fits {len(places)} images equally well: {named(places)}"
            entries.bad.append(BadLabel(self._where(), problem, "write the folder too"))
        elif written:
            step = "add the image, or remove its entry"
            entries.bad.append(NoImage(self._where(), f"no image {quoted(written)}", step))
        else:
            entries.bad.append(BadLabel(self._where(), "an <image> has no file", "add it, or remove the entry"))

    def _box(self, attrs: AttributesImpl) -> None:
        entries = self._entries
        entries.boxes_end[-1] += 1
        entries.labels.append(UNNAMED)
        marks = [attrs.get(name, "0").strip() not in ("", "0", "false") for name in FLAGS]
        entries.flags.append(sum(mark << bit for bit, mark in enumerate(marks)))
        entries.parts_end.append(len(entries.part_names))
        entries.edges.extend((0.0, 0.0, 0.0, 0.0))
        self._here.clear()
        left, top, width, height = (_number(attrs, name) for name in ("left", "top", "width", "height"))
        if width < 0 or height < 0:
            raise ValueError(f"the {'width' if width < 0 else 'height'} of a box is below 0")
        entries.edges[-4:] = array("d", (left, top, left + width, top + height))

    def _part(self, attrs: AttributesImpl) -> None:
        entries = self._entries
        name = attrs.get("name", "").strip()
        if not name:
            raise ValueError("a <part> has no name")
        number_of = self.numbers.setdefault(name, len(self.numbers))
        if len(self.numbers) > MOST_POINTS:
            raise UsageError(self._where(), f"there are more than {MOST_POINTS} names of parts", "correct them")
        if number_of in self._here:
            raise ValueError(f"a box has two parts {quoted(name)}")
        self._here.add(number_of)
        x, y = _number(attrs, "x") + PIXEL_CENTER, _number(attrs, "y") + PIXEL_CENTER
        entries.part_names.append(number_of)
        entries.part_places.extend((x, y))
        entries.parts_end[-1] += 1

    def _refuse(self, problem: str) -> None:
        self._entries.problems.setdefault(
            len(self._entries.lines) - 1, BadLabel(self._where(), problem, "fix the label")
        )

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


def read_dlib(tree: Tree, path: bytes, name: str, images: FileImages) -> Entries:
    """Read a file.

    Args:
        tree: The tree of the source.
        path: The absolute path of the file.
        name: The file, for messages.
        images: Finds the images that it names.

    Raises:
        UsageError: It is not XML of dlib.
    """
    entries = Entries()
    handler = _Handler(entries, name, images)
    try:
        with tree.open(path) as file:
            parse(stream_of(file), handler, forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except SAXParseException as error:
        problem = f"is not readable as XML: {error.getMessage()}"
        raise UsageError(f"{name}:{error.getLineNumber()}", problem, "fix the file") from None
    except DefusedXmlException:
        raise UsageError(name, "has entities, which may hide an attack", "remove its <!DOCTYPE") from None
    except (SAXException, PackerError, ValueError, LookupError) as error:
        if isinstance(error, BadImage):
            raise UsageError(name, error.problem, error.next_step) from None
        if isinstance(error, PackerError):
            raise
        raise UsageError(name, f"is not readable as XML: {error}", "fix the file") from None
    except OSError as error:
        raise UsageError(name, f"cannot be read: {error.strerror}", "check its name and permissions") from None
    order = sorted(handler.numbers, key=_in_order)
    places = {handler.numbers[part]: i for i, part in enumerate(order)}
    entries.points = tuple(order)
    entries.part_names = array("l", (places[number_of] for number_of in entries.part_names))
    return entries


def _in_order(name: str) -> tuple[bool, int, str]:
    """Return the key to sort names of parts: numbers as numbers."""
    found = class_id(name.encode("utf-8", "surrogatepass"))
    return found is None, found or 0, name
