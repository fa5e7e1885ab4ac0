"""Mosaics: where four or nine images lie on one canvas, of which the output shows the middle.

The geometry is that of Ultralytics' Mosaic, LetterBox and RandomPerspective (https://docs.ultralytics.com, version
8.4): sizes, places and cuts are computed from the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.images.opencv import INTERPOLATIONS, Interpolation
from packer.loading.crop import CROPS
from packer.model.annotation import Int64
from packer.samplers.order import Float64
from packer.samplers.ranks import as_number

MOSAIC_STREAM = 8 << 32
"""Gives mosaics other random numbers than crops, flips and affine maps."""
GRIDS = (4, 9)
MAGNIFIED = 2
"""Up to this scale, parts of images begin and end between two of their pixels, so that they are cut out as they are:
nothing moves by more than one pixel of the output."""


@dataclass(frozen=True)
class Mosaic:
    """Four or nine images on one canvas, to train detectors as Ultralytics YOLO does.

    The image of the record and others that come up to 64 positions before it in the epoch, drawn at random, are resized
    to a long side of `size` and put around a random point of a canvas of twice that side. A batch has the middle of it.
    With ``affine=RandomAffine(0, translate=(0.1, 0.1), scale=(0.5, 1.5))``, canvases are moved and scaled first, then
    cut. Objects and masks of all images move along. What belongs to a whole image, such as its label, is that of the
    record.

    Args:
        size: side of the output, in pixels.
        tiles: images on a canvas, 4 or 9.
        chance: share of the images that are shown so; each of the others is alone in the middle.
        close_epoch: epoch from which all images are alone; None: never.
        fill: value of pixels that no image covers, also of those that `affine` brings in; of 16 bits, 114 is nearly
            black, and 29298 the gray that it is of 8.
        interpolation: as for `RandomResizedCrop`.

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int
    tiles: int = 4
    chance: float = 1.0
    close_epoch: int | None = None
    fill: int = 114
    interpolation: Interpolation = "fast"

    num_random = 0

    def __post_init__(self) -> None:
        for name, least, most in (("size", 2, None), ("close_epoch", 0, None), ("fill", 0, (1 << 16) - 1)):
            value = getattr(self, name)
            if value is None and name == "close_epoch":
                continue
            if type(value) is not int or value < least or (most is not None and value > most):
                raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
        if self.tiles not in GRIDS:
            raise ValueError(f"tiles must be 4 or 9, got {self.tiles!r}")
        if not 0 <= as_number(self.chance) <= 1:
            raise ValueError(f"chance must be from 0 to 1, got {self.chance!r}")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}")

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return (size, size), for any `shape`."""
        return self.size, self.size

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> NoReturn:
        """Raise UsageError: a mosaic is no part of one image, whatever `widths`, `heights` and `random` are."""
        raise UsageError(
            "crop", "is a Mosaic, which only a PackedLoader makes, of whole images", "write crop=Mosaic(...)"
        )

    @property
    def low(self) -> int:
        """Where the canvas begins in the pixels of the output, left and above."""
        return -(self.size // 2)

    def joins(self, random: Float64, epoch: int) -> NDArray[np.bool_]:
        """Return which images become mosaics in `epoch`, for numbers in [0, 1) in `random`, (n,)."""
        closed = self.close_epoch is not None and epoch >= self.close_epoch
        return np.zeros(len(random), np.bool_) if closed else random < self.chance

    def resized(self, sizes: Float64) -> Int64:
        """Return the (width, height) at which each image is on the canvas, int64 (..., 2); `sizes` are its own."""
        longest = sizes.max(axis=-1, keepdims=True)
        found = np.where(longest == self.size, sizes, np.ceil(sizes * (self.size / longest)))
        return np.minimum(found, self.size).astype(np.int64)

    def corners(self, resized: Int64, random: Float64) -> Int64:
        """Return where each image of some mosaics begins, in pixels of the output, int64 (n, tiles, 2).

        Args:
            resized: sizes on the canvas, (n, tiles, 2), that of the record first.
            random: random numbers in [0, 1) for the point around which four images lie, (n, 2).
        """
        if self.tiles == 9:
            return self._around_the_first(resized)
        span = 2 * self.size + 2 * self.low  # of the middle of the canvas
        points: Int64 = np.floor(random * span).astype(np.int64)[:, None]
        before = np.array([(1, 1), (0, 1), (1, 0), (0, 0)], np.int64)  # above the point, then below it
        corners: Int64 = points - before * resized
        return corners

    def _around_the_first(self, resized: Int64) -> Int64:
        """Return where the first of nine images and those around it begin: clockwise, from the one above it."""
        wide, high = resized[..., 0].T, resized[..., 1].T
        zero = np.zeros_like(wide[0])
        corners = [
            (zero, zero),
            (zero, -high[1]),
            (wide[1], -high[2]),
            (wide[0], zero),
            (wide[0], high[3]),
            (wide[0] - wide[5], high[0]),
            (wide[0] - wide[5] - wide[6], high[0]),
            (-wide[7], high[0] - high[7]),
            (-wide[8], high[0] - high[7] - high[8]),
        ]
        return np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)


CROPS[Mosaic.__name__] = Mosaic


def after(second: Float64, first: Float64) -> Float64:
    """Return the maps (n, 2, 3) that do what those of `first` do, then those of `second`."""
    linear = second[:, :, :2] @ first[:, :, :2]
    shift = (second[:, :, :2] @ first[:, :, 2:]) + second[:, :, 2:]
    return np.concatenate([linear, shift], axis=2)


def undone(maps: Float64) -> Float64:
    """Return the maps (n, 2, 3) back."""
    linear = np.linalg.inv(maps[:, :, :2])
    return np.concatenate([linear, -linear @ maps[:, :, 2:]], axis=2)


def upright_maps(scales: Float64, shifts: NDArray[Any]) -> Float64:
    """Return the maps that scale and shift each image across and down, (n, 2, 3)."""
    maps = np.zeros((len(scales), 2, 3))
    maps[:, (0, 1), (0, 1)], maps[:, :, 2] = scales, shifts
    return maps


def in_whole_pixels_of_both(maps: Float64, sizes: Float64, limits: Float64, pixels: Float64) -> tuple[Any, ...]:
    """Return upright maps by which whole pixels of the output show parts of images that lie between their pixels.

    Args:
        maps: from images to the output, (n, 2, 3).
        sizes: (width, height) of the images, (n, 2).
        limits: what of each image there is: x, y, and where it ends, in its own pixels, (n, 4).
        pixels: width and height of each output, (n, 2).

    Returns:
        regions float64 (n, 4): x, y, width, height in pixels of the image; rectangles int64 (n, 4): x, y, and where
        they end in pixels of the output; the maps of these; and bool (n,), which of them show anything. Those that do
        not have the whole image, in some pixel, and the map as it is given.
    """
    scale, shift = maps[:, (0, 1), (0, 1)], maps[:, :, 2]
    begin, end = np.maximum(limits[:, :2], 0), np.minimum(limits[:, 2:], sizes)
    first, last = (np.rint(np.clip(edge * scale + shift, 0, pixels)) for edge in (begin, end))
    filled = (last > first) & (end > begin)
    shown: NDArray[np.bool_] = filled[:, 0] & filled[:, 1]
    last = np.maximum(last, first + 1)  # of those that show nothing, to compute with
    begin, end = (np.clip((edge - shift) / scale, begin, end) for edge in (first, last))
    whole = scale <= MAGNIFIED
    begin = np.where(whole, np.clip(np.rint(begin), 0, sizes - 1), begin)
    end = np.where(whole, np.minimum(np.maximum(np.rint(end), begin + 1), sizes), end)
    extent = np.maximum(end - begin, 1e-6)
    scale = (last - first) / extent
    placed = upright_maps(scale, first - begin * scale)
    regions = np.where(shown[:, None], np.hstack([begin, extent]), np.hstack([np.zeros_like(sizes), sizes]))
    placed = np.where(shown[:, None, None], placed, maps)
    return regions, np.hstack([first, last]).astype(np.int64), placed, shown
