"""OpenCV, quiet and in this thread only, and `resample`, by which the build and the loader resize images with it."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Image
from packer.system import at_fork

__all__ = ["cv2", "one_call", "quiet_opencv", "resample"]


REST_S = 0.005
"""Time in which OpenCV's threads fall asleep after their work: they look for more for about 1 ms."""

_logging: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # 4, 5


class _Log:
    """OpenCV's log level, and the number of users that need it off."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector may end an iteration while it is held
        self.users = 0
        self.level = 0

    def turn_off(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.level = _logging.getLogLevel()
                _logging.setLogLevel(0)

    def put_back(self) -> None:
        if sys.is_finalizing():  # a loop that the program left unfinished ends now, and OpenCV's functions may be gone
            return
        with self.lock:
            self.users -= 1
            if self.users == 0 and _logging.getLogLevel() == 0:  # keep a value that others have set in the meantime
                _logging.setLogLevel(self.level)

    def unlock(self) -> None:
        self.lock = threading.RLock()


_LOG = _Log()


def _let_threads_rest() -> None:
    """Before a fork, wait until OpenCV's threads sleep: a child forked while one of them wakes up may hang."""
    if cv2.getNumThreads() > 1:
        time.sleep(REST_S)


# in a child, another thread may have held the lock at that moment
at_fork(before=_let_threads_rest, after_in_child=_LOG.unlock)


@contextmanager
def quiet_opencv(in_worker: bool = False) -> Iterator[None]:
    """Turn off OpenCV's log messages in this context: packer's errors replace them. Thread-safe.

    Args:
        in_worker: This is a worker process of packer's, no thread of which is within OpenCV: OpenCV's threads, which
            would compete with the other workers for the cores, are turned off from here on.
    """
    if in_worker:
        cv2.setNumThreads(0)
    _LOG.turn_off()
    try:
        yield
    finally:
        _LOG.put_back()


Interpolation = Literal["area", "bilinear", "fast", "nearest"]
"""The filter, applied to each axis separately; an axis that grows is interpolated linearly.

area: an axis that shrinks is averaged, so that each output pixel is the mean of the source area it covers (a box
filter). bilinear: an axis that shrinks is averaged by a triangle filter twice as wide, as by torchvision with
``antialias=True`` and by Pillow; within one level of both. fast: linear if both axes shrink by at most `FAST_SHRINK`,
else area. nearest: one source pixel, for images whose values are ids.
"""
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
ANTIALIASED: tuple[Interpolation, ...] = ("area", "bilinear")
FAST_SHRINK = 1.15
"""Measured on 80 photos at 1.14 (256 to 224 px): linear differs from area by 0.5 of 255 and a median of 48 dB (worst
40 dB); at 1.5 by 1.3 and 41 dB. Up to a shrink of 2 every source pixel has some weight, so there is little aliasing."""
_ONE_CALL_NO = -1
Box = tuple[float, float, float, float]
"""x, y, width, height in pixels of an image."""


def one_call(shrink_x: Any, shrink_y: Any, interpolation: Interpolation) -> NDArray[np.int_]:
    """Return OpenCV's flag for the filter, or -1 if one call of OpenCV cannot apply it and `resample` must be used.

    Args:
        shrink_x: Factor by which the width shrinks, 0.5 if it doubles; a number or an array.
        shrink_y: The same for the height.
        interpolation: The filter.
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
    """Resize an image, or a part of it.

    "area" is exact except for rounding: at most 0.51 levels off, or 1.01 if one axis shrinks and the other grows,
    because that takes two steps.

    A box of whole pixels is cut out first, as by torchvision's RandomResizedCrop. Any other box keeps its exact
    position: "bilinear" also uses the pixels around it, as if the image had been resized before the crop; the other
    filters first shift the image by linear interpolation, which smooths it by less than a source pixel.

    Args:
        image: uint8 or uint16 (height, width, 1..4).
        size: (width, height) of the result.
        interpolation: The filter.
        box: The part to resize, inside the image. Default: the whole image.
        out: Array for the result, C-contiguous.

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
        part = image[top:bottom, left:right] if begins_whole else _shifted_part(image, x, y, width, height)
        made = _by_opencv(part, size, interpolation, (width, height), out if whole else None)
    if out is None:
        return np.ascontiguousarray(made.reshape(size[1], size[0], image.shape[2]))
    if made is not out:
        out[:] = made.reshape(out.shape)
    return out


def _by_opencv(
    image: Image, size: tuple[int, int], interpolation: Interpolation, extent: tuple[float, float], out: Image | None
) -> Image:
    """Resize the part of size `extent` (width, height; not always whole numbers) at the top left of the image."""
    width, height = extent
    if image.shape[1::-1] == size and width == size[0] and height == size[1]:
        return image
    flag = int(one_call(width / size[0], height / size[1], interpolation))
    if flag == _ONE_CALL_NO:
        # shrink one axis, then grow the other
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
    # given scales instead of a size, OpenCV uses exactly these: the last source pixel, which counts only in part,
    # does not displace the others
    made = cv2.resize(image, None, fx=size[0] / width, fy=size[1] / height, interpolation=flag)
    return made[: size[1], : size[0]]


def _shifted_part(image: Image, x: float, y: float, width: float, height: float) -> Image:
    """Return the part at (x, y), shifted by a fraction of a pixel so that its first pixel starts there."""
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
    """Resize with Pillow; `alone`: without the pixels around the box."""
    x, y, width, height = box
    # how far the filter reaches beyond the box
    beside, above = (0, 0) if alone else (max(1.0, width / size[0]) + 1, max(1.0, height / size[1]) + 1)
    left, top = max(0, math.floor(x - beside)), max(0, math.floor(y - above))
    part = image[top : math.ceil(y + height + above), left : math.ceil(x + width + beside)]
    edges = x - left, y - top, x + width - left, y + height - top
    if image.dtype == np.uint8 and image.shape[2] >= 3:
        # Pillow stores three channels in four bytes as well, but converts them more slowly
        four = cv2.cvtColor(part, cv2.COLOR_RGB2RGBA) if image.shape[2] == 3 else np.ascontiguousarray(part)
        made = _resized_by_pillow(four, "RGBX", size, edges)
        return cv2.cvtColor(made, cv2.COLOR_RGBA2RGB) if image.shape[2] == 3 else made
    # Pillow would multiply the colors of RGBA and LA by alpha, and resizes 16 bits only as floats
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
