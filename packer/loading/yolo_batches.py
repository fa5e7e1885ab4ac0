"""Batches of a PackedLoader as Ultralytics' trainers take them, augmented as its settings say (packer.ultralytics).

Nothing is handed over from worker processes: threads decode, crop and warp whole batches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import torch

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.loading.affine import RandomAffine
from packer.loading.loader import PackedLoader
from packer.loading.mosaic import Mosaic
from packer.loading.pillow_crops import PillowRandomCrop
from packer.loading.pillow_policy import SeededSteps, jitter
from packer.loading.torchvision_policy import one_of, some_of
from packer.loading.user_functions import InPlace
from packer.loading.yolo_labels import ImageFiles
from packer.model.annotation import Int64

LEAST_SIDE, LONGEST, LEAST_SHARE = 2, 100, 0.1
"""A box is dropped if a side is at most so many pixels, or the longer one so many times the other, or less is seen."""
_NOT_OBJECTS = ("shear", "perspective", "mixup", "cutmix", "copy_paste", "bgr")
_POLICIES = {"randaugment": ("RandAugment", some_of), "autoaugment": ("AutoAugment", one_of)}
_FILL, _LEAST_SCALE = 114, 1e-6
_AT_ONCE = 64
"""Rows that the caches of a processor hold."""

Form = Callable[[Any, Any, torch.Tensor], dict[str, Any]]
"""Makes a batch of Ultralytics of images, targets and record numbers."""


class Epochs:
    """Batches of one epoch after another, with what Ultralytics' trainers ask of a DataLoader.

    Args:
        loader: Makes the batches, with_index.
        dataset: What Ultralytics counts, and plots labels of.
        form: Makes its batches of those of the loader.
        drop_last: Whether the loader does.
    """

    num_workers = 0

    def __init__(self, loader: PackedLoader, dataset: Any, form: Form, drop_last: bool = False) -> None:
        self.loader, self.dataset, self._form = loader, dataset, form
        self.batch_size, self.drop_last = loader.batch_size, drop_last

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield self._form(*batch)

    @property
    def sampler(self) -> Any:
        """The order: its length is that of an epoch, and `set_epoch` sets the next one."""
        return self.loader.sampler

    def reset(self) -> None:
        """Show no mosaics from the next epoch on: Ultralytics closes them so."""
        crop = self.loader._augmentation.crop
        if isinstance(crop, Mosaic):
            self.loader.set_crop(replace(crop, chance=0.0))

    def close(self) -> None:
        """Do nothing: threads end with each epoch."""


def object_batches(dataset: Any, settings: Any, batch_size: int, device: Any, drop_last: bool = False) -> Epochs:
    """Return mosaics of images with boxes, moved, scaled, colored and flipped.

    Args:
        dataset: A PackedYOLODataset of the images.
        settings: Ultralytics': imgsz, mosaic, degrees, translate, scale, fliplr, flipud, hsv_h, ...
        batch_size: Images of a batch.
        device: The device of the batches.
        drop_last: Leave out the samples that do not fill a batch.

    Raises:
        UsageError: Of a setting that only Ultralytics' own loader has.
    """
    _refuse(settings, _NOT_OBJECTS)
    if settings.rect or getattr(settings, "augmentations", None):
        _only_theirs("rect" if settings.rect else "augmentations")
    labels = dataset.labels
    _check_colors(labels.pack)
    gains = np.array([settings.hsv_h, settings.hsv_s, settings.hsv_v])
    span = settings.scale if isinstance(settings.scale, tuple | list) else (1 - settings.scale, 1 + settings.scale)
    low_high = max(span[0], _LEAST_SCALE), span[1]
    loader = PackedLoader(
        labels.pack,
        min(batch_size, len(labels)),
        shuffle=True,
        indices=labels.records,
        seed=settings.seed,
        drop_last=drop_last,
        crop=Mosaic(settings.imgsz, chance=settings.mosaic, fill=_FILL),
        affine=RandomAffine(
            settings.degrees,
            translate=(settings.translate, settings.translate),
            scale=low_high,
            fill=_FILL,
        ),
        min_visible=LEAST_SHARE,
        flip=float(settings.fliplr),
        vflip=float(settings.flipud),
        transform=_Colors(gains) if gains.any() else None,
        collate="yolo",
        ignored="drop",
        parts=(),
        with_index=True,
        device=device,
        **_threads(settings),
    )
    return Epochs(loader, dataset, _Objects(dataset, settings), drop_last)


class _Objects:
    """Makes batches of rows: image, class and box."""

    def __init__(self, dataset: Any, settings: Any) -> None:
        self._pack, self._classes, self._single = dataset.labels.pack, settings.classes, settings.single_cls
        self._size = settings.imgsz

    def __call__(self, images: Any, rows: torch.Tensor, records: torch.Tensor) -> dict[str, Any]:
        rows = torch.unique(rows, dim=0)  # Ultralytics reads an object once that is listed twice
        sides = rows[:, 4:] * self._size
        seen = (sides > LEAST_SIDE).all(dim=1) & (sides.amax(dim=1) < LONGEST * sides.amin(dim=1))
        if self._classes is not None:
            seen &= torch.isin(rows[:, 1], torch.tensor(self._classes, dtype=rows.dtype, device=rows.device))
        rows = rows[seen]
        files = ImageFiles(self._pack, records.tolist())
        classes = torch.zeros_like(rows[:, 1:2]) if self._single else rows[:, 1:2]
        return {
            "img": images,
            "batch_idx": rows[:, 0],
            "cls": classes,
            "bboxes": rows[:, 2:],
            "im_file": tuple(files[i] for i in range(len(files))),
        }


class _Colors(InPlace):
    """Hue, saturation and value changed at random, of each image by itself, as by Ultralytics' RandomHSV.

    Args:
        gains: The largest change of each, as a share.
    """

    def __init__(self, gains: Any) -> None:
        self._gains = gains

    def __call__(self, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return an image, uint8 (3, height, width), changed in its place; one of other channels as it is."""
        if image.shape[0] != 3:
            return image
        hue, saturation, value = self._gains * (2 * torch.rand(3, generator=generator).numpy() - 1)
        levels = np.arange(256)
        table = np.stack([(levels + 180 * hue) % 180, levels * (1 + saturation), levels * (1 + value)], axis=1)
        table = table.clip(0, 255).astype(np.uint8)
        table[0, 1] = 0  # white stays white
        pixels = image.permute(1, 2, 0).numpy()
        for start in range(0, len(pixels), _AT_ONCE):
            rows = pixels[start : start + _AT_ONCE]
            changed = cv2.LUT(cv2.cvtColor(rows, cv2.COLOR_RGB2HSV), table[None])
            rows[:] = cv2.cvtColor(changed, cv2.COLOR_HSV2RGB)
        return image


def class_batches(dataset: Any, settings: Any, batch_size: int, device: Any, drop_last: bool = False) -> Epochs:
    """Return crops of images with a class, flipped, and changed as by Pillow, which Ultralytics changes them with.

    Args:
        dataset: A PackedClassificationDataset of the images.
        settings: Ultralytics': imgsz, scale, fliplr, flipud, auto_augment, erasing, hsv_h, ...
        batch_size: Images of a batch.
        device: The device of the batches.
        drop_last: Leave out the samples that do not fill a batch.

    Raises:
        UsageError: Of a setting that only Ultralytics' own loader has.
    """
    samples = dataset.samples
    _check_colors(samples.files.pack)
    loader = PackedLoader(
        samples.files.pack,
        min(batch_size, len(samples)),
        shuffle=True,
        indices=samples.files.records,
        seed=settings.seed,
        drop_last=drop_last,
        crop=PillowRandomCrop(
            settings.imgsz, scale=(max(1 - settings.scale, _LEAST_SCALE), 1.0), interpolation="bilinear"
        ),
        flip=float(settings.fliplr),
        vflip=float(settings.flipud),
        transform=_colors_of(settings),
        augment=_erasing(settings.erasing),
        dtype=torch.float32,
        parts=(),
        with_index=True,
        device=device,
        **_threads(settings),
    )
    return Epochs(loader, dataset, _Classes(samples.numbers), drop_last)


class _Classes:
    """Makes batches with the numbers that Ultralytics has for classes."""

    def __init__(self, numbers: Int64) -> None:
        self._numbers = torch.from_numpy(numbers)

    def __call__(self, images: Any, classes: torch.Tensor, records: torch.Tensor) -> dict[str, Any]:
        return {"img": images, "cls": self._numbers.to(classes.device)[classes]}


def _colors_of(settings: Any) -> SeededSteps | None:
    """Return what changes an image by Pillow, or None."""
    v1 = importlib.import_module("torchvision.transforms")
    policy = settings.auto_augment
    if policy in _POLICIES:
        name, step_of = _POLICIES[policy]
        made = getattr(v1, name)(interpolation=v1.InterpolationMode.BILINEAR)
        return SeededSteps([step_of(made, (settings.imgsz, settings.imgsz))])
    if policy:
        _only_theirs("auto_augment", policy)
    if not (settings.hsv_v or settings.hsv_s or settings.hsv_h):
        return None
    jitters = v1.ColorJitter(settings.hsv_v, settings.hsv_v, settings.hsv_s, settings.hsv_h)
    return SeededSteps([jitter(jitters, v1.functional)])


def _erasing(chance: float) -> Any:
    return importlib.import_module("torchvision.transforms.v2").RandomErasing(chance) if chance else None


def _check_colors(pack: Pack) -> None:
    if pack.manifest.mode != "rgb":
        step = "take the trainer that is not called Threaded, which makes RGB of them"
        raise UsageError(pack.path, f"has {pack.manifest.mode} images", step)


def _threads(settings: Any) -> dict[str, Any]:
    return {"threads": settings.workers} if settings.workers else {}  # Ultralytics sets 0 on the CPU


def _refuse(settings: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(settings, name):
            _only_theirs(name, getattr(settings, name))


def _only_theirs(name: str, value: Any = True) -> None:
    step = f"leave {name} out, or take the trainer that is not called Threaded"
    raise UsageError(name, f"is {value}, which only Ultralytics' own loader does", step)
