"""The sizes and bytes of records, and parts of images resized into the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.images.resample import Interpolation, one_call, resample
from packer.loading.crop import Regions
from packer.model.annotation import Image, Int64
from packer.samplers.order import Float64

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
    region, (starts, sizes) = pack.region.data, pack.places(records)
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
    sides = np.stack(sizes, axis=1).tolist()
    given = zip(images, rows, cuts, flags, parts, sides, strict=True)
    for image, row, (left, top, right, bottom), flag, part, side in given:
        if flag >= 0:
            cv2.resize(image[top:bottom, left:right], (width, height), row, 0, 0, flag)
        else:
            resize_into(image, part.tolist(), row, interpolation, side)


def resize_into(
    image: Image, part: list[float], row: Image, interpolation: Interpolation = "area",
    sides: Sequence[float] | None = None,
) -> None:  # fmt: skip
    """Resize the part (x, y, width, height) of an image into `row`; outside the image it is black.

    The image is resized alone, into whole pixels of the row: nothing blends into a border.

    Args:
        image: the whole image, maybe decoded smaller.
        part: in pixels of `image`.
        row: receives the pixels.
        interpolation: the filter.
        sides: the exact (width, height) of an image that was decoded smaller, which rounds them up.
    """
    width, height = sides or image.shape[1::-1]
    x, y, across, down = part
    if x >= 0 and y >= 0 and x + across <= width and y + down <= height:
        resample(image, row.shape[1::-1], interpolation, (x, y, across, down), out=row)
        return
    row[:] = 0
    left, right, x, across = _inside(x, across, width, row.shape[1])
    top, bottom, y, down = _inside(y, down, height, row.shape[0])
    if left < right and top < bottom:
        inside = resample(image, (right - left, bottom - top), interpolation, (x, y, across, down))
        row[top:bottom, left:right] = inside


def _inside(start: float, extent: float, side: float, pixels: int) -> tuple[int, int, float, float]:
    """Return what of a row has pixels of the image (first, end), and these (start, extent), along one axis."""
    begin, end = max(start, 0), min(start + extent, side)
    first, last = (round((edge - start) * pixels / extent) for edge in (begin, end))
    return first, last, begin, end - begin
