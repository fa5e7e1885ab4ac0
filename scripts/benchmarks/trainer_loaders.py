"""The batches of each trainer: by its own loader from files, or from a pack of these. `trainers` measures them.

Trainers are imported where they are used: few of them are installed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


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


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def libreyolo(inputs: Inputs) -> Iterable[object]:
    """Return the batches of YOLOX in LibreYOLO: mosaic, mixup, colors and flips, in its DataLoader for packs too."""
    import json
    import tempfile

    from libreyolo import LibreYOLOX
    from libreyolo.models.yolox.trainer import YOLOXTrainer

    kind, data = YOLOXTrainer, inputs.data / "data.yaml"
    if inputs.packed:
        from packer import libreyolo as adapter

        kind = adapter._packed_trainer(YOLOXTrainer)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            json.dump(adapter._describe({"train": inputs.data, "val": inputs.data}), file)
        data = Path(file.name)
    model = LibreYOLOX(None, size="n", device="cpu")
    trainer = kind(
        model=model.model, wrapper_model=model, size="n", num_classes=model.nb_classes, data=str(data),
        batch=inputs.batch, imgsz=inputs.size, workers=inputs.workers, device=inputs.device,
    )  # fmt: skip
    trainer._setup_data()
    batches: Iterable[object] = trainer.train_loader
    return batches


def fastai(inputs: Inputs) -> Iterable[object]:
    """Return the batches of fastai: RandomResizedCrop and flips of each image, normalized batches."""
    if inputs.packed:
        from packer import PackedLoader, RandomResizedCrop

        crop = RandomResizedCrop(inputs.size, scale=(0.35, 1))
        return PackedLoader(
            inputs.data, inputs.batch, shuffle=True, drop_last=True, crop=crop, flip=True, threads=inputs.workers,
            device=inputs.device, mean=MEAN, std=STD,
        )  # fmt: skip
    from fastai.vision.augment import FlipItem
    from fastai.vision.augment import RandomResizedCrop as TheirCrop
    from fastai.vision.data import ImageDataLoaders, Normalize

    normalize = Normalize.from_stats(MEAN, STD, cuda=inputs.device != "cpu")
    loaders = ImageDataLoaders.from_folder(
        inputs.data, valid="train", item_tfms=[TheirCrop(inputs.size), FlipItem()], batch_tfms=[normalize],
        bs=inputs.batch, num_workers=inputs.workers, device=inputs.device,
    )  # fmt: skip
    batches: Iterable[object] = loaders.train
    return batches


TRAINERS: dict[str, Trainer] = {
    "timm": Trainer("timm A3, 160 px", "classes", 160, 64, "timm", timm_a3),
    "libreyolo": Trainer("LibreYOLO, YOLOX", "yolo", 640, 16, "libreyolo", libreyolo),
    "fastai": Trainer("fastai", "classes", 224, 64, "fastai", fastai),
}
