"""Random affine maps of images: a rotation, shift, scale and shear of each, and the pixels that they move.

Parameters, defaults and distributions are torchvision's (torchvision.transforms.v2.RandomAffine, BSD-3-Clause).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, plural
from packer.samplers.order import Float64
from packer.samplers.ranks import as_number

AFFINE_STREAM = 7 << 32
"""Gives affine maps other random numbers than crops, flips and turns, which are then those without them."""
STEEP = 90
"""Degrees: a shear has less."""
PRECISE = (1, 3, 4)
"""Channels of which OpenCV 5 interpolates at exact positions; with others, they are rounded to 1/32 of a pixel."""


@dataclass(frozen=True)
class RandomAffine:
    """A random rotation, scale and shear of each image about its center, and a shift, for training.

    Pixels are interpolated linearly; those that come from beside the image are `fill`, into which its edges blend.

    Args:
        degrees: range of the angle, clockwise; a number d is (-d, d).
        translate: the largest shift to either side, across and down, as shares of width and height: (0.1, 0.1). Shifts
            are whole pixels.
        scale: range of the factor by which things grow: (0.5, 1.5).
        shear: range of the angle by which vertical lines lean, in degrees; a number s is (-s, s). Four numbers: also
            that of horizontal lines.
        fill: value of pixels beside the image, from 0 to 255, or to 65535 if images have 16 bits; or one of each
            channel.

    Raises:
        ValueError: if an argument is out of range.
    """

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    fill: float | Sequence[float] = 0

    num_random = 6

    def __post_init__(self) -> None:
        for name in _ARGUMENTS:
            if (given := getattr(self, name)) is not None or name in ("degrees", "fill"):
                object.__setattr__(self, name, _checked(name, given))

    @property
    def upright(self) -> bool:
        """Whether nothing is rotated or sheared: boxes stay boxes."""
        degrees: Any = self.degrees
        shear: Any = self.shear or ()
        return not any((*degrees, *shear))

    @property
    def is_identity(self) -> bool:
        """Whether all images stay as they are."""
        return self.upright and not any(self.translate or ()) and self.scale in (None, (1.0, 1.0))

    def drawn(self, random: Float64, output: tuple[int, int]) -> tuple[Float64, Float64, Float64, Float64]:
        """Return what is drawn for each image, as torchvision's functional.affine takes it.

        Args:
            random: random numbers in [0, 1), float64 (n, num_random).
            output: (height, width) of the images.

        Returns:
            angles (n,) in degrees, shifts (n, 2) in pixels, across and down, scales (n,), and shears (n, 2) in degrees.
        """
        angle, across, down, scale, lean_x, lean_y = random.T
        degrees: Any = self.degrees
        shear: Any = self.shear or (0, 0)
        farthest = np.array(self.translate or (0, 0)) * output[::-1]
        shifts = np.rint(farthest * (2 * np.stack([across, down], axis=1) - 1))
        shears = np.stack([_within(lean_x, *shear[:2]), _within(lean_y, *(shear[2:] or (0, 0)))], axis=1)
        return _within(angle, *degrees), shifts, _within(scale, *(self.scale or (1, 1))), shears

    def maps(self, random: Float64, output: tuple[int, int]) -> Float64:
        """Return the affine map of each image, (n, 2, 3): x' = a x + b y + c, y' = d x + e y + f.

        Coordinates are continuous, as those of boxes are: pixel i is from i to i + 1.

        Args:
            random: random numbers in [0, 1), float64 (n, num_random).
            output: (height, width) of the images.
        """
        angles, shifts, scales, shears = self.drawn(random, output)
        angles, leans = np.deg2rad(angles), -np.tan(np.deg2rad(shears)).T
        one, zero, cos, sin = np.ones(len(random)), np.zeros(len(random)), np.cos(angles), np.sin(angles)
        rotated, leant_y, leant_x = (
            np.stack(entries, axis=1).reshape(-1, 2, 2)
            for entries in ((cos, -sin, sin, cos), (one, zero, leans[1], one), (one, leans[0], zero, one))
        )
        linear = rotated @ leant_y @ leant_x * scales[:, None, None]
        center = np.array(output[::-1]) / 2
        return np.concatenate([linear, (center + shifts - linear @ center)[:, :, None]], axis=2)


def _within(random: Float64, low: float, high: float) -> Float64:
    return low + (high - low) * random


def _are_leans(low: float, high: float, below: float = 0.0, above: float = 0.0) -> bool:
    return -STEEP < low <= high < STEEP and -STEEP < below <= above < STEEP


_ARGUMENTS: dict[str, tuple[str, Callable[..., bool]]] = {
    "degrees": ("a number, or a range as (-10, 10)", lambda low, high: low <= high),
    "translate": ("two shares from 0 to 1, as (0.1, 0.1)", lambda *shares: all(0 <= one <= 1 for one in shares)),
    "scale": ("a range above 0, as (0.5, 1.5)", lambda low, high: 0 < low <= high),
    "shear": (f"a number below {STEEP}, or one or two ranges as (-10, 10)", _are_leans),
    "fill": ("0 or more, or so for each channel", lambda *values: all(value >= 0 for value in values)),
}
"""What each argument must be, and whether its numbers are."""
_COUNTS = {"shear": (2, 4), "fill": range(1, 1 << 10)}


def _checked(name: str, given: Any) -> Any:
    """Return an argument in floats, a number d of degrees as the range (-d, d). Raise ValueError if it is wrong."""
    what, are_right = _ARGUMENTS[name]
    number = as_number(given)
    if math.isfinite(number):
        numbers: tuple[float, ...] = (number,) if name == "fill" else (0.0 - number, number)
    else:
        numbers = tuple(map(as_number, given)) if isinstance(given, Sequence | np.ndarray) else ()
    if len(numbers) not in _COUNTS.get(name, (2,)) or not all(map(math.isfinite, numbers)) or not are_right(*numbers):
        raise ValueError(f"{name} must be {what}, got {given!r}")
    return number if name == "fill" and math.isfinite(number) else numbers


def check_affine(given: Any) -> RandomAffine | None:
    """Return what moves images; None if nothing does."""
    if given is not None and not isinstance(given, RandomAffine):
        step = "write packer.RandomAffine(10, translate=(0.1, 0.1), scale=(0.5, 1.5))"
        raise UsageError("affine", f"must be packer.RandomAffine, got {given!r}", step)
    return None if given is None or given.is_identity else given


def check_fill(name: str, fill: Any, channels: int, most: int) -> None:
    """Raise UsageError if images of so many channels, with values up to `most`, cannot have an argument's fill."""
    values = fill if isinstance(fill, tuple) else (fill,) * channels
    if len(values) != channels:
        problem = f"has a fill of {plural(len(values), 'number')}, but the images have {plural(channels, 'channel')}"
        raise UsageError(name, problem, "write one number, or one for each channel")
    if max(values) > most:
        raise UsageError(name, f"has fill {fill}, but values of pixels are up to {most}", f"write 0 to {most}")


def warp_row(
    row: NDArray[Any], affine: Float64, out: NDArray[Any] | None = None, fill: Any = 0, nearest: bool = False
) -> NDArray[Any]:
    """Return an image moved by a map.

    Args:
        row: (height, width) or (height, width, channels), of a dtype of images, masks or maps; float16 only `nearest`.
        affine: float64 (2, 3), from `row` to the result, in continuous coordinates, as `RandomAffine.maps` has it.
        out: receives the pixels; it may be of another size, and of another dtype that holds the values.
        fill: of pixels that come from beside the image: a number, or one of each channel.
        nearest: a pixel is the one of `row` at its center, as ids need it; else four are interpolated linearly.

    Returns:
        `out`, or an array like `row`.
    """
    if out is None:
        out = np.empty_like(row)
    # OpenCV counts from the center of the first pixel, not from its corner
    matrix = np.column_stack([affine[:, :2], affine[:, 2] + affine[:, :2].sum(axis=1) / 2 - 0.5])
    channels = 1 if row.ndim == 2 else row.shape[2]
    fills, dtype = np.broadcast_to(np.asarray(fill, np.float64), channels), row.dtype
    if dtype == np.float16:  # which OpenCV does not know; its bits can be moved as they are
        row, fills = row.view(np.uint16), fills.astype(np.float16).view(np.uint16)
    size, how = out.shape[1::-1], cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    if channels in PRECISE:
        made = cv2.warpAffine(row, matrix, size, None, how, cv2.BORDER_CONSTANT, fills.tolist())
    else:
        planes = zip(np.moveaxis(row, 2, 0), fills.tolist(), strict=True)
        made = np.stack(
            [cv2.warpAffine(plane.copy(), matrix, size, None, how, cv2.BORDER_CONSTANT, one) for plane, one in planes],
            axis=2,
        )
    out[:] = made.view(dtype).reshape(out.shape)
    return out


def warp_rows(rows: Any, affine: Float64 | None, fill: Any = 0, nearest: bool = False) -> None:
    """Move images in rows by their maps, as `warp_row` does; None: not at all."""
    if affine is not None:
        for row, its_map in zip(rows, affine, strict=True):
            warp_row(row, its_map, row, fill, nearest)
