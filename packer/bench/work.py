"""Runs in the process of one measurement: reads the plain folder, a pack, or a limit."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from packer.bench.measure import Spent, drop_from_page_cache
from packer.bench.own_loader import CachedBatches, OwnLoader
from packer.bench.report import MANY_SAMPLES, Job, Measured
from packer.bench.sample import (
    BareLoop,
    Limit,
    copies,
    disk_files,
    disk_pack,
    file_decodes,
    packed_decodes,
    pages_in_memory,
    sample_records,
)
from packer.format.pack import open_pack
from packer.loading.crop import RandomResizedCrop, Resize
from packer.loading.dataset import PackedDataset
from packer.loading.loader import PackedLoader
from packer.model.annotation import Int64
from packer.samplers import BlockShuffleSampler, Sampler, ShuffleSampler, SortedPackWarning
from packer.samplers.order import Records

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Reader(Protocol):
    """Reads all images, repeatedly."""

    def epoch(self) -> Iterator[int]:
        """Read all images once; yield how many each batch has."""

    def end(self) -> None:
        """Release threads and processes."""


class FolderImages(Dataset[tuple[torch.Tensor, int]]):
    """Image files, decoded and resized one by one to uint8 (3, height, width), as torchvision's ImageFolder does."""

    def __init__(self, job: Job) -> None:
        self._files, self._size = job.files, job.size
        self._read = self._pillow if job.kind == "folder-pil" else self._opencv

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self._read(self._files[i])).permute(2, 0, 1).contiguous(), 0

    def _pillow(self, file: str) -> Any:
        from PIL import Image

        with Image.open(file) as image:
            return np.array(image.convert("RGB").resize(self._size, Image.Resampling.BILINEAR))

    def _opencv(self, file: str) -> Any:
        image = cv2.imdecode(np.fromfile(file, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"{file}: OpenCV cannot decode it")
        return cv2.cvtColor(cv2.resize(image, self._size, interpolation=cv2.INTER_LINEAR), cv2.COLOR_BGR2RGB)


class LongOrder:
    """Random orders of numbers: all once in the first epoch, then epochs of MANY_SAMPLES.

    Epochs are long as in real datasets, because workers are idle at the end of an epoch.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._random = count, np.random.default_rng(seed)
        self._epochs = 0

    def __iter__(self) -> Iterator[int]:
        orders = -(-MANY_SAMPLES // self._count) if self._epochs else 1
        self._epochs += 1
        for _ in range(orders):
            yield from self._random.permutation(self._count).tolist()


class LongPackOrder(ShuffleSampler):
    """The same for a pack."""

    kind = "many-epochs"

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; all but the first have MANY_SAMPLES."""
        super().set_epoch(epoch)
        if epoch:
            self.num_samples = -(-MANY_SAMPLES // self.num_indices) * self.num_indices

    def _order(self, epoch: int) -> Records:
        return np.tile(super()._order(epoch), self.num_samples // self.num_indices)

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        numbers = super()._numbers(epoch)
        return lambda positions: numbers(positions % self.num_indices)


class DatasetReader:
    """A map-style Dataset as most training scripts read it: a DataLoader, persistent workers."""

    def __init__(self, job: Job) -> None:
        data: Any = FolderImages(job) if job.kind.startswith("folder") else PackedDataset(job.pack)
        # more workers than cores are worth trying, because this process does nothing else
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        self._loader: Any = DataLoader(
            data,
            batch_size=job.batch_size,
            sampler=LongOrder(len(data), job.seed),
            num_workers=job.threads,
            persistent_workers=job.threads > 0,
            prefetch_factor=job.prefetch if job.threads else None,
            pin_memory=job.device != "cpu",
            multiprocessing_context="fork" if job.threads and sys.platform == "linux" else None,
        )
        self._device = torch.device(job.device)

    def epoch(self) -> Iterator[int]:
        """Read all images once; yield how many each batch has."""
        for images, _ in self._loader:
            if self._device.type != "cpu":
                there = images.to(self._device, non_blocking=True)
                mean, std = (255 * torch.tensor(value, device=self._device).view(1, 3, 1, 1) for value in (MEAN, STD))
                ((there - mean) / std).half()
            yield len(images)

    def end(self) -> None:
        """End the worker processes."""
        self._loader = None


class PackReader:
    """`PackedLoader` as a training script uses it."""

    def __init__(self, job: Job) -> None:
        gpu, pack = job.device != "cpu", open_pack(job.pack, job.cache_dir)
        size, records = job.size[::-1], sample_records(pack, job.images)
        whole = None if pack.manifest.shape else Resize(size)
        if job.window:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SortedPackWarning)  # nothing is trained on these batches
                order: Sampler = BlockShuffleSampler(pack, job.seed, window=job.window, indices=records)
        else:
            order = LongPackOrder(pack, job.seed, indices=records)
        self.loader = PackedLoader(
            pack,
            job.batch_size,
            sampler=order,
            crop=RandomResizedCrop(size) if job.crops else whole,
            threads=job.threads,
            prefetch=job.prefetch,
            device=job.device,
            mean=MEAN if gpu else None,
            std=STD if gpu else None,
            dtype=torch.float16 if gpu else None,
        )
        self._epoch = 0

    def epoch(self) -> Iterator[int]:
        """Read all images once; yield how many each batch has."""
        self.loader.set_epoch(self._epoch)
        self._epoch += 1
        for images, _ in self.loader:
            yield len(images)

    def end(self) -> None:
        """Do nothing: threads end with the epoch."""


LIMITS: dict[str, Callable[[Job], BareLoop]] = {
    "copy": copies,
    "decode-packed": packed_decodes,
    "decode-files": file_decodes,
    "disk-pack": disk_pack,
    "disk-files": disk_files,
}
KINDS: dict[str, Callable[[Job], Reader]] = {
    "folder-pil": DatasetReader,
    "folder-cv2": DatasetReader,
    "dataset": DatasetReader,
    "pack": PackReader,
    "loader": OwnLoader,
    "cached": CachedBatches,
    **{name: partial(Limit, work) for name, work in LIMITS.items()},
}


def measure(job: Job, watched: Callable[[], AbstractContextManager[None]]) -> Measured:
    """Read for at least `job.seconds` after a warm-up epoch; for a cold read, measure the first epoch.

    Args:
        job: The measurement.
        watched: A context in which the memory of this process is watched, but never during the timing, because each
            look takes 10 ms of a core.
    """
    if not job.loader:  # the user's runs as in training
        cv2.setNumThreads(1)
        torch.set_num_threads(1)
    in_cache = _make_cold(job) if job.cold else None
    started, spent = time.perf_counter(), Spent()
    reader = KINDS[job.kind](job)
    batches = reader.epoch()
    images = next(batches)
    first_batch_s = time.perf_counter() - started
    if job.cold:
        images += sum(batches)
        _synchronize(job)
        seconds = time.perf_counter() - started
        cpu_s, others = spent.until_now()
        measured = Measured(images, seconds, cpu_s, first_batch_s, 0, None, in_cache, others)
        with watched():
            seen = 0
            for count in reader.epoch():
                seen += count
                if seen >= images:
                    break
    else:
        with watched():
            _warm_up(batches, reader, job)
        measured = _steady(reader, job, first_batch_s)
    if isinstance(reader, OwnLoader):
        measured = replace(measured, epochs=reader.epochs, batch=reader.batch)
    reader.end()
    return measured


def _warm_up(batches: Iterator[int], reader: Reader, job: Job) -> None:
    """Read the first epoch; of a loader of the user's, which may be endless, as long as is measured then."""
    started = time.perf_counter()
    least = 2 * reader.burst if isinstance(reader, OwnLoader) else None
    for number, _ in enumerate(batches, 1):
        if least is not None and number >= least and time.perf_counter() - started >= job.seconds:
            return


def _steady(reader: Reader, job: Job, first_batch_s: float) -> Measured:
    """Measure from one batch to another in the middle of an epoch, with the same number of batches in progress.

    Batches of worker processes come in bursts, one from each: whole bursts are counted.
    """
    burst = max(1, job.threads) if isinstance(reader, DatasetReader) else 1
    if isinstance(reader, OwnLoader):
        burst = reader.burst
    started, waited, spent = 0.0, 0.0, Spent()
    images = batches = -1
    while True:
        for count, seconds in _time_batches(reader.epoch(), job):
            if batches < 0:
                started, images, batches, spent = time.perf_counter(), 0, 0, Spent()
                continue
            images += count
            waited += seconds
            batches += 1
            if batches % burst == 0 and time.perf_counter() - started >= job.seconds:
                _synchronize(job)
                wall_s = time.perf_counter() - started
                cpu_s, others = spent.until_now()
                share = waited / wall_s if job.step_s or job.device != "cpu" else None
                return Measured(images, wall_s, cpu_s, first_batch_s, 0, share, others=others)


def _time_batches(batches: Iterator[int], job: Job) -> Iterator[tuple[int, float]]:
    """Yield (images, seconds waited) of each batch; the consumer takes its step in between."""
    while True:
        began = time.perf_counter()
        count = next(batches, None)
        waited = time.perf_counter() - began
        if count is None:
            return
        yield count, waited
        if job.step_s:
            time.sleep(job.step_s)


def _synchronize(job: Job) -> None:
    if job.device != "cpu":
        torch.cuda.synchronize(job.device)


def _make_cold(job: Job) -> float | None:
    files = list(job.files) or [os.path.join(job.pack, name) for name in sorted(os.listdir(job.pack))]
    for file in files:
        drop_from_page_cache(file)
    return pages_in_memory(files)
