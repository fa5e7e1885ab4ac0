"""Masks of objects as run lengths: COCO's compressed counts, which pycocotools makes and numpy reads.

A mask is cut into runs of equal pixels, column by column, beginning with those outside. Their lengths are written as
text (cocoapi, common/maskApi.c: rleToString, rleFrString). pycocotools trusts such a text, so it never sees one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from packer.errors import BadLabel, NotInstalled, option
from packer.model.annotation import Annotation, Int64, Mask, UInt8
from packer.system.machine import install_command

MOST_DIGITS = 7
"""A number of a text has at most this many characters of 5 bits: 35 bits."""
FARTHEST = 1 << 17
"""Pixels: pycocotools computes the points of an outline with integers of 32 bits."""
MOST_POINTS = 1 << 20
"""Pixels of an outline; pycocotools holds 5 points for each."""
FEWEST_NUMBERS = 6
NO_MASK: UInt8 = np.zeros(0, np.uint8)
"""That of an object without one."""


def check_installed(is_needed: bool = True, what: str = option("instance-masks")) -> None:
    """Raise NotInstalled if pycocotools, which makes masks, is needed and missing."""
    if is_needed and importlib.util.find_spec("pycocotools") is None:
        raise NotInstalled(what, "needs pycocotools, which is not installed", install_command("coco"))


def run_lengths(text: UInt8, sizes: Int64, pixels: Int64 | int) -> list[Int64]:
    """Return the run lengths of masks, of which the first is outside; none for one that is empty.

    Args:
        text: Their counts, one after another, in ASCII.
        sizes: The number of characters of each.
        pixels: How many pixels each has, or all have.

    Raises:
        ValueError: They are not the text of run lengths, or not of so many pixels.
    """
    if not len(text):
        return [np.zeros(0, np.int64) for _ in sizes]
    digits, ends = text.astype(np.int64) - 48, np.cumsum(sizes)
    if int(digits.min()) < 0 or int(digits.max()) >= 64:
        raise ValueError("its counts are not run lengths")
    if (digits[ends[sizes > 0] - 1] >= 32).any():
        raise ValueError("its counts end inside a number")
    stops = np.flatnonzero(digits < 32)
    starts = np.concatenate([[0], stops[:-1] + 1])
    places = np.arange(len(digits)) - np.repeat(starts, stops - starts + 1)
    if int(places.max()) >= MOST_DIGITS:
        raise ValueError("its counts are not run lengths")
    lengths = np.add.reduceat((digits & 31) << 5 * places, starts)
    lengths -= np.where(digits[stops] & 16, 1 << 5 * (places[stops] + 1), 0)
    of_mask = np.searchsorted(stops, ends)  # how many numbers there are before the end of each
    numbers = np.diff(of_mask, prepend=0)
    _add_those_before(lengths, np.arange(len(lengths)) - np.repeat(of_mask - numbers, numbers))
    return _checked(np.split(lengths, of_mask[:-1]), np.broadcast_to(pixels, len(sizes)))


def lengths_of(counts: Sequence[UInt8], pixels: int) -> list[Int64]:
    """Return the run lengths of masks of so many pixels. Raise ValueError as `run_lengths` does."""
    sizes = np.array([len(one) for one in counts], np.int64)
    return run_lengths(np.concatenate([NO_MASK, *counts]), sizes, pixels)


def _add_those_before(lengths: Int64, places: Int64) -> None:
    """Make lengths of what is written, from the fourth of a mask on: the difference to the last but one before it."""
    for first in (0, 1):
        of_parity = lengths[first::2]
        sums, begins = np.cumsum(of_parity), np.flatnonzero(places[first::2] < 3)
        before = (sums - of_parity)[begins]
        of_parity[:] = sums - np.repeat(before, np.diff(begins, append=len(sums)))


def _checked(lengths: list[Int64], pixels: Int64) -> list[Int64]:
    for one, expected in zip(lengths, pixels.tolist(), strict=True):
        if len(one) and (one.min() < 0 or one.max() > expected):
            raise ValueError("its counts are not run lengths")
        if len(one) and (total := int(one.sum())) != expected:
            raise ValueError(f"its counts are of {total} pixels, but its size is of {expected}")
    return lengths


def write(lengths: Int64, shape: tuple[int, int], rows: Int64, columns: Int64, out: Mask) -> None:
    """Write the pixels of an object at some rows and columns of its image to `out`, which is 0.

    Only the columns in which the object is are decoded.

    Args:
        lengths: The run lengths of its mask.
        shape: Height and width of that.
        rows: Numbers of rows, which increase; those outside the image have no pixels.
        columns: Numbers of columns, which increase or decrease.
        out: uint8 (rows, columns).
    """
    height, stops = shape[0], np.cumsum(lengths)
    begins, ends = stops[0:-1:2], stops[1::2]
    if not len(ends):
        return
    left, right = int(begins[0]) // height, (int(ends[-1]) - 1) // height + 1
    across = np.flatnonzero((columns >= left) & (columns < right))
    down = np.flatnonzero((rows >= 0) & (rows < height))
    if not len(across) or not len(down):
        return
    shown = columns[across]
    first, last = int(shown.min()), int(shown.max()) + 1
    run, stop = np.searchsorted(stops, (first * height, last * height), "right")
    bounds = np.concatenate([[first * height], stops[run:stop], [last * height]])
    inside = (np.arange(run, run + len(bounds) - 1) & 1).astype(np.uint8)
    pixels = np.repeat(inside, np.diff(bounds)).reshape(last - first, height)
    # numpy copies whole rows of a transposed array three times as fast as it picks single pixels
    out[down[0] : down[-1] + 1, across[0] : across[-1] + 1] = pixels.take(shown - first, axis=0).T[rows[down]]


def encode(mask: Mask) -> UInt8:
    """Return the counts of a mask (height, width), which is an object wherever it is not 0."""
    from pycocotools import mask as coco

    return np.frombuffer(coco.encode(np.asfortranarray(mask != 0, np.uint8))["counts"], np.uint8)


def as_shape(mask: Mask) -> tuple[tuple[float, float, float, float], dict[str, Any]]:
    """Return the box (xyxy) around the pixels of a mask, and it as `RawAnnotation.rles` has it.

    Raises:
        ValueError: It has none.
    """
    down, across = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(down):
        raise ValueError("an object has an empty mask")
    box = (float(across[0]), float(down[0]), float(across[-1] + 1), float(down[-1] + 1))
    return box, {"size": [*mask.shape], "counts": encode(mask).tobytes().decode("ascii")}


def encode_shape(shape: Any, height: int, width: int, scale: tuple[float, float] = (1.0, 1.0)) -> UInt8:
    """Return the counts of the mask of an object as its label gives it (`RawAnnotation.rles`).

    Polygons become pixels as by ``COCO.annToRLE``.

    Args:
        shape: Polygons, of which it is the union; or run lengths.
        height: That of the image.
        width: That of the image.
        scale: What x and y of polygons are multiplied by to be in pixels.

    Raises:
        ValueError: It is not such a shape, or is of an image of another size.
    """
    if isinstance(shape, str):  # of a record that packer wrote
        shape = {"size": [height, width], "counts": shape}
    if isinstance(shape, Mapping):
        if list(shape["size"]) != [height, width]:
            raise ValueError(f"is {shape['size'][1]}x{shape['size'][0]}, but the image is {width}x{height}")
        counts = np.frombuffer(shape["counts"].encode("ascii"), np.uint8)
        lengths_of([counts], height * width)
        return counts
    rings = [ring for one in shape if len(ring := _ring(one, scale)) >= FEWEST_NUMBERS]
    if not rings:
        return NO_MASK
    from pycocotools import mask as coco

    return np.frombuffer(coco.merge(coco.frPyObjects(rings, height, width))["counts"], np.uint8)


def _ring(points: Any, scale: tuple[float, float]) -> Any:
    """Return the points of a polygon in pixels as x, y, x, y, ... Raise ValueError if pycocotools cannot compute it."""
    flat = points if not len(points) or isinstance(points[0], float | int) else list(chain.from_iterable(points))
    ring = np.array(flat, np.float64).reshape(-1, 2) * scale
    steps = np.abs(ring - np.roll(ring, 1, axis=0)).max(axis=1, initial=0)
    if not (np.abs(ring) <= FARTHEST).all() or steps.sum() > MOST_POINTS:
        raise ValueError("has a polygon that goes too far outside the image")
    return ring.ravel()


def moved_masks(
    annotation: Annotation, height: int, width: int, move: Callable[[Mask], Mask], origin: str | bytes = ""
) -> Annotation:
    """Return an annotation whose masks, of an image of this size, are moved.

    Raises:
        BadLabel: One is not the mask of such an image; `origin` says whose.
    """
    if annotation.rles is None:
        return annotation
    try:
        lengths = lengths_of(annotation.rles, height * width)
    except ValueError as error:
        raise BadLabel(origin, f"has a mask that is damaged: {error}", "leave the image out") from None
    moved = (encode(move(_whole(one, height, width))) if len(one) else NO_MASK for one in lengths)
    return replace(annotation, rles=tuple(moved))


def _whole(lengths: Int64, height: int, width: int) -> Mask:
    inside = (np.arange(len(lengths)) & 1).astype(np.uint8)
    mask: Mask = np.repeat(inside, lengths).reshape(width, height).T
    return mask


def decode(counts: Sequence[UInt8], height: int, width: int) -> Mask:
    """Return masks, uint8 (k, height, width) of 0 and 1. Raise ValueError if one is not of this size."""
    masks: Mask = np.zeros((len(counts), height, width), np.uint8)
    for mask, lengths in zip(masks, lengths_of(counts, height * width), strict=True):
        write(lengths, (height, width), np.arange(height), np.arange(width), mask)
    return masks
