"""Masks of objects as they are trained: torchvision's Mask R-CNN learns, and transforms move masks with images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doc_blocks import ROOT, blocks_of
from drawn_instances import draw_instances, drawn_masks
from running import good

import packer
from packer import PackedDataset, as_tv_tensors

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> packer.Pack:
    home = tmp_path_factory.mktemp("instances")
    source = draw_instances(home / "cells", equal=True)
    packer.build(source, home / "cells.lmdb", instance_masks=True, encode="raw", workers=1)
    return packer.open_pack(home / "cells.lmdb")


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
