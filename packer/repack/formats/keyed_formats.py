"""Tars of WebDataset, LMDB files and RecordIO: an image and its labels under a key or a number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from packer.containers.container import IMAGE_EXTENSIONS, looks_like_image
from packer.containers.recordio import CONTAINER
from packer.errors import BadImage, BadInput, BadLabel, DamagedPack, NoImage, UsageError, printable
from packer.files.record_frames import HEADER, read_varint, recordio_frames
from packer.files.tar_segments import tar_files
from packer.model.annotation import RawAnnotation
from packer.model.record_json import packer_annotation
from packer.repack.formats import (
    GET_AGAIN,
    LABEL_NAMES,
    MOST_TEXT_BYTES,
    NPY,
    TEXT_NAMES,
    ForeignFile,
    Format,
    FormatOptions,
    Known,
    Masked,
    Numbered,
    Pairs,
    Rich,
    Row,
    class_of,
    json_of,
    packer_annotation_of,
    packer_rows,
    whole_number,
)
from packer.sources.folder import MASK_ENDING
from packer.sources.paths import MASK_NAMES, MOST_CLASSES

IMAGES = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
TEXTS = frozenset((b"cls", b"class", b"label", b"txt", b"text", b"caption", b"json"))
CAPTIONS = frozenset((b"txt", b"text", b"caption"))
CLASS = (b"cls", b"class", b"label")

IMAGE, OTHER, MASK = b"/", b"//", b"///"
"""Kinds of members beside the extensions of texts; no extension has a slash."""
MOST_SPELLINGS = 1 << 16
END: Image = (b"\0.", 0, 0)
"""After the last member: no name ends like this."""
LOOKED_AT = 1024
"""Members among which masks are looked for."""

Image = tuple[bytes, int, int]


# Tar files of WebDataset: the members of a sample have one name up to the first dot.
#
# https://github.com/webdataset/webdataset: an image, with its class in ``cls`` (a number or a name), ``json`` or
# ``txt``.


class WebDataset(Format):
    """Reads the images of a tar, sample by sample.

    Of the roles, ``image`` is the extension of the images (``jpg``), ``label`` that of the class (``txt``), or a field
    of the JSON (``json:category``), and ``mask`` that of the masks (``seg.png``).
    """

    roles = ("image", "label", "mask")

    def __init__(self, options: FormatOptions) -> None:
        super().__init__(options)
        if "mask" in self.columns:
            self.columns = {**self.columns, "mask": self.columns["mask"].lower().lstrip(".")}
        asked = self.columns.get("label", "")
        self._field = asked[len("json:") :] if asked.startswith("json:") else None
        self._label = None if self._field or not asked else asked.lower().lstrip(".").encode()
        image = self.columns.get("image")
        self._images = frozenset((image.lower().lstrip(".").encode(),)) if image else IMAGES
        self._texts = TEXTS | ({self._label} if self._label else set())
        self._captions = 0
        self._left_out: Counter[bytes] = Counter()
        """The extensions of masks beside images."""
        self._mask: bytes | None = None
        """The extension of the masks that are read."""
        self._kinds: dict[bytes, bytes] = {}
        self._plain: dict[bytes, Known] = {}
        """The classes of small files: they have few spellings."""

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        mask = self.choose_mask(self._pictures(file))
        self._mask = None if mask is None else mask.encode("utf-8")
        kinds = self._kinds = {}
        last = b""
        images: list[Image] = []
        texts: dict[bytes, tuple[int, int]] = {}
        its_mask: Image | None = None
        for member in chain(tar_files(file.view, file.path), (END,)):
            name, start, size = member
            key, _, extension = name.partition(b".")
            kind = kinds.get(extension)
            if kind is None:
                dot = name.find(b".", name.rfind(b"/") + 1)
                if dot < 0:
                    continue
                key, kind = name[:dot], self._kind(name[dot + 1 :])
            if key != last:
                if images:
                    known = self._class(file, images, texts) if texts else None
                    for path, at, count in self._without_masks(images):
                        yield path, at, count, known if its_mask is None else Masked(known, *its_mask[1:]), None
                        its_mask = None
                    images = []
                elif its_mask is not None:
                    error = NoImage("", "is a mask without an image", "add the image, or remove the mask")
                    yield its_mask[0], 0, 0, error, None
                last, texts, its_mask = key, {}, None
            if kind is IMAGE:
                images.append(member)
            elif kind is MASK:
                its_mask = member
            elif kind is not OTHER:
                texts[kind] = start, size
        for name, times in sorted(self._left_out.items()):
            why = self.obstacles.get(name.lower().decode(errors="replace"), "not the masks that are read")
            self.notes.append(f"left out: {times:,} {printable(name)} of the samples: {why}")
        if self._captions:
            self.notes.append("texts are kept as fields of the images; --columns label=txt makes them classes")

    def _pictures(self, file: ForeignFile) -> dict[str, Pairs]:
        """Return the pictures beside the images of the first samples: those that are called masks, or asked for."""
        samples: dict[bytes, dict[bytes, tuple[int, int]]] = defaultdict(dict)
        for name, start, size in islice(tar_files(file.view, file.path), LOOKED_AT):
            _, dot, extension = name[name.rfind(b"/") + 1 :].lower().partition(b".")
            if dot and extension.rpartition(b".")[2] in IMAGES:
                samples[name[: len(name) - len(extension)]][extension] = start, start + size
        called = {f"{name}.{kind.decode()}".encode(): None for name in MASK_NAMES for kind in sorted(IMAGES)}
        there = dict.fromkeys(extension for sample in samples.values() if len(sample) > 1 for extension in sample)
        wanted = there if "mask" in self.columns else [extension for extension in called if extension in there]

        def pairs(mask: bytes) -> Pairs:
            for sample in samples.values():
                image = next((place for name, place in sample.items() if name != mask and name not in called), None)
                if mask in sample and image is not None:
                    data = file.view[slice(*image)]
                    yield b"" if data[:6] == NPY else data, file.view[slice(*sample[mask])]

        return {mask.decode("utf-8", "backslashreplace"): pairs(mask) for mask in wanted}

    def _without_masks(self, images: list[Image]) -> list[Image]:
        """Return the images of a sample but those that are masks of another."""
        if len(images) < 2:
            return images
        found = [image for image in images if MASK_ENDING.search(image[0].rpartition(b".")[0]) is None]
        if not found or len(found) == len(images):
            return images
        self._left_out.update(image[0].rpartition(b"/")[2].partition(b".")[2] for image in images if image not in found)
        return found

    def _kind(self, extension: bytes) -> bytes:
        """Return what the extension of a member says of it: IMAGE, OTHER, or the extension in `_texts`."""
        lower = extension.lower()
        kind = OTHER
        if lower == self._mask:
            kind = MASK
        elif extension in self._texts:
            kind = extension
        elif lower in self._images or lower.rpartition(b".")[2] in self._images:
            kind = IMAGE
        elif lower in self._texts:
            kind = lower
        if extension and b"/" not in extension and len(self._kinds) < MOST_SPELLINGS:
            self._kinds[extension] = kind
        return kind

    def _class(self, file: ForeignFile, images: list[Image], texts: dict[bytes, tuple[int, int]]) -> Known:
        """Return what a sample says of its images; quickly if that is a small file with the class."""
        if len(texts) > 1 or self._label is not None or b"cls" not in texts:
            return self._known(file, images, texts)
        start, size = texts[b"cls"]
        text = file.view[start : start + size] if size <= MOST_TEXT_BYTES else b""
        known = self._plain.get(text)
        if known is None:
            known = class_text(text)
            if len(self._plain) < MOST_SPELLINGS:
                self._plain[text] = known
        return known

    def _known(self, file: ForeignFile, images: list[Image], texts: dict[bytes, tuple[int, int]]) -> Known:
        """Return what the members of a sample say of its images."""
        origin = f"{file.name}: {printable(images[0][0])}"
        content: dict[bytes, bytes] = {}
        for extension, (start, size) in texts.items():
            if size > MOST_TEXT_BYTES:
                return BadLabel(origin, f"its {printable(extension)} has {size} bytes", "correct the label")
            content[extension] = file.view[start : start + size]
        extras: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        if b"json" in content:
            said = json_label(content.pop(b"json"), origin)
            if not isinstance(said, dict):
                return said
            fields = said
        known: Known = None
        chosen = (self._label,) if self._label else CLASS
        if self._field is None and (of_class := next((name for name in chosen if name in content), None)):
            known = class_text(content.pop(of_class))
        if fields:
            names = (self._field,) if self._field else () if self._label else LABEL_NAMES
            number = next((fields.pop(name) for name in names if name in fields), None)
            title = next((fields.pop(name) for name in TEXT_NAMES if type(fields.get(name)) is str), None)
            if known is None:
                known = class_of(number, title, origin)
            elif type(known) is int and title:
                known = Numbered(known, title)
        for extension in sorted(CAPTIONS & content.keys()):
            number = whole_number(content[extension]) if known is None and not self._field else None
            if number is None:
                extras[extension.decode()] = content[extension].decode("utf-8", "backslashreplace")
                self._captions += 1
            else:
                known = number
        extras.update(fields)
        return with_extras(known, extras, origin)


def json_label(text: bytes, origin: str) -> dict[str, Any] | Known:
    """Return the fields of a label in JSON; or what it says, if packer wrote it; or why it cannot be read."""
    if packer_annotation(text) is not None:
        return packer_annotation_of(text, origin)
    try:
        fields = json_of(text)
    except ValueError as error:
        return BadLabel(origin, f"its json cannot be read: {error}", "correct the label")
    return fields if isinstance(fields, dict) else BadLabel(origin, "its json is not an object", "correct the label")


def class_text(text: bytes) -> Known:
    """Return the class that a small file holds."""
    text = text.strip()
    number = whole_number(text)
    return number if number is not None else text.decode("utf-8", "surrogateescape") or None


def with_extras(known: Known, extras: dict[str, Any], origin: str) -> Known:
    """Return a class with more fields of the image."""
    if not extras or isinstance(known, Rich | BadInput):
        return known
    return Rich(known, RawAnnotation(origin=origin, extras=extras))


LABEL_KEYS = (b"cls", b"label", b"class", b"txt")
PICKLE = b"\x80"
PROTOCOLS = b"\2\3\4\5"
ABOUT = frozenset((b"__len__", b"__keys__", b"length", b"num-samples", b"meta_info", b"__meta__"))
"""Keys of what other tools note about the whole file."""


class Lmdb(Format):
    """Reads the images of an LMDB file, by key; their labels are in KEY.cls, KEY.json, KEY.txt, or in a Datum."""

    roles = ("label",)

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        from packer.files.lmdb_values import values  # imports lmdb, which the other formats do without

        for key, offset, value, get in values(file.path):
            stem, dot, extension = key.rpartition(b".")
            head = bytes(value[:16])
            is_image = extension.lower() in IMAGES
            if is_image or looks_like_image(head):
                known = self._known(file, stem if dot else key, get)
                yield key, offset, len(value), known, None
            elif head[:1] == PICKLE and head[1:2] in PROTOCOLS and key not in ABOUT:
                problem = f"holds pickled values (key {key[:40]!r}), which packer never reads: they may run code"
                raise UsageError(file.path, problem, "write the images and labels to files, or to tars of WebDataset")
            elif (datum := _datum(value)) is not None:
                start, size, label, raw = datum
                if raw:
                    error = BadImage("", "a Datum of raw pixels in planes, not pixel by pixel", "write it encoded")
                    yield key, offset, 0, error, None
                else:
                    yield key, offset + start, size, label, None

    def _known(self, file: ForeignFile, stem: bytes, get: Any) -> Known:
        origin = f"{file.name}: {stem.decode('utf-8', 'backslashreplace')}"
        label = self.columns.get("label", "").encode()
        for name in (label,) if label else LABEL_KEYS:
            text = get(stem + b"." + name)
            if text is not None:
                return class_text(bytes(text[:65536]))
        text = get(stem + b".json")
        if text is None:
            return None
        fields = json_label(bytes(text), origin)
        if not isinstance(fields, dict):
            return fields
        return class_of(next((fields[name] for name in LABEL_NAMES if name in fields), None), None, origin)


def _datum(value: memoryview) -> tuple[int, int, int | None, bool] | None:
    """Return (start, size) of the image in a Datum of Caffe, its label, and whether it is raw; None for others.

    Its fields: 1 channels, 2 height, 3 width, 4 data, 5 label, 6 float data, 7 encoded.
    """
    numbers: dict[int, int] = {}
    place = None
    at = 0
    try:
        while at < len(value):
            tag, at = read_varint(value, at)
            if tag & 7 == 0 and 0 < tag >> 3 <= 7:
                numbers[tag >> 3], at = read_varint(value, at)
            elif tag == 4 << 3 | 2:
                size, at = read_varint(value, at)
                place = at, size
                at += size
            else:
                return None
    except ValueError:
        return None
    if place is None or at != len(value):
        return None
    encoded = bool(numbers.get(7)) or looks_like_image(bytes(value[place[0] : place[0] + 16]))
    return *place, numbers.get(5), not encoded


BOX = 5
"""Numbers of an object: its class, and its box in fractions of the image."""


class RecordIO(Format):
    """Reads the images of a .rec file; it needs neither the .idx nor the .lst beside it."""

    roles = ()

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        try:
            first = next(CONTAINER.scan(file.path), None)
            if first is not None and first.annotation is not None:
                yield from packer_rows(CONTAINER.scan(file.path), file)
                return
            with memoryview(file.view) as data:
                detection: bool | None = None
                for start, stop in recordio_frames(file.path, data):
                    vector, number, image = _header(file, data, start, stop)
                    if image == stop:
                        continue  # the first and the last ones of InsightFace say something of the file
                    if detection is None and _before(vector) == len(vector):
                        detection = any(
                            _has_objects(_header(file, data, *f)[0]) for f in recordio_frames(file.path, data)
                        )
                    known = _labels_in_vector(vector, f"{file.name}: record {number}", bool(detection))
                    yield b"%08d" % number, image, stop - image, known, None
        except DamagedPack as error:
            raise file.damaged(error.problem, error.next_step or GET_AGAIN) from None


def _header(file: ForeignFile, data: memoryview, start: int, stop: int) -> tuple[list[float], int, int]:
    """Return the label of a record, its number, and the first byte of its image."""
    if stop - start < HEADER.size:
        raise file.damaged(f"has a record of {stop - start} bytes at byte {start}")
    count, label, number, _ = HEADER.unpack_from(data, start)
    image = start + HEADER.size + 4 * count
    if image > stop:
        raise file.damaged(f"has a label of {count} numbers at byte {start}, beyond its record")
    return np.frombuffer(data[start + HEADER.size : image], "<f4").tolist() or [label], number, image


def _before(vector: list[float]) -> int:
    """Return how many numbers are before the objects, if the label is as `im2rec` packs those for detection; else 0.

    It begins with the number of numbers before the objects, and the number of numbers of each.
    """
    sizes = [int(value) for value in vector[:2] if value.is_integer()]
    if len(sizes) == 2 and sizes[0] >= 2 and sizes[1] >= BOX and (len(vector) - sizes[0]) % sizes[1] == 0:
        return sizes[0]
    return 0


def _has_objects(vector: list[float]) -> bool:
    return 0 < _before(vector) < len(vector)


def _labels_in_vector(vector: list[float], origin: str, detection: bool) -> Known:
    """Return what a label says: a class, or objects. InsightFace has the class first, and other numbers after it.

    Args:
        vector: The label.
        origin: The record, for messages.
        detection: Whether a label that could be both is of an image without objects.
    """
    if _has_objects(vector) or (detection and _before(vector) == len(vector)):
        return _objects(np.array(vector[_before(vector) :]).reshape(-1, int(vector[1])), origin)
    if not vector[0].is_integer():
        return BadLabel(origin, f"its label is {vector[0]:g}, which is not the number of a class", "pack it as a list")
    return int(vector[0]) if vector[0] >= 0 else None


def _objects(rows: Any, origin: str) -> Known:
    rows = rows[rows[:, 0] != -1]  # which fills up
    ids = rows[:, 0].tolist()
    if not np.isfinite(rows[:, :BOX]).all() or not all(0 <= n < MOST_CLASSES and n.is_integer() for n in ids):
        problem = f"an object has a class that is none of 0 to {MOST_CLASSES - 1}, or a box that is not finite"
        return BadLabel(origin, problem, "correct the label")
    boxes = tuple(tuple(row) for row in rows[:, 1:BOX].tolist())
    names = tuple(str(int(number)) for number in ids)
    return Rich(None, RawAnnotation(origin=origin, boxes=boxes, box_labels=names, relative=True))
