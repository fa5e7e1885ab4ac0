"""Albumentations on PackedDataset and PackedLoader: boxes move with the image, the same for any workers and threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doc_blocks import ROOT, run_elsewhere
from torch.utils.data import DataLoader

from packer import BuildOptions, PackedDataset, PackedLoader, build_pack, collate
from packer.loading.augmentation import Augmentation
from packer.loading.decoding import flip_rows

A = pytest.importorskip("albumentations", reason="albumentations is optional, and not installed here")
pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = 24
local = threading.local()


def pipeline() -> Any:
    """One for each thread: a Compose holds random numbers of its own."""
    if not hasattr(local, "pipeline"):
        local.pipeline = A.Compose(
            [A.RandomCrop(96, 128), A.HorizontalFlip(), A.RandomBrightnessContrast(), A.Rotate(20)],
            bbox_params=A.BboxParams("pascal_voc", label_fields=["labels"], min_area=4),
        )
    return local.pipeline


def transforms(image: torch.Tensor, target: dict[str, Any], generator: torch.Generator) -> tuple[torch.Tensor, Any]:
    """As docs/training.md has it."""
    compose = pipeline()
    compose.set_random_seed(generator.initial_seed() % 2**32)
    made = compose(
        image=image.permute(1, 2, 0).numpy(), bboxes=target["boxes"].numpy(), labels=target["labels"].numpy()
    )
    boxes = torch.from_numpy(np.array(made["bboxes"], np.float32).reshape(-1, 4))
    labels = torch.from_numpy(np.array(made["labels"], np.int64))
    image = torch.from_numpy(np.ascontiguousarray(made["image"])).permute(2, 0, 1)
    return image, {"boxes": boxes, "labels": labels, "image_id": target["image_id"]}


def samples(batches: Any) -> dict[int, tuple[torch.Tensor, Any]]:
    return {
        target["image_id"]: (image.clone(), target)
        for images, targets in batches
        for image, target in zip(images, targets, strict=True)
    }


def same(a: dict[int, Any], b: dict[int, Any]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[i][0], b[i][0]) and torch.equal(a[i][1]["boxes"], b[i][1]["boxes"]) for i in a
    )


def test_the_same_samples_for_any_workers_and_threads(cells: Path) -> None:
    indices = range(0, 3 * IMAGES, 3)
    options = {"indices": indices, "seed": 4}
    expected = samples(PackedLoader(cells, 4, transforms=transforms, threads=1, **options))
    assert len(expected) == IMAGES and all(image.shape == (3, 96, 128) for image, _ in expected.values())
    assert same(expected, samples(PackedLoader(cells, 5, transforms=transforms, threads=3, shuffle=True, **options)))
    data = PackedDataset(cells, transforms=transforms, seed=4)
    for workers in (0, 2):
        loader = DataLoader(data, 4, sampler=indices, collate_fn=collate, num_workers=workers,
                            multiprocessing_context="fork" if workers else None)  # fmt: skip
        assert same(expected, samples(loader)), workers
    data.set_epoch(1)
    assert not same(expected, samples(DataLoader(data, 4, sampler=indices, collate_fn=collate)))


def test_the_page_runs(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/training.md shows."""
    monkeypatch.chdir(tmp_path)
    source = str(real_data / "voc_bccd")
    build_pack(BuildOptions(source, "cells.lmdb", labels=("voc",), boxes="drop", resize="320x240", workers=1))
    assert run_elsewhere(ROOT / "docs" / "training.md", "test_albumentations.py") == 1


def test_boxes_have_an_area_and_lie_in_the_image(cells: Path) -> None:
    found = samples(PackedLoader(cells, 8, transforms=transforms, collate="list", seed=1))
    boxes = torch.cat([target["boxes"] for _, target in found.values()])
    assert len(boxes) > 1000 and (boxes >= 0).all() and (boxes <= torch.tensor([128, 96, 128, 96])).all()
    assert ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).min() > 0
    rows = torch.cat([rows for _, rows in PackedLoader(cells, 8, transforms=transforms, collate="yolo", seed=1)])
    assert len(rows) == len(boxes) and (rows[:, 2:] <= 1).all()


@pytest.mark.parametrize("chance", [0.4, 1.0])
def test_turns_are_as_frequent_as_albumentations(chance: float) -> None:
    """Pearson's test of 10,000 draws each. Albumentations counts turns by 0 degrees, packer does not."""
    image, count = np.array([[0, 1], [2, 3]], np.uint8)[..., None], 10_000
    turn = A.RandomRotate90(p=chance)
    turn.set_random_seed(3)
    corners = [int(turn(image=image)["image"][0, 0, 0]) for _ in range(count)]
    made = Augmentation(rotate90=0.75 * chance).params(np.arange(count), 0, (2, 2), lambda records: (records, records))
    rows = np.tile(image, (count, 1, 1, 1))
    flip_rows(rows, made)
    theirs, ours = (np.bincount(of, minlength=4) for of in (corners, rows[:, 0, 0, 0]))
    assert ((theirs - ours) ** 2 / (theirs + ours)).sum() < 16.3  # 3 degrees of freedom: 1 in 1,000
