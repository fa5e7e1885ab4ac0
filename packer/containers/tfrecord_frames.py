"""Finds the intact frames of a damaged TFRecord shard: each has checksums of its own, so each is proven by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packer.containers.annotation import record_from_json
from packer.containers.npy import HEADER_BYTES, npy_payload_offset
from packer.containers.tf_places import Places, find_bytes_features
from packer.containers.tfrecord import FRAME, masked_crc32c
from packer.types import Record

_SEARCH_BYTES = 1 << 20
_SMALLEST_FRAME = 16
_NAMES = (b"image/encoded", b"packer/annotation")


def intact_records(data: memoryview) -> Iterator[tuple[Record, bytes]]:
    """(record, annotation as JSON) of each frame in the bytes of a file whose checksums are right."""
    position = 0
    while position + _SMALLEST_FRAME <= len(data):
        stop = _stop_of(data, position)
        if stop is None:
            position = _next_frame(data, position + 1)
            continue
        found = _record(data, position + FRAME.head, stop) if _intact(data, position, stop) else None
        if found is not None:
            yield found
        position = stop + FRAME.tail


def _stop_of(data: memoryview, position: int) -> int | None:
    """Where the data of the frame at `position` ends; None where there is no frame that fits into the file."""
    length = data[position : position + 8]
    if int.from_bytes(data[position + 8 : position + FRAME.head], "little") != masked_crc32c(length):
        return None
    stop = position + FRAME.head + int.from_bytes(length, "little")
    return stop if stop + FRAME.tail <= len(data) else None


def _intact(data: memoryview, position: int, stop: int) -> bool:
    checksum = int.from_bytes(data[stop : stop + FRAME.tail], "little")
    return checksum == masked_crc32c(data[position + FRAME.head : stop])


def _next_frame(data: memoryview, position: int) -> int:
    """The next place whose eight bytes are a length that fits and are followed by its checksum; the end if none."""
    while position + _SMALLEST_FRAME <= len(data):
        block = np.frombuffer(data[position : position + _SEARCH_BYTES + 7], np.uint8)
        if len(block) < 8:
            break
        numbers = np.lib.stride_tricks.sliding_window_view(block, 8).copy().view("<u8")[:, 0]
        fits = (numbers >= _SMALLEST_FRAME) & (numbers < len(data))
        for place in np.flatnonzero(fits).tolist():
            if _stop_of(data, position + place) is not None:
                return position + int(place)
        position += len(numbers)
    return len(data)


def _record(data: memoryview, start: int, stop: int) -> tuple[Record, bytes] | None:
    try:
        example = Places(np.array([start]), np.array([stop]))
        places = find_bytes_features(np.frombuffer(data, np.uint8), example, _NAMES)
        image, text = (bytes(data[place.starts[0] : place.stops[0]]) for place in places)
        header = npy_payload_offset(image[:HEADER_BYTES]) if image[:6] == b"\x93NUMPY" else 0
        return record_from_json(text, image[header:]), text
    except (KeyError, ValueError, IndexError):
        return None
