"""The one resampler of the build and the loader: the pixels of an image, or of a part of it, at another size."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packer.images.opencv import cv2
from packer.types import Image

Interpolation = Literal["area", "bilinear", "fast", "nearest"]
"""How pixels are computed, on each axis for itself; an axis that grows is interpolated linearly.

area: an axis that shrinks is averaged, each output pixel the mean of the part of the source that it covers (a box
filter). bilinear: an axis that shrinks is averaged by a triangle twice as wide as that, as torchvision does with
``antialias=True`` and Pillow always; within a level of both. fast: linear up to a shrink of `FAST_SHRINK` on both axes,
else area. nearest: one source pixel, for images whose values are ids.
"""
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
FAST_SHRINK = 1.15
"""At this shrink (256 to 224 px is 1.14), linear differs from the mean of the area by 0.5 of 255 on photos, 49 dB in
the median, and 42 dB in the worst of 80; at 1.5 by 1.2 and 41 dB. Each source pixel still counts, so little aliases."""
_ONE_CALL_NO = -1
Box = tuple[float, float, float, float]
"""x, y, width, height in pixels of an image."""


def one_call(shrink_x: Any, shrink_y: Any, interpolation: Interpolation) -> NDArray[np.int_]:
    """Return OpenCV's flag for the filter, -1 if it takes more than one call of OpenCV: use `resample`.

    Args:
        shrink_x: how much smaller the width becomes, 0.5 if it doubles; a number or an array.
        shrink_y: the same for the height.
        interpolation: the filter.
    """
    most = np.maximum(shrink_x, shrink_y)
    if interpolation == "nearest":
        return np.full_like(most, cv2.INTER_NEAREST_EXACT, dtype=np.int_)
    # OpenCV averages areas only if both axes shrink
    averaged = (np.minimum(shrink_x, shrink_y) >= 1) & (interpolation != "bilinear")
    linear = most <= (FAST_SHRINK if interpolation == "fast" else 1)
    return np.where(linear, cv2.INTER_LINEAR, np.where(averaged, cv2.INTER_AREA, _ONE_CALL_NO))


def resample(
    image: Image,
    size: tuple[int, int],
    interpolation: Interpolation = "area",
    box: Box | None = None,
    out: Image | None = None,
) -> Image:
    """Return an image, or a part of it, at another size.

    "area" is exact but for the rounding to whole levels: at most 0.51 levels off, 1.01 where one axis shrinks and
    the other grows, because that takes two steps.

    A box whose edges are whole pixels is cut out first, as torchvision's RandomResizedCrop does. One that begins within
    a pixel is in its exact place: "bilinear" uses the pixels around it, as a resize before the crop would; the others
    move the image by linear interpolation first, which smooths it by less than a source pixel.

    Args:
        image: uint8 or uint16 (height, width, 1..4).
        size: (width, height) of the result.
        interpolation: the filter.
        box: the part that becomes the result, inside the image; all of it if not given.
        out: where to put the result, C-contiguous.

    Returns:
        (height, width, channels), C-contiguous, same dtype; `out` if it is given.
    """
    x, y, width, height = box or (0, 0, image.shape[1], image.shape[0])
    left, top, right, bottom = math.floor(x), math.floor(y), math.ceil(x + width), math.ceil(y + height)
    begins_whole = x == left and y == top
    whole = begins_whole and x + width == right and y + height == bottom
    if interpolation == "bilinear" and (not whole or max(width / size[0], height / size[1]) > 1):
        made = _by_triangle(image, size, (x, y, width, height), whole)
    elif interpolation == "nearest" and not whole:
        rows, columns = ((at + (np.arange(n) + 0.5) * (side / n)).astype(int)
                         for at, side, n in ((y, height, size[1]), (x, width, size[0])))  # fmt: skip
        made = image[rows[:, None], columns]
    else:
        part = image[top:bottom, left:right] if begins_whole else _moved(image, x, y, width, height)
        made = _by_opencv(part, size, interpolation, (width, height), out if whole else None)
    if out is None:
        return np.ascontiguousarray(made.reshape(size[1], size[0], image.shape[2]))
    if made is not out:
        out[:] = made.reshape(out.shape)
    return out


def _by_opencv(
    image: Image, size: tuple[int, int], interpolation: Interpolation, extent: tuple[float, float], out: Image | None
) -> Image:
    """Resize what lies in the image's first `extent` (width, height) pixels, which need not be whole."""
    width, height = extent
    if image.shape[1::-1] == size and width == size[0] and height == size[1]:
        return image
    flag = int(one_call(width / size[0], height / size[1], interpolation))
    if flag == _ONE_CALL_NO:
        # shrink the one axis, then grow the other
        if width > size[0]:
            middle = size[0], image.shape[0]
            narrow = _by_opencv(image, middle, "area", (width, image.shape[0]), None)
            return _by_opencv(narrow, size, interpolation, (size[0], height), out)
        middle = image.shape[1], size[1]
        flat = _by_opencv(image, middle, "area", (image.shape[1], height), None)
        return _by_opencv(flat, size, interpolation, (width, size[1]), out)
    if image.shape[1] == width and image.shape[0] == height:
        made: Image = cv2.resize(image, size, dst=out, interpolation=flag)
        return made if out is None else out
    # Given scales and no size, OpenCV keeps exactly to the scales: the last source pixel, which the image covers
    # only in part, does not pull the others out of place.
    made = cv2.resize(image, None, fx=size[0] / width, fy=size[1] / height, interpolation=flag)
    return made[: size[1], : size[0]]


def _moved(image: Image, x: float, y: float, width: float, height: float) -> Image:
    """Return the part that begins at (x, y), within a pixel; its first pixel begins there."""
    left, top = math.floor(x), math.floor(y)
    right, bottom = left + math.ceil(width) + 1, top + math.ceil(height) + 1
    part = image[top:bottom, left:right]
    missing = bottom - top - part.shape[0], right - left - part.shape[1]
    if any(missing):
        part = cv2.copyMakeBorder(part, 0, missing[0], 0, missing[1], cv2.BORDER_REPLICATE)
    across, down = x - left, y - top
    part = cv2.addWeighted(part[:, :-1], 1 - across, part[:, 1:], across, 0)
    moved: Image = cv2.addWeighted(part[:-1], 1 - down, part[1:], down, 0)
    return moved


def _by_triangle(image: Image, size: tuple[int, int], box: Box, alone: bool) -> Image:
    """Resize by Pillow; `alone`: as if there were nothing around the box."""
    x, y, width, height = box
    # pixels around it that count
    beside, above = (0, 0) if alone else (max(1.0, width / size[0]) + 1, max(1.0, height / size[1]) + 1)
    left, top = max(0, math.floor(x - beside)), max(0, math.floor(y - above))
    part = image[top : math.ceil(y + height + above), left : math.ceil(x + width + beside)]
    edges = x - left, y - top, x + width - left, y + height - top
    if image.dtype == np.uint8 and image.shape[2] >= 3:
        # Pillow keeps pixels of three channels in four bytes too, and converts them more slowly
        four = cv2.cvtColor(part, cv2.COLOR_RGB2RGBA) if image.shape[2] == 3 else np.ascontiguousarray(part)
        made = _resized_by_pillow(four, "RGBX", size, edges)
        return cv2.cvtColor(made, cv2.COLOR_RGBA2RGB) if image.shape[2] == 3 else made
    # of RGBA and LA, Pillow would multiply the colors by alpha; of 16 bits it has floats
    mode = "L" if image.dtype == np.uint8 else "F"
    made = np.empty((size[1], size[0], image.shape[2]), image.dtype)
    for channel in range(image.shape[2]):
        plane = np.ascontiguousarray(part[..., channel], np.uint8 if mode == "L" else np.float32)
        resized = _resized_by_pillow(plane, mode, size, edges)
        made[..., channel] = resized if mode == "L" else np.rint(resized)
    return made


def _resized_by_pillow(pixels: NDArray[Any], mode: str, size: tuple[int, int], edges: Box) -> NDArray[Any]:
    from PIL import Image as PillowImage

    image = PillowImage.frombuffer(mode, pixels.shape[1::-1], pixels, "raw", mode, 0, 1)
    return np.asarray(image.resize(size, PillowImage.Resampling.BILINEAR, edges))
