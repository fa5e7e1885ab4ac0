"""Chooses what fills the rows of a loader's batches."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from packer.errors import UsageError, printable
from packer.format.pack import Pack
from packer.loading.affine import check_affine
from packer.loading.arguments import Arguments, Augment
from packer.loading.augmentation import Augmentation, check_chance
from packer.loading.crop import Crop
from packer.loading.dataset import check_decoder
from packer.loading.epoch_order import EpochOrder
from packer.loading.fill import BucketFiller, ImageFiller
from packer.loading.mixing import MIXING_STATE
from packer.loading.mosaic import Mosaic
from packer.loading.mosaic_filler import MosaicFiller
from packer.loading.pair_filler import PairFiller, check_pairing
from packer.loading.patch_filler import PatchFiller
from packer.loading.rescaled import WholeImage
from packer.loading.targets import Targets
from packer.loading.views import CropView, ViewFiller
from packer.loading.whole_filler import WholeFiller
from packer.samplers import BucketSampler, Sampler
from packer.samplers.patches import PatchBuckets


def filler_of(given: Arguments, pack: Pack, sampler: Sampler, views: dict[str, CropView], seed: int) -> ImageFiller:
    """Return what fills the rows of batches.

    Args:
        given: the arguments of the loader.
        pack: the pack.
        sampler: its sampler.
        views: several crops of each image, by name; {}: one.
        seed: seed of crops and flips.

    Raises:
        UsageError: if they cannot be combined.
        ValueError: if a crop is missing, or one of its values is out of range.
    """
    augment, decoder, verify = given.augment, check_decoder(given.reading.decoder or "auto"), given.reading.verify
    if isinstance(sampler, BucketSampler):
        _check_with_buckets(given, views, isinstance(sampler.buckets, PatchBuckets))
    crops = augment.crop, *(view.crop for view in views.values())
    for name, used in (("Mosaic", any(isinstance(crop, Mosaic) for crop in crops)), *_paired(augment).items()):
        if used:
            _check_on_host(given, name, views, isinstance(sampler, BucketSampler))
    if any(isinstance(crop, WholeImage) for crop in crops):
        _check_with_whole(given, views)
    if not views:
        augmentation = _augmentation(augment, check_crop(augment.crop), seed)
        if isinstance(augmentation.crop, WholeImage):
            return WholeFiller(pack, augmentation, decoder, verify)
        if isinstance(sampler, BucketSampler):
            kind: Any = PatchFiller if isinstance(sampler.buckets, PatchBuckets) else BucketFiller
            filler: ImageFiller = kind(pack, augmentation, sampler.buckets, decoder, verify)
            return filler
        return _one_crop(pack, augmentation, sampler, decoder, verify)
    each = {name: (view.count, _augmentation(augment, view.crop, seed, view)) for name, view in views.items()}
    return ViewFiller(pack, each, seed, decoder, verify)


def _one_crop(pack: Pack, augmentation: Augmentation, sampler: Sampler, decoder: str, verify: bool) -> ImageFiller:
    if isinstance(augmentation.crop, Mosaic):
        return MosaicFiller(pack, augmentation, EpochOrder(sampler), decoder, verify)
    return ImageFiller(pack, augmentation, decoder, verify)


def with_crop(filler: ImageFiller, crop: Crop | None, sampler: Sampler) -> ImageFiller:
    """Return what fills rows with other crops of the same images, in the order of `sampler`.

    Raises:
        UsageError: if it cannot.
        ValueError: if there is no crop, and the images differ in size.
    """
    if isinstance(filler, PairFiller):
        return filler.with_one(with_crop(filler.one, crop, sampler))
    if isinstance(filler, WholeFiller) != isinstance(crop, WholeImage):
        step = "make another loader, and call its set_epoch"
        raise UsageError("set_crop", "cannot change between a WholeImage and other crops", step)
    augmentation = filler.augmentation.with_crop(crop)
    if isinstance(filler, MosaicFiller) or (isinstance(crop, Mosaic) and type(filler) is ImageFiller):
        return _one_crop(filler.pack, augmentation, sampler, filler.decoder, filler.verify)
    return filler.with_augmentation(augmentation)


def check_labels(filler: ImageFiller, targets: Targets) -> None:
    """Raise UsageError if images cannot be filled so with these labels."""
    if isinstance(filler, PatchFiller) and targets.are_masks:
        problem = "has masks alone, which PatchBuckets cannot put into one tensor"
        raise UsageError("parts", problem, "write parts=()")
    if isinstance(filler, PairFiller | MosaicFiller):
        _check_no_predictions(targets)
    filler = filler.one if isinstance(filler, PairFiller) else filler
    if isinstance(filler, MosaicFiller) and not (targets.has_boxes or targets.of_pixels):
        problem = "is a Mosaic, which needs boxes or masks, but the targets have none"
        raise UsageError("crop", problem, "write packer.RandomResizedCrop(224)")


def _check_no_predictions(targets: Targets) -> None:
    """Raise UsageError for predicted boxes of records, of several of which an image is made."""
    for part in targets.parts:
        if part.spec.kind == "boxes":
            problem = f"names {printable(part.name)}, predicted boxes, which are not joined as images are here"
            raise UsageError("parts", problem, "leave it out, or mosaics, mixup and copy_paste")


def _augmentation(augment: Augment, crop: Crop | None, seed: int, view: CropView | None = None) -> Augmentation:
    """Return a crop with the chance of each flip and turn, and what moves images, of a view where it has its own."""

    def given(name: str) -> Any:
        own = getattr(view, name, None)
        return getattr(augment, name) if own is None else own

    flip, vflip, rotate90 = (check_chance(name, given(name)) for name in ("flip", "vflip", "rotate90"))
    return Augmentation(crop, flip, seed, vflip, rotate90, check_affine(given("affine")))


def _paired(augment: Augment) -> dict[str, bool]:
    """Return by name what makes one image of two, and whether it is used."""
    return {"mixup": isinstance(augment.mixup, tuple | list), "copy_paste": augment.copy_paste != 0}


def _check_on_host(given: Arguments, name: str, views: dict[str, CropView], buckets: bool) -> None:
    """Raise UsageError for what is not combined with images made of several."""
    options = {
        "views" if given.augment.views else "repeats": bool(views),
        "sampler": buckets,
        "decode": given.reading.decode != "host",
        "cache": given.reading.cache == "device",
    }
    if option := next((option for option, used in options.items() if used), None):
        raise UsageError(option, f"cannot be combined with {name}, which makes one image of several", "leave it out")


def _check_with_whole(given: Arguments, views: dict[str, CropView]) -> None:
    """Raise UsageError for what cannot be combined with whole images, which differ in size."""
    options = {
        "views" if given.augment.views else "repeats": bool(views),
        "decode": given.reading.decode != "host",
        "cache": given.reading.cache == "device",
        "on_error": given.reading.on_error == "replace",
        "transform": given.functions.transform is not None,
        "transforms": given.functions.transforms is not None,
        **{name: bool(getattr(given.augment, name)) for name in ("rotate90", "affine", *MIXING_STATE)},
        "output": given.form.output != "torch",
    }
    if name := next((name for name, used in options.items() if used), None):
        problem = "cannot be combined with WholeImage, whose images differ in size"
        raise UsageError(name, problem, "leave it out, or change the batches")


def paired(filler: ImageFiller, augment: Augment, targets: Targets, sampler: Sampler, seed: int) -> ImageFiller:
    """Return what fills rows with pairs of images, if there are to be any, else `filler`.

    Raises:
        UsageError: if there cannot be.
    """
    pairing = check_pairing(augment.mixup, augment.copy_paste, targets)
    if pairing is None:
        return filler
    _check_no_predictions(targets)
    return PairFiller(filler, pairing, targets, EpochOrder(sampler), seed)


def _check_with_buckets(given: Arguments, views: dict[str, CropView], patches: bool) -> None:
    """Raise UsageError for what cannot be combined with batches of differing shape, or with `patches`."""
    options = {
        "views" if given.augment.views else "repeats": bool(views),
        "decode": given.reading.decode != "host",
        "cache": given.reading.cache == "device",
        "rotate90": bool(given.augment.rotate90),
    }
    if patches:
        functions = {field.name: getattr(given.functions, field.name) for field in fields(given.functions)}
        options |= {name: function is not None for name, function in functions.items()}
        options |= {name: bool(getattr(given.augment, name)) for name in MIXING_STATE}
        options |= {"collate": given.form.collate in ("yolo", "padded"), "affine": given.augment.affine is not None}
    if name := next((name for name, used in options.items() if used), None):
        what = "patches" if patches else "a BucketSampler"
        raise UsageError(name, f"cannot be combined with {what}", "leave it out")


def check_crop(crop: Any) -> Crop | None:
    """Return a crop of packer, or of somebody else's making with the same methods."""
    if crop is None or (not isinstance(crop, type) and _is_crop(crop)):
        return crop
    size = crop if isinstance(crop, (int, tuple)) and not isinstance(crop, bool) else 224
    step = f"write packer.RandomResizedCrop({size}) to train, packer.CenterCrop({size}) to evaluate"
    raise UsageError("crop", f"must be a crop of packer, got {crop!r}", step)


def _is_crop(crop: Any) -> bool:
    return callable(getattr(crop, "output", None)) and callable(getattr(crop, "regions", None))
