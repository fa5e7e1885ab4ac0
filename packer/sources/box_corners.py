"""Corners of boxes: their extents, and boxes that are turned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from packer.model.annotation import Point

Box = tuple[float, float, float, float]
"""xyxy."""


def extent(points: Iterable[Sequence[float]]) -> Box:
    """Return the box (xyxy) around some points."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def corners(box: Box) -> tuple[Point, ...]:
    """Return the corners of a box as those of an oriented one, from the top left one clockwise."""
    left, top, right, bottom = box
    return (left, top), (right, top), (right, bottom), (left, bottom)


def turned(box: Box, degrees: float, around: Point) -> list[Point]:
    """Return the corners of a box that is turned clockwise around a point."""
    (x0, y0), cos, sin = around, math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x0 + (x - x0) * cos - (y - y0) * sin, y0 + (x - x0) * sin + (y - y0) * cos) for x, y in corners(box)]


def turned_boxes(boxes: Sequence[Box], degrees: Sequence[float]) -> tuple[tuple[Box, ...], Any]:
    """Return the extents of boxes that are turned around their centers, and the corners of all; None if none is."""
    if not any(degrees):
        return tuple(boxes), None
    centers = [((x1 + x2) / 2, (y1 + y2) / 2) for x1, y1, x2, y2 in boxes]
    obb = tuple(tuple(turned(box, angle, at)) if angle else corners(box)
                for box, angle, at in zip(boxes, degrees, centers, strict=True))  # fmt: skip
    return tuple(map(extent, obb)), obb
