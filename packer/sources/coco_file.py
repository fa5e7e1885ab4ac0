"""One COCO file: its categories, and where its images and their objects are.

The file may be larger than the memory. It is mapped, so that the kernel can drop its pages, and its arrays are decoded
in pieces of a few megabytes. Of an image or object only its position in the file is kept; objects are decoded when the
image is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import BadLabel, NoImage, PackerError, UsageError
from packer.model.annotation import Int64
from packer.sources.coco_objects import CocoObject, Rules, is_whole, key_of, number_in, read_object
from packer.sources.path_finder import FileImages, only_image
from packer.sources.paths import MOST_CLASSES, as_bytes, flip_index_of, json_text, quoted_value
from packer.sources.source import Tree

T = TypeVar("T")
Range = tuple[int, int]
"""First byte, and the one after the last."""

PIECE_BYTES = 4 << 20
LINES_BLOCK = 1 << 13
FAR = 1000
"""A byte further inside its line is not found by the number of the line."""
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BETWEEN = re.compile(rb"\}\s*,\s*\{")
GAP = re.compile(rb"[\s,]*")
GAP_BYTES = list(b", \t\r\n")
BYTE = re.compile(r"\(byte (\d+)\)")
NOT_JSON = re.compile(rb"-?(?:NaN|Infinity)")
FIX = "fix the file"


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """Some objects of an array."""

    heads: list[T]
    starts: Int64
    """First byte of each object in the file."""
    sizes: Int64


class JsonMap:
    """A mapped JSON file. It can be pickled, and is then mapped again.

    Attributes:
        name: The file, for messages.
        view: A buffer that ends with the file; places are those in this buffer.
        first: Where the file begins in it: other than 0 in an archive.
    """

    def __init__(self, tree: Tree, path: bytes, name: str) -> None:
        """Map a file of the source, or another by its absolute path. Raise UsageError if it cannot be read."""
        self._tree, self._path = tree, path
        self.name = name
        self._newlines: list[int] | None = None
        self._places: dict[tuple[str, ...], dict[str, Range]] = {}
        self._map()

    def __getstate__(self) -> tuple[Tree, bytes, str]:
        return self._tree, self._path, self.name

    def __setstate__(self, state: tuple[Tree, bytes, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _map(self) -> None:
        try:
            with self._tree.open_plain(self._path) as file:
                self.view, self.first = file.mapped()
        except PackerError as error:
            raise UsageError(self.name, error.problem, error.next_step) from None
        except ValueError as error:
            raise UsageError(self.name, str(error), FIX) from None
        except OSError as error:
            raise UsageError(self.name, f"cannot be read: {error.strerror}", "check its name and permissions") from None

    def members(self, names: Sequence[str]) -> dict[str, Range]:
        """Return where the values of these members of the outermost object are; those that are missing are left out.

        Raises:
            UsageError: The file is not JSON in UTF-8, or not an object; the error names the line.
        """
        if (known := self._places.get(tuple(names))) is not None:
            return known
        first = self.first
        if self.view[first : first + 2] in UTF_16:
            raise UsageError(self.name, "is in UTF-16", "save it as UTF-8")
        first += len(BOM) if self.view[first : first + len(BOM)] == BOM else 0
        data = np.frombuffer(self.view, np.uint8)[first:]
        try:
            found = msgspec.json.decode(data.data, type=_struct_of(tuple(names)))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._not_json(error, first) from None
        base = data.ctypes.data - first
        places = self._places[tuple(names)] = {}
        for name in names:
            if size := len(raw := getattr(found, name)):
                start = np.frombuffer(raw, np.uint8).ctypes.data - base
                places[name] = (start, start + size)
        return places

    def mentions(self, name: str, place: Range) -> bool:
        """Return whether a part of the file has members of this name. A map is searched slowly, and pieces are not."""
        word, (start, stop) = b'"%b"' % name.encode(), place
        return any(
            word in self.view[at : min(stop, at + PIECE_BYTES + len(word))] for at in range(start, stop, PIECE_BYTES)
        )

    def objects(self, place: Range, kind: type[T], what: str) -> Iterator[Piece[T]]:
        """Yield the objects of an array, decoded as `kind` and with their places, a piece at a time.

        Args:
            place: Where the array is.
            kind: A msgspec.Struct of the members to decode.
            what: The name of the array, for errors.

        Raises:
            UsageError: It is not an array of objects.
        """
        at, end = place[0] + 1, place[1] - 1
        if self.view[place[0]] != ord("["):
            raise UsageError(self.where(place[0]), f'"{what}" is not a list', FIX)
        decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        while at < end:
            cut, data, heads = self._piece(at, end, decoder, what)
            starts, sizes = _cut_objects(data)
            yield Piece(heads, starts + (at - 1), sizes)
            del data, heads
            at = GAP.match(self.view, cut, end).end()  # type: ignore[union-attr]

    def _piece(
        self, at: int, end: int, decoder: msgspec.json.Decoder[list[T]], what: str
    ) -> tuple[int, bytes, list[T]]:
        """Return the end of a piece that begins with an object, and its objects as an array and decoded.

        What stands between two objects may also stand inside one. A piece that ends there has open brackets, so that it
        cannot be decoded; then a longer one is taken.
        """
        size = PIECE_BYTES
        while True:
            between = BETWEEN.search(self.view, at + size, end) if at + size < end else None
            cut = end if between is None else between.start() + 1
            data = b"".join((b"[", memoryview(self.view)[at:cut], b"]"))
            try:
                return cut, data, decoder.decode(data)
            except msgspec.ValidationError as error:
                problem = f'"{what}" cannot be read: {str(error).partition(" - at ")[0]}'
                raise UsageError(self.where(at), problem, FIX) from None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if cut == end:
                    raise UsageError(self.name, f'"{what}" cannot be read: {error}', FIX) from None
                size = 2 * (cut - at)

    def where(self, offset: int) -> str:
        """Return file and line of a byte, and the byte itself if it is far inside its line."""
        if self._newlines is None:
            blocks = range(self.first, len(self.view), LINES_BLOCK)
            counts = (self.view[start : start + LINES_BLOCK].count(b"\n") for start in blocks)
            self._newlines = [0, *accumulate(counts)]
        block = (offset - self.first) // LINES_BLOCK
        before = self.view[self.first + block * LINES_BLOCK : offset]
        line = self._newlines[block] + before.count(b"\n") + 1
        is_far = len(before) > FAR and b"\n" not in before[-FAR:]
        return f"{self.name}:{line} (byte {offset - self.first})" if is_far else f"{self.name}:{line}"

    def _not_json(self, error: Exception, first: int) -> UsageError:
        if isinstance(error, RecursionError):
            return UsageError(self.name, "is nested too deeply", FIX)
        if isinstance(error, msgspec.ValidationError):
            return UsageError(self.name, "is not an object with members", FIX)
        byte = BYTE.search(str(error))
        if byte is None:
            return UsageError(self.name, "is not complete JSON: it ends too early", "copy or export it again")
        offset = int(byte[1]) + first
        if (word := NOT_JSON.match(self.view, offset)) is not None:
            return UsageError(self.where(offset), f"{word[0].decode()} is not JSON", "write a number or null instead")
        problem = BYTE.sub("", str(error)).removeprefix("JSON is malformed: ").strip()
        return UsageError(self.where(offset), f"is not JSON: {problem}", FIX)


@lru_cache
def _struct_of(names: tuple[str, ...]) -> Any:
    return msgspec.defstruct("Top", [(name, msgspec.Raw, msgspec.Raw()) for name in names])


def _cut_objects(data: bytes) -> tuple[Int64, Int64]:
    """Return the first byte and the size of each object of an array."""
    raws = msgspec.json.decode(data, type=list[msgspec.Raw])
    sizes: NDArray[np.int64] = np.fromiter(map(len, raws), np.int64, len(raws))
    if not len(raws):
        return sizes, sizes
    starts = np.empty(len(raws), np.int64)
    at = 1
    skip = GAP.match
    for number, size in enumerate(sizes.tolist()):
        starts[number] = at = skip(data, at).end()  # type: ignore[union-attr]
        at += size
    return starts, sizes


MEMBERS = ("images", "annotations", "categories")
MOST_CATEGORY_BYTES = 64 << 20
Ids = NDArray[Any]
"""int64, or text if any id of the file is text; "" for none."""


class _Image(msgspec.Struct, gc=False):
    id: Any = None
    file_name: msgspec.Raw = msgspec.Raw()
    coco_url: msgspec.Raw = msgspec.Raw()  # LVIS has no other name
    width: Any = None
    height: Any = None


class _Head(msgspec.Struct, gc=False):
    id: Any = None
    image_id: Any = None
    keypoints: Any = None


_IMAGE = msgspec.json.Decoder(_Image)
_TEXT = msgspec.json.Decoder(str)


class CocoFile:
    """The index of a file.

    Attributes:
        name: The file, for messages.
        classes: The names of its categories, in their order; equal names once.
        flip_index: The mirror image of each keypoint, if their names tell.
        notes: Messages for the user.
        images: The image of each entry that has one, with the number of the entry.

    Raises:
        UsageError: It is not a COCO file.
    """

    def __init__(self, file: JsonMap, images: FileImages, rle_polygons: bool) -> None:
        self.name = file.name
        self._map = file
        self.notes: list[str] = []
        self.images: list[tuple[bytes, int]] = []
        self._bad: list[NoImage | BadLabel] = []
        self._problems: dict[int, tuple[str, str]] = {}
        """Number of an image's entry -> what is wrong with it, and the next step."""
        places = file.members(MEMBERS)
        missing = [name for name in MEMBERS if name not in places]
        if missing:
            members = " and ".join(f'"{name}"' for name in missing)
            raise UsageError(self.name, f"has no {members}, as COCO files of objects have", "name another file")
        self._class_of, points_of, self.flip_index = _categories(file, places["categories"], self.notes)
        self.classes = tuple(dict.fromkeys(self._class_of.values()))
        ids = self._read_images(places["images"], images)
        most_points = self._read_objects(places["annotations"], ids)
        self.rules = Rules(max([most_points, *points_of.values()]), points_of, rle_polygons)
        self.fields = tuple(
            name for name in ("area", "counts", "ignore", "rotation") if file.mentions(name, places["annotations"])
        )
        """Members that any object of the file may have."""
        self.notes += images.notes(self.name)

    def class_of(self, category: Any) -> str:
        """Return the class of a category. Raise ValueError if there is none."""
        key = category if type(category) is int else key_of(category)
        name = self._class_of.get(key) or self._class_of.get(int(str(key)) if is_whole(key) else str(key))
        if name is None:
            raise ValueError(f"is of category {json_text(category)}, which is not in the file")
        return name

    def image(self, row: int) -> tuple[str, Any, tuple[int, int] | None]:
        """Return where an image's entry is, its id, and (width, height) if it has them. Raise BadLabel if it is bad."""
        start = int(self._image_starts[row])
        found = _IMAGE.decode(self._map.view[start : start + int(self._image_sizes[row])])
        origin = f"{self._map.where(start)} (image {json_text(found.id)})"
        if row in self._problems:
            raise BadLabel(origin, *self._problems[row])
        sides = [number_in(side) for side in (found.width, found.height)]
        if not all(side is None or (isinstance(side, int | float) and side == int(side) >= 0) for side in sides):
            problem = f"its size is {json_text(sides[0])} by {json_text(sides[1])}"
            raise BadLabel(origin, problem, "write width and height as whole numbers")
        size = (int(sides[0]), int(sides[1])) if all(sides) else None  # tools that do not know the size write 0
        return origin, found.id, size

    def objects(self, row: int) -> Iterator[CocoObject]:
        """Yield the objects of an image, in the order of the file. Raise BadLabel for one that cannot be read."""
        number, stop = self._begins[row : row + 2].tolist()
        view = self._map.view
        for start, size in zip(self._starts[number:stop].tolist(), self._sizes[number:stop].tolist(), strict=True):
            try:
                yield read_object(view[start : start + size])
            except ValueError as error:  # msgspec's, or of text that is not UTF-8
                raise BadLabel(self._map.where(start), str(error), FIX) from None

    def where(self, row: int, number: int) -> str:
        """Return where the object of this number is, of the image of this entry."""
        place = self._begins[row] + number
        start = int(self._starts[place])
        found = read_object(self._map.view[start : start + int(self._sizes[place])])
        return f"{self._map.where(start)} (object {json_text(found.id)})"

    def unmatched(self) -> Iterator[NoImage | BadLabel]:
        """Yield the images and objects that name nothing."""
        return iter(self._bad)

    # -- reading the file, once

    def _read_images(self, place: Range, images: FileImages) -> Ids:
        """Find the image of each entry, and return the ids of the entries."""
        pieces, starts, sizes = [], [], []
        row = 0
        seen: dict[bytes, int] = {}
        for piece in self._map.objects(place, _Image, "images"):
            pieces.append(_ids(found.id for found in piece.heads))
            starts.append(piece.starts)
            sizes.append(piece.sizes)
            for start, found in zip(piece.starts.tolist(), piece.heads, strict=True):
                image = self._image_of(start, found, images)
                if image is not None and seen.setdefault(image, row) != row:
                    self._problems[row] = ("another entry has the same file_name", "keep one of the entries")
                    self._problems[seen[image]] = self._problems[row]
                elif image is not None:
                    self.images.append((image, row))
                row += 1
        self._image_starts, self._image_sizes = _concatenate(starts), _concatenate(sizes)
        ids = _column(pieces)
        for number in np.unique(_repeated_ids(ids)).tolist():
            self._problems[number] = ("another entry has the same id", "number the images anew")
        return ids

    def _image_of(self, start: int, found: _Image, images: FileImages) -> bytes | None:
        def where() -> str:
            return f"{self._map.where(start)} (image {json_text(found.id)})"

        written = None
        if key_of(found.id) is not None:
            written = _text(bytes(found.file_name)) or _end_of(_text(bytes(found.coco_url)))
        if written is None:
            self._bad.append(BadLabel(where(), "has no id or no file_name", "add them, or remove the image"))
            return None
        image = only_image(images, written, where)
        if isinstance(image, bytes):
            return image
        self._bad.append(image)
        return None

    def _read_objects(self, place: Range, image_ids: Ids) -> int:
        """Sort the objects by the entries of their images, and return the largest number of keypoints."""
        keys, owners, starts, sizes, points = [], [], [], [], 0
        for piece in self._map.objects(place, _Head, "annotations"):
            keys.append(_ids(found.id for found in piece.heads))
            owners.append(_ids(found.image_id for found in piece.heads))
            starts.append(piece.starts)
            sizes.append(piece.sizes)
            points = max([points, *(len(h.keypoints) // 3 for h in piece.heads if isinstance(h.keypoints, list))])
        rows = _places(_column(owners), image_ids)
        ids, first = _column(keys), _concatenate(starts)
        for number in _repeated_ids(ids).tolist():
            if rows[number] >= 0 and rows[number] not in self._problems:
                where = self._map.where(int(first[number]))
                problem = f"another object has the same id as object {json_text(ids[number].item())} at {where}"
                self._problems[int(rows[number])] = (problem, "number the objects anew, or remove one")
        for number in np.flatnonzero(rows < 0).tolist():
            problem = "is of an image that the file does not have"
            where = f"{self._map.where(int(first[number]))} (object {json_text(ids[number].item())})"
            self._bad.append(NoImage(where, problem, "add the image, or remove the object"))
        order = np.argsort(rows, kind="stable")
        order = order[np.searchsorted(rows[order], 0) :]
        self._starts, self._sizes = first[order], _concatenate(sizes)[order]
        self._begins = np.searchsorted(rows[order], np.arange(len(image_ids) + 1))
        return points


def _text(raw: bytes) -> bytes | None:
    """Return the bytes of a JSON text that is not empty; None for any other value."""
    try:
        return _TEXT.decode(raw).encode() or None
    except (msgspec.MsgspecError, ValueError):
        pass  # no text, or one of bytes that are not UTF-8
    try:
        text = json.loads(raw.decode("utf-8", "surrogateescape"))
        return as_bytes(text) or None if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _end_of(url: bytes | None) -> bytes | None:
    """Return folder and name at the end of a URL."""
    return url and b"/".join(url.split(b"/")[-2:])


def _ids(values: Iterable[Any]) -> Ids:
    """Return a column of ids."""
    keys = list(values)
    if set(map(type, keys)) <= {int}:
        with suppress(OverflowError):
            return np.array(keys, np.int64)
    return np.array(["" if (key := key_of(value)) is None else str(key) for value in keys], np.str_)


def _concatenate(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _column(pieces: Sequence[Ids]) -> Ids:
    if any(piece.dtype.kind == "U" for piece in pieces):
        pieces = [piece.astype(np.str_) for piece in pieces]
    return _concatenate(pieces)


def _repeated_ids(ids: Ids) -> Int64:
    """Return the numbers of the ids that appear more than once; "" is no id."""
    order = np.argsort(ids, kind="stable")
    alike = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    numbers = np.concatenate([order[alike], order[alike + 1]])
    return numbers[ids[numbers] != ""] if ids.dtype.kind == "U" else numbers


def _places(wanted: Ids, ids: Ids) -> Int64:
    """Return the place of each wanted id in `ids`, -1 for none."""
    if wanted.dtype.kind != ids.dtype.kind:
        wanted, ids = wanted.astype(np.str_), ids.astype(np.str_)
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind="stable")
    places = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where((ids[places] == wanted) & (wanted != "" if wanted.dtype.kind == "U" else True), places, -1)


def classes_in(file: JsonMap) -> tuple[str, ...]:
    """Return the `classes` of a file, of which nothing else is read; () if it has no categories."""
    return tuple(dict.fromkeys(categories_in(file).values()))


def categories_in(file: JsonMap) -> dict[Any, str]:
    """Return the class of each category of a file, of which nothing else is read; none if it has no categories."""
    place = file.members(MEMBERS).get("categories")
    return {} if place is None else _categories(file, place, [])[0]


def _categories(
    file: JsonMap, place: Range, notes: list[str]
) -> tuple[dict[Any, str], dict[Any, int], tuple[int, ...] | None]:
    """Return the class of each category, the number of its keypoints, and their flip index."""
    where = file.where(place[0])
    try:
        if place[1] - place[0] > MOST_CATEGORY_BYTES:
            raise ValueError("is too long")
        loaded = json.loads(file.view[slice(*place)])
    except (ValueError, RecursionError) as error:
        raise UsageError(where, f'"categories" cannot be read: {error}', FIX) from None
    if not isinstance(loaded, list) or len(loaded) > MOST_CLASSES:
        raise UsageError(where, f'"categories" is not a list of at most {MOST_CLASSES} categories', FIX)
    class_of: dict[Any, str] = {}
    points_of: dict[Any, int] = {}
    flips = set()
    for entry in loaded:
        key, name = (key_of(entry.get("id")), entry.get("name")) if isinstance(entry, dict) else (None, None)
        if key is None or not isinstance(name, str) or not name:
            raise UsageError(where, f"the category {json_text(entry)} has no id or no name", FIX)
        if class_of.setdefault(key, name) != name:
            problem = f"category {json_text(key)} is both {quoted_value(class_of[key])} and {quoted_value(name)}"
            raise UsageError(where, problem, "give each category an id of its own")
        points = entry.get("keypoints")
        if isinstance(points, list) and points:
            points_of[key] = len(points)
            texts = all(isinstance(point, str) for point in points)
            flips.add(flip_index_of(points) if texts else None)
    keys_of: dict[str, list[Any]] = {}
    for key, name in class_of.items():
        keys_of.setdefault(name, []).append(key)
    for name, keys in keys_of.items():
        if len(keys) > 1:  # Roboflow names its first category like the whole set
            listed = ", ".join(map(json_text, keys))
            notes.append(f"{file.name}: categories {listed} are all named {quoted_value(name)}, and are one class")
    return class_of, points_of, flips.pop() if len(flips) == 1 else None
