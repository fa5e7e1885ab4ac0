"""Trains Ultralytics YOLO from packs: its trainers and validators, with a dataset that reads a pack.

    YOLO("yolo11n.yaml").train(data="bccd.lmdb", trainer=packer.ultralytics.DetectionTrainer)

Mosaic, rectangular batches, caching, metrics and everything else stay Ultralytics' own. Its license is AGPL-3.0:
nothing of it is copied here.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import zip_longest
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from packer.containers import container_of
from packer.errors import NotInstalled, UsageError, plural
from packer.format.pack import Pack, open_pack
from packer.format.pack_paths import names_a_pack
from packer.loading.yolo_labels import (
    ImageFiles,
    MaskLabels,
    YoloLabels,
    classes_of_objects,
    each_has_a_polygon,
    imread,
    keypoints_of,
    read_mask,
)
from packer.model.annotation import Mask
from packer.system.machine import install_command

__all__ = [
    "DetectionTrainer",
    "DetectionValidator",
    "PackedPolygonSemanticDataset",
    "PackedSemanticDataset",
    "PackedYOLODataset",
    "PoseTrainer",
    "PoseValidator",
    "SegmentationTrainer",
    "SegmentationValidator",
    "SemanticSegmentationTrainer",
    "SemanticSegmentationValidator",
]


_INSTALL = install_command("ultralytics")
try:
    from ultralytics import __version__ as _version
    from ultralytics.data.build import build_yolo_dataset
    from ultralytics.data.dataset import PolygonSemanticDataset, SemanticDataset, YOLODataset
    from ultralytics.data.utils import add_polygon_background
    from ultralytics.models import yolo
    from ultralytics.nn.tasks import guess_model_task, yaml_model_load
    from ultralytics.utils import LOGGER, YAML
except ImportError as error:
    if (error.name or "").partition(".")[0] != "ultralytics":
        raise
    lacks = "is not installed" if error.name == "ultralytics" else f"is here without what it needs: {error.msg}"
    raise NotInstalled("packer.ultralytics", f"needs Ultralytics, which {lacks}", _INSTALL) from None

SPLITS = ("train", "val", "test")


def _with_names(function: Any, **names: Any) -> Any:
    """Return a function of Ultralytics that finds these objects under names of its own module."""
    if missing := names.keys() - set(function.__code__.co_names):
        problem = f"version {_version} does not fit: {function.__qualname__} does not use {', '.join(sorted(missing))}"
        raise NotInstalled("ultralytics", problem, _INSTALL)
    namespace = {**function.__globals__, **names}
    return FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)


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
        return self.labels_class(self._pack, range(count), dims)

    def update_labels(self, include_class: Sequence[int] | None) -> None:
        """Keep only objects of these classes; class 0 for all if `single_cls`."""
        old = self.labels
        self.labels = YoloLabels(old.pack, old.records, old.kpt_dims, include_class, self.single_cls)

    def set_rectangle(self) -> None:
        """Let Ultralytics sort the shapes alone, and bring the records into its order."""
        labels = self.labels
        self.im_files, self.labels = range(self.ni), [{"shape": shape} for shape in labels.shapes()]
        super().set_rectangle()
        self.labels = copy(labels)
        self.labels.records = np.asarray(labels.records, np.int64)[np.asarray(self.im_files, np.int64)]
        self.im_files = []

    load_image = _with_names(YOLODataset.load_image, imread=imread)

    def check_cache_ram(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether the decoded images fit into memory."""
        self._name_images()  # images are read now
        fits: bool = super().check_cache_ram(*args, **kwargs)
        return fits

    def check_cache_disk(self, *args: Any, **kwargs: Any) -> bool:
        """Return False: a pack is on the disk already."""
        LOGGER.warning(f"{self.prefix}cache='disk' does nothing for a pack; to store decoded images, build it as raw")
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


def _or_packed(theirs: type, packed: type) -> Any:
    """Return what makes a dataset of Ultralytics, or of packs if it is given one."""

    def dataset(img_path: Any, **kwargs: Any) -> Any:
        kind = packed if isinstance(img_path, str) and names_a_pack(img_path) else theirs
        return kind(img_path=img_path, **kwargs)

    return dataset


_build_dataset = _with_names(
    build_yolo_dataset,
    YOLODataset=_or_packed(YOLODataset, PackedYOLODataset),
    SemanticDataset=_or_packed(SemanticDataset, PackedSemanticDataset),
    PolygonSemanticDataset=_or_packed(PolygonSemanticDataset, PackedPolygonSemanticDataset),
)


class _Validator:
    """What the validators add to those of Ultralytics."""

    args: Any
    save_dir: Path
    build_dataset = _with_names(yolo.detect.DetectionValidator.build_dataset, build_yolo_dataset=_build_dataset)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.describe_packs()

    def describe_packs(self) -> None:
        """Write what `data` says of packs to a data.yaml beside the results, and take that for `data`."""
        data = read_data(self.args.data, self.args.task)
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


class SemanticSegmentationValidator(_Validator, yolo.semantic.SemanticSegmentationValidator):  # type: ignore[misc]
    """Ultralytics' SemanticSegmentationValidator; ``data`` names packs with masks, or with polygons."""


class _Trainer:
    """What the trainers add to those of Ultralytics."""

    args: Any
    build_dataset = _with_names(yolo.detect.DetectionTrainer.build_dataset, build_yolo_dataset=_build_dataset)

    @property
    def _task(self) -> str:
        return next(name for name, task in _TASKS.items() if isinstance(self, task.trainer))

    def get_dataset(self) -> dict[str, Any]:
        """Return what a data.yaml would say of the packs."""
        data = read_data(self.args.data, self._task)
        if data is None:
            theirs: dict[str, Any] = super().get_dataset()  # type: ignore[misc]
            return theirs
        if self.args.single_cls:
            data.update(names={0: "item"}, nc=1)
        return data

    def get_model(self, cfg: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return Ultralytics' model, if it is one for the task of this trainer."""
        task = guess_model_task(cfg if isinstance(cfg, Mapping) else yaml_model_load(cfg))
        if task != self._task:
            name = f"packer.ultralytics.{_TASKS[task].trainer.__name__}" if task in _TASKS else "Ultralytics' own"
            problem = f"is for the task {task}, the trainer for {self._task}"
            raise UsageError("model", problem, f"train it with {name}, or take a model for {self._task}")
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


class SemanticSegmentationTrainer(_Trainer, yolo.semantic.SemanticSegmentationTrainer):  # type: ignore[misc]
    """Ultralytics' SemanticSegmentationTrainer; ``data`` is a pack with masks, or with polygons, or names packs."""


class _Task(NamedTuple):
    """What trains a task, and what it needs of a pack."""

    trainer: type
    validator: type
    needs: tuple[str, ...]


_BOXES = ("boxes", "box_labels")
_TASKS = {
    "detect": _Task(DetectionTrainer, DetectionValidator, _BOXES),
    "segment": _Task(SegmentationTrainer, SegmentationValidator, (*_BOXES, "polygons")),
    "pose": _Task(PoseTrainer, PoseValidator, (*_BOXES, "keypoints")),
    "semantic": _Task(SemanticSegmentationTrainer, SemanticSegmentationValidator, ("mask",)),
}


def read_data(given: Any, task: str) -> dict[str, Any] | None:
    """Return what a data.yaml would say of packs, or None if `given` names no pack.

    Args:
        given: A pack, which is trained on and validated on; or a mapping, or a YAML file, with packs as ``train``,
            ``val`` and ``test``. Other entries (``kpt_shape``, ``flip_idx``, ...) are kept.
        task: detect, segment, pose or semantic.

    Raises:
        UsageError: A pack does not have what the task needs, or packs, names and keypoints do not belong together.
    """
    content, folder = _yaml_content(given)
    splits = {split: content[split] for split in SPLITS if isinstance(content.get(split), str | os.PathLike)}
    folders = [os.path.join(folder, os.fspath(content.get("path") or "")), os.fspath(content.get("path") or "")]
    packs = {}
    for split, entry in splits.items():
        places = [os.path.abspath(os.path.join(parent, entry)) for parent in folders]
        place = next(filter(os.path.exists, places), places[0])
        if names_a_pack(place) or container_of(place):
            packs[split] = open_pack(place)
        content[split] = place
    if not packs:
        return None
    if missing := [split for split in SPLITS[:2] if split not in splits]:
        problem = f"has a list as {missing[0]}" if content.get(missing[0]) else f"names no {missing[0]}"
        raise UsageError("data", problem, "name one pack, or the same one twice")
    opened = list(packs.values())
    of_polygons = all("polygons" in pack.manifest.fields and not pack.manifest.masks for pack in opened)
    kind = "segment" if task == "semantic" and of_polygons else task
    for pack in opened:
        _check(pack, kind)
    names = [
        list(pack.manifest.masks["mask"].classes) if kind == "semantic" else classes_of_objects(pack) for pack in opened
    ]
    content["names"] = _names(opened, names, content.get("names"))
    if task == "pose":
        content.update(_keypoints(opened, content))
    data = {"channels": 3, **content, "nc": len(content["names"]), "path": os.path.abspath(folders[0])}
    if task != "semantic":
        return data
    data["masks_dir"] = "" if of_polygons else content.get("masks_dir") or "masks"
    return dict(add_polygon_background(data))  # unless there is a folder of masks


def _yaml_content(given: Any) -> tuple[dict[str, Any], str]:
    """Return the entries of `data`, and the folder that they are relative to."""
    if isinstance(given, Mapping):
        return dict(given), ""
    if not isinstance(given, str | os.PathLike):
        return {}, ""
    path = os.fspath(given)
    if path.endswith((".yaml", ".yml")):
        return (dict(YAML.load(path)), os.path.dirname(path)) if os.path.isfile(path) else ({}, "")
    return {"train": path, "val": path}, ""


def _check(pack: Pack, task: str) -> None:
    have = [*(field for field in pack.manifest.fields if "." not in field), *pack.manifest.masks]
    for field in _TASKS[task].needs:
        if field not in have:
            problem = f"has no {field.replace('_', ' ')}, which the task {task} needs"
            step = f"it has {', '.join(have) or 'no labels'}; build it from a folder with such labels"
            raise UsageError(pack.path, problem, step)
    if task == "semantic":
        facts = pack.manifest.masks["mask"]
        if facts.dtype != "uint8" or not facts.classes:
            lacks = "whose classes have no names" if facts.dtype == "uint8" else "of 16 bits, and Ultralytics takes 8"
            raise UsageError(pack.path, f"has masks {lacks}", "build it with a class_names.txt beside the masks")
        return
    column: Any = pack.column
    if not np.array_equal(column("boxes").lengths, column("box_labels").lengths):
        raise UsageError(pack.path, "has boxes without a class", "build it from labels with a class for each box")
    if task == "segment" and not each_has_a_polygon(pack):
        raise UsageError(pack.path, "has boxes without a polygon", "train a detector, or label them with polygons")


def _names(packs: list[Pack], names_of: list[list[str]], given: Any) -> dict[int, str]:
    """Return the class names by id: ids mean the same in all packs, and what `given` says."""
    names = max(names_of, key=len)
    for pack, own in zip(packs, names_of, strict=True):
        if differing := _first_difference(own, names[: len(own)]):
            problem = f"has {differing[0]}, another pack {differing[1]}"
            raise UsageError(pack.path, problem, "build both with the same list of classes")
    if given:
        listed = [str(given[i]) for i in sorted(given)] if isinstance(given, Mapping) else [str(name) for name in given]
        differing = _first_difference(listed[: len(names)], names)
        if differing and names != [str(i) for i in range(len(names))]:
            raise UsageError("data", f"names {differing[0]}, but the pack {differing[1]}", "leave names out")
        names = listed
    if not names:
        raise UsageError(packs[0].path, "has no classes, because it has no boxes", "give data names, too")
    return dict(enumerate(names))


def _first_difference(names: list[str], others: list[str]) -> tuple[str, str] | None:
    """Return the first class that differs, with its number, and its name in the other list."""
    pairs = enumerate(zip_longest(names, others, fillvalue="none"))
    return next(((f"{here} as class {i}", there) for i, (here, there) in pairs if here != there), None)


def _keypoints(packs: list[Pack], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return kpt_shape, and flip_idx if it is known."""
    shape = list(content.get("kpt_shape") or (keypoints_of(packs[0]), 3))
    for pack in packs:
        if keypoints_of(pack) != shape[0]:
            problem = f"has {plural(keypoints_of(pack), 'keypoint')} for each object, not {shape[0]}"
            raise UsageError(pack.path, problem, "correct kpt_shape, or train from packs of one kind")
    known = packs[0].manifest.flip_index or ()
    flip = content.get("flip_idx") or (known if len(known) == shape[0] else ())  # else it is that of landmarks
    return {"kpt_shape": shape, **({"flip_idx": list(flip)} if flip else {})}
