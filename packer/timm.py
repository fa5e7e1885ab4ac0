"""timm's training script on packs: `create_dataset` and `create_loader` in the place of timm's.

    from packer.timm import create_dataset, create_loader  # and not from timm.data

Where every option can be prepared by packer's threads with timm's numbers and distributions, `create_loader` returns a
`PackedTimmLoader`; else timm's own loader, which reads the images of the pack: `why_timm` says why. docs/guides/timm.md
has a table of the options.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from packer.containers import EXTENSIONS
from packer.errors import AnyPath, NotInstalled, UsageError
from packer.format.pack import Pack
from packer.format.pack_paths import names_a_pack
from packer.loading.byte_batches import PlanarFloats, mix_bytes, paste_bytes
from packer.loading.crop import Crop
from packer.loading.dataset import PackedDataset
from packer.loading.loader import PackedLoader
from packer.loading.loader_threads import on_one_core
from packer.loading.pillow_crops import PillowCenterCrop, PillowRandomCrop
from packer.loading.pillow_policy import (
    SeededSteps,
    Step,
    blur,
    gray,
    jitter,
    known,
    one_policy,
    some_operations,
    sometimes,
)
from packer.loading.seeded_transform import seeded_globals
from packer.loading.targets import TargetOptions, Targets
from packer.samplers import RepeatedSampler, Sampler, SequentialSampler, ShuffleSampler
from packer.samplers.order import derive
from packer.samplers.ranks import even_batch
from packer.system.machine import install_command

try:
    import timm.data.auto_augment as policies
    from timm.data import FastCollateMixup, create_transform
    from timm.data import create_loader as _timm_loader
    from timm.data.loader import adapt_to_chs
    from timm.data.mixup import cutmix_bbox_and_lam, mixup_target
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import MaybePILToTensor, MaybeToTensor, RandomResizedCropAndInterpolation
    from timm.data.transforms_factory import transforms as torchvision  # torchvision.transforms
    from torchvision.transforms import functional
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("timm", "torchvision"):
        raise
    lacks = "is not installed" if error.name == "timm" else f"is here without what it needs: {error.msg}"
    raise NotInstalled("packer.timm", f"needs timm, which {lacks}", install_command("timm")) from None

__all__ = ["PackedImageDataset", "PackedTimmLoader", "create_dataset", "create_loader", "why_timm"]


_STREAM = 7 << 32
"""Gives mixing and erasing other random numbers than crops, flips and other changes."""
_TRAIN, _EVAL = ("train", "training"), ("validation", "val", "valid", "eval")


class PackedImageDataset(torch.utils.data.Dataset[tuple[Any, Any]]):
    """The images of a pack as timm's ImageDataset has them, for its loaders: (image of Pillow, class id).

    Args:
        data: the pack: its path or URL, an open Pack, or a PackedDataset without transforms.
        input_img_mode: mode of Pillow of the images.

    Raises:
        UsageError: if the pack has other labels than classes, or the dataset has transforms.
    """

    def __init__(self, data: AnyPath | Pack | PackedDataset, input_img_mode: str = "RGB") -> None:
        self.data = data if isinstance(data, PackedDataset) else PackedDataset(data, parts=())
        self.pack = self.data.pack
        if self.data.functions:
            step = "leave them out: create_loader makes timm's"
            raise UsageError("dataset", "has transforms of its own", step)
        if not Targets(self.pack, TargetOptions(parts=())).are_labels:
            raise UsageError(self.pack.path, "has no class labels alone", "build it from a folder of classes")
        self.transform: Callable[[Any], Any] | None = None
        self.target_transform: Callable[[Any], Any] | None = None
        self.input_img_mode = input_img_mode

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, target = self.data[index]
        made = functional.to_pil_image(image).convert(self.input_img_mode)
        if self.transform is not None:
            made = self.transform(made)
        return made, target if self.target_transform is None else self.target_transform(target)

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        """Return the file that an image was, as timm's datasets do; `absolute`: as if it were within the pack."""
        record = index if self.data.indices is None else int(self.data.indices[index])
        path = self.pack.paths[record]
        return os.path.basename(path) if basename else os.path.join(self.pack.path, path) if absolute else path

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return those of all images, as `filename` does."""
        return [self.filename(index, basename, absolute) for index in range(len(self))]


def create_dataset(
    name: str = "", root: AnyPath | Pack | None = None, split: str = "validation", search_split: bool = True,
    **options: Any,
) -> PackedImageDataset:  # fmt: skip
    """Return the images of a pack, in the place of ``timm.data.create_dataset``.

    Args:
        name: empty, or the pack if there is no `root`.
        root: the pack; or a folder of packs that are called as the splits, such as ``train.lmdb`` and ``val.lmdb``.
        split: of the packs in a folder; timm's synonyms are known.
        search_split: False: `root` is the pack.
        options: `input_img_mode`, as for `PackedImageDataset`; others of timm's, which do not concern files.

    Raises:
        UsageError: if there is no such pack, or an option is for files: `class_map`, `num_samples`, `repeats`.
    """
    if given := next((name for name in ("class_map", "num_samples", "repeats") if options.get(name)), None):
        raise UsageError(given, "is not for packs, whose classes and images are fixed", "build another pack")
    place = root or name
    if not place:
        raise UsageError("root", "is not given", "name a pack, or a folder of packs")
    if search_split and not isinstance(place, Pack):
        place = _pack_of_split(os.fsdecode(place), split)
    return PackedImageDataset(place, options.get("input_img_mode") or "RGB")


def _pack_of_split(root: str, split: str) -> str:
    """Return the pack of a split in a folder, or `root` if that is one."""
    if names_a_pack(root) or not os.path.isdir(root):
        return root
    names = next((synonyms for synonyms in (_TRAIN, _EVAL) if split in synonyms), (split,))
    places = [os.path.join(root, name + extension) for name in names for extension in ("", *EXTENSIONS)]
    if found := next(filter(names_a_pack, places), None):
        return found
    raise UsageError(root, f"has no pack for the split {split}", f"call one {names[0]}.lmdb, or give its path")


class PackedTimmLoader:
    """Batches of a pack as timm's loaders have them: (images, targets) on the device, normalized.

    Images are contiguous, (n, channels, height, width), as timm's.

    Args:
        loader: makes batches.
        dataset: what `dataset` returns.
        finish: the last steps of each batch; None: there are none.
    """

    batch_sampler = None

    def __init__(self, loader: PackedLoader, dataset: PackedImageDataset, finish: _Finish | None) -> None:
        self.loader, self.dataset, self._finish = loader, dataset, finish

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self._finish is None:
            yield from self.loader
            return
        for number, (images, targets) in enumerate(self.loader):
            yield self._finish(images, targets, (self.loader.epoch, number, self.sampler.rank))

    @property
    def sampler(self) -> Sampler:
        """The order of the records, with `set_epoch`."""
        return self.loader.sampler

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Without a call, each reads the one after the last."""
        self.loader.set_epoch(epoch)

    @property
    def mixup_enabled(self) -> bool:
        """Whether `collate_fn` mixes images; it can be set, as train.py does."""
        collate = self._finish and self._finish.collate
        return bool(collate.mixup_enabled) if isinstance(collate, FastCollateMixup) else False

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if self._finish is not None and isinstance(self._finish.collate, FastCollateMixup):
            self._finish.collate.mixup_enabled = enabled


@dataclass(frozen=True, eq=False)
class _Finish:
    """What timm does to a batch of bytes when it is together: mixing, normalization, erasing."""

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype
    device: torch.device
    prefetcher: bool
    """Whether timm's PrefetchLoader would do it, on the device, and else its transforms."""
    collate: Any
    erasing: Any
    planar: PlanarFloats
    seed: int

    def __call__(self, images: torch.Tensor, targets: torch.Tensor, batch: tuple[int, ...]) -> tuple[Any, Any]:
        """Return the batch as it is trained on; `batch`: epoch, number and rank."""
        alone = on_one_core() if images.device.type == "cpu" else nullcontext()
        with alone, seeded_globals(derive(self.seed ^ _STREAM, *batch), self.device):
            if not self.prefetcher:
                return self._by_transforms(images, targets)
            images, targets = self._collated(images, targets)
            images, targets = self._floats(images.to(self.device)), targets.to(self.device)
            return images if self.erasing is None else self.erasing(images), targets

    def _by_transforms(self, images: torch.Tensor, targets: torch.Tensor) -> tuple[Any, Any]:
        images = functional.normalize(images.contiguous().float().div_(255), self.mean, self.std)
        for image in images if self.erasing is not None else ():
            self.erasing(image)
        return (images, targets) if self.collate is None else self.collate(_samples(images, targets))

    def _collated(self, images: torch.Tensor, targets: torch.Tensor) -> tuple[Any, Any]:
        mixup = self.collate
        if mixup is None:
            return images, targets
        if not _mixes_batches(mixup):
            return mixup(_samples(images, targets))  # type: ignore[no-any-return]
        if len(images) % 2:
            raise UsageError("batch_size", f"is {len(images)}, and mixup takes pairs of images", "make it even")
        share, cut = mixup._params_per_batch()
        if cut:
            how = {"ratio_minmax": mixup.cutmix_minmax, "correct_lam": mixup.correct_lam}
            box, share = cutmix_bbox_and_lam(images.shape, share, **how)
            paste_bytes(images, box)
        elif share != 1.0:
            mix_bytes(images, share)
        many = {"multi_label": True} if getattr(mixup, "multi_label", False) else {}
        return images, mixup_target(targets, mixup.num_classes, share, mixup.label_smoothing, **many)

    def _floats(self, images: torch.Tensor) -> torch.Tensor:
        if images.device.type == "cpu" and self.dtype == torch.float32:
            return self.planar(images)
        like: Any = {"device": images.device, "dtype": self.dtype}
        each = ([number * 255 for number in numbers] for numbers in (self.mean, self.std))
        mean, std = (torch.tensor(numbers, **like).view(1, -1, 1, 1) for numbers in each)
        return images.contiguous().to(self.dtype).sub_(mean).div_(std)


def _mixes_batches(collate: Any) -> bool:
    return type(collate) is FastCollateMixup and collate.mode not in ("elem", "pair", "half")


def _samples(images: torch.Tensor, targets: torch.Tensor) -> list[tuple[torch.Tensor, Any]]:
    """Return a batch as a function that collates gets it."""
    each = targets.tolist() if targets.dim() == 1 else list(targets)
    return list(zip(images.contiguous(), each, strict=True))


@dataclass(frozen=True, eq=False)
class _Native:
    """What a transform of timm is to a PackedLoader."""

    crop: Crop
    chances: dict[str, float]
    """Of flips, by the loader's option."""
    steps: list[Step]


def _native(transform: Any) -> _Native | str:
    """Return a transform of timm as packer makes it, or what of it packer does not."""
    if type(transform) is not torchvision.Compose:
        return type(transform).__name__
    parts = list(transform.transforms)
    try:
        crop = _crop_of(parts)
    except ValueError as error:
        return f"a crop like this: {error}"
    if crop is None:
        return type(parts[0]).__name__
    chances, steps = {}, []
    for part in parts:
        if option := _FLIPS.get(type(part)):
            chances[option] = float(part.p)
        elif step := _step_of(part):
            steps.append(step)
        elif type(part) not in _IN_THE_END:
            return type(part).__name__
    return _Native(crop, chances, steps)


_FLIPS = {torchvision.RandomHorizontalFlip: "flip", torchvision.RandomVerticalFlip: "vflip"}
_IN_THE_END = (MaybePILToTensor, MaybeToTensor, torchvision.Normalize, RandomErasing)
"""What `_Finish` does."""


def _crop_of(parts: list[Any]) -> Crop | None:
    """Take the crop from the beginning of a list of transforms; None if it begins with another."""
    first = parts[0]
    if type(first) is RandomResizedCropAndInterpolation:
        del parts[0]
        modes = first.interpolation if isinstance(first.interpolation, tuple | list) else (first.interpolation,)
        filters = tuple(mode.value for mode in modes)
        return PillowRandomCrop(first.size, tuple(first.scale), tuple(first.ratio), "bilinear", filters)
    if type(first) is not torchvision.Resize or type(parts[1]) is not torchvision.CenterCrop:
        return None
    size, cut = first.size, tuple(parts[1].size)
    del parts[:2]
    short = size if isinstance(size, int) else size[0] if len(size) == 1 else None
    stretched = None if short is not None else tuple(size)
    return PillowCenterCrop(cut, short, "bilinear", first.interpolation.value, stretched)


def _step_of(part: Any) -> Step | None:
    """Return a transform of single images as a step, or None if it is another."""
    kind = type(part)
    if kind is policies.RandAugment and all(map(known, part.ops)):
        return some_operations(part.ops, part.num_layers, part.choice_weights)
    if kind is policies.AutoAugment and all(known(one) for policy in part.policy for one in policy):
        return one_policy(part.policy)
    if kind is torchvision.ColorJitter:
        return jitter(part, functional)
    if kind is torchvision.RandomGrayscale:
        return sometimes(gray(functional), part.p)
    if kind is torchvision.GaussianBlur:
        return blur(part, functional)
    if kind is torchvision.RandomApply and len(part.transforms) == 1 and (step := _step_of(part.transforms[0])):
        return sometimes(step, part.p)
    return None


_BY_TIMM = {
    "num_aug_splits": "takes apart and mixes single images",
    "input_size_choices": "makes batches of several sizes",
}
"""Options that packer leaves to timm, and why."""
_TRANSFORM = tuple(inspect.signature(create_transform).parameters)
_KNOWN = {
    *_TRANSFORM, "dataset", "batch_size", "re_split", "num_aug_repeats", "num_aug_splits", "num_workers", "distributed",
    "collate_fn", "pin_memory", "fp16", "img_dtype", "device", "use_multi_epochs_loader", "persistent_workers",
    "worker_seeding", "input_size_choices", "batch_size_choices", "batch_choice_weights", "batch_choice_seed",
    "batch_choice_schedule", "batch_schedule_epochs", "batch_schedule_spread", "batch_schedule_random_mix",
    "num_batches",
}  # fmt: skip
"""Arguments of timm's create_loader that are known here; others are left to it if they are given."""


def _plan(dataset: Any, given: dict[str, Any]) -> _Native | str:
    """Return what a PackedLoader does, or why timm's own must."""
    if not isinstance(dataset, PackedImageDataset):
        return f"dataset is {type(dataset).__name__}, no pack"
    defaults = inspect.signature(_timm_loader).parameters
    for name, value in given.items():
        if name in _BY_TIMM and value:
            return f"{name} {_BY_TIMM[name]}"
        if name not in _KNOWN and value != defaults[name].default:
            return f"{name} is not known here"
    if dataset.target_transform is not None:
        return "dataset has a target_transform"
    if dataset.pack.manifest.mode != "rgb" or dataset.input_img_mode != "RGB":
        return f"the pack has {dataset.pack.manifest.mode} images, the model takes {dataset.input_img_mode}"
    if int(given["num_aug_repeats"]) != given["num_aug_repeats"]:
        return "num_aug_repeats is no whole number"
    options = {name: value for name, value in given.items() if name in _TRANSFORM}
    made = _native(create_transform(**options))
    return f"packer does not do {made}" if isinstance(made, str) else made


def _bound(dataset: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of timm's create_loader by name, the dataset as timm's loaders take it."""
    if isinstance(dataset, Pack | PackedDataset | str | os.PathLike):
        dataset = PackedImageDataset(dataset)
    bound = inspect.signature(_timm_loader).bind(dataset, *args, **options)
    bound.apply_defaults()
    return bound.arguments


def why_timm(dataset: Any, *args: Any, **options: Any) -> str:
    """Return why `create_loader` leaves these arguments to timm's own loader; empty if packer's is used.

    Args:
        dataset: as for `create_loader`.
        args: likewise.
        options: likewise.
    """
    given = _bound(dataset, args, options)
    plan = _plan(given["dataset"], given)
    return plan if isinstance(plan, str) else ""


def create_loader(dataset: Any, *args: Any, **options: Any) -> Any:
    """Return the loader of a pack, in the place of ``timm.data.create_loader``.

    Random numbers of images depend on (seed, epoch, record), and the seed is that of torch: ``torch.manual_seed(42)``,
    as train.py does. With several ranks, the order is the same on all, as of torch's DistributedSampler.

    Args:
        dataset: what `create_dataset` returns; or a pack: its path, an open one or a PackedDataset.
        args: `input_size`, `batch_size` and so on: the arguments of timm's, in its order.
        options: likewise, by name.

    Returns:
        A `PackedTimmLoader`, or what timm's function returns.

    Raises:
        TypeError: if timm's function has no such argument.
        UsageError: if the pack has no class labels, or too few images.
    """
    given = _bound(dataset, args, options)
    dataset = given["dataset"]
    plan = _plan(dataset, given)
    if isinstance(plan, str):
        return _timm_loader(**given)
    seed = torch.initial_seed() & ((1 << 63) - 1)
    sampler = _sampler(dataset.data, given, seed)
    finish = _finish(given, seed)
    whole = finish.prefetcher and finish.collate is finish.erasing is None and finish.dtype == torch.float32
    whole = whole and not plan.steps
    here = finish.collate is not None and not _mixes_batches(finish.collate)
    more: dict[str, Any] = dict(plan.chances)
    if whole:
        more.update(mean=finish.mean, std=finish.std, memory_format=torch.contiguous_format)
    loader = PackedLoader(
        dataset.data,
        _batch_size(given, sampler),
        sampler=sampler,
        seed=seed,
        crop=plan.crop,
        transform=SeededSteps(plan.steps) if plan.steps else None,
        device="cpu" if here else finish.device,
        threads=max(1, given["num_workers"]),
        **more,
    )
    return PackedTimmLoader(loader, dataset, None if whole else finish)


def _finish(given: dict[str, Any], seed: int) -> _Finish:
    prefetcher, device = given["use_prefetcher"], torch.device(given["device"])
    erasing = None
    if given["re_prob"] > 0 and given["is_training"] and not given["no_aug"]:
        splits = 2 if given["re_split"] else 0
        erasing = RandomErasing(
            given["re_prob"], mode=given["re_mode"], max_count=given["re_count"], num_splits=splits,
            device=device if prefetcher else "cpu",
        )  # fmt: skip
    mean, std = (tuple(adapt_to_chs(given[name], 3)) for name in ("mean", "std"))
    dtype = torch.float16 if given["fp16"] else given["img_dtype"] or torch.float32
    on = device if prefetcher else torch.device("cpu")
    planar = PlanarFloats(*([number * 255 for number in each] for each in (mean, std)))
    return _Finish(mean, std, dtype, on, prefetcher, given["collate_fn"], erasing, planar, seed)


def _sampler(data: PackedDataset, given: dict[str, Any], seed: int) -> Sampler:
    """Return the order of the records: of all ranks if it is distributed, with the same seed on each, as timm's."""
    ranks: dict[str, Any] = {} if given["distributed"] else {"rank": 0, "world_size": 1}
    if not given["is_training"]:
        return SequentialSampler(data, pad=False, **ranks)
    seed = 0 if given["distributed"] else seed
    if repeats := int(given["num_aug_repeats"]):
        return RepeatedSampler(data, repeats, seed, drop_last=True, **ranks)
    return ShuffleSampler(data, seed, drop_last=True, **ranks)


def _batch_size(given: dict[str, Any], sampler: Sampler) -> int:
    """Return the images of a batch: in evaluation, the most with which all ranks have as many batches.

    train.py adds up the results of all ranks after each batch: a rank with one more would wait forever.
    """
    size = int(given["batch_size"])
    if given["is_training"] and sampler.num_samples < size * sampler.world_size:
        few = f"has {sampler.num_samples} images, which fill no batch of {size} on {sampler.world_size} ranks"
        raise UsageError("dataset", few, "take smaller batches")
    if given["is_training"] or sampler.world_size == 1:
        return size
    found = even_batch(sampler.num_samples, sampler.world_size, size)
    if found == 0:
        few = f"has {sampler.num_samples} images for {sampler.world_size} ranks"
        raise UsageError("dataset", few, "evaluate on fewer ranks")
    return found


create_loader.__signature__ = inspect.signature(_timm_loader)  # type: ignore[attr-defined]
