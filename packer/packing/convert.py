"""Converts one input to a record: read, decode, resize, encode, and transform the annotation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from xxhash import xxh3_128_digest

from packer.errors import BadImage, BadInput
from packer.format.manifest import Rejected
from packer.images.base import Header
from packer.images.decode import Decoder, decode, decode_leniently
from packer.images.encode import Encoding, encode
from packer.images.geometry import clip, move
from packer.images.header import Mode, decoded_shape
from packer.images.opencv import quiet_opencv
from packer.images.resize import Resize
from packer.packing.headers import AT_REST, unreadable
from packer.system import READ_FLAGS
from packer.system.child import Decoding, Report
from packer.types import Annotation, Image, Record


class Row(NamedTuple):
    """The columns of the table of inputs for one image, without its annotation."""

    path: bytes
    """Relative to the source."""
    bytes: int
    """Size of the file."""
    height: int
    """Of the upright image."""
    width: int
    code: int
    """`Header.code`."""

    @property
    def header(self) -> Header:
        """The header of the file at the time of the scan."""
        header = Header.from_code(self.code, self.width, self.height)
        return header if header.orientation < 5 else header._replace(width=self.height, height=self.width)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The conversion of every image of a build."""

    root: bytes
    mode: Mode
    decoder: Decoder
    max_pixels: int
    resize: Resize | None
    encode: Encoding | Literal["copy"]
    quality: int

    def read(self, row: Row) -> bytes:
        """Return the bytes of a source file, which must still have the planned size.

        Raises:
            BadImage: The file changed, vanished or cannot be read.
        """
        size = row.bytes
        try:
            descriptor = os.open(self.root + b"/" + row.path, READ_FLAGS)
            try:
                data = os.read(descriptor, size + 1)
                while 0 < len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
                    data += more  # one read of a network file, or of 2 GB, may return less
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unreadable(error) from None
        if len(data) != size:
            problem = f"changed while the source was being read ({size} bytes planned, {len(data)} or more now)"
            raise BadImage("", problem, AT_REST)
        return data

    def image(self, data: bytes, row: Row, header: Header) -> tuple[Image, str]:
        """Return the decoded, resized image of a file's bytes, and its damage if the decoder is lenient, else "".

        Raises:
            BadImage: It is damaged.
        """
        size = (row.width, row.height)
        at_least = None if self.resize is None else self.resize.at_least(*size)
        if self.decoder == "lenient":
            image, damage = decode_leniently(data, self.mode, at_least, self.max_pixels, header)
        else:
            image, damage = decode(data, self.mode, self.decoder, at_least, self.max_pixels, header), ""
        return image if self.resize is None else self.resize.apply(image, size), damage

    def record(self, key: str, row: Row, data: bytes, annotation: Annotation) -> tuple[Record, str]:
        """Return the record of a row whose file holds `data`, and the damage that was accepted, else "".

        Raises:
            BadImage: The image is damaged, or cannot be stored in the encoding.
        """
        header = row.header
        image, damage = self.image(data, row, header)
        if self.resize is not None:
            annotation = self._resized(annotation, (row.width, row.height))
        stored, encoding = (
            (data, header.format) if self.encode == "copy" else (encode(image, self.encode, self.quality), self.encode)
        )
        height, width, channels = image.shape
        record = Record(
            key, stored, encoding, height, width, channels, decoded_shape(header, self.mode)[3],
            annotation, row.path, xxh3_128_digest(data),
        )  # fmt: skip
        return record, damage

    def _resized(self, annotation: Annotation, size: tuple[int, int]) -> Annotation:
        assert self.resize is not None
        if annotation.boxes is None and annotation.landmarks is None:
            return annotation  # polygons and keypoints belong to boxes
        geometry = self.resize.geometry(*size)
        moved = move(annotation, geometry)
        # only a crop puts boxes outside; elsewhere float32 may miss the border by its last digit
        return clip(moved, geometry.width, geometry.height)


def rejected(path: bytes, error: BadInput) -> Rejected:
    """Return the entry of an input that is rejected with `error`."""
    name = os.fsdecode(path)
    about_another_file = error.where and os.fsdecode(error.where) != name
    problem = error.line if about_another_file else type(error)("", error.problem, error.next_step).line
    return Rejected(name, error.reason, problem)


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """A sample of rows, to measure their encoded size."""

    rows: tuple[Row, ...]
    recipe: Recipe
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashes or hangs."""


@quiet_opencv()
def measure(job: MeasureJob, report: Report, decoding: Decoding) -> list[tuple[int, int]]:
    """Return (encoded bytes, pixel bytes) of each good image. Runs in a worker, because a decoder may crash."""
    sizes = []
    for number, row in enumerate(job.rows):
        if number in job.refused:
            continue
        assert job.recipe.encode != "copy"
        try:
            data = job.recipe.read(row)
            with decoding(number):
                image, _ = job.recipe.image(data, row, row.header)
                sizes.append((len(encode(image, job.recipe.encode, job.recipe.quality)), image.nbytes))
        except BadInput:
            continue  # packing will reject it with the reason
    return sizes
