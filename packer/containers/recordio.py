"""RecordIO shards of MXNet; choose it for MXNet, GluonCV, InsightFace, and DALI's `readers.mxnet`.

Framing: https://mxnet.apache.org/versions/1.9.1/api/architecture/note_data_loading. A frame is the magic word, a word
of 3 bits (0: a whole record) and 29 bits (the length of the data), the data, and zeros up to a multiple of 4 bytes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from itertools import accumulate
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
from packer.errors import DamagedPack, UsageError, size_text
from packer.files.record_frames import FRAME_HEAD, HEADER, MAGIC, MOST_BYTES, recordio_frames
from packer.model.annotation import Record, parts_of
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system.storage import mapped

_TAIL = struct.Struct("<I8s")
_MARK = b"\x00packer\x00"


class RecordIOWriter(StreamWriter):
    """Writes one frame per record: header, label vector, image file, parts, annotation."""

    def write(self, record: Record) -> None:
        note = annotation_json(record, self._classes).encode("ascii")
        header, image = image_file(record)
        if header:
            header = _header_past_magic(header, image)
        head = _ir_header(record) + header
        parts = [*parts_of(record, self._parts).values()]
        contents = [part.data for part in parts]
        length = len(head) + len(image) + sum(map(len, contents)) + len(note) + _TAIL.size
        if length > MOST_BYTES:
            problem = f"takes {size_text(length)}, but a record of RecordIO has at most {size_text(MOST_BYTES)}"
            raise UsageError(record.path, problem, "choose another --format, or make the images smaller with --resize")
        tail = _TAIL.pack(len(note), _MARK) + bytes(-length % 4)
        self._file.append(FRAME_HEAD.pack(MAGIC, length), head, image, *contents, note, tail)
        start = self._end + FRAME_HEAD.size + len(head)
        ends = accumulate(map(len, contents), initial=start + len(image))
        places = {part.name: (at, len(part.data)) for part, at in zip(parts, ends, strict=False)}
        self._places.add((start, len(image)), places)
        self._end += FRAME_HEAD.size + length + -length % 4


def scan(path: str) -> Iterator[Entry]:
    """Yield the images of all records; the key is that of the annotation, else the header's id.

    Records without an image, as the first ones of InsightFace, are ignored.
    """
    with mapped(path) as view:
        for start, stop in recordio_frames(path, view):
            try:
                entry = _entry(view, start, stop)
            except (ValueError, struct.error) as error:
                problem = f"the record at byte {start - FRAME_HEAD.size} cannot be read: {error}"
                raise DamagedPack(path, problem) from error
            if entry is not None:
                yield entry


class RecordIOContainer(FileFormat):
    """``--format recordio``."""

    def companion(self, path: str) -> tuple[str, bytes]:
        """Return the .idx file of a shard: the number and the first byte of each record, one a line."""
        with mapped(path) as view:
            found = enumerate(recordio_frames(path, view))
            lines = "".join(f"{number}\t{start - FRAME_HEAD.size}\n" for number, (start, _) in found)
        return ".idx", lines.encode("ascii")


def _ir_header(record: Record) -> bytes:
    """Return the IRHeader and its vector: boxes as `im2rec` writes them for detection, else tags or values."""
    a = record.annotation
    vector: Any = ()
    if a.boxes is not None:
        sides = np.array([record.width, record.height] * 2, np.float32)
        ids = np.full(len(a.boxes), -1) if a.box_labels is None else a.box_labels
        objects = np.column_stack([ids.astype(np.float32), a.boxes / sides])
        vector = (2, 5, *objects.ravel().tolist())  # 2 numbers before the objects, 5 numbers an object
    elif (numbers := a.value if a.tags is None else a.tags) is not None:
        vector = numbers.tolist()
    label = -1 if a.label is None else a.label
    return HEADER.pack(len(vector), label, int(record.key), 0) + struct.pack(f"<{len(vector)}f", *vector)


def _header_past_magic(header: bytes, pixels: bytes) -> bytes:
    """Return the .npy header, up to 3 bytes longer if the magic word would lie at a multiple of 4 bytes otherwise.

    MXNet's writer splits records there. A reader that follows the frames or the .idx needs no split, but one that
    starts in the middle of a file searches for the word. Pixels can be moved; the bytes of an image file cannot.
    """
    words = np.frombuffer(pixels, "<u4", len(pixels) // 4)
    if not (words == MAGIC).any():
        return header
    word, at = MAGIC.to_bytes(4, "little"), -1
    taken: set[int] = set()
    while len(taken) < 4 and (at := pixels.find(word, at + 1)) >= 0:
        taken.add(-at % 4)
    fill = min({0, 1, 2, 3} - taken, default=0)
    length = int.from_bytes(header[8:10], "little") + fill
    return header[:8] + length.to_bytes(2, "little") + header[10:-1] + b" " * fill + b"\n"


def _entry(view: mmap.mmap, start: int, stop: int) -> Entry | None:
    """Return the image of the record at these bytes of its file."""
    floats, _, number, _ = HEADER.unpack_from(view[start : min(stop, start + HEADER.size)])
    image = start + HEADER.size + 4 * floats
    if image > stop:
        raise ValueError(f"a label vector of {floats} numbers")
    note, end, key = None, stop, str(number)
    if stop - _TAIL.size >= image:
        length, mark = _TAIL.unpack_from(view, stop - _TAIL.size)
        begin = stop - _TAIL.size - length
        if mark == _MARK and begin >= image:
            note, end = packer_annotation(view[begin : stop - _TAIL.size]), begin
    sizes = part_sizes(note)
    if any(size < 0 for size in sizes.values()) or sum(sizes.values()) > end - image:
        raise ValueError(f"parts of {sizes} bytes")
    end -= sum(sizes.values())
    if image == end:
        return None
    parts = dict(zip(sizes, zip(accumulate(sizes.values(), initial=end), sizes.values(), strict=False), strict=True))
    if note is not None:
        key = note[len(b'{"key": "') :].partition(b'"')[0].decode("ascii", "backslashreplace")
    image += npy_payload_offset(view[image : min(image + HEADER_BYTES, end)])
    return Entry(key, image, end - image, note, parts)


CONTAINER = RecordIOContainer("recordio", ".rec", block_bytes=4, overhead_bytes=288, create=RecordIOWriter, scan=scan)
