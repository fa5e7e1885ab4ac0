"""The value types that the rooms exchange, with their shapes, dtypes and units.

Frame: pixel coordinates are continuous, x to the right and y down, (0, 0) the top left *corner* of the
top left pixel, (width, height) the bottom right corner of the last one, in the upright image (EXIF
orientation applied). A box that covers the whole image is (0, 0, width, height).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Int32 = NDArray[np.int32]
    Int64 = NDArray[np.int64]
    UInt8 = NDArray[np.uint8]
    Image = NDArray[Any]
    Mask = NDArray[Any]
else:  # the command line needs Progress before numpy
    Float32 = Int32 = Int64 = UInt8 = Image = Mask = Any
import re
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from packer.errors import printable

"""Image: uint8 (height, width, channels), RGB or gray; uint16 and 2 or 4 channels only with ``--mode unchanged``.
Mask: uint8 or uint16 (height, width), a value for each pixel."""

Point = tuple[float, float]
Polygon: TypeAlias = "tuple[Point, ...] | array[float]"
"""Points, or an array("d") of x, y, x, y, ..., which is converted in less than half the time."""
Json = Any


class Progress:
    """Receives progress reports of a long task and ignores them; subclasses show them.

    A task has one or more stages, and reports from one thread at a time.
    """

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        """Start the stage `name` (``reading``) of `total` `unit`; None: their number is unknown."""

    def advance(self, done: int, bad: int = 0) -> None:
        """Count `done` more units, `bad` ones among them."""

    def note(self, text: str) -> None:
        """Show `text` to the user."""


def advancing(progress: Progress) -> Callable[[int, int], None]:
    """Return a function that reports the totals of a pool to `progress`."""
    reported = (0, 0)

    def tick(done: int, bad: int) -> None:
        nonlocal reported
        progress.advance(done - reported[0], bad - reported[1])
        reported = done, bad

    return tick


class PartFile(NamedTuple):
    """The file of a part of an image, as a source finds it. What follows the path are the fields of its place."""

    path: bytes
    """Relative to the source, or absolute."""
    bytes: int = -1
    """Its size; -1 if it is not known."""
    archive: int = -1
    offset: int = 0
    packed: int = -1
    crc: int = -1
    etag: str | None = None
    ids: Sequence[int] | None = None
    """Of a mask with colors of its own: color, id, color, id, ..., as in `MaskValues.ids`; None: as those of all."""


@dataclass(frozen=True, slots=True)
class RawAnnotation:
    """An annotation as written in its file: class names, plain numbers, the file's own frame.

    Sources create these; the build converts them to `Annotation`. A field is None if the source does not
    have it, and empty if this image has none (an empty YOLO file: ``boxes=()``).
    """

    origin: str
    """Its file and line, for messages: ``Annotations/cat3.xml`` or ``landmarks.txt:17``."""
    label: str | None = None
    """Class name of the whole image."""
    tags: tuple[bool, ...] | None = None
    """Whether the image has each of the source's tags (multi-label classes)."""
    boxes: tuple[tuple[float, float, float, float], ...] | None = None
    """xyxy; pixels, or fractions of width and height if `relative`."""
    box_labels: tuple[str, ...] | None = None
    """Class name of each box; same length as `boxes`."""
    box_lines: tuple[int, ...] | None = None
    """Line of each box in its file, from 1, for messages; None if `origin` says it, or it is not known."""
    box_texts: tuple[str, ...] | None = None
    """Each box as its file has it, for messages; None if that is `boxes`."""
    landmarks: tuple[Point, ...] | None = None
    """Points of the whole image (a face's five points)."""
    polygons: tuple[Polygon, ...] | None = None
    """Polygon of each box's object; same length as `boxes`; empty for an object without one."""
    keypoints: tuple[tuple[tuple[float, float, float], ...], ...] | None = None
    """(x, y, visibility) of each box's object; the same number for each; same length as `boxes`."""
    value: tuple[float, ...] | None = None
    """Numbers of the whole image, such as an age or an angle; a flip does not change them."""
    rles: tuple[Any, ...] | None = None
    """Mask of each box's object: polygons, of which it is the union; run lengths as COCO has them, ``{"size": [height,
    width], "counts": TEXT}``; or () for an object without one. Same length as `boxes`."""
    obb: tuple[tuple[Point, ...], ...] | None = None
    """The four corners of each oriented box, of which `boxes` has the extent; same length as `boxes`."""
    window: tuple[int, ...] | None = None
    """Which part of a larger image it is; see `Annotation.window`."""
    box_fields: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    """Other fields of each box, one value per box: difficult, truncated, occluded (ints), pose (text)."""
    extras: Mapping[str, Json] = field(default_factory=dict)
    """Other fields of the image, JSON values."""
    parts: Mapping[str, PartFile] = field(default_factory=dict)
    """The files of the parts that the image has besides its pixels: its mask."""
    relative: bool = False
    """Coordinates are fractions of the upright image's width and height (YOLO)."""
    image_size: tuple[int, int] | None = None
    """(width, height) of the image according to the annotation; None if it has no size."""


@dataclass(frozen=True, slots=True, eq=False)
class Annotation:
    """The annotation of one image, in the frame of its pixels."""

    label: int | None = None
    """Class id of the whole image."""
    tags: UInt8 | None = None
    """uint8 (k,), 0 or 1: which of the pack's tags the image has (multi-label classes)."""
    boxes: Float32 | None = None
    """float32 (n, 4), xyxy, pixels."""
    box_labels: Int64 | None = None
    """int64 (n,), class ids."""
    landmarks: Float32 | None = None
    """float32 (k, 2), xy, pixels; may lie outside the image."""
    polygons: tuple[Float32, ...] | None = None
    """n arrays float32 (m, 2), xy, pixels; (0, 2) for an object without a polygon."""
    keypoints: Float32 | None = None
    """float32 (n, k, 3): x, y in pixels, visibility as in the source."""
    box_fields: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    """One value per box: difficult, truncated, occluded (ints), pose (text), ..."""
    extras: Mapping[str, Json] = field(default_factory=dict)
    """Other fields of the image, JSON values."""
    rles: tuple[UInt8, ...] | None = None
    """n masks: uint8 (m,), the ASCII of COCO's compressed counts at the size of the image; (0,) for an object without
    a mask. `packer.model.rle` reads them."""
    value: Float32 | None = None
    """float32 (k,), numbers of the whole image, such as an age or an angle; a flip does not change them."""
    obb: Float32 | None = None
    """float32 (n, 4, 2), corners of oriented boxes, in the order of their file, pixels; may lie outside the image."""
    window: Int32 | None = None
    """int32 (6,): x, y, width and height of a tile in the larger image that it was cut from, in pixels of that, and
    width and height of that."""

    @property
    def ignored(self) -> NDArray[np.bool_]:
        """bool (n,): which boxes are ignored regions, whatever their set calls them (`NOT_OBJECTS`)."""
        import numpy as np

        found = np.zeros(0 if self.boxes is None else len(self.boxes), np.bool_)
        for name in NOT_OBJECTS:
            if name in self.box_fields:
                found |= np.array(self.box_fields[name], np.bool_)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One image with its annotation, in memory: ``image, annotation = sample``."""

    image: Image
    annotation: Annotation

    def __iter__(self) -> Iterator[Any]:
        yield self.image
        yield self.annotation


@dataclass(frozen=True, slots=True)
class PartSpec:
    """A part that the records of a pack may have besides their image."""

    name: str
    """A lower-case word (`packer.model.annotation.check_name`)."""
    kind: str = "bytes"
    """One of `packer.model.annotation.KINDS`."""
    dtype: str = ""
    """Of the values of pixels; "" for a kind without pixels."""
    classes: tuple[str, ...] = ()
    """Names of the values of a mask; () if they are not known."""
    ignore: int | None = None
    """The value of a mask that means no class, which a loss ignores; that of a map where nothing is known."""
    channels: int = 1
    """Numbers for each pixel of a map."""

    @property
    def unknown(self) -> int | None:
        """The value of a map where nothing is known; None if it is the usual one: 0 in whole numbers, else NaN."""
        return self.ignore if self.kind == "map" and (self.ignore or self.dtype.startswith("float")) else None

    @property
    def border(self) -> float:
        """The value of pixels beside the image, and of an image without the part: nothing is known of them."""
        is_nan = self.ignore is None and self.kind == "map" and self.dtype.startswith("float")
        return math.nan if is_nan else self.ignore or 0

    @property
    def text(self) -> str:
        """What it is, for a message; what the values of masks are says `MaskFacts`."""
        facts = [self.kind, *([] if self.kind == "mask" or not self.dtype else [self.dtype])]
        unknown = "" if self.unknown is None else f", {self.unknown} unknown"
        return f"{self.name} ({', '.join(facts)}" + f" x {self.channels}" * (self.channels > 1) + f"{unknown})"


@dataclass(frozen=True, slots=True)
class MaskFacts:
    """What the values of a part of the kind mask are: the fields of a `PartSpec`."""

    dtype: str
    """uint8 or uint16."""
    classes: tuple[str, ...] = ()
    """Their names; () if they are not known."""
    ignore: int | None = None
    """The value of pixels that are of no class."""

    @property
    def background(self) -> int | None:
        """The value of the class called background; 0 without names; None if no class is called so."""
        plain = [name.strip("_ ").casefold() for name in self.classes] or ["background"]
        return plain.index("background") if "background" in plain else None

    @property
    def text(self) -> str:
        """What they are, for a message."""
        names = ", ".join(map(printable, self.classes[:5])) + (", ..." if len(self.classes) > 5 else "")
        ignored = "none" if self.ignore is None else str(self.ignore)
        return f"{self.dtype}, classes {names or 'unknown'}, {ignored} ignored"


@dataclass(frozen=True, slots=True)
class PixelFacts:
    """What the values of another part with pixels are, a map or an image: the fields of a `PartSpec`."""

    dtype: str
    channels: int = 1
    ignore: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of one record, as it is stored."""

    name: str
    data: bytes
    encoding: str = "bytes"
    """One of `packer.model.annotation.ENCODINGS`."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One sample as it is stored."""

    key: str
    """Unique in the pack, digits only: ``00000042``."""
    data: bytes
    """The image: pixels in C order where `encoding` is raw, else the bytes of an image file."""
    encoding: str
    """raw, jpeg, png, bmp, gif, webp or tiff."""
    height: int
    width: int
    channels: int
    """Of the decoded, upright image."""
    dtype: str
    """uint8 or uint16, of the decoded image."""
    annotation: Annotation
    path: bytes
    """Path of the source file relative to the source folder, as bytes."""
    source_xxh3: bytes = bytes(16)
    """XXH3-128 of the source file's bytes, 16 bytes, to detect edited and equal files; zeros if unknown. Of a
    tile, that of this digest and its window."""
    parts: tuple[Part, ...] = ()
    """Its parts besides the image, in the order of the pack's; it need not have all."""
    fingerprint: bytes = b""
    """Of its image (`packer.images.fingerprint`); empty if none was made."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, self.channels

    def crc32c(self) -> int:
        """CRC-32C (Castagnoli) of key and image bytes, so that swapped records are detected."""
        from crc32c import crc32c

        return int(crc32c(self.data, crc32c(self.key.encode())))


FLAGS = ("difficult", "truncated", "occluded", "iscrowd", "ignore")
"""Box fields that are always integers."""
NOT_OBJECTS = ("iscrowd", "difficult", "ignore")
"""Those that mark an ignored region: a detector neither learns it nor is judged by it."""
IGNORED = "__ignore__"
"""The class of ignored regions without one, as LabelMe's users call them; its id is the last one."""
IMAGE = "image"
"""The name of the image among the parts of a record."""
KINDS = ("bytes", "mask", "map", "image", "array", "text", "json")
"""What a part can be; `packer.images.parts` has a row for each."""
OF_PIXELS = ("mask", "map", "image")
"""Those with a row for each row of the image's pixels."""
EXTENSIONS = {
    "bytes": "bin", "raw": "raw", "zstd": "zst", "png": "png", "npy": "npy", "txt": "txt", "json": "json",
    "jpeg": "jpg", "bmp": "bmp", "gif": "gif", "webp": "webp", "tiff": "tiff", "avif": "avif", "jp2": "jp2",
    "pnm": "pnm",
}  # fmt: skip
"""File extension of a part by its encoding."""
ENCODINGS = tuple(EXTENSIONS)
"""bytes as they are; values of pixels in C order (raw), the same compressed (zstd), an array (npy), or a file."""
MISSING = (0, -1)
"""The place (offset, size) of a part that a record lacks."""
COLUMNS = ("offset", "size", "crc32c", "encoding")
"""Columns of an index for each part: ``NAME_offset``, ..."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
MOST_PARTS = 32
MOST_CHANNELS = 1024
"""Of a map."""
MAP_DTYPES = ("uint8", "uint16", "float16", "float32")
"""Of the values of a map."""
_FIELDS = [field.name for field in fields(Annotation)]
RESERVED = {
    *_FIELDS,
    *(name.removesuffix("s") for name in _FIELDS),
    *("annotation", "annotations", "box", "channels", "class", "classes", "cls", "crc32c", "dtype", "encoding"),
    *("filename", "format", "height", "image", "image_id", "images", "json", "key", "keys", "labels", "masks"),
    *("object", "objects", "offset", "path", "size", "source_id", "width"),
    *("avif", "bmp", "gif", "j2k", "jp2", "jpeg", "jpg", "npy", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff"),
    *("webp",),
}
"""Names that containers or indexes use for something else, and extensions of images."""
ENDINGS = ("_offset", "_offsets", "_size", "_crc32c", "_encoding", "_shapes")


def check_name(name: str) -> None:
    """Raise ValueError if a part cannot have this name in every container."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name for a part: a word of a-z, 0-9 and _, at most 31 characters")
    if name in RESERVED or name.endswith(ENDINGS) or name in EXTENSIONS.values():
        raise ValueError(f"{name!r} is not a name for a part: it is reserved, for what packs or their containers have")


def check_names(names: Collection[str]) -> None:
    """Raise ValueError if records of a pack cannot have these parts."""
    if len(names) > MOST_PARTS or len(set(names)) < len(names):
        raise ValueError(f"{len(names)} parts of a record, some of one name or more than {MOST_PARTS}")
    for name in names:
        check_name(name)


def names_in(columns: Iterable[str]) -> list[str]:
    """Return the names of the parts that an index with these columns has."""
    return [name.removesuffix("_offset") for name in columns if name.endswith("_offset")]


def key_of(key: bytes | memoryview, name: str) -> bytes:
    """Return what the checksum of a part begins with, so that parts that were swapped are detected."""
    return bytes(key) if name == IMAGE else bytes(key) + b"." + name.encode("ascii")


def column_of(name: str, what: str) -> str:
    """Return the column of an index with `what` (one of COLUMNS) of a part, or of the image."""
    return what if name == IMAGE else f"{name}_{what}"


def parts_of(record: Record, specs: Iterable[PartSpec]) -> Mapping[str, Any]:
    """Return the parts of a record by name, sorted. Raise ValueError if the pack has no such part."""
    found = {part.name: part for part in in_order(record)}
    if unknown := found.keys() - {spec.name for spec in specs}:
        raise ValueError(f"record {record.key} has the parts {sorted(unknown)}, which were not planned")
    return found


def in_order(record: Record) -> list[Part]:
    """Return the parts of a record as they are stored: sorted by name."""
    return sorted(record.parts, key=lambda part: part.name)


def facts_in(members: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield name, encoding and size of each part that the JSON of an annotation lists. Raise ValueError."""
    listed = members.get("parts", {})
    if not isinstance(listed, dict):
        raise ValueError("the parts of an annotation are not an object")
    check_names(listed)
    for name, facts in listed.items():
        if not isinstance(facts, dict) or facts.get("encoding") not in ENCODINGS:
            raise ValueError(f"the part {name} of an annotation has no known encoding")
        if type(facts.get("bytes")) is not int or not 0 <= facts["bytes"] < 1 << 48:
            raise ValueError(f"the part {name} of an annotation has no size")
        yield name, facts["encoding"], facts["bytes"]
