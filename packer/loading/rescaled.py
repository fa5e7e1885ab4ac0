"""Crops of images at a random scale, as recipes of segmentation and detection have them, and whole images.

Distributions are those of torchvision's references: `RandomResize` and `RandomCrop` of segmentation, `ScaleJitter`,
`FixedSizeCrop` and `RandomShortestSize` of detection (https://github.com/pytorch/vision, BSD-3-Clause).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from packer.errors import UsageError
from packer.images.opencv import INTERPOLATIONS, Interpolation
from packer.loading.crop import CROPS, Regions, part_of_resized
from packer.model.annotation import Int64
from packer.samplers.order import Float64


@dataclass(frozen=True)
class RandomScaleCrop:
    """The image resized at random, and of that a part of `size` at random, to train segmentation and detection.

    Images that are then smaller have a border on the right and below: black, and in masks the ignored id.

    Args:
        size: a side or (height, width) of the output, in pixels.
        short: range of the short side after resizing, in whole pixels, ends included: (260, 1040) for torchvision's
            ``RandomResize(260, 1040)``; None: `scale` is used.
        scale: range of the scale, where 1 makes the image fit into `size`: (0.1, 2.0) for large-scale jitter; None: the
            image keeps its size, as for torchvision's ``RandomCrop(size, pad_if_needed=True)``.
        interpolation: as for `RandomResizedCrop`. With "bilinear", parts are cut between source pixels, just as by
            torchvision after resizing; with the others at whole ones, which is faster.
        fill: the value of the border, 0 (black) to 255, or to 65535 for 16-bit images.

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    short: tuple[int, int] | None = None
    scale: tuple[float, float] | None = (0.1, 2.0)
    interpolation: Interpolation = "fast"
    fill: int = 0

    num_random = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _whole_sides("size", self.size, (1, 2)))
        if self.short is not None:
            object.__setattr__(self, "short", _whole_sides("short", self.short, (2,)))
        for name in ("short", "scale"):
            span = getattr(self, name)
            if span is not None and (not isinstance(span, Sequence) or len(span) != 2 or not 0 < span[0] <= span[1]):
                raise ValueError(f"{name} must be a range above 0, such as (0.5, 2.0), got {span!r}")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}")
        if type(self.fill) is not int or not 0 <= self.fill < 1 << 16:
            raise ValueError(f"fill must be a whole number from 0 to 255, or to 65535 for 16 bits, got {self.fill!r}")
        if self.scale is not None:
            object.__setattr__(self, "scale", tuple(self.scale))

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size` as (height, width), for any `shape`."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return parts of the plane of images; `widths`, `heights` and `random` are those of `Crop.regions`."""
        height, width = self.output(None)
        if self.short is not None:
            low, high = self.short
            scales = (low + np.floor((high - low + 1) * random[:, 0])) / np.minimum(widths, heights)
        elif self.scale is None:
            scales = np.ones(len(widths))
        else:
            low_scale, high_scale = self.scale
            fitted = np.minimum(width / widths, height / heights)
            scales = fitted * (low_scale + (high_scale - low_scale) * random[:, 0])
        # rounding errors must not make a side one pixel shorter
        resized = [np.maximum(1, np.floor((sides * scales).round(6))) for sides in (widths, heights)]
        room = [np.maximum(0, sides - side) + 1 for sides, side in zip(resized, (width, height), strict=True)]
        left, top = np.floor(room[0] * random[:, 1]), np.floor(room[1] * random[:, 2])
        sizes, start, filter = (widths, heights), (left, top), self.interpolation
        exact = part_of_resized(sizes, (resized[0], resized[1]), start, (width, height), filter)
        if filter == "bilinear":
            return exact
        ends = np.minimum(np.rint(exact[:, :2] + exact[:, 2:]), np.stack(sizes, axis=1))
        begins = np.minimum(np.rint(exact[:, :2]), ends - 1)
        # whole pixels of the source, but a border has those of the resized image
        beyond = np.stack([resized[0] < width, resized[1] < height] * 2, axis=1)
        return np.where(beyond, exact, np.hstack([begins, ends - begins]))


@dataclass(frozen=True)
class WholeImage:
    """Whole images of differing sizes: a batch has a list of tensors, as torchvision's detectors take them.

    If the targets are masks alone, or with ``collate="padded"`` and ``"yolo"``, images are one tensor of the largest
    height and width of the batch, with zeros on the right and below (after normalization), and masks the ignored id.

    Args:
        short: the short side after resizing, in pixels; several: one of them at random for each image; None: images
            keep their size.
        longest: the long side at most.
        interpolation: "bilinear", "area" or "nearest", as for `RandomResizedCrop`.

    Raises:
        ValueError: if an argument is out of range.
    """

    short: int | Sequence[int] | None = None
    longest: int | None = None
    interpolation: Interpolation = "bilinear"

    num_random = 1

    def __post_init__(self) -> None:
        if self.short is not None:
            object.__setattr__(self, "short", _whole_sides("short", self.short, None))
        if self.longest is not None:
            object.__setattr__(self, "longest", _whole_sides("longest", self.longest, (1,)))
        if self.interpolation not in INTERPOLATIONS or self.interpolation == "fast":
            raise ValueError(f"interpolation must be bilinear, area or nearest, got {self.interpolation!r}")

    def output(self, shape: tuple[int, int] | None) -> NoReturn:
        """Raise UsageError: images have no common size, whatever `shape` is."""
        step = "decode on the host, without a cache on the device, or choose another crop"
        raise UsageError("crop", "is a WholeImage, which only a PackedLoader makes, on the host", step)

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return whole images of these `widths` and `heights`; `random` is not used."""
        zeros = np.zeros_like(widths)
        return np.stack([zeros, zeros, widths, heights], axis=1)

    def resized(self, widths: Float64, heights: Float64, random: Float64) -> Int64:
        """Return the (height, width) of each image, int64 (n, 2), as torchvision's resize rounds it.

        `widths`, `heights` and `random` are those of `Crop.regions`.
        """
        short, long = np.minimum(widths, heights), np.maximum(widths, heights)
        low, high = short, long
        if self.short is not None:
            choices = np.atleast_1d(np.array(self.short, np.float64))
            low = choices[np.floor(random[:, 0] * len(choices)).astype(np.int64)]
            high = np.floor(low * long / short)
        if self.longest is not None:
            over = high > self.longest
            low, high = np.where(over, np.floor(self.longest * low / high), low), np.minimum(high, self.longest)
        low = np.maximum(1, low)
        upright = widths <= heights
        return np.stack([np.where(upright, high, low), np.where(upright, low, high)], axis=1).astype(np.int64)


def _whole_sides(name: str, given: int | Sequence[int], counts: tuple[int, ...] | None) -> int | tuple[int, ...]:
    """Return a side or several as ints. Raise ValueError if they are none; `counts`: how many there may be."""
    sides = given if isinstance(given, Sequence) else [given]
    try:
        numbers = tuple(operator.index(side) for side in sides)
    except TypeError:
        numbers = ()
    fits = bool(numbers) if counts is None else len(numbers) in counts
    if not fits or min(numbers) < 1 or any(isinstance(side, bool) for side in sides):
        raise ValueError(f"{name} must be whole pixels, at least 1, got {given!r}")
    return numbers if isinstance(given, Sequence) else numbers[0]


CROPS |= {kind.__name__: kind for kind in (RandomScaleCrop, WholeImage)}
