"""Resizes and encodes images: a `TargetSize` computes both the pixels and the geometry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import simplejpeg

from packer.errors import BadImage, UsageError, option, printable
from packer.images.header import DEFAULT_MAX_PIXELS
from packer.images.image_headers import bad_image
from packer.images.jpeg import HEADROOM, extents, reduction
from packer.images.opencv import ANTIALIASED, Interpolation, cv2, resample
from packer.model.annotation import Image, Mask
from packer.model.geometry import Geometry, interpolate, is_known, nearest

Fit = Literal["stretch", "short", "long", "crop", "pad"]
FITS: tuple[str, ...] = get_args(Fit)
Scale = Callable[[Mask, tuple[float, float, float, float], tuple[int, int]], Mask]
"""Makes (width, height) pixels of the part (x, y, width, height) of values of pixels."""
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
class TargetSize:
    """A target size in pixels, and how to reach it.

    stretch: exactly width x height, whatever the aspect ratio; short, long: that side becomes N (= width =
    height), the other follows; crop: the largest centered part with the aspect ratio width:height, scaled;
    pad: scaled to fit into width x height, centered on gray of `pad_value`; sizes and border are those of the
    LetterBox of Ultralytics, whose value is 114. `interpolation` is the filter, area or bilinear
    (`packer.images.opencv`).
    """

    width: int
    height: int
    fit: Fit
    pad_value: int = 0
    """0 to 255, in every channel; multiplied by 257 in 16-bit images."""
    interpolation: Interpolation = "area"

    def __post_init__(self) -> None:
        for side in (self.width, self.height):
            if not 1 <= side <= _SIDE_MAX:
                raise UsageError(option("resize"), f"size must be 1 to {_SIDE_MAX} pixels, got {side}")
        if self.fit not in FITS:
            raise UsageError(option("fit"), f"must be one of {', '.join(FITS)}, got {self.fit!r}")
        if self.fit in ("short", "long") and self.width != self.height:
            size = f"{self.width}x{self.height}"
            raise UsageError(option("fit"), f"{self.fit} needs one size, got {size}", "give --resize=N")
        if not 0 <= self.pad_value <= 255:
            raise UsageError(option("pad-value"), f"must be 0 to 255, got {self.pad_value}")
        if self.interpolation not in ANTIALIASED:
            allowed = ", ".join(ANTIALIASED)
            raise UsageError(option("interpolation"), f"must be one of {allowed}; got {printable(self.interpolation)}")

    @classmethod
    def of(
        cls, text: str, fit: str | None = None, pad_value: int | None = None, interpolation: str | None = None
    ) -> TargetSize:
        """Create one from the command line's options; "256" defaults to the fit short, "300x200" to stretch."""
        width, height = parse_size(text)
        fit_name = fit or ("stretch" if "x" in text.lower() else "short")
        if pad_value is not None and fit_name != "pad":
            raise UsageError(
                option("pad-value"), f"is for --fit=pad, not for {fit_name}", "leave it out, or add --fit=pad"
            )
        name = "area" if interpolation is None else interpolation
        return cls(width, height, fit_name, pad_value or 0, name)  # type: ignore[arg-type]  # __post_init__ checks them

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
        """Return the image resized.

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
            raise BadImage("", problem, "choose --fit=pad or --fit=crop, or remove it")
        x, y, region_width, region_height = plan.region
        box = x / factor, y / factor, region_width / factor, region_height / factor
        scaled = resample(image, plan.scaled, self.interpolation, box)
        if plan.scaled == plan.output:
            return scaled
        value = self.pad_value * (257 if image.dtype == np.uint16 else 1)
        canvas = np.full((plan.output[1], plan.output[0], image.shape[2]), value, image.dtype)
        left, top = plan.at
        canvas[top : top + plan.scaled[1], left : left + plan.scaled[0]] = scaled
        return canvas

    def apply_to_mask(self, mask: Mask, border: float) -> Mask:
        """Return the mask (height, width) of an image as that of the resized image; the border of pad is `border`.

        Each pixel takes the value below its center (`packer.model.geometry.nearest`): no value is made up.
        """

        def scale(mask: Mask, region: tuple[float, float, float, float], size: tuple[int, int]) -> Mask:
            x, y, width, height = map(int, region)
            rows, columns = nearest(height, size[1], y), nearest(width, size[0], x)
            return mask.take(rows, axis=0).take(columns, axis=1)

        return self.place(mask, border, scale)

    def place(self, values: Mask, border: float, scale: Scale) -> Mask:
        """Return values of pixels (height, width, ...) as those of the resized image; that of pad is `border`."""
        plan = self._plan(values.shape[1], values.shape[0])
        scaled = scale(values, plan.region, plan.scaled)
        if plan.scaled == plan.output:
            return scaled
        canvas = np.full((plan.output[1], plan.output[0], *values.shape[2:]), border, values.dtype)
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
            scaled = self.width, _round_half_up(height * self.width, width)
        else:
            scaled = _round_half_up(width * self.height, height), self.height
        return _Plan(whole, scaled, (0, 0), scaled)

    def _crop_size(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) of the largest part of an image with the aspect ratio of the target."""
        if width * self.height >= height * self.width:
            return min(width, _round_half_up(height * self.width, self.height)), height
        return width, min(height, _round_half_up(width * self.height, self.width))


def parse_size(text: str, name: str = "resize") -> tuple[int, int]:
    """Parse "256" or "300x200" to (width, height). Raise UsageError for anything else; it is of the option `name`."""
    sides = text.strip().lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and len(side) < 9 for side in sides):
        found = re.findall(r"[0-9]{1,8}", text)
        meant = "x".join(found) if len(found) in (1, 2) else f"256, or {option(name, '300x200')}"
        raise UsageError(
            option(name), f"must be N or WIDTHxHEIGHT in pixels, got {text!r}", f"write {option(name, meant)}"
        )
    return int(sides[0]), int(sides[-1])


def _round_half_up(numerator: int, denominator: int) -> int:
    """Round to a whole number of pixels, at least 1; halves are rounded up."""
    return max(1, (2 * numerator + denominator) // (2 * denominator))


def _factor(image: Image, width: int, height: int) -> int:
    """Return the factor, 1, 2, 4 or 8, by which an image was shrunk when decoded."""
    for factor in (1, 2, 4, 8):
        if image.shape[1] == extents(width, factor) and image.shape[0] == extents(height, factor):
            return factor
    raise ValueError(f"an image of shape {image.shape} does not come from one of {width}x{height} pixels")


def resize_map(
    values: Mask, region: tuple[float, float, float, float], size: tuple[int, int], ignore: int | None = None
) -> Mask:
    """Return what `packer.model.geometry.interpolate` does, with its arguments: parts of whole pixels by OpenCV.

    That takes a twentieth of the time. Whole numbers differ by 1 where a half is rounded, in float32 by both.
    """
    x, y, across, down = map(int, region)
    inside = x >= 0 and y >= 0 and x + across <= values.shape[1] and y + down <= values.shape[0]
    if (x, y, across, down) != tuple(region) or not inside:
        return interpolate(values, region, size, ignore)
    part = values[y : y + down, x : x + across]
    unknown = ~is_known(part, ignore)
    known = np.where(unknown, 0, part).astype(np.float32)  # the weight of an unknown one may be 0, but 0 * NaN is NaN
    found = cv2.resize(known, size, interpolation=cv2.INTER_LINEAR).reshape(*size[::-1], *part.shape[2:])
    result: Mask = (found if part.dtype.kind == "f" else np.rint(found)).astype(values.dtype)
    if unknown.any():
        beside = cv2.resize(unknown.astype(np.float32), size, interpolation=cv2.INTER_LINEAR).reshape(result.shape) > 0
        below = part.take(nearest(down, size[1]), axis=0).take(nearest(across, size[0]), axis=1)
        result[beside] = below[beside]
    return result


Encoding = Literal["raw", "jpeg", "png", "bmp"]
_JPEG_SIDE_MAX = 65500
_TO_OPENCV = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}


def encode(image: Image, encoding: Encoding, quality: int = 90) -> bytes:
    """Return the image as bytes: C-order pixels (raw), or a file in that format.

    Args:
        image: uint8 or uint16 (height, width, channels), gray, RGB or RGBA.
        encoding: The format.
        quality: 1..100, only for jpeg (4:2:0 chroma).

    Raises:
        BadImage: The format cannot hold it (16 bits or alpha in jpeg and bmp, gray + alpha in png).
    """
    if encoding == "raw":
        return image.tobytes()
    if encoding == "jpeg":
        return _jpeg(image, quality)
    channels = image.shape[2]
    if channels == 2:
        raise bad_image(f"{encoding} cannot hold gray with alpha here", "use --encode=raw or --mode=rgb")
    if encoding == "bmp" and image.dtype != np.uint8:
        raise bad_image("bmp cannot hold 16 bits a sample", "use --encode=raw or png, or --mode=rgb")
    if encoding == "bmp" and channels == 4:
        # OpenCV 4.11 writes a BMP that does not mark its alpha
        raise bad_image("bmp cannot hold alpha", "use --encode=raw or png, or --mode=rgb")
    stored = cv2.cvtColor(image, _TO_OPENCV[channels]) if channels > 1 else image
    done, data = cv2.imencode(f".{encoding}", stored)
    if not done:
        raise BadImage("", f"OpenCV cannot encode shape {image.shape} as {encoding}", "use --encode=raw")
    return bytes(data)


def _jpeg(image: Image, quality: int) -> bytes:
    height, width, channels = image.shape
    if image.dtype != np.uint8:
        raise bad_image("jpeg cannot hold 16 bits a sample", "use --encode=raw or png, or --mode=rgb")
    if channels not in (1, 3):
        raise bad_image("jpeg cannot hold alpha", "use --encode=raw or png, or --mode=rgb")
    if max(height, width) > _JPEG_SIDE_MAX:
        raise bad_image(f"jpeg cannot hold {width}x{height} pixels", "use --encode=raw or png, or --resize")
    pixels = np.ascontiguousarray(image)
    if channels == 1:
        return bytes(simplejpeg.encode_jpeg(pixels, quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))
