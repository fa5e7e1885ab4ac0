"""Resizes images: a `Resize` computes both the pixels and the geometry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from packer.errors import BadImage, UsageError
from packer.images.geometry import Geometry
from packer.images.header import DEFAULT_MAX_PIXELS
from packer.images.jpeg import HEADROOM, extents, reduction
from packer.images.opencv import cv2
from packer.types import Image

Fit = Literal["stretch", "short", "long", "crop", "pad"]
FITS: tuple[str, ...] = get_args(Fit)
Interpolation = Literal["area", "linear", "nearest"]
"""The filter, applied to each axis separately.

area: an axis that shrinks is averaged, so that each output pixel is the mean of the source area it covers (a box
filter); an axis that grows is interpolated linearly. linear: interpolates between the two nearest source pixels
even if an axis shrinks, so it aliases. nearest: one source pixel, for images whose values are ids.
"""
INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)
_FLAGS = {"linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST_EXACT}
_SIDE_MAX = 65535
"""Maximum side of the image formats that packer writes."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The region (x, y, width, height) of the source is scaled to `scaled` and placed at `at` on a canvas `output`."""

    region: tuple[int, int, int, int]
    scaled: tuple[int, int]
    at: tuple[int, int]
    output: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Resize:
    """A target size in pixels, and how to reach it.

    stretch: exactly width x height, whatever the aspect ratio; short, long: that side becomes N (= width =
    height), the other follows; crop: the largest centered part with the aspect ratio width:height, scaled;
    pad: scaled to fit into width x height, centered on gray of `pad_value`; sizes and border are those of the
    LetterBox of Ultralytics, whose value is 114.
    """

    width: int
    height: int
    fit: Fit
    pad_value: int = 0
    """0 to 255, in every channel; multiplied by 257 in 16-bit images."""

    def __post_init__(self) -> None:
        for side in (self.width, self.height):
            if not 1 <= side <= _SIDE_MAX:
                raise UsageError("--resize", f"size must be 1 to {_SIDE_MAX} pixels, got {side}")
        if self.fit not in FITS:
            raise UsageError("--fit", f"must be one of {', '.join(FITS)}, got {self.fit!r}")
        if self.fit in ("short", "long") and self.width != self.height:
            size = f"{self.width}x{self.height}"
            raise UsageError("--fit", f"{self.fit} needs one size, got {size}", "give --resize N")
        if not 0 <= self.pad_value <= 255:
            raise UsageError("--pad-value", f"must be 0 to 255, got {self.pad_value}")

    @classmethod
    def of(cls, text: str, fit: str | None = None, pad_value: int | None = None) -> Resize:
        """Create a Resize from the command line's options; "256" defaults to the fit short, "300x200" to stretch."""
        width, height = parse_size(text)
        fit_name = fit or ("stretch" if "x" in text.lower() else "short")
        if pad_value is not None and fit_name != "pad":
            raise UsageError("--pad-value", f"is for --fit pad, not for {fit_name}", "leave it out, or add --fit pad")
        return cls(width, height, fit_name, pad_value or 0)  # type: ignore[arg-type]  # __post_init__ checks it

    def output_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) of the result for an upright image of this size."""
        return self._plan(width, height).output

    def geometry(self, width: int, height: int) -> Geometry:
        """Return the map of the points of an upright image of this size."""
        plan = self._plan(width, height)
        (x, y, region_width, region_height), (scaled_width, scaled_height) = plan.region, plan.scaled
        a, e = scaled_width / region_width, scaled_height / region_height
        return Geometry(a, 0.0, plan.at[0] - x * a, 0.0, e, plan.at[1] - y * e, *plan.output)

    def at_least(self, width: int, height: int) -> tuple[int, int]:
        """Return the smallest (width, height) at which to decode an image without visible loss in the result."""
        if self.fit == "crop":
            region_width, region_height = self._crop_size(width, height)
            scaled = -(-width * self.width // region_width), -(-height * self.height // region_height)
        else:
            scaled = self._plan(width, height).scaled
        return HEADROOM * scaled[0], HEADROOM * scaled[1]

    def apply(self, image: Image, source_size: tuple[int, int] | None = None) -> Image:
        """Return the image resized by the filter "area" (see `Interpolation`).

        Args:
            image: uint8 or uint16 (height, width, 1..4).
            source_size: Upright (width, height) of the file's image, if `image` is 1/2, 1/4 or 1/8 of it.

        Returns:
            (height, width, channels) of `output_size`, same dtype, C-contiguous.

        Raises:
            BadImage: The result would be too large (``--fit short`` of 1x100000 pixels).
        """
        width, height = source_size or (image.shape[1], image.shape[0])
        factor = _factor(image, width, height)
        plan = self._plan(width, height)
        if plan.output[0] * plan.output[1] > DEFAULT_MAX_PIXELS:
            size = f"{plan.output[0]}x{plan.output[1]}"
            problem = f"{width}x{height} pixels would be resized to {size}"
            raise BadImage("", problem, "choose --fit pad or --fit crop, or remove it")
        x, y, region_width, region_height = plan.region
        columns, rows = extents(region_width, factor), extents(region_height, factor)
        part = image[y // factor : y // factor + rows, x // factor : x // factor + columns]
        scaled = resample(part, plan.scaled, extent=(region_width / factor, region_height / factor))
        if plan.scaled == plan.output:
            return scaled
        value = self.pad_value * (257 if image.dtype == np.uint16 else 1)
        canvas = np.full((plan.output[1], plan.output[0], image.shape[2]), value, image.dtype)
        left, top = plan.at
        canvas[top : top + plan.scaled[1], left : left + plan.scaled[0]] = scaled
        return canvas

    # called several times per image, and the images of a dataset have few sizes
    @lru_cache(maxsize=4096)  # noqa: B019 - keeps a few frozen Resizes alive
    def _plan(self, width: int, height: int) -> _Plan:
        whole, size = (0, 0, width, height), (self.width, self.height)
        if self.fit == "stretch":
            return _Plan(whole, size, (0, 0), size)
        if self.fit == "crop":
            region_width, region_height = self._crop_size(width, height)
            # a corner that the scaled decode of a JPEG has a pixel boundary at
            step = reduction((width, height), self.at_least(width, height))
            x = ((width - region_width) // 2 + step // 2) // step * step
            y = ((height - region_height) // 2 + step // 2) // step * step
            return _Plan((x, y, region_width, region_height), size, (0, 0), size)
        if self.fit == "pad":
            ratio = min(self.width / width, self.height / height)
            scaled = max(1, round(width * ratio)), max(1, round(height * ratio))  # halves to even, as LetterBox
            at = (self.width - scaled[0]) // 2, (self.height - scaled[1]) // 2
            return _Plan(whole, scaled, at, size)
        if (width <= height) == (self.fit == "short"):
            scaled = self.width, _rounded(height * self.width, width)
        else:
            scaled = _rounded(width * self.height, height), self.height
        return _Plan(whole, scaled, (0, 0), scaled)

    def _crop_size(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) of the largest part of an image with the aspect ratio of the target."""
        if width * self.height >= height * self.width:
            return min(width, _rounded(height * self.width, self.height)), height
        return width, min(height, _rounded(width * self.height, self.width))


def parse_size(text: str) -> tuple[int, int]:
    """Parse "256" or "300x200" to (width, height). Raise UsageError for anything else."""
    sides = text.strip().lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and len(side) < 9 for side in sides):
        raise UsageError("--resize", f"must be N or WIDTHxHEIGHT in pixels, got {text!r}", "write --resize 256")
    return int(sides[0]), int(sides[-1])


def _rounded(numerator: int, denominator: int) -> int:
    """Round to a whole number of pixels, at least 1; halves are rounded up."""
    return max(1, (2 * numerator + denominator) // (2 * denominator))


def _factor(image: Image, width: int, height: int) -> int:
    """Return the factor, 1, 2, 4 or 8, by which an image was shrunk when decoded."""
    for factor in (1, 2, 4, 8):
        if image.shape[1] == extents(width, factor) and image.shape[0] == extents(height, factor):
            return factor
    raise ValueError(f"an image of shape {image.shape} does not come from one of {width}x{height} pixels")


def resample(
    image: Image,
    size: tuple[int, int],
    interpolation: Interpolation = "area",
    extent: tuple[float, float] | None = None,
    out: Image | None = None,
) -> Image:
    """Resize an image; the build and the loader both use this function.

    "area" is exact except for rounding: at most 0.51 levels off, or 1.01 if one axis shrinks and the other grows,
    because that takes two steps.

    Args:
        image: uint8 or uint16 (height, width, 1..4).
        size: (width, height) of the result.
        interpolation: the filter.
        extent: (width, height) of the part to resize, from the image's top left corner, for "area"; need not be whole
            numbers. Default: the whole image.
        out: array for the result, C-contiguous; not together with `extent`.

    Returns:
        (height, width, channels), C-contiguous, same dtype; `out` if it is given.
    """
    width, height = extent or (image.shape[1], image.shape[0])
    whole = image.shape[1] == width and image.shape[0] == height
    x_scale, y_scale = size[0] / width, size[1] / height
    if whole and x_scale == y_scale == 1:
        if out is None:
            return np.ascontiguousarray(image)
        out[:] = image
        return out
    if interpolation != "area":
        flag = _FLAGS[interpolation]
    elif (x_scale < 1) != (y_scale < 1) and x_scale != 1 and y_scale != 1:
        # OpenCV averages areas only if both axes shrink, so shrink one axis, then grow the other
        if x_scale < 1:
            narrow = resample(image, (size[0], image.shape[0]), extent=(width, image.shape[0]))
            return resample(narrow, size, extent=(size[0], height), out=out)
        flat = resample(image, (image.shape[1], size[1]), extent=(image.shape[1], height))
        return resample(flat, size, extent=(width, size[1]), out=out)
    else:
        flag = cv2.INTER_AREA if x_scale <= 1 and y_scale <= 1 else cv2.INTER_LINEAR
    if whole:
        made = cv2.resize(image, size, dst=out, interpolation=flag)
        if out is not None:
            return out
    else:
        # Given scales and no size, OpenCV keeps exactly to the scales: the last source pixel, which the
        # image covers only in part, does not pull the others out of place.
        made = cv2.resize(image, None, fx=x_scale, fy=y_scale, interpolation=cv2.INTER_AREA)
        made = made[: size[1], : size[0]]
    return np.ascontiguousarray(made.reshape(made.shape[0], made.shape[1], image.shape[2]))
