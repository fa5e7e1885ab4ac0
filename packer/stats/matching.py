"""Which predicted boxes are which labelled ones: the one rule of `packer stats --compare` and of the page.

It is that of the confusion matrix of Ultralytics: the predictions with at least the confidence, those with the highest
scores first, each take the label that they overlap most, by at least the IoU and of any class, of those that are left.
A pair of one class is correct, another one is a wrong class. What is left is missed or spurious, or `MISPLACED`, if a
prediction and a label of one class overlap a little (`LEAST_IOU`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, printable
from packer.format.content import FlatColumns
from packer.format.pack import Pack
from packer.model.annotation import Int64, Progress
from packer.repack.index_columns import ignored_boxes

IOU, CONFIDENCE = 0.5, 0.25
LEAST_IOU = 0.1
"""Of a prediction and a label that are one object at different places."""
MOST_PAIRS = 1 << 21
"""Of boxes that are compared at once."""
INSIDE = 0.5
"""Share of a prediction in an ignored region that leaves it out."""
CORRECT, WRONG_CLASS, MISPLACED, UNMATCHED, LEFT_OUT = range(5)
"""What a box is. An unmatched label is missed, an unmatched prediction spurious."""
ERRORS = ("wrong-class", "misplaced", "missed", "spurious")
Float32 = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RaggedBoxes:
    """The boxes of all records, one record after another."""

    boxes: Float32
    """x1, y1, x2, y2 in pixels of the packed image, (m, 4)."""
    labels: Int64
    """Class ids of the pack, (m,); -1: of no class that it has."""
    counts: Int64
    """Of each record, (n,)."""
    scores: Float32 | None = None
    """Of predictions, (m,)."""
    ignored: Flags | None = None
    """Which labels are ignored regions, or of no class, (m,)."""

    @cached_property
    def firsts(self) -> Int64:
        """The row of the first box of each record, and the end, (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def records(self) -> Int64:
        """The record of each box, (m,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


def labelled_boxes(pack: Pack) -> RaggedBoxes:
    """Return the boxes that a pack's labels have. Raise UsageError if it has none."""
    if not {"boxes", "box_labels"} <= {*pack.manifest.fields}:
        raise UsageError(pack.path, "has no labelled boxes to compare with", "build it with labels of boxes")
    columns = FlatColumns(pack)
    firsts, ignored = np.asarray(columns.firsts, np.int64), np.zeros(len(columns.boxes), np.bool_)
    for record, flags in ignored_boxes(pack):
        ignored[firsts[record] : firsts[record + 1]] = flags
    labels = np.asarray(columns.box_labels, np.int64)
    return RaggedBoxes(columns.boxes, labels, np.diff(firsts), ignored=ignored | (labels < 0))


def predicted_boxes(pack: Pack, name: str) -> RaggedBoxes:
    """Return the boxes of a sidecar, with the classes of the pack (`class_ids`)."""
    rows, counts = pack.sidecar(name).boxes(np.arange(len(pack)))
    labels = class_ids(pack, name)[np.clip(rows["label"], 0, None)]
    return RaggedBoxes(np.ascontiguousarray(rows["box"]), labels, counts, np.ascontiguousarray(rows["score"]))


def class_ids(pack: Pack, name: str) -> Int64:
    """Return the pack's id of each class of a sidecar by their names, -1 if it has none of that name.

    Raises:
        UsageError: They have no name in common.
    """
    classes = pack.sidecars[name].classes
    ids = {one: number for number, one in enumerate(pack.classes)}
    found = np.array([ids.get(one, -1) for one in classes], np.int64)
    if not (found >= 0).any():
        problem = f"has no class of {printable(name)}, such as {printable(classes[0]) if classes else 'none'}"
        raise UsageError(pack.path, problem, "attach the predictions again with the names of its classes")
    return found


@dataclass(frozen=True)
class MatchedBoxes:
    """What each box is: one of CORRECT, WRONG_CLASS, MISPLACED, UNMATCHED, LEFT_OUT."""

    truth: RaggedBoxes
    predicted: RaggedBoxes
    of_truth: NDArray[np.int8]
    of_predicted: NDArray[np.int8]
    partner: Int64
    """The row of the label of each prediction, -1 for none, (m,)."""
    iou: Float32
    """With it, (m,); 0 without."""

    @cached_property
    def errors(self) -> dict[str, Int64]:
        """How many errors of each of `ERRORS` each record has, (n,)."""
        n, of_predicted, of_truth = len(self.truth.counts), self.predicted.records, self.truth.records

        def count(records: Int64, flags: Flags) -> Int64:
            return np.bincount(records[flags], minlength=n)

        return {
            "wrong-class": count(of_predicted, self.of_predicted == WRONG_CLASS),
            "misplaced": count(of_predicted, self.of_predicted == MISPLACED),
            "missed": count(of_truth, self.of_truth == UNMATCHED),
            "spurious": count(of_predicted, self.of_predicted == UNMATCHED),
        }

    @cached_property
    def disagreement(self) -> NDArray[np.float64]:
        """How much labels and predictions of each record disagree, (n,).

        A label that is missed or of another class counts 1, a misplaced one what its IoU lacks of 1, and a spurious
        prediction its score.
        """
        assert self.predicted.scores is not None
        weights = np.select(
            [self.of_predicted == UNMATCHED, self.of_predicted == WRONG_CLASS, self.of_predicted == MISPLACED],
            [self.predicted.scores, np.float32(1), 1 - self.iou],
        )
        n = len(self.truth.counts)
        return np.asarray(np.bincount(self.predicted.records, weights, n) + self.errors["missed"], np.float64)

    def cells(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Return label class, predicted class and record of each box of the confusion matrix, and its kind.

        A class is -1 for the background: nothing was labelled, or predicted, there.
        """
        counted = np.flatnonzero(self.of_predicted != LEFT_OUT)
        paired = self.of_predicted[counted] <= WRONG_CLASS
        partners = self.partner[counted]
        labels = np.where(paired, self.truth.labels[partners] if len(self.truth.labels) else -1, -1)
        lost = np.flatnonzero((self.of_truth == UNMATCHED) | (self.of_truth == MISPLACED))
        return (
            np.concatenate([labels, self.truth.labels[lost]]),
            np.concatenate([self.predicted.labels[counted], np.full(len(lost), -1)]),
            np.concatenate([self.predicted.records[counted], self.truth.records[lost]]),
            np.concatenate([self.of_predicted[counted], self.of_truth[lost]]).astype(np.int64),
        )


def match_boxes(
    truth: RaggedBoxes, predicted: RaggedBoxes, iou: float = IOU, confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> MatchedBoxes:  # fmt: skip
    """Match predictions with labels by the rule of this module.

    Args:
        truth: The labels. Ignored regions are left out, and predictions that are half inside of one.
        predicted: The predictions, of the same records. Those of no class of the pack are left out.
        iou: The least overlap of a pair.
        confidence: The least score of a prediction.
        progress: Receives the number of records.
    """
    assert predicted.scores is not None
    ignored = np.zeros(len(truth.boxes), np.bool_) if truth.ignored is None else truth.ignored
    found = MatchedBoxes(
        truth, predicted,
        np.where(ignored, LEFT_OUT, UNMATCHED).astype(np.int8),
        np.where((predicted.scores >= confidence) & (predicted.labels >= 0), UNMATCHED, LEFT_OUT).astype(np.int8),
        np.full(len(predicted.boxes), -1, np.int64), np.zeros(len(predicted.boxes), np.float32),
    )  # fmt: skip
    if progress is not None:
        progress.stage("matching", len(truth.counts), "records")
    for first, stop in _chunks(truth.counts * predicted.counts):
        _match_records(found, first, stop, iou)
        if progress is not None:
            progress.advance(stop - first)
    return found


def _chunks(pairs: Int64) -> Iterator[tuple[int, int]]:
    """Yield ranges of records with about MOST_PAIRS pairs."""
    ends, first = np.cumsum(pairs), 0
    while first < len(pairs):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + MOST_PAIRS, "right")))
        yield first, stop
        first = stop


def _match_records(found: MatchedBoxes, first: int, stop: int, iou: float) -> None:
    truth, predicted = found.truth, found.predicted
    rows = np.arange(predicted.firsts[first], predicted.firsts[stop])
    rows = rows[found.of_predicted[rows] == UNMATCHED]
    owners = predicted.records[rows]
    counts = truth.counts[owners]
    p = np.repeat(rows, counts)
    t = np.arange(len(p)) - np.repeat(np.cumsum(counts) - counts - truth.firsts[owners], counts)
    shared = _shared(predicted.boxes[p], truth.boxes[t])
    near = shared > 0
    p, t, shared = p[near], t[near], shared[near]
    areas = _areas(predicted.boxes[p])
    overlap = shared / np.maximum(areas + _areas(truth.boxes[t]) - shared, 1e-9)
    left_out = found.of_truth[t] == LEFT_OUT
    _pair(found, p[~left_out], t[~left_out], overlap[~left_out], iou)
    inside = p[left_out & (shared > INSIDE * areas)]
    found.of_predicted[inside[found.of_predicted[inside] == UNMATCHED]] = LEFT_OUT
    _pair_misplaced(found, p, t, overlap)


def _pair(found: MatchedBoxes, p: Int64, t: Int64, overlap: Any, iou: float) -> None:
    enough = overlap >= iou
    p, t, overlap = _best(found, p[enough], t[enough], overlap[enough])
    same = found.predicted.labels[p] == found.truth.labels[t]
    found.of_predicted[p] = found.of_truth[t] = np.where(same, CORRECT, WRONG_CLASS)
    found.partner[p], found.iou[p] = t, overlap


def _pair_misplaced(found: MatchedBoxes, p: Int64, t: Int64, overlap: Any) -> None:
    """Pair what is left, of the same class, and overlaps a little."""
    is_left = (found.of_predicted[p] == UNMATCHED) & (found.of_truth[t] == UNMATCHED) & (overlap >= LEAST_IOU)
    is_left &= found.predicted.labels[p] == found.truth.labels[t]
    p, t, overlap = _best(found, p[is_left], t[is_left], overlap[is_left])
    found.of_predicted[p] = found.of_truth[t] = MISPLACED
    found.partner[p], found.iou[p] = t, overlap


def _best(found: MatchedBoxes, p: Int64, t: Int64, overlap: Any) -> tuple[Int64, Int64, Any]:
    """Return the pairs of predictions that take, in the order of their scores, the best label that is left.

    All records take their turns at once.
    """
    if not len(p):
        return p, t, overlap
    turns = _turns(found, p)
    order = np.lexsort((t, -overlap, p, turns))
    bounds = np.searchsorted(turns[order], np.arange(turns.max() + 2))
    taken, base, chosen = np.zeros(int(t.max() - t.min()) + 1, np.bool_), t.min(), []
    for first, stop in pairwise(bounds.tolist()):
        rows = order[first:stop]
        rows = rows[~taken[t[rows] - base]]
        _, firsts = np.unique(p[rows], return_index=True)
        chosen.append(rows[firsts])
        taken[t[chosen[-1]] - base] = True
    pairs = np.concatenate(chosen)
    return p[pairs], t[pairs], overlap[pairs]


def _turns(found: MatchedBoxes, p: Int64) -> Int64:
    """Return which turn the prediction of each pair has in its record: 0 is that of the highest score."""
    assert found.predicted.scores is not None
    rows, places = np.unique(p, return_inverse=True)
    records = found.predicted.records[rows]
    order = np.lexsort((rows, -found.predicted.scores[rows], records))
    starts = np.flatnonzero(np.diff(records[order], prepend=-1))
    turns = np.empty(len(rows), np.int64)
    turns[order] = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    return turns[places.reshape(-1)]


def _shared(a: Float32, b: Float32) -> NDArray[np.float64]:
    """Return the area that boxes have in common, in square pixels."""
    sides = np.minimum(a[:, 2:], b[:, 2:]).astype(np.float64) - np.maximum(a[:, :2], b[:, :2])
    sides = np.maximum(sides, 0)
    return np.asarray(sides[:, 0] * sides[:, 1])


def _areas(boxes: Float32) -> NDArray[np.float64]:
    sides = boxes[:, 2:].astype(np.float64) - boxes[:, :2]
    return np.asarray(sides[:, 0] * sides[:, 1])
