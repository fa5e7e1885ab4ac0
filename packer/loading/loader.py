"""PackedLoader: batches of a pack, prepared by threads ahead of the training step and normalized on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from numpy.typing import ArrayLike

from packer.errors import AnyPath, UsageError
from packer.format.pack import Pack
from packer.images.opencv import quiet_opencv
from packer.loading.affine import RandomAffine
from packer.loading.arguments import Arguments, Augment, Form, Functions, Order, Reading
from packer.loading.assemble import assemble, check_same_decoder
from packer.loading.augmentation import STATE, Augmentation
from packer.loading.batch_numbers import Batches, BatchNumbers, as_made
from packer.loading.crop import Crop, crop_of, crop_text
from packer.loading.dataset import Classes, PackedDataset
from packer.loading.epoch_stats import Stats
from packer.loading.fillers import check_crop, check_labels, with_crop
from packer.loading.mixing import MIXING_STATE
from packer.loading.mosaic import Mosaic
from packer.loading.on_device import Decoding
from packer.loading.page_cache import WindowedBatches, check_cache
from packer.loading.stand_ins import Replaced
from packer.loading.steps import Steps
from packer.loading.torch_arguments import refuse_unknown
from packer.loading.user_functions import ImageTransform, JointTransform
from packer.loading.views import CropView
from packer.samplers import BlockShuffleSampler, Sampler
from packer.samplers.clock import Iteration, next_iteration
from packer.samplers.ranks import check_int

NOT_OF_ORDER = (*STATE, *MIXING_STATE, "decoder", "steps")
"""What of a state the sampler does not know."""


class PackedLoader:
    """Batches of a pack: ``for images, targets in loader``.

    images: (n, channels, height, width), channels last in memory, uint8 unless mean and std or a dtype are given.
    targets: int64 (n,) if the pack has only class labels, float32 (n, k) if only tags, int64 (n, height, width) if only
    masks, as ``cross_entropy(..., ignore_index=255)`` takes them, else a list of n dicts
    (`loading.targets.Targets.target`), on `device`. The randomness of a sample depends only on (seed, epoch, record),
    and on how often the record came before in the epoch: batches are the same for any number of threads, and each
    global batch has the same samples for any number of ranks. No record is read before the first batch is requested.

    Args:
        data: a pack's directory or URL, an open Pack, or a PackedDataset (its transforms, decoder and offset are used);
            or several packs with their shares, ``{"a.lmdb": 0.7, "s3://bucket/b": 0.3}`` (`MixtureSampler`).
        batch_size: samples per batch on this rank.
        shuffle: a new order each epoch (`ShuffleSampler`); or pass a `sampler`.
        sampler: the order of the records, with its own seed, indices and drop_last.
        indices: numbers of the records to read, such as those of `packer.samplers.subset`; default: all. Of a
            PackedDataset, the numbers of its samples.
        classes: read only the images with one of these labels, names or ids, as for `PackedDataset`.
        seed: seed of order, crops, flips and transforms; default 0, or that of the sampler.
        drop_last: leave out the samples that do not fill a batch.
        pad: False, to evaluate: each sample comes once, so ranks may differ by one batch; True repeats a few.
        samples_per_epoch: of several packs with shares; default: the number of their records.
        crop: `RandomResizedCrop`, `RandomScaleCrop`, `CenterCrop`, `Resize`, `CoverCrop`, `Letterbox` or, of four or
            nine images, `Mosaic`; needed if images differ in size. `WholeImage` gives a list of images. With a
            `BucketSampler`, `CoverCrop` or `Letterbox` without a size; default: that of its buckets.
        views: several crops of each image out of one decode, by name: ``{"global": (2, RandomResizedCrop(224)),
            "local": (8, RandomResizedCrop(96))}``, or `packer.CropView` with its own flip and colors. Images are then a
            dict of tensors (count * n, ...): one crop of all n images, then the next; so are targets that crops change.
            Class ids, tags and values come once, (n, ...).
        repeats: so many crops of each image in one batch (repeated augmentation): images (repeats * n, ...), and all
            targets so many times. `RepeatedSampler` spreads them over batches and ranks.
        flip: chance of a horizontal flip; True is 0.5. Boxes, polygons, points and masks move with the image.
        vflip: chance of a vertical flip, after that; True is 0.5.
        rotate90: chance of a turn by 90, 180 or 270 degrees, each as likely, after that; True is 0.75: all four
            orientations are as likely. Images must be square, or have a square crop; not with a BucketSampler.
        affine: `RandomAffine`, after that: rotates, shifts, scales and shears images and all that is labelled in them,
            on the host.
        flip_index: index of the mirror image of each landmark or keypoint, (1, 0, 2, 4, 3) for eyes, nose and mouth
            corners; default: that of the pack.
        min_area: drop boxes that a crop cuts to less than this area, in pixels.
        min_visible: drop boxes of which a crop leaves less than this share, 0 to 1.
        hide_outside: keypoints outside the crop get visibility 0; False: they keep theirs.
        transform: called with each image tensor in the threads (for heavy Python, use PackedDataset in a DataLoader
            with worker processes); its results must be tensors of one shape. ``transform(image, generator)`` gets a
            torch.Generator seeded as crops are; numbers drawn elsewhere are not reproducible.
        target_transform: called with each target in the threads.
        transforms: instead of these two: ``transforms(image, target)``, or with a generator; returns both.
        mixup: alpha of torchvision's MixUp, for class labels: targets become float32 (n, classes). For boxes (alpha,
            chance), such as (32.0, 0.15): an image is blended with another one, up to 64 positions before it, and gets
            its objects, too.
        cutmix: alpha of torchvision's CutMix; with both, each batch gets one of them.
        copy_paste: chance that an image gets objects of another of those, which must have polygons or masks: each
            by a chance of one half, unless it covers 0.3 or more of a box.
        color_jitter: brightness, contrast, saturation and hue of torchvision's ColorJitter, the same for a whole batch.
        augment: transform of torchvision.transforms.v2, as ``v2.Compose([v2.RandAugment(), v2.RandomErasing(0.25)])``,
            for each image by itself, on the device, before it is normalized. Its random numbers depend on (seed, epoch,
            record, visit). It leaves targets as they are: with boxes, masks or points only what changes colors alone.
        collate: format of targets that are dicts: "list" of them; "dict", one of a batch, with a tensor (n, ...) for
            what all images have in one shape, and a list for the rest; of boxes "yolo" (`loading.collate.yolo_rows`) or
            "padded" (`loading.collate.padded_boxes`).
        label_offset: added to the class ids of boxes; 1 for models whose class 0 is the background.
        ignored: what becomes of ignored regions, boxes with `iscrowd`, `difficult` or `ignore`: "keep" them as any
            other boxes (default), "drop" them, or "flag" them in the targets: `ignored`, bool (n,).
        parts: the parts and sidecars (`packer.attach`) to read, by name, besides images and other labels; default: all
            parts. Nothing else of a record is read.
        with_index: yield (images, targets, record numbers int64 (n,)).
        with_weights: yield the importance weights of the records at the end, float32 (n,), with a `WeightedSampler`.
        device: the device of the batches: "cpu", "cuda", or another that torch can use, such as "mps" and "xpu".
        mean: see `Normalize`; also for `std` and `dtype`.
        memory_format: memory format of the images; default channels_last, or that of a transform's results.
        output: what batches are made of: "torch", tensors; "numpy", arrays; "jax", arrays of JAX. Images are then
            (n, height, width, channels), as they are in memory, or (n, channels, height, width) with a memory_format
            of torch.contiguous_format. Nothing is copied, but JAX copies what it cannot use in place.
        threads: number of threads; default: the cores that the process may use, at most 8 if they only copy raw images.
        prefetch: number of batches prepared in advance, and in flight to a GPU.
        decoder: JPEG decoder: auto, fast (`dataset-packer-fast`), simplejpeg, opencv or jpeg4py. auto is fast where it
            is installed, on x86-64, else simplejpeg; crops of the two differ by 0.3 of 255 on average.
        decode: where to decode: "host", in the threads, or "device", JPEGs only, by torchcodec (for DALI see
            `packer.dali.pipeline`).
        cache: "ram" reads the whole pack into the page cache, and locks it there if allowed; "device" copies it to the
            device (raw images of one shape), where batches are then prepared.
        cache_dir: as for `packer.open_pack`, if `data` is a URL.
        cache_bytes: as for `packer.open_pack`, if `data` is a URL.
        verify: verify the checksum of each record when this process first reads it; and JPEGs outside their crops.
        on_error: "replace" replaces a damaged record with another one of the same epoch, drawn from (seed, epoch,
            record), and its target; `replaced` and `stats` report it. A damaged index is an error.
        **unknown: none; for an argument of torch's DataLoader the error says what to use instead.

    Raises:
        UsageError: if the arguments cannot be combined, or the path is not a pack.
        ValueError: if a crop is missing, or one of its values is out of range.
        DamagedPack: if the pack is incomplete.
    """

    collate_fn = staticmethod(as_made)
    num_workers, prefetch_factor = 0, None

    def __init__(  # noqa: PLR0913 - the public options of training, which are passed on in groups
        self,
        data: AnyPath | Pack | PackedDataset | Mapping[Any, float],
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: Sampler | None = None,
        indices: ArrayLike | None = None,
        classes: Classes | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        pad: bool = True,
        samples_per_epoch: int | None = None,
        crop: Crop | None = None,
        views: Mapping[str, CropView | tuple[int, Crop]] | None = None,
        repeats: int = 1,
        flip: bool | float = False,
        vflip: bool | float = False,
        rotate90: bool | float = False,
        affine: RandomAffine | None = None,
        flip_index: Sequence[int] | None = None,
        min_area: float = 1.0,
        min_visible: float = 0.0,
        hide_outside: bool = True,
        transform: ImageTransform | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: JointTransform | None = None,
        mixup: float | Sequence[float] | None = None,
        cutmix: float | None = None,
        copy_paste: float = 0.0,
        color_jitter: Sequence[float] | None = None,
        augment: Any = None,
        collate: str = "list",
        label_offset: int | None = None,
        ignored: str | None = None,
        parts: Sequence[str] | None = None,
        with_index: bool = False,
        with_weights: bool = False,
        device: torch.device | str = "cpu",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        output: str = "torch",
        threads: int | None = None,
        prefetch: int = 2,
        decoder: str | None = None,
        decode: str | Decoding = "host",
        cache: str | None = None,
        cache_dir: AnyPath | None = None,
        cache_bytes: int | str | None = None,
        verify: bool = True,
        on_error: str = "raise",
        **unknown: NoReturn,
    ) -> None:
        refuse_unknown(PackedLoader, unknown)
        pixels = (device, mean, std, dtype, memory_format, output)
        moves, objects = (flip, vflip, rotate90, affine), (min_area, min_visible, hide_outside)
        mixed = (mixup, cutmix, copy_paste)
        given = Arguments(
            data,
            batch_size,
            Order(shuffle, sampler, indices, classes, seed, drop_last, pad, samples_per_epoch),
            Augment(crop, views, repeats, *moves, flip_index, *objects, *mixed, color_jitter, augment),
            Functions(transform, target_transform, transforms),
            Form(collate, label_offset, ignored, parts, with_index, with_weights, *pixels),
            Reading(threads, prefetch, decoder, decode, cache, cache_dir, cache_bytes, verify, on_error),
        )
        made = assemble(given)
        self.pack, self.sampler = made.pack, made.sampler
        self.batch_size, self.device = made.batch_size, made.device
        self._augmentation = self._first = made.host.filler.augmentation
        self._host, self._batches, self._ram = made.host, made.batches, made.ram
        self._transfer, self._hand_over = made.transfer, made.hand_over
        self._settings = _settings_of(given, self.pack, self.sampler)
        self._begun: tuple[Iteration, int, Augmentation] | None = None
        """The iteration started last, its samples per batch of all ranks, and its augmentation."""
        self._steps: Steps | int = 0
        """What counts the batches of that iteration, or how many `forever` has returned by a loaded state."""
        self._stats = Stats()

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, also while the rest of one is read after `load_state_dict`."""
        return self.sampler.num_batches(self.batch_size)

    def __repr__(self) -> str:
        what = f"{len(self)} batches of {self.batch_size} to {self.device}"
        return f"PackedLoader({self.pack!r}, {what}, {self.sampler!r})"

    @property
    def dataset(self) -> Batches:
        """Returns the batches that `batch_sampler` names, for libraries that rebuild a DataLoader."""
        return Batches(self.pack, self._run)

    @property
    def batch_sampler(self) -> BatchNumbers:
        """The number of each batch."""
        return BatchNumbers(self.sampler, self.batch_size)

    @property
    def epoch(self) -> int:
        """The current or next epoch."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the `epoch` of the next iteration, as `sampler.set_epoch` does: its order, crops and flips.

        The epoch starts from the beginning, unless a state of this epoch was loaded and no batch has been read since.
        Without a call, each iteration reads the epoch after the last one that returned a batch.
        """
        self.sampler.set_epoch(epoch)

    def set_crop(self, crop: Crop | None) -> None:
        """Set the crop of the following iterations, for example to train with small images first.

        It is part of the state: a loader created like this one continues with the crop of the state.

        Args:
            crop: as for the loader.

        Raises:
            UsageError: if it is not a crop, or not square where images are turned, or the loader has views.
            ValueError: if it is None and the images differ in size.
        """
        filler = with_crop(self._host.filler, check_crop(crop), self.sampler)
        if isinstance(crop, Mosaic) and self._batches is not self._host:
            raise UsageError("set_crop", "cannot be a Mosaic, which is made on the host", "make another loader")
        check_labels(filler, self._host.targets)
        self._augmentation, self._host = filler.augmentation, self._host.with_filler(filler)
        self._batches = self._batches.with_host(self._host)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of one epoch; after `load_state_dict`, the rest of that epoch.

        Epoch, rank and world size are read with the first batch. Several iterations may run at once; state and stats
        are those of the one started last.
        """
        return self._run()

    def forever(self, steps: int | None = None) -> Steps:
        """Return an iterator of `steps` batches, through as many epochs as it takes; each has its own order and crops.

        It goes on where the last iteration stopped, also in the middle of an epoch. Without drop_last, the last batch
        of an epoch may be smaller. A state counts the batches: after `load_state_dict`, the same call returns those
        that are left of `steps`.

        Args:
            steps: batches on this rank, those before a loaded state included; None: without end.

        Raises:
            UsageError: if `steps` is not a number; with the first batch, if it is less than a state has read, or if
                ranks differ in the number of batches of an epoch (pad=False).
        """
        count = None if steps is None else check_int("steps", steps, 0)
        return Steps(count, lambda: self._steps if isinstance(self._steps, int) else 0, self._read_on)

    def _read_on(self, steps: Steps) -> Generator[tuple[Any, ...], None, None]:
        if not self.sampler.pad and self.sampler.world_size > 1:
            problem = "is False: ranks would differ in the number of batches, and read different epochs"
            raise UsageError("pad", problem, "leave it out to train, or write drop_last=True to repeat nothing")
        self.sampler.clock.go_on(self._end(self._now()[1]))
        self._steps = steps
        return self._run(steps=steps)

    def _run(self, first: int | None = None, steps: Steps | None = None) -> Generator[tuple[Any, ...], None, None]:
        """Yield the batches of the next epoch, starting with batch `first` (default: the loaded position, or 0)."""
        here, size = next_iteration(self.sampler, self.sampler.clock), self.sampler.global_batch(self.batch_size)
        if first is not None:
            here.position = min(first * size, self.sampler.num_samples)
        check_cache(self.pack, self.sampler, self.batch_size)
        stats = self._stats = Stats()
        samples = self.sampler.rank_samples(self.batch_size, here.epoch, here.position)
        if isinstance(self.sampler, BlockShuffleSampler):
            samples = WindowedBatches(samples, self.sampler, here.epoch, here.position, size)
        end, augmentation, begun = self._end(size), self._augmentation, False
        batches: Iterator[Any] = self._batches.run(samples, here.epoch, stats)
        if self.device.type != "cpu" or not self._transfer.normalize.nothing:
            batches = self._transfer.run(batches, stats)
        with quiet_opencv():
            try:
                while True:
                    asked = time.perf_counter()
                    batch = next(batches, None)
                    stats.waited_s += time.perf_counter() - asked
                    if not begun:
                        self.sampler.clock.begin(here)
                        self._begun, begun = (here, size, augmentation), True
                        self._steps = 0 if steps is None else steps
                    if batch is None:
                        here.position = max(here.position, end)  # with pad=False, other ranks may have had one more
                        return
                    # count what the consumer has received, not what was prepared
                    number = here.position // size
                    here.position = min(here.position + size, end)
                    yield self._hand_over(batch, here.epoch, number)
            finally:
                here.ended = True
                stats.end()
                if isinstance(batches, Generator):
                    batches.close()

    def _end(self, global_batch: int) -> int:
        """Return the last position of an epoch, of all ranks."""
        samples = self.sampler.num_samples
        return min(len(self) * global_batch, samples) if self.sampler.pad else samples

    def _now(self) -> tuple[Iteration, int, Augmentation]:
        """Return what a state describes: an iteration, its samples per batch of all ranks, its augmentation."""
        here = self.sampler.clock.current()
        if self._begun is not None and self._begun[0] is here:
            return self._begun
        return here, self.sampler.global_batch(self.batch_size), self._augmentation

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training as a small dict for JSON or `torch.save`. Call it between two batches.

        With a `WeightedSampler` it has tensors, for `torch.save` only.

        It describes the iteration started last, even if another epoch has been set since; after the end of that
        iteration, the epoch that was set.
        """
        here, size, augmentation = self._now()
        order = self.sampler.state_at(here.epoch, here.position, size)
        state = {**order, **self._first.identity, **self._hand_over.identity}
        if steps := self._steps_done:
            state["steps"] = steps
        if decoder := self._batches.decoded_by:
            state["decoder"] = decoder.partition(" ")[0]
        return state if augmentation == self._first else {**state, "set_crop": crop_text(augmentation.crop)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration returns the remaining batches, or the next epoch if none is left.

        Args:
            state: a result of `state_dict`; the number of ranks may differ if batch_size times ranks is the same.

        Raises:
            UsageError: if the state has another pack, seed, order, batch size, crop, flips, turns or mixing.
        """
        order = state
        if isinstance(state, Mapping):
            order = {name: value for name, value in state.items() if name not in NOT_OF_ORDER}
        size = self.sampler.global_batch(self.batch_size)
        epoch, position = self.sampler.check_state(order, size)
        self._first.check(state)
        self._hand_over.check(state)
        steps = check_int("steps", state.get("steps", 0), 0)
        check_same_decoder(state.get("decoder"), self._batches.decoded_by)
        crop = self._first.crop
        if "set_crop" in state:
            crop = crop_of(state["set_crop"], crop, self._augmentation.crop)
        self.set_crop(crop)
        self.sampler.restore(order)
        self.sampler.clock.load(epoch, position, self._end(size))
        self._steps = steps

    @property
    def _steps_done(self) -> int:
        return self._steps.done if isinstance(self._steps, Steps) else self._steps

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings and the state: a copy resumes from the current position."""
        here, size, augmentation = self._now()
        at = here.epoch, here.position, self._end(size)
        return _rebuild_loader, (self._settings, augmentation.crop, at, self._steps_done)

    @property
    def replaced(self) -> list[Replaced]:
        """The damaged records that were replaced, in all epochs so far, by number: the first 1,000."""
        return [] if self._host.replacer is None else self._host.replacer.reported

    def stats(self) -> dict[str, Any]:
        """Return times and counts of the current or last epoch (`Stats.summary`), and `decoder`: what decodes JPEGs."""
        decoder = self._batches.decoded_by
        return {**self._stats.summary(), **({"decoder": decoder} if decoder else {})}


def _settings_of(given: Arguments, pack: Pack, sampler: Sampler) -> dict[str, Any]:
    """Return the arguments of a copy, whose order is in the sampler."""
    data = given.data if isinstance(given.data, PackedDataset) else pack
    own = {"shuffle": False, "indices": None, "classes": None, "drop_last": False, "pad": True}
    nothing = dict.fromkeys(("samples_per_epoch", "cache_dir", "cache_bytes"))
    return {**given.flat(), **own, **nothing, "data": data, "sampler": sampler}


def _rebuild_loader(settings: dict[str, Any], crop: Crop | None, at: tuple[int, int, int], steps: int) -> PackedLoader:
    loader = PackedLoader(**settings)
    if crop is not settings["crop"]:
        loader.set_crop(crop)
    loader.sampler.clock.load(*at)
    loader._steps = steps
    return loader
