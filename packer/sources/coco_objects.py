"""Reads one object of a COCO file: box, polygon or mask, keypoints.

Format: cocodataset.org, "Data format". Boxes and polygons are continuous, with (0, 0) at the corner of the image, as in
packer. Keypoints are the numbers of pixels, counted from 0, so that half a pixel leads to their centers (as in
detectron2, data/datasets/coco.py).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Int64, Json, Point
from packer.model.rle import lengths_of
from packer.sources.paths import LARGEST, is_number, number

Mask = NDArray[np.bool_]
Ring = list[Point]

MOST_PIXELS = 1 << 26
MOST_STEPS = 1 << 16
"""Longest outline of a mask, in pixels."""
MOST_DISTANCES = 1 << 24
"""Beyond so many, polygons are joined at their first points, not at the nearest ones."""


# Masks as run lengths: COCO's two forms of them, and the polygon around one.
#
# A mask is cut into runs of equal pixels, column by column, beginning with those outside. The runs are a list of
# numbers, or a text of them (cocoapi, common/maskApi.c: rleToString and rleFrString).


def rle_text(counts: Sequence[int]) -> str:
    """Return the text of run lengths, as pycocotools reads it."""
    text = []
    for i, count in enumerate(counts):
        rest = count - counts[i - 2] if i > 2 else count
        more = True
        while more:
            digit = rest & 31
            rest >>= 5
            more = rest != (-1 if digit & 16 else 0)
            text.append(chr(48 + (digit | 32 * more)))
    return "".join(text)


def read_rle(size: Any, counts: Any) -> tuple[int, int, list[int]]:
    """Return height, width and run lengths of an RLE. Raise ValueError if it is invalid."""
    if not (
        isinstance(size, list) and len(size) == 2 and all(type(side) is int and 0 < side <= LARGEST for side in size)
    ):
        raise ValueError("its size is not [height, width]")
    height, width = size
    if isinstance(counts, str):
        text = np.frombuffer(counts.encode("utf-8", "surrogatepass"), np.uint8)
        counts = lengths_of([text], height * width)[0].tolist()
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its counts are not run lengths")
    if sum(counts) != height * width:
        raise ValueError(f"its counts are of {sum(counts)} pixels, but its size is of {height * width}")
    return height, width, counts


def check_pixels(width: int, height: int) -> None:
    """Raise ValueError if a mask of this size is too large."""
    if height * width > MOST_PIXELS:
        raise ValueError(f"it has {height * width} pixels, more than {MOST_PIXELS}")


def mask_of(height: int, width: int, counts: Sequence[int]) -> Mask:
    """Return the mask (height, width) of run lengths. Raise ValueError if it is too large."""
    check_pixels(width, height)
    inside = np.arange(len(counts)) % 2 == 1
    mask: Mask = np.repeat(inside, counts).reshape(width, height).T
    return mask


def mask_box(height: int, counts: Sequence[int]) -> tuple[float, float, float, float]:
    """Return the box (xyxy) around the pixels of run lengths. Raise ValueError if there are none."""
    lengths = np.array(counts, np.int64)
    stops = np.cumsum(lengths)[1::2]
    starts = (stops - lengths[1::2])[lengths[1::2] > 0]
    lasts = stops[lengths[1::2] > 0] - 1
    if not len(starts):
        raise ValueError("its mask is empty")
    whole = bool((starts // height != lasts // height).any())  # a run goes on in the next column
    top, bottom = (0, height) if whole else ((starts % height).min(), (lasts % height).max() + 1)
    return float(starts[0] // height), float(top), float(lasts[-1] // height + 1), float(bottom)


def outline(mask: Mask) -> list[Ring]:
    """Return the rings around the pixels of a mask, along their edges; holes turn the other way.

    Raises:
        ValueError: They are too long.
    """
    follow = _edges(mask)
    rings = []
    while follow:
        start, ways = next(iter(follow.items()))
        place, step, ring = start, ways[0], [start]
        while True:
            step = _take(follow, place, step)
            place = (place[0] + step[0], place[1] + step[1])
            if place == start:
                break
            ring.append(place)
        rings.append(_corners(ring))
    return rings


_Place = tuple[int, int]


def _edges(mask: Mask) -> dict[_Place, list[_Place]]:
    """Return the steps from each corner of pixels, along the edges, with the mask on their right."""
    follow: dict[_Place, list[_Place]] = {}
    down, right = _changes(mask.T, 1), _changes(mask.T, 0)
    for (x, y, begins), shifts, steps in ((down, ((0, 0), (1, 0)), (1, 0)), (right, ((0, 1), (0, 0)), (0, -1))):
        for sign, shift, there in ((1, shifts[0], begins), (-1, shifts[1], ~begins)):
            step = sign * steps[0], sign * steps[1]
            for i, j in zip(x[there].tolist(), y[there].tolist(), strict=True):
                follow.setdefault((i + shift[0], j + shift[1]), []).append(step)
    return follow


def _changes(columns: Mask, axis: int) -> tuple[Int64, Int64, Mask]:
    """Return x and y where the mask (width, height) begins or ends along an axis, row by row, and which it is."""
    changed = np.empty([side + (i == axis) for i, side in enumerate(columns.shape)], np.bool_)
    pixels, places = np.swapaxes(columns, 0, axis), np.swapaxes(changed, 0, axis)
    places[0], places[-1] = pixels[0], pixels[-1]
    np.not_equal(pixels[1:], pixels[:-1], out=places[1:-1])
    if (steps := np.count_nonzero(changed)) > MOST_STEPS:
        raise ValueError(f"its outline has {steps} pixels, more than {MOST_STEPS}")
    x, y = np.divmod(np.flatnonzero(changed), changed.shape[1])
    order = np.lexsort((x, y))
    x, y = x[order], y[order]
    width, height = columns.shape
    begins: Mask = columns[np.minimum(x, width - 1), np.minimum(y, height - 1)] & (x < width) & (y < height)
    return x, y, begins


def _take(follow: dict[_Place, list[_Place]], place: _Place, step: _Place) -> _Place:
    """Take the next step out of the edges: to the right, where two pixels touch at a corner."""
    ways = follow[place]
    right = (-step[1], step[0])
    found = right if len(ways) > 1 and right in ways else ways[0]
    ways.remove(found)
    if not ways:
        del follow[place]
    return found


def _corners(ring: list[_Place]) -> Ring:
    """Return the points of a ring at which it turns."""
    points = []
    for i, (x, y) in enumerate(ring):
        before, after = ring[i - 1], ring[(i + 1) % len(ring)]
        if (x - before[0], y - before[1]) != (after[0] - x, after[1] - y):
            points.append((float(x), float(y)))
    return points


def join_rings(rings: Sequence[Sequence[Point]]) -> tuple[Point, ...]:
    """Return one polygon of the area of several: they are joined by lines there and back, where they are nearest."""
    path, later = np.array(rings[0], np.float64), rings[1:]
    left = MOST_DISTANCES
    while later and (left := left - len(path) * len(later[0])) >= 0:
        ring, later = np.array(later[0], np.float64), later[1:]
        distances = np.square(np.subtract.outer(path[:, 0], ring[:, 0]))
        distances += np.square(np.subtract.outer(path[:, 1], ring[:, 1]))
        here, there = divmod(int(distances.argmin()), len(ring))
        path = np.concatenate([path[: here + 1], ring[there:], ring[: there + 1], path[here:]])
    first, *rest = map(tuple, path.tolist())
    others = [(float(x), float(y)) for ring in reversed(later) for x, y in (*ring, ring[0], first)]
    return (first, *others, *rest)


def join_parts(rings: Sequence[Ring]) -> tuple[Point, ...]:
    """Return one polygon of the parts of an object, which are a union: none of them is a hole in another."""
    return join_rings([ring if len(rings) == 1 or signed_area(ring) >= 0 else ring[::-1] for ring in rings])


Box = tuple[float, float, float, float]
Keypoint = tuple[float, float, float]
Flat: TypeAlias = "array[float]"
"""x, y, x, y, ..."""

PIXEL_CENTER = 0.5
UNLABELLED: Keypoint = (0.0, 0.0, 0.0)
FEWEST_POINTS = 3
LONGEST_ID = 64
LISTS = frozenset({"bbox", "segmentation", "keypoints"})


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
    ignore: Any = 0
    area: Any = None
    keypoints: list[float] | None = None
    attributes: Any = None

    @property
    def rotation(self) -> float:
        """By how many degrees its box is turned clockwise around its center, as CVAT writes it; else 0."""
        value = self.attributes.get("rotation", 0) if isinstance(self.attributes, dict) else 0
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


_OBJECT = msgspec.json.Decoder(CocoObject)


def read_object(data: bytes) -> CocoObject:
    """Return an object; numbers may be texts, as Roboflow writes some, and polygons flat, as VIA 2.0 does.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        return _OBJECT.decode(data)
    except msgspec.ValidationError:
        loaded = msgspec.json.decode(data)
    for name in LISTS.intersection(loaded) if isinstance(loaded, dict) else ():
        if isinstance(values := loaded[name], list):
            plain = [[*map(number_in, one)] if isinstance(one, list) else number_in(one) for one in values]
            flat = name == "segmentation" and plain and not isinstance(plain[0], list)
            loaded[name] = [plain] if flat else plain
    return msgspec.convert(loaded, CocoObject)


def number_in(value: Any) -> Any:
    """Return a number that is written as text, and any other value unchanged."""
    token = value.encode(errors="replace") if isinstance(value, str) else b""
    return number(token) if is_number(token) else value


def is_whole(key: Any) -> bool:
    """Return whether an id is the text of a whole number."""
    return isinstance(key, str) and key.isascii() and key.isdigit()


class Outline(NamedTuple):
    """What an object looks like."""

    box: Box
    polygon: Flat
    rle: Json
    keypoints: tuple[Keypoint, ...]
    crumbs: int
    """Number of polygons of fewer than three points, which are left out."""
    rings: Sequence[Flat] = ()
    """The polygons of which `polygon` is made."""

    @property
    def shape(self) -> Any:
        """What its mask is made of (`RawAnnotation.rles`)."""
        return self.rle or self.rings


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


def shape_of(found: CocoObject, size: tuple[int, int] | None, rules: Rules) -> Outline:
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
    rings: list[Flat] = []
    segmentation = found.segmentation
    if isinstance(segmentation, Rle):
        box, polygon, rle = _mask_geometry(segmentation, box, size, rules.rle_polygons)
    elif segmentation:
        rings = _rings(segmentation)
        polygon = _joined(rings)
        box = box or _extent(polygon)
    if box is None:
        raise ValueError("has no bbox")
    crumbs = len(segmentation) - len(rings) if isinstance(segmentation, list) else 0
    return Outline(box, polygon, rle, _keypoints(found, rules) if rules.points else (), crumbs, rings)


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


def _check_range(values: Sequence[float]) -> None:
    if max(values) > LARGEST or min(values) < -LARGEST:
        raise ValueError(f"{max(values, key=abs):g} is not a coordinate")


def _rings(parts: list[list[float]]) -> list[Flat]:
    """Return the parts that have an area."""
    for part in parts:
        if len(part) % 2:
            raise ValueError(f"a polygon of it has {len(part)} numbers, an x without y")
    # COCO has crumbs of one or two points; detectron2 leaves them out too
    return [array("d", part) for part in parts if len(part) >= 2 * FEWEST_POINTS]


def _joined(rings: Sequence[Flat]) -> Flat:
    """Return one polygon of all parts."""
    if len(rings) < 2:
        return rings[0] if rings else array("d")
    for ring in rings:
        _check_range(ring)  # before their areas overflow
    return _flat(join_parts([list(zip(ring[::2], ring[1::2], strict=True)) for ring in rings]))


def _flat(points: Iterable[Point]) -> Flat:
    return array("d", chain.from_iterable(points))


def signed_area(ring: Sequence[Point]) -> float:
    """Return twice the area of a ring, below 0 if it turns counterclockwise on the screen."""
    following = (*ring[1:], ring[0])
    return sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(ring, following, strict=True))


def _mask_geometry(
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
            polygon = _flat(join_rings(rings) if rings else ())
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
