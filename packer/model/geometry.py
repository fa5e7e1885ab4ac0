"""Affine maps, and annotations that move with the pixels.

Coordinates are continuous (packer.model.annotation): (0, 0) is the corner of the first pixel, so a flip is
x' = width - x, and a resize x' = x * scale, without any half pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Annotation, Float32, Int64
from packer.model.fields import moved, with_boxes

Float64 = NDArray[np.float64]
ON_EDGE = 0.001
"""Pixels, which rounding may leave: a keypoint so near to an edge is inside, and a box of this width is none."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """An affine map: x' = a x + b y + c, y' = d x + e y + f, into an image of width x height pixels."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float
    width: int
    height: int

    @classmethod
    def identity(cls, width: int, height: int) -> Geometry:
        """Return the identity map of an image of this size."""
        return cls(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, width, height)

    @property
    def is_identity(self) -> bool:
        """Whether no point moves (the size may differ)."""
        return (self.a, self.b, self.c, self.d, self.e, self.f) == (1, 0, 0, 0, 1, 0)

    def compose(self, then: Geometry) -> Geometry:
        """Return the composition: this map first, `then` the other."""
        return Geometry(
            then.a * self.a + then.b * self.d,
            then.a * self.b + then.b * self.e,
            then.a * self.c + then.b * self.f + then.c,
            then.d * self.a + then.e * self.d,
            then.d * self.b + then.e * self.e,
            then.d * self.c + then.e * self.f + then.f,
            then.width,
            then.height,
        )

    def points(self, xy: NDArray[np.floating]) -> Float64:
        """Return moved points, shape (..., 2), in float64."""
        x, y = np.asarray(xy[..., 0], np.float64), np.asarray(xy[..., 1], np.float64)
        return np.stack([self.a * x + self.b * y + self.c, self.d * x + self.e * y + self.f], axis=-1)


def nearest(extent: int | Int64, pixels: int, start: int | Int64 = 0) -> Int64:
    """Return which pixel of a mask each of `pixels` new ones takes along an axis: that below its center.

    In whole numbers, ``start + floor((2 i + 1) * extent / (2 * pixels))``: no rounding, on any machine.

    Args:
        extent: Number of pixels that become the new ones; or many such numbers, (n, 1), for a result of (n, pixels).
        pixels: Number of new ones.
        start: The first of those of the mask.
    """
    return start + (2 * np.arange(pixels, dtype=np.int64) + 1) * extent // (2 * pixels)


def is_known(values: NDArray[Any], ignore: int | None) -> NDArray[np.bool_]:
    """Return where a map has a value: a finite one, and not the one that stands for unknown."""
    finite: NDArray[np.bool_] = np.isfinite(values)
    return finite if ignore is None else finite & (values != ignore)


def interpolate(
    values: NDArray[Any], region: tuple[float, float, float, float], size: tuple[int, int], ignore: int | None = None
) -> NDArray[Any]:
    """Return values of pixels linearly interpolated, (height, width, ...) of the same dtype, whole numbers rounded.

    A pixel next to one that is unknown takes the value below its center: what is unknown never becomes a value.

    Args:
        values: (height, width, ...).
        region: x, y, width, height of the part that is shown; no value from outside it is used.
        size: (width, height) of the result.
        ignore: What stands for an unknown value, besides NaN and infinity.
    """
    x, y, across, down = region
    (top, bottom, low), (left, right, far) = (
        _taps(y, down, size[1], len(values)),
        _taps(x, across, size[0], values.shape[1]),
    )
    corners = [values.take(rows, axis=0).take(columns, axis=1) for rows in (top, bottom) for columns in (left, right)]
    more = (1,) * (values.ndim - 2)
    low, far = low.reshape(-1, 1, *more), far.reshape(1, -1, *more)
    found, unknown = np.float32(0), np.zeros(corners[0].shape, np.bool_)
    for corner, (down_share, across_share) in zip(corners, product((1 - low, low), (1 - far, far)), strict=True):
        share, nothing = down_share * across_share, ~is_known(corner, ignore)
        found = found + share * np.where(nothing, 0, corner).astype(np.float32)
        unknown |= nothing & (share > 0)
    if values.dtype.kind != "f":
        found = np.rint(found)
    result: NDArray[Any] = np.where(unknown, 0, found).astype(values.dtype)
    if unknown.any():
        below = values.take(np.where(low.ravel() < 0.5, top, bottom), axis=0)
        result[unknown] = below.take(np.where(far.ravel() < 0.5, left, right), axis=1)[unknown]
    return result


def _taps(start: float, extent: float, pixels: int, side: int) -> tuple[Int64, Int64, NDArray[np.float32]]:
    """Return the two pixels on both sides of the center of each new one along an axis, and the weight of the second."""
    first, last = max(math.floor(start), 0), min(math.ceil(start + extent), side) - 1
    centers = start + (2 * np.arange(pixels) + 1) * extent / (2 * pixels) - 0.5
    before = np.floor(centers)
    low, high = (np.clip(edge, first, max(first, last)).astype(np.int64) for edge in (before, before + 1))
    return low, high, (centers - before).astype(np.float32)


def orientation_geometry(orientation: int, width: int, height: int) -> Geometry:
    """Return the map from a stored image to the upright one.

    Args:
        orientation: Exif orientation 1..8.
        width: Width of the stored image.
        height: Height of the stored image.

    Raises:
        ValueError: The orientation is invalid.
    """
    w, h = float(width), float(height)
    maps = {
        1: (1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        2: (-1.0, 0.0, w, 0.0, 1.0, 0.0),
        3: (-1.0, 0.0, w, 0.0, -1.0, h),
        4: (1.0, 0.0, 0.0, 0.0, -1.0, h),
        5: (0.0, 1.0, 0.0, 1.0, 0.0, 0.0),
        6: (0.0, -1.0, h, 1.0, 0.0, 0.0),
        7: (0.0, -1.0, h, -1.0, 0.0, w),
        8: (0.0, 1.0, 0.0, -1.0, 0.0, w),
    }
    if orientation not in maps:
        raise ValueError(f"orientation must be 1..8, got {orientation}")
    upright = (height, width) if orientation >= 5 else (width, height)
    return Geometry(*maps[orientation], *upright)


def move(annotation: Annotation, geometry: Geometry) -> Annotation:
    """Return the annotation of the moved image, without clipping or dropping."""
    if geometry.is_identity:
        return annotation
    return moved(annotation, geometry.points)


def clip(annotation: Annotation, width: int, height: int) -> Annotation:
    """Clip an annotation to an image of this size.

    Boxes and polygons are cut at its edges; a box without area, or an oriented one of which nothing is inside, is
    dropped with its label, polygon, keypoints and fields. Landmarks, keypoints and the corners of oriented boxes are
    unchanged, even outside.
    """
    if annotation.boxes is None:
        return annotation
    limits = np.array([width, height, width, height], np.float32)
    boxes = np.clip(annotation.boxes, np.float32(0), limits)
    polygons = annotation.polygons
    if polygons is not None:
        polygons = tuple(clip_polygon(polygon, width, height) for polygon in polygons)
    clipped = replace(annotation, boxes=boxes, polygons=polygons)
    keep = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
    if annotation.obb is not None:
        keep &= np.array([len(clip_polygon(corners, width, height)) > 0 for corners in annotation.obb], np.bool_)
    return clipped if keep.all() else with_boxes(clipped, keep)


def corners_of(boxes: NDArray[np.floating]) -> NDArray[Any]:
    """Return the corners of boxes (n, 4) as those of oriented ones, (n, 4, 2), from the top left one clockwise."""
    return np.asarray(boxes)[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)


def clip_polygon(polygon: Float32, width: int, height: int) -> Float32:
    """Return the part of a polygon inside the image, (m, 2), or (0, 2) (Sutherland and Hodgman 1974).

    The parts of a concave polygon that leaves and re-enters the image stay joined along the edge.
    """
    inside_all = (polygon >= 0).all() and (polygon[:, 0] <= width).all() and (polygon[:, 1] <= height).all()
    if inside_all:
        return polygon
    points = clipped(np.asarray(polygon, np.float64), width, height)
    return points.astype(np.float32) if len(points) >= 3 else np.empty((0, 2), np.float32)


def clipped(points: Float64, width: int, height: int) -> Float64:
    """Return the points of what `clip_polygon` leaves of a polygon (m, 2), in float64."""
    for axis, limit, sign in ((0, 0.0, 1.0), (0, float(width), -1.0), (1, 0.0, 1.0), (1, float(height), -1.0)):
        if not len(points):
            break
        depth = sign * (points[:, axis] - limit)  # >= 0: on the inner side of this edge
        if (depth >= 0).all():
            continue
        before, depth_before = np.roll(points, 1, axis=0), np.roll(depth, 1)
        inner: list[Float64] = []
        for start, stop, from_edge, to_edge in zip(before, points, depth_before, depth, strict=True):
            if (from_edge >= 0) != (to_edge >= 0):
                crossing = start + (stop - start) * (from_edge / (from_edge - to_edge))
                crossing[axis] = limit
                inner.append(crossing)
            if to_edge >= 0:
                inner.append(stop)
        points = np.array(inner, np.float64).reshape(-1, 2)
    return points


def polygon_area(polygon: NDArray[np.floating]) -> float:
    """Return the area of a polygon (m, 2): the shoelace formula, from its first point for the sake of precision."""
    if not len(polygon):
        return 0.0
    x, y = (polygon.astype(np.float64) - polygon[0]).T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def extent_inside(polygon: Float64, width: int, height: int) -> Float64:
    """Return the box (xyxy) around the part of a polygon (m, 2) that is inside an image; some of it must be.

    Unlike the points of `clip_polygon`, it knows nothing of lines along the edges, nor of lines there and back, by
    which the parts of an object are joined.
    """
    starts, stops = polygon, np.roll(polygon, -1, axis=0)
    lines = {(*start, *stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)}
    sides = np.array([one for one in lines if (*one[2:], *one[:2]) not in lines]).reshape(-1, 4)
    limits, origins, steps = np.array([width, height], np.float64), sides[:, :2], sides[:, 2:] - sides[:, :2]
    with np.errstate(divide="ignore", invalid="ignore"):
        edges = np.stack([-origins / steps, (limits - origins) / steps])
    still = steps == 0  # such a line is inside from its beginning, or never
    beside = still & ((origins < 0) | (origins > limits))
    enter = np.where(still, np.where(beside, np.inf, 0), edges.min(axis=0)).max(axis=1).clip(0)
    leave = np.where(still, 1, edges.max(axis=0)).min(axis=1).clip(max=1)
    there = enter <= leave
    found = [origins[there] + steps[there] * share[there, None] for share in (enter, leave)]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    points = np.concatenate([*found, [one for one in corners.tolist() if _surrounds(sides, *one)] or np.empty((0, 2))])
    box: Float64 = np.clip(np.concatenate([points.min(axis=0), points.max(axis=0)]), 0, np.tile(limits, 2))
    return box


def _surrounds(sides: Float64, x: float, y: float) -> bool:
    """Return whether a point is inside the polygon with these sides, (m, 4): from a point to the next."""
    left, top, right, bottom = sides.T
    crosses = (top > y) != (bottom > y)
    at = left[crosses] + (right - left)[crosses] * (y - top[crosses]) / (bottom - top)[crosses]
    return bool(np.count_nonzero(at > x) % 2)


def hide_outside(points: Float32, width: int, height: int) -> Float32:
    """Return keypoints (..., 3) with visibility 0 for those outside an image of this size; on an edge they are in."""
    x, y = points[..., 0], points[..., 1]
    inside = (x >= -ON_EDGE) & (x <= width + ON_EDGE) & (y >= -ON_EDGE) & (y <= height + ON_EDGE)
    if inside.all():
        return points
    hidden: Float32 = points.copy()
    hidden[~inside, 2] = 0
    return hidden
