"""A fingerprint of an image: a perceptual hash, and figures of its brightness, sharpness and color, in 40 bytes.

It is the same on every machine: the hash is made of whole numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packer.images.opencv import cv2
from packer.model.annotation import Image

STRONG = 40
"""Of so many of the lowest frequencies, a fingerprint says which half is the stronger one."""
FINGERPRINT = np.dtype(
    [
        ("hash", "<u8"), ("sharpness", "<f4"), ("focus", "<f2"), ("brightness", "<f2"), ("dark", "<f2"),
        ("bright", "<f2"), ("contrast", "<f2"), ("entropy", "<f2"), ("saturated", "<f2"), ("colorfulness", "<f2"),
        ("red", "<f2"), ("green", "<f2"), ("blue", "<f2"), ("version", "u1"), ("strong", "u1", (STRONG // 8,)),
    ]
)  # fmt: skip
"""What a row is; docs/formats.md says what each figure means."""
VERSION = 1
"""Of the way in which it is made; 0 in place of a row that is not known."""
SIDE = 192
"""Pixels are left out so that the longer side has no more than these: a build takes a few hundredths longer."""
COSINES = 9
SCALE = 127
"""Cosines are whole numbers up to this, so that all sums are exact."""
SATURATED = 250
"""From this value on, a channel is saturated."""
MOST_FOCUS = 60_000.0
"""A float16 holds no more: a checkerboard of single pixels would have it."""
QUANTILES = 0.01, 0.99
"""Shares of the pixels that are no brighter than `dark` and `bright`."""


def fingerprint_of(image: Image) -> bytes:
    """Return the fingerprint of an image, a row of `FINGERPRINT`.

    Args:
        image: uint8 or uint16 (height, width, channels); of four or more channels the first three are taken, of two
            the first.
    """
    planes = _planes(image)
    color = len(planes) == 3
    gray = cv2.cvtColor(cv2.merge(planes), cv2.COLOR_RGB2GRAY) if color else planes[0]
    highest = cv2.max(cv2.max(planes[0], planes[1]), planes[2]) if color else gray
    counts = cv2.calcHist([gray], [0], None, [256], [0, 256]).ravel().astype(np.float64)
    mean, std = cv2.meanStdDev(gray)
    colors = [cv2.mean(plane)[0] for plane in planes] if color else [mean[0, 0]] * 3
    signs, strong = hash_of(gray)
    row = (
        signs, *_sharpness(gray), mean[0, 0], *counts.cumsum().searchsorted(np.multiply(QUANTILES, gray.size)),
        std[0, 0], np.log2(gray.size) - counts @ np.log2(np.maximum(counts, 1)) / gray.size,
        cv2.countNonZero(cv2.threshold(highest, SATURATED - 1, 1, cv2.THRESH_BINARY)[1]) / gray.size,
        cv2.mean(cv2.subtract(highest, cv2.min(cv2.min(planes[0], planes[1]), planes[2])))[0] if color else 0,
        *colors, VERSION, strong,
    )  # fmt: skip
    return np.array(row, FINGERPRINT).tobytes()


def _sharpness(gray: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the variance of the Laplacian, and how much of the changes from pixel to pixel is fine detail.

    The latter is the mean square of the second differences along rows and columns, relative to that of the differences
    of pixels two apart: 0 for what is smooth, 1 for a random walk, 3 for noise. Contrast does not change it.
    """
    laplacian = cv2.Laplacian(gray, cv2.CV_16S)
    variance = cv2.norm(laplacian, cv2.NORM_L2SQR) / gray.size - (cv2.sumElems(laplacian)[0] / gray.size) ** 2
    near, far = (_difference(gray, apart, 0) + _difference(gray, 0, apart) for apart in (1, 2))
    return max(0.0, variance), min(max(0.0, 4 * near - far) / max(1.0, far), MOST_FOCUS)


def _difference(gray: NDArray[np.uint8], down: int, across: int) -> float:
    """Return the mean square of the differences of pixels that are some rows or some columns apart."""
    height, width = gray.shape
    if height <= down or width <= across:
        return 0.0
    one, other = gray[down:, across:], gray[: height - down, : width - across]
    return float(cv2.norm(one, other, cv2.NORM_L2SQR)) / one.size


def hash_of(gray: NDArray[np.uint8]) -> tuple[int, NDArray[np.uint8]]:
    """Return the perceptual hash, and which frequencies are strong, one bit each, the lowest frequency first.

    The hash has the signs of the 64 lowest frequencies but the mean, by a cosine transform in which the border counts
    less than the middle: what is cropped off, or written there, changes fewer of them.

    Args:
        gray: uint8 (height, width), no side longer than `SIDE`.
    """
    height, width = gray.shape
    rows = _cosines(height) @ gray.astype(np.float32)
    found = (rows.astype(np.float64) @ _cosines(width).T.astype(np.float64)).ravel()[_places()]
    power = np.abs(found[:STRONG])
    strong = power > np.partition(power, STRONG // 2 - 1)[STRONG // 2 - 1]
    row = np.packbits(np.concatenate([found > 0, strong]), bitorder="little")
    return int(row[:8].view("<u8")[0]), row[8:]


def mirrored_bits() -> int:
    """Return the bits of a hash that change when an image is mirrored: the frequencies that are odd across."""
    return int(np.packbits(_places() % COSINES % 2 == 1, bitorder="little").view("<u8")[0])


@lru_cache(256)
def _cosines(length: int) -> NDArray[np.float32]:
    """Return what pixels count for each frequency, whole numbers: all but the first row add up to 0."""
    places = (np.arange(length) + 0.5) / length
    window = np.sqrt(np.sin(np.pi * places))
    rows = np.cos(np.pi * np.arange(COSINES)[:, None] * places) * window
    rows[1:] -= window * (rows[1:].sum(axis=1, keepdims=True) / window.sum())
    rows = np.round(np.round(SCALE * rows, 6))  # a half is rounded alike by any library's cosine
    middle = slice((length - 1) // 2, length // 2 + 1)
    rows[1:, middle] -= rows[1:].sum(axis=1, keepdims=True) / (middle.stop - middle.start)
    return rows.astype(np.float32)


@lru_cache(1)
def _places() -> NDArray[np.int64]:
    """Return the 64 frequencies, from the lowest on."""
    down, across = np.divmod(np.arange(COSINES**2), COSINES)
    order = np.lexsort((across, down + across, np.maximum(down, across)))
    return order[1:65]


def _planes(image: Image) -> Sequence[NDArray[np.uint8]]:
    """Return every n-th pixel of the first channel or the first three, each uint8 (height, width)."""
    height, width, channels = image.shape
    step = -(-max(height, width) // SIDE)
    top, left = min(step, height) // 2, min(step, width) // 2
    some = image[top::step, left::step, : 3 if channels > 2 else 1]
    if some.dtype != np.uint8:
        some = (some >> 8).astype(np.uint8)
    return list(np.ascontiguousarray(some.transpose(2, 0, 1)))
