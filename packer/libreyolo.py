"""Trains and validates LibreYOLO's detectors from packs.

    model = LibreYOLO9(None, size="t")
    packer.libreyolo.train(model, "cells.lmdb", epochs=100)
    packer.libreyolo.val(model, "cells.lmdb")

Models, mosaics, losses and metrics stay LibreYOLO's own: copies of a few of its functions find a dataset and a ground
truth that read packs under the names of those that read folders. Nothing of LibreYOLO itself is changed.
"""

from __future__ import annotations

import builtins
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CellType, SimpleNamespace
from typing import Any

import numpy as np

from packer.errors import AnyPath, NotInstalled, UsageError
from packer.format.pack import Pack, open_pack
from packer.format.pack_paths import names_a_pack
from packer.loading.yolo_labels import ImageFile, ImageFiles, check_box_classes, classes_of_objects, imread
from packer.model.annotation import Image
from packer.system.machine import install_command
from packer.system.rebound import rebound

__all__ = ["PackedDetections", "PackedGroundTruth", "PackedValidator", "train", "val"]

_INSTALL = install_command("libreyolo")
try:
    from libreyolo import __version__ as _version
    from libreyolo.data import load_data_config
    from libreyolo.data.dataset import YOLODataset
    from libreyolo.data.yolo_coco_api import YOLOCocoAPI
    from libreyolo.training.trainer import BaseTrainer
    from libreyolo.validation import DetectionValidator
except ImportError as error:
    if (error.name or "").partition(".")[0] != "libreyolo":
        raise
    lacks = "is not installed" if error.name == "libreyolo" else f"is here without what it needs: {error.msg}"
    raise NotInstalled("packer.libreyolo", f"needs LibreYOLO, which {lacks}", _INSTALL) from None

SPLITS = ("train", "val", "test")
HOOKS = ("_trainer_class", "_get_trainer_class")
"""Methods by which families of models name their trainer; the others import it."""
ANOTHER = "extract the pack to a folder, or take a family such as YOLOX or YOLO9"


def train(model: Any, data: AnyPath | Mapping[str, AnyPath], **options: Any) -> dict[str, Any]:
    """Train a detector of LibreYOLO from packs, as ``model.train(data=..., **options)`` does from folders.

    Args:
        model: a model of LibreYOLO for the task detect.
        data: a pack with boxes, which is also validated on; or packs as ``{"train": ..., "val": ...}``.
        **options: those of the model's own ``train``; ``device`` names one device. On several GPUs, start the script
            with torchrun.

    Returns:
        What the model's ``train`` returns.

    Raises:
        UsageError: the model does not detect, its family trains in a way of its own, or a pack has no boxes.
        NotInstalled: the version of LibreYOLO does not fit.
    """
    trained: dict[str, Any] = _with_packs(model, "train", data, options)
    return trained


def val(model: Any, data: AnyPath | Mapping[str, AnyPath], **options: Any) -> Any:
    """Validate a detector of LibreYOLO on a pack, as ``model.val(data=..., **options)`` does on a folder.

    Args:
        model: a model of LibreYOLO for the task detect.
        data: a pack with boxes; or packs as ``{"train": ..., "val": ...}``.
        **options: those of the model's own ``val``.

    Returns:
        What the model's ``val`` returns: its metrics by name.

    Raises:
        UsageError: the model does not detect, or a pack has no boxes.
    """
    return _with_packs(model, "val", data, options)


def _with_packs(model: Any, name: str, data: Any, options: dict[str, Any]) -> Any:
    if getattr(model, "task", None) != "detect":
        problem = f"is for the task {getattr(model, 'task', None)}"
        raise UsageError("model", problem, "only detectors train from packs: take another model, or extract the pack")
    devices = options.get("device")
    many = "," in devices if isinstance(devices, str) else isinstance(devices, list | tuple) and len(devices) > 1
    if many and "LOCAL_RANK" not in os.environ:  # LibreYOLO would start processes that know nothing of packs
        raise UsageError("device", f"is {devices}, and this is one process", "start the script with torchrun")
    content = _describe(data if isinstance(data, Mapping) else {"train": data, "val": data})
    method = _rebound(getattr(type(model), name))
    hooks = {hook: getattr(model, hook) for hook in HOOKS if hasattr(model, hook)}
    with tempfile.TemporaryDirectory(prefix="packer-") as folder:
        file = os.path.join(folder, "data.yaml")
        with open(file, "x") as out:
            json.dump({"path": folder, **content}, out)  # JSON is YAML
        try:
            for hook, theirs in hooks.items():  # of this model only, while it trains
                setattr(model, hook, lambda theirs=theirs: _packed_trainer(theirs()))
            return method(model, data=file, **options)
        finally:
            for hook in hooks:
                delattr(model, hook)


def _describe(packs: Mapping[str, AnyPath]) -> dict[str, Any]:
    """Return what a data.yaml says of packs."""
    paths = {split: os.path.abspath(packs[split]) for split in SPLITS if packs.get(split)}
    if not paths or set(packs) - set(SPLITS):
        raise UsageError("data", f"names {', '.join(map(str, packs)) or 'nothing'}", "name packs as train, val or test")
    names: list[str] = []
    for path in paths.values():
        pack = open_pack(path)
        check_box_classes(pack)
        own = classes_of_objects(pack)
        if names and own != names:
            raise UsageError(
                path, f"has the classes {own}, another pack {names}", "build both with one list of classes"
            )
        names = own
    return {**paths, "nc": len(names), "names": names}


def _load_data_config(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return LibreYOLO's configuration of a dataset, with packs as the only image files of their splits."""
    config: dict[str, Any] = load_data_config(*args, **kwargs)
    for split in SPLITS:
        if isinstance(config.get(split), str) and names_a_pack(config[split]):
            config[f"{split}_img_files"] = config[f"{split}_label_files"] = [Path(config[split])]
    return config


class _Annotations(Sequence[Any]):
    """The labels of the records of a pack, each made when it is asked for, as YOLODataset has those of files."""

    def __init__(self, pack: Pack, dataset: Any) -> None:
        self.pack, self.img_size = pack, dataset.img_size
        self.which = (dataset.single_cls, dataset.class_remap)

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        height, width = self.pack.reader.shape_of(int(index))[:2]
        rows = _objects(self.pack, int(index), *self.which)
        ratio = min(self.img_size[0] / height, self.img_size[1] / width)
        rows[:, :4] *= ratio
        name = os.path.basename(ImageFiles(self.pack, [int(index)])[0])
        return rows, (height, width), (int(height * ratio), int(width * ratio)), name


def _objects(pack: Pack, record: int, single_cls: bool, class_remap: Mapping[int, int] | None) -> Any:
    """Return float32 (n, 5): xyxy in pixels and class of the objects of a record that LibreYOLO would read."""
    annotation = pack.annotation(record)
    boxes, labels = np.asarray(annotation.boxes, np.float32), np.asarray(annotation.box_labels, np.int64)
    rows = np.concatenate([boxes.reshape(-1, 4), labels.reshape(-1, 1).astype(np.float32)], axis=1)
    keep = ~np.asarray(annotation.ignored, np.bool_) if len(rows) else np.zeros(0, np.bool_)
    keep &= (rows[:, 2] > rows[:, 0]) & (rows[:, 3] > rows[:, 1])
    if class_remap is not None:
        keep &= np.isin(labels, list(class_remap))
        rows[keep, 4] = [class_remap[label] for label in labels[keep].tolist()]
    elif single_cls:
        rows[:, 4] = 0
    return rows[keep]


class PackedDetections(YOLODataset):  # type: ignore[misc]
    """A YOLODataset whose only image file is a pack: no image is opened at the start. Workers map the pack's files."""

    img_files: Any

    def _load_annotations(self) -> Any:
        path = str(self.img_files[0])
        if len(self.img_files) > 1 or not names_a_pack(path):
            return super()._load_annotations()
        self.pack, self.segments = open_pack(path), None
        self.num_imgs = len(self.pack)
        self.img_files = self.label_files = ImageFiles(self.pack, range(self.num_imgs))
        return _Annotations(self.pack, self)

    def enable_image_cache(self, cache: Any) -> None:
        """Keep decoded images in memory, or not at all.

        Args:
            cache: as for LibreYOLO, but for "disk".

        Raises:
            UsageError: it is "disk": a pack is on the disk already, and nothing is written beside it.
        """
        if str(cache).lower() == "disk" and isinstance(self.img_files, ImageFiles):
            raise UsageError("cache", "is disk, but a pack is on the disk already", "build it as raw, or cache in ram")
        super().enable_image_cache(cache)

    def _decode_image(self, index: int) -> Image:
        file = self.img_files[index]
        image: Image = imread(file) if isinstance(file, ImageFile) else super()._decode_image(index)
        return image


class PackedGroundTruth(YOLOCocoAPI):  # type: ignore[misc]
    """A YOLOCocoAPI of the records of a pack."""

    def __init__(
        self, images_dir: Any, labels_dir: Any, class_names: list[str], image_files: Any = None, **options: Any
    ) -> None:
        if not (image_files and isinstance(image_files[0], ImageFile)):
            super().__init__(images_dir, labels_dir, class_names, image_files=image_files, **options)
            return
        self.images_dir, self.labels_dir, self.class_names, self.load_segments = (
            images_dir,
            labels_dir,
            class_names,
            False,
        )
        self.single_cls, self.class_remap = bool(options.get("single_cls")), options.get("class_remap")
        self.imgs: dict[int, Any] = {}
        self.anns: dict[int, Any] = {}
        self.imgToAnns: dict[int, list[Any]] = {}
        kept = range(len(class_names)) if self.single_cls or self.class_remap is None else self.class_remap
        categories = {i: {"id": i, "name": name, "supercategory": "object"} for i, name in enumerate(class_names)}
        self.cats = {i: category for i, category in categories.items() if i in kept}
        for number, file in enumerate(image_files):
            self._add(number, file)

    def _add(self, number: int, file: ImageFile) -> None:
        """Add an image and its objects."""
        height, width = file.pack.reader.shape_of(file.record)[:2]
        self.imgs[number] = {"id": number, "file_name": os.path.basename(file), "width": width, "height": height}
        self.imgToAnns[number] = []
        objects = _objects(file.pack, file.record, self.single_cls, self.class_remap).astype(np.float64)
        for x1, y1, x2, y2, label in objects.tolist():
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
            annotation = {"id": len(self.anns) + 1, "image_id": number, "category_id": int(label), **box}
            self.anns[annotation["id"]] = annotation
            self.imgToAnns[number].append(annotation)


def _instead_of(value: Any) -> Any:
    """Return what reads packs, if `value` is what reads folders."""
    return next((ours for theirs, ours in _INSTEAD if value is theirs), value)


@cache
def _packed_trainer(theirs: Any) -> Any:
    """Return a trainer like that of a family of models, which reads packs."""
    if theirs._setup_data is not BaseTrainer._setup_data:
        problem = f"is trained by {theirs.__name__}, which builds its data in a way of its own"
        raise UsageError("model", problem, ANOTHER)
    if "YOLODataset" not in theirs._setup_data.__code__.co_names:
        raise NotInstalled("libreyolo", f"version {_version} does not fit: 1.6 does", _INSTALL)
    methods = {name: _rebound(getattr(theirs, name)) for name in ("_setup_data", "_run_validation")}
    return type(theirs.__name__, (theirs,), {**methods, "__module__": theirs.__module__})


def _rebound(function: Any) -> Any:
    """Return a function of LibreYOLO that finds, and imports, what reads packs instead of what reads folders."""
    cells, names = function.__closure__, {name: _instead_of(value) for name, value in function.__globals__.items()}
    inner = getattr(function, "__wrapped__", None)
    if inner is not None:
        found = [cell.cell_contents is inner for cell in cells or ()]
        if not any(found):
            problem = f"has a {function.__name__} of its own around that of its family ({function.__qualname__})"
            raise UsageError("model", problem, ANOTHER)
        new = CellType(_rebound(inner))
        cells = tuple(new if here else cell for cell, here in zip(cells, found, strict=True))
    return rebound(function, names, _import, cells)


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import for functions that are rebound."""
    module = builtins.__import__(name, globals, locals, fromlist, level)
    if not fromlist:
        return module
    found = {name: _instead_of(getattr(module, name)) for name in fromlist}
    return SimpleNamespace(
        **{name: _packed_trainer(value) if _trains(value) else value for name, value in found.items()}
    )


def _trains(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseTrainer)


class PackedValidator(DetectionValidator):  # type: ignore[misc]
    """LibreYOLO's DetectionValidator, which reads packs and folders."""

    def _setup_dataloader(self) -> Any:
        return _rebound(DetectionValidator._setup_dataloader)(self)

    def _init_metrics(self) -> None:
        _rebound(DetectionValidator._init_metrics)(self)

    def _resolve_img_path(self, dataset: Any, global_idx: int, img_id: Any) -> Any:
        files = getattr(dataset, "img_files", None)
        return (
            files[global_idx]
            if isinstance(files, ImageFiles)
            else super()._resolve_img_path(dataset, global_idx, img_id)
        )

    def _load_plot_image(self, img_path: Any) -> Any:
        return imread(img_path) if isinstance(img_path, ImageFile) else super()._load_plot_image(img_path)


_INSTEAD = (
    (load_data_config, _load_data_config),
    (YOLODataset, PackedDetections),
    (YOLOCocoAPI, PackedGroundTruth),
    (DetectionValidator, PackedValidator),
)
"""What reads folders, and what reads packs."""
