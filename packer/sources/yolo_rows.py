"""The grammar of a YOLO label file: bytes -> boxes, polygons or key points, or a ValueError with the line.

One row an object: ``class cx cy w h``, ``class x1 y1 ... xm ym`` (an outline of m >= 3 points), or, where
data.yaml has ``kpt_shape: [k, dims]``, ``class cx cy w h`` and k times ``x y [visibility]``. All coordinates
are fractions of the image's width and height. (Format: Ultralytics, "Datasets overview", detect/segment/pose.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from packer.sources.files import lines_of
from packer.sources.numerals import MOST_CLASSES, class_id, number
from packer.sources.paths import quoted
from packer.types import Point

Box = tuple[float, float, float, float]
Keypoint = tuple[float, float, float]
BLANKS = re.compile(rb"[ \t]+")
VISIBLE = 2.0  # what COCO writes for a point that is labelled and visible
MOST_COLUMNS = 20_000


@dataclass(slots=True)
class Rows:
    """The objects of one file, in its order; polygons: () for an object without an outline."""

    classes: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    """xyxy, fractions."""
    polygons: list[tuple[Point, ...]] = field(default_factory=list)
    keypoints: list[tuple[Keypoint, ...]] = field(default_factory=list)


class BadRow(ValueError):
    """A row that does not follow the grammar; `line` counts from 1."""

    def __init__(self, line: int, problem: str, next_step: str = "fix the row") -> None:
        super().__init__(line, problem, next_step)
        self.line, self.problem, self.next_step = line, problem, next_step


def parse_rows(data: bytes, num_classes: int = MOST_CLASSES, kpt_shape: tuple[int, int] | None = None) -> Rows:
    """All rows of a file; blank lines are passed over. Raises BadRow."""
    rows = Rows()
    for count, line in enumerate(lines_of(data), 1):
        tokens = BLANKS.split(line.strip(b" \t"))
        if tokens == [b""]:
            continue
        try:
            _check_columns(len(tokens), kpt_shape)
            rows.classes.append(_class(tokens[0], num_classes))
            values = [number(token) for token in tokens[1:]]
            if kpt_shape is None and len(values) > 4:
                polygon = tuple(zip(values[::2], values[1::2], strict=True))
                rows.polygons.append(polygon)
                rows.boxes.append(_extent(polygon))
            else:
                rows.polygons.append(())
                rows.boxes.append(_xyxy(values[:4]))
                if kpt_shape is not None:
                    rows.keypoints.append(_keypoints(values[4:], kpt_shape[1]))
        except BadRow as error:
            raise BadRow(count, error.problem, error.next_step) from None
        except ValueError as error:
            raise BadRow(count, str(error)) from None
    return rows


def highest_class(data: bytes) -> int:
    """The highest class id in a file, -1 for none; rows that are wrong are passed over."""
    tokens = (BLANKS.split(line.strip(b" \t"), maxsplit=1)[0] for line in lines_of(data))
    return max((found for token in tokens if (found := class_id(token)) is not None), default=-1)


def _check_columns(count: int, kpt_shape: tuple[int, int] | None) -> None:
    if kpt_shape is not None:
        points, dims = kpt_shape
        if count != 5 + points * dims:
            problem = f"has {count} columns, and kpt_shape [{points}, {dims}] needs {5 + points * dims}"
            raise BadRow(0, problem, "fix the row, or kpt_shape in data.yaml")
    elif count > MOST_COLUMNS:
        raise BadRow(0, f"has {count} columns, more than {MOST_COLUMNS}")
    elif count < 5:
        raise BadRow(0, f"has {count} columns, and a box needs 5: class cx cy w h")
    elif count > 5 and count % 2 == 0:
        problem = f"has {count} columns, and a box has 5, an outline an odd number"
        raise BadRow(0, problem, "for key points set kpt_shape in data.yaml; remove a confidence column")


def _class(token: bytes, num_classes: int) -> int:
    found = class_id(token)
    if found is None:
        raise ValueError(f"class {quoted(token)} is no whole number from 0 to {MOST_CLASSES - 1}")
    if found >= num_classes:
        raise BadRow(0, f"class {found} is not among the {num_classes} classes", "fix the row, or the names")
    return found


def _xyxy(values: list[float]) -> Box:
    cx, cy, width, height = values
    if width < 0 or height < 0:
        name, value = ("width", width) if width < 0 else ("height", height)
        raise ValueError(f"{name} {value:g} is below 0")
    return cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2


def _extent(polygon: tuple[Point, ...]) -> Box:
    xs, ys = zip(*polygon, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _keypoints(values: list[float], dims: int) -> tuple[Keypoint, ...]:
    if dims == 2:
        return tuple((x, y, VISIBLE) for x, y in zip(values[::2], values[1::2], strict=True))
    return tuple(zip(values[::3], values[1::3], values[2::3], strict=True))
