"""TFRecords of tf.train.Example, with the feature names of TensorFlow's detection API, of ImageNet, or given ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice

import numpy as np

from packer.containers.container import looks_like_image
from packer.containers.tfrecord import ANNOTATION, FILENAME, IMAGE, KEY
from packer.errors import BadImage, BadLabel, printable
from packer.files.record_frames import fields_of, read_varint, tfrecord_frames
from packer.model.annotation import RawAnnotation
from packer.repack.formats import (
    LABEL_NAMES,
    Class,
    ForeignFile,
    Format,
    FormatOptions,
    Known,
    Masked,
    Numbered,
    Pairs,
    Pixels,
    Rich,
    Row,
    packer_annotation_of,
    whole_number,
)
from packer.sources.paths import MASK_NAMES

IMAGES = (IMAGE, b"image", b"image_raw", b"image_bytes", b"img", b"jpg", b"jpeg", b"encoded")
LABELS = (b"image/class/label", *(name.encode() for name in LABEL_NAMES), b"image/label")
MASKS = (b"image/segmentation/class/encoded", b"image/mask/encoded", *(name.encode() for name in MASK_NAMES))
TEXTS = (b"image/class/text", b"class_name", b"label_name", b"class_text")
SIZES = ((b"image/height", b"height"), (b"image/width", b"width"), (b"image/channels", b"depth", b"channels"))
BOX = tuple(b"image/object/bbox/" + side for side in (b"xmin", b"ymin", b"xmax", b"ymax"))
BOX_LABEL, BOX_TEXT = b"image/object/class/label", b"image/object/class/text"
FLAGS = {
    b"difficult": "difficult", b"truncated": "truncated", b"occluded": "occluded", b"is_crowd": "iscrowd",
    b"group_of": "iscrowd",
}  # fmt: skip
"""Flags of objects, in TensorFlow's detection (create_coco_tf_record.py, create_oid_tf_record.py) -> box fields."""
BYTES, FLOATS, INTEGERS = 1, 2, 3
LOOKED_AT = 64
"""Examples among which masks are looked for."""

Feature = tuple[int, int, int]
"""Kind of the list, and where it begins and ends."""


class TFRecord(Format):
    """Reads the images of Examples; roles are image, label, text (the name of the class) and mask."""

    roles = ("image", "label", "text", "mask")

    def __init__(self, options: FormatOptions) -> None:
        super().__init__(options)
        asked = {role: (name.encode(),) for role, name in self.columns.items()}
        self._image = asked.get("image", IMAGES)
        self._label = asked.get("label", LABELS)
        self._text = asked.get("text", () if "label" in asked else TEXTS)
        self._asked = "label" in asked
        self._mask: bytes | None = None

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        with memoryview(file.view) as data:
            mask = self.choose_mask(self._pictures(file, data))
            self._mask = None if mask is None else mask.encode()
            self.notes += [f"left out: {printable(name)}: {why}" for name, why in self.obstacles.items()]
            for number, (start, stop) in enumerate(tfrecord_frames(file.path, data)):
                path = b"%08d" % number
                try:
                    features = features_of(data, start, stop)
                    row = self._row(file, data, features, path)
                except (ValueError, IndexError) as error:
                    problem = f"the frame at byte {start - 12} is not a readable Example: {error}"
                    raise file.damaged(problem) from None
                if row is None:
                    names = ", ".join(sorted(name.decode("utf-8", "backslashreplace") for name in features)[:8])
                    step = "name it: --columns=image=FEATURE"
                    yield path, start, 0, BadImage("", f"an Example without an image (features: {names})", step), None
                else:
                    yield row

    def _pictures(self, file: ForeignFile, data: memoryview) -> dict[str, Pairs]:
        """Return the pictures beside the images of the first Examples: those that are called masks, or asked for."""
        found: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
        with suppress(ValueError, IndexError):  # the error of reading it says which frame it is
            for start, stop in islice(tfrecord_frames(file.path, data), LOOKED_AT):
                features = features_of(data, start, stop)
                image = next((name for name in self._image if name in features), None)
                for name in {*features} - {image} if "mask" in self.columns else features.keys() & MASKS:
                    place = slice(*first_bytes(data, *features[name]))
                    if image is not None and looks_like_image(bytes(data[place][:12])):
                        picture = bytes(data[slice(*first_bytes(data, *features[image]))])
                        found[name].append((picture if looks_like_image(picture[:12]) else b"", bytes(data[place])))
        return {name.decode("utf-8", "replace"): found[name] for name in sorted(found, key=_likelihood)}

    def _row(self, file: ForeignFile, data: memoryview, features: dict[bytes, Feature], path: bytes) -> Row | None:
        for name in self._image:
            if (image := features.get(name)) is not None and image[0] == BYTES:
                break
        else:
            return None
        start, stop = first_bytes(data, *image)
        for name in (FILENAME, KEY):
            if name in features and features[name][0] == BYTES:
                first, last = first_bytes(data, *features[name])
                if last > first:
                    path = bytes(data[first:last])
                    break
        pixels = None
        if len(features) > 3 and not looks_like_image(bytes(data[start : start + 12])):
            pixels = self._pixels(data, features, stop - start)
        mask = features.pop(self._mask, None) if self._mask is not None else None
        known = self._known(file, data, features, path)
        if mask is None:
            return path, start, stop - start, known, pixels
        first, last = first_bytes(data, *mask)
        return path, start, stop - start, Masked(known, first, last - first), pixels

    def _known(self, file: ForeignFile, data: memoryview, features: dict[bytes, Feature], path: bytes) -> Known:
        if ANNOTATION in features and not self._asked:
            first, last = first_bytes(data, *features[ANNOTATION])
            return packer_annotation_of(bytes(data[first:last]), f"{file.name}: {path.decode(errors='replace')}")
        label: Class = None
        for name in self._label:
            if (found := features.get(name)) is not None:
                label = class_in(data, *found)
                break
        for name in self._text:
            if (found := features.get(name)) is not None and found[0] == BYTES:
                first, last = first_bytes(data, *found)
                text = bytes(data[first:last]).decode("utf-8", "surrogateescape")
                if text:
                    label = Numbered(label, text) if type(label) is int else text
                break
        if BOX[0] not in features or self._asked:
            return label
        origin = f"{file.name}: {path.decode(errors='replace')}"
        boxes = [floats_in(data, *features[name]) if name in features else [] for name in BOX]
        ids = numbers_in(data, *features[BOX_LABEL]) if BOX_LABEL in features else []
        texts = texts_in(data, *features[BOX_TEXT]) if BOX_TEXT in features else []
        count = len(boxes[0])
        if any(len(side) != count for side in boxes) or any(values and len(values) != count for values in (ids, texts)):
            return BadLabel(origin, "its lists of boxes and their classes have different lengths", "correct the label")
        raw = RawAnnotation(
            origin=origin,
            boxes=tuple(zip(*boxes, strict=True)),
            box_labels=tuple(map(str, ids)) if ids else tuple(texts) if texts or not count else None,
            box_fields=_flags(data, features, count),
            relative=True,
            image_size=self._size(data, features),
        )
        return Rich(label, raw, dict(zip(ids, texts, strict=True)) if ids and texts else {})

    def _size(self, data: memoryview, features: Mapping[bytes, Feature]) -> tuple[int, int] | None:
        sides = [next((numbers_in(data, *features[name]) for name in names if name in features), []) for names in SIZES]
        height, width, _ = sides
        return (width[0], height[0]) if len(height) == len(width) == 1 else None

    def _pixels(self, data: memoryview, features: Mapping[bytes, Feature], size: int) -> Pixels | None:
        """Return the shape of raw pixels: height, width and depth beside them, if they have just as many bytes."""
        sides = [next((numbers_in(data, *features[name]) for name in names if name in features), []) for names in SIZES]
        if not (sides[0] and sides[1]):
            return None
        height, width, channels = sides[0][0], sides[1][0], sides[2][0] if sides[2] else 1
        return Pixels(height, width, channels) if height * width * channels == size else None


def _likelihood(name: bytes) -> int:
    return MASKS.index(name) if name in MASKS else len(MASKS)


def _flags(data: memoryview, features: Mapping[bytes, Feature], count: int) -> dict[str, tuple[int, ...]]:
    found = {name: features.get(b"image/object/" + name) for name in FLAGS}
    values = {FLAGS[name]: tuple(numbers_in(data, *place)) for name, place in found.items() if place is not None}
    return {name: numbers for name, numbers in values.items() if len(numbers) == count}


def features_of(data: memoryview, start: int, stop: int) -> dict[bytes, Feature]:
    """Return the place of the values of each feature of an Example. Raise ValueError or IndexError if it is not one.

    The usual encoding is read here, byte by byte and without a call for each number; the rest by `fields_of`.
    """
    found: dict[bytes, Feature] = {}
    at = start
    while at < stop:
        if data[at] != 0x0A:
            return _slowly(data, start, stop)
        size = data[at + 1]
        at += 2
        if size > 127:
            size, at = read_varint(data, at - 1)
        end = at + size
        if end > stop:
            raise ValueError("it ends too early")
        while at < end:
            if data[at] != 0x0A:
                return _slowly(data, start, stop)
            size = data[at + 1]
            at += 2
            if size > 127:
                size, at = read_varint(data, at - 1)
            after = at + size
            length = data[at + 1]
            if after > end or data[at] != 0x0A or length > 127:
                return _slowly(data, start, stop)
            name = bytes(data[at + 2 : at + 2 + length])
            at += 2 + length
            if at < after:
                if data[at] != 0x12:
                    return _slowly(data, start, stop)
                size = data[at + 1]
                at += 2
                if size > 127:
                    size, at = read_varint(data, at - 1)
                if at + size != after:
                    return _slowly(data, start, stop)
                if size:
                    kind = data[at]
                    size = data[at + 1]
                    at += 2
                    if size > 127:
                        size, at = read_varint(data, at - 1)
                    if at + size != after or kind & 7 != 2:
                        return _slowly(data, start, stop)
                    found[name] = kind >> 3, at, after
            at = after
    return found


def _slowly(data: memoryview, start: int, stop: int) -> dict[bytes, Feature]:
    found: dict[bytes, Feature] = {}
    for features in fields_of(data, start, stop, 1):
        for entry in fields_of(data, *features, 1):
            for first, last in fields_of(data, *entry, 1):
                for feature in fields_of(data, *entry, 2):
                    for kind in (BYTES, FLOATS, INTEGERS):
                        for place in fields_of(data, *feature, kind):
                            found[bytes(data[first:last])] = (kind, *place)
    return found


def first_bytes(data: memoryview, kind: int, start: int, stop: int) -> tuple[int, int]:
    """Return where the first value of a list of bytes is; (start, start) if there is none."""
    if kind != BYTES or start >= stop:
        return start, start
    if data[start] != 0x0A:
        return next(fields_of(data, start, stop, 1), (start, start))
    size, at = data[start + 1], start + 2
    if size > 127:
        size, at = read_varint(data, start + 1)
    if at + size > stop:
        raise ValueError("a value ends behind its list")
    return at, at + size


def texts_in(data: memoryview, kind: int, start: int, stop: int) -> list[str]:
    """Return a list of bytes as texts."""
    if kind != BYTES:
        return []
    places = fields_of(data, start, stop, 1)
    return [bytes(data[first:last]).decode("utf-8", "surrogateescape") for first, last in places]


def floats_in(data: memoryview, kind: int, start: int, stop: int) -> list[float]:
    """Return a list of floats, packed or not."""
    if kind != FLOATS:
        return []
    values: list[float] = []
    for first, last in fields_of(data, start, stop, 1):
        if (last - first) % 4:
            raise ValueError("a list of floats of another size than a multiple of 4")
        values += np.frombuffer(data[first:last], "<f4").tolist()
    if not values and stop - start and (stop - start) % 5 == 0:  # not packed: a tag before each
        values = np.frombuffer(data[start:stop], np.dtype([("tag", "u1"), ("value", "<f4")]))["value"].tolist()
    return values


def numbers_in(data: memoryview, kind: int, start: int, stop: int) -> list[int]:
    """Return a list of whole numbers, packed or not."""
    if kind != INTEGERS:
        return []
    values: list[int] = []
    at = start
    while at < stop:
        tag = data[at]
        if tag == 0x0A:
            size, at = read_varint(data, at + 1)
            end = at + size
        elif tag == 0x08:
            at, end = at + 1, at + 2
        else:
            raise ValueError("a list of numbers that is none")
        if end > stop:
            raise ValueError("a value ends behind its list")
        while at < end:
            value, at = read_varint(data, at)
            values.append(value - (1 << 64) if value >> 63 else value)
    return values


def class_in(data: memoryview, kind: int, start: int, stop: int) -> Class:
    """Return the class in a feature: a number, or a text."""
    if kind == INTEGERS:
        if stop - start == 3 and data[start] == 0x0A and data[start + 2] < 128:
            return data[start + 2]
        values = numbers_in(data, kind, start, stop)
        return values[0] if values else None
    if kind == BYTES:
        first, last = first_bytes(data, kind, start, stop)
        text = bytes(data[first:last])
        number = whole_number(text)
        return number if number is not None else text.decode("utf-8", "surrogateescape") or None
    floats = floats_in(data, kind, start, stop)
    return int(floats[0]) if floats and floats[0].is_integer() else None
