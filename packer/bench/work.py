"""What happens in the process of one measurement."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import cv2
import numpy as np
import torch

from packer.bench.cache import drop, pages_in_memory
from packer.bench.folder import FolderReader
from packer.bench.job import Job
from packer.bench.limits import KINDS as LIMITS
from packer.bench.limits import Limit
from packer.bench.result import Measured
from packer.loading.crop import Resize
from packer.loading.loader import PackedLoader
from packer.pack import open_pack
from packer.samplers import BlockShuffleSampler, ShuffleSampler
from packer.samplers.permutation import Records

MANY_SAMPLES = 1 << 17
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
            self.num_samples = -(-MANY_SAMPLES // self.num_chosen) * self.num_chosen

    def _order(self, epoch: int) -> Records:
        order = super()._order(epoch)
        return np.tile(order, self.num_samples // self.num_chosen)


class PackReader:
    """`PackedLoader`, as a training script has it."""

    def __init__(self, job: Job) -> None:
        gpu, pack = job.device != "cpu", open_pack(job.pack)
        width, height = job.size
        order = BlockShuffleSampler(pack, job.seed, window=job.window) if job.window else ManyEpochs(pack, job.seed)
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


KINDS: dict[str, Callable[[Job], Reader]] = {
    "folder-pil": FolderReader,
    "folder-cv2": FolderReader,
    "pack": PackReader,
    **dict.fromkeys(LIMITS, Limit),
}


def measure(job: Job) -> Measured:
    """Read for `job.seconds` at least, in whole epochs; the first one only warms up, unless the read is cold."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    in_cache = _make_cold(job) if job.cold else None
    started = time.perf_counter()
    cpu = _cpu_s()
    reader = KINDS[job.kind](job)
    batches = reader.epoch()
    images = next(batches)
    first_batch_s = time.perf_counter() - started
    images += sum(_stepped(batches, job))
    _synchronise(job)
    if job.cold:
        seconds = time.perf_counter() - started
        found = Measured(images, seconds, _cpu_s() - cpu, first_batch_s, 0, None, in_cache)
        reader.end()
        return found
    started, cpu, images, waited = time.perf_counter(), _cpu_s(), 0, 0.0
    whole = job.kind != "pack"  # DataLoaders have many images under way: those of a cut epoch would be lost
    while not images or time.perf_counter() - started < job.seconds:
        for count, seconds in _timed(reader.epoch(), job):
            images += count
            waited += seconds
            if not whole and time.perf_counter() - started >= job.seconds:
                break
    _synchronise(job)
    seconds = time.perf_counter() - started
    share = waited / seconds if job.step_s or job.device != "cpu" else None
    found = Measured(images, seconds, _cpu_s() - cpu, first_batch_s, 0, share)
    reader.end()
    return found


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


def _stepped(batches: Iterator[int], job: Job) -> Iterator[int]:
    return (count for count, _ in _timed(batches, job))


def _synchronise(job: Job) -> None:
    if job.device != "cpu":
        torch.cuda.synchronize(job.device)


def _make_cold(job: Job) -> float:
    files = list(job.files) or [os.path.join(job.pack, name) for name in sorted(os.listdir(job.pack))]
    for file in files:
        drop(file)
    return pages_in_memory(files)


def _cpu_s() -> float:
    """Processor time of this process and of its living children (workers of a DataLoader)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    ticks = os.sysconf("SC_CLK_TCK")
    for fields in _children():
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _children() -> Iterator[Any]:
    me = str(os.getpid())
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no Linux: workers' time is missing
        return
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # state, parent, ... follow the name, which may hold anything
                fields = file.read().rpartition(b")")[2].decode().split()
        except OSError:
            continue
        if fields[1] == me:
            yield fields
