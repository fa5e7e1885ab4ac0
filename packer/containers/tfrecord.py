"""TFRecord shards of tf.train.Example; choose it for TensorFlow pipelines.

Framing: https://www.tensorflow.org/tutorials/load_data/tfrecord ("TFRecords format details").
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from itertools import islice

import numpy as np
from crc32c import crc32c

from packer.containers.annotation import annotation_json
from packer.containers.base import Places, ShardSpec
from packer.containers.npy import HEADER_BYTES, npy_payload_offset
from packer.containers.storage import NewFile, mapped
from packer.containers.tf_example import example_bytes
from packer.containers.tf_places import Places as Ranges
from packer.containers.tf_places import find_bytes_features
from packer.errors import DamagedPack
from packer.types import Record

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_BLOCK_FRAMES = 4096
"""Examples that are looked through together."""


class FRAME:
    """Bytes of a frame before its data (length, checksum of it) and behind it (checksum of the data)."""

    head = 12
    tail = 4


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum of the framing: a crc of data that holds crcs is weak, so they are rotated and shifted."""
    crc = int(crc32c(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordWriter:
    """Writes one frame per record."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._classes = spec.classes
        self._file = NewFile(path)
        self._bytes = 0
        self._offsets: list[int] = []
        self._sizes: list[int] = []

    def write(self, record: Record) -> None:
        data, image_at = example_bytes(record, annotation_json(record, self._classes), self._classes)
        length = _LENGTH.pack(len(data))
        self._file.append(length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data)))
        self._offsets.append(self._bytes + FRAME.head + image_at)
        self._sizes.append(len(record.data))
        self._bytes += FRAME.head + len(data) + FRAME.tail

    def close(self) -> Places:
        self._file.close()
        return Places.of(self._offsets, self._sizes)


class TFRecordContainer:
    """``--format tfrecord``."""

    name = "tfrecord"
    suffix = ".tfrecord"
    block_bytes = 1
    overhead_bytes = 512

    def create(self, path: str, spec: ShardSpec) -> TFRecordWriter:
        return TFRecordWriter(path, spec)

    def locate(self, path: str) -> Iterator[Location]:
        """Walks the frames and holds both checksums of each."""
        names = (b"image/source_id", b"image/encoded")
        with mapped(path) as view:
            header = b""
            for starts, (keys, images) in _examples(path, view, names):
                for start, key, image, stop in zip(starts, _texts(view, keys), *_lists(images), strict=True):
                    offset = image + len(header)
                    if view[image:offset] != header or not header:
                        header = _npy_header(path, view, start, slice(image, stop))
                        offset = image + len(header)
                    yield Location(key, offset, stop - offset)

    def annotations(self, path: str) -> Iterator[tuple[str, bytes]]:
        """The feature packer/annotation of each example."""
        names = (b"image/source_id", b"packer/annotation")
        with mapped(path) as view:
            for _, (keys, texts) in _examples(path, view, names):
                for key, start, stop in zip(_texts(view, keys), *_lists(texts), strict=True):
                    yield key, view[start:stop]


def _examples(path: str, view: mmap.mmap, names: tuple[bytes, ...]) -> Iterator[tuple[list[int], list[Ranges]]]:
    """Where the examples of a block of frames begin, and where these features of theirs lie."""
    frames = _frames(path, view)
    data = np.frombuffer(view, np.uint8)
    while block := list(islice(frames, _BLOCK_FRAMES)):
        starts, stops = (list(numbers) for numbers in zip(*block, strict=True))
        try:
            places = find_bytes_features(data, Ranges(np.array(starts), np.array(stops)), names)
        except ValueError as error:
            raise DamagedPack(path, f"a frame is no example of packer: {error}") from error
        yield starts, places


def _frames(path: str, view: mmap.mmap) -> Iterator[tuple[int, int]]:
    """(start, stop) of each frame's data."""
    position, end = 0, len(view)
    checksums: dict[bytes, int] = {}
    with memoryview(view) as all_bytes:
        while position < end:
            start = position + FRAME.head
            length = view[position : position + 8]
            if length not in checksums:
                checksums = {length: masked_crc32c(length)}  # images of one size have it in common
            if start > end or _CRC.unpack_from(view, position + 8)[0] != checksums[length]:
                raise DamagedPack(path, f"no frame at byte {position}")
            stop = start + _LENGTH.unpack(length)[0]
            if stop + FRAME.tail > end:
                raise DamagedPack(path, f"the frame at byte {position} is cut")
            if _CRC.unpack_from(view, stop)[0] != masked_crc32c(all_bytes[start:stop]):
                raise DamagedPack(path, f"the frame at byte {position} fails its checksum")
            yield start, stop
            position = stop + FRAME.tail


def _lists(places: Ranges) -> tuple[list[int], list[int]]:
    return places.starts.tolist(), places.stops.tolist()


def _texts(view: mmap.mmap, places: Ranges) -> Iterator[str]:
    return (view[start:stop].decode("ascii", "backslashreplace") for start, stop in zip(*_lists(places), strict=True))


def _npy_header(path: str, view: mmap.mmap, start: int, image: slice) -> bytes:
    """The .npy header that an image begins with, if any."""
    data = view[image.start : min(image.start + HEADER_BYTES, image.stop)]
    try:
        return data[: npy_payload_offset(data)] if data[:6] == b"\x93NUMPY" else b""
    except ValueError as error:
        raise DamagedPack(path, f"the frame at byte {start - FRAME.head} is no example of packer: {error}") from error


CONTAINER = TFRecordContainer()
