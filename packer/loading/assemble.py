"""Puts a PackedLoader together: checks its arguments, and creates the parts that prepare and hand over batches.

Each error says what to write instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from packer.errors import UsageError, plural
from packer.format.pack import Pack, join_packs
from packer.loading.arguments import Arguments, Augment, Reading
from packer.loading.collate import COLLATIONS
from packer.loading.dataset import Classes, PackedDataset, choose_records, pack_at
from packer.loading.fill import Floats, ImageFiller
from packer.loading.fillers import check_crop, check_labels, filler_of, paired
from packer.loading.mixing import (
    BatchForm,
    BatchPostprocessor,
    Mixing,
    check_augments,
    check_mixed_labels,
    check_mixing,
    check_output,
    check_weights,
)
from packer.loading.on_device import BatchMaker, DeviceCache, batches_of
from packer.loading.page_cache import RamCache
from packer.loading.pair_filler import PairFiller
from packer.loading.pipeline import Pipeline, Workload
from packer.loading.stand_ins import Replacer
from packer.loading.targets import TargetOptions, Targets, check_choice
from packer.loading.to_device import Normalize, Transfer
from packer.loading.user_functions import Transforms
from packer.loading.views import CropView, check_views, view_transforms
from packer.samplers import MixtureSampler, Sampler, SequentialSampler, ShuffleSampler
from packer.samplers.order import Records, derive
from packer.samplers.ranks import check_int
from packer.system import usable_cores

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
    pack = pack_at(given.data, reading.cache_dir, reading.cache_bytes)
    batch_size = check_int("batch_size", given.batch_size, 1)
    device = check_device(form.device)
    own = {"seed": order.seed, "indices": order.indices, "drop_last": order.drop_last, "pad": order.pad}
    sampler = check_sampler(order.sampler, pack, order.shuffle, own, order.classes, within)
    sampler.num_batches(batch_size)  # raises where drop_last would leave none
    seed = sampler.seed if order.seed is None else check_int("seed", order.seed, 0, (1 << 64) - 1)
    views = check_views(augment.views, augment.repeats, augment.crop, check_crop)
    filler = filler_of(given, pack, sampler, views, seed)
    functions = Transforms(given.functions.transform, given.functions.target_transform, given.functions.transforms)
    widen = device.type == "cpu" or bool(functions) or bool(views)
    options = TargetOptions(
        augment.min_area, augment.min_visible, form.label_offset or 0, augment.flip_index, augment.hide_outside,
        form.parts, widen, reading.verify, form.ignored or "keep",
    )  # fmt: skip
    targets = Targets(pack, options)
    for name in ("flip", "vflip"):
        if getattr(filler.augmentation, name):
            targets.warn_of_flips(name)
    collation = check_collate(form.collate, targets)
    check_choice("on_error", reading.on_error, ("raise", "replace"))
    check_labels(filler, targets)
    filler = paired(filler, augment, targets, sampler, seed)
    replacer = Replacer(filler, targets, sampler, seed) if reading.on_error == "replace" else None
    normalize = Normalize(form.mean, form.std, form.dtype, form.memory_format or torch.channels_last)
    check_normalize(normalize, filler)
    pairing = filler.pairing if isinstance(filler, PairFiller) else None
    alpha: Any = None if isinstance(augment.mixup, tuple | list) else augment.mixup
    check_mixed_labels(alpha, augment.cutmix, targets)
    mixing = Mixing(alpha, augment.cutmix, augment.color_jitter, len(pack.classes), seed)
    augments = view_transforms(views, augment.augment, augment.color_jitter, seed)
    floats_made = check_augments(augments, normalize, filler, targets, functions)
    check_mixing(mixing, normalize, filler, targets, functions, floats_made)
    jitters = _jitters(augment, views, mixing, seed)
    for each in jitters.values():
        check_mixing(each, normalize, filler, targets, functions)
    if views:
        _check_with_views(given, views, mixing)
    jittered = bool(jitters or augments) or mixing.jitters
    here = device.type == "cpu" and reading.decode == "host" and reading.cache != "device"
    floats = _floats(normalize, filler) if here and not functions and not jittered else None
    output = check_output(form.output, device, normalize)
    weights = check_weights(sampler) if form.with_weights else None
    alone = collation in ("list", "dict") and not targets.are_masks
    formed = BatchForm(form.memory_format, form.with_index, targets.are_masks and not widen, output, weights, alone)
    prefetch = check_int("prefetch", reading.prefetch, 1)
    work = Workload(_threads(given, pack), prefetch, device.type == "cuda", collation, floats)
    host = Pipeline(filler, targets, min(batch_size, sampler.num_samples), work, functions, replacer)
    check_choice("cache", reading.cache, ("ram", "device", None))
    return LoaderParts(
        pack=pack,
        batch_size=batch_size,
        sampler=sampler,
        host=host,
        batches=_elsewhere(reading, host, device),
        ram=RamCache(pack) if reading.cache == "ram" else None,
        device=device,
        transfer=Transfer(device, reading.prefetch, Normalize() if jittered or floats else normalize, leading=True),
        hand_over=BatchPostprocessor(mixing, normalize, formed, jitters, augments, pairing),
    )


def _floats(normalize: Normalize, filler: ImageFiller) -> Floats | None:
    """Return what normalizes images in the threads; None if they stay bytes, or become other numbers than float32."""
    if normalize.nothing or normalize.dtype not in (None, torch.float32):
        return None
    planar = normalize.memory_format == torch.contiguous_format
    return Floats(normalize.mean, normalize.std, float(np.iinfo(filler.dtype).max), filler.channels, planar)


def _jitters(augment: Augment, views: dict[str, CropView], mixing: Mixing, seed: int) -> dict[str, Mixing]:
    """Return what changes the colors of each view; {} if nothing does, or there are no views but `repeats`."""
    if not augment.views:
        return {}
    given = [augment.color_jitter if one.color_jitter is None else one.color_jitter for one in views.values()]
    if all(jitter is None for jitter in given):
        return {}
    made = enumerate(zip(views, given, strict=True))
    return {name: Mixing(None, None, jitter, 0, seed if not k else derive(seed, k)) for k, (name, jitter) in made}


def _check_with_views(given: Arguments, views: dict[str, CropView], mixing: Mixing) -> None:
    """Raise UsageError for what cannot be combined with several crops of an image."""
    option = "views" if given.augment.views else "repeats"
    functions = {field.name: getattr(given.functions, field.name) for field in fields(given.functions)}
    changes = {name: function is not None for name, function in functions.items()}
    changes |= dict.fromkeys(mixing.mixes, given.augment.views is not None)
    if name := next((name for name, used in changes.items() if used), None):
        raise UsageError(name, f"cannot be combined with {option}", "apply it to the batches")
    if given.reading.decode != "host" or given.reading.cache == "device":
        name = "decode" if given.reading.decode != "host" else "cache"
        raise UsageError(name, f"cannot be combined with {option}, which are cut on the host", "leave it out")


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
    packs = [pack_at(data, reading.cache_dir, reading.cache_bytes) for data in given.data]
    joined, seed = join_packs(packs), 0 if order.seed is None else order.seed
    samples = order.samples_per_epoch
    if samples is not None:
        samples = check_int("samples_per_epoch", samples, 1)
    shares = list(given.data.values())
    indices = choose_records(joined, order.indices, order.classes)
    last = {"drop_last": order.drop_last, "pad": order.pad}
    sampler = MixtureSampler(joined, shares, seed, num_samples=samples, indices=indices, **last)
    return replace(
        given,
        data=joined,
        order=replace(order, sampler=sampler, shuffle=False, indices=None, classes=None, drop_last=False, pad=True),
        reading=replace(reading, cache_dir=None, cache_bytes=None),
    )


def _elsewhere(reading: Reading, host: Pipeline, device: torch.device) -> BatchMaker:
    """Return what prepares the batches: the host, or the device."""
    name = "decode" if reading.decode != "host" else "cache"
    if (name == "decode" or reading.cache == "device") and host.filler.augmentation.affine is not None:
        raise UsageError("affine", f"cannot be combined with {name}: only the host moves images", f"leave {name} out")
    if reading.decode != "host":
        changes = {"transform": host.transforms.transform, "transforms": host.transforms.transforms}
        excluded = {name: function is not None for name, function in changes.items()}
        return batches_of(reading.decode, host, device, {**excluded, 'cache="device"': reading.cache == "device"})
    return DeviceCache(host, device) if reading.cache == "device" else host


LIBRARIES = {"torchcodec": 'decode="device"', "dali": "decode=packer.dali.Decoder()"}
"""What decodes elsewhere than on the host -> the argument that chooses it."""


def check_device(device: Any) -> torch.device:
    """Return a device of torch that can be used here."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError("device", f"must be a device of torch, got {device!r}", 'write "cuda" or "cpu"') from None
    if found.type == "cuda":  # `Transfer` says what is wrong
        return found
    try:
        torch.empty(1, dtype=torch.uint8, device="cpu").to(found)
    except Exception as error:  # each backend has its own
        why = str(error).strip().splitlines() or [type(error).__name__]
        problem = f"is {str(found)!r}, which torch cannot use here: {why[0]}"
        raise UsageError("device", problem, 'write device="cpu"') from None
    return found


def check_same_decoder(there: Any, here: str) -> None:
    """Warn if a state was made with another JPEG decoder than `here`; that of older versions is not known."""
    name = here.partition(" ")[0]
    if there is not None and name and there != name:
        differ = "slightly" if there in LIBRARIES or name in LIBRARIES else "by 0.3 of 255 on average"
        step = LIBRARIES.get(there, f'decoder="{there}"')
        warnings.warn(
            f"the state was made with the JPEG decoder {there}, and this loader uses {name}: their crops differ "
            f"{differ}; pass {step} for the same pixels",
            stacklevel=3,
        )


def check_sampler(
    sampler: Any, pack: Pack, shuffle: bool, own: dict[str, Any], classes: Classes | None, within: Records | None
) -> Sampler:
    """Return the sampler of a pack.

    Args:
        sampler: the one given, or None.
        pack: the pack.
        shuffle: a new order each epoch, if none is given.
        own: seed, indices, drop_last and pad of the one that is made then; a given one brings its own, but for seed.
        classes: of the images, for the one that is made.
        within: the records of the dataset; None: all.
    """
    if sampler is None:
        made = {**own, "seed": 0 if own["seed"] is None else own["seed"]}
        made["indices"] = choose_records(pack, own["indices"], classes, within)
        return ShuffleSampler(pack, **made) if shuffle else SequentialSampler(pack, **made)
    if not isinstance(sampler, Sampler):
        step = "write shuffle=True, or sampler=ShuffleSampler(pack) of packer.samplers; torch's go into a DataLoader"
        raise UsageError("sampler", f"must be one of packer.samplers, got {type(sampler).__name__}", step)
    for name, given in {"shuffle": shuffle, "classes": classes, **own}.items():
        if name != "seed" and given is not None and given is not (name == "pad"):
            raise UsageError(name, "cannot be combined with a sampler, which has its own", "pass it to the sampler")
    if sampler.num_records != len(pack):
        problem = f"is for {sampler.num_records} records, but the pack has {len(pack)}"
        raise UsageError("sampler", problem, "create it for this pack")
    if sampler.identity["pack"] not in (None, pack.manifest.digest):
        raise UsageError("sampler", "is for another pack", "create it for this pack")
    if within is not None:
        inside = np.zeros(len(pack), np.bool_)
        inside[within] = True
        if sampler.records is None or not inside[sampler.records].all():
            raise UsageError("sampler", "reads records that the dataset does not have", "create it for the dataset")
    return sampler.of_pack()


def check_normalize(normalize: Normalize, filler: ImageFiller) -> None:
    """Raise UsageError if the images of a pack cannot be normalized so."""
    if normalize.mean is not None and len(normalize.mean) != filler.channels:
        channels = plural(filler.channels, "channel")
        problem = f"has {plural(len(normalize.mean), 'number')}, but the images have {channels}"
        raise UsageError("mean", problem, "pass one number per channel, also in std")
    if filler.dtype == np.uint16 and not normalize.holds(torch.uint16):
        raise UsageError("dtype", f"is {normalize.dtype}, which cannot hold 16-bit images", "write dtype=torch.float32")


def check_collate(collate: Any, targets: Targets) -> str:
    """Return what becomes of boxes."""
    check_choice("collate", collate, COLLATIONS)
    if collate in ("list", "dict"):
        return str(collate)
    if not targets.has_boxes:
        raise UsageError("collate", f'is "{collate}", which needs boxes, but the pack has none', "leave it out")
    if targets.has_parts:
        next_step = 'write collate="list", or leave the parts out with parts=()'
        raise UsageError("collate", f'is "{collate}", which has no place for parts', next_step)
    return str(collate)
