"""TFRecord shards of tf.train.Example; choose it for TensorFlow pipelines.

Framing: https://www.tensorflow.org/tutorials/load_data/tfrecord ("TFRecords format details").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from packer.containers.container import (
    HEADER_BYTES,
    Entry,
    FileFormat,
    StreamWriter,
    image_file,
    npy_payload_offset,
)
from packer.errors import DamagedPack
from packer.files.record_frames import BYTES_LIST, CRC, FRAME, bytes_features, masked_crc32c, tfrecord_frames
from packer.model.annotation import Record, in_order, parts_of
from packer.model.fields import LISTS
from packer.model.record_json import annotation_json, class_name, packer_annotation, part_sizes
from packer.system.storage import mapped

_FLAGS = ("difficult", "truncated", "occluded")
_OF_IMAGES = [field for field in LISTS if not field.per_box]
_FLOAT_LIST, _INT64_LIST = 2, 3  # field numbers in Feature
IMAGE = b"image/encoded"
KEY = b"image/source_id"
FILENAME = b"image/filename"
ANNOTATION = b"packer/annotation"


def part_feature(name: str) -> bytes:
    """Return the name of the feature of a part."""
    return f"image/{name}/encoded".encode("ascii")


def example_parts(record: Record, annotation: str, classes: tuple[str, ...]) -> tuple[list[bytes], list[int]]:
    """Return pieces of a serialized Example, and where its image (after a .npy header) and its parts begin in it.

    The feature names are those of TF object detection (docs/formats.md), sorted as in protobuf's deterministic
    serialization.
    """
    a = record.annotation
    header, image = image_file(record)
    entries = {
        b"image/channels": _integer(b"image/channels", record.channels),
        FILENAME: _map_entry(FILENAME, _text(record.path)),
        b"image/format": _name(b"image/format", "npy" if record.encoding == "raw" else record.encoding),
        b"image/height": _integer(b"image/height", record.height),
        KEY: _map_entry(KEY, _text(record.key.encode())),
        b"image/width": _integer(b"image/width", record.width),
        ANNOTATION: _map_entry(ANNOTATION, _text(annotation.encode("ascii"))),
    }
    if a.label is not None:
        entries[b"image/class/label"] = _integer(b"image/class/label", a.label)
        entries[b"image/class/text"] = _name(b"image/class/text", class_name(a.label, classes))
    more: dict[bytes, bytes] = {}
    if a.boxes is not None:
        more.update(_box_features(record))
    if a.box_labels is not None:
        ids = a.box_labels.tolist()
        more[b"image/object/class/label"] = _integers(ids)
        more[b"image/object/class/text"] = _names(ids, classes)
    for field in _OF_IMAGES:
        if (value := getattr(a, field.name)) is not None:
            more.update(_image_features(f"image/{field.name}", value))
    entries.update((name, _map_entry(name, feature)) for name, feature in more.items())
    large = {IMAGE: (header, image), **{part_feature(part.name): (b"", part.data) for part in in_order(record)}}
    pieces, places = [b""], dict[bytes, int]()
    at = 0
    for name in sorted([*entries, *large]):
        if name in large:
            front, data = large[name]
            size = len(front) + len(data)
            value_head = b"\x0a" + _varint(size)
            front = _entry_head(name, BYTES_LIST, len(value_head) + size) + value_head + front
            places[name] = at + len(front)
            pieces += [front, data]
            at += len(front) + len(data)
        else:
            pieces.append(entries[name])
            at += len(entries[name])
    pieces[0] = b"\x0a" + _varint(at)
    return pieces, [places[name] + len(pieces[0]) for name in large]


def _box_features(record: Record) -> dict[bytes, bytes]:
    boxes, fields = record.annotation.boxes, record.annotation.box_fields
    assert boxes is not None
    fractions = boxes / np.array([record.width, record.height] * 2, np.float32)
    names = (b"xmin", b"ymin", b"xmax", b"ymax")
    features = {b"image/object/bbox/" + name: _floats(fractions[:, i]) for i, name in enumerate(names)}
    for flag in _FLAGS:
        values = fields.get(flag, (None,))
        if all(isinstance(value, int) for value in values):
            features[b"image/object/" + flag.encode()] = _integers(int(value) for value in values)
    if all(isinstance(value, str) for value in fields.get("pose", (None,))):
        texts = [pose.encode("utf-8", "surrogateescape") for pose in fields["pose"]]
        features[b"image/object/view"] = _feature(BYTES_LIST, b"".join(map(_field_1, texts)))
    return features


def _image_features(name: str, value: Any) -> dict[bytes, bytes]:
    """Return the features of points (k, 2), or of numbers (k,)."""
    if value.ndim == 1:
        return {name.encode(): _floats(value) if value.dtype.kind == "f" else _integers(value.tolist())}
    return {f"{name}/{axis}".encode(): _floats(value[:, i]) for i, axis in enumerate("xy")}


@lru_cache(maxsize=4096)
def _varint(number: int) -> bytes:
    if 0 <= number < 128:
        return bytes((number,))
    parts = bytearray()
    number &= (1 << 64) - 1  # negative numbers: two's complement of 64 bits
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _field_1(data: bytes) -> bytes:
    """Return `data` as the length-delimited field 1."""
    return b"\x0a" + _varint(len(data)) + data


def _map_entry(name: bytes, feature: bytes) -> bytes:
    entry = _key(name) + b"\x12" + _varint(len(feature)) + feature
    return b"\x0a" + _varint(len(entry)) + entry


def _entry_head(name: bytes, kind: int, list_bytes: int) -> bytes:
    """Return the bytes before the list of a feature, for a list of `list_bytes` bytes."""
    feature_head = bytes((kind << 3 | 2,)) + _varint(list_bytes)
    feature_bytes = len(feature_head) + list_bytes
    head = _key(name) + b"\x12" + _varint(feature_bytes) + feature_head
    return b"\x0a" + _varint(len(head) + list_bytes) + head


@lru_cache(maxsize=64)
def _key(name: bytes) -> bytes:
    return _field_1(name)


def _feature(kind: int, values: bytes) -> bytes:
    return bytes((kind << 3 | 2,)) + _varint(len(values)) + values


def _text(value: bytes) -> bytes:
    return _feature(BYTES_LIST, _field_1(value))


@lru_cache(maxsize=4096)
def _integer(name: bytes, value: int) -> bytes:
    return _map_entry(name, _integers([value]))


@lru_cache(maxsize=4096)
def _name(feature: bytes, name: str) -> bytes:
    return _map_entry(feature, _text(name.encode("utf-8", "surrogateescape")))


def _integers(values: Iterable[int]) -> bytes:
    packed = b"".join(map(_varint, values))
    return _feature(_INT64_LIST, _field_1(packed) if packed else b"")


def _floats(values: Any) -> bytes:
    packed = struct.pack(f"<{len(values)}f", *values.tolist())
    return _feature(_FLOAT_LIST, _field_1(packed) if packed else b"")


def _names(ids: Iterable[int], classes: tuple[str, ...]) -> bytes:
    texts = (class_name(i, classes).encode("utf-8", "surrogateescape") for i in ids)
    return _feature(BYTES_LIST, b"".join(map(_field_1, texts)))


_LENGTH = struct.Struct("<Q")
_NAMES = (IMAGE, KEY, FILENAME, ANNOTATION)


class TFRecordWriter(StreamWriter):
    """Writes one frame per record."""

    def write(self, record: Record) -> None:
        own = parts_of(record, self._parts)
        parts, (image_at, *parts_at) = example_parts(record, annotation_json(record, self._classes), self._classes)
        size = sum(map(len, parts))
        length = _LENGTH.pack(size)
        self._file.append(length, CRC.pack(masked_crc32c(length)), *parts, CRC.pack(masked_crc32c(*parts)))
        base = self._end + FRAME.head
        places = {name: (base + at, len(own[name].data)) for name, at in zip(own, parts_at, strict=True)}
        self._places.add((base + image_at, len(record.data)), places)
        self._end += FRAME.head + size + FRAME.tail


def scan(path: str) -> Iterator[Entry]:
    """Verify both checksums of each frame, and yield the images of the Examples.

    The image is the feature image/encoded; its key is the feature image/source_id, else image/filename, else the
    number of its frame. Examples without an image are ignored.
    """
    with mapped(path) as view, memoryview(view) as data:
        for number, (start, stop) in enumerate(tfrecord_frames(path, data)):
            try:
                entry = _entry(data[start:stop], start, number)
            except ValueError as error:
                problem = f"the frame at byte {start - FRAME.head} is not a readable Example: {error}"
                raise DamagedPack(path, problem) from error
            if entry is not None:
                yield entry


def _entry(example: memoryview, at: int, number: int) -> Entry | None:
    """Return the image of an Example that begins at byte `at` of its file."""
    places = bytes_features(example, _NAMES)
    if IMAGE not in places:
        return None
    texts = {name: bytes(example[slice(*places[name])]) for name in (KEY, FILENAME, ANNOTATION) if name in places}
    key = (texts.get(KEY) or texts.get(FILENAME) or b"%d" % number).decode("utf-8", "backslashreplace")
    start, stop = places[IMAGE]
    start += npy_payload_offset(bytes(example[start : min(start + HEADER_BYTES, stop)]))
    text = packer_annotation(texts.get(ANNOTATION))
    features = {part_feature(name): name for name in part_sizes(text)}
    found = bytes_features(example, features) if features else {}
    parts = {features[feature]: (at + first, last - first) for feature, (first, last) in found.items()}
    return Entry(key, at + start, stop - start, text, parts)


CONTAINER = FileFormat("tfrecord", ".tfrecord", block_bytes=1, overhead_bytes=512, create=TFRecordWriter, scan=scan)
