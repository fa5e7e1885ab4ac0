"""The dicts of docs/trainers.md are what Detectron2's models take, as its page "Use Models" describes them.

Detectron2 is on no package index: where it is not installed, its two structures are stood in for here, with the checks
that its own do.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from doc_blocks import ROOT, blocks_of
from drawn import draw_shots

from packer import BuildOptions, build_pack, open_pack


class Boxes:
    """Boxes (n, 4) in pixels."""

    def __init__(self, tensor: torch.Tensor) -> None:
        assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32 and tensor.shape[1:] == (4,)
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)


class Instances:
    """Fields of one length, set as attributes."""

    def __init__(self, image_size: tuple[int, int], **fields: Any) -> None:
        self._image_size, self._fields = image_size, {}
        for name, value in fields.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        assert all(len(other) == len(value) for other in self._fields.values())
        self._fields[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(name)
        return self._fields[name]

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size


@pytest.fixture
def structures(monkeypatch: pytest.MonkeyPatch) -> None:
    """`detectron2.structures`, or what stands in for it."""
    if importlib.util.find_spec("detectron2") is None:
        package, module = ModuleType("detectron2"), ModuleType("detectron2.structures")
        module.Boxes, module.Instances = Boxes, Instances  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "detectron2", package)
        monkeypatch.setitem(sys.modules, "detectron2.structures", module)


@pytest.mark.usefixtures("structures")
def test_the_dicts_are_those_of_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw_shots(tmp_path / "shots", 9)
    build_pack(BuildOptions("shots", "shots.lmdb", labels=("voc",), workers=1))
    (block,) = [
        block for block in blocks_of(ROOT / "docs" / "trainers.md") if "test_detectron2.py" in (block.reason or "")
    ]
    names: dict[str, Any] = {}
    exec(block.code(), names)
    pack, seen = open_pack("shots.lmdb"), []
    for batch in [names["inputs"], next(names["batches"]), next(names["batches"])]:
        assert isinstance(batch, list)
        for mapped in batch:
            seen.append(mapped["image_id"])
            image, instances = mapped["image"], mapped["instances"]
            assert image.dtype == torch.uint8 and image.shape == (3, mapped["height"], mapped["width"])
            assert tuple(instances.image_size) == (mapped["height"], mapped["width"])
            assert instances.gt_classes.dtype == torch.int64
            assert (
                len(instances.gt_boxes) == len(instances.gt_classes) == len(pack.annotation(mapped["image_id"]).boxes)
            )
            assert not len(instances.gt_classes) or int(instances.gt_classes.max()) < len(pack.classes)
    assert sorted(seen) == list(range(9))
    names["batches"].close()
