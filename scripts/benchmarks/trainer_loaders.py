"""The batches of each trainer: by its own loader from files, or from a pack of these. `trainers` measures them.

Trainers are imported where they are used: few of them are installed together.
"""

from __future__ import annotations

import random
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
    module: str
    """What must be installed."""
    batches: Callable[[Inputs], Iterable[object]]
    """Returns the batches of one epoch of training, again with each loop; called within the time to the first batch."""
    raw: str = ""
    """`--resize` of the pack of pixels; as they are if empty."""


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OnDevice:
    """The batches of a loader, each moved by a function."""

    def __init__(self, loader: Iterable[object], move: Callable[[object], object]) -> None:
        self._loader, self._move = loader, move

    def __iter__(self) -> Iterator[object]:
        return map(self._move, self._loader)


def moved(loader: Iterable[Any], device: str) -> Iterable[object]:
    """Return the batches of a DataLoader, moved to the device as the references do it, tensor by tensor."""
    from packer.loading.to_device import map_tensors

    if device == "cpu":
        return loader
    return OnDevice(loader, lambda batch: map_tensors(batch, lambda tensor, _: tensor.to(device)))


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


def reference_classes(inputs: Inputs) -> Iterable[object]:
    """Return the batches of torchvision's references/classification, with the recipe of its defaults."""
    if inputs.packed:
        from packer import PackedLoader, RandomResizedCrop

        crop = RandomResizedCrop(inputs.size, interpolation="bilinear")
        options: dict[str, Any] = {"threads": inputs.workers, "device": inputs.device, "mean": MEAN, "std": STD}
        return PackedLoader(inputs.data, inputs.batch, shuffle=True, crop=crop, flip=True, **options)
    import torch
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    steps = [
        transforms.RandomResizedCrop(inputs.size, antialias=True), transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float), transforms.Normalize(MEAN, STD),
    ]  # fmt: skip
    data = datasets.ImageFolder(inputs.data / "train", transforms.Compose(steps))
    pinned = inputs.device != "cpu"
    loader = DataLoader(data, inputs.batch, shuffle=True, num_workers=inputs.workers, pin_memory=pinned)
    return moved(loader, inputs.device)


def reference_boxes(inputs: Inputs) -> Iterable[object]:
    """Return the batches of torchvision's references/detection: mirrored images, with ``--use-v2``, without masks."""
    if inputs.packed:
        import torch

        from packer import PackedLoader, WholeImage

        options: dict[str, Any] = {"threads": inputs.workers, "device": inputs.device, "dtype": torch.float32}
        options |= {"crop": WholeImage(), "flip": True, "label_offset": 1}
        return PackedLoader(inputs.data, inputs.batch, shuffle=True, drop_last=True, **options)
    import torch
    from torch.utils.data import DataLoader
    from torchvision import datasets
    from torchvision.transforms import v2

    steps = [
        v2.RandomHorizontalFlip(0.5), v2.ToImage(), v2.ToDtype(torch.float, scale=True),
        v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(), v2.ToPureTensor(),
    ]  # fmt: skip
    home = inputs.data / "train"
    coco = datasets.CocoDetection(home, home / "_annotations.coco.json", transforms=v2.Compose(steps))
    data = datasets.wrap_dataset_for_transforms_v2(coco, target_keys=["boxes", "labels", "image_id"])
    options = {"num_workers": inputs.workers, "collate_fn": in_columns, "drop_last": True}
    return moved(DataLoader(data, inputs.batch, shuffle=True, **options), inputs.device)


def in_columns(samples: list[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return images and targets, as `utils.collate_fn` of the references."""
    return tuple(zip(*samples, strict=True))


class Scenes:
    """Images and their masks, as references/segmentation reads and changes them."""

    def __init__(self, home: Path, size: int) -> None:
        self.pairs = list(zip(sorted(home.glob("images/*")), sorted(home.glob("masks/*.png")), strict=True))
        self.size = size

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import numpy as np
        import torch
        from PIL import Image
        from torchvision import transforms
        from torchvision.transforms import functional

        image, mask = (
            Image.open(path).convert(mode) for path, mode in zip(self.pairs[index], ("RGB", "L"), strict=True)
        )
        short = random.randint(260, 1040)
        image = functional.resize(image, short, antialias=True)
        mask = functional.resize(mask, short, interpolation=transforms.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = functional.hflip(image), functional.hflip(mask)
        room = [max(0, self.size - side) for side in image.size]
        image, mask = functional.pad(image, [0, 0, *room]), functional.pad(mask, [0, 0, *room], fill=255)
        part = transforms.RandomCrop.get_params(image, (self.size, self.size))
        image, mask = functional.crop(image, *part), functional.crop(mask, *part)
        pixels = functional.convert_image_dtype(functional.pil_to_tensor(image), torch.float)
        return functional.normalize(pixels, MEAN, STD), torch.as_tensor(np.array(mask), dtype=torch.int64)


def reference_masks(inputs: Inputs) -> Iterable[object]:
    """Return the batches of torchvision's references/segmentation."""
    if inputs.packed:
        from packer import PackedLoader, RandomScaleCrop

        crop = RandomScaleCrop(inputs.size, short=(260, 1040), interpolation="bilinear")
        options: dict[str, Any] = {"threads": inputs.workers, "device": inputs.device, "mean": MEAN, "std": STD}
        return PackedLoader(inputs.data, inputs.batch, shuffle=True, drop_last=True, crop=crop, flip=True, **options)
    from torch.utils.data import DataLoader

    data: Any = Scenes(inputs.data, inputs.size)
    options = {"num_workers": inputs.workers, "drop_last": True}
    return moved(DataLoader(data, inputs.batch, shuffle=True, **options), inputs.device)


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


def ultralytics_settings(task: str, inputs: Inputs) -> Any:
    """Return Ultralytics' settings of training, its defaults but for the size."""
    from ultralytics.cfg import get_cfg

    return get_cfg(overrides={"task": task, "imgsz": inputs.size, "workers": inputs.workers})


def ultralytics_detect(inputs: Inputs) -> Iterable[object]:
    """Mosaics of YOLO's detection, moved, scaled, colored and flipped."""
    from ultralytics.data.build import build_dataloader, build_yolo_dataset
    from ultralytics.data.utils import check_det_dataset

    settings = ultralytics_settings("detect", inputs)
    if not inputs.packed:
        data = check_det_dataset(str(inputs.data / "data.yaml"))
        dataset = build_yolo_dataset(settings, data["train"], inputs.batch, data)
        own: Iterable[object] = build_dataloader(dataset, inputs.batch, inputs.workers, device=inputs.device)
        return own
    from packer import ultralytics as adapter
    from packer.loading.yolo_batches import object_batches
    from packer.loading.yolo_data import read_data

    described = read_data({"path": str(inputs.data)}, "", "detect")
    dataset = adapter._build_dataset(settings, str(inputs.data), inputs.batch, described)
    return object_batches(dataset, settings, inputs.batch, inputs.device)


def ultralytics_classify(inputs: Inputs) -> Iterable[object]:
    """Crops of YOLO's classification, with RandAugment and erasing."""
    from ultralytics.data.build import build_dataloader
    from ultralytics.data.dataset import ClassificationDataset

    settings = ultralytics_settings("classify", inputs)
    if not inputs.packed:
        dataset = ClassificationDataset(str(inputs.data / "train"), settings, augment=True, prefix="train")
        own: Iterable[object] = build_dataloader(dataset, inputs.batch, inputs.workers, device=inputs.device)
        return own
    from packer.loading.yolo_batches import class_batches
    from packer.ultralytics import PackedClassificationDataset

    dataset = PackedClassificationDataset(str(inputs.data), settings, augment=True, prefix="train")
    return class_batches(dataset, settings, inputs.batch, inputs.device)


TRAINERS: dict[str, Trainer] = {
    "rf-detr": Trainer("RF-DETR 576 px", "boxes", 576, 16, "rfdetr", rf_detr, raw="576x576"),
    "timm": Trainer("timm A3, 160 px", "classes", 160, 64, "timm", timm_a3),
    "torchvision-classification": Trainer(
        "torchvision, classification 176 px", "classes", 176, 32, "torchvision", reference_classes
    ),
    "torchvision-detection": Trainer("torchvision, detection", "boxes", 640, 2, "torchvision", reference_boxes),
    "torchvision-segmentation": Trainer(
        "torchvision, segmentation 480 px", "masks", 480, 8, "torchvision", reference_masks
    ),
    "ultralytics-detect": Trainer("Ultralytics, detect 640 px", "yolo", 640, 16, "ultralytics", ultralytics_detect),
    "ultralytics-classify": Trainer(
        "Ultralytics, classify 224 px", "classes", 224, 32, "ultralytics", ultralytics_classify
    ),
    "libreyolo": Trainer("LibreYOLO, YOLOX 640 px", "yolo", 640, 16, "libreyolo", libreyolo),
    "fastai": Trainer("fastai 224 px", "classes", 224, 64, "fastai", fastai),
}
