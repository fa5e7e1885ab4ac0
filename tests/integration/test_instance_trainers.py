"""Masks of objects as they are trained: torchvision's Mask R-CNN learns, and transforms move masks with images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doc_blocks import ROOT, blocks_of
from drawn_instances import draw_instances, drawn_masks
from drawn_masks import pairs, write_files
from PIL import Image
from running import good
from torch.utils.data import DataLoader

import packer
from packer import PackedDataset, PackedLoader, RandomResizedCrop, as_tv_tensors, collate

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> packer.Pack:
    home = tmp_path_factory.mktemp("instances")
    source = draw_instances(home / "cells", equal=True)
    packer.build(source, home / "cells.lmdb", instance_masks=True, encode="raw", workers=1)
    return packer.open_pack(home / "cells.lmdb")


@pytest.fixture(scope="module", params=["drawn", "people"])
def numbered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[packer.Pack, Path, str]:
    """(pack, folder, where the mask of an image is): pictures of the numbers of objects, drawn and real."""
    home = tmp_path_factory.mktemp("numbered")
    if request.param == "drawn":
        source, where = write_files(home / "set", pairs(masks="objects/{}.png", count=12)), "objects/{}.png"
        labels = "instances:objects"
    else:
        source, where = request.getfixturevalue("real_data") / "masks_pennfudan", "PedMasks/{}_mask.png"
        labels = "instances"
    packer.build(source, home / "set.lmdb", labels=labels, encode="copy", workers=1)
    return packer.open_pack(home / "set.lmdb"), source, where


def test_batches_are_those_of_the_tutorial_of_torchvision(numbered: tuple[packer.Pack, Path, str]) -> None:
    """Its dataset for Penn-Fudan, on the same files with the same flips; its boxes end in the last pixel."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    from torchvision import ops, tv_tensors

    pack, source, where = numbered
    order, seeds, flip = [7, 2, 5, 0], [], v2.RandomHorizontalFlip()

    def flipped(seed: int, *sample: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return flip(*sample)

    def move(image: torch.Tensor, target: dict[str, Any], generator: torch.Generator) -> Any:
        seeds.append(generator.initial_seed())
        return flipped(seeds[-1], *as_tv_tensors(image, target))

    kept: set[bool] = set()
    loader = DataLoader(PackedDataset(pack, transforms=move), 4, sampler=order, collate_fn=collate)
    for image, target, record, seed in zip(*next(iter(loader)), order, seeds, strict=True):
        path = source / pack.paths[record]
        numbers = torch.from_numpy(np.array(Image.open(source / where.format(path.stem))))
        masks = (numbers == numbers.unique()[1:, None, None]).to(torch.uint8)
        stored = v2.functional.pil_to_tensor(Image.open(path))
        pixels, masks = flipped(seed, stored, tv_tensors.Mask(masks))
        kept.add(torch.equal(pixels, stored))
        assert torch.equal(image, pixels) and torch.equal(target["masks"], masks) and masks.dtype == torch.uint8
        assert torch.equal(target["boxes"], ops.masks_to_boxes(masks) + torch.tensor([0, 0, 1, 1]))
        assert len(target["labels"]) == len(masks)
    assert kept == {True, False}


def two_epochs(pack: packer.Pack) -> list[float]:
    """The mean loss of each epoch of a Mask R-CNN with random weights."""
    detection = pytest.importorskip("torchvision.models.detection")
    crop = RandomResizedCrop(96, scale=(0.5, 1))
    options: dict[str, Any] = {"crop": crop, "flip": True, "min_area": 16, "label_offset": 1, "dtype": torch.float32}
    loader = PackedLoader(pack, 2, shuffle=True, seed=0, **options)
    torch.manual_seed(0)
    model = detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=1 + len(pack.classes), min_size=96, max_size=96,
        box_batch_size_per_image=32, rpn_post_nms_top_n_train=100,
    )  # fmt: skip
    optimizer, means = torch.optim.Adam(model.parameters(), 2e-4), []
    for _ in range(2):
        losses = []
        for images, targets in loader:
            loss = sum(model(list(images), targets).values())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
    print("losses", means)
    return means


def test_two_epochs_of_mask_r_cnn(numbered: tuple[packer.Pack, Path, str]) -> None:
    first, second = two_epochs(numbered[0])
    assert second < 0.9 * first


def test_two_epochs_of_mask_r_cnn_on_objects_as_coco_has_them(pack: packer.Pack) -> None:
    first, second = two_epochs(pack)
    assert second < 0.9 * first


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program for Mask R-CNN of docs/guides/segmentation.md."""
    pytest.importorskip("torchvision")
    page = ROOT / "docs" / "guides" / "segmentation.md"
    monkeypatch.chdir(tmp_path)
    own = [block for block in blocks_of(page) if "test_instance_trainers.py" in (block.reason or "")]
    assert [block.language for block in own] == ["python", "sh", "python"]
    for block in own:
        if block.language == "sh":
            for words in block.commands():
                good(*words[1:])
        else:
            exec(block.code(), {"__name__": "__main__"})
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert len(losses) == 3 and losses[-1] < 0.8 * losses[0]


def test_tv_tensors_move_together(pack: packer.Pack) -> None:
    """A flip of torchvision's moves boxes and masks: the bounds of each mask stay its box."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    drawn = drawn_masks(Path(pack.path).with_suffix(""))
    for i, (image, target) in enumerate(PackedDataset(pack)):
        _, moved = v2.RandomHorizontalFlip(p=1)(*as_tv_tensors(image, target))
        assert type(moved["masks"]).__name__ == "Mask"
        wanted = drawn[Path(pack.paths[i]).name][:, :, ::-1]
        assert np.array_equal(moved["masks"].numpy(), wanted)


def test_albumentations(pack: packer.Pack) -> None:
    albumentations = pytest.importorskip("albumentations")
    flip = albumentations.Compose([albumentations.HorizontalFlip(p=1)])

    def move(image: torch.Tensor, target: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        made = flip(image=image.permute(1, 2, 0).numpy(), masks=[*target["masks"].numpy()])
        return torch.from_numpy(made["image"]).permute(2, 0, 1), {**target, "masks": np.stack(made["masks"])}

    drawn = drawn_masks(Path(pack.path).with_suffix(""))
    for i, (image, target) in enumerate(PackedDataset(pack, transforms=move)):
        assert np.array_equal(target["masks"], drawn[Path(pack.paths[i]).name][:, :, ::-1])
        assert torch.equal(image.flip(-1), PackedDataset(pack)[i][0])
