"""Puts a PackedLoader together: checks its arguments, and creates the parts that prepare and hand over batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from packer.errors import UsageError
from packer.format.joined import join_packs
from packer.format.pack import Pack
from packer.loading import options
from packer.loading.augmentation import Augmentation
from packer.loading.dataset import PackedDataset
from packer.loading.device_cache import DeviceCache
from packer.loading.device_decode import batches_of
from packer.loading.encoded import BatchMaker
from packer.loading.fill import ImageFiller
from packer.loading.handover import Handover, Mixing
from packer.loading.normalize import Normalize
from packer.loading.pipeline import Pipeline, Work
from packer.loading.ram_cache import RamCache
from packer.loading.replace import Replacer
from packer.loading.targets import Targets
from packer.loading.to_device import Transfer
from packer.loading.transforms import Transforms
from packer.samplers import MixtureSampler, Sampler
from packer.samplers.ranks import check_int
from packer.system import usable_cores


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
    hand_over: Handover


def assemble(given: SimpleNamespace) -> LoaderParts:
    """Return the parts of a loader.

    Args:
        given: the arguments of `PackedLoader`.

    Raises:
        UsageError: if the arguments cannot be combined, or the path is not a pack.
        ValueError: if a crop is missing, or one of its values is out of range.
    """
    _take_from_dataset(given)
    _take_mixture(given)
    pack = options.pack_at(given.data, given.cache_dir, given.cache_bytes)
    batch_size = check_int("batch_size", given.batch_size, 1)
    device = options.check_device(given.device)
    own = {"seed": given.seed, "indices": given.indices, "drop_last": given.drop_last}
    sampler = options.check_sampler(given.sampler, pack, given.shuffle, own)
    sampler.num_batches(batch_size)  # raises where drop_last would leave none
    seed = sampler.seed if given.seed is None else check_int("seed", given.seed, 0, (1 << 64) - 1)
    augmentation = Augmentation(options.check_crop(given.crop), options.check_flip(given.flip), seed)
    filler = ImageFiller(pack, augmentation, options.check_decoder(given.decoder or "auto"), given.verify)
    targets = Targets(pack, given.min_area, given.label_offset or 0, given.flip_index, given.hide_outside)
    if augmentation.flip:
        targets.warn_of_flips()
    threads = usable_cores() if given.threads is None else check_int("threads", given.threads, 1)
    collation = options.check_collate(given.collate, targets)
    work = Work(threads, check_int("prefetch", given.prefetch, 1), device.type == "cuda", collation)
    functions = Transforms(given.transform, given.target_transform, given.transforms)
    options.check_choice("on_error", given.on_error, ("raise", "replace"))
    replacer = Replacer(filler, sampler, seed) if given.on_error == "replace" else None
    host = Pipeline(filler, targets, min(batch_size, sampler.num_samples), work, functions, replacer)
    normalize = Normalize(given.mean, given.std, given.dtype, given.memory_format or torch.channels_last)
    options.check_normalize(normalize, filler)
    mixing = Mixing(given.mixup, given.cutmix, given.color_jitter, len(pack.classes), seed)
    options.check_mixing(mixing, normalize, filler, targets, functions)
    options.check_choice("cache", given.cache, ("ram", "device", None))
    return LoaderParts(
        pack=pack,
        batch_size=batch_size,
        sampler=sampler,
        host=host,
        batches=_elsewhere(given, host, device),
        ram=RamCache(pack) if given.cache == "ram" else None,
        device=device,
        transfer=Transfer(device, given.prefetch, Normalize() if mixing.jitters else normalize),
        hand_over=Handover(mixing, normalize, given.memory_format, given.with_index),
    )


def _take_from_dataset(given: Any) -> None:
    """Replace a dataset with its pack, and arguments that are not given with those of the dataset."""
    data = given.data
    if isinstance(data, PackedDataset):
        for name in ("transform", "target_transform", "transforms", "decoder", "label_offset"):
            if getattr(given, name) is None:
                setattr(given, name, getattr(data, name))
        given.data = data.pack


def _take_mixture(given: Any) -> None:
    """Replace packs with shares by the joined pack and its sampler, which takes over the options of an order."""
    if not isinstance(given.data, Mapping):
        if given.samples_per_epoch is not None:
            step = "leave it out, or name packs with their shares: {pack: 0.7, other: 0.3}"
            raise UsageError("samples_per_epoch", "is for several packs, but this is one", step)
        return
    if given.sampler is not None:
        step = "pass packer.join_packs([...]) with this sampler, or leave it out"
        raise UsageError("sampler", "cannot be combined with shares of packs, which make the order", step)
    packs = [options.pack_at(data, given.cache_dir, given.cache_bytes) for data in given.data]
    joined, seed = join_packs(packs), 0 if given.seed is None else given.seed
    samples = given.samples_per_epoch
    if samples is not None:
        samples = check_int("samples_per_epoch", samples, 1)
    given.sampler = MixtureSampler(
        joined, list(given.data.values()), seed, num_samples=samples, indices=given.indices, drop_last=given.drop_last
    )
    given.data, given.shuffle, given.indices, given.drop_last = joined, False, None, False
    given.cache_dir = given.cache_bytes = None


def _elsewhere(given: Any, host: Pipeline, device: torch.device) -> BatchMaker:
    """Return what prepares the batches: the host, or the device."""
    if given.decode != "host":
        changes = {"transform": host.transforms.transform, "transforms": host.transforms.transforms}
        excluded = {name: function is not None for name, function in changes.items()}
        return batches_of(given.decode, host, device, {**excluded, 'cache="device"': given.cache == "device"})
    return DeviceCache(host, device) if given.cache == "device" else host
