"""A detector of torchvision trains on the real cell images, as docs/guides/coco.md shows it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_blocks import ROOT, blocks_of, run_elsewhere, run_page
from torch.utils.data import DataLoader

from packer import BuildOptions, PackedDataset, PackedLoader, RandomResizedCrop, as_tv_tensors, build_pack, collate

torchvision = pytest.importorskip("torchvision", reason="torchvision is optional, and not installed here")
from torchvision.models import detection  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SIDES = 144, 192
IMAGES = 48


def model_for(classes: int) -> Any:
    """The smallest detector of torchvision, untrained, for images of SIDES; few proposals, for one core."""
    torch.manual_seed(0)
    few = {"box_batch_size_per_image": 32, "rpn_pre_nms_top_n_train": 200, "rpn_post_nms_top_n_train": 64}
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=1 + classes, min_size=min(SIDES), max_size=max(SIDES), **few
    )


def train(model: Any, batches: list[tuple[torch.Tensor, list[dict[str, torch.Tensor]]]], optimizer: Any) -> float:
    """The mean loss of one epoch."""
    losses = []
    for images, targets in batches:
        loss = sum(model(list(images), targets).values())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def falls(model: Any, epochs: Iterator[Any]) -> bool:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = [train(model, batches, optimizer) for batches in epochs]
    print("losses", losses)
    return len(losses) == 2 and losses[1] < 0.9 * losses[0]


def areas(targets: list[dict[str, torch.Tensor]]) -> list[float]:
    return [((b[2] - b[0]) * (b[3] - b[1])).item() for target in targets for b in target["boxes"]]


def test_two_epochs_with_the_loader(cells: Path) -> None:
    loader = PackedLoader(
        cells, 6, shuffle=True, indices=range(IMAGES), crop=RandomResizedCrop(SIDES, scale=(0.5, 1.0)), flip=True,
        dtype=torch.float32, label_offset=1, min_area=4, seed=0,
    )  # fmt: skip
    seen = []

    def epochs() -> Iterator[Any]:
        for epoch in range(2):
            loader.set_epoch(epoch)
            batches = list(loader)
            seen.extend(target for _, targets in batches for target in targets)
            yield batches

    assert falls(model_for(len(loader.pack.classes)), epochs())
    assert len(seen) == 2 * IMAGES and min(areas(seen)) >= 4
    assert {label for target in seen for label in target["labels"].tolist()} == {1, 2, 3}


augment = v2.Compose([
    v2.RandomZoomOut(fill=114, side_range=(1.0, 2.0)), v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), v2.Resize(SIDES),
    v2.SanitizeBoundingBoxes(min_size=1), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor(),
])  # fmt: skip


def transforms(image: torch.Tensor, target: dict[str, Any], generator: torch.Generator) -> Any:
    """Torchvision takes no generator: its numbers come from torch's own, which is seeded for this sample alone."""
    target = {name: target[name] for name in ("boxes", "labels", "image_id")}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator.initial_seed())
        return augment(*as_tv_tensors(image, target))


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_of_v2_leave_no_box_without_area(cells: Path, workers: int) -> None:
    data = PackedDataset(cells, transforms=transforms, label_offset=1, seed=3)
    context = "fork" if workers else None
    loader = DataLoader(data, 16, collate_fn=collate, num_workers=workers, multiprocessing_context=context)
    found = [target for _, targets in loader for target in targets]
    assert [target["image_id"] for target in found] == list(range(len(data)))
    assert min(areas(found)) > 0 and all(len(t["boxes"]) == len(t["labels"]) for t in found)
    again = data[100][1]
    assert torch.equal(again["boxes"], found[100]["boxes"])
    model = model_for(3).train()
    images, targets = next(iter(loader))
    assert all(loss.isfinite() for loss in model(list(images[:4]), targets[:4]).values())


def test_the_page_runs(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/training.md shows, with eight of the images."""
    chosen = sorted((real_data / "voc_bccd" / "JPEGImages").iterdir())[:8]
    for image in chosen:
        for file in (image, real_data / "voc_bccd" / "Annotations" / f"{image.stem}.xml"):
            (tmp_path / "src" / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / "src" / file.parent.name)
    monkeypatch.chdir(tmp_path)
    build_pack(BuildOptions("src", "cells.lmdb", labels=("voc",), boxes="drop", resize="320x240", workers=1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run_elsewhere(ROOT / "docs" / "training.md", "test_torchvision_detector.py") == 1


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/guides/coco.md shows, from drawing to COCO's evaluation."""
    pytest.importorskip("pycocotools", reason="pycocotools is optional, and not installed here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    page = ROOT / "docs" / "guides" / "coco.md"
    assert run_page(page, elsewhere="test_torchvision_detector.py") == len(blocks_of(page))


def test_predictions_are_led_back_to_their_images(cells: Path) -> None:
    """As COCO's evaluation needs it, from shuffled batches."""
    loader = PackedLoader(cells, 4, shuffle=True, indices=range(12), dtype=torch.float32, seed=1)
    model = model_for(3).eval()
    found = {}
    for images, targets in loader:
        with torch.no_grad():
            for target, output in zip(targets, model(list(images)), strict=True):
                found[target["image_id"]] = output
    assert sorted(found) == list(range(12))
