"""Trains RF-DETR from packs: its own training, whose batches come from a PackedLoader.

    model = rfdetr.RFDETRNano()
    packer.rfdetr.train(model, "coco-train.lmdb", "coco-val.lmdb", epochs=10, batch_size=16, grad_accum_steps=1)

Model, optimizer, EMA, checkpoints, evaluation and everything else stay RF-DETR's own.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from packer.errors import AnyPath, NotInstalled, UsageError
from packer.format.pack import Pack, open_pack
from packer.images.opencv import Interpolation
from packer.loading.coco_labels import CocoLabels, ImageIds, objects_of
from packer.loading.detr_batches import AlignedSampler, DetrLoader, SquareCrop
from packer.loading.yolo_labels import check_box_classes, classes_of_objects
from packer.samplers import SequentialSampler
from packer.system.rebound import Library

__all__ = ["PackedCocoDetection", "PackedRFDETRDataModule", "evaluate", "train"]

_INSTALL = "pip install 'rfdetr[train]>=1.11'"
try:
    from rfdetr import RFDETR
    from rfdetr.datasets import _torchvision as steps
    from rfdetr.datasets.coco import CocoDetection, ConvertCoco, build_roboflow_from_coco
    from rfdetr.datasets.transforms import Normalize
    from rfdetr.training import RFDETRDataModule
    from rfdetr.utilities.logger import get_logger
    from rfdetr.utilities.package import get_version
    from rfdetr.utilities.tensors import nested_tensor_from_tensor_list, pack_targets, pad_targets_to_fixed_count
    from torch.utils.data import DistributedSampler
    from torchvision.transforms.v2 import ToDtype, ToImage
    from torchvision.transforms.v2.functional import to_pil_image
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("rfdetr", "pytorch_lightning", "torchvision"):
        raise
    raise NotInstalled("packer.rfdetr", f"needs RF-DETR with what it trains with: {error.msg}", _INSTALL) from None

Data = AnyPath | Pack
_LIBRARY = Library("rfdetr", get_version(), _INSTALL)


class PackedCocoDetection(CocoDetection):  # type: ignore[misc]
    """A CocoDetection of a pack: nothing of its labels is read before they are needed.

    Args:
        pack: a pack with boxes and their classes.
        classes: names of the classes.
        transforms: of RF-DETR.
        options: of RF-DETR's ConvertCoco, and what only files need.
    """

    def __init__(self, pack: Pack, classes: list[str], transforms: Any, **options: Any) -> None:
        self.pack, self.root, self.ids = pack, pack.path, ImageIds(pack)
        self.coco = CocoLabels(pack, classes, self.ids)
        self._transforms, self.transforms = transforms, None
        self.flip = 0.0  # beside that of the transforms
        self.include_masks, self.include_keypoints = options["include_masks"], options["include_keypoints"]
        self.label2cat = self.coco.label2cat
        self.cat2label = dict(self.label2cat)
        self.prepare = ConvertCoco(cat2label=self.cat2label, include_masks=self.include_masks)

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, idx: int) -> tuple[Any, Any]:
        image = to_pil_image(self.pack.image(idx))
        target: Any = {"image_id": self.ids[idx], "annotations": objects_of(self.pack, idx)}
        image, target = self.prepare(image, target)
        return self._transforms(image, target) if self._transforms is not None else (image, target)


_THEIRS = ("albumentations", "albu", "kornia", "gpu")
"""Backends of augmentation that were asked for by name."""


def _only_flip(aug_config: Any) -> float | None:
    """Return the chance of a horizontal flip, if that is all that a config of Albumentations names, else None.

    With Albumentations installed, that is RF-DETR's default.
    """
    if not aug_config or set(aug_config) != {"HorizontalFlip"}:
        return None
    options = {"p": 0.5, **aug_config["HorizontalFlip"]}
    return float(options.pop("p")) if len(options) == 1 else None


class _Recipe(NamedTuple):
    """What RF-DETR's transforms do, as a PackedLoader does it."""

    crop: SquareCrop
    flip: float = 0.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    table: Any = None
    """What becomes of each value of a pixel."""

    @classmethod
    def of(cls, dataset: PackedCocoDetection, interpolation: Interpolation) -> _Recipe | str:
        """Return the plan of a dataset, or what of it only RF-DETR itself does."""
        if dataset.include_masks:
            return "masks"
        resize, *rest = dataset._transforms.transforms
        crop = _crop_of(resize, interpolation)
        if isinstance(crop, str):
            return crop
        plan, values = cls(crop, dataset.flip), torch.arange(256, dtype=torch.uint8).repeat(3, 1, 1)
        for step in rest:
            if isinstance(step, steps.RandomHorizontalFlip):
                plan = plan._replace(flip=float(step.p))
            elif isinstance(step, Normalize):
                plan = plan._replace(mean=tuple(step._normalize.mean), std=tuple(step._normalize.std))
            elif not isinstance(step, ToImage | ToDtype):
                return type(step).__name__
            if not isinstance(step, steps.RandomHorizontalFlip):
                values, _ = step(values, None)
        return plan._replace(table=values[:, 0].numpy())


def _crop_of(resize: Any, interpolation: Interpolation) -> SquareCrop | str:
    """Return the crop that does what the first of RF-DETR's transforms does, or the name of what it cannot do."""
    chance, random = 0.0, None
    if isinstance(resize, steps.RandomSelect):
        chance, random, resize = 1 - resize.p, resize.transform2, resize.transform1
    if isinstance(resize, steps.RandomChoice):
        if len(resize.transforms) > 1:
            return "a size for each sample"
        (resize,) = resize.transforms
    if type(resize) is not steps.Resize or resize.size[0] != resize.size[1]:
        return type(resize).__name__
    crop = SquareCrop(resize.size[0], interpolation=interpolation)
    if random is None:
        return crop
    try:
        shorter, choice = random.transforms
        (square,) = choice.transforms
        assert shorter.max_size is None and square.size == resize.size
        return SquareCrop(crop.size, chance, tuple(shorter.sizes), square.min_max_height, interpolation)
    except (AttributeError, ValueError, AssertionError):
        return type(random).__name__


class PackedRFDETRDataModule(RFDETRDataModule):  # type: ignore[misc]
    """RF-DETR's data module, which reads packs.

    Batches are those of its collate, made by a `PackedLoader` with so many threads as `num_workers` says. What of its
    augmentation packer does not do (albumentations, a size for each sample, masks, images that keep their aspect) is
    done by RF-DETR's own transforms, in its own DataLoader, on images and objects of the pack.

    Args:
        model_config: of RF-DETR.
        train_config: of RF-DETR; its `dataset_dir` is not read if `train` is given.
        train: the pack to train from; default: `dataset_dir`.
        val: the pack to validate with.
        test: the pack to test with; default: `val`, as for sets without a test split.
        interpolation: the filter of the images to train with, as for `packer.RandomResizedCrop`. "bilinear" gives the
            pixels of RF-DETR, as evaluation always does.

    Raises:
        UsageError: a pack has no boxes, or not the classes of the others, or images that are not RGB of 8 bits.
    """

    def __init__(
        self, model_config: Any, train_config: Any, train: Data | None = None, val: Data | None = None,
        test: Data | None = None, interpolation: Interpolation = "fast",
    ) -> None:  # fmt: skip
        super().__init__(model_config, train_config)
        self.interpolation = interpolation
        self.packs = _opened(train_config.dataset_dir if train is None else train, val, test)
        self.classes = _class_names(self.packs)

    def setup(self, stage: str) -> None:
        """Make the datasets of a stage, as RF-DETR does: one, `fit`, `validate`, `test` or `predict`."""
        _check_task(self.model_config)
        _LIBRARY.with_names(RFDETRDataModule.setup, build_dataset=self._dataset)(self, stage)

    def _build_test_dataset(self, ns: Any, resolution: int) -> Any:
        if "test" not in self.packs:
            get_logger().warning("No test pack is given; evaluating the val pack instead.")
        return self._dataset("test" if "test" in self.packs else "val", ns, resolution)

    def _dataset(self, split: str, ns: Any, resolution: int) -> PackedCocoDetection:
        if split not in self.packs:
            raise UsageError(split, "is not given", f"name a pack: {split}='{split}.lmdb'")
        here = self.packs[split], self.classes

        def made(img_folder: Any, ann_file: Any, **options: Any) -> PackedCocoDetection:
            return PackedCocoDetection(*here, **options)

        build = _LIBRARY.with_names(
            build_roboflow_from_coco, CocoDetection=made, _train_split_cat2label=lambda root: None
        )
        settings = {**vars(ns), "dataset_dir": "."}
        flip = None if split != "train" or ns.augmentation_backend in _THEIRS else _only_flip(ns.aug_config)
        if flip is not None:
            dataset: PackedCocoDetection = build(split, SimpleNamespace(**{**settings, "aug_config": {}}), resolution)
            dataset.flip = flip
            if isinstance(_Recipe.of(dataset, self.interpolation), _Recipe):
                return dataset
        dataset = build(split, SimpleNamespace(**settings), resolution)
        return dataset

    def train_dataloader(self) -> Any:
        """Return the batches of an epoch after another: as many as RF-DETR's own loader has."""
        theirs, dataset = super().train_dataloader(), self._require_dataset(self._dataset_train, "fit")
        batch_size, seed = self._resolve_batch_size(), self.train_config.seed or 0
        sampler = AlignedSampler(dataset.pack, seed, len(theirs) * batch_size)
        plan = self._plan(dataset, self.interpolation)
        return theirs if plan is None else self._loader(dataset, plan, batch_size, sampler, self._formed_to_train)

    def val_dataloader(self) -> Any:
        """Return the batches of `val`: each image counts once, whatever the number of ranks."""
        return self._evaluated(super().val_dataloader())

    def test_dataloader(self) -> Any:
        """Return the batches of `test`: each image counts once, whatever the number of ranks."""
        return self._evaluated(super().test_dataloader())

    def predict_dataloader(self) -> Any:
        """Return the batches of `val`."""
        return self._evaluated(super().predict_dataloader())

    def _evaluated(self, theirs: Any) -> Any:
        dataset: PackedCocoDetection = theirs.dataset
        plan = self._plan(dataset, "bilinear")
        if plan is None:
            return theirs
        sampler = SequentialSampler(dataset.pack)
        loader = self._loader(dataset, plan, theirs.batch_size, sampler, self._formed, dataset.ids.all)
        world, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)
        return _Evaluation(loader, DistributedSampler(dataset, world, rank, shuffle=False))

    def _plan(self, dataset: PackedCocoDetection, interpolation: Interpolation) -> _Recipe | None:
        plan = _Recipe.of(dataset, interpolation)
        if isinstance(plan, _Recipe):
            return plan
        get_logger().warning(f"{dataset.pack.path}: RF-DETR's own transforms and DataLoader, slower: {plan}")
        return None

    def _loader(
        self, dataset: Any, plan: _Recipe, batch_size: int, sampler: Any, form: Any, ids: Any = None
    ) -> DetrLoader:
        device = self.trainer.strategy.root_device if self.trainer else None
        return DetrLoader(
            dataset.pack, batch_size, form, plan.table, fractions=plan.mean is not None, ids=ids, sampler=sampler,
            crop=plan.crop, flip=plan.flip, mean=plan.mean, std=plan.std, dtype=torch.float32,
            threads=max(1, self._num_workers), device=device if device and device.type == "cuda" else "cpu",
        )  # fmt: skip

    def _formed(self, images: Any, targets: Any) -> Any:
        """Return a batch as RF-DETR's collate makes it."""
        block = self.model_config.patch_size * self.model_config.num_windows
        packed = pack_targets(targets) if self.train_config.pack_targets else tuple(targets)
        return nested_tensor_from_tensor_list(images, block_size=block), packed

    def _formed_to_train(self, images: Any, targets: Any) -> Any:
        count = self.train_config.pad_targets_to
        return self._formed(images, targets if count is None else pad_targets_to_fixed_count(targets, count))


class _Evaluation:
    """The batches of a loader in order, with torch's sampler of the same order.

    Ranks must have equally many batches: their forward passes wait for each other. So the first images may come again
    at the end, and RF-DETR finds out by this sampler which those are, and does not count them.
    """

    batch_sampler = None  # Lightning asks for it where there is a sampler

    def __init__(self, loader: DetrLoader, sampler: DistributedSampler[Any]) -> None:
        self.loader, self.sampler = loader, sampler

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        return iter(self.loader)


def train(
    model: Any, train: Data, val: Data, test: Data | None = None, *, interpolation: Interpolation = "fast",
    **options: Any,
) -> None:  # fmt: skip
    """Train a model of RF-DETR, as its own method `train` does, from packs.

    Args:
        model: an `rfdetr.RFDETRNano` or another that finds boxes or masks.
        train: the pack to train from.
        val: the pack to validate with.
        test: the pack to test with, if `run_test` is True.
        interpolation: as for `PackedRFDETRDataModule`.
        options: of the model's own `train`, but dataset_dir.

    Raises:
        UsageError: the packs, or the model, cannot be used; a `dataset_dir` is given.
    """
    packs = _opened(train, val, test)
    _run(model, RFDETR.train, packs, options, interpolation=interpolation)


def evaluate(model: Any, data: Data, **options: Any) -> dict[str, float]:
    """Evaluate a model of RF-DETR on a pack, as its own method `evaluate` does.

    Args:
        model: as for `train`.
        data: the pack.
        options: of the model's own `evaluate`, but dataset_dir.

    Returns:
        The metrics by name: test/mAP_50_95, ...

    Raises:
        UsageError: the pack, or the model, cannot be used; a `dataset_dir` is given.
    """
    pack = open_pack(data) if not isinstance(data, Pack) else data
    found: dict[str, float] = _run(model, RFDETR.evaluate, dict.fromkeys(("train", "val", "test"), pack), options)
    return found


def _run(model: Any, function: Any, packs: dict[str, Pack], options: dict[str, Any], **how: Any) -> Any:
    """Call a method of RF-DETR, whose data module and classes are those of packs; `how` is for the data module."""
    for name in ("dataset_dir", "dataset_file"):
        if name in options:  # dataset_file="coco": labels are the ids of COCO's file, which a pack does not count by
            raise UsageError(name, "is not for packs", "leave it out")
    if not isinstance(model, RFDETR):
        raise UsageError("model", f"is no model of RF-DETR, but {type(model).__name__}", "give an rfdetr.RFDETRNano()")
    _check_task(model.model_config)
    classes = _class_names(packs)
    given: dict[str, Any] = {**packs, **how}
    module = partial(PackedRFDETRDataModule, **given)
    readers = _readers(classes)
    names = {"RFDETR": readers} if "RFDETR" in function.__code__.co_names else {}
    packed = _LIBRARY.with_names(function, importing=("rfdetr.training", {"RFDETRDataModule": module}), **names)
    aligned = _LIBRARY.with_names(RFDETR._align_num_classes_from_dataset, RFDETR=readers)
    own = {"_align_num_classes_from_dataset": partial(aligned, model)}
    try:
        vars(model).update(own)
        return packed(model, dataset_dir=packs["train"].path, **options)
    finally:
        for name in own:
            vars(model).pop(name, None)


def _readers(classes: list[str]) -> SimpleNamespace:
    """Return what RF-DETR's class reads of a folder, for these classes."""
    return SimpleNamespace(
        _memoized_coco_categories=lambda *_: None,
        _load_classes=lambda *_, **__: list(classes),
        _dataset_label_space_on_disk=lambda *_, **__: (list(classes), True),
        _detect_num_classes_for_training=lambda *_, **__: len(classes),
    )


def _opened(train: Data, val: Data | None, test: Data | None) -> dict[str, Pack]:
    """Return the packs that are given, by split."""
    given = {"train": train, "val": val, "test": test}
    packs = {}
    for split, data in given.items():
        if data is not None:
            packs[split] = data if isinstance(data, Pack) else open_pack(data)
    for pack in packs.values():
        _check(pack)
    return packs


def _check_task(model_config: Any) -> None:
    """Raise UsageError if a model does not find boxes or masks."""
    if model_config.use_grouppose_keypoints:
        step = "train it from files: packer extract PACK FOLDER --layout coco"
        raise UsageError("model", "finds keypoints, which packer.rfdetr does not train", step)


def _check(pack: Pack) -> None:
    """Raise UsageError if a detector cannot learn from a pack."""
    manifest = pack.manifest
    if manifest.mode != "rgb" or manifest.dtype not in (None, "uint8"):
        problem = f"has images with the mode {manifest.mode}, of {manifest.dtype}, and RF-DETR takes RGB of 8 bits"
        raise UsageError(pack.path, problem, "build it with the mode rgb")
    check_box_classes(pack)


def _class_names(packs: dict[str, Pack]) -> list[str]:
    """Return the classes, which are those of all packs."""
    names = classes_of_objects(packs["train"])
    for pack in packs.values():
        if classes_of_objects(pack) != names:
            problem = f"has the classes {', '.join(classes_of_objects(pack))}, not {', '.join(names)}"
            raise UsageError(pack.path, problem, f"build it with the classes of {packs['train'].path}")
    return names
