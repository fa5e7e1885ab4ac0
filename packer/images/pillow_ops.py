"""Pillow's operations on RGB pixels, by faster libraries where these make the same numbers.

Pixels are uint8 (height, width, 3), C-contiguous. Colors are those of Pillow to the last bit. What is moved by
fractions of a pixel is computed in float32, by Pillow in float64: one value in thousands is one level off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageEnhance, ImageFilter

from packer.images.opencv import cv2
from packer.model.annotation import Image

FILTERS = {name.lower(): PillowImage.Resampling[name] for name in PillowImage.Resampling.__members__}
"""Pillow's filters by name: bilinear, bicubic, ..."""
FILTER_NAMES = {int(number): name for name, number in FILTERS.items()}
_LEVELS = np.arange(256)
_ROUNDED = 2.5e-4
"""Pillow drops fractions. This much more lets sums in float32 not miss a whole number."""


def to_pillow(image: Any) -> Any:
    """Return pixels, or an image of Pillow, as an image of Pillow."""
    return image if isinstance(image, PillowImage.Image) else PillowImage.fromarray(image)


def to_pixels(image: Any) -> Image:
    """Return pixels, or an image of Pillow, as pixels."""
    return np.asarray(image) if isinstance(image, PillowImage.Image) else image


def resized(image: Image, size: tuple[int, int], filter: str) -> Image:
    """Return all of an image, resized by Pillow to `size`, (width, height)."""
    return to_pixels(to_pillow(image).resize(size, FILTERS[filter]))


def by_table(image: Image, table: NDArray[Any]) -> Image:
    """Return an image with its values changed by a table of 256 numbers, (256,) or (256, 3)."""
    made: Image = cv2.LUT(image, np.clip(table, 0, 255).astype(np.uint8).reshape(1, 256, -1))
    return made


def inverted(image: Image) -> Image:
    """Return the negative."""
    made: Image = cv2.bitwise_not(image)
    return made


def posterized(image: Image, bits: int) -> Image:
    """Return an image whose values have only their first bits; of 8 all."""
    return image if bits >= 8 else by_table(image, _LEVELS & (256 - (1 << (8 - bits))))


def solarized(image: Image, threshold: int) -> Image:
    """Return an image whose values from `threshold` on are inverted."""
    return by_table(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS))


def brightened_below(image: Image, more: int, threshold: int = 128) -> Image:
    """Return an image whose values below `threshold` are higher."""
    return by_table(image, np.where(threshold > _LEVELS, np.minimum(_LEVELS + more, 255), _LEVELS))


def contrast_stretched(image: Image) -> Image:
    """Return an image each channel of which goes from 0 to 255 (``ImageOps.autocontrast``)."""
    table = np.empty((256, 3), np.int64)
    for channel, plane in enumerate(cv2.split(image)):
        low, high, _, _ = cv2.minMaxLoc(plane)
        scale = 255.0 / (high - low) if high > low else 1.0
        table[:, channel] = (_LEVELS * scale + (-low * scale if high > low else 0.0)).astype(np.int64)
    return by_table(image, table)


def equalized(image: Image) -> Image:
    """Return an image each channel of which has a flat histogram (``ImageOps.equalize``)."""
    table = np.empty((256, 3), np.int64)
    for channel, plane in enumerate(cv2.split(image)):
        counts = cv2.calcHist([plane], [0], None, [256], [0, 256]).ravel().astype(np.int64)
        used = counts[counts > 0]
        step = int(used.sum() - used[-1]) // 255 if len(used) > 1 else 0
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])
        table[:, channel] = (step // 2 + before) // step if step else _LEVELS
    return by_table(image, table)


def _blend_table(other: float, factor: float) -> NDArray[Any]:
    """Return the table from values to their blend with one other value, computed as Pillow does."""
    first = np.float32(other)
    table: NDArray[Any] = first + np.float32(factor) * (_LEVELS.astype(np.float32) - first)
    return table


def bright(image: Image, factor: float) -> Image:
    """Return an image `factor` times as bright (``ImageEnhance.Brightness``)."""
    return by_table(image, _blend_table(0, factor))


def contrasted(image: Image, factor: float) -> Image:
    """Return an image of `factor` times the contrast (``ImageEnhance.Contrast``)."""
    gray = np.asarray(to_pillow(image).convert("L"))
    mean = cv2.sumElems(gray)[0] / gray.size
    return by_table(image, _blend_table(int(mean + 0.5), factor))


def saturated(image: Any, factor: float) -> Any:
    """Return an image of `factor` times the saturation (``ImageEnhance.Color``)."""
    return ImageEnhance.Color(to_pillow(image)).enhance(factor)


def sharpened(image: Image, factor: float) -> Image:
    """Return an image of `factor` times the sharpness (``ImageEnhance.Sharpness``)."""
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    smooth = image.copy()
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
    first = smooth.astype(np.float32)
    blend = image.astype(np.float32)
    blend -= first
    blend *= np.float32(factor)
    blend += first
    return np.clip(blend, 0, 255, out=blend).astype(np.uint8)


def blurred(image: Any, radius: float) -> Any:
    """Return an image blurred by ``ImageFilter.GaussianBlur``."""
    return to_pillow(image).filter(ImageFilter.GaussianBlur(radius))


def rotated(image: Any, degrees: float, filter: str, fill: Sequence[int]) -> Any:
    """Return an image turned counterclockwise about its center (``Image.rotate``)."""
    return to_pillow(image).rotate(degrees, FILTERS[filter], fillcolor=tuple(fill))


def sheared(image: Image, factor: float, vertical: bool, filter: str, fill: Sequence[int]) -> Image:
    """Return an image whose pixel (x, y) shows what was at (x + factor * y, y); `vertical`: (x, y + factor * x)."""
    side = image.shape[1 if vertical else 0]
    return _shifted(image, factor * (np.arange(side, dtype=np.float64) + 0.5), vertical, filter, fill)


def translated(image: Image, pixels: float, vertical: bool, filter: str, fill: Sequence[int]) -> Image:
    """Return an image whose pixel (x, y) shows what was at (x + pixels, y); `vertical`: (x, y + pixels)."""
    side = image.shape[1 if vertical else 0]
    return _shifted(image, np.full(side, float(pixels)), vertical, filter, fill)


def _taps(fractions: NDArray[np.float64], filter: str) -> list[NDArray[np.float64]]:
    """Return the weights of neighbors by where between the second and the third, or the two, a point is."""
    d = fractions
    if filter == "bilinear":
        return [1 - d, d]
    # Pillow's: the cubic convolution of Keys with a = -1
    return [d * (-1 + d * (2 - d)), 1 + d * d * (d - 2), d * (1 + d * (1 - d)), d * d * (d - 1)]


def _shifted(image: Image, shifts: NDArray[np.float64], vertical: bool, filter: str, fill: Sequence[int]) -> Image:
    """Return an image each row of which (`vertical`: column) shows what was so many pixels further on.

    As by ``Image.transform``: beyond the edge of the image is `fill`, and at the edge its last pixels are repeated.
    """
    if vertical:
        turned = _shifted(cv2.transpose(image), shifts, False, filter, fill)
        made: Image = cv2.transpose(turned)
        return made
    if filter not in ("bilinear", "bicubic"):
        return to_pixels(_shifted_by_pillow(image, shifts, filter, fill))
    width = image.shape[1]
    whole = np.floor(shifts)
    taps = _taps(shifts - whole, filter)
    before = len(taps) // 2 - 1
    moved = _by_whole_pixels(image, whole.astype(int) - before, width + len(taps) - 1)
    pixels = _filtered(moved, taps, width)
    _fill_beyond(pixels, shifts, fill)
    return pixels


def _by_whole_pixels(image: Image, shifts: NDArray[np.int64], columns: int) -> Image:
    """Return so many columns of an image each row of which begins so many pixels further on."""
    height, width, _ = image.shape
    if np.ptp(shifts) == 0:
        first, last = int(shifts[0]), int(shifts[0]) + columns
        inside = image[:, min(max(first, 0), width - 1) : max(min(last, width), 1)]
        left = min(max(-first, 0), columns - inside.shape[1])
        edges = 0, 0, left, columns - inside.shape[1] - left
        made: Image = cv2.copyMakeBorder(inside, *edges, cv2.BORDER_REPLICATE)
        return made
    places = np.empty((height, columns, 2), np.int16)
    places[..., 0] = np.arange(columns, dtype=np.int16) + shifts[:, None].astype(np.int16)
    places[..., 1] = np.arange(height, dtype=np.int16)[:, None]
    made = cv2.remap(image, places, None, cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE)
    return made


def _filtered(moved: Image, taps: list[NDArray[np.float64]], width: int) -> Image:
    """Return the sums of neighbors in each row, of as many as there are taps, by the weights of the row."""
    height = len(moved)
    if all(np.ptp(weights) < 1e-12 for weights in taps):
        kernel = np.array([[weights[0] for weights in taps]], np.float32)
        found: Image = cv2.filter2D(moved, -1, kernel, anchor=(0, 0), delta=_ROUNDED - 0.5)
        return np.ascontiguousarray(found[:, :width])
    lines = moved.reshape(height, -1).astype(np.float32)
    total, part = np.empty((2, height, 3 * width), np.float32)
    for number, weights in enumerate(taps):
        out = part if number else total
        np.multiply(lines[:, 3 * number : 3 * (number + width)], weights[:, None].astype(np.float32), out=out)
        if number:
            np.add(total, part, out=total)
    sums: Image = cv2.add(total, _ROUNDED - 0.5, dtype=cv2.CV_8U)  # without their fractions
    return sums.reshape(height, width, 3)


def _fill_beyond(pixels: Image, shifts: NDArray[np.float64], fill: Sequence[int]) -> None:
    """Write `fill` where a row shows what is before the first or after the last pixel."""
    width = pixels.shape[1]
    edges = []
    for side in (0, width):  # the first x with x + 0.5 + shift >= side, rounded as that
        at = np.ceil(side - 0.5 - shifts)
        at -= (at - 1 + 0.5) + shifts >= side
        at += (at + 0.5) + shifts < side
        edges.append(np.clip(at, 0, width).astype(np.int16)[:, None])
    columns, (first, last) = np.arange(width, dtype=np.int16), edges
    left, right = int(first.max()), int(last.min())
    pixels[:, :left][columns[:left] < first] = fill
    pixels[:, right:][columns[right:] >= last] = fill


def _shifted_by_pillow(image: Image, shifts: NDArray[np.float64], filter: str, fill: Sequence[int]) -> Any:
    factor = float(shifts[1] - shifts[0]) if len(shifts) > 1 else 0.0
    matrix = (1, factor, float(shifts[0]) - factor / 2, 0, 1, 0)
    size = image.shape[1::-1]
    if not all(math.isfinite(number) for number in matrix):
        raise ValueError(f"shifts must be finite, got {shifts[:2]}")
    pillow, kind = to_pillow(image), PillowImage.Transform.AFFINE
    return pillow.transform(size, kind, matrix, FILTERS[filter], fillcolor=tuple(fill))
