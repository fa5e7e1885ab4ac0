"""The options of PackedLoader and PackedDataset, checked where they come in: each error says what to write instead."""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike

from packer.errors import UsageError, plural
from packer.format.pack import Pack, open_pack
from packer.images.decode import Decoder, check_available
from packer.images.decoders import load_native
from packer.loading.collate import COLLATIONS
from packer.loading.crop import Crop
from packer.loading.fill import ImageFiller
from packer.loading.targets import Targets, Transforms
from packer.loading.to_device import Mixing, Normalize
from packer.samplers import Sampler, SequentialSampler, ShuffleSampler
from packer.samplers.order import Records, check_indices
from packer.samplers.ranks import as_number

Classes = int | str | Sequence[int | str]
"""Names or ids of classes."""

ELSEWHERE = {
    "batch_sampler": "write sampler=, one of packer.samplers, and batch_size=",
    "collate_fn": 'write collate="list", "yolo" or "padded"; or use PackedDataset in a DataLoader',
    "dataset": "give the pack as the first argument",
    "generator": "write seed=",
    "in_order": "leave it out: batches are always in order",
    "multiprocessing_context": "leave it out: PackedLoader reads in threads",
    "num_workers": "write threads=: PackedLoader reads in threads",
    "persistent_workers": "leave it out: PackedLoader reads in threads",
    "pin_memory": 'leave it out: batches are pinned where device="cuda"',
    "pin_memory_device": "write device=",
    "prefetch_factor": "write prefetch=, in batches",
    "timeout": "leave it out: PackedLoader reads in threads",
    "worker_init_fn": "leave it out: PackedLoader reads in threads",
}
"""Arguments of torch's DataLoader -> what to do here."""
LIBRARIES = {"torchcodec": 'decode="device"', "dali": "decode=packer.dali.Decoder()"}
"""What decodes elsewhere than on the host -> the argument that chooses it."""


def refuse_unknown(function: Callable[..., Any], unknown: dict[str, Any]) -> None:
    """Raise UsageError for an argument of torch's DataLoader, and TypeError for any other that is unknown."""
    for name in unknown:
        if name in ELSEWHERE:
            raise UsageError(name, "is an argument of torch's DataLoader", ELSEWHERE[name])
        close = difflib.get_close_matches(name, inspect.signature(function).parameters, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"PackedLoader got an unexpected argument {name!r}{hint}")


def pack_at(data: Any, cache_dir: Any = None, cache_bytes: Any = None) -> Pack:
    """Return the pack that `data` is, or whose directory or URL it names."""
    if isinstance(data, (str, bytes, os.PathLike)):
        return open_pack(data, cache_dir, cache_bytes)
    if isinstance(data, Pack):
        for name, given in (("cache_dir", cache_dir), ("cache_bytes", cache_bytes)):
            if given is not None:
                raise UsageError(name, "is for the URL of a pack, but this one is open", "pass it to packer.open_pack")
        return data
    step = 'write packer.open_pack("NAME.lmdb")'
    if hasattr(data, "dataset") and hasattr(data, "indices"):
        step = "write PackedLoader(subset.dataset, ..., indices=subset.indices)"
    elif isinstance(data, (dict, list, tuple)):
        step = "join packs: packer.join_packs([PACK, ...])"
    raise UsageError("data", f"must be the directory of a pack, or an open one, got {type(data).__name__}", step)


def choose_records(
    pack: Pack, indices: ArrayLike | None, classes: Classes | None, within: Records | None = None
) -> Records | None:
    """Return the numbers of the records that a dataset or loader has; None: all.

    Args:
        pack: the pack.
        indices: which of `within`, or of the pack.
        classes: names or ids of classes, of which the image must have one; None: of any or none.
        within: the records of a dataset; None: all.

    Raises:
        UsageError: if a class is unknown, or nothing is left.
    """
    records = within
    if indices is not None:
        numbers = check_indices(indices, len(pack) if within is None else len(within))
        records = numbers if within is None else within[numbers]
    if classes is None:
        return records
    if "label" not in pack.manifest.fields:
        step = "write indices=pack.where(box_label=...) for the images with such boxes"
        raise UsageError("classes", "chooses images by their labels, but those of the pack have none", step)
    of_classes = pack.where(label=classes)
    chosen = of_classes if records is None else records[np.isin(records, of_classes)]
    if not len(chosen):
        raise UsageError("classes", f"is {classes!r}, but no image has such a label", "name other classes")
    return check_indices(chosen, len(pack))


def check_device(device: Any) -> torch.device:
    """Return a device of torch: the CPU, or CUDA's, to which batches are sent from pinned memory."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError("device", f"must be a device of torch, got {device!r}", 'write "cuda" or "cpu"') from None
    if found.type not in ("cpu", "cuda"):
        step = f'write device="cpu", and send each batch there: images.to("{found}")'
        raise UsageError("device", f"must be the CPU or a CUDA device, got {str(found)!r}", step)
    return found


def check_decoder(decoder: Any) -> str:
    """Return the name of a JPEG decoder that is there."""
    check_available(decoder, get_args(Decoder))
    if decoder == "fast":
        load_native()
    return str(decoder)


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


def check_flip(flip: Any) -> float:
    """Return the chance of a flip: True is 0.5. An integer could mean either, so 1 is refused."""
    if isinstance(flip, (bool, np.bool_)):
        return 0.5 if flip else 0.0
    if isinstance(flip, (int, np.integer)) and flip != 0:
        raise UsageError("flip", f"is {flip}, which may mean True or a chance", "write True for 0.5, or 1.0 for always")
    chance = as_number(flip)
    if not 0 <= chance <= 1:
        raise UsageError("flip", f"must be True, False or a chance from 0.0 to 1.0, got {flip!r}", "write True for 0.5")
    return chance


def check_crop(crop: Any) -> Crop | None:
    """Return a crop of packer, or of somebody else's making with the same methods."""
    if crop is None or (not isinstance(crop, type) and _is_crop(crop)):
        return crop
    size = crop if isinstance(crop, (int, tuple)) and not isinstance(crop, bool) else 224
    step = f"write packer.RandomResizedCrop({size}) to train, packer.CenterCrop({size}) to evaluate"
    raise UsageError("crop", f"must be a crop of packer, got {crop!r}", step)


def _is_crop(crop: Any) -> bool:
    return callable(getattr(crop, "output", None)) and callable(getattr(crop, "regions", None))


def check_sampler(
    sampler: Any, pack: Pack, shuffle: bool, own: dict[str, Any], classes: Classes | None, within: Records | None
) -> Sampler:
    """Return the sampler of a pack.

    Args:
        sampler: the one given, or None.
        pack: the pack.
        shuffle: a new order each epoch, if none is given.
        own: seed, indices and drop_last of the one that is made then; a given one brings its own of the last two.
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
        if name != "seed" and given is not None and given is not False:
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


def check_mixing(
    mixing: Mixing, normalize: Normalize, filler: ImageFiller, targets: Targets, functions: Transforms
) -> None:
    """Raise UsageError if these batches cannot be mixed."""
    if mixing.jitters and filler.channels not in (1, 3) and not functions.of_images:
        problem = f"needs gray or RGB images, but those of the pack have {filler.channels} channels"
        raise UsageError("color_jitter", problem, "leave it out")
    if not mixing.mixes:
        return
    name = mixing.mixes[0]
    if not targets.are_labels:
        raise UsageError(name, "needs class labels of images, but the pack has other labels", "leave it out")
    if functions.of_targets:
        raise UsageError(name, "needs the pack's own class labels", "leave out target_transform")
    fractions = normalize.mean is not None or (normalize.dtype is not None and normalize.dtype.is_floating_point)
    if "mixup" in mixing.mixes and not fractions and not functions.of_images:
        raise UsageError("mixup", "needs float images", "pass mean and std, or dtype=torch.float32")


def check_collate(collate: Any, targets: Targets) -> str:
    """Return what becomes of boxes."""
    check_choice("collate", collate, COLLATIONS)
    if collate != "list" and not targets.has_boxes:
        raise UsageError("collate", f'is "{collate}", which needs boxes, but the pack has none', "leave it out")
    return str(collate)


def check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> Any:
    """Return `value`, one of `choices`."""
    if value not in choices:
        listed = " or ".join(f'"{choice}"' for choice in choices if choice is not None)
        raise UsageError(name, f"must be {listed}, got {value!r}", "write one of them")
    return value
