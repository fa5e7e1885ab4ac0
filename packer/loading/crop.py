"""Crops: frozen descriptions of the part of each image that a batch has, and of its output size.

Parameters, defaults and distributions are torchvision's (torchvision.transforms.v2, BSD-3-Clause).
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.images.opencv import INTERPOLATIONS, Interpolation
from packer.model.annotation import Image
from packer.samplers.order import Float64

Regions = NDArray[np.float64]
"""float64 (n, 4): x, y, width, height in pixels of each source image. What is outside the image becomes a border, into
which nothing of the image blends: see `with_whole_borders`."""

_TRIES = 10
_NUDGE = 1 / 1024
"""Pixels by which a region differs from whole ones: too little to see, and enough for float32."""


class Crop(Protocol):
    """A crop or resize to one size.

    It may have the attributes `interpolation`, "area" by default, and `fill`, the value of borders, 0 by default.
    """

    num_random: int
    """Random numbers that each image needs."""

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return the output (height, width); `shape` is that of all input images, None if they differ."""

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return the region of each image that becomes the output.

        Args:
            widths: of the images, in pixels, float64 (n,).
            heights: likewise.
            random: random numbers in [0, 1), float64 (n, num_random).
        """


@runtime_checkable
class ResizingCrop(Crop, Protocol):
    """A crop that resizes whole decoded images by itself, one after another, in one view on the host."""

    def choices(self, random: Float64) -> NDArray[np.int64]:
        """Return a number for each image that `fill_row` gets; `random` is that of `Crop.regions`."""

    def fill_row(self, image: Image, region: Float64, choice: int, row: Image) -> None:
        """Write the part of an image that becomes the output.

        Args:
            image: uint8 (height, width, channels).
            region: x, y, width and height, of `Crop.regions`.
            choice: of `choices`.
            row: receives the pixels.
        """


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width)."""
    return (size, size) if isinstance(size, int) else size


def _set_size(crop: Any) -> None:
    """Store the size as an int or a tuple of ints, as states have it. Raise ValueError if it is not a size."""
    sides = crop.size if isinstance(crop.size, Sequence) else [crop.size]
    try:
        numbers = tuple(operator.index(side) for side in sides)
    except TypeError:
        numbers = ()
    if len(numbers) not in (1, 2) or min(numbers) < 1 or any(isinstance(side, bool) for side in sides):
        raise ValueError(f"size must be a side or (height, width), at least 1 pixel, got {crop.size!r}")
    object.__setattr__(crop, "size", numbers if isinstance(crop.size, Sequence) else numbers[0])


def _check_interpolation(interpolation: str, allowed: tuple[str, ...] = INTERPOLATIONS) -> None:
    if interpolation not in allowed:
        raise ValueError(f"interpolation must be one of {', '.join(allowed)}, got {interpolation!r}")


_EXACT = tuple(name for name in INTERPOLATIONS if name != "fast")
"""For evaluation: these never alias, except "nearest", which is for ids."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the image with random area and aspect ratio, resized to `size`, for training.

    Args:
        size: a side or (height, width), in pixels.
        scale: range of the crop's share of the image area.
        ratio: range of the crop's width / height, uniform on a logarithmic scale.
        interpolation: the filter for an axis that shrinks; one that grows is interpolated linearly. "area" averages;
            "bilinear" averages with a triangle filter, within one level of torchvision (``antialias=True``) and Pillow;
            "fast" is linear if both axes shrink by at most 1.15 (256 to 224 px: photos then differ from "area" by 0.5
            of 255 and a median of 48 dB), else "area"; "nearest" takes one source pixel.

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "fast"

    num_random = 2 * _TRIES + 2

    def __post_init__(self) -> None:
        _set_size(self)
        _check_interpolation(self.interpolation)
        for name in ("scale", "ratio"):
            span = getattr(self, name)
            if not isinstance(span, Sequence) or len(span) != 2 or not 0 < span[0] <= span[1]:
                raise ValueError(f"{name} must be a range above 0, such as (0.5, 1.0), got {span!r}")
            object.__setattr__(self, name, tuple(span))

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size` as (height, width), for any `shape`."""
        return _pair(self.size)

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return regions as torchvision does: the first of ten tries that fits, else the largest centered part.

        `widths`, `heights` and `random` are those of `Crop.regions`.
        """
        low, high = self.scale
        areas = (widths * heights)[:, None] * (low + (high - low) * random[:, :_TRIES])
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratios = np.exp(log_low + (log_high - log_low) * random[:, _TRIES : 2 * _TRIES])
        w, h = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (w > 0) & (h > 0) & (w <= widths[:, None]) & (h <= heights[:, None])
        first = fits.argmax(axis=1)
        rows = np.arange(len(widths))
        w, h, found = w[rows, first], h[rows, first], fits[rows, first]
        w, h = np.where(found, w, self._widest(widths, heights)), np.where(found, h, self._highest(widths, heights))
        x = np.floor((widths - w + 1) * random[:, -2])
        y = np.floor((heights - h + 1) * random[:, -1])
        x, y = np.where(found, x, (widths - w) // 2), np.where(found, y, (heights - h) // 2)
        return np.stack([x, y, w, h], axis=1)

    def _widest(self, widths: Float64, heights: Float64) -> Float64:
        return np.minimum(widths, np.maximum(1, np.rint(heights * self.ratio[1])))

    def _highest(self, widths: Float64, heights: Float64) -> Float64:
        return np.minimum(heights, np.maximum(1, np.rint(widths / self.ratio[0])))


@dataclass(frozen=True)
class Resize:
    """The whole image, resized, for evaluation.

    Args:
        size: (height, width) in pixels; or the short side, which keeps the aspect ratio: all images must then have the
            same shape.
        interpolation: "bilinear", "area" or "nearest", as for `RandomResizedCrop`; never "fast".

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    interpolation: Interpolation = "bilinear"

    num_random = 0

    def __post_init__(self) -> None:
        _set_size(self)
        _check_interpolation(self.interpolation, _EXACT)

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size`; or the `shape` of all images with its short side made `size`."""
        if not isinstance(self.size, int):
            return self.size
        if shape is None:
            raise ValueError(f"Resize({self.size}) keeps each image's aspect, and they differ; give (height, width)")
        short = min(shape)
        return max(1, shape[0] * self.size // short), max(1, shape[1] * self.size // short)

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return whole images of these `widths` and `heights`; `random` is not used."""
        zeros = np.zeros_like(widths)
        return np.stack([zeros, zeros, widths, heights], axis=1)


@dataclass(frozen=True)
class CenterCrop:
    """The center of the image, for evaluation.

    Args:
        size: a side or (height, width), in pixels.
        resize: resize the short side to this first, as ``Resize(256), CenterCrop(224)`` does. Without it, images are
            not resized. Either way, those that are then smaller than `size` get a black border.
        interpolation: "bilinear", "area" or "nearest", as for `RandomResizedCrop`; never "fast".

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int | tuple[int, int]
    resize: int | None = None
    interpolation: Interpolation = "bilinear"

    num_random = 0

    def __post_init__(self) -> None:
        _set_size(self)
        _check_interpolation(self.interpolation, _EXACT)
        if self.resize is not None and (not isinstance(self.resize, int) or self.resize < 1):
            raise ValueError(f"resize must be the short side, at least 1 pixel, got {self.resize!r}")

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size` as (height, width), for any `shape`."""
        return _pair(self.size)

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return the centered parts of images of these `widths` and `heights`; `random` is not used."""
        height, width = (np.full_like(widths, side) for side in _pair(self.size))
        if self.resize is None:
            return np.stack([_centred(widths, width), _centred(heights, height), width, height], axis=1)
        short = np.minimum(widths, heights)
        # as in torchvision, whole pixels of the resized image
        wide, high = (np.floor(sides * self.resize / short) for sides in (widths, heights))
        start = _centred(wide, width), _centred(high, height)
        exact = part_of_resized((widths, heights), (wide, high), start, (width, height), self.interpolation)
        if self.interpolation == "bilinear":
            return exact
        w, h = (np.maximum(1, np.rint(side * short / self.resize)) for side in (width, height))
        cut = np.stack([_centred(widths, w), _centred(heights, h), w, h], axis=1)
        # whole pixels of the source, but a border has those of the resized image
        return np.where(np.stack([wide < width, high < height] * 2, axis=1), exact, cut)


@dataclass(frozen=True)
class CoverCrop:
    """The largest part of the image with the aspect ratio of `size`, resized to it: the image covers the output.

    Args:
        size: a side or (height, width), in pixels; None: the shape of each batch of a `BucketSampler`.
        random: the part is anywhere in the image, at random, to train; else its center.
        interpolation: as for `RandomResizedCrop`.

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int | tuple[int, int] | None = None
    random: bool = False
    interpolation: Interpolation = "area"

    num_random = 2

    def __post_init__(self) -> None:
        if self.size is not None:
            _set_size(self)
        _check_interpolation(self.interpolation)

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size` as (height, width), for any `shape`."""
        return _given_size(self)

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return parts in whole pixels; `widths`, `heights` and `random` are those of `Crop.regions`."""
        height, width = _given_size(self)
        # halves are rounded up, as by a build with the fit crop
        w = np.minimum(widths, np.maximum(1, np.floor(heights * width / height + 0.5)))
        h = np.minimum(heights, np.maximum(1, np.floor(widths * height / width + 0.5)))
        w, h = np.where(widths * height >= heights * width, (w, heights), (widths, h))
        if self.random:
            x, y = np.floor((widths - w + 1) * random[:, 0]), np.floor((heights - h + 1) * random[:, 1])
        else:
            x, y = (widths - w) // 2, (heights - h) // 2
        return np.stack([x, y, w, h], axis=1)


@dataclass(frozen=True)
class Letterbox:
    """The whole image, resized to fit into `size`, centered between borders.

    Sizes and borders are those of Ultralytics' LetterBox, and of a build with the fit pad.

    Args:
        size: a side or (height, width), in pixels; None: the shape of each batch of a `BucketSampler`.
        interpolation: as for `RandomResizedCrop`.
        fill: the value of the border, 0 (black) to 255, or to 65535 for 16-bit images; Ultralytics' is 114. In masks
            it is the value that a loss ignores, or 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    size: int | tuple[int, int] | None = None
    interpolation: Interpolation = "area"
    fill: int = 0

    num_random = 0

    def __post_init__(self) -> None:
        if self.size is not None:
            _set_size(self)
        _check_interpolation(self.interpolation)
        if isinstance(self.fill, bool) or not hasattr(self.fill, "__index__") or not 0 <= self.fill < 1 << 16:
            raise ValueError(f"fill must be a whole number from 0 to 255, or to 65535 for 16 bits, got {self.fill!r}")
        object.__setattr__(self, "fill", operator.index(self.fill))

    def __repr__(self) -> str:
        # a border of 0 is not named: the text is that of states from before there were others
        fill = f", fill={self.fill}" if self.fill else ""
        return f"Letterbox(size={self.size!r}, interpolation={self.interpolation!r}{fill})"

    def output(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        """Return `size` as (height, width), for any `shape`."""
        return _given_size(self)

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return what of the plane of images of these `widths` and `heights` the output shows; `random` is not used."""
        height, width = _given_size(self)
        ratios = np.minimum(width / widths, height / heights)
        # an image of whole pixels between borders of whole pixels
        wide, high = (np.maximum(1, np.rint(sides * ratios)) for sides in (widths, heights))
        left, top = (width - wide) // 2, (height - high) // 2
        across, down = widths / wide, heights / high
        return np.stack([-left * across, -top * down, width * across, height * down], axis=1)


def interpolation_of(crop: Crop | None) -> Interpolation:
    """Return the filter of a crop; a user's may have none."""
    found: Interpolation = getattr(crop, "interpolation", "area")
    return found


def _given_size(crop: CoverCrop | Letterbox) -> tuple[int, int]:
    """Return the size of a crop as (height, width)."""
    if crop.size is None:
        name = type(crop).__name__
        raise ValueError(f"{name}() takes the shapes of a BucketSampler, and there is none; write {name}(224)")
    return _pair(crop.size)


def with_whole_borders(regions: Regions, sizes: tuple[Float64, Float64], output: tuple[int, int]) -> Regions:
    """Return regions out of which borders become whole pixels of the output; other regions stay as they are.

    The edges of an image that lie within its region are moved to the nearest pixels of the output, so that the image
    can be resized alone and put between its borders, as by torchvision's `CenterCrop` after a `Resize`.

    Args:
        regions: as a crop has them.
        sizes: widths and heights of the images, in pixels.
        output: (height, width) in pixels.
    """
    begin, end, first, last = parts_inside(regions, sizes, output)
    start, extent = regions[:, :2], regions[:, 2:]
    beyond = (begin != start) | (end != start + extent)
    if not beyond.any():
        return regions
    moved = beyond & (last > first)
    step = (end - begin) / np.maximum(last - first, 1)
    return np.where(np.tile(moved, 2), np.hstack([begin - first * step, step * output[::-1]]), regions)


def part_of_resized(
    sizes: tuple[Float64, Float64], resized: tuple[Any, Any], start: tuple[Any, Any], size: tuple[Any, Any], filter: str
) -> Regions:
    """Return the part of each source image that is a part of whole pixels after resizing.

    Args:
        sizes: widths and heights of the images, in pixels.
        resized: those after resizing.
        start: x and y of the part then.
        size: its width and height then.
        filter: "bilinear" reaches the pixels around the part.
    """
    across, down = sizes[0] / resized[0], sizes[1] / resized[1]
    x, y = start[0] * across, start[1] * down
    # rounding errors must not put an edge outside the image
    exact: Regions = np.stack([x, y, size[0] * across, size[1] * down], axis=1).round(6)
    if filter == "bilinear":
        # a region of whole pixels would be cut out first
        begin, extent = exact[:, :2], exact[:, 2:]
        inner = extent < np.stack(sizes, axis=1)
        extent[inner & (begin == np.rint(begin)) & (extent == np.rint(extent))] -= _NUDGE
    return exact


def parts_inside(
    regions: Regions, sizes: tuple[Float64, Float64], output: tuple[int, int]
) -> tuple[Float64, Float64, Float64, Float64]:
    """Return what of each region is inside its image, and the pixels of the output that have it.

    The arguments are those of `with_whole_borders`.

    Returns:
        begin, end in pixels of the image and first, end in those of the output, (n, 2) each: across, down. Where the
        region is outside the image, the end is not after the first.
    """
    start, extent = regions[:, :2], regions[:, 2:]
    begin, end = np.maximum(start, 0), np.minimum(start + extent, np.stack(sizes, axis=1))
    first, last = (np.rint((edge - start) * output[::-1] / extent) for edge in (begin, end))
    return begin, end, first, last


def _centred(sides: Float64, parts: Float64) -> Float64:
    """Return the start of the center of each side, rounded as in torchvision, inside the image or with a border."""
    left = sides - parts
    return np.where(left < 0, np.ceil(left / 2), np.rint(left / 2))


CROPS: dict[str, Any] = {kind.__name__: kind for kind in (RandomResizedCrop, CenterCrop, Resize, CoverCrop, Letterbox)}


def crop_text(crop: Crop | None) -> str | None:
    """Return a crop as a state has it."""
    if crop is None:
        return None
    # the default repr contains an address, which differs between processes
    return type(crop).__qualname__ if type(crop).__repr__ is object.__repr__ else repr(crop)


def crop_of(text: Any, *known: Crop | None) -> Crop | None:
    """Return the crop with this text: one that is known, or any of packer's."""
    for crop in known:
        if crop_text(crop) == text:
            return crop
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        made: Crop = CROPS[ast.unparse(call.func)](**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
    except (AssertionError, KeyError, SyntaxError, TypeError, ValueError):
        problem = f"has crop {text!r} of set_crop, which is not one of packer's"
        raise UsageError("state", problem, "call set_crop with it before load_state_dict") from None
    return made
