"""PackedLoader: shuffled batches of a pack, made by threads, on the device and normalized: the GPU need not wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from numpy.typing import ArrayLike

from packer.errors import AnyPath
from packer.format.pack import Pack
from packer.images.opencv import quiet_opencv
from packer.loading import options
from packer.loading.augmentation import STATE, Augmentation, crop_of, crop_text
from packer.loading.crop import Crop
from packer.loading.dataset import PackedDataset
from packer.loading.device_cache import DeviceCache
from packer.loading.fill import ImageFiller
from packer.loading.handover import Handover, Mixing
from packer.loading.normalize import Normalize
from packer.loading.page_cache import RamCache
from packer.loading.pipeline import Pipeline, Work
from packer.loading.replace import Replaced, Replacer
from packer.loading.stats import Stats
from packer.loading.targets import Targets
from packer.loading.to_device import Transfer
from packer.loading.transforms import ImageTransform, JointTransform, Transforms
from packer.samplers import Sampler
from packer.samplers.ranks import check_int
from packer.system import usable_cores


@dataclass(slots=True)
class _Iteration:
    """How far an iteration has come."""

    epoch: int
    position: int
    """Samples of all ranks that have been received."""
    global_batch: int
    augmentation: Augmentation
    ended: bool = False


class PackedLoader:
    """Batches of a pack: ``for images, targets in loader``.

    images: (n, channels, height, width), channels last in memory, uint8 unless mean and std or a dtype are given.
    targets: int64 (n,) if the pack has class labels only, else a list of n dicts (`loading.targets.Targets.target`), on
    `device`. The randomness of a sample depends on (seed, epoch, record) alone: the same batches for any number of
    threads; and the same samples in each global batch for any number of ranks. No record is read before the first
    batch is asked for.

    Args:
        data: a pack's directory, an open Pack, or a PackedDataset, whose own options hold where none is given here.
        batch_size: samples of a batch on this rank.
        shuffle: a new order each epoch (`ShuffleSampler`); or give a `sampler`.
        sampler: the order of the records; it brings its own seed, indices and drop_last.
        indices: numbers of the records to read; default: all. `packer.samplers.subset` finds some.
        seed: of order, crops, flips and transforms; default 0, or that of the sampler.
        drop_last: leave out the samples that do not fill a batch.
        crop: `RandomResizedCrop`, `CenterCrop` or `Resize`; needed if images differ in size.
        flip: chance of a horizontal flip; True is 0.5. Boxes, polygons and points move with crop and flip.
        flip_index: which landmark or keypoint each one becomes in a flipped image: (1, 0, 2, 4, 3) for the eyes, nose
            and corners of the mouth of a face; default: what the build has found.
        min_area: boxes that a crop cuts to less than this area, in pixels, are dropped.
        transform: a function of one image tensor, run in the threads (for heavy Python, use PackedDataset in a
            DataLoader with worker processes); its results must be tensors of one shape. ``transform(image, generator)``
            gets a torch.Generator seeded by (seed, epoch, record); what a function draws elsewhere is not reproducible,
            because the threads share it.
        target_transform: a function of each target, run in the threads.
        transforms: instead of these two, ``transforms(image, target)``, or with a generator; it returns both.
        mixup: alpha of torchvision's MixUp, for class labels: targets become float32 (n, classes).
        cutmix: alpha of CutMix; with both, each batch gets one of them.
        color_jitter: brightness, contrast, saturation and hue of torchvision's ColorJitter, drawn once for a batch.
        collate: what becomes of boxes: "list" of dicts; "yolo", rows of (image, class, cx, cy, width, height), see
            `loading.collate.yolo_rows`; "padded" tensors with a mask, see `loading.collate.padded_boxes`.
        label_offset: added to the class ids of boxes: 1 for models whose class 0 is the background.
        with_index: batches are (images, targets, numbers of the records int64 (n,)).
        device: where the batches go.
        mean: see `Normalize`; `std` and `dtype` too.
        memory_format: of the images; default channels_last (of a transform's results: as they are).
            torch.contiguous_format lets ``images.view(n, -1)`` work.
        threads: default: the cores that the process may use.
        prefetch: batches made ahead, and kept in flight to a GPU.
        decoder: of JPEGs: auto, simplejpeg, opencv or jpeg4py.
        cache: "ram" reads the whole pack ahead into the page cache, and keeps it there if allowed; "device" puts
            it on the device (raw images of one shape), where batches are then made.
        verify: verify each record against its checksum the first time that this process touches it.
        on_error: "replace" puts another record of the same epoch, drawn from (seed, epoch, record), in the place of
            one that is damaged, with its own target; `replaced` and `stats` report it. A damaged index is an error.
        **unknown: nothing; for arguments of torch's DataLoader the error says what to write.

    Raises:
        UsageError: if these do not go together, or there is no pack.
        ValueError: if a crop or a value of it is missing or out of range.
        DamagedPack: if the pack is not whole.
    """

    def __init__(  # noqa: PLR0913 - the one place where a user says how to train; each is handed on as part of a spec
        self,
        data: AnyPath | Pack | PackedDataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: Sampler | None = None,
        indices: ArrayLike | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        crop: Crop | None = None,
        flip: bool | float = False,
        flip_index: Sequence[int] | None = None,
        min_area: float = 1.0,
        transform: ImageTransform | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: JointTransform | None = None,
        mixup: float | None = None,
        cutmix: float | None = None,
        color_jitter: Sequence[float] | None = None,
        collate: str = "list",
        label_offset: int | None = None,
        with_index: bool = False,
        device: torch.device | str = "cpu",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        threads: int | None = None,
        prefetch: int = 2,
        decoder: str | None = None,
        cache: str | None = None,
        verify: bool = True,
        on_error: str = "raise",
        **unknown: NoReturn,
    ) -> None:
        options.refuse_unknown(PackedLoader, unknown)
        if isinstance(data, PackedDataset):
            transform, target_transform = transform or data.transform, target_transform or data.target_transform
            transforms, decoder = transforms or data.transforms, decoder or data.decoder
            label_offset = data.label_offset if label_offset is None else label_offset
            data = data.pack
        self.pack = options.pack_at(data)
        self.batch_size = check_int("batch_size", batch_size, 1)
        self.device = torch.device(device)
        own = {"seed": seed, "indices": indices, "drop_last": drop_last}
        self.sampler = options.check_sampler(sampler, self.pack, shuffle, own)
        self.sampler.num_batches(self.batch_size)  # raises where drop_last would leave none
        seed = self.sampler.seed if seed is None else check_int("seed", seed, 0, (1 << 64) - 1)
        self._augmentation = self._first = Augmentation(options.check_crop(crop), options.check_flip(flip), seed)
        filler = ImageFiller(self.pack, self._augmentation, options.check_decoder(decoder or "auto"), verify)
        targets = Targets(self.pack, min_area, label_offset or 0, flip_index)
        if self._augmentation.flip:
            targets.warn_of_flips()
        threads = usable_cores() if threads is None else check_int("threads", threads, 1)
        pinned, collate = self.device.type == "cuda", options.check_collate(collate, targets)
        work = Work(threads, check_int("prefetch", prefetch, 1), pinned, collate)
        functions = Transforms(transform, target_transform, transforms)
        options.check_choice("on_error", on_error, ("raise", "replace"))
        replacer = Replacer(filler, self.sampler, seed) if on_error == "replace" else None
        most = min(batch_size, self.sampler.num_samples)
        self._batches: Pipeline | DeviceCache = Pipeline(filler, targets, most, work, functions, replacer)
        options.check_choice("cache", cache, ("ram", "device", None))
        self._ram = RamCache(self.pack) if cache == "ram" else None
        if cache == "device":
            self._batches = DeviceCache(self._batches, self.device)
        normalize = Normalize(mean, std, dtype, memory_format or torch.channels_last)
        options.check_normalize(normalize, filler)
        mixing = Mixing(mixup, cutmix, color_jitter, len(self.pack.classes), seed)
        options.check_mixing(mixing, normalize, targets, functions)
        self._transfer = Transfer(self.device, prefetch, Normalize() if mixing.jitters else normalize)
        self._hand_over = Handover(mixing, normalize, memory_format, with_index)
        self._counted: _Iteration | None = None
        """The iteration that was begun last; None before the first one, and after a state was loaded."""
        self._times_set = 0
        """`sampler.times_set` when it began."""
        self._loaded: dict[int, int] = {}
        """Epoch and position of a loaded state that no iteration has taken yet."""
        self._stats = Stats()

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self.sampler.num_batches(self.batch_size)

    def __repr__(self) -> str:
        what = f"{len(self)} batches of {self.batch_size} to {self.device}"
        return f"PackedLoader({self.pack!r}, {what}, {self.sampler!r})"

    @property
    def epoch(self) -> int:
        """The epoch that comes next, or that is being read."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads: its order, crops and flips; the same as `sampler.set_epoch`.

        It begins at its beginning, unless a state of this very epoch was loaded and no batch was read since. Without
        a call, each iteration takes the epoch after the last one that handed out a batch.
        """
        self.sampler.set_epoch(epoch)

    def set_crop(self, crop: Crop | None) -> None:
        """Set the crop of the iterations that begin from now on: small images first, for example, larger ones later.

        A state holds it: a loader that is made as this one was, and takes the state, goes on with it.

        Args:
            crop: as for the loader.

        Raises:
            UsageError: if it is not a crop.
            ValueError: if there is none and the images differ in size.
        """
        self._augmentation = replace(self._augmentation, crop=options.check_crop(crop))
        self._batches = self._batches.with_filler(self._batches.filler.with_augmentation(self._augmentation))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of one epoch; after `load_state_dict`, the rest of that epoch.

        It begins when its first batch is asked for: epoch, rank and world size are those of that moment. Several
        iterations may go on at once; state and stats are those of the one that was begun last.
        """
        if self._counted is not None and self._times_set == self.sampler.times_set:
            self.sampler.set_epoch(self.sampler.epoch + 1)
        here, times_set, first = self._following(), self.sampler.times_set, True
        stats = self._stats = Stats()
        records = self.sampler.rank_batches(self.batch_size, here.epoch, here.position)
        end = min(len(self) * here.global_batch, self.sampler.num_samples)
        batches: Iterator[Any] = self._batches.run(records, here.epoch, stats)
        if self.device.type != "cpu" or not self._transfer.normalize.nothing:
            batches = self._transfer.run(batches, stats)
        with quiet_opencv():
            try:
                while True:
                    asked = time.perf_counter()
                    batch = next(batches, None)
                    stats.waited_s += time.perf_counter() - asked
                    if first:
                        self._counted, self._times_set, self._loaded, first = here, times_set, {}, False
                    if batch is None:
                        return
                    # what the consumer has received, not what was made ahead
                    number = here.position // here.global_batch
                    here.position = min(here.position + here.global_batch, end)
                    yield self._hand_over(batch, here.epoch, number)
            finally:
                here.ended = True
                stats.end()
                if isinstance(batches, Generator):
                    batches.close()

    def _following(self) -> _Iteration:
        """Return where an iteration begins that is begun now."""
        epoch = self.sampler.epoch
        position, global_batch = self._loaded.get(epoch, 0), self.sampler.global_batch(self.batch_size)
        return _Iteration(epoch, position, global_batch, self._augmentation)

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands: small, fit for JSON and `torch.save`. Take it between two batches.

        It describes the iteration that was begun last, whatever epoch was set since; once that one has ended, the
        epoch that was set.
        """
        here = self._counted
        if here is None or (here.ended and self._times_set != self.sampler.times_set):
            here = self._following()
        state = {**self.sampler.state_at(here.epoch, here.position, here.global_batch), **self._first.identity}
        return state if here.augmentation == self._first else {**state, "set_crop": crop_text(here.augmentation.crop)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state` was taken: the next iteration gives the batches that were not yet received.

        Args:
            state: of `state_dict`, by another number of ranks if batch_size times ranks is the same.

        Raises:
            UsageError: if the state is of another pack, seed, order, batch size, crop or flip.
        """
        order = state
        if isinstance(state, Mapping):
            order = {name: value for name, value in state.items() if name not in STATE}
        epoch, position = self.sampler.check_state(order, self.batch_size)
        self._first.check(state)
        crop = self._first.crop
        if "set_crop" in state:
            crop = crop_of(state["set_crop"], crop, self._augmentation.crop)
        self.set_crop(crop)
        self.sampler.set_epoch(epoch)
        self._loaded, self._counted = {epoch: position}, None

    @property
    def replaced(self) -> list[Replaced]:
        """The damaged records that others stood in for, in all epochs so far, by number: the first 1,000."""
        return [] if self._batches.replacer is None else self._batches.replacer.reported

    def stats(self) -> dict[str, float]:
        """Return times and counts of this epoch, or of the last: see `Stats.summary`."""
        return self._stats.summary()
