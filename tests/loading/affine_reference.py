"""What an affine map makes of pixels and points, in plain numpy and float64."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

EDGE = 1e-3
"""Pixels: so near to an edge between two pixels, either may be taken."""
LEVELS = 1 if int(cv2.__version__.split(".")[0]) >= 5 else 9
"""Of 255, by which noise may differ: OpenCV 4 rounds positions to 1/32 of a pixel."""


def sources(its_map: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where each pixel of the result comes from: rows and columns, in continuous coordinates."""
    inverse = np.linalg.inv(np.vstack([its_map, [0, 0, 1]]))
    y, x = np.mgrid[: shape[0], : shape[1]] + 0.5
    found = inverse @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    return found[1].reshape(x.shape), found[0].reshape(x.shape)


def at(pixels: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any], fill: Any) -> NDArray[Any]:
    """The pixels at these places; the fill where there are none."""
    height, width = pixels.shape[:2]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found = np.empty((*rows.shape, *pixels.shape[2:]), pixels.dtype)
    found[:] = fill
    found[inside] = pixels[rows[inside], columns[inside]]
    return found


def nearest(pixels: NDArray[Any], its_map: Any, fill: Any = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """The moved pixels, and which of them are certain."""
    places = sources(its_map, pixels.shape)
    rows, columns = (np.floor(axis).astype(int) for axis in places)
    certain = np.all([np.abs(axis - np.rint(axis)) > EDGE for axis in places], axis=0)
    return at(pixels, rows, columns, fill), certain


def bilinear(pixels: NDArray[Any], its_map: Any, fill: Any = 0) -> NDArray[Any]:
    """The moved pixels, as float64."""
    y, x = (axis - 0.5 for axis in sources(its_map, pixels.shape))
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    made = np.zeros(pixels.shape)
    for row, down in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, across in ((left, 1 - (x - left)), (left + 1, x - left)):
            weight = (down * across).reshape(*y.shape, *[1] * (pixels.ndim - 2))
            made += weight * at(pixels.astype(np.float64), row, column, fill)
    return made


def moved(points: Any, its_map: Any) -> NDArray[Any]:
    """Points (..., 2)."""
    made: NDArray[Any] = np.asarray(points, np.float64) @ its_map[:, :2].T + its_map[:, 2]
    return made


def boxes_around(boxes: Any, its_map: Any, output: tuple[int, int]) -> NDArray[Any]:
    """Boxes around the moved corners, cut at the edges."""
    x, y, right, bottom = np.asarray(boxes, np.float64).reshape(-1, 4).T
    corners = moved(np.stack([[x, y], [right, y], [right, bottom], [x, bottom]]).transpose(2, 0, 1), its_map)
    sides = np.array(output[::-1])
    return np.concatenate([corners.min(axis=1).clip(0, sides), corners.max(axis=1).clip(0, sides)], axis=1)
