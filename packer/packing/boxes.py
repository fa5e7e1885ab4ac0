"""``--boxes``: what becomes of boxes that do not fit their image, and of their polygons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadBox
from packer.model.annotation import Annotation, RawAnnotation
from packer.model.fields import with_boxes
from packer.model.geometry import clip_polygon

Box = tuple[float, float, float, float]
ROUNDING_PX = 1.0
"""A box edge up to this far outside the image counts as rounding and is moved onto the border."""
ROUNDING_SHARE = 2e-6
"""And this share of the image's longer side: six decimals of a fraction, and float32."""


@dataclass(slots=True)
class Changes:
    """What the box policy changed in the labels of one image."""

    counts: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    """The fields of `Changed` after the path."""


def check_boxes(
    policy: str, annotation: Annotation, raw: RawAnnotation, size: tuple[int, int], scale: Box, changes: Changes
) -> Annotation:
    """Return an annotation whose boxes are inside the image: rounding at the border is corrected.

    Args:
        policy: What to do with other boxes: fail, clip (with their polygons) or drop.
        annotation: The annotation, in pixels.
        raw: The same as written in its file, for messages.
        size: Width and height of the image.
        scale: What `raw.boxes` has to be multiplied by to be in pixels.
        changes: Receives what was clipped and dropped.

    Raises:
        BadBox: The policy is fail, and there is such a box.
    """
    if annotation.boxes is None or not len(annotation.boxes):
        return annotation
    boxes = annotation.boxes
    width, height = size
    rows = boxes.tolist()  # for a few boxes, quicker than numpy
    inside = all(x1 < x2 <= width and y1 < y2 <= height for x1, y1, x2, y2 in rows) and not np.signbit(boxes).any()
    if inside and policy != "clip":
        return annotation
    border = np.array([width, height, width, height], np.float32)
    clamped = np.clip(boxes, 0, border)
    excess = np.abs(boxes - clamped).max(axis=1)
    outside = excess > _rounding(size)
    empty = (clamped[:, 2] <= clamped[:, 0]) | (clamped[:, 3] <= clamped[:, 1])
    bad = outside | empty
    if policy == "fail" and bad.any():
        raise _bad_box(raw, int(np.flatnonzero(bad)[0]), size, scale)
    drop = empty | outside if policy == "drop" else empty
    changes.counts["boxes_dropped"] += int(drop.sum())
    changes.counts["boxes_clipped"] += int((outside & ~drop).sum())
    changes.counts["boxes_clamped"] += int(((excess > 0) & ~outside & ~drop).sum())
    for number in np.flatnonzero(bad).tolist():
        before = _pixels(raw, number, scale)
        after = "" if drop[number] else _numbers(_cut(before, size))
        change = "dropped" if drop[number] else "clipped"
        changes.rows.append((change, *_place(raw, number), _numbers(before), after))
    annotation = replace(annotation, boxes=clamped)
    if policy == "clip" and annotation.polygons is not None:
        polygons = tuple(clip_polygon(polygon, width, height) for polygon in annotation.polygons)
        _note_polygons(annotation.polygons, raw, size, bad, changes)
        annotation = replace(annotation, polygons=polygons)
    return with_boxes(annotation, ~drop) if drop.any() else annotation


def _rounding(size: tuple[int, int]) -> float:
    return ROUNDING_PX + ROUNDING_SHARE * max(size)


def _note_polygons(
    polygons: Sequence[NDArray[np.float32]], raw: RawAnnotation, size: tuple[int, int], noted: Any, changes: Changes
) -> None:
    """List the clipped polygons; those of boxes that are `noted` already are only counted."""
    for number, polygon in enumerate(polygons):
        if len(polygon) and np.abs(polygon - np.clip(polygon, 0, np.array(size, np.float32))).max() > _rounding(size):
            changes.counts["polygons_clipped"] += 1
            if not noted[number]:
                low, high = polygon.min(axis=0).tolist(), polygon.max(axis=0).tolist()
                extent = (low[0], low[1], high[0], high[1])
                row = ("polygon clipped", *_place(raw, number), _numbers(extent), _numbers(_cut(extent, size)))
                changes.rows.append(row)


def _place(raw: RawAnnotation, number: int) -> tuple[str, str]:
    """Return file and line of a box, and its number with its class."""
    origin = raw.origin if raw.box_lines is None else f"{raw.origin}:{raw.box_lines[number]}"
    return origin, f"{number + 1} {raw.box_labels[number] if raw.box_labels is not None else ''}".rstrip()


def _pixels(raw: RawAnnotation, number: int, scale: Box) -> Box:
    """Return a box in pixels of the labelled image, in float64: as the file has it, if that is in pixels too."""
    assert raw.boxes is not None
    x1, y1, x2, y2 = (value * factor for value, factor in zip(raw.boxes[number], scale, strict=True))
    return x1, y1, x2, y2


def _cut(box: Box, size: tuple[int, int]) -> Box:
    (x1, y1, x2, y2), (width, height) = box, size
    return min(max(x1, 0), width), min(max(y1, 0), height), min(max(x2, 0), width), min(max(y2, 0), height)


def _numbers(box: Box) -> str:
    return " ".join(f"{value:.9g}" for value in box)


def _bad_box(raw: RawAnnotation, number: int, size: tuple[int, int], scale: Box) -> BadBox:
    x1, y1, x2, y2 = _pixels(raw, number, scale)
    width, height = size
    limit = _rounding(size)
    origin, _ = _place(raw, number)
    box = f"box {number + 1}"
    if raw.box_texts is not None:  # what can be found in the file
        box += f" ({raw.box_texts[number]})"
    problem = (
        f"{box} has no area" if raw.box_texts is not None else f"{box} ({x1:g}, {y1:g}, {x2:g}, {y2:g}) has no area"
    )
    for name, value, most, side in (("xmax", x2, width, "width"), ("ymax", y2, height, "height")):
        if value > most + limit:
            problem = f"{box}: {name} {value:.9g} exceeds {side} {most}"
    for name, value, where in (("xmin", x1, "left of"), ("ymin", y1, "above")):
        if value < -limit:
            problem = f"{box}: {name} {value:.9g} is {where} the image"
    return BadBox(origin, problem, "fix the label or pass --boxes=clip or --boxes=drop")
