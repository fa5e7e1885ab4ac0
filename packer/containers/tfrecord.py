"""TFRecord shards of tf.train.Example; choose it for TensorFlow pipelines.

Framing: https://www.tensorflow.org/tutorials/load_data/tfrecord ("TFRecords format details").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from packer.containers.base import Entry, PlaceList, Places, ShardSpec
from packer.containers.npy import HEADER_BYTES, npy_payload_offset
from packer.containers.tf_example import ANNOTATION, FILENAME, IMAGE, KEY, example_parts, part_feature
from packer.errors import DamagedPack
from packer.files.protobuf import bytes_features
from packer.files.tfrecord_frames import CRC, FRAME, frames, masked_crc32c
from packer.model.annotation import Record
from packer.model.parts import parts_of
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system.storage import NewFile, mapped

_LENGTH = struct.Struct("<Q")
_NAMES = (IMAGE, KEY, FILENAME, ANNOTATION)


class TFRecordWriter:
    """Writes one frame per record."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._classes = spec.classes
        self._file = NewFile(path)
        self._bytes = 0
        self._parts = spec.parts
        self._places = PlaceList(spec.parts)

    def write(self, record: Record) -> None:
        own = parts_of(record, self._parts)
        parts, (image_at, *parts_at) = example_parts(record, annotation_json(record, self._classes), self._classes)
        size = sum(map(len, parts))
        length = _LENGTH.pack(size)
        self._file.append(length, CRC.pack(masked_crc32c(length)), *parts, CRC.pack(masked_crc32c(*parts)))
        base = self._bytes + FRAME.head
        places = {name: (base + at, len(own[name].data)) for name, at in zip(own, parts_at, strict=True)}
        self._places.add((base + image_at, len(record.data)), places)
        self._bytes += FRAME.head + size + FRAME.tail

    def close(self) -> Places:
        self._file.close()
        return self._places.places()


class TFRecordContainer:
    """``--format tfrecord``."""

    name = "tfrecord"
    suffix = ".tfrecord"
    block_bytes = 1
    overhead_bytes = 512

    def create(self, path: str, spec: ShardSpec) -> TFRecordWriter:
        return TFRecordWriter(path, spec)

    def scan(self, path: str) -> Iterator[Entry]:
        """Verify both checksums of each frame, and yield the images of the Examples.

        The image is the feature image/encoded; its key is the feature image/source_id, else image/filename, else the
        number of its frame. Examples without an image are ignored.
        """
        with mapped(path) as view, memoryview(view) as data:
            for number, (start, stop) in enumerate(frames(path, data)):
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


CONTAINER = TFRecordContainer()
