"""Reads one object of a COCO file: box, polygon or mask, keypoints.

Format: cocodataset.org, "Data format". Boxes and polygons are continuous, with (0, 0) at the corner of the image, as in
packer. Keypoints are the numbers of pixels, counted from 0, so that half a pixel leads to their centers (as in
detectron2, data/datasets/coco.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from packer.model.annotation import Json, Point
from packer.sources.coco.rle import joined, mask_box, mask_of, outline, read_rle, rle_text
from packer.sources.paths import LARGEST

Box = tuple[float, float, float, float]
Keypoint = tuple[float, float, float]
Flat: TypeAlias = "array[float]"
"""x, y, x, y, ..."""

PIXEL_CENTER = 0.5
UNLABELLED: Keypoint = (0.0, 0.0, 0.0)
FEWEST_POINTS = 3
LONGEST_ID = 64


class Rle(msgspec.Struct):
    """A mask as run lengths."""

    size: Any = None
    counts: Any = None


class CocoObject(msgspec.Struct, gc=False):
    """The members of an object that are read."""

    id: Any = None
    category_id: Any = None
    bbox: list[float] | None = None
    segmentation: list[list[float]] | Rle | None = None
    iscrowd: Any = 0
    area: Any = None
    keypoints: list[float] | None = None


class Shape(NamedTuple):
    """What an object looks like."""

    box: Box
    polygon: Flat
    rle: Json
    keypoints: tuple[Keypoint, ...]
    crumbs: int
    """Number of polygons of fewer than three points, which are left out."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the objects of a file are read."""

    points: int
    """Number of keypoints of each object, 0 for none."""
    points_of: Mapping[Any, int]
    """Number of keypoints of a category, by its id."""
    rle_polygons: bool
    """Whether a mask becomes a polygon as well."""


def key_of(value: Any) -> int | str | None:
    """Return an id as the key to find it by; None if it is not one."""
    if type(value) is int and abs(value) < 1 << 63:
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)  # pandas writes them so
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_ID else None


def shape_of(found: CocoObject, size: tuple[int, int] | None, rules: Rules) -> Shape:
    """Return the shape of an object, in packer's frame; its polygon may be `far_off`.

    Args:
        found: The object.
        size: (width, height) of its image, None if they are not known.
        rules: How to read it.

    Raises:
        ValueError: It is invalid.
    """
    box = _box(found.bbox) if found.bbox else None
    polygon = array("d")
    rle = None
    crumbs = 0
    segmentation = found.segmentation
    if isinstance(segmentation, Rle):
        box, polygon, rle = _masked(segmentation, box, size, rules.rle_polygons)
    elif segmentation:
        polygon, crumbs = _polygon(segmentation)
        box = box or _extent(polygon)
    if box is None:
        raise ValueError("has no bbox")
    return Shape(box, polygon, rle, _keypoints(found, rules) if rules.points else (), crumbs)


def _box(values: list[float]) -> Box:
    if len(values) != 4:
        raise ValueError(f"its bbox has {len(values)} numbers, not x, y, width and height")
    x, y, width, height = values
    if width < 0 or height < 0:
        name, value = ("width", width) if width < 0 else ("height", height)
        raise ValueError(f"the {name} of its bbox, {value:g}, is below 0")
    if not (-LARGEST <= x <= LARGEST and -LARGEST <= y <= LARGEST and width <= LARGEST and height <= LARGEST):
        raise ValueError(f"{max(values, key=abs):g} is not a coordinate")
    return x, y, x + width, y + height


def _extent(polygon: Flat) -> Box | None:
    if not polygon:
        return None
    xs, ys = polygon[::2], polygon[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def far_off(polygons: Sequence[Flat]) -> tuple[int, float] | None:
    """Return the number of the first polygon with a number that is not a coordinate, and that number, if there is one.

    `shape_of` leaves this to the caller, because looking at all polygons of an image at once is much quicker.
    """
    values = np.frombuffer(b"".join(polygons), np.float64)
    if not len(values) or (values.max() <= LARGEST and values.min() >= -LARGEST):
        return None
    farthest = ((number, max(one, key=abs)) for number, one in enumerate(polygons) if one)
    return next((number, value) for number, value in farthest if abs(value) > LARGEST)


def _check_range(values: list[float]) -> None:
    if max(values) > LARGEST or min(values) < -LARGEST:
        raise ValueError(f"{max(values, key=abs):g} is not a coordinate")


def _polygon(parts: list[list[float]]) -> tuple[Flat, int]:
    """Return one polygon of all parts, and the number of parts without an area."""
    if len(parts) == 1 and len(parts[0]) >= 2 * FEWEST_POINTS and not len(parts[0]) % 2:
        return array("d", parts[0]), 0
    rings = []
    for part in parts:
        if len(part) % 2:
            raise ValueError(f"a polygon of it has {len(part)} numbers, an x without y")
        if len(part) < 2 * FEWEST_POINTS:
            continue  # COCO has such crumbs; detectron2 leaves them out too
        rings.append(part)
    crumbs = len(parts) - len(rings)
    if len(rings) < 2:
        return array("d", rings[0] if rings else ()), crumbs
    for ring in rings:
        _check_range(ring)  # before their areas overflow
    # parts are a union: turned alike, none of them is a hole in another
    several = (list(zip(ring[::2], ring[1::2], strict=True)) for ring in rings)
    return _flat(joined([ring if _area(ring) >= 0 else ring[::-1] for ring in several])), crumbs


def _flat(points: Iterable[Point]) -> Flat:
    return array("d", chain.from_iterable(points))


def _area(ring: Sequence[Point]) -> float:
    following = (*ring[1:], ring[0])
    return sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(ring, following, strict=True))


def _masked(
    rle: Rle, box: Box | None, size: tuple[int, int] | None, polygons: bool
) -> tuple[Box, Flat, dict[str, Json]]:
    try:
        height, width, counts = read_rle(rle.size, rle.counts)
        if size is not None and size != (width, height):
            raise ValueError(f"it is {width}x{height}, but the image is {size[0]}x{size[1]}")
        polygon = array("d")
        box = box or mask_box(height, counts)
        if polygons:
            rings = outline(mask_of(height, width, counts))
            polygon = _flat(joined(rings) if rings else ())
    except ValueError as error:
        raise ValueError(f"its RLE is invalid: {error}") from None
    return box, polygon, {"size": [height, width], "counts": rle_text(counts)}


def _keypoints(found: CocoObject, rules: Rules) -> tuple[Keypoint, ...]:
    values = found.keypoints
    if not values:
        return (UNLABELLED,) * rules.points
    expected = rules.points_of.get(key_of(found.category_id)) or rules.points
    if len(values) != 3 * expected:
        raise ValueError(f"its keypoints have {len(values)} numbers, not 3 for each of {expected}")
    _check_range(values)
    numbers = iter(values)
    points = tuple(
        (x + PIXEL_CENTER, y + PIXEL_CENTER, v) if v or x or y else UNLABELLED
        for x, y, v in zip(numbers, numbers, numbers, strict=True)
    )
    return points + (UNLABELLED,) * (rules.points - expected)
