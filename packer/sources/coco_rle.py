"""Masks as run lengths: COCO's two forms of them, and the polygon around one.

A mask is cut into runs of equal pixels, column by column, beginning with those outside. The runs are a list of numbers,
or a text of them (cocoapi, common/maskApi.c: rleToString and rleFrString).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.types import Int64, Point

Mask = NDArray[np.bool_]
Ring = list[Point]

MOST_PIXELS = 1 << 26
MOST_STEPS = 1 << 16
"""Longest outline of a mask, in pixels."""
MOST_DISTANCES = 1 << 24
"""Beyond so many, polygons are joined at their first points, not at the nearest ones."""
MOST_DIGITS = 7
"""A number of a text has at most this many characters of 5 bits: 35 bits."""


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


def rle_counts(text: str) -> list[int]:
    """Return the run lengths in a text. Raise ValueError if it is not one."""
    counts: list[int] = []
    value = digits = 0
    for character in text:
        digit = ord(character) - 48
        if not 0 <= digit < 64 or digits == MOST_DIGITS:
            raise ValueError("its counts are not run lengths")
        value |= (digit & 31) << 5 * digits
        digits += 1
        if not digit & 32:
            if digit & 16:
                value -= 1 << 5 * digits
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value = digits = 0
    if digits:
        raise ValueError("its counts end inside a number")
    return counts


def read_rle(size: Any, counts: Any) -> tuple[int, int, list[int]]:
    """Return height, width and run lengths of an RLE. Raise ValueError if it is invalid."""
    if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)):
        raise ValueError("its size is not [height, width]")
    height, width = size
    if isinstance(counts, str):
        counts = rle_counts(counts)
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its counts are not run lengths")
    if sum(counts) != height * width:
        raise ValueError(f"its counts are of {sum(counts)} pixels, but its size is of {height * width}")
    return height, width, counts


def mask_of(height: int, width: int, counts: Sequence[int]) -> Mask:
    """Return the mask (height, width) of run lengths. Raise ValueError if it is too large."""
    if height * width > MOST_PIXELS:
        raise ValueError(f"it has {height * width} pixels, more than {MOST_PIXELS}")
    inside = np.arange(len(counts)) % 2 == 1
    mask: Mask = np.repeat(inside, counts).reshape(width, height).T
    return mask


def mask_box(mask: Mask) -> tuple[float, float, float, float]:
    """Return the box (xyxy) around the pixels of a mask. Raise ValueError if there are none."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise ValueError("its mask is empty")
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


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
    padded = np.pad(mask, 1).astype(np.int8)
    follow: dict[_Place, list[_Place]] = {}

    def add(where: tuple[Int64, ...], shift: _Place, step: _Place) -> None:
        for y, x in zip(*(axis.tolist() for axis in where), strict=True):
            follow.setdefault((x + shift[0], y + shift[1]), []).append(step)

    down, right = np.diff(padded, axis=0)[:, 1:-1], np.diff(padded, axis=1)[1:-1]
    if (steps := np.count_nonzero(down) + np.count_nonzero(right)) > MOST_STEPS:
        raise ValueError(f"its outline has {steps} pixels, more than {MOST_STEPS}")
    add(np.nonzero(down == 1), (0, 0), (1, 0))
    add(np.nonzero(down == -1), (1, 0), (-1, 0))
    add(np.nonzero(right == 1), (0, 1), (0, -1))
    add(np.nonzero(right == -1), (0, 0), (0, 1))
    return follow


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


def joined(rings: Sequence[Sequence[Point]]) -> tuple[Point, ...]:
    """Return one polygon of the area of several: they are joined by lines there and back, where they are nearest."""
    path = list(rings[0])
    left = MOST_DISTANCES
    for ring in rings[1:]:
        here = there = 0
        left -= len(path) * len(ring)
        if left >= 0:
            ours, theirs = np.array(path), np.array(ring)
            distances = np.square(ours[:, None] - theirs[None]).sum(axis=2)
            here, there = divmod(int(distances.argmin()), len(ring))
        path[here : here + 1] = [path[here], *ring[there:], *ring[: there + 1], path[here]]
    return tuple((float(x), float(y)) for x, y in path)
