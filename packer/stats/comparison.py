"""Compares what was attached as predictions with the labels of a pack: boxes, classes of images, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, plural, printable
from packer.format.pack import Pack
from packer.model.annotation import Int64, Mask, Progress
from packer.packing.write_shard import ahead
from packer.repack.attach import COMPARED
from packer.stats.average_precision import AveragePrecision, average_precision
from packer.stats.matching import (
    CONFIDENCE,
    IOU,
    LEFT_OUT,
    MatchedBoxes,
    class_ids,
    labelled_boxes,
    match_boxes,
    predicted_boxes,
)
from packer.system import usable_cores

TOP = 5


@dataclass(frozen=True)
class ComparedClass:
    """A class in a comparison."""

    name: str
    labels: int
    """Boxes, images or pixels that are labelled so."""
    predicted: int
    """That are predicted so."""
    correct: int
    precision: float
    recall: float
    f1: float
    iou: float | None = None
    """Of the pixels of masks: what both have, of what one of them has."""
    ap: float | None = None
    """Of boxes; -1 without labels."""
    ap50: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What predictions are worth. Shares are from 0 to 1."""

    path: str
    name: str
    """What they were attached as."""
    kind: str
    """boxes, labels or mask."""
    records: int
    labels: int
    """Boxes, images or pixels that are labelled, without ignored ones."""
    predicted: int
    """That are predicted, of those boxes with at least the confidence."""
    correct: int
    precision: float
    """Of boxes and images: over all of them. Of masks: the mean of the classes."""
    recall: float
    f1: float
    classes: tuple[ComparedClass, ...]
    confusion: tuple[tuple[int, int, int], ...]
    """Class of the label, predicted class and how many, the most first; -1 is the background: nothing, or no class."""
    notes: tuple[str, ...] = ()
    accuracy: float | None = None
    """Of images, and of the pixels of masks."""
    top5: float | None = None
    """Share of images whose class is among the five most probable, if probabilities were attached."""
    mean_iou: float | None = None
    """Of the classes of masks that are labelled or predicted somewhere."""
    iou: float | None = None
    """The least overlap of boxes that are one object."""
    confidence: float | None = None
    """The least score of boxes that count; AP counts all."""
    errors: dict[str, int] | None = None
    """Of boxes: how many are of the wrong class, misplaced, missed, spurious."""
    average: AveragePrecision | None = None


def compare(
    pack: Pack, name: str, iou: float = IOU, confidence: float = CONFIDENCE, progress: Progress | None = None,
    average: bool = True,
) -> Comparison:  # fmt: skip
    """Compare predictions with the labels of a pack.

    Args:
        pack: The pack.
        name: What the predictions were attached as (`packer.attach`).
        iou: The least overlap of boxes that are one object.
        confidence: The least score of boxes, for all but AP.
        progress: Receives the number of records.
        average: Whether to compute AP, which needs faster-coco-eval or pycocotools.

    Returns:
        The comparison. Boxes are matched by the rule in `packer.stats.matching`.

    Raises:
        UsageError: The pack has no such predictions, or no labels of their kind.
        NotInstalled: There is nothing that computes AP.
        DamagedPack: A file was altered.
    """
    kind = kind_of(pack, name)
    for what, value in (("iou", iou), ("confidence", confidence)):
        if not 0 <= value <= 1:
            raise UsageError(what, f"must be from 0 to 1, got {value:g}")
    progress = progress or Progress()
    if kind == "boxes":
        return compare_boxes(pack, name, iou, confidence, progress, average)[0]
    return (compare_labels(pack, name) if kind == "labels" else compare_masks(pack, name, progress))[0]


def kind_of(pack: Pack, name: str) -> str:
    """Return the kind of what was attached. Raise UsageError if it is nothing that is compared."""
    facts = pack.sidecars.get(name)
    if facts is None or facts.kind not in COMPARED:
        there = ", ".join(compared(pack)) or "none"
        problem = f"has no predictions called {printable(name)}"
        raise UsageError(
            pack.path, problem, f"it has {there}; packer attach PACK WHERE --as NAME --kind boxes adds some"
        )
    return facts.kind


def compared(pack: Pack) -> list[str]:
    """Return the names of what is attached to a pack and can be compared with its labels."""
    fields, masks = pack.manifest.fields, pack.manifest.masks
    has = {"boxes": "box_labels" in fields, "labels": "label" in fields, "mask": bool(masks)}
    return [name for name, facts in pack.sidecars.items() if has.get(facts.kind)]


def compare_boxes(
    pack: Pack, name: str, iou: float, confidence: float, progress: Progress, average: bool = False
) -> tuple[Comparison, MatchedBoxes]:
    """Compare boxes as `compare` does, and return what each box is, too."""
    truth, predicted = labelled_boxes(pack), predicted_boxes(pack, name)
    found = match_boxes(truth, predicted, iou, confidence, progress)
    ap = average_precision(truth, predicted, len(pack.classes)) if average else None
    notes = []
    if unknown := int((predicted.labels < 0).sum()):
        notes.append(f"{plural(unknown, 'predicted box', 'predicted boxes')} of classes that the pack lacks left out")
    if ignored := int((found.of_truth == LEFT_OUT).sum()):
        notes.append(f"{plural(ignored, 'ignored region')}: what is predicted in them does not count")
    rows, columns, _, _ = found.cells()
    classes, sums = _counted(pack.classes, rows, columns, ap)
    errors = {kind: int(counts.sum()) for kind, counts in found.errors.items()}
    made = Comparison(
        pack.path, name, "boxes", len(pack), *sums, classes, confusion_of(rows, columns), tuple(notes),
        iou=iou, confidence=confidence, errors=errors, average=ap,
    )  # fmt: skip
    return made, found


def compare_labels(pack: Pack, name: str) -> tuple[Comparison, tuple[Int64, Int64, NDArray[np.float32]]]:
    """Compare classes as `compare` does, and return `labels_of`, too."""
    rows, columns, table = labels_of(pack, name)
    known = rows >= 0
    notes = () if known.all() else (f"{plural(int((~known).sum()), 'image')} without a class left out",)
    classes, sums = _counted(pack.classes, rows[known], columns[known])
    top5 = None
    if table.shape[1] > 2:
        ids = class_ids(pack, name)
        best = np.argsort(-table[known, 2:], axis=1, kind="stable")[:, :TOP]
        top5 = float((ids[best] == rows[known, None]).any(axis=1).mean()) if known.any() else 0.0
    made = Comparison(
        pack.path, name, "labels", len(pack), *sums, classes, confusion_of(rows[known], columns[known]), notes,
        accuracy=sums[2] / max(1, sums[0]), top5=top5,
    )  # fmt: skip
    return made, (rows, columns, table)


def labels_of(pack: Pack, name: str) -> tuple[Int64, Int64, NDArray[np.float32]]:
    """Return the class of each image, -1 for none, its predicted class, and the rows of the sidecar.

    Raises:
        UsageError: Images have no labels.
    """
    if "label" not in pack.manifest.fields:
        raise UsageError(pack.path, "has no classes of images to compare with", "build it with labels of images")
    table = pack.sidecar(name).read(np.arange(len(pack)))
    predicted = class_ids(pack, name)[np.clip(table[:, 0].astype(np.int64), 0, None)]
    return np.asarray(pack.column("label"), np.int64), predicted, table


def _counted(
    names: Sequence[str], rows: Int64, columns: Int64, ap: AveragePrecision | None = None, iou: bool = False,
    weights: Any = None,
) -> tuple[tuple[ComparedClass, ...], tuple[int, int, int, float, float, float]]:  # fmt: skip
    """Return the classes, and labels, predictions and correct ones of all, with precision, recall and F1."""

    def count(ids: Int64, among: Any) -> Int64:
        return np.bincount(ids[among], None if weights is None else weights[among], len(names)).astype(np.int64)

    labels, predicted = count(rows, rows >= 0), count(columns, columns >= 0)
    correct = count(rows, (rows >= 0) & (rows == columns))
    found = []
    numbers = zip(names, labels.tolist(), predicted.tolist(), correct.tolist(), strict=True)
    for number, (name, of, said, right) in enumerate(numbers):
        own = (None, None) if ap is None else ap.classes[number]
        shared = right / max(1, of + said - right) if iou else None
        found.append(ComparedClass(name, of, said, right, *_rates(of, said, right), shared, *own))
    sums = int(labels.sum()), int(predicted.sum()), int(correct.sum())
    return tuple(found), (*sums, *_rates(*sums))


def _rates(labels: int, predicted: int, correct: int) -> tuple[float, float, float]:
    """Return precision, recall and F1; 0 where there is nothing."""
    return correct / max(1, predicted), correct / max(1, labels), 2 * correct / max(1, labels + predicted)


def confusion_of(rows: Int64, columns: Int64, weights: Any = None) -> tuple[tuple[int, int, int], ...]:
    """Return each pair of a label class and a predicted class with its count, the most common first."""
    width = int(max(rows.max(initial=-1), columns.max(initial=-1))) + 2
    codes, places = np.unique((rows + 1) * width + columns + 1, return_inverse=True)
    counts = np.bincount(places.reshape(-1), weights, len(codes)).astype(np.int64)
    order = np.argsort(-counts, kind="stable")
    found = zip(codes[order] // width - 1, codes[order] % width - 1, counts[order], strict=True)
    return tuple((int(a), int(b), int(count)) for a, b, count in found)


# -- masks


def compare_masks(pack: Pack, name: str, progress: Progress) -> tuple[Comparison, list[tuple[Int64, Int64, Int64]]]:
    """Compare masks as `compare` does, and return `mask_pairs`, too."""
    names, per_record = mask_pairs(pack, name, progress)
    rows, columns, counts = (
        np.concatenate(each) for each in zip(*((r[0], r[1], r[2]) for r in per_record), strict=True)
    )
    classes, sums = _counted(names, rows, columns, iou=True, weights=counts)
    there = [one for one in classes if one.labels or one.predicted]

    def mean(of: Callable[[ComparedClass], Any]) -> float:
        return float(sum(map(of, there))) / max(1, len(there))

    made = Comparison(
        pack.path, name, "mask", len(pack), *sums[:3],
        mean(lambda one: one.precision), mean(lambda one: one.recall), mean(lambda one: one.f1), classes,
        confusion_of(rows, columns, counts), accuracy=sums[2] / max(1, sums[0]), mean_iou=mean(lambda one: one.iou),
    )  # fmt: skip
    return made, per_record


def mask_pairs(
    pack: Pack, name: str, progress: Progress | None = None
) -> tuple[tuple[str, ...], list[tuple[Int64, Int64, Int64]]]:
    """Return the names of classes, and label, prediction and count of the pixels of each record.

    Pixels whose label is ignored, and records without a mask, have none. A predicted id that no label has a name for
    is -1.

    Raises:
        UsageError: The pack has no masks, or several kinds.
    """
    masks = pack.manifest.masks
    if not masks:
        raise UsageError(pack.path, "has no masks to compare with", "build it with masks")
    of = "mask" if "mask" in masks else next(iter(masks))
    facts, said = masks[of], pack.sidecars[name]
    names = facts.classes or said.classes
    if facts.classes and said.classes:
        ids = {one: number for number, one in enumerate(facts.classes)}
        table = np.array([ids.get(one, -1) for one in said.classes], np.int64)
    else:  # without names, ids are alike
        table = np.arange(len(names) or 1 << (16 if "uint16" in (facts.dtype, said.dtype) else 8))
    names = names or tuple(map(str, range(len(table))))

    def pairs(records: range) -> list[tuple[Int64, Int64, Int64]]:
        read = [(pack.part(i, of), pack.part(i, name)) for i in records]
        return [_pairs_in(*both, facts.ignore, table, said.ignore, len(names)) for both in read]

    found, progress = [], progress or Progress()
    progress.stage("comparing", len(pack), "masks")
    chunks = (range(first, min(first + 64, len(pack))) for first in range(0, len(pack), 64))
    for some in ahead(pairs, chunks, usable_cores()):
        found += some
        progress.advance(len(some))
    return names, found


def _pairs_in(
    mask: Mask | None, predicted: Mask, ignore: int | None, table: Int64, said_ignore: int | None, classes: int
) -> tuple[Int64, Int64, Int64]:
    """Return label, prediction and count of the pixels of one record; -1 is an id that has no class."""
    none = np.zeros(0, np.int64)
    if mask is None:
        return none, none, none
    bits = 8 * predicted.itemsize  # few, for as many numbers are counted as there are codes
    codes = mask.ravel().astype(np.int64) << bits | predicted.ravel()
    if mask.dtype == np.uint8:  # ten times as fast as a sort
        counts = np.bincount(codes)
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(codes, return_counts=True)
    rows, said = values >> bits, values & (1 << bits) - 1
    columns = np.append(table, -1)[np.where(said < len(table), said, len(table))]
    columns[said == said_ignore] = -1
    kept = np.ones(len(rows), np.bool_) if ignore is None else rows != ignore
    rows = np.where(rows < classes, rows, -1)
    return rows[kept], columns[kept], counts[kept]


def record_iou(pairs: Sequence[tuple[Int64, Int64, Int64]]) -> NDArray[np.float64]:
    """Return the mean IoU of the classes in each record, (n,); NaN without a mask."""
    found = np.full(len(pairs), np.nan)
    for record, (rows, columns, counts) in enumerate(pairs):
        classes = np.union1d(rows, columns[columns >= 0])
        if len(classes):
            shares = []
            for one in classes:
                either = counts[(rows == one) | (columns == one)].sum()
                shares.append(counts[(rows == one) & (columns == one)].sum() / either)
            found[record] = np.mean(shares)
    return found
