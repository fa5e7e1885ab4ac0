"""Trains Ultralytics YOLO from packs: its trainers and validators, with a dataset that reads a pack.

    YOLO("yolo11n.yaml").train(data="bccd.lmdb", trainer=packer.ultralytics.DetectionTrainer)

Mosaic, rectangular batches, caching, metrics and everything else stay Ultralytics' own. Its license is AGPL-3.0:
nothing of it is copied here.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import unwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packer.errors import NotInstalled, UsageError
from packer.format.pack import open_pack
from packer.format.pack_paths import names_a_pack
from packer.loading.yolo_batches import Epochs, class_batches, object_batches
from packer.loading.yolo_data import read_data
from packer.loading.yolo_labels import ClassSamples, ImageFiles, MaskLabels, YoloLabels, imread, read_mask
from packer.model.annotation import Mask
from packer.system.machine import install_command
from packer.system.rebound import Library

__all__ = [
    "ClassificationTrainer",
    "ClassificationValidator",
    "DetectionTrainer",
    "DetectionValidator",
    "OBBTrainer",
    "OBBValidator",
    "PackedClassificationDataset",
    "PackedPolygonSemanticDataset",
    "PackedSemanticDataset",
    "PackedYOLODataset",
    "PoseTrainer",
    "PoseValidator",
    "SegmentationTrainer",
    "SegmentationValidator",
    "SemanticSegmentationTrainer",
    "SemanticSegmentationValidator",
    "ThreadedClassificationTrainer",
    "ThreadedDetectionTrainer",
]


_INSTALL = install_command("ultralytics")
try:
    from ultralytics import __version__ as _version
    from ultralytics.data.augment import classify_augmentations, classify_transforms
    from ultralytics.data.build import build_dataloader, build_yolo_dataset
    from ultralytics.data.dataset import ClassificationDataset, PolygonSemanticDataset, SemanticDataset, YOLODataset
    from ultralytics.data.utils import add_polygon_background, check_cls_dataset, get_split_fraction
    from ultralytics.engine.validator import BaseValidator
    from ultralytics.models import yolo
    from ultralytics.nn.autobackend import check_class_names
    from ultralytics.nn.tasks import BaseModel, guess_model_task, yaml_model_load
    from ultralytics.utils import LOGGER, YAML
    from ultralytics.utils.patches import override_configs
    from ultralytics.utils.torch_utils import smart_inference_mode
except ImportError as error:
    if (error.name or "").partition(".")[0] != "ultralytics":
        raise
    lacks = "is not installed" if error.name == "ultralytics" else f"is here without what it needs: {error.msg}"
    raise NotInstalled("packer.ultralytics", f"needs Ultralytics, which {lacks}", _INSTALL) from None


_LIBRARY = Library("ultralytics", _version, _INSTALL)
_NO_CACHE = "cache='disk' does nothing for a pack; to store decoded images, build it as raw"


class PackedYOLODataset(YOLODataset):  # type: ignore[misc]
    """A YOLODataset whose `img_path` is a pack. Nothing is scanned and no cache file is written.

    Pickles small: workers and ranks map the pack's files, so that the page cache holds one copy for all.
    """

    im_files: Any
    labels: Any
    labels_class = YoloLabels

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name_images()

    def get_img_files(self, img_path: Any) -> list[str]:
        """Open the pack. The images have no names yet: a path for each of millions would take seconds."""
        self._pack = open_pack(img_path)
        return []

    def get_labels(self) -> YoloLabels:
        """Return the labels of the first images, as many as `fraction` says."""
        n = len(self._pack)
        count = min(n, self.fraction if isinstance(self.fraction, int) else max(1, round(n * self.fraction)))
        # of a folder, Ultralytics measures a few files: draw as often, so that the same seed gives the same batches
        random.sample(range(count), min(5, count))
        dims = self.data["kpt_shape"][1] if self.use_keypoints else 0
        return self.labels_class(self._pack, range(count), dims, oriented=self.use_obb)

    def update_labels(self, include_class: Sequence[int] | None) -> None:
        """Keep only objects of these classes; class 0 for all if `single_cls`."""
        old = self.labels
        self.labels = self.labels_class(
            old.pack, old.records, old.kpt_dims, include_class, self.single_cls, old.oriented
        )

    def set_rectangle(self) -> None:
        """Let Ultralytics sort the shapes alone, and bring the records into its order."""
        labels = self.labels
        self.im_files, self.labels = range(self.ni), [{"shape": shape} for shape in labels.shapes()]
        super().set_rectangle()
        self.labels = copy(labels)
        self.labels.records = np.asarray(labels.records, np.int64)[np.asarray(self.im_files, np.int64)]
        self.im_files = []

    load_image = _LIBRARY.with_names(YOLODataset.load_image, imread=imread)

    def check_cache_ram(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether the decoded images fit into memory."""
        self._name_images()  # images are read now
        fits: bool = super().check_cache_ram(*args, **kwargs)
        return fits

    def check_cache_disk(self, *args: Any, **kwargs: Any) -> bool:
        """Return False: a pack is on the disk already."""
        LOGGER.warning(f"{self.prefix}{_NO_CACHE}")
        self.cache = None
        return False

    def _name_images(self) -> None:
        self.im_files = ImageFiles(self._pack, self.labels.records)
        self.npy_files = [Path(self._pack.path, "none.npy")] * self.ni  # no image has a decoded copy


class PackedSemanticDataset(SemanticDataset, PackedYOLODataset):  # type: ignore[misc]
    """A SemanticDataset whose `img_path` is a pack with masks."""

    labels_class = MaskLabels

    def load_mask(self, index: int, image_shape: tuple[int, int] | None = None) -> Mask:
        """Return the mask of an image: ids of classes, and 255. The pack has mapped them when it was built."""
        return read_mask(self._pack, int(self.labels.records[index]))


class PackedPolygonSemanticDataset(PolygonSemanticDataset, PackedYOLODataset):  # type: ignore[misc]
    """A PolygonSemanticDataset whose `img_path` is a pack with polygons."""


class PackedClassificationDataset(ClassificationDataset):  # type: ignore[misc]
    """A ClassificationDataset whose `root` is a pack with a class for each image. Nothing is scanned.

    Args:
        root: The pack.
        args: Ultralytics' settings.
        augment: Whether images are changed at random.
        prefix: The split.
        names: The classes by number, those of the model: images of others are left out.
    """

    imread = staticmethod(imread)

    def __init__(  # theirs scans a folder
        self, root: str, args: Any, augment: bool = False, prefix: str = "", names: Mapping[int, str] | None = None
    ) -> None:
        pack = open_pack(root)
        self.root, self.augment, self.prefix = pack.path, augment, f"{prefix}: " if prefix else ""
        fraction = get_split_fraction(args.fraction, prefix or ("train" if augment else "val"))
        n = len(pack)
        count = min(n, fraction if isinstance(fraction, int) else max(int(fraction > 0), round(n * fraction)))
        records = np.linspace(0, n - 1, count, dtype=np.int64)
        self.samples = ClassSamples(pack, records, self._numbers(pack.classes, names, args.single_cls))
        if len(self.samples) < count:
            LOGGER.warning(
                f"{self.prefix}{count - len(self.samples)} images of classes that the model lacks are skipped"
            )
        self.cache_disk, self.cache_ram = False, args.cache is True or str(args.cache).lower() == "ram"
        if str(args.cache).lower() == "disk":
            LOGGER.warning(f"{self.prefix}{_NO_CACHE}")
        if self.cache_ram:
            self.cache_images()
        self.torch_transforms = self._augmentations(args) if augment else classify_transforms(args.imgsz)

    @staticmethod
    def _augmentations(args: Any) -> Any:
        named = {name: getattr(args, name) for name in ("erasing", "auto_augment", "hsv_h", "hsv_s", "hsv_v")}
        scale = (1 - args.scale, 1)
        return classify_augmentations(args.imgsz, scale=scale, hflip=args.fliplr, vflip=args.flipud, **named)

    @staticmethod
    def _numbers(own: Sequence[str], names: Mapping[int, str] | None, single_cls: bool) -> list[int]:
        """Return the number of each class of a pack as Ultralytics finds them: by name, if the model knows any."""
        if single_cls:
            return [0] * len(own)
        classes = list(check_class_names(list(own)).values())
        known = {name: number for number, name in check_class_names(names).items()} if names else {}
        if known.keys() & set(classes):
            return [known.get(name, -1) for name in classes]
        return [number if not known or number < len(known) else -1 for number in range(len(classes))]


def _or_packed(theirs: type, packed: type) -> Any:
    """Return what makes a dataset of Ultralytics, or of packs if it is given one."""

    def dataset(img_path: Any, *args: Any, **kwargs: Any) -> Any:
        kind = packed if isinstance(img_path, str) and names_a_pack(img_path) else theirs
        return kind(img_path, *args, **kwargs)

    return dataset


_build_dataset = _LIBRARY.with_names(
    build_yolo_dataset,
    YOLODataset=_or_packed(YOLODataset, PackedYOLODataset),
    SemanticDataset=_or_packed(SemanticDataset, PackedSemanticDataset),
    PolygonSemanticDataset=_or_packed(PolygonSemanticDataset, PackedPolygonSemanticDataset),
)
_classification_dataset = _or_packed(ClassificationDataset, PackedClassificationDataset)


def _check_cls_dataset(dataset: Any, split: str = "") -> dict[str, Any]:
    return _read_data(dataset, "classify", split or "val") or check_cls_dataset(dataset, split)


class _TaskValidator:
    """What all validators add to those of Ultralytics."""

    args: Any

    def get_model(self, model: Any, trainer: Any = None, **kwargs: Any) -> Any:
        """Return Ultralytics' model, if it is one for the task of this validator."""
        if trainer is None and isinstance(model, BaseModel):
            _check_task(guess_model_task(model), self.args.task, "validator")
        return super().get_model(model, trainer, **kwargs)  # type: ignore[misc]


class _Validator(_TaskValidator):
    """What those of a YOLODataset add."""

    save_dir: Path
    build_dataset = _LIBRARY.with_names(yolo.detect.DetectionValidator.build_dataset, build_yolo_dataset=_build_dataset)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.describe_packs()

    def describe_packs(self) -> None:
        """Write what `data` says of packs to a data.yaml beside the results, and take that for `data`."""
        data = _read_data(self.args.data, self.args.task, self.args.split)
        if data is not None:
            self.args.data = os.path.join(self.save_dir, "data.yaml")
            unfinished = f"{self.args.data}.{secrets.token_hex(4)}.yaml"  # every rank writes it
            YAML.save(unfinished, data)
            os.replace(unfinished, self.args.data)


class DetectionValidator(_Validator, yolo.detect.DetectionValidator):  # type: ignore[misc]
    """Ultralytics' DetectionValidator; ``data`` names packs."""


class SegmentationValidator(_Validator, yolo.segment.SegmentationValidator):  # type: ignore[misc]
    """Ultralytics' SegmentationValidator; ``data`` names packs with polygons."""


class PoseValidator(_Validator, yolo.pose.PoseValidator):  # type: ignore[misc]
    """Ultralytics' PoseValidator; ``data`` names packs with keypoints."""


class OBBValidator(_Validator, yolo.obb.OBBValidator):  # type: ignore[misc]
    """Ultralytics' OBBValidator; ``data`` names packs with oriented boxes, or else polygons."""


class SemanticSegmentationValidator(_Validator, yolo.semantic.SemanticSegmentationValidator):  # type: ignore[misc]
    """Ultralytics' SemanticSegmentationValidator; ``data`` names packs with masks, or with polygons."""


class ClassificationValidator(_TaskValidator, yolo.classify.ClassificationValidator):  # type: ignore[misc]
    """Ultralytics' ClassificationValidator; ``data`` names packs with a class for each image."""

    build_dataset = _LIBRARY.with_names(
        yolo.classify.ClassificationValidator.build_dataset, ClassificationDataset=_classification_dataset
    )
    __call__ = smart_inference_mode()(
        _LIBRARY.with_names(unwrap(BaseValidator.__call__), check_cls_dataset=_check_cls_dataset)
    )

    def describe_packs(self) -> None:
        """Leave `data` as it is: Ultralytics looks for folders, so packs are named when it does."""


class _Trainer:
    """What the trainers add to those of Ultralytics."""

    args: Any
    build_dataset = _LIBRARY.with_names(yolo.detect.DetectionTrainer.build_dataset, build_yolo_dataset=_build_dataset)

    @property
    def _task(self) -> str:
        return next(name for name, task in _TASKS.items() if isinstance(self, task.trainer))

    def get_dataset(self) -> dict[str, Any]:
        """Return what a data.yaml would say of the packs."""
        data = _read_data(self.args.data, self._task, self.args.split)
        if data is None:
            theirs: dict[str, Any] = super().get_dataset()  # type: ignore[misc]
            return theirs
        if self.args.single_cls:
            data.update(names={0: "item"}, nc=1)
        return data

    def get_model(self, cfg: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return Ultralytics' model, if it is one for the task of this trainer."""
        task = guess_model_task(cfg if isinstance(cfg, Mapping) else yaml_model_load(cfg))
        _check_task(task, self._task, "trainer")
        return super().get_model(cfg, *args, **kwargs)  # type: ignore[misc]

    def get_validator(self) -> Any:
        """Return the validator of Ultralytics' trainer, made to read packs."""
        validator = super().get_validator()  # type: ignore[misc]
        validator.__class__ = _TASKS[self._task].validator  # with all that the trainer has set up with it
        validator.describe_packs()
        return validator


class DetectionTrainer(_Trainer, yolo.detect.DetectionTrainer):  # type: ignore[misc]
    """Ultralytics' DetectionTrainer; ``data`` is a pack with boxes, or names packs as ``train`` and ``val``."""


class SegmentationTrainer(_Trainer, yolo.segment.SegmentationTrainer):  # type: ignore[misc]
    """Ultralytics' SegmentationTrainer; ``data`` is a pack with polygons, or names packs as ``train`` and ``val``."""


class PoseTrainer(_Trainer, yolo.pose.PoseTrainer):  # type: ignore[misc]
    """Ultralytics' PoseTrainer; ``data`` is a pack with keypoints, or names packs as ``train`` and ``val``."""


class OBBTrainer(_Trainer, yolo.obb.OBBTrainer):  # type: ignore[misc]
    """Ultralytics' OBBTrainer; ``data`` is a pack with oriented boxes, or else polygons, or names packs."""


def _build_dataloader(dataset: Any, *args: Any, rank: int, **kwargs: Any) -> Any:
    # to validate on several ranks, Ultralytics would repeat images until each has as many
    shuffle = rank == -1 or not isinstance(dataset, PackedClassificationDataset) or dataset.augment
    return build_dataloader(dataset, *args, shuffle=shuffle, rank=rank, **kwargs)


class ClassificationTrainer(_Trainer, yolo.classify.ClassificationTrainer):  # type: ignore[misc]
    """Ultralytics' ClassificationTrainer; ``data`` is a pack with a class for each image, or names packs."""

    get_dataloader = _LIBRARY.with_names(
        yolo.classify.ClassificationTrainer.get_dataloader, build_dataloader=_build_dataloader
    )
    build_dataset = _LIBRARY.with_names(
        yolo.classify.ClassificationTrainer.build_dataset, ClassificationDataset=_classification_dataset
    )


class _Threaded:
    """What makes the batches of training by threads."""

    _batches: Callable[..., Epochs]
    args: Any
    device: Any
    train_loader: Any
    start_epoch: int

    def get_dataloader(self, dataset_path: Any, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Any:
        """Return a PackedLoader's batches to train on; to validate, Ultralytics' own loader."""
        if mode != "train":
            return super().get_dataloader(dataset_path, batch_size, rank, mode)  # type: ignore[misc]
        if not (isinstance(dataset_path, str) and names_a_pack(dataset_path)):
            step = "build a pack of it, or take the trainer that is not called Threaded"
            raise UsageError("data", f"names {dataset_path} as train, which is not a pack", step)
        with override_configs(self.args, {"cache": False}):  # nothing would read the images
            dataset = self.build_dataset(dataset_path, mode, batch_size)  # type: ignore[attr-defined]
        if not len(dataset):
            step = "check the classes of the model and of the pack, classes and fraction"
            raise UsageError(dataset_path, "has no image to train on", step)
        batches = self._batches(dataset, self.args, batch_size, self.device, bool(self.args.compile))
        batches.sampler.set_epoch(getattr(self, "start_epoch", 0) or 0)  # after a resume, once memory ran out
        return batches

    def resume_training(self, ckpt: Any) -> None:
        """Resume as Ultralytics does, with the order and the random numbers of the epoch that is next."""
        super().resume_training(ckpt)  # type: ignore[misc]
        self.train_loader.sampler.set_epoch(self.start_epoch)


class ThreadedDetectionTrainer(_Threaded, DetectionTrainer):
    """A DetectionTrainer without worker processes: a PackedLoader makes its mosaics, by the settings of Ultralytics."""

    _batches = staticmethod(object_batches)


class ThreadedClassificationTrainer(_Threaded, ClassificationTrainer):
    """A ClassificationTrainer without worker processes: a PackedLoader makes its crops, by Ultralytics' settings."""

    _batches = staticmethod(class_batches)


class SemanticSegmentationTrainer(_Trainer, yolo.semantic.SemanticSegmentationTrainer):  # type: ignore[misc]
    """Ultralytics' SemanticSegmentationTrainer; ``data`` is a pack with masks, or with polygons, or names packs."""


class _Task(NamedTuple):
    """What trains a task, and what validates it."""

    trainer: type
    validator: type


_TASKS = {
    "detect": _Task(DetectionTrainer, DetectionValidator),
    "segment": _Task(SegmentationTrainer, SegmentationValidator),
    "pose": _Task(PoseTrainer, PoseValidator),
    "obb": _Task(OBBTrainer, OBBValidator),
    "semantic": _Task(SemanticSegmentationTrainer, SemanticSegmentationValidator),
    "classify": _Task(ClassificationTrainer, ClassificationValidator),
}


def _read_data(given: Any, task: str, split: str) -> dict[str, Any] | None:
    """Return what a data.yaml would say of the packs that `data` names, or None if it names none."""
    if isinstance(given, Mapping):
        content, folder = given, ""
    elif not isinstance(given, str | os.PathLike):
        return None
    elif os.fspath(given).endswith((".yaml", ".yml")):
        if not os.path.isfile(given):
            return None
        content, folder = YAML.load(given), os.path.dirname(given)
    else:
        content, folder = {"path": os.fspath(given)}, ""
    data = read_data(content, folder, task, split)
    return data if data is None or task != "semantic" else dict(add_polygon_background(data))  # if there are no masks


def _check_task(task: str, wanted: str, kind: str) -> None:
    """Raise UsageError if a model is for another task than a trainer or validator, `kind`, is."""
    if task != wanted:
        theirs = getattr(_TASKS.get(task), kind, None)
        name = f"packer.ultralytics.{theirs.__name__}" if theirs else "Ultralytics' own"
        verb = {"trainer": "train", "validator": "validate"}[kind]
        problem = f"is for the task {task}, the {kind} for {wanted}"
        raise UsageError("model", problem, f"{verb} it with {name}, or take a model for {wanted}")
