"""Drawn YOLO folders, packs of them, and trainers that read both: what the tests of packer.ultralytics share."""

from __future__ import annotations

import atexit
import contextlib
import csv
import os
import shutil
import tempfile
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw, image_file
from PIL import Image, ImageOps

from packer import BuildOptions, build_pack, open_pack

_home = tempfile.mkdtemp(prefix="tmp-ultralytics-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ.update(YOLO_OFFLINE="true", YOLO_CONFIG_DIR=_home, YOLO_AUTOINSTALL="false", YOLO_VERBOSE="false")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("ultralytics", reason="needs Ultralytics: pip install ultralytics")
    from ultralytics.models import yolo

    from packer import ultralytics as adapter
with contextlib.suppress(ImportError):
    import rich.style  # noqa: F401  # it draws a random number when it is imported, in the first training

SIZE = 160
FIXED: dict[str, Any] = {
    "imgsz": SIZE, "batch": 4, "epochs": 1, "device": "cpu", "workers": 0, "plots": False, "amp": False, "seed": 3,
    "verbose": False,
}  # fmt: skip
MODELS = {
    "detect": "yolo11n.yaml",
    "segment": "yolo11n-seg.yaml",
    "pose": "yolo11n-pose.yaml",
    "semantic": "yolo26n-sem.yaml",
    "polygons": "yolo26n-sem.yaml",  # the semantic task from polygons
    "obb": "yolo11n-obb.yaml",
    "corners": "yolo11n.yaml",  # the detect task from oriented boxes
    "outlines": "yolo11n-obb.yaml",  # oriented boxes around polygons
    "classify": "yolo11n-cls.yaml",
}
OF_LABEL_FILES = [task for task in MODELS if task not in ("outlines", "classify")]
THEIRS: dict[str, Any] = {
    "detect": yolo.detect.DetectionTrainer,
    "segment": yolo.segment.SegmentationTrainer,
    "pose": yolo.pose.PoseTrainer,
    "semantic": yolo.semantic.SemanticSegmentationTrainer,
    "polygons": yolo.semantic.SemanticSegmentationTrainer,
    "obb": yolo.obb.OBBTrainer,
    "corners": yolo.detect.DetectionTrainer,
    "outlines": yolo.obb.OBBTrainer,
    "classify": yolo.classify.ClassificationTrainer,
}
OURS: dict[str, Any] = {
    "detect": adapter.DetectionTrainer,
    "segment": adapter.SegmentationTrainer,
    "pose": adapter.PoseTrainer,
    "semantic": adapter.SemanticSegmentationTrainer,
    "polygons": adapter.SemanticSegmentationTrainer,
    "obb": adapter.OBBTrainer,
    "corners": adapter.DetectionTrainer,
    "outlines": adapter.OBBTrainer,
    "classify": adapter.ClassificationTrainer,
}
EXTRA = {"pose": "kpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n", "semantic": "masks_dir: masks\n"}
EXTRA["obb"] = EXTRA["corners"] = "task: obb\n"


def rows(task: str, i: int) -> str:
    """Lines of a label file: i % 4 objects."""
    numbers = np.random.default_rng(i)
    lines = []
    for _ in range(i % 4):
        (cx, cy), (w, h) = numbers.uniform(0.35, 0.65, 2), numbers.uniform(0.2, 0.6, 2)
        values = [cx, cy, w, h]
        if task in ("obb", "corners"):
            turn = numbers.uniform(0, np.pi)
            sides = np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 3
            across, down = np.cos(turn), np.sin(turn)
            values = ([cx, cy] + sides @ [[across, down], [-down, across]]).clip(0, 1).ravel().tolist()
        if task in ("segment", "polygons", "outlines"):
            values = [cx - w / 2, cy - h / 2, cx + w / 2, cy - h / 3, cx + w / 3, cy + h / 2, cx - w / 2, cy + h / 4]
        if task == "pose":
            values += [cx - w / 4, cy, 2, cx + w / 4, cy, 1, 0, 0, 0]
        lines.append(" ".join([str(numbers.integers(2)), *(f"{value:.6g}" for value in values)]))
    return "\n".join(lines + lines[:1] * (i == 3)) + "\n" * bool(lines)  # image 3 lists an object twice


def draw_mask_of(image: Path, i: int, out: Path) -> None:
    """Discs of class 1 on class 0, with a border of no class."""
    width, height = ImageOps.exif_transpose(Image.open(image)).size
    y, x = np.mgrid[:height, :width]
    distance = np.hypot(y - height / 2, x - (20 + 5 * i) % width)
    Image.fromarray(np.select([distance < 30, distance < 33], [1, 255]).astype(np.uint8)).save(out)


def draw_yolo(root: Path, task: str = "detect", count: int = 14) -> Path:
    """A YOLO folder: JPEGs of many shapes, one turned by its Exif tag, a PNG; their labels or masks, and data.yaml."""
    for i in range(count):
        path = root / "images" / "train" / f"{i:03d}.{'png' if i == 5 else 'jpg'}"
        draw(path, i, 100 + 17 * i, 230 - 9 * i, format="PNG" if i == 5 else "JPEG")
        if i == 7:
            exif = Image.Exif()
            exif[274] = 6
            path.write_bytes(image_file(i, 120, 90, exif=exif.tobytes()))
        label = root / ("masks" if task == "semantic" else "labels") / "train" / f"{i:03d}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        if task == "semantic":
            draw_mask_of(path, i, label.with_suffix(".png"))
        else:
            label.write_text(rows(task, i))
    head = f"path: {root}\ntrain: images/train\nval: images/train\nnames: [ant, bee]\n"
    (root / "data.yaml").write_text(head + EXTRA.get(task, ""))
    return root


def packed(root: Path, out: Path | None = None, **options: Any) -> Path:
    out = out or root.with_suffix(".lmdb")
    labels = "masks" if (root / "masks").is_dir() else "yolo"
    build_pack(BuildOptions(**{"source": root, "out": out, "labels": (labels,), "encode": "copy", **options}))
    return out


def data_of(task: str, pack: Path) -> Any:
    """`data` for a pack; the order of keypoints in a flipped image is said by the manifest, or here."""
    known = task != "pose" or getattr(open_pack(pack).manifest, "flip_index", None)
    return str(pack) if known else {"train": str(pack), "val": str(pack), "flip_idx": [1, 0, 2]}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ultralytics.cfg.ROOT", tmp_path / "ultralytics")  # under pytest, results lie beside it
    torch.set_num_threads(1)


def trainer_of(kinds: dict[str, Any], task: str, data: Any, **options: Any) -> Any:
    """A trainer that is ready for its first batch."""
    trainer = kinds[task](overrides={**FIXED, "model": MODELS[task], "data": data, **options})
    trainer._setup_train()
    return trainer


def assert_same_batches(loader: Any, other: Any, count: int = 4) -> None:
    batches = list(zip(islice(loader, count), islice(other, count), strict=True))
    assert batches
    for ours, theirs in batches:
        assert ours.keys() == theirs.keys() - {"mask_file", "mode"}  # how Ultralytics reads the file of a mask
        assert torch.equal(ours["img"], theirs["img"])
        for name in ours.keys() & {"cls", "batch_idx", "semantic_mask"}:
            assert torch.equal(ours[name], theirs[name]), name
        for name in ("bboxes", "keypoints"):
            if name in ours:
                torch.testing.assert_close(ours[name][:, :4], theirs[name][:, :4], rtol=0, atol=1e-6)
                torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)  # angles
        if "masks" in ours:
            assert (ours["masks"] != theirs["masks"]).float().mean() < 1e-4
        assert [Path(f).name for f in ours["im_file"]] == [Path(f).name for f in theirs["im_file"]]
        for name in ours.keys() & {"ori_shape", "resized_shape"}:
            assert np.array_equal(ours[name], theirs[name]), name


def losses(folder: Path) -> list[float]:
    with (folder / "results.csv").open() as file:
        return [sum(float(v) for k, v in row.items() if k.startswith("train/")) for row in csv.DictReader(file)]


def draw_corners(root: Path, count: int = 16) -> Path:
    """A YOLO folder of images of 128 px with turned boxes, their corners on whole pixels: fractions are exact."""
    for i in range(count):
        numbers = np.random.default_rng(i)
        draw(root / "images" / "train" / f"{i:03d}.png", i, 128, 128)
        lines = []
        for _ in range(1 + i % 3):
            across, down = numbers.integers(6, 24, 2)
            center, turned = numbers.integers(40, 88, 2), np.array([[across, down], [-down, across]])
            corners = center + np.concatenate([turned, -turned])
            lines.append(" ".join([str(numbers.integers(2)), *(str(value / 128) for value in corners.ravel())]))
        label = root / "labels" / "train" / f"{i:03d}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("\n".join(lines) + "\n")
    head = f"path: {root}\ntrain: images/train\nval: images/train\nnames: [ant, bee]\n"
    (root / "data.yaml").write_text(head + "task: obb\n")
    return root


def draw_splits(root: Path) -> Path:
    """A folder of class folders below train and val, of images of many shapes, one of them gray."""
    for split, each in (("train", 5), ("val", 3)):
        for number, name in enumerate(("ant", "bee", "cat")):
            for i in range(each):
                file = root / split / name / f"{i}.jpg"
                draw(file, 10 * number + i + len(split), 90 + 17 * i, 150 - 9 * number)
                if i == 2:
                    Image.open(file).convert("L").save(file)
    return root
