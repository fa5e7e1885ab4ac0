"""The sizes and bytes of records, and parts of images resized into the rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.images.resample import Interpolation, one_call, resample
from packer.loading.crop import Regions
from packer.samplers.order import Float64
from packer.types import Image, Int64

Sizes = tuple[Float64, Float64]
"""Widths and heights of images."""


def sizes_of(pack: Pack, records: Int64) -> Sizes:
    """Return the widths and heights of images, float64 (n,) each."""
    shape = pack.manifest.shape
    if shape is not None:
        return np.full(len(records), float(shape[1])), np.full(len(records), float(shape[0]))
    widths, heights = (pack.values(name, records) for name in ("width", "height"))
    return widths.astype(np.float64), heights.astype(np.float64)


def data_of(pack: Pack, records: Int64) -> list[memoryview]:
    """Return the bytes of each record, mapped."""
    region, (starts, sizes) = pack.region.data, pack.where(records)
    return [region[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


def in_whole_pixels(parts: Regions, sizes: Sizes) -> NDArray[np.bool_]:
    """Return which parts begin and end between two pixels, inside their image; `sizes` are those of the images."""
    x, y, width, height = parts.T
    inside = (x >= 0) & (y >= 0) & (x + width <= sizes[0]) & (y + height <= sizes[1])
    whole: NDArray[np.bool_] = inside & (parts == np.rint(parts)).all(axis=1)
    return whole


def resize_parts(
    images: Iterable[Image], parts: Regions, sizes: Sizes, rows: Sequence[Image], interpolation: Interpolation
) -> None:
    """Resize a part of each image, in pixels of that image, into its row; `sizes` are those of the images."""
    height, width = rows[0].shape[:2]
    flags = one_call(parts[:, 2] / width, parts[:, 3] / height, interpolation)
    whole = in_whole_pixels(parts, sizes)
    # per image only what must be: the GIL lets one thread run Python at a time
    edges = np.concatenate([parts[:, :2], parts[:, :2] + parts[:, 2:]], axis=1)
    cuts = np.where(whole[:, None], edges, 0).astype(np.int64).tolist()
    flags = np.where(whole, flags, -1).tolist()
    for image, row, (left, top, right, bottom), flag, part in zip(images, rows, cuts, flags, parts, strict=True):
        if flag >= 0:
            cv2.resize(image[top:bottom, left:right], (width, height), row, 0, 0, flag)
        else:
            resize_into(image, part.tolist(), row, interpolation)


def resize_into(image: Image, part: list[float], row: Image, interpolation: Interpolation = "area") -> None:
    """Resize the part (x, y, width, height) of an image into `row`; outside the image it is black."""
    x, y, width, height = part
    if x < 0 or y < 0 or x + width > image.shape[1] or y + height > image.shape[0]:
        left, top = math.floor(x), math.floor(y)
        image = _bordered(image, left, top, math.ceil(x + width) - left, math.ceil(y + height) - top)
        x, y = x - left, y - top
    resample(image, row.shape[1::-1], interpolation, (x, y, width, height), out=row)


def _bordered(image: Image, x: int, y: int, width: int, height: int) -> Image:
    """Return a part that extends beyond the image, with black pixels outside it."""
    canvas = np.zeros((height, width, image.shape[2]), image.dtype)
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + width, image.shape[1]), min(y + height, image.shape[0])
    if x2 > x1 and y2 > y1:
        canvas[y1 - y : y2 - y, x1 - x : x2 - x] = image[y1:y2, x1:x2]
    return canvas
