"""CVAT's XML ("CVAT for images 1.1", "CVAT for video 1.1"): boxes, polygons, points, skeletons, tags, tracks.

Coordinates are continuous, from the top left corner. A rotated box is an oriented one. A point set is the landmarks of
its image if no image has two of them, and keypoints otherwise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from xml.etree.ElementTree import Element, ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import iterparse

from packer.errors import BadImage, BadLabel, UsageError, printable
from packer.model.annotation import Json
from packer.sources.box_corners import turned
from packer.sources.by_name import (
    MASK,
    VISIBLE,
    Bitmap,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    place_point_sets,
)
from packer.sources.coco_objects import check_pixels
from packer.sources.paths import as_bytes, folder_of, is_number, number, quoted_value, stem_of
from packer.sources.places import stream_of
from packer.sources.source import Tree

SHAPES = frozenset({"box", "polygon", "points", "skeleton", "polyline", "ellipse", "mask", "cuboid"})
NO_FIELD = frozenset({"polyline", "ellipse", "cuboid"})
FRAME = re.compile(rb"frame_([0-9]{6,9})")
HIDDEN = 1.0


class _CvatFile:
    def __init__(self, tree: Tree, path: bytes, with_masks: bool) -> None:
        self._tree, self._path, self._new = tree, path, partial(LabelledObjects, with_masks=with_masks)
        self._size: tuple[int, int] | None = None
        """(width, height) of the video, or of the image that is read."""
        self._points_of: dict[str, list[str]] = defaultdict(list)
        """Skeleton -> the names of its points, in order."""
        self._kinds: dict[str, str] = {}
        """Attribute -> its kind: number, checkbox, ..."""
        self._frames: dict[int, LabelledObjects] = defaultdict(self._new)
        self._num_frames = 0
        self._problems: dict[int, str] = {}
        """Frame -> what is wrong with a shape in it."""

    def entries(self) -> Iterator[ImageEntry]:
        """Yield the images of the file, then the frames of its tracks."""
        try:
            with self._tree.open(self._path) as file:
                for _, element in iterparse(stream_of(file), events=("end",), forbid_dtd=True):
                    if element.tag == "meta":
                        self._read_meta(element)
                        element.clear()
                    elif element.tag == "image":
                        yield self._image(element)
                        element.clear()
                    elif element.tag == "track":
                        self._track(element)
                        element.clear()
        except DefusedXmlException:
            raise UsageError(self._path, "has a DTD or entities, which may hide an attack", "remove them") from None
        except BadImage as error:
            raise UsageError(self._path, error.problem, error.next_step) from None
        except (ParseError, ValueError, LookupError, OSError) as error:  # LookupError: an unknown encoding
            raise UsageError(self._path, f"cannot be read: {error}", "export it again") from None
        for frame in sorted(self._frames.keys() | self._empty_frames()) if self._frames else ():
            origin = f"{printable(self._path)}: frame {frame}"
            objects: LabelledObjects | BadLabel = self._frames[frame]
            if frame in self._problems:
                objects = BadLabel(origin, self._problems[frame], "fix the label")
            yield ImageEntry(origin, f"frame_{frame:06d}".encode(), objects, folder_of(self._path))

    def _empty_frames(self) -> set[int]:
        """Return the frames of which there is an image: a short file may say that it has a billion of them."""
        found = {int(name[1]) for image in self._tree.images if (name := FRAME.fullmatch(stem_of(image)))}
        return {frame for frame in found if frame < self._num_frames}

    def _read_meta(self, meta: Element) -> None:
        for label in meta.iter("label"):
            if parent := label.findtext("parent"):
                self._points_of[parent].append(label.findtext("name", ""))
            for attribute in label.iter("attribute"):
                self._kinds[attribute.findtext("name", "")] = attribute.findtext("input_type", "")
        sides = [meta.findtext(f".//original_size/{side}", "").encode() for side in ("width", "height")]
        if all(map(is_number, sides)):
            self._size = int(number(sides[0])), int(number(sides[1]))
        # a task of a part of a video numbers its frames as the video does
        texts = [next((one.text or "" for one in meta.iter(tag)), "").encode() for tag in ("size", "stop_frame")]
        size, last = (int(number(text)) if is_number(text) else -1 for text in texts)
        self._num_frames = max(size, last + 1)

    def _image(self, image: Element) -> ImageEntry:
        name = image.get("name", "")
        origin = f"{printable(self._path)}: image {quoted_value(name)}"
        objects: LabelledObjects | BadLabel = (shapes := self._new())
        size = None
        try:
            width, height = (int(number(image.get(side, "0").encode())) for side in ("width", "height"))
            self._size = size = (width, height) if width and height else None
            for shape in image:
                self._add(shapes, shape, shape.get("label"))
        except ValueError as error:
            objects = BadLabel(origin, str(error), "fix the label")
        return ImageEntry(origin, as_bytes(name), objects, folder_of(self._path), image.get("subset"), size)

    def _track(self, track: Element) -> None:
        for shape in track:
            if shape.get("outside") != "1":  # the object has left the picture
                frame = _whole(shape, "frame")
                try:
                    self._add(self._frames[frame], shape, track.get("label"), {"track": _whole(track, "id", "0")})
                except ValueError as error:
                    self._problems.setdefault(frame, str(error))

    def _add(
        self, objects: LabelledObjects, shape: Element, name: str | None, more: dict[str, Json] | None = None
    ) -> None:
        if shape.tag == "tag":
            objects.labels.append(name or "")
            objects.extras |= self._attributes(shape)
            return
        if shape.tag not in SHAPES:
            return
        if shape.tag in NO_FIELD:
            objects.no_field[shape.tag] += 1
            return
        fields: dict[str, Json] = {"occluded": int(shape.get("occluded") == "1"), **(more or {})}
        fields |= self._attributes(shape)
        if shape.tag == "box":
            left, top, right, bottom = (_number(shape, edge) for edge in ("xtl", "ytl", "xbr", "ybr"))
            box = left, top, right, bottom
            angle = _number(shape, "rotation") if shape.get("rotation") else 0.0
            obb = turned(box, angle, ((left + right) / 2, (top + bottom) / 2)) if angle else ()
            objects.add(name, None if angle else box, fields=fields, obb=obb)
        elif shape.tag == MASK:
            objects.add_mask(name, self._bitmap(shape), fields)
        elif shape.tag == "polygon":
            objects.add(name, polygon=_points(shape), fields=fields)
        elif shape.tag == "points":
            objects.point_sets.append((name, _points(shape), fields))
        else:
            objects.add(name, keypoints=self._skeleton(shape, name or ""), fields=fields)

    def _bitmap(self, shape: Element) -> Bitmap:
        """Return a mask: runs of its own box, row by row, beginning with those outside."""
        width, height = _whole(shape, "width"), _whole(shape, "height")
        texts = [text.strip() for text in shape.get("rle", "").split(",")]
        runs = [int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1 for text in texts]
        if min(runs) < 0 or sum(runs) != width * height:
            raise ValueError(f"<mask> rle is not of {width}x{height} pixels")
        check_pixels(width, height)
        at = _whole(shape, "left"), _whole(shape, "top")
        return Bitmap(lambda: np.repeat(np.arange(len(runs)) & 1, runs).reshape(height, width), at, self._size)

    def _skeleton(self, skeleton: Element, name: str) -> list[tuple[float, float, float]]:
        order = self._points_of[name]
        found = {}
        for point in skeleton.findall("points"):
            label = point.get("label", "")
            if label not in order:
                order.append(label)
            ((x, y),) = _points(point)
            seen = HIDDEN if point.get("occluded") == "1" else VISIBLE
            found[label] = (0.0, 0.0, 0.0) if point.get("outside") == "1" else (x, y, seen)
        return [found.get(label, (0.0, 0.0, 0.0)) for label in order]

    def _attributes(self, shape: Element) -> dict[str, Json]:
        found = ((one.get("name", ""), one.text or "") for one in shape.findall("attribute"))
        return {name: self._value(name, text) for name, text in found}

    def _value(self, name: str, text: str) -> Json:
        if self._kinds.get(name) == "checkbox":
            return int(text == "true")
        if self._kinds.get(name) == "number" and is_number(text.encode()):
            return number(text.encode())
        return text


def _number(shape: Element, name: str) -> float:
    try:
        return number(shape.get(name, "").encode())
    except ValueError as error:
        raise ValueError(f"<{shape.tag}> {name}: {error}") from None


def _whole(element: Element, name: str, default: str = "") -> int:
    text = element.get(name, default)
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise ValueError(f"<{element.tag}> {name}: {quoted_value(text)} is not a whole number")
    return int(text)


def _points(shape: Element) -> tuple[tuple[float, float], ...]:
    pairs = [pair.split(",") for pair in shape.get("points", "").split(";")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"<{shape.tag}> points are not x,y;x,y")
    return tuple((number(x.encode()), number(y.encode())) for x, y in pairs)


class CvatSource(NamedFilesSource):
    """XML files of CVAT."""

    kind, ending, words = "cvat", b".xml", (b"<annotations", b"<version>")
    are = "is an export of CVAT", "are exports of CVAT"

    def entries(self, tree: Tree, files: Sequence[bytes]) -> list[ImageEntry]:
        """Return the entries of all files, when it is known whether an image of any has two point sets."""
        entries = [entry for path in files for entry in _CvatFile(tree, path, self.instance_masks).entries()]
        sets = [entry.objects for entry in entries if isinstance(entry.objects, LabelledObjects)]
        place_point_sets(sets)
        return entries
