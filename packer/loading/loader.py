"""PackedLoader: batches of a pack, prepared by threads ahead of the training step and normalized on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from packer.errors import AnyPath, UsageError
from packer.format.pack import Pack, open_pack
from packer.images.decode import check_available
from packer.images.opencv import quiet_opencv
from packer.loading.crop import Augmentation, Crop
from packer.loading.dataset import PackedDataset
from packer.loading.device_cache import DeviceCache
from packer.loading.fill import ImageFiller
from packer.loading.page_cache import RamCache
from packer.loading.pipeline import Pipeline, Work
from packer.loading.replace import Replaced, Replacer
from packer.loading.stats import Stats
from packer.loading.targets import Targets
from packer.loading.to_device import Normalize, Transfer
from packer.samplers import Sampler, SequentialSampler, ShuffleSampler
from packer.samplers.ranks import check_int
from packer.system import usable_cores


@dataclass(slots=True)
class _Iteration:
    """The progress of an iteration."""

    epoch: int
    position: int
    """Samples received, of all ranks."""
    global_batch: int
    ended: bool = False


class PackedLoader:
    """Batches of a pack: ``for images, targets in loader``.

    images: (n, channels, height, width), channels last in memory, uint8 unless mean and std or a dtype are given.
    targets: int64 (n,) if the pack has only class labels, else a list of n dicts (`loading.targets.target_of`), on
    `device`. The randomness of a sample depends only on (seed, epoch, record): batches are the same for any number of
    threads, and each global batch has the same samples for any number of ranks. No record is read before the first
    batch is requested.

    Args:
        data: a pack's directory, an open Pack, or a PackedDataset (whose transforms and decoder are used).
        batch_size: samples per batch on this rank.
        shuffle: a new order each epoch (`ShuffleSampler`); or pass a `sampler`.
        sampler: the order of the records, with its own seed and drop_last.
        seed: seed of order, crops and flips; default 0, or that of the sampler.
        drop_last: leave out the samples that do not fill a batch.
        crop: `RandomResizedCrop`, `CenterCrop` or `Resize`; needed if images differ in size.
        flip: chance of a horizontal flip; True is 0.5. Boxes, landmarks and polygons move with crop and flip.
        min_area: drop boxes that a crop cuts to less than this area, in pixels.
        transform: called with each image tensor in the threads (for heavy Python, use PackedDataset in a DataLoader
            with worker processes); its results must be tensors of one shape.
        target_transform: called with each target in the threads.
        device: the device of the batches.
        mean: see `Normalize`; also for `std` and `dtype`.
        threads: number of threads; default: the cores that the process may use.
        prefetch: number of batches prepared in advance, and in flight to a GPU.
        decoder: JPEG decoder: auto, simplejpeg, opencv or jpeg4py.
        cache: "ram" reads the whole pack into the page cache, and locks it there if allowed; "device" copies it to the
            device (raw images of one shape), where batches are then prepared.
        verify: verify the checksum of each record when this process first reads it.
        on_error: "replace" replaces a damaged record with another one of the same epoch, drawn from (seed, epoch,
            record), and its target; `replaced` and `stats` report it. A damaged index is an error.

    Raises:
        UsageError: if the arguments cannot be combined, or there is no pack.
        ValueError: if a crop is missing, or a value is out of range.
        DamagedPack: if the pack is damaged.
    """

    def __init__(  # noqa: PLR0913 - the public options of training, which are passed on in groups
        self,
        data: AnyPath | Pack | PackedDataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: Sampler | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        crop: Crop | None = None,
        flip: bool | float = False,
        min_area: float = 1.0,
        transform: Callable[[torch.Tensor], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        device: torch.device | str = "cpu",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype | None = None,
        threads: int | None = None,
        prefetch: int = 2,
        decoder: str = "auto",
        cache: str | None = None,
        verify: bool = True,
        on_error: str = "raise",
    ) -> None:
        dataset = data if isinstance(data, PackedDataset) else None
        if dataset is not None:
            transform, target_transform = transform or dataset.transform, target_transform or dataset.target_transform
            decoder = dataset.decoder
        self.pack = dataset.pack if dataset is not None else data if isinstance(data, Pack) else open_pack(data)  # type: ignore[arg-type]
        check_available(decoder)
        self.batch_size = check_int("batch_size", batch_size, 1)
        self.device = torch.device(device)
        work = Work(
            usable_cores() if threads is None else check_int("threads", threads, 1),
            check_int("prefetch", prefetch, 1),
            pinned=self.device.type == "cuda",
        )
        for name, given in (("shuffle", shuffle), ("drop_last", drop_last)):
            if sampler is not None and given:
                raise UsageError(name, "cannot be combined with a sampler, which has its own", "give it to the sampler")
        chance = float(flip) * 0.5 if isinstance(flip, bool) else float(flip)
        if not 0 <= chance <= 1:
            raise UsageError("flip", f"must be a chance from 0 to 1, got {flip}")
        if sampler is None:
            kind = ShuffleSampler if shuffle else SequentialSampler
            sampler = kind(self.pack, 0 if seed is None else seed, drop_last=drop_last)
        if sampler.num_records != len(self.pack):
            problem = f"is for {sampler.num_records} records, but the pack has {len(self.pack)}"
            raise UsageError("sampler", problem, "create it for this pack")
        if sampler.identity["pack"] not in (None, self.pack.manifest.digest):
            raise UsageError("sampler", "is for another pack", "create it for this pack")
        self.sampler = sampler
        sampler.num_batches(self.batch_size)  # raises where drop_last would leave none
        seed = sampler.seed if seed is None else check_int("seed", seed, 0, (1 << 64) - 1)
        self._augmentation = Augmentation(crop, chance, seed)
        if on_error not in ("raise", "replace"):
            raise UsageError("on_error", f'must be "raise" or "replace", got {on_error!r}')
        filler = ImageFiller(self.pack, self._augmentation, decoder, verify)
        self._replacer = Replacer(filler, sampler, seed) if on_error == "replace" else None
        targets = Targets(self.pack, target_transform, min_area)
        self._batches: Pipeline | DeviceCache = Pipeline(filler, targets, batch_size, work, transform, self._replacer)
        self._ram = None
        if cache == "ram":
            self._ram = RamCache(self.pack)
        elif cache == "device":
            if transform is not None:
                raise UsageError("transform", 'runs on the host, where cache="device" makes nothing', "leave out one")
            self._batches = DeviceCache(filler, targets, self.device, self._replacer)
        elif cache is not None:
            raise UsageError("cache", f'must be "ram" or "device", got {cache!r}')
        self._transfer = Transfer(self.device, prefetch, Normalize(mean, std, dtype))
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
        """The current or next epoch."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, as `sampler.set_epoch` does: its order, crops and flips.

        The epoch starts from the beginning, unless a state of this epoch was loaded and no batch has been read since.
        Without a call, each iteration reads the epoch after the last one that returned a batch.
        """
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yield the batches of one epoch; after `load_state_dict`, the rest of that epoch.

        Epoch, rank and world size are read with the first batch. Several iterations may run at once; state and stats
        are those of the one started last.
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
                    # count what the consumer has received, not what was prepared
                    here.position = min(here.position + here.global_batch, end)
                    yield batch
            finally:
                here.ended = True
                stats.end()
                if isinstance(batches, Generator):
                    batches.close()

    def _following(self) -> _Iteration:
        """Return the start of a new iteration."""
        epoch = self.sampler.epoch
        return _Iteration(epoch, self._loaded.get(epoch, 0), self.sampler.global_batch(self.batch_size))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training as a small dict for JSON or `torch.save`. Call it between two batches.

        It describes the iteration started last, even if another epoch has been set since; after the end of that
        iteration, the epoch that was set.
        """
        here = self._counted
        if here is None or (here.ended and self._times_set != self.sampler.times_set):
            here = self._following()
        return {**self.sampler.state_at(here.epoch, here.position, here.global_batch), **self._augmentation.identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration returns the remaining batches.

        Args:
            state: a result of `state_dict`; the number of ranks may differ if batch_size times ranks is the same.

        Raises:
            UsageError: if the state has another pack, seed, order, batch size, crop or flip.
        """
        order = state
        if isinstance(state, Mapping):
            order = {name: value for name, value in state.items() if name not in self._augmentation.identity}
        epoch, position = self.sampler.check_state(order, self.batch_size)
        self._augmentation.check(state)
        self.sampler.set_epoch(epoch)
        self._loaded, self._counted = {epoch: position}, None

    @property
    def replaced(self) -> list[Replaced]:
        """The damaged records that were replaced, in all epochs so far, by number: the first 1,000."""
        return [] if self._replacer is None else self._replacer.reported

    def stats(self) -> dict[str, float]:
        """Return times and counts of the current or last epoch; see `Stats.summary`."""
        return self._stats.summary()
