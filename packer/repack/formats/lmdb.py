"""LMDB files: keys with an extension (``00000042.jpg``), values that are images, and Caffe's Datum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer.containers.npy import IMAGE_EXTENSIONS, looks_like_image
from packer.errors import BadImage, BadLabel, UsageError
from packer.files.lmdb_values import values
from packer.files.protobuf import read_varint
from packer.model.record_json import packer_annotation
from packer.repack.formats.base import LABEL_NAMES, ForeignFile, FormatOptions, Known, Row, class_of, json_of
from packer.repack.formats.packers import packer_annotation_of
from packer.repack.formats.webdataset import class_text

EXTENSIONS = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
TEXTS = (b"cls", b"label", b"class", b"txt")
PICKLE = b"\x80"
PROTOCOLS = b"\2\3\4\5"
ABOUT = frozenset((b"__len__", b"__keys__", b"length", b"num-samples", b"meta_info", b"__meta__"))
"""Keys of what other tools note about the whole file."""


class Lmdb:
    """Reads the images of an LMDB file, by key; their labels are in KEY.cls, KEY.json, KEY.txt, or in a Datum."""

    def __init__(self, options: FormatOptions) -> None:
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []
        self._label = options.columns.get("label", "").encode()

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        for key, offset, value, get in values(file.path):
            stem, dot, extension = key.rpartition(b".")
            head = bytes(value[:16])
            is_image = extension.lower() in EXTENSIONS
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
        for name in (self._label,) if self._label else TEXTS:
            text = get(stem + b"." + name)
            if text is not None:
                return class_text(bytes(text[:65536]))
        text = get(stem + b".json")
        if text is None:
            return None
        data = bytes(text)
        if packer_annotation(data) is not None:
            return packer_annotation_of(data, origin)
        try:
            fields = json_of(data)
        except ValueError as error:
            return BadLabel(origin, f"its json cannot be read: {error}", "correct the label")
        if not isinstance(fields, dict):
            return BadLabel(origin, "its json is not an object", "correct the label")
        return class_of(next((fields[name] for name in LABEL_NAMES if name in fields), None), None, origin)


def _datum(value: memoryview) -> tuple[int, int, int | None, bool] | None:
    """Return (start, size) of the image in a Datum of Caffe, its label, and whether it is raw; None if it is none.

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
