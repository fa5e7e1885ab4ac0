"""What happens in the process of one measurement."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Protocol

import cv2
import numpy as np
import torch

from packer.bench.cache import drop, pages_in_memory
from packer.bench.chosen import chosen_records
from packer.bench.disk import disk_files, disk_pack
from packer.bench.folder import FolderReader
from packer.bench.job import MANY_SAMPLES, Job
from packer.bench.limits import Kind, Limit, copies, file_decodes, packed_decodes
from packer.bench.result import Measured
from packer.format.pack import open_pack
from packer.loading.crop import Resize
from packer.loading.loader import PackedLoader
from packer.samplers import BlockShuffleSampler, Sampler, ShuffleSampler
from packer.samplers import SortedPackWarning
from packer.samplers.order import Records

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Reader(Protocol):
    """Something that reads all images, again and again."""

    def epoch(self) -> Iterator[int]:
        """Read all images once; yields how many each batch has."""

    def end(self) -> None:
        """Let go of threads and processes."""


class ManyEpochs(ShuffleSampler):
    """The first epoch is one; those behind it are so long that a measurement ends in their middle.

    A sample of a set is read in milliseconds, and beginning an epoch takes some too: real sets have long epochs.
    """

    kind = "many-epochs"

    def set_epoch(self, epoch: int) -> None:
        """All epochs but the first have MANY_SAMPLES."""
        super().set_epoch(epoch)
        if epoch:
            self.num_samples = -(-MANY_SAMPLES // self.num_indices) * self.num_indices

    def _order(self, epoch: int) -> Records:
        order = super()._order(epoch)
        return np.tile(order, self.num_samples // self.num_indices)


class PackReader:
    """`PackedLoader`, as a training script has it."""

    def __init__(self, job: Job) -> None:
        gpu, pack = job.device != "cpu", open_pack(job.pack)
        width, height = job.size
        records = chosen_records(pack, job.images)
        if job.window:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SortedPackWarning)  # nobody learns from these batches
                order: Sampler = BlockShuffleSampler(pack, job.seed, window=job.window, indices=records)
        else:
            order = ManyEpochs(pack, job.seed, indices=records)
        self.loader = PackedLoader(
            pack,
            job.batch_size,
            sampler=order,
            crop=None if pack.manifest.shape else Resize((height, width)),
            threads=job.threads,
            prefetch=job.prefetch,
            device=job.device,
            mean=MEAN if gpu else None,
            std=STD if gpu else None,
            dtype=torch.float16 if gpu else None,
        )
        self._epoch = 0

    def epoch(self) -> Iterator[int]:
        """One epoch."""
        self.loader.set_epoch(self._epoch)
        self._epoch += 1
        for images, _ in self.loader:
            yield len(images)

    def end(self) -> None:
        """Threads end with the epoch."""


LIMITS: dict[str, Callable[[Job], Kind]] = {
    "copy": copies,
    "decode-packed": packed_decodes,
    "decode-files": file_decodes,
    "disk-pack": disk_pack,
    "disk-files": disk_files,
}
KINDS: dict[str, Callable[[Job], Reader]] = {
    "folder-pil": FolderReader,
    "folder-cv2": FolderReader,
    "pack": PackReader,
    **{name: partial(Limit, kind) for name, kind in LIMITS.items()},
}


@contextmanager
def nobody() -> Iterator[None]:
    """Watches nothing."""
    yield


def measure(job: Job, watched: Callable[[], AbstractContextManager[None]] = nobody) -> Measured:
    """Read for `job.seconds` at least, after an epoch that only warms up; of a cold read, the first epoch is measured.

    Args: what to do; a context in which the memory of this process is looked at. That is never when the clock
    runs: each look takes a processor for 10 ms.
    """
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    in_cache = _make_cold(job) if job.cold else None
    started, cpu_s = time.perf_counter(), _cpu_s()
    reader = KINDS[job.kind](job)
    batches = reader.epoch()
    images = next(batches)
    first_batch_s = time.perf_counter() - started
    if job.cold:
        images += sum(batches)
        _synchronise(job)
        seconds = time.perf_counter() - started
        found = Measured(images, seconds, _cpu_s() - cpu_s, first_batch_s, 0, None, in_cache)
        with watched():
            _some(reader.epoch(), images)
    else:
        with watched():
            _some(batches, None)
        found = _steady(reader, job, first_batch_s)
    reader.end()
    return found


def _some(batches: Iterator[int], most: int | None) -> None:
    """Read all batches, or until that many images are read."""
    images = 0
    for count in batches:
        images += count
        if most is not None and images >= most:
            return


def _steady(reader: Reader, job: Job, first_batch_s: float) -> Measured:
    """The clock starts with a batch and stops with one: as much is under way then as before.

    Batches of worker processes come in bursts, one of each: whole bursts are counted.
    """
    burst = max(1, job.threads) if job.kind.startswith("folder") else 1
    started = cpu_s = waited = 0.0
    images = batches = -1
    while True:
        source = _timed(reader.epoch(), job)
        for count, seconds in source:
            if batches < 0:
                started, cpu_s, images, batches = time.perf_counter(), _cpu_s(), 0, 0
                continue
            images += count
            waited += seconds
            batches += 1
            if batches % burst == 0 and time.perf_counter() - started >= job.seconds:
                _synchronise(job)
                wall_s, cpu_s = time.perf_counter() - started, _cpu_s() - cpu_s
                share = waited / wall_s if job.step_s or job.device != "cpu" else None
                return Measured(images, wall_s, cpu_s, first_batch_s, 0, share)


def _timed(batches: Iterator[int], job: Job) -> Iterator[tuple[int, float]]:
    """(images, seconds waited) of each batch; the consumer takes its step in between."""
    while True:
        began = time.perf_counter()
        count = next(batches, None)
        waited = time.perf_counter() - began
        if count is None:
            return
        yield count, waited
        if job.step_s:
            time.sleep(job.step_s)


def _synchronise(job: Job) -> None:
    if job.device != "cpu":
        torch.cuda.synchronize(job.device)


def _make_cold(job: Job) -> float | None:
    files = list(job.files) or [os.path.join(job.pack, name) for name in sorted(os.listdir(job.pack))]
    for file in files:
        drop(file)
    return pages_in_memory(files)


def _cpu_s() -> float:
    """Processor time of this process and of its living children (workers of a DataLoader)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    ticks = os.sysconf("SC_CLK_TCK")
    for child in multiprocessing.active_children():
        with suppress(OSError), open(f"/proc/{child.pid}/stat", "rb") as file:  # elsewhere than on Linux it is missing
            # state, parent, ... follow the name, which may hold anything
            fields = file.read().rpartition(b")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total
