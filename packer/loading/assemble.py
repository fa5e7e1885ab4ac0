"""Puts a PackedLoader together: checks its arguments, and creates the parts that prepare and hand over batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from numpy.typing import ArrayLike

from packer.errors import AnyPath, UsageError
from packer.format.pack import Pack, join_packs
from packer.loading import options
from packer.loading.crop import Augmentation, Crop
from packer.loading.dataset import PackedDataset
from packer.loading.fill import ImageFiller
from packer.loading.on_device import BatchMaker, Decoding, DeviceCache, batches_of
from packer.loading.page_cache import RamCache
from packer.loading.pipeline import Pipeline, Replacer, Workload
from packer.loading.targets import ImageTransform, JointTransform, Targets, Transforms
from packer.loading.to_device import BatchPostprocessor, Mixing, Normalize, Transfer
from packer.samplers import MixtureSampler, Sampler
from packer.samplers.ranks import check_int
from packer.system import usable_cores


@dataclass(frozen=True, slots=True)
class Order:
    """Which records, in which order."""

    shuffle: bool
    sampler: Sampler | None
    indices: ArrayLike | None
    classes: options.Classes | None
    seed: int | None
    drop_last: bool
    samples_per_epoch: int | None


@dataclass(frozen=True, slots=True)
class Augment:
    """What is changed at random, in images and their annotations."""

    crop: Crop | None
    flip: bool | float
    flip_index: Sequence[int] | None
    min_area: float
    hide_outside: bool
    mixup: float | None
    cutmix: float | None
    color_jitter: Sequence[float] | None


@dataclass(frozen=True, slots=True)
class Functions:
    """The user's own."""

    transform: ImageTransform | None
    target_transform: Callable[[Any], Any] | None
    transforms: JointTransform | None


@dataclass(frozen=True, slots=True)
class Form:
    """What a batch is."""

    collate: str
    label_offset: int | None
    with_index: bool
    device: torch.device | str
    mean: Sequence[float] | None
    std: Sequence[float] | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format | None


@dataclass(frozen=True, slots=True)
class Reading:
    """How records are read and decoded."""

    threads: int | None
    prefetch: int
    decoder: str | None
    decode: str | Decoding
    cache: str | None
    cache_dir: AnyPath | None
    cache_bytes: int | str | None
    verify: bool
    on_error: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """All of them."""

    data: AnyPath | Pack | PackedDataset | Mapping[Any, float]
    batch_size: int
    order: Order
    augment: Augment
    functions: Functions
    form: Form
    reading: Reading

    def flat(self) -> dict[str, Any]:
        """Return them by name, as PackedLoader takes them."""
        groups = (self.order, self.augment, self.functions, self.form, self.reading)
        named = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
        return {"data": self.data, "batch_size": self.batch_size, **named}

    def with_dataset(self, data: PackedDataset) -> Arguments:
        """Return them with the pack of a dataset, and with what is not given as the dataset has it."""
        own, offset = self.functions, self.form.label_offset
        functions = Functions(
            data.transform if own.transform is None else own.transform,
            data.target_transform if own.target_transform is None else own.target_transform,
            data.transforms if own.transforms is None else own.transforms,
        )
        return replace(
            self,
            data=data.pack,
            functions=functions,
            form=replace(self.form, label_offset=data.label_offset if offset is None else offset),
            reading=replace(self.reading, decoder=self.reading.decoder or data.decoder),
        )


COPYING_THREADS = 8
"""Default number at most, where threads only copy: raw images of 224x224 at 16 threads, on 16 cores, were 0.7 to 0.8 of
those at 8 (docs/benchmarks.md): memory has no more bandwidth, and the threads wait for one another."""


@dataclass(frozen=True)
class LoaderParts:
    """The parts of a loader, in the order in which a batch passes through them."""

    pack: Pack
    batch_size: int
    sampler: Sampler
    host: Pipeline
    """Prepares batches on the host."""
    batches: BatchMaker
    """Prepares them: `host`, or what does it on the device."""
    ram: RamCache | None
    device: torch.device
    transfer: Transfer
    hand_over: BatchPostprocessor


def assemble(given: Arguments) -> LoaderParts:
    """Return the parts of a loader.

    Raises:
        UsageError: if the arguments cannot be combined, or the path is not a pack.
        ValueError: if a crop is missing, or one of its values is out of range.
    """
    within = None
    if isinstance(given.data, PackedDataset):
        within = given.data.indices
        given = given.with_dataset(given.data)
    given = _with_mixture(given)
    order, augment, form, reading = given.order, given.augment, given.form, given.reading
    pack = options.pack_at(given.data, reading.cache_dir, reading.cache_bytes)
    batch_size = check_int("batch_size", given.batch_size, 1)
    device = options.check_device(form.device)
    own = {"seed": order.seed, "indices": order.indices, "drop_last": order.drop_last}
    sampler = options.check_sampler(order.sampler, pack, order.shuffle, own, order.classes, within)
    sampler.num_batches(batch_size)  # raises where drop_last would leave none
    seed = sampler.seed if order.seed is None else check_int("seed", order.seed, 0, (1 << 64) - 1)
    augmentation = Augmentation(options.check_crop(augment.crop), options.check_flip(augment.flip), seed)
    filler = ImageFiller(pack, augmentation, options.check_decoder(reading.decoder or "auto"), reading.verify)
    targets = Targets(pack, augment.min_area, form.label_offset or 0, augment.flip_index, augment.hide_outside)
    if augmentation.flip:
        targets.warn_of_flips()
    collation = options.check_collate(form.collate, targets)
    work = Workload(_threads(given, pack), check_int("prefetch", reading.prefetch, 1), device.type == "cuda", collation)
    functions = Transforms(given.functions.transform, given.functions.target_transform, given.functions.transforms)
    options.check_choice("on_error", reading.on_error, ("raise", "replace"))
    replacer = Replacer(filler, sampler, seed) if reading.on_error == "replace" else None
    host = Pipeline(filler, targets, min(batch_size, sampler.num_samples), work, functions, replacer)
    normalize = Normalize(form.mean, form.std, form.dtype, form.memory_format or torch.channels_last)
    options.check_normalize(normalize, filler)
    mixing = Mixing(augment.mixup, augment.cutmix, augment.color_jitter, len(pack.classes), seed)
    options.check_mixing(mixing, normalize, filler, targets, functions)
    options.check_choice("cache", reading.cache, ("ram", "device", None))
    return LoaderParts(
        pack=pack,
        batch_size=batch_size,
        sampler=sampler,
        host=host,
        batches=_elsewhere(reading, host, device),
        ram=RamCache(pack) if reading.cache == "ram" else None,
        device=device,
        transfer=Transfer(device, reading.prefetch, Normalize() if mixing.jitters else normalize),
        hand_over=BatchPostprocessor(mixing, normalize, form.memory_format, form.with_index),
    )


def _threads(given: Arguments, pack: Pack) -> int:
    if given.reading.threads is not None:
        return check_int("threads", given.reading.threads, 1)
    functions = given.functions.transform or given.functions.transforms
    copies = pack.manifest.encoding == "raw" and given.augment.crop is None and not functions
    return min(usable_cores(), COPYING_THREADS) if copies else usable_cores()


def _with_mixture(given: Arguments) -> Arguments:
    """Return the joined pack and its sampler instead of packs with shares, whose options of an order it takes over."""
    order, reading = given.order, given.reading
    if not isinstance(given.data, Mapping):
        if order.samples_per_epoch is not None:
            step = "leave it out, or name packs with their shares: {pack: 0.7, other: 0.3}"
            raise UsageError("samples_per_epoch", "is for several packs, but this is one", step)
        return given
    if order.sampler is not None:
        step = "pass packer.join_packs([...]) with this sampler, or leave it out"
        raise UsageError("sampler", "cannot be combined with shares of packs, which make the order", step)
    packs = [options.pack_at(data, reading.cache_dir, reading.cache_bytes) for data in given.data]
    joined, seed = join_packs(packs), 0 if order.seed is None else order.seed
    samples = order.samples_per_epoch
    if samples is not None:
        samples = check_int("samples_per_epoch", samples, 1)
    shares = list(given.data.values())
    indices = options.choose_records(joined, order.indices, order.classes)
    sampler = MixtureSampler(joined, shares, seed, num_samples=samples, indices=indices, drop_last=order.drop_last)
    return replace(
        given,
        data=joined,
        order=replace(order, sampler=sampler, shuffle=False, indices=None, classes=None, drop_last=False),
        reading=replace(reading, cache_dir=None, cache_bytes=None),
    )


def _elsewhere(reading: Reading, host: Pipeline, device: torch.device) -> BatchMaker:
    """Return what prepares the batches: the host, or the device."""
    if reading.decode != "host":
        changes = {"transform": host.transforms.transform, "transforms": host.transforms.transforms}
        excluded = {name: function is not None for name, function in changes.items()}
        return batches_of(reading.decode, host, device, {**excluded, 'cache="device"': reading.cache == "device"})
    return DeviceCache(host, device) if reading.cache == "device" else host
