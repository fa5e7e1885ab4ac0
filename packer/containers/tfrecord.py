"""TFRecord shards of tf.train.Example; choose it for TensorFlow pipelines.

Framing: https://www.tensorflow.org/tutorials/load_data/tfrecord ("TFRecords format details").
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

from crc32c import crc32c

from packer.containers.annotation_json import annotation_json
from packer.containers.base import Location, ShardSpec
from packer.containers.npy import HEADER_BYTES, npy_payload_offset
from packer.containers.storage import NewFile, mapped
from packer.containers.tf_example import BytesPlace, example_bytes, find_bytes_feature
from packer.errors import DamagedPack
from packer.sample import Record

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


class FRAME:
    """Bytes of a frame before its data (length, checksum of it) and behind it (checksum of the data)."""

    head = 12
    tail = 4


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum of the framing: a crc of data that holds crcs is weak, so they are rotated and shifted."""
    crc = int(crc32c(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordWriter:
    """Writes one frame a record."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._classes = spec.classes
        self._file = NewFile(path)

    def write(self, record: Record) -> None:
        data = example_bytes(record, annotation_json(record, self._classes), self._classes)
        length = _LENGTH.pack(len(data))
        self._file.append(length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data)))

    def close(self) -> None:
        self._file.close()


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
        with mapped(path) as view:
            for start, stop in _frames(path, view):
                yield _location(path, view, start, stop)

    def annotations(self, path: str) -> Iterator[tuple[str, bytes]]:
        """The feature packer/annotation of each example."""
        names = (b"image/source_id", b"packer/annotation")
        with mapped(path) as view:
            for start, stop in _frames(path, view):
                places = _places(path, view, start, stop, names)
                key, text = (view[place.start : place.stop] for place in places)
                yield key.decode("ascii"), text


def _frames(path: str, view: mmap.mmap) -> Iterator[tuple[int, int]]:
    """(start, stop) of each frame's data."""
    position, end = 0, len(view)
    while position < end:
        start = position + 12
        length = view[position:start]
        if len(length) < 12 or _CRC.unpack_from(length, 8)[0] != masked_crc32c(length[:8]):
            raise DamagedPack(path, f"no frame at byte {position}")
        stop = start + _LENGTH.unpack_from(length)[0]
        if stop + 4 > end:
            raise DamagedPack(path, f"the frame at byte {position} is cut")
        with memoryview(view) as all_bytes, all_bytes[start:stop] as data:
            if _CRC.unpack_from(view, stop)[0] != masked_crc32c(data):
                raise DamagedPack(path, f"the frame at byte {position} fails its checksum")
        yield start, stop
        position = stop + 4


def _location(path: str, view: mmap.mmap, start: int, stop: int) -> Location:
    image, key = _places(path, view, start, stop, (b"image/encoded", b"image/source_id"))
    try:
        image_start = image.start
        if view[image_start : image_start + 6] == b"\x93NUMPY":
            image_start += npy_payload_offset(view[image_start : min(image_start + HEADER_BYTES, image.stop)])
        return Location(view[key.start : key.stop].decode("ascii"), image_start, image.stop - image_start)
    except ValueError as error:
        raise _no_example(path, start, error) from error


def _places(path: str, view: mmap.mmap, start: int, stop: int, names: tuple[bytes, ...]) -> list[BytesPlace]:
    """Where the values of these features lie."""
    try:
        places = find_bytes_feature(view, BytesPlace(start, stop), names)
        return [places[name] for name in names]
    except (KeyError, ValueError, IndexError) as error:
        raise _no_example(path, start, error) from error


def _no_example(path: str, start: int, error: Exception) -> DamagedPack:
    return DamagedPack(path, f"the frame at byte {start - 12} is no example of packer: {error}")


CONTAINER = TFRecordContainer()
