"""Oriented boxes and classification: Ultralytics YOLO trains and validates from packs as from the folders."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Launch
from PIL import Image
from running import good
from yolo_sets import (
    FIXED,
    MODELS,
    OURS,
    SIZE,
    THEIRS,
    adapter,
    data_of,
    draw_corners,
    draw_splits,
    draw_yolo,
    in_a_folder_of_its_own,  # noqa: F401 - of all tests here
    losses,
    packed,
    rows,
    trainer_of,
    yolo,
)

import packer
from packer import open_pack
from packer.errors import UsageError

YOLO = yolo.model.YOLO
pytestmark = pytest.mark.filterwarnings("ignore")  # those of its libraries


def assert_equal(loader: Any, other: Any, names: tuple[str, ...], count: int = 4) -> None:
    """The first batches are equal to the bit."""
    batches = list(zip(islice(loader, count), islice(other, count), strict=True))
    assert batches
    for ours, theirs in batches:
        for name in names:
            assert torch.equal(ours[name], theirs[name]), name


def values_of(model: Any, data: Any, validator: Any = None, **options: Any) -> dict[str, float]:
    found: dict[str, float] = model.val(data=data, validator=validator, plots=False, **{"imgsz": SIZE, **options})
    return found.results_dict  # type: ignore[attr-defined, no-any-return]


# -- oriented boxes


@pytest.mark.parametrize("task", ["obb", "outlines"])
@pytest.mark.parametrize(
    "options", [{}, {"degrees": 40.0, "flipud": 0.5}, {"mosaic": 0.0, "single_cls": True}], ids=str
)
def test_oriented_boxes_are_those_of_the_folder(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Also those around polygons of a pack that was built without task: obb, as Ultralytics makes them."""
    root = draw_corners(tmp_path / "set")
    text = (root / "data.yaml").read_text()
    if task == "outlines":
        (root / "data.yaml").write_text(text.replace("task: obb\n", ""))
    pack = packed(root)
    assert ("obb" in open_pack(pack).manifest.fields) == (task == "obb")
    ours = trainer_of(OURS, task, str(pack), **options)
    batches = [list(islice(loader, 4)) for loader in (ours.train_loader, ours.test_loader)]
    theirs = trainer_of(THEIRS, task, str(root / "data.yaml"), **options)
    for found, loader in zip(batches, (theirs.train_loader, theirs.test_loader), strict=True):
        assert found[0]["bboxes"].shape[1] == 5
        assert_equal(found, loader, ("img", "bboxes", "cls", "batch_idx"))


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("obb", {}),
        ("obb", {"multi_scale": 0.5, "close_mosaic": 1}),
        ("detect", {"multi_scale": 0.5, "close_mosaic": 1, "single_cls": True}),
        ("pose", {"close_mosaic": 1}),
    ],
    ids=str,
)
def test_two_epochs_from_pack_and_from_folder(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Losses of both epochs, the metrics after them, and those of a later validation are the folder's."""
    root = draw_corners(tmp_path / "set") if task == "obb" else draw_yolo(tmp_path / "set", task)
    pack, data = packed(root), str(root / "data.yaml")
    given = {**FIXED, "epochs": 2, "optimizer": "AdamW", "lr0": 2e-3, "warmup_epochs": 0.0, "nbs": 4, **options}
    ours, theirs = YOLO(MODELS[task]), YOLO(MODELS[task])
    ours.train(data=data_of(task, pack), trainer=OURS[task], **given)
    theirs.train(data=data, **given)
    found, expected = losses(ours.trainer.save_dir), losses(theirs.trainer.save_dir)
    # coordinates that are no whole pixels have another last digit, from which losses drift
    np.testing.assert_allclose(found, expected, rtol=1e-6 if task == "obb" else 0.02)
    validator = type(ours.trainer.validator)
    assert validator.__module__ == "packer.ultralytics"
    values = [values_of(theirs, data_of(task, pack), validator), values_of(theirs, data)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)


# -- classification


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train and val, and packs of both beside it."""
    root = draw_splits(tmp_path_factory.mktemp("drawn") / "set")
    good("build", root, "-o", root.with_suffix(".lmdb"), "--encode", "copy")
    return root


ALIKE: list[dict[str, Any]] = [
    {}, {"auto_augment": "autoaugment"}, {"auto_augment": "", "flipud": 0.5}, {"fraction": 0.5}, {"fraction": 4},
    {"cache": "ram", "imgsz": 96}, {"single_cls": True, "erasing": 0.0, "scale": 0.2},
]  # fmt: skip


@pytest.mark.parametrize("options", ALIKE, ids=str)
def test_images_and_classes_are_those_of_the_folder(classes: Path, options: dict[str, Any]) -> None:
    ours = trainer_of(OURS, "classify", str(classes.with_suffix(".lmdb")), **options)
    batches = [list(islice(loader, 4)) for loader in (ours.train_loader, ours.test_loader)]
    theirs = trainer_of(THEIRS, "classify", str(classes), **options)
    assert ours.data["names"] == theirs.data["names"] and ours.data["nc"] == theirs.data["nc"]
    for found, loader in zip(batches, (theirs.train_loader, theirs.test_loader), strict=True):
        assert_equal(found, loader, ("img", "cls"))
    assert len(ours.train_loader.dataset) == len(theirs.train_loader.dataset)


def test_two_epochs_of_classes_from_packs_and_from_the_folder(real_data: Path, tmp_path: Path) -> None:
    """The losses are equal to the bit; so are top1 and top5, after each epoch and later."""
    for split, part in (("train", slice(0, 12)), ("val", slice(12, 18))):
        for folder in sorted((real_data / "folder_cifar10").iterdir()):
            (tmp_path / "cifar" / split / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[part]:
                shutil.copy(file, tmp_path / "cifar" / split / folder.name)
    good("build", tmp_path / "cifar", "--encode", "copy")
    options = {**FIXED, "imgsz": 64, "batch": 16, "epochs": 2, "optimizer": "AdamW", "lr0": 2e-3, "nbs": 16}
    ours, theirs = YOLO(MODELS["classify"]), YOLO(MODELS["classify"])
    ours.train(data="cifar.lmdb", trainer=packer.ultralytics.ClassificationTrainer, **options)
    theirs.train(data=str(tmp_path / "cifar"), **options)
    tables = [(model.trainer.save_dir / "results.csv").read_text().splitlines() for model in (ours, theirs)]
    assert len(tables[0]) == 3 and "metrics/accuracy_top5" in tables[0][0]
    without_time = [[line.split(",")[:1] + line.split(",")[2:] for line in table] for table in tables]
    assert without_time[0] == without_time[1]
    validator = packer.ultralytics.ClassificationValidator
    for split in ("train", "val"):
        values = [
            values_of(theirs, "cifar.lmdb", validator, split=split, imgsz=64),
            values_of(theirs, str(tmp_path / "cifar"), split=split, imgsz=64),
        ]
        assert values[0] == values[1] and 0 < values[0]["metrics/accuracy_top5"] <= 1
    assert not list(tmp_path.glob("cifar*.lmdb/*.cache"))


def test_a_model_finds_its_classes_by_name(classes: Path, tmp_path: Path) -> None:
    """Images of a class that the model lacks are left out, as those of folders are."""
    shutil.copytree(classes / "train", tmp_path / "some" / "train")
    for split in ("train", "val"):
        shutil.copytree(classes / "val" / "bee", tmp_path / "more" / split / "bee")
        shutil.copytree(classes / "val" / "ant", tmp_path / "more" / split / "dog")
        shutil.copytree(classes / "val" / "cat", tmp_path / "more" / split / "cat")
    good("build", tmp_path / "more", "-o", "more.lmdb", "--encode", "copy")
    datasets = [
        trainer_of(kinds, "classify", str(data), val=False).build_dataset(str(path), "val")
        for kinds, data, path in (
            (OURS, classes.with_suffix(".lmdb"), tmp_path / "more-val.lmdb"),
            (THEIRS, classes, tmp_path / "more" / "val"),
        )
    ]
    found, expected = ([sample[1] for sample in dataset.samples] for dataset in datasets)
    assert found == expected == [1, 1, 1, 2, 2, 2]


def test_two_processes_count_each_image_once(classes: Path, launch: Launch, tmp_path: Path) -> None:
    """Of 15 images; Ultralytics' own classifier counts 16 then, because its sampler repeats one."""
    boxes = packed(draw_yolo(tmp_path / "boxes", count=15))
    script = Path(__file__).with_name("ultralytics_ranks.py")
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    launch(script, boxes, classes.with_name("set-train.lmdb"), tmp_path, ranks=2, cwd=tmp_path, env=paths)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for task in ("detect", "classify"):
        assert sum(rank[task]["images"] for rank in ranks) == 15
    assert ranks[0]["classify"]["counted"] == 15
    objects = sum(len(set(rows("detect", i).splitlines())) for i in range(15))
    assert ranks[0]["detect"]["counted"] == objects


# -- what `data` may be


def test_a_path_names_the_packs_of_a_build(classes: Path, tmp_path: Path) -> None:
    """NAME.lmdb stands for NAME-train.lmdb and NAME-val.lmdb, also as the path of a data.yaml."""
    shutil.copytree(classes.with_name("set-train.lmdb"), tmp_path / "p-train.lmdb")
    shutil.copytree(classes.with_name("set-val.lmdb"), tmp_path / "p-valid.lmdb")
    (tmp_path / "alone.yaml").write_text("path: p.lmdb\n")
    (tmp_path / "named.yaml").write_text("path: p.lmdb\ntrain: images/train\nval: valid\n")
    (tmp_path / "folder.yaml").write_text(f"path: {tmp_path}\ntrain: p-train.lmdb\nval: p-valid.lmdb\n")
    mapping = {"path": str(tmp_path / "p.lmdb")}
    shutil.copytree(classes / "val", tmp_path / "val")
    mixed = {"train": "p-train.lmdb", "val": str(tmp_path / "val")}
    for data in ("p.lmdb", "alone.yaml", "named.yaml", "folder.yaml", mapping, mixed):
        trainer = trainer_of(OURS, "classify", data)
        assert (len(trainer.train_loader.dataset), len(trainer.test_loader.dataset)) == (15, 9)
    (tmp_path / "one.yaml").write_text("path: p-train.lmdb\n")
    trainer = trainer_of(OURS, "classify", "one.yaml")
    assert len(trainer.train_loader.dataset) == len(trainer.test_loader.dataset) == 15


def error(data: Any, task: str, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        trainer_of(OURS, task, data, **options)
    return str(caught.value)


def test_paths_that_say_too_little(classes: Path, tmp_path: Path) -> None:
    shutil.copytree(classes.with_name("set-train.lmdb"), tmp_path / "p-train.lmdb")
    assert error("p.lmdb", "classify") == "data: names no val; name one pack, or the same one twice"
    one = {"path": "p-train.lmdb", "train": "images/train", "val": "images/val"}
    assert error(one, "classify") == (
        "data: names images/train as train, but its path is one pack; "
        "leave out train and val and test, or build a pack for each split"
    )
    shutil.copytree(classes.with_name("set-val.lmdb"), tmp_path / "p-val.lmdb")
    wrong = {"path": "p.lmdb", "train": "train", "val": "minival"}
    assert error(wrong, "classify") == (
        f"data: names minival as val, and {tmp_path}/p-minival.lmdb is not a pack; "
        "leave it out; there are p-train.lmdb, p-val.lmdb"
    )
    assert error("p.lmdb", "classify", split="test") == "data: names no test; name one pack, or the same one twice"


# -- data and models of the wrong kind


def test_packs_of_another_kind(classes: Path, tmp_path: Path) -> None:
    corners = packed(draw_corners(tmp_path / "corners", 4))
    boxes = packed(draw_yolo(tmp_path / "boxes", count=4))
    of_classes = str(classes.with_suffix(".lmdb"))
    assert "set-train.lmdb: has no boxes, which the task obb needs; it has label; " in error(of_classes, "obb")
    assert error(str(boxes), "obb") == (
        f"{boxes}: has boxes without corners, which the task obb needs; build it from oriented boxes, with "
        'labels="yolo-obb", or train with DetectionTrainer'
    )
    assert error(str(corners), "segment").endswith(
        "has no polygons, which the task segment needs; it has box_labels, boxes, obb; "
        "build it from a folder with such labels, or train with OBBTrainer"
    )
    assert "has no label, which the task classify needs; it has box_labels, boxes" in error(str(boxes), "classify")
    shutil.copytree(classes / "train", tmp_path / "some")
    Image.new("RGB", (40, 40)).save(tmp_path / "some" / "lost.jpg")
    with packer.PackWriter(tmp_path / "lost.lmdb", classes=["ant"], encode="png") as writer:
        writer.write(np.zeros((40, 40, 3), np.uint8), label="ant")
        writer.write(np.ones((40, 40, 3), np.uint8))
    assert "lost.lmdb: has 1 image without a class; build it with" in error("lost.lmdb", "classify")


@pytest.mark.parametrize(
    ("model", "wanted", "name"), [("detect", "obb", "DetectionTrainer"), ("obb", "classify", "OBBTrainer")]
)
def test_a_trainer_refuses_models_of_another_task(model: str, wanted: str, name: str, classes: Path) -> None:
    data = str(classes.with_suffix(".lmdb") if wanted == "classify" else packed(draw_corners(Path("set").resolve(), 4)))
    with pytest.raises(UsageError, match=f"model: is for the task {model}, the trainer for {wanted}; train it with "):
        YOLO(MODELS[model]).train(data=data, trainer=OURS[wanted], **FIXED)


@pytest.mark.parametrize(("model", "wanted"), [("detect", "obb"), ("classify", "detect"), ("obb", "classify")])
def test_a_validator_refuses_models_of_another_task(model: str, wanted: str, classes: Path) -> None:
    data = str(classes.with_suffix(".lmdb") if wanted == "classify" else packed(draw_corners(Path("set").resolve(), 4)))
    validator = getattr(adapter, OURS[wanted].__name__.replace("Trainer", "Validator"))
    kind = OURS[model].__name__.replace("Trainer", "Validator")
    step = f"validate it with packer.ultralytics.{kind}, or take a model for {wanted}"
    with pytest.raises(UsageError, match=f"model: is for the task {model}, the validator for {wanted}; {step}"):
        values_of(YOLO(MODELS[model]), data, validator)
