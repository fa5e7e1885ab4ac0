"""One input becomes one record: read, decode, resize, encode, and move the annotation along."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from packer.images.decode import Decoder, decode
from packer.images.encode import Encoding, encode
from packer.images.geometry import clip, move
from packer.images.header import Mode, read_header
from packer.images.resize import Resize
from packer.packing.source_file import read_source_file
from packer.packing.table import annotation_from_text
from packer.types import Annotation, Image, Record


@dataclass(frozen=True, slots=True)
class Recipe:
    """What happens to every image of a build."""

    root: bytes
    mode: Mode
    decoder: Decoder
    max_pixels: int
    resize: Resize | None
    encode: Encoding | Literal["copy"]
    quality: int

    def image(self, data: bytes, size: tuple[int, int]) -> Image:
        """The decoded, resized image of a file's bytes; `size` is (width, height) of the upright original."""
        if self.resize is None:
            return decode(data, self.mode, self.decoder, None, self.max_pixels)
        image = decode(data, self.mode, self.decoder, self.resize.at_least(*size), self.max_pixels)
        return self.resize.apply(image, size)

    def read(self, row: dict[str, Any]) -> bytes:
        """The bytes of the source file of a row of the table of inputs. Raises BadImage where it changed."""
        return read_source_file(os.path.join(self.root, row["path"]), row["bytes"])

    def record(
        self, key: str, row: dict[str, Any], data: bytes, class_ids: NDArray[np.int64]
    ) -> tuple[Record, int]:
        """The record of a row whose file holds `data`, and how many boxes a crop has left outside.

        Raises BadImage where the file will not do.
        """
        size = (row["width"], row["height"])
        image = self.image(data, size)
        annotation = annotation_from_text(row["annotation"], class_ids)
        boxes = _boxes(annotation)
        if self.resize is not None:
            annotation = self._moved(annotation, size)
        if self.encode == "copy":
            stored, encoding = data, read_header(data).format
        else:
            stored, encoding = encode(image, self.encode, self.quality), self.encode
        height, width, channels = image.shape
        record = Record(
            key=key,
            data=stored,
            encoding=encoding,
            height=height,
            width=width,
            channels=channels,
            dtype=image.dtype.name,
            annotation=annotation,
            path=row["path"],
            source_xxh3=xxh3_128_digest(data),
        )
        return record, boxes - _boxes(annotation)

    def _moved(self, annotation: Annotation, size: tuple[int, int]) -> Annotation:
        assert self.resize is not None
        if annotation.boxes is None and annotation.landmarks is None:
            return annotation  # polygons and keypoints are of boxes
        geometry = self.resize.geometry(*size)
        moved = move(annotation, geometry)
        # only a crop puts boxes outside; elsewhere float32 may miss the border by its last digit
        return clip(moved, geometry.width, geometry.height)


def _boxes(annotation: Annotation) -> int:
    return 0 if annotation.boxes is None else len(annotation.boxes)
