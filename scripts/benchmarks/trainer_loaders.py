"""The batches of each trainer: by its own loader from files, or from a pack of these. `trainers` measures them.

Trainers are imported where they are used: few of them are installed together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Inputs:
    """What one side of a comparison reads."""

    data: Path
    """Its own files as `Trainer.kind` says, or a pack of those of training."""
    packed: bool
    """Whether `data` is a pack."""
    size: int
    """Side of the images of a batch, in pixels."""
    batch: int
    workers: int
    """Worker processes of the trainer's own loader, threads of packer's."""
    device: str


class Trainer(NamedTuple):
    """A trainer whose loaders are compared."""

    name: str
    kind: str
    """Its own files. classes: train/CLASS/*.jpg; boxes: train/*.jpg, train/_annotations.coco.json, and valid/ alike;
    yolo: data.yaml, images/train, labels/train; masks: images/*.jpg and masks/*.png."""
    size: int
    batch: int
    library: str
    """What must be installed."""
    batches: Callable[[Inputs], Iterable[object]]
    """Returns the batches of one epoch of training, again with each loop; called within the time to the first batch."""
    raw: str = ""
    """`--resize` of the pack of pixels; as they are if empty."""


def timm_a3(given: Inputs) -> Iterable[object]:
    """Return batches of the recipe A3 of "ResNet strikes back", as timm's train.py gets them."""
    import torch
    from timm.data import FastCollateMixup, create_dataset, create_loader

    from packer import timm as packed

    dataset = packed.create_dataset("", given.data) if given.packed else create_dataset("", str(given.data), "train")
    make = packed.create_loader if given.packed else create_loader
    batches: Iterable[object] = make(
        dataset,
        input_size=(3, given.size, given.size),
        batch_size=given.batch,
        is_training=True,
        auto_augment="rand-m6-mstd0.5-inc1",
        interpolation="bicubic",
        collate_fn=FastCollateMixup(mixup_alpha=0.1, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=3),
        num_workers=given.workers,
        pin_memory=given.device != "cpu",
        device=torch.device(given.device),
    )
    return batches


class OnDevice:
    """The batches of a loader, each moved by a function."""

    def __init__(self, loader: Iterable[object], move: Callable[[object], object]) -> None:
        self._loader, self._move = loader, move

    def __iter__(self) -> Iterator[object]:
        return map(self._move, self._loader)


def rf_detr(inputs: Inputs) -> Iterable[object]:
    """RF-DETR's data module, of its folder or of a pack: its default crops and flips, at one size."""
    warnings.simplefilter("ignore")  # that there are no weights
    import torch
    from rfdetr.config import RFDETRMediumConfig, TrainConfig
    from rfdetr.training import RFDETRDataModule

    from packer.rfdetr import PackedRFDETRDataModule

    model = RFDETRMediumConfig(pretrain_weights=None, resolution=inputs.size)
    config = TrainConfig(
        dataset_dir=str(inputs.data), batch_size=inputs.batch, grad_accum_steps=1, num_workers=inputs.workers,
        multi_scale=False, augmentation_backend="torchvision", seed=0,
    )  # fmt: skip
    if inputs.packed:
        module: Any = PackedRFDETRDataModule(model, config, val=inputs.data)
    else:
        module = RFDETRDataModule(model, config)
    device = torch.device(inputs.device)
    module.trainer = SimpleNamespace(
        world_size=1, global_rank=0, accumulate_grad_batches=1, strategy=SimpleNamespace(root_device=device)
    )
    module.setup("fit")
    return OnDevice(module.train_dataloader(), lambda batch: module.transfer_batch_to_device(batch, device, 0))


TRAINERS: dict[str, Trainer] = {
    "rf-detr": Trainer("RF-DETR", "boxes", 576, 16, "rfdetr", rf_detr, raw="576x576"),
    "timm": Trainer("timm A3, 160 px", "classes", 160, 64, "timm", timm_a3),
}
