"""Problems of boxes and landmarks: nearly equal ones, unusual sizes and shapes, landmarks far from the mean shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural
from packer.stats.problems.problem import (
    CHECK,
    EXAMPLES,
    NOTE,
    WRONG,
    DataProblem,
    ProblemColumns,
    distinct,
    median_of,
    usual,
)

SAME_BOX = 0.9
"""Intersection over union from which two boxes show the same object."""
MOST_NEIGHBORS = 200
"""Boxes with which a box is compared, the nearest first: in an image of thousands of equal boxes, all have some."""
FEWEST = 30
"""Boxes of a class from which their median says what is usual."""
DEVIATIONS = 5.0
"""Standard deviations beyond which a size or a shape is unusual: see `problem.usual`."""
SIZE_FACTOR, ASPECT_FACTOR = 3.0, 4.0
"""And how many times the median it is at least."""
TINY_PX = 2.0
"""Shorter side, in pixels of the packed image, below which nothing can be learned."""
BORDER_PX = 0.5
_CHUNK = 1 << 20
"""Boxes that are looked at together, to save memory."""

Boxes = NDArray[np.int64]


class BoxFacts:
    """What is known of each box, computed in pieces."""

    def __init__(self, columns: ProblemColumns) -> None:
        count = len(columns.boxes)
        self.side, self.aspect = np.empty(count, np.float32), np.empty(count, np.float32)
        """Logarithms of the square root of the area, and of width / height."""
        self.empty, self.outside, self.tiny, self.cut = (np.zeros(count, np.bool_) for _ in range(4))
        pairs = []
        for first, stop in _pieces(columns.firsts):
            rows = slice(int(columns.firsts[first]), int(columns.firsts[stop]))
            x1, y1, x2, y2 = np.ascontiguousarray(columns.boxes[rows].T)
            images = np.repeat(np.arange(stop - first), np.diff(columns.firsts[first : stop + 1]))
            width, height = columns.sizes[:, first:stop][:, images]
            with np.errstate(over="ignore"):
                wide, high = x2 - x1, y2 - y1
            self.empty[rows] = ~((wide > 0) & (high > 0))  # also if a number is not one
            self.tiny[rows] = np.minimum(wide, high) < TINY_PX
            self.outside[rows] = (x1 < -1) | (y1 < -1) | (x2 > width + 1) | (y2 > height + 1)
            self.cut[rows] = (x1 <= BORDER_PX) | (y1 <= BORDER_PX)
            self.cut[rows] |= (x2 >= width - BORDER_PX) | (y2 >= height - BORDER_PX)
            with np.errstate(divide="ignore", invalid="ignore"):  # points, and numbers that are not finite
                wide, high = np.log(wide), np.log(high)
                self.side[rows], self.aspect[rows] = (wide + high) / 2, wide - high
            pairs.append(_near_pairs((x1, y1, x2, y2), images) + rows.start)
        self.pairs = np.concatenate(pairs) if pairs else np.zeros((0, 2), np.int64)
        self.tiny &= ~self.empty
        usable = np.flatnonzero(~self.empty)
        classes = columns.box_classes[usable].astype(np.int16 if len(columns.classes) < 1 << 15 else np.int32)
        order = np.argsort(classes, kind="stable")  # of 16 bits, numpy sorts by radix
        self.by_class = usable[order], np.flatnonzero(np.diff(classes[order])) + 1
        """The boxes with area, class by class, and where each class but the first begins."""


def _pieces(firsts: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield ranges of images that have about _CHUNK boxes together."""
    images, first = len(firsts) - 1, 0
    while first < images:
        stop = int(np.searchsorted(firsts, firsts[first] + _CHUNK, side="right")) - 1
        stop = min(max(stop, first + 1), images)
        yield first, stop
        first = stop


@np.errstate(over="ignore", invalid="ignore")  # of numbers that float32 cannot square
def _near_pairs(corners: tuple[NDArray[np.float32], ...], images: NDArray[np.int64]) -> Boxes:
    """Return the pairs (p, 2) of boxes of one image whose intersection over union is at least SAME_BOX.

    The boxes of an image are sorted by x1 + y1, which differs by at most 1/9 of width + height for such a pair:
    each is compared with the next ones only until the difference is larger.
    """
    x1, y1, x2, y2 = corners
    count = len(x1)
    where = x1 + y1
    span = np.float32(1.001 * (1 / SAME_BOX - 1)) * (x2 - x1 + y2 - y1) + np.float32(0.25)
    alone = np.ones(count, np.bool_)
    same = images[1:] == images[:-1]
    alone[1:] &= ~same
    alone[:-1] &= ~same
    some = np.flatnonzero(~alone & (x2 > x1) & (y2 > y1))
    # one key for image and place is sorted several times as fast as two: 2^23 steps of 1/8 pixel, half of them below 0
    steps = np.clip(where[some] * 8, -(1 << 22), (1 << 22) - 1).astype(np.int64) + (1 << 22)
    order = some[np.argsort(images[some] << 23 | steps)]
    images, where, span = images[order], where[order], span[order]
    found, at = [np.zeros((0, 2), np.int64)], np.arange(len(order))
    for step in range(1, MOST_NEIGHBORS + 1):
        at = at[: np.searchsorted(at, len(order) - step)]
        near = (images[at + step] == images[at]) & (where[at + step] - where[at] <= span[at])
        at = at[near]
        if not len(at):
            break
        a, b = order[at], order[at + step]
        shared = np.minimum(x2[a], x2[b]) - np.maximum(x1[a], x1[b])
        shared_high = np.minimum(y2[a], y2[b]) - np.maximum(y1[a], y1[b])
        shared = np.maximum(shared, 0) * np.maximum(shared_high, 0)
        union = (x2[a] - x1[a]) * (y2[a] - y1[a]) + (x2[b] - x1[b]) * (y2[b] - y1[b]) - shared
        hit = shared >= np.float32(SAME_BOX) * union
        found.append(np.stack([np.minimum(a, b)[hit], np.maximum(a, b)[hit]], axis=1))
    pairs = np.concatenate(found)
    return np.asarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))], np.int64)


def box_problems(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield the problems of boxes."""
    if "boxes" not in columns.fields or not len(columns.boxes):
        return
    facts = BoxFacts(columns)
    bad = np.flatnonzero(facts.empty | facts.outside)
    if len(bad):
        yield _problem(
            columns, ("box-area", WRONG, "Boxes without area or outside their image"), bad,
            f"{plural(len(bad), 'box has', 'boxes have')} no area, or {'reaches' if len(bad) == 1 else 'reach'} "
            "beyond the image. Losses of such boxes are often not a number. Build the pack again with --boxes clip "
            "or drop.",
        )  # fmt: skip
    yield from _pairs(columns, facts)
    yield from _unusual(columns, facts)
    tiny = np.flatnonzero(facts.tiny)
    if len(tiny):
        tiny = tiny[np.argsort(facts.side[tiny], kind="stable")]
        yield _problem(
            columns, ("tiny-box", CHECK, f"Boxes below {TINY_PX:g} pixels"), tiny,
            f"{plural(len(tiny), 'box is', 'boxes are')} less than {TINY_PX:g} pixels wide or high in the packed "
            "image: a slip of the mouse, or an object that the resize made too small to see.",
        )  # fmt: skip
    cut = np.flatnonzero(facts.cut & ~facts.outside)
    if len(cut):
        share = len(cut) / len(columns.boxes)
        fit = columns.pack.manifest.options.get("fit")
        because = {
            "crop": " This pack was built with --fit crop, which cuts boxes.",
            "pad": " Where the image was padded, its own border is not counted.",
        }.get(str(fit), "")
        yield _problem(
            columns, ("border-box", NOTE, "Boxes that touch the border"), cut,
            f"{share:.1%} of the boxes touch the border of the image ({plural(len(cut), 'box')}). That is common: "
            "their objects are cut off by the camera or by a crop. They are left out where small or flat boxes are "
            f"looked for.{because}",
        )  # fmt: skip


def _problem(
    columns: ProblemColumns,
    head: tuple[str, str, str],
    boxes: Boxes,
    text: str,
    detail: Callable[[int], str] | None = None,
    other: Boxes | None = None,
) -> DataProblem:
    """Return a problem of boxes (or pairs: `other`), the worst first; `head` is its kind, level and title.

    `detail` returns what is said of the nth box; else its class and size are.
    """
    records = columns.records_of(boxes)
    _, first = np.unique(records[:1000], return_index=True)  # examples of different images
    shown = np.sort(first)[:EXAMPLES].tolist()
    text_of = detail or (lambda n: _size_text(columns, boxes[n]))
    pairs = boxes[:, None] if other is None else np.stack([boxes, other], axis=1)
    examples = tuple(columns.example(int(records[n]), text_of(n), pairs[n].tolist()) for n in shown)
    return DataProblem(*head, text, len(boxes), distinct(records), examples)


def _size_text(columns: ProblemColumns, box: int) -> str:
    """Return a box as text: ``car, 34 x 20 px``."""
    x1, y1, x2, y2 = columns.boxes[box].tolist()
    name = f"{_class_of(columns, box)}, " if "box_labels" in columns.fields else ""
    return f"{name}{x2 - x1:.4g} x {y2 - y1:.4g} px"


def _class_of(columns: ProblemColumns, box: int) -> str:
    return columns.class_name(int(columns.box_classes[box]))


def _pairs(columns: ProblemColumns, facts: BoxFacts) -> Iterator[DataProblem]:
    one, other = facts.pairs.T
    differ = columns.box_classes[one] != columns.box_classes[other]
    same_place = f"in the same place (intersection over union of at least {SAME_BOX:g})"
    if differ.any():
        a, b = one[differ], other[differ]
        yield _problem(
            columns, ("two-classes", WRONG, "One object with two classes"), a,
            f"{plural(len(a), 'pair')} of boxes of different classes {same_place}. Unless one class contains the "
            "other, one of the two is wrong.",
            lambda n: f"{_class_of(columns, a[n])} and {_class_of(columns, b[n])}", b,
        )  # fmt: skip
    if not differ.all():
        twice, again = one[~differ], other[~differ]
        yield _problem(
            columns, ("double-box", CHECK, "Objects with two boxes"), twice,
            f"{plural(len(twice), 'pair')} of boxes of one class {same_place}. Most often an object was drawn twice: "
            "remove one of the boxes.",
            None, again,
        )  # fmt: skip


def _unusual(columns: ProblemColumns, facts: BoxFacts) -> Iterator[DataProblem]:
    """Yield boxes that are small, large, flat or tall for their class."""
    sizes, size_away, medians = _away(columns, facts, facts.side, SIZE_FACTOR)
    shapes, shape_away, _ = _away(columns, facts, facts.aspect, ASPECT_FACTOR)
    small, large = (size_away < 0) & ~facts.cut[sizes], size_away > 0  # what is cut is small, and flat or tall
    whole = ~facts.cut[shapes]
    for kind, what, boxes, away, often in (
        ("small-box", "that are small", sizes[small], size_away[small], "a slip of the mouse"),
        ("large-box", "that are large", sizes[large], size_away[large], "a box around several objects"),
        ("aspect-box", "of an extreme shape", shapes[whole], shape_away[whole], "a box around a part of the object"),
    ):
        of_what = "width / height" if kind == "aspect-box" else "size"
        worst = boxes[np.argsort(-np.abs(away), kind="stable")]
        if len(boxes):
            yield _problem(
                columns, (kind, CHECK, f"Boxes {what} for their class"), worst,
                f"{plural(len(boxes), 'box has', 'boxes have')} a {of_what} far from the median of the class (of "
                f"classes with {FEWEST} boxes or more). Often {often}, or a wrong class.",
                partial(_unusual_text, columns, facts, medians, kind, worst),
            )  # fmt: skip


def _unusual_text(
    columns: ProblemColumns, facts: BoxFacts, medians: NDArray[np.float64], kind: str, boxes: Boxes, n: int
) -> str:
    box = int(boxes[n])
    text = _size_text(columns, box)
    if kind == "aspect-box":
        return text
    usual = float(np.exp(medians[int(columns.box_classes[box])]))
    times = float(np.exp(facts.side[box])) / usual
    how = f"{times:.3g} times as large as" if times > 1 else f"{1 / times:.3g} times smaller than"
    return f"{text}: {how} the median ({usual:.3g} x {usual:.3g} px)"


def _away(
    columns: ProblemColumns, facts: BoxFacts, values: NDArray[np.float32], factor: float
) -> tuple[Boxes, NDArray[np.float64], NDArray[np.float64]]:
    """Return the boxes whose value is not usual for their class, how far it is, 1 being the limit; and the medians."""
    order, begins = facts.by_class
    medians = np.zeros(len(columns.classes) + 1)  # the last one: without class
    boxes, away = [np.zeros(0, np.int64)], [np.zeros(0)]
    for its_boxes, its_values in zip(np.split(order, begins), np.split(values[order], begins), strict=True):
        if len(its_boxes) >= FEWEST:
            median, limit = usual(its_values, factor, DEVIATIONS)
            far = np.flatnonzero(np.abs(its_values - median) > limit)
            boxes.append(its_boxes[far])
            away.append(np.asarray((its_values[far] - median) / limit, np.float64))
            medians[columns.box_classes[its_boxes[0]]] = median
    return np.concatenate(boxes), np.concatenate(away), medians


FEWEST_POINTS = 30
"""Images from which their mean shape says what is usual."""
POINT_DEVIATIONS, FACTOR = 5.0, 2.0
"""Standard deviations above the median distance, and times the median, beyond which a shape is unusual."""
_SAMPLE = 20_000
"""Shapes that the mean is made from, spread evenly."""
_POINT_CHUNK = 1 << 16
_LEAST = 0.05
"""Distance from the mean shape, of size 1, that is never unusual."""


def landmark_problems(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield the problems of landmarks."""
    if "landmarks" not in columns.fields:
        return
    lengths = np.asarray(columns.ragged("landmarks").lengths)
    some = np.flatnonzero(lengths)
    if not len(some):
        return
    points = int(np.bincount(lengths[some]).argmax())
    records = some[lengths[some] == points]
    if len(others := some[lengths[some] != points]):
        yield columns.problem(
            ("landmark-count", CHECK, "Images with another number of landmarks"),
            f"{plural(len(others), 'image has', 'images have')} fewer or more than {points} landmarks, as the others "
            "have.",
            others, None, lambda i: plural(int(lengths[i]), "landmark"),
        )  # fmt: skip
    if len(records) >= FEWEST_POINTS and points >= 3:
        yield from _far(columns, records, points)
    yield from _outside(columns, some)


def _shapes(columns: ProblemColumns, records: NDArray[np.int64], points: int) -> NDArray[np.complex128]:
    """Return the landmarks of records as complex numbers, without position and size: (n, points)."""
    column = columns.ragged("landmarks")
    rows = column.offsets[records].astype(np.int64)[:, None] + np.arange(points)
    found = np.asarray(column.values)[rows].astype(np.float64)
    shapes = found[..., 0] + 1j * found[..., 1]
    return _normalize_shapes(shapes - shapes.mean(axis=1, keepdims=True))


def _normalize_shapes(shapes: NDArray[Any]) -> NDArray[np.complex128]:
    size = np.sqrt((np.abs(shapes) ** 2).mean(axis=-1, keepdims=True))
    return np.asarray(shapes / np.where(size > 0, size, 1), np.complex128)


def _rotate_to_mean(shapes: NDArray[np.complex128], mean: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return shapes, each rotated to fit the mean best (Procrustes; in the plane, a product of complex numbers)."""
    turn = (np.conj(shapes) * mean).sum(axis=1, keepdims=True)
    return np.asarray(shapes * np.where(turn == 0, 1, turn / np.maximum(np.abs(turn), 1e-300)))


def _far(columns: ProblemColumns, records: NDArray[np.int64], points: int) -> Iterator[DataProblem]:
    sample = _shapes(columns, records[:: -(-len(records) // _SAMPLE)], points)
    mean = sample[0]
    for _ in range(5):  # converges in a few rounds; the median does not follow a few wrong shapes
        turned = _rotate_to_mean(sample, mean)
        mean = _normalize_shapes(np.median(turned.real, axis=0) + 1j * np.median(turned.imag, axis=0))
    far = np.empty(len(records))
    for first in range(0, len(records), _POINT_CHUNK):
        shapes = _shapes(columns, records[first : first + _POINT_CHUNK], points)
        far[first : first + _POINT_CHUNK] = np.sqrt((np.abs(_rotate_to_mean(shapes, mean) - mean) ** 2).mean(axis=1))
    median = median_of(far)
    limit = max(median + POINT_DEVIATIONS * 1.4826 * median_of(np.abs(far - median)), FACTOR * median, _LEAST)
    chosen = np.flatnonzero(far > limit)
    if len(chosen):
        worst = chosen[np.argsort(-far[chosen], kind="stable")]
        times = dict(zip(records[worst].tolist(), (far[worst] / max(median, 1e-6)).tolist(), strict=True))
        yield columns.problem(
            ("landmark-shape", CHECK, "Landmarks far from the mean shape"),
            f"The landmarks of {plural(len(chosen), 'image')} fit the mean shape badly, after position, size and "
            "rotation are taken out. Often points in another order, one that slipped, or another object.",
            records[worst], None, lambda i: f"{times[i]:.3g} times as far as the median image",
        )  # fmt: skip


def _outside(columns: ProblemColumns, records: NDArray[np.int64]) -> Iterator[DataProblem]:
    column = columns.ragged("landmarks")
    found = np.asarray(column.flat(), np.float32)
    owners = np.repeat(np.arange(len(column)), column.lengths)
    away = ((found < -1) | (found > columns.sizes.T[owners] + 1)).any(axis=1)
    counts = np.bincount(owners[away], minlength=len(column))
    outside = records[counts[records] > 0]
    if len(outside):
        worst = outside[np.argsort(-counts[outside], kind="stable")]
        yield columns.problem(
            ("landmark-outside", CHECK, "Landmarks outside the image"),
            f"{plural(len(outside), 'image has', 'images have')} landmarks outside the image: cut off by a crop, or "
            "wrong.",
            worst, None, lambda i: f"{plural(int(counts[i]), 'point')} outside",
        )  # fmt: skip
