"""Views: several crops of each image out of one decode, for self-supervised training and repeated augmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.loading.affine import RandomAffine
from packer.loading.augmentation import UNUSED, Augmentation, CropParams
from packer.loading.crop import Crop, Regions, crop_text
from packer.loading.decoding import CropRows, Cut, cuts_of, flip_rows, in_whole_pixels, resize_cut, room_of, sizes_of
from packer.loading.fill import Floats, ImageFiller
from packer.loading.seeded_transform import SeededTransform
from packer.model.annotation import Image, Int64
from packer.samplers.order import Float64, derive, records_in
from packer.samplers.ranks import check_int

REPEATED = ""
"""Name of the view of `repeats`, whose batches are tensors, not dicts."""
DECODED_AT_ONCE = 16
"""Images whose crops are planned together; those that are no plain JPEGs are then in memory, in each thread."""
_VIEW = 5 << 32
"""Gives each view other random numbers."""


@dataclass(frozen=True)
class CropView:
    """Crops of each image, `count` of them, each at random.

    Args:
        crop: any crop of a single image, such as `RandomResizedCrop`; not a `Mosaic`.
        count: crops of each image.
        flip: chance of a horizontal flip; True is 0.5. Default: that of the loader.
        color_jitter: arguments of torchvision's ColorJitter. Default: those of the loader.
        vflip: chance of a vertical flip; True is 0.5. Default: that of the loader.
        rotate90: chance of a turn by 90, 180 or 270 degrees; True is 0.75. Default: that of the loader.
        augment: transform of torchvision for each image. Default: that of the loader.
        affine: `RandomAffine`. Default: that of the loader; RandomAffine(0) moves nothing.
    """

    crop: Crop
    count: int = 1
    flip: bool | float | None = None
    color_jitter: Sequence[float] | None = None
    vflip: bool | float | None = None
    rotate90: bool | float | None = None
    augment: Any = None
    affine: RandomAffine | None = None


class Views(dict[str, Any]):
    """The images of a batch with views: name -> tensor (count * n, channels, height, width), view after view."""


def check_views(views: Any, repeats: int, crop: Any, check_crop: Callable[[Any], Crop | None]) -> dict[str, CropView]:
    """Return the views of a loader by name; {} if it has none.

    Args:
        views: as for the loader: name -> CropView or (count, crop).
        repeats: crops of each image in a batch of tensors.
        crop: that of the loader.
        check_crop: checks a crop.

    Raises:
        UsageError: if they are not views, or are combined with `crop` or `repeats`.
    """
    repeats = check_int("repeats", repeats, 1)
    if views is None:
        return {} if repeats == 1 else {REPEATED: CropView(_given(check_crop, crop), repeats)}
    for name, given in (("crop", crop is not None), ("repeats", repeats > 1)):
        if given:
            raise UsageError(name, "cannot be combined with views, which have their own", "leave it out")
    step = 'write views={"global": (2, RandomResizedCrop(224)), "local": (8, RandomResizedCrop(96))}'
    if not isinstance(views, Mapping) or not views or not all(isinstance(name, str) and name for name in views):
        raise UsageError("views", f"must be a dict of names and views, got {views!r}", step)
    found = {}
    for name, one in views.items():
        view = one
        if isinstance(one, (tuple, list)) and len(one) == 2:
            view = CropView(one[1], one[0])
        if not isinstance(view, CropView):
            raise UsageError("views", f"has {one!r} as {name}", step)
        count = check_int(f"count of the view {name}", view.count, 1)
        found[name] = replace(view, crop=_given(check_crop, view.crop), count=count)
    return found


def view_transforms(
    views: Mapping[str, CropView], default: Any, color_jitter: Any, seed: int
) -> dict[str, SeededTransform]:
    """Return the transform of each view that has one, by name; without views, that of the only crop as "".

    Args:
        views: those of the loader.
        default: transform of the loader; None: none.
        color_jitter: that of the loader; None: none.
        seed: any integer.

    Raises:
        UsageError: if it is not a transform, or has a color jitter beside it.
    """
    found, crop = {}, 0
    own = {name: (view.count, view.augment, view.color_jitter) for name, view in views.items()}
    for name, (count, augment, jitter) in (own or {REPEATED: (1, None, None)}).items():
        transform = default if augment is None else augment
        if transform is not None:
            if not (color_jitter is None and jitter is None):
                problem = "cannot be combined with augment"
                raise UsageError("color_jitter", problem, "write v2.ColorJitter(...) there")
            found[name] = SeededTransform(transform, seed, crop)
        crop += count
    return found


def _given(check_crop: Callable[[Any], Crop | None], crop: Any) -> Crop:
    found = check_crop(crop)
    if found is None:
        raise UsageError("crop", "is needed for views", "write packer.RandomResizedCrop(224)")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ViewRows:
    """Rows of a batch: name -> (count, n, height, width, channels)."""

    arrays: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return int(next(iter(self.arrays.values())).shape[1])

    def __getitem__(self, rows: slice) -> ViewRows:
        """Return those of some of the images."""
        return ViewRows({name: array[:, rows] for name, array in self.arrays.items()})


@dataclass(frozen=True, slots=True, eq=False)
class ViewParams:
    """The crops of a batch: name -> those of each of the view's crops."""

    of: dict[str, list[CropParams]]

    def __getitem__(self, rows: slice) -> ViewParams:
        """Return those of some of the images."""
        return ViewParams({name: [one[rows] for one in params] for name, params in self.of.items()})


@dataclass(frozen=True, slots=True)
class ViewAugmentation:
    """The crops and flips of all views, and the seed of all."""

    views: dict[str, tuple[int, Augmentation]]
    """Name -> count, and the augmentation of its first crop."""
    seed: int

    @property
    def identity(self) -> dict[str, str | int | float | None]:
        """Return the fields for a state, which must be equal to resume it."""
        views = [
            f"{name or 'repeats'}: {count} x {crop_text(one.crop)}, flip {one.flip}"
            + "".join(f", {more} {used}" for more in UNUSED if (used := getattr(one, more)))
            for name, (count, one) in self.views.items()
        ]
        return {"view_seed": self.seed, "crop": "; ".join(views), "flip": 0.0}

    @property
    def crop(self) -> None:
        """None: each view has its own."""
        return None

    @property
    def flip(self) -> float:
        """The largest chance of a flip."""
        return max(one.flip for _, one in self.views.values())

    @property
    def vflip(self) -> float:
        """The largest chance of a vertical flip."""
        return max(one.vflip for _, one in self.views.values())

    def with_crop(self, crop: Crop | None) -> ViewAugmentation:
        """Raise UsageError unless `crop` is None."""
        if crop is None:
            return self
        raise UsageError("set_crop", "is for a loader of one crop, but this one has views", "make another loader")

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if a state has other views."""
        Augmentation.check(self, state)  # type: ignore[arg-type]


class ViewFiller(ImageFiller):
    """Fills rows of a batch with several crops of each image, which is decoded once.

    Args:
        pack: the pack.
        views: name -> number of crops, and what they are.
        seed: seed of crops and flips: the first crop of the first view is that of a loader without views.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.
    """

    has_views = True

    def __init__(
        self, pack: Pack, views: Mapping[str, tuple[int, Augmentation]], seed: int, decoder: str, verify: bool
    ) -> None:
        self._fillers: dict[str, list[ImageFiller]] = {}
        self.outputs: dict[str, tuple[int, int]] = {}
        number, firsts = 0, {}
        for name, (count, each) in views.items():
            seeds = [seed if not k else derive(seed ^ _VIEW, k) for k in range(number, number + count)]
            made = [ImageFiller(pack, replace(each, seed=one), decoder, verify) for one in seeds]
            number += count
            self._fillers[name], firsts[name] = made, (count, made[0].augmentation)
            self.outputs[name] = made[0].output
        self._first = next(iter(self._fillers.values()))[0]
        self.pack, self.decoder, self.verify = pack, self._first.decoder, verify
        self.channels, self.output = self._first.channels, self._first.output
        self.augmentation: Any = ViewAugmentation(firsts, seed)

    def with_augmentation(self, augmentation: Any) -> ImageFiller:
        """Return this filler: views have crops of their own, which stay."""
        return self

    @property
    def row_bytes(self) -> int:
        """Bytes of all crops of an image."""
        return sum(len(fillers) * fillers[0].row_bytes for fillers in self._fillers.values())

    @property
    def row_numbers(self) -> int:
        """Pixels times channels of all crops of an image."""
        return sum(len(fillers) * fillers[0].row_numbers for fillers in self._fillers.values())

    def shaped(self, memory: NDArray[np.uint8], count: int, floats: Floats | None = None) -> Any:
        """Return memory of `count` rows as the rows of each view, one view after another."""
        arrays, start = {}, 0
        for name, fillers in self._fillers.items():
            rows = count * len(fillers)
            stop = start + rows * (fillers[0].row_bytes if floats is None else fillers[0].row_numbers * 4)
            shaped = fillers[0].shaped(memory[start:stop], rows, floats)
            arrays[name], start = shaped.reshape(len(fillers), count, *shaped.shape[1:]), stop
        return ViewRows(arrays)

    def normalize(self, rows: Any, out: Any, floats: Floats) -> None:
        """Write the values of rows to those of `floats`."""
        for name, array in rows.arrays.items():
            for crop, values in zip(array, out.arrays[name], strict=True):
                floats(crop, values)

    def tensors(self, rows: Any, planar: bool = False) -> Any:
        """Return rows as the images of a batch: `Views`, or a tensor for `repeats`."""
        joined = {name: array.reshape(-1, *array.shape[2:]) for name, array in rows.arrays.items()}
        views = Views({name: self._first.tensors(array, planar) for name, array in joined.items()})
        return views.get(REPEATED, views)

    def params(self, samples: Int64, epoch: int) -> Any:
        """Return crop and flip of each view of each sample."""
        sizes = sizes_of(self.pack, records_in(samples))
        found: dict[str, list[CropParams]] = {}
        for name, fillers in self._fillers.items():
            drawn = [one.params(samples, epoch) for one in fillers]
            fast = fillers[0].interpolation == "fast"
            found[name] = [on_halved_pixels(crops, sizes) for crops in drawn] if fast else drawn
        return ViewParams(found)

    def _fill(self, records: Int64, params: Any, rows: Any) -> None:
        if self.verify:
            self.pack.reader.check(records)
        crops = [
            CropRows(each, out, one.interpolation)
            for name, fillers in self._fillers.items()
            for one, each, out in zip(fillers, params.of[name], rows.arrays[name], strict=True)
        ]
        is_raw = self.pack.manifest.encoding == "raw"
        done = np.zeros(len(records), np.bool_) if is_raw else self._first.row_decoder.decode_crops(records, crops)
        others = np.flatnonzero(~done)
        for start in range(0, len(others), DECODED_AT_ONCE):
            self._fill_some(records, others[start : start + DECODED_AT_ONCE], crops)
        for one in crops:
            flip_rows(one.rows, one.params, done)
        for filler, one in zip(chain.from_iterable(self._fillers.values()), crops, strict=True):
            filler.warp(one.rows, one.params)

    def _fill_some(self, records: Int64, places: Int64, crops: list[CropRows]) -> None:
        records = records[places]
        sizes = sizes_of(self.pack, records)
        regions = [one.params.regions[places] for one in crops if one.params.regions is not None]
        if self.pack.manifest.encoding == "raw":
            images, factors = self._first.mapped(records, sizes), np.ones(len(records), np.int64)
        else:
            each = zip(regions, crops, strict=True)
            rooms = [room_of(parts, one.rows.shape[1:3], one.interpolation) for parts, one in each]
            images, factors = self._first.row_decoder.images(records, np.min(rooms, axis=0))
        reduced = sizes[0] / factors, sizes[1] / factors
        steps = [
            zip(*_cuts(parts / factors[:, None], reduced, one), [one.rows[i] for i in places.tolist()], strict=True)
            for parts, one in zip(regions, crops, strict=True)
        ]
        # image after image: what was just decoded is in the caches of the processor
        for image, *cuts in zip(images, *steps, strict=True):
            pyramid = [image]
            for halvings, cut, row in cuts:
                resize_cut(_halved(pyramid, halvings), row, cut)

    def targets_of(self, targets: Any, records: Int64, params: Any, out: NDArray[Any] | None = None) -> Any:
        """Return an array (n, ...), or view -> list of those of each crop: labels of images once.

        Args:
            targets: the `targets.Targets` of the pack.
            records: numbers of the images.
            params: their crops.
            out: not used.
        """
        if targets.is_array and not targets.are_masks:
            found = targets.of(records)
            return found if REPEATED not in params.of else {REPEATED: [found] * len(params.of[REPEATED])}
        return {name: [targets.of(records, one) for one in crops] for name, crops in params.of.items()}

    @property
    def decoded_by(self) -> str:
        """What decodes JPEGs: simplejpeg, or another decoder; "" for a raw pack."""
        return self._first.decoded_by


def on_halved_pixels(crops: CropParams, sizes: tuple[Float64, Float64]) -> CropParams:
    """Return crops with the edges of those that shrink to half or less on whole pixels of an image that is halved.

    So many crops share what is averaged once; boxes and masks move as the pixels do.

    Args:
        crops: of images.
        sizes: their widths and heights, in pixels.
    """
    regions = crops.regions
    assert regions is not None
    steps = 1 << np.maximum(np.log2(_shrinks(regions, crops.output)), 0).astype(np.int64)
    begin, end, limits = regions[:, :2], regions[:, :2] + regions[:, 2:], np.stack(sizes, axis=1)
    inside = (begin >= 0).all(axis=1) & (end <= limits).all(axis=1) & (steps > 1)
    if not inside.any():
        return crops
    by = steps[:, None]
    first = np.floor(begin / by) * by
    last = np.minimum(np.ceil(end / by), np.floor(limits / by)) * by
    moved = np.concatenate([first, last - first], axis=1)
    return replace(crops, regions=np.where(inside[:, None], moved, regions))


def _shrinks(regions: Regions, output: tuple[int, int]) -> Float64:
    """Return how many times smaller each region becomes, on the axis that shrinks less."""
    return np.minimum(regions[:, 2] / output[1], regions[:, 3] / output[0])


def _cuts(parts: Regions, sizes: tuple[Float64, Float64], crop: CropRows) -> tuple[list[int], list[Cut]]:
    """Return how often to halve each image for its part, and what to cut out of it then."""
    output = crop.rows.shape[1:3]
    fast = crop.interpolation == "fast"
    halvings = _halvings(parts, output, sizes) if fast else np.zeros(len(parts), np.int64)
    by = 1 << halvings
    cuts = cuts_of(parts / by[:, None], (sizes[0] / by, sizes[1] / by), output, crop.interpolation, crop.params.border)
    return halvings.tolist(), cuts


def _halvings(parts: Regions, output: tuple[int, int], sizes: tuple[Float64, Float64]) -> Int64:
    """Return how often each image may be halved for its part: still as large as the output, its edges on pixels."""
    halvings = np.zeros(len(parts), np.int64)
    shrinks = np.where(in_whole_pixels(parts, sizes), _shrinks(parts, output), 0)
    while (more := (shrinks >= 2 << halvings) & (parts % (2 << halvings)[:, None] == 0).all(axis=1)).any():
        halvings[more] += 1
    return halvings


def _halved(pyramid: list[Image], halvings: int) -> Image:
    """Return an image halved so often by averages of 2x2 pixels, which OpenCV does fast; sides are rounded down."""
    while len(pyramid) <= halvings:
        height, width = (side // 2 for side in pyramid[-1].shape[:2])
        even = pyramid[-1][: 2 * height, : 2 * width]
        pyramid.append(cv2.resize(even, (width, height), interpolation=cv2.INTER_AREA).reshape(height, width, -1))
    return pyramid[halvings]
