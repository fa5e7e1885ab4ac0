"""What the page shows of predictions: sets of records for its grid, the confusion matrix, and what is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from packer.errors import UsageError, printable
from packer.format.pack import Pack
from packer.model.annotation import Int64, Progress
from packer.stats.comparison import (
    Comparison,
    compare_boxes,
    compare_labels,
    compare_masks,
    kind_of,
    record_iou,
)
from packer.stats.matching import (
    CONFIDENCE,
    CORRECT,
    IOU,
    LEFT_OUT,
    MISPLACED,
    UNMATCHED,
    WRONG_CLASS,
    MatchedBoxes,
)
from packer.view.catalog import RecordSet
from packer.view.charts import PixelStats

MOST_MATRIX = 30
"""Classes of a matrix; of more, those that are confused most."""
MOST_PAIRS = 400
KEPT = 3
"""Comparisons that are kept: of a pack with a million records each takes some hundred megabytes."""
TITLES = {
    "wrong-class": "of the wrong class", "misplaced": "misplaced", "missed": "missed", "spurious": "spurious",
    "correct": "correct", "worst": "by disagreement", "wrong": "wrong", "unsure": "the least sure first",
}  # fmt: skip


KINDS_OF_BOXES = {
    CORRECT: "correct", WRONG_CLASS: "wrong class", MISPLACED: "misplaced", UNMATCHED: "spurious", LEFT_OUT: "left out",
}  # fmt: skip
"""What the page calls a box; a label is missed, not spurious."""


class ComparedRecords(ABC):
    """A comparison, and the records in it."""

    found: Comparison

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of its sets."""

    @abstractmethod
    def records(self, name: str) -> Int64:
        """Return the records of a set, the worst first."""

    def marked(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of a tile or record with what is wrong in it."""
        return facts

    @abstractmethod
    def cell(self, label: int, predicted: int) -> Int64:
        """Return the records of a cell of the confusion matrix, those with the most first."""


class ComparedBoxes(ComparedRecords):
    """Predicted boxes."""

    def __init__(self, pack: Pack, name: str, iou: float, confidence: float, progress: Progress) -> None:
        self.found, self._matched = compare_boxes(pack, name, iou, confidence, progress)
        self._cells = self._matched.cells()

    def names(self) -> list[str]:
        return ["worst", *self._matched.errors, "correct"]

    def records(self, name: str) -> Int64:
        matched: MatchedBoxes = self._matched
        worst = matched.disagreement
        if name in matched.errors:
            counts = matched.errors[name]
            there = np.flatnonzero(counts)
            return there[np.lexsort((-worst[there], -counts[there]))]
        if name == "correct":
            return np.flatnonzero((worst == 0) & (matched.truth.counts > 0))
        there = np.flatnonzero(worst)
        return there[np.argsort(-worst[there], kind="stable")]

    def marked(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return facts with the ``kinds`` of labels and of predictions, names of KINDS_OF_BOXES."""
        record, of = facts["record"], self._matched
        (rows, kinds), (labels, of_labels) = (
            (slice(*side.firsts[record : record + 2].tolist()), codes)
            for side, codes in ((of.predicted, of.of_predicted), (of.truth, of.of_truth))
        )
        assert of.predicted.scores is not None
        order = np.argsort(-of.predicted.scores[rows], kind="stable")  # as `predicted_facts` has them
        said = [KINDS_OF_BOXES[code] for code in kinds[rows][order].tolist()]
        predictions = [
            {**one, "kinds": said[: len(one["boxes"])]} if one["name"] == self.found.name else one
            for one in facts.get("predictions", ())
        ]
        names = ["missed" if code == UNMATCHED else KINDS_OF_BOXES[code] for code in of_labels[labels].tolist()]
        return {**facts, "predictions": predictions, "kinds": names[: len(facts.get("boxes", ()))]}

    def cell(self, label: int, predicted: int) -> Int64:
        labels, said, records, _ = self._cells
        return _most(records[(labels == label) & (said == predicted)])


class ComparedLabels(ComparedRecords):
    """Predicted classes of images."""

    def __init__(self, pack: Pack, name: str, iou: float, confidence: float, progress: Progress) -> None:
        self.found, (self._labels, self._said, self._table) = compare_labels(pack, name)

    def names(self) -> list[str]:
        return ["wrong", "unsure", "correct"]

    @cached_property
    def margin(self) -> Any:
        """How much more probable the predicted class is than the next one; the score without probabilities."""
        if self._table.shape[1] < 4:
            return self._table[:, 1]
        best = np.partition(self._table[:, 2:], -2, axis=1)[:, -2:]
        return best[:, 1] - best[:, 0]

    def records(self, name: str) -> Int64:
        known = self._labels >= 0
        if name == "unsure":
            there = np.flatnonzero(known)
            return there[np.argsort(self.margin[there], kind="stable")]
        there = np.flatnonzero(known & ((self._labels == self._said) == (name == "correct")))
        return there[np.argsort(-self._table[there, 1], kind="stable")]

    def cell(self, label: int, predicted: int) -> Int64:
        there = np.flatnonzero((self._labels == label) & (self._said == predicted))
        return there[np.argsort(-self._table[there, 1], kind="stable")]


class ComparedMasks(ComparedRecords):
    """Predicted masks."""

    def __init__(self, pack: Pack, name: str, iou: float, confidence: float, progress: Progress) -> None:
        self.found, self._pairs = compare_masks(pack, name, progress)
        self._iou = record_iou(self._pairs)

    def names(self) -> list[str]:
        return ["worst"]

    def records(self, name: str) -> Int64:
        there = np.flatnonzero(~np.isnan(self._iou))
        return there[np.argsort(self._iou[there], kind="stable")]

    def cell(self, label: int, predicted: int) -> Int64:
        pixels = np.array(
            [int(counts[(a == label) & (b == predicted)].sum()) for a, b, counts in self._pairs], np.int64
        )
        there = np.flatnonzero(pixels)
        return there[np.argsort(-pixels[there], kind="stable")]


KINDS: dict[str, Callable[..., ComparedRecords]] = {
    "boxes": ComparedBoxes, "labels": ComparedLabels, "mask": ComparedMasks,
}  # fmt: skip


def _most(records: Int64) -> Int64:
    """Return each record once, those that are there most often first."""
    found, counts = np.unique(records, return_counts=True)
    return found[np.argsort(-counts, kind="stable")]


Key = tuple[str, float, float]


class PredictionSets:
    """The comparisons of a pack's predictions, each made in the background when it is first asked for."""

    def __init__(self, pack: Pack) -> None:
        self._pack, self._lock = pack, Lock()
        self._jobs: OrderedDict[Key, PixelStats] = OrderedDict()
        self._compared: dict[Key, ComparedRecords] = {}

    def facts(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return how far a comparison is, or what it has found, as `PixelStats.facts`."""
        key = self._key(given.get("name", ""), given.get("iou", str(IOU)), given.get("confidence", str(CONFIDENCE)))
        with self._lock:
            job = self._jobs.setdefault(key, PixelStats(self._pack, lambda pack, progress: self._facts(key, progress)))
            self._jobs.move_to_end(key)
            while len(self._jobs) > KEPT:
                self._compared.pop(self._jobs.popitem(last=False)[0], None)
        return job.facts(True)

    def _key(self, name: str, iou: str, confidence: str) -> Key:
        kind_of(self._pack, name)
        try:
            numbers = float(iou), float(confidence)
        except ValueError:
            numbers = -1.0, -1.0
        if not all(0 <= number <= 1 for number in numbers):
            raise UsageError("IoU and confidence", f"must be from 0 to 1, got {iou[:20]!r} and {confidence[:20]!r}")
        return (name, *numbers)

    def _of(self, key: Key, progress: Progress) -> ComparedRecords:
        with self._lock:
            found = self._compared.get(key)
        if found is None:
            found = KINDS[kind_of(self._pack, key[0])](self._pack, *key, progress)
            with self._lock:
                self._compared[key] = found
                for other in [one for one in self._compared if one != key][: -KEPT + 1 or None]:
                    if len(self._compared) > KEPT:
                        del self._compared[other]
        return found

    def _facts(self, key: Key, progress: Progress) -> dict[str, Any]:
        of = self._of(key, progress)
        found = asdict(of.found)
        ids = _confused_most(of.found)
        matrix = np.zeros((len(ids) + 1, len(ids) + 1), np.int64)
        places = {number: place for place, number in enumerate([*ids, -1])}
        for label, predicted, count in of.found.confusion:
            if label in places and predicted in places:
                matrix[places[label], places[predicted]] = count
        for one in found["classes"]:
            one["name"] = printable(one["name"])
        found["classes"] = [
            {"id": number, **one} for number, one in enumerate(found["classes"]) if one["labels"] or one["predicted"]
        ]
        found["confusion"] = [pair for pair in of.found.confusion if pair[0] != pair[1]][:MOST_PAIRS]
        sets = [{"name": name, "title": TITLES[name], "records": len(of.records(name))} for name in of.names()]
        return {"found": {**found, "matrix": {"ids": [*ids, -1], "counts": matrix.tolist()}, "sets": sets}}

    def marked(self, facts: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
        """Return the facts of a tile or record with what is wrong in it, by the first of these sets of predictions."""
        mine = next((name.partition(":")[2].split(";") for name in sets if name.startswith("predictions:")), None)
        if mine is None or len(mine) != 4 or "error" in facts or "box" in facts:
            return facts
        return self._of(self._key(mine[0], *mine[2:]), Progress()).marked(facts)

    def set_of(self, text: str) -> RecordSet:
        """Return a set of the catalog: ``predictions:NAME;SET;IOU;CONFIDENCE``, or with ``LABEL>PREDICTED`` for a cell.

        Raises:
            UsageError: There is none of this name.
        """
        parts = text.split(";")
        if len(parts) != 4:
            raise UsageError("set", f"predictions:{printable(text[:40])} is not predictions:NAME;SET;IOU;CONFIDENCE")
        name, what, iou, confidence = parts
        try:
            key = self._key(name, iou, confidence)
        except UsageError as error:
            raise UsageError("set", f"predictions:{printable(text[:40])}: {error}") from None
        of = self._of(key, Progress())
        at = f" (IoU {key[1]:g}, confidence {key[2]:g})" if of.found.kind == "boxes" else ""
        if what in of.names():
            return RecordSet(f"{name}: {TITLES[what]}{at}", of.records(what))
        label, arrow, predicted = what.partition(">")
        try:
            ids = int(label), int(predicted)
        except ValueError:
            ids = -2, -2
        names = [one.name for one in of.found.classes]
        if not arrow or not all(-1 <= number < len(names) for number in ids):
            raise UsageError("set", f"predictions:{printable(text[:40])}: {name} has {', '.join(of.names())}")
        first, second = (printable(names[number]) if number >= 0 else "nothing" for number in ids)
        return RecordSet(f"{name}: {first} → {second}{at}", of.cell(*ids))


def _confused_most(found: Comparison) -> list[int]:
    """Return the classes of the matrix, in the order of their ids."""
    there = [number for number, one in enumerate(found.classes) if one.labels or one.predicted]
    if len(there) <= MOST_MATRIX:
        return there
    ids: dict[int, None] = {}
    for label, predicted, _ in found.confusion:
        if label != predicted and -1 not in (label, predicted):
            ids |= {label: None, predicted: None}
    ids |= dict.fromkeys(sorted(there, key=lambda number: -found.classes[number].labels))
    return sorted([*ids][:MOST_MATRIX])
