"""AP and AR of predicted boxes, by faster-coco-eval or pycocotools, whichever is installed: packer computes none."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import numpy as np

from packer.errors import NotInstalled
from packer.stats.matching import RaggedBoxes
from packer.system.machine import install_command

EVALUATORS = {
    "faster-coco-eval": ("faster_coco_eval", "COCO", "COCOeval_faster"),
    "pycocotools": ("pycocotools.coco", "COCO", "COCOeval"),
}
"""Distribution -> module of COCO, its name, and that of the evaluator."""


@dataclass(frozen=True)
class AveragePrecision:
    """AP and AR of COCO, from 0 to 1; -1 of what has no labels."""

    evaluator: str
    """What computed them: ``pycocotools 2.0.11``."""
    ap: float
    """Mean over classes, and over IoU 0.5 to 0.95."""
    ap50: float
    ap75: float
    ar: float
    """Mean recall with 100 boxes an image."""
    classes: tuple[tuple[float, float], ...]
    """AP and AP at IoU 0.5 of each class."""


def average_precision(truth: RaggedBoxes, predicted: RaggedBoxes, classes: int) -> AveragePrecision:
    """Let the installed library judge predicted boxes, whatever their score.

    Args:
        truth: The labels. Ignored regions are given as crowds.
        predicted: The predictions, of the same records.
        classes: The number of classes.

    Raises:
        NotInstalled: There is no such library.
    """
    evaluator, coco_class, eval_class = _evaluator()
    with contextlib.redirect_stdout(io.StringIO()):  # they print tables and times
        labelled = coco_class()
        labelled.dataset = _dataset(truth, classes)
        labelled.createIndex()
        rows = _results(predicted)
        judged = eval_class(labelled, labelled.loadRes(rows) if len(rows) else _empty(coco_class, labelled), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    precision = judged.eval["precision"][:, :, :, 0, -1]
    each = [(_mean(precision[:, :, number]), _mean(precision[0, :, number])) for number in range(classes)]
    ap, ap50, ap75, ar = (float(judged.stats[number]) for number in (0, 1, 2, 8))
    return AveragePrecision(evaluator, ap, ap50, ap75, ar, tuple(each))


def _evaluator() -> tuple[str, Any, Any]:
    for name, (module, coco, evaluator) in EVALUATORS.items():
        with contextlib.suppress(ImportError):
            of = import_module(module)
            there = of if hasattr(of, evaluator) else import_module(module.replace(".coco", ".cocoeval"))
            return f"{name} {metadata.version(name)}", getattr(of, coco), getattr(there, evaluator)
    raise NotInstalled("AP", "needs faster-coco-eval or pycocotools", install_command("eval"))


def _dataset(truth: RaggedBoxes, classes: int) -> dict[str, Any]:
    corners = truth.boxes.astype(np.float64)
    sides = corners[:, 2:] - corners[:, :2]
    ignored = np.zeros(len(corners), np.bool_) if truth.ignored is None else truth.ignored
    known = np.flatnonzero(truth.labels >= 0)
    columns = (truth.records, truth.labels, corners[:, :2], sides, ignored)
    rows = zip(*(column[known].tolist() for column in columns), strict=True)
    return {
        "info": {},
        "images": [{"id": record + 1} for record in range(len(truth.counts))],
        "categories": [{"id": number, "name": str(number)} for number in range(classes)],
        "annotations": [
            {
                "id": number, "image_id": record + 1, "category_id": label, "bbox": [*corner, *side],
                "area": side[0] * side[1], "iscrowd": int(crowd),
            }
            for number, (record, label, corner, side, crowd) in enumerate(rows, 1)
        ],
    }  # fmt: skip


def _results(predicted: RaggedBoxes) -> list[dict[str, Any]]:
    assert predicted.scores is not None
    corners = predicted.boxes.astype(np.float64)
    known = np.flatnonzero(predicted.labels >= 0)
    columns = (predicted.records, predicted.labels, corners[:, :2], corners[:, 2:] - corners[:, :2], predicted.scores)
    rows = zip(*(column[known].tolist() for column in columns), strict=True)
    return [
        {"image_id": record + 1, "category_id": label, "bbox": [*corner, *side], "score": score}
        for record, label, corner, side, score in rows
    ]


def _empty(coco_class: Any, labelled: Any) -> Any:
    made = coco_class()
    made.dataset = {**labelled.dataset, "annotations": []}
    made.createIndex()
    return made


def _mean(precision: Any) -> float:
    known = precision[precision > -1]
    return float(known.mean()) if known.size else -1.0
