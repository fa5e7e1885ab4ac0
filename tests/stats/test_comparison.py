"""Predictions against labels: the rule by which boxes are matched, AP, classes of images, and masks."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_boxes import boxes_of_records
from drawn_masks import picture, write_files
from drawn_predictions import NAMES, as_results, build_set, labels_of, perturbed, write_results
from running import good, run

from packer import attach, open_pack
from packer.errors import NotInstalled, UsageError
from packer.stats import average_precision, matching
from packer.stats.comparison import compare, compared, record_iou
from packer.stats.matching import (
    CORRECT,
    LEFT_OUT,
    MISPLACED,
    UNMATCHED,
    WRONG_CLASS,
    RaggedBoxes,
    match_boxes,
)

A = (0, 0, 10, 10)


def boxes_of(
    *records: list[tuple[Any, ...]], predicted: bool = False, ignored: list[bool] | None = None
) -> RaggedBoxes:
    """Boxes of some records: (box, class) or (box, class, score)."""
    flat = [row for rows in records for row in rows]
    return RaggedBoxes(
        np.array([row[0] for row in flat], np.float32).reshape(-1, 4),
        np.array([row[1] for row in flat], np.int64),
        np.array(list(map(len, records)), np.int64),
        np.array([row[2] for row in flat], np.float32) if predicted else None,
        np.array(ignored, np.bool_) if ignored is not None else None,
    )


def moved(by: float) -> tuple[float, ...]:
    """A box that overlaps A by (10 - by) / (10 + by)."""
    return (by, 0, 10 + by, 10)


CASES: dict[str, tuple[list[Any], list[Any], list[int], list[int]]] = {
    "right": ([(A, 0)], [(A, 0, 0.9)], [CORRECT], [CORRECT]),
    "wrong class": ([(A, 0)], [(A, 1, 0.9)], [WRONG_CLASS], [WRONG_CLASS]),
    "exactly half": ([(A, 0)], [((0, 0, 10, 5), 0, 0.9)], [CORRECT], [CORRECT]),
    "misplaced": ([(A, 0)], [(moved(5), 0, 0.9)], [MISPLACED], [MISPLACED]),
    "elsewhere, of another class": ([(A, 0)], [(moved(5), 1, 0.9)], [UNMATCHED], [UNMATCHED]),
    "far": ([(A, 0)], [(moved(9), 0, 0.9)], [UNMATCHED], [UNMATCHED]),
    "below the confidence": ([(A, 0)], [(A, 0, 0.2)], [UNMATCHED], [LEFT_OUT]),
    "twice": ([(A, 0)], [(moved(1), 0, 0.9), (A, 0, 0.5)], [CORRECT], [CORRECT, UNMATCHED]),
    "twice, alike": ([(A, 0)], [(A, 0, 0.5), (A, 0, 0.9)], [CORRECT], [UNMATCHED, CORRECT]),
    "two labels": ([(A, 0), (moved(2), 0)], [(moved(1), 0, 0.9)], [CORRECT, UNMATCHED], [CORRECT]),
    "the nearer one": ([(A, 0), (moved(2), 1)], [(moved(2), 1, 0.9), (A, 0, 0.8)], [CORRECT, CORRECT], [CORRECT] * 2),
    "the second best": (
        [(A, 0), (moved(2), 0)],
        [(moved(1), 0, 0.9), (A, 0, 0.8), (moved(1), 0, 0.7)],
        [CORRECT] * 2,
        [CORRECT, CORRECT, UNMATCHED],
    ),
    "unknown class": ([(A, 0)], [(A, -1, 0.9)], [UNMATCHED], [LEFT_OUT]),
    "no labels": ([], [(A, 0, 0.9)], [], [UNMATCHED]),
    "no predictions": ([(A, 0)], [], [UNMATCHED], []),
}


@pytest.mark.parametrize("name", CASES)
def test_one_record(name: str) -> None:
    truth, predicted, of_truth, of_predicted = CASES[name]
    found = match_boxes(boxes_of(truth), boxes_of(predicted, predicted=True))
    assert (found.of_truth.tolist(), found.of_predicted.tolist()) == (of_truth, of_predicted)


def test_ignored_regions() -> None:
    """What is half inside of one does not count, unless it is an object's."""
    truth = boxes_of([((0, 0, 100, 100), 0), (A, 0)], ignored=[True, False])
    said = boxes_of([((50, 50, 60, 60), 1, 0.9), (A, 0, 0.8), ((90, 90, 120, 120), 0, 0.7)], predicted=True)
    found = match_boxes(truth, said)
    assert found.of_truth.tolist() == [LEFT_OUT, CORRECT]
    assert found.of_predicted.tolist() == [LEFT_OUT, CORRECT, UNMATCHED]
    assert found.errors["spurious"].tolist() == [1] and found.errors["missed"].tolist() == [0]


def test_disagreement_and_cells() -> None:
    truth = boxes_of([(A, 0)], [], [(A, 1), ((20, 20, 30, 30), 1)])
    said = boxes_of([(A, 0, 0.9)], [(A, 1, 0.4)], [(A, 0, 0.7)], predicted=True)
    found = match_boxes(truth, said)
    assert np.allclose(found.disagreement, [0, 0.4, 2])
    labels, predicted, records, _ = found.cells()
    cells = sorted(zip(labels.tolist(), predicted.tolist(), records.tolist(), strict=True))
    assert cells == [(-1, 1, 1), (0, 0, 0), (1, -1, 2), (1, 0, 2)]


def confusion_of_ultralytics(truth: RaggedBoxes, said: RaggedBoxes, classes: int, iou: float, conf: float) -> Any:
    """ConfusionMatrix.process_batch of Ultralytics (8.4.190, metrics.py), image by image, with rows for labels."""
    matrix = np.zeros((classes + 1, classes + 1), np.int64)
    assert said.scores is not None
    for record in range(len(truth.counts)):
        t = slice(*truth.firsts[record : record + 2])
        p = slice(*said.firsts[record : record + 2])
        kept = said.scores[p] > conf
        gt, det, scores = truth.boxes[t], said.boxes[p][kept], said.scores[p][kept]
        low, high = np.maximum(gt[:, None, :2], det[None, :, :2]), np.minimum(gt[:, None, 2:], det[None, :, 2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=2)
        areas = [np.prod(one[:, 2:] - one[:, :2], axis=1) for one in (gt, det)]
        overlap = shared / (areas[0][:, None] + areas[1][None] - shared + 1e-7)
        taken = np.full(len(gt), -1)
        for number in np.argsort(-scores, kind="stable") if len(gt) else ():
            best = overlap[:, number].argmax()
            if overlap[best, number] > iou:
                taken[best] = number
                overlap[best] = 0
        for label, number in zip(truth.labels[t], taken, strict=True):
            matrix[label, said.labels[p][kept][number] if number >= 0 else classes] += 1
        for number, label in enumerate(said.labels[p][kept]):
            matrix[classes, label] += number not in taken
    return matrix


@pytest.fixture(scope="module")
def many() -> tuple[RaggedBoxes, RaggedBoxes]:
    return boxes_of_records(400)


@pytest.mark.parametrize(("iou", "confidence"), [(0.5, 0.25), (0.45, 0.0), (0.7, 0.6)])
def test_confusion_is_that_of_ultralytics(
    many: tuple[RaggedBoxes, RaggedBoxes], iou: float, confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = match_boxes(*many, iou, confidence)
    labels, predicted, _, _ = found.cells()
    matrix = np.zeros((5, 5), np.int64)
    np.add.at(matrix, (labels, predicted), 1)  # -1 is the last one
    assert np.array_equal(matrix, confusion_of_ultralytics(*many, 4, iou, confidence))
    monkeypatch.setattr(matching, "MOST_PAIRS", 50)
    again = match_boxes(*many, iou, confidence)
    assert np.array_equal(again.of_truth, found.of_truth) and np.array_equal(again.partner, found.partner)


# -- AP


@pytest.fixture(scope="module", params=[False, True], ids=["objects", "crowds"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("judged")
    labels = labels_of(crowds=request.param, seed=4)
    pack, results = build_set(folder, labels), write_results(folder / "p.json", perturbed(labels))
    attach(pack, results, "pred", "boxes", classes=str(folder / "instances.json"))
    return pack, folder / "instances.json", results


def by_pycocotools(labels: Path, results: Path) -> Any:
    """What the library says of the files, without packer."""
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO(str(labels))
        found = COCOeval(truth, truth.loadRes(str(results)), "bbox")
        found.evaluate()
        found.accumulate()
        found.summarize()
    return found


def test_ap_is_that_of_pycocotools(judged: tuple[Path, Path, Path]) -> None:
    wanted = by_pycocotools(*judged[1:])
    found = compare(open_pack(judged[0]), "pred")
    assert found.average is not None
    mine = (found.average.ap, found.average.ap50, found.average.ap75, found.average.ar)
    assert np.allclose(mine, wanted.stats[[0, 1, 2, 8]], atol=1e-6) and 0.1 < mine[0] < 0.9
    each = [wanted.eval["precision"][:, :, k, 0, 2] for k in range(len(NAMES))]
    assert np.allclose([one.ap for one in found.classes], [e[e > -1].mean() for e in each], atol=1e-6)  # type: ignore[arg-type]
    assert "pycocotools" in found.average.evaluator or "faster" in found.average.evaluator


def test_labels_as_predictions_are_right(tmp_path: Path) -> None:
    labels = labels_of()
    pack = build_set(tmp_path, labels)
    attach(pack, write_results(tmp_path / "p.json", as_results(labels)), "pred", "boxes")
    found = compare(open_pack(pack), "pred", confidence=0.0)
    assert found.average is not None and found.average.ap == pytest.approx(1)
    assert (found.precision, found.recall, found.f1) == (1, 1, 1) and set(found.errors.values()) == {0}  # type: ignore[union-attr]
    assert all(a == b for a, b, _ in found.confusion)


def test_nothing_that_computes_ap(judged: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average_precision, "EVALUATORS", {"nothing": ("no_such_module", "COCO", "COCOeval")})
    with pytest.raises(NotInstalled, match="needs faster-coco-eval or pycocotools"):
        compare(open_pack(judged[0]), "pred")
    assert compare(open_pack(judged[0]), "pred", average=False).average is None


def test_classes_of_other_names(judged: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A prediction of a class that the pack lacks is left out, with a note."""
    good("edit", judged[0], "-o", tmp_path / "new.lmdb", "--map", "cat=puma")
    found = compare(open_pack(tmp_path / "new.lmdb"), "pred")
    assert any("of classes that the pack lacks left out" in note for note in found.notes)
    assert next(one for one in found.classes if one.name == "puma").predicted == 0
    good("edit", judged[0], "-o", tmp_path / "one.lmdb", "--single-class", "thing")
    with pytest.raises(UsageError, match="has no class of pred, such as cat"):
        compare(open_pack(tmp_path / "one.lmdb"), "pred")


# -- classes of images


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    from packer.sources.synthetic import draw_sample

    folder = tmp_path_factory.mktemp("classified")
    draw_sample(folder / "src", count=60, size=32)
    good("build", folder / "src", "-o", folder / "pack", "--split", "all")
    pack, rng = open_pack(folder / "pack"), np.random.default_rng(0)
    table = rng.dirichlet(np.full(len(pack.classes), 0.5), len(pack)).astype(np.float32)
    np.save(folder / "p.npy", table)
    attach(folder / "pack", folder / "p.npy", "pred", "labels")
    return folder / "pack", table


def test_classes_of_images(classified: tuple[Path, Any]) -> None:
    pack, table = open_pack(classified[0]), classified[1]
    truth = [int(pack.annotation(i).label) for i in range(len(pack))]  # type: ignore[arg-type]
    said = table.argmax(axis=1).tolist()
    found = compare(pack, "pred")
    assert found.accuracy == pytest.approx(np.mean([a == b for a, b in zip(truth, said, strict=True)]))
    best = [sorted(range(len(row)), key=lambda k: -row[k])[:5] for row in table.tolist()]
    assert found.top5 == pytest.approx(np.mean([a in five for a, five in zip(truth, best, strict=True)]))
    for number, one in enumerate(found.classes):
        right = sum(a == b == number for a, b in zip(truth, said, strict=True))
        assert (one.labels, one.predicted, one.correct) == (truth.count(number), said.count(number), right)
        assert one.precision == pytest.approx(right / max(1, said.count(number)))
    assert sum(count for *_, count in found.confusion) == len(pack)


# -- masks


def test_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = [rng.integers(0, 4, (20, 30)).astype(np.uint8) for _ in range(4)]
    said = [np.where(rng.random(one.shape) < 0.3, rng.integers(0, 4, one.shape), one).astype(np.uint8) for one in truth]
    image = rng.integers(0, 256, (20, 30, 3), np.uint8)
    source = write_files(
        tmp_path / "src",
        {f"images/{i}.png": picture(image) for i in range(4)}
        | {f"masks/{i}.png": picture(m) for i, m in enumerate(truth)},
    )
    good("build", source, "-o", tmp_path / "pack", "--mask", "masks/", "--ignore-id", 3)
    write_files(tmp_path / "said", {f"{i}.png": picture(m) for i, m in enumerate(said)})
    attach(tmp_path / "pack", tmp_path / "said", "pred", "mask")
    pack = open_pack(tmp_path / "pack")
    assert compared(pack) == ["pred"]
    found = compare(pack, "pred")
    a, b = np.concatenate([m.ravel() for m in truth]), np.concatenate([m.ravel() for m in said])
    a, b = a[a != 3], b[a != 3]
    for number in range(3):
        one = found.classes[number]
        assert one.iou == pytest.approx(((a == number) & (b == number)).sum() / ((a == number) | (b == number)).sum())
    assert found.accuracy == pytest.approx((a == b).mean())


def test_iou_of_records() -> None:
    pairs = [(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([6, 2, 4])), (np.zeros(0, int),) * 3]
    found = record_iou(pairs)
    assert found[0] == pytest.approx((6 / 8 + 4 / 6) / 2) and np.isnan(found[1])


# -- the command


def test_the_command(judged: tuple[Path, Path, Path], classified: tuple[Path, Any]) -> None:
    found = json.loads(good("stats", judged[0], "--compare", "pred", "--json").out)
    assert found["kind"] == "boxes" and found["confidence"] == 0.25 and len(found["average"]["classes"]) == 3
    text = good("stats", judged[0], "--compare", "pred", "--confidence", "0.4").out
    assert f"mAP {found['average']['ap']:.4f}" in text and "with confidence 0.4 or more, at IoU 0.5" in text
    assert "labelled -> predicted" in text and "tab Predictions" in text
    assert "accuracy 0." in good("stats", classified[0], "--compare", "pred").out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--compare", "nothing"), "has no predictions called nothing; it has pred"),
        (("--compare", "pred", "--problems"), "--problems: has no effect with --compare"),
        (("--compare", "pred", "--iou", "2"), "--iou"),
    ],
)
def test_the_command_refuses(judged: tuple[Path, Path, Path], options: tuple[str, ...], problem: str) -> None:
    ran = run("stats", judged[0], *options)
    assert ran.code == 2 and problem in ran.err.replace("\ntry: ", "; ")
