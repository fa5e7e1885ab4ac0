"""LibreYOLO trains and validates from packs as it does from folders: pixel for pixel, label for label, loss for loss.

Needs LibreYOLO: ``pip install libreyolo``. Models have random weights, nothing is fetched.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doc_blocks import ROOT, blocks_of
from drawn import draw, draw_classes

from packer import BuildOptions, build_pack
from packer.errors import PackNotFound, UsageError

libreyolo = pytest.importorskip("libreyolo", reason="needs LibreYOLO: pip install libreyolo")
from libreyolo.data import dataset as their_data  # noqa: E402
from libreyolo.training import trainer as their_trainer  # noqa: E402
from libreyolo.validation import detection_validator as their_validator  # noqa: E402

from packer import libreyolo as adapter  # noqa: E402

SIZE, COUNT = 160, 14
MODELS = {"yolo9": ("LibreYOLO9", "t"), "yolox": ("LibreYOLOX", "n")}
"""One that names its trainer in a method, one that imports it."""
FIXED: dict[str, Any] = {
    "epochs": 1, "batch": 4, "imgsz": SIZE, "device": "cpu", "workers": 0, "seed": 3, "amp": False, "exist_ok": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    logging.getLogger("libreyolo").setLevel(logging.ERROR)


def draw_yolo(root: Path) -> Path:
    """JPEGs of many shapes with 0 to 3 boxes, one of which a file lists twice; and data.yaml."""
    for i in range(COUNT):
        draw(root / "images" / "train" / f"{i:03d}.jpg", i, 100 + 17 * i, 230 - 9 * i, format="JPEG")
        numbers, lines = np.random.default_rng(i), []
        for _ in range(i % 4):
            (cx, cy), (w, h) = numbers.uniform(0.35, 0.65, 2), numbers.uniform(0.2, 0.6, 2)
            lines.append(f"{numbers.integers(2)} {cx:.6g} {cy:.6g} {w:.6g} {h:.6g}\n")
        label = root / "labels" / "train" / f"{i:03d}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("".join(lines + lines[:1] * (i == 3)))
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/train\nnames: [ant, bee]\n")
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_yolo(tmp_path_factory.mktemp("libreyolo") / "set")


@pytest.fixture(scope="module")
def pack(folder: Path) -> Path:
    out = folder.with_suffix(".lmdb")
    build_pack(BuildOptions(str(folder), str(out), labels=("yolo",), encode="copy", workers=1))
    return out


def model_of(kind: str) -> Any:
    name, size = MODELS[kind]
    torch.manual_seed(0)
    return getattr(libreyolo, name)(None, size=size, nb_classes=2, device="cpu")


# -- the dataset and the ground truth


@pytest.mark.parametrize("which", [{}, {"single_cls": True}, {"class_remap": {1: 1}}], ids=str)
def test_pixels_and_labels_to_the_bit(folder: Path, pack: Path, which: dict[str, Any]) -> None:
    files = sorted((folder / "images" / "train").iterdir())
    size = {"img_size": (SIZE, SIZE), "num_classes": 2, **which}
    theirs, ours = their_data.YOLODataset(img_files=files, **size), adapter.PackedDetections(img_files=[pack], **size)
    assert len(theirs) == len(ours) == COUNT
    boxes = 0
    for i in range(COUNT):
        (image, label, *rest), (its_image, its_label, *its_rest) = theirs.pull_item(i), ours.pull_item(i)
        assert np.array_equal(image, its_image) and np.array_equal(label, its_label) and rest == its_rest
        assert label.dtype == its_label.dtype and label.shape == its_label.shape
        assert theirs.annotations[i][1:] == ours.annotations[i][1:]
        boxes += len(label)
    assert boxes > 5
    assert len(pickle.dumps(ours)) < 20_000


def test_the_ground_truth(folder: Path, pack: Path) -> None:
    files = sorted((folder / "images" / "train").iterdir())
    theirs = their_validator.DetectionValidator._init_metrics.__globals__  # the module, untouched
    assert "PackedGroundTruth" not in theirs
    truth = adapter.YOLOCocoAPI(None, None, ["ant", "bee"], image_files=files)
    ours = adapter.PackedGroundTruth(
        None, None, ["ant", "bee"], image_files=list(adapter.PackedDetections(img_files=[pack]).img_files)
    )
    assert truth.imgs == ours.imgs and truth.cats == ours.cats and truth.anns.keys() == ours.anns.keys()
    for number, annotation in truth.anns.items():
        its = ours.anns[number]
        assert np.allclose(annotation.pop("bbox"), its.pop("bbox"), atol=1e-4)
        assert annotation.pop("area") == pytest.approx(its.pop("area"), rel=1e-5)
        assert annotation == its


def test_disk_caches_are_refused(pack: Path) -> None:
    dataset = adapter.PackedDetections(img_files=[pack], img_size=(SIZE, SIZE))
    with pytest.raises(UsageError, match="a pack is on the disk already"):
        dataset.enable_image_cache("disk")
    dataset.enable_image_cache("ram")
    assert np.array_equal(dataset.load_image(0), dataset.load_image(0))


# -- training and validation


@pytest.mark.parametrize("kind", MODELS)
def test_losses_weights_and_metrics_are_those_of_the_folder(kind: str, folder: Path, pack: Path) -> None:
    found = []
    for way in ("folder", "pack"):
        model, options = model_of(kind), {**FIXED, "project": way, "name": kind}
        if way == "folder":
            trained = model.train(data=str(folder / "data.yaml"), **options)
            scores = model.val(data=str(folder / "data.yaml"), imgsz=SIZE, batch=4, workers=0, conf=0.0)
        else:
            trained = adapter.train(model, pack, **options)
            scores = adapter.val(model, pack, imgsz=SIZE, batch=4, workers=0, conf=0.0)
        scores = {name: value for name, value in dict(scores).items() if not name.startswith("speed")}
        found.append((trained["final_loss"], scores, model.names, list(model.model.state_dict().values())))
        assert "_trainer_class" not in vars(model) and "_get_trainer_class" not in vars(model)
    (loss, scores, names, weights), (its_loss, its_scores, its_names, its_weights) = found
    assert loss == its_loss and names == its_names and scores == its_scores and len(scores) > 10
    assert all(torch.equal(a, b) for a, b in zip(weights, its_weights, strict=True))


def test_nothing_of_libreyolo_is_changed(pack: Path) -> None:
    before = dict(vars(their_trainer)), dict(vars(their_data)), dict(vars(their_validator))
    adapter.train(model_of("yolox"), {"train": pack, "val": pack}, **FIXED, project="runs")
    assert before == (dict(vars(their_trainer)), dict(vars(their_data)), dict(vars(their_validator)))
    assert inspect.unwrap(libreyolo.LibreYOLOX.train).__globals__["__name__"] == "libreyolo.models.yolox.model"


def test_workers_read_the_pack(pack: Path) -> None:
    trained = adapter.train(model_of("yolox"), pack, **{**FIXED, "workers": 2, "project": "runs"})
    assert np.isfinite(trained["final_loss"])


# -- errors


def test_what_it_cannot_train(pack: Path, tmp_path: Path) -> None:
    draw_classes(tmp_path / "classes", each=2)
    build_pack(BuildOptions(str(tmp_path / "classes"), str(tmp_path / "classes.lmdb"), workers=1))
    model = model_of("yolox")
    with pytest.raises(UsageError, match="has no boxes, which a detector needs"):
        adapter.train(model, tmp_path / "classes.lmdb")
    with pytest.raises(UsageError, match="name packs as train, val or test"):
        adapter.train(model, {"training": pack})
    with pytest.raises(PackNotFound):
        adapter.train(model, tmp_path / "none.lmdb")
    for devices in ("0,1", [0, 1]):
        with pytest.raises(UsageError, match="and this is one process; start the script with torchrun"):
            adapter.train(model, pack, device=devices)
    model.task = "segment"
    with pytest.raises(UsageError, match="is for the task segment"):
        adapter.val(model, pack)


def test_families_that_build_their_data_in_another_way(pack: Path) -> None:
    model = libreyolo.LibreDFINE(None, size="n", nb_classes=2, device="cpu")
    with pytest.raises(UsageError, match="builds its data in a way of its own"):
        adapter.train(model, pack, **FIXED)


def test_families_that_call_the_training_of_others(pack: Path) -> None:
    model = libreyolo.LibreRTDETRv2(None, size="r18", nb_classes=2, device="cpu")
    with pytest.raises(UsageError, match="has a train of its own around that of its family"):
        adapter.train(model, pack, **FIXED)


def test_the_guide(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "cells.lmdb").symlink_to(pack)
    (block,) = [block for block in blocks_of(ROOT / "docs/trainers.md") if "test_libreyolo.py" in (block.reason or "")]
    names: dict[str, Any] = {}
    exec(compile(block.text, "guide", "exec"), names)
    assert "metrics/mAP50" in names["metrics"]
