"""Makes batches on the CPU: threads fill parts of several batches ahead, in order, into memory that is used again."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import DamagedPack
from packer.loading.augmentation import CropParams
from packer.loading.collate import join_targets, stack_images
from packer.loading.fill import ImageFiller
from packer.loading.page_cache import announced
from packer.loading.replace import Replacements, Replacer
from packer.loading.stats import Stats
from packer.loading.targets import Targets
from packer.loading.threads import Results, ThreadPool
from packer.loading.transforms import Transforms
from packer.types import Int64

BLOCK_BYTES = 4 << 20
"""Small batches are made several at once, in blocks of about that: what Python does for a batch of 1.5 MB takes as
long as its bytes."""
BLOCK_BATCHES = 16
"""But not more batches than that: the first one waits for all of its block."""
PART_BYTES = 4 << 20
"""A part of a block of raw images is about that large: handing it to a thread, and back, waits for the GIL twice."""
DECODED_BYTES = 256 << 10
DECODED_A_PART = 16
"""A part of images to decode has so many bytes of pixels, and at least so many images."""

LoadedBatch = tuple[torch.Tensor, Any, Int64]
"""Images, targets (as `join_targets` returns them) and the numbers of the records, int64 (n,)."""
_NOTHING: NDArray[Any] = np.zeros(0, np.uint8)


@dataclass(slots=True)
class _Pending:
    """A block of batches that threads are working on."""

    rows: NDArray[Any]
    results: Results
    ends: list[int]
    """Row at which each batch ends."""
    part_size: int
    """Rows of each part but the last."""


@dataclass(slots=True, eq=False)
class _Piece:
    """What a thread has made: rows of one batch."""

    records: Int64
    """Those that were read: stand-ins in the place of damaged ones."""
    targets: Any
    images: list[Any] | None
    """Transformed images; None: they are in the rows."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much is done at once."""

    threads: int
    prefetch: int
    """Batches that are made ahead of the consumer."""
    pinned: bool = False
    collation: str = "list"
    """What becomes of boxes (`loading.collate`)."""


class Pipeline:
    """Yields (images, targets, records) for runs of record numbers; the images uint8 (n, channels, height, width).

    Args:
        filler: fills rows of a batch with images.
        targets: those of the records.
        batch_size: images of the largest batch.
        work: how much is done at once.
        transforms: the user's functions of each image (channels, height, width) and target, after crop and flip.
        replacer: finds stand-ins for damaged records; None: they are errors.
    """

    def __init__(
        self, filler: ImageFiller, targets: Targets, batch_size: int, work: Work,
        transforms: Transforms | None = None, replacer: Replacer | None = None,
    ) -> None:  # fmt: skip
        self.filler = filler
        self.targets = targets
        self.batch_size = batch_size
        self.work = work
        self.transforms = transforms or Transforms()
        self.replacer = replacer
        height, width, channels = filler.row_shape
        self._row_bytes: int = height * width * channels * filler.dtype.itemsize
        # a transform may take long: then nobody should wait for more than one batch
        fit = round(BLOCK_BYTES / (batch_size * self._row_bytes))
        self._batches_a_block = 1 if self.transforms else max(1, min(fit, BLOCK_BATCHES))
        self._buffers = BufferPool(self._batches_a_block * batch_size * self._row_bytes, work.pinned)
        self._stage = "read" if filler.pack.manifest.encoding == "raw" else "decode"

    def with_filler(self, filler: ImageFiller) -> Pipeline:
        """Return one for other crops."""
        replacer = None if self.replacer is None else self.replacer.with_filler(filler)
        return Pipeline(filler, self.targets, self.batch_size, self.work, self.transforms, replacer)

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield one batch for each array of record numbers, in order. What a thread raises is raised here."""
        threads = ThreadPool(self.work.threads)
        pending: deque[_Pending] = deque()
        source = announced(batches, self.filler.pack)
        wait = True
        try:
            while True:
                while len(pending) <= self.work.prefetch and (block := list(islice(source, self._batches_a_block))):
                    pending.append(self._begin(threads, block, epoch, stats))
                if not pending:
                    return
                yield from self._finish(pending.popleft(), stats)
        except GeneratorExit:
            # maybe the garbage collector, in one of these very threads, or where somebody holds a lock that they need
            wait = False
            raise
        finally:
            threads.close(wait)
            pending.clear()
            self._buffers.trim(2 * self.work.prefetch + 4)  # in the threads, on their way, and with the consumer

    def _begin(self, threads: ThreadPool, block: list[Int64], epoch: int, stats: Stats) -> _Pending:
        records = block[0] if len(block) == 1 else np.concatenate(block)
        rows = self._buffers.take()[: len(records) * self._row_bytes]
        shaped = rows.view(self.filler.dtype).reshape(len(records), *self.filler.row_shape)
        size, step = self._part_size(len(records)), len(block[0])
        if len(block) > 1:
            size = -(-size // step) * step  # whole batches
        step = min(size, step)

        def fill(part: int) -> tuple[list[_Piece], Replacements]:
            rows = slice(part * size, (part + 1) * size)
            return self._fill(records[rows], epoch, shaped[rows], stats, step)

        results = threads.run(-(-len(records) // size), fill)
        return _Pending(shaped, results, list(accumulate(len(batch) for batch in block)), size)

    def _part_size(self, records: int) -> int:
        if self._stage == "decode" or self.transforms:
            even = -(-records // self.work.threads)
            return min(even, max(DECODED_A_PART, DECODED_BYTES // self._row_bytes))
        parts = max(1, min(self.work.threads, round(records * self._row_bytes / PART_BYTES)))
        return -(-records // parts)

    def _fill(
        self, records: Int64, epoch: int, rows: NDArray[Any], stats: Stats, step: int
    ) -> tuple[list[_Piece], Replacements]:
        """Fill rows with the images of records, and return them in pieces of `step` rows."""
        started = time.perf_counter()
        params = self.filler.params(records, epoch)
        replaced: Replacements = ()
        try:
            self.filler.fill(records, params, rows)
        except DamagedPack:
            if self.replacer is None:
                raise
            records, replaced = self.replacer.stand_ins(records, epoch)
            params = self.filler.params(records, epoch)
            self.filler.fill(records, params, rows)
        stats.add(self._stage, time.perf_counter() - started)
        cuts = [slice(start, start + step) for start in range(0, len(records), step)]
        return [self._piece(records[cut], params[cut], epoch, rows[cut], stats) for cut in cuts], replaced

    def _piece(self, records: Int64, params: CropParams, epoch: int, rows: NDArray[Any], stats: Stats) -> _Piece:
        started = time.perf_counter()
        targets = self.targets.of(records, params)
        made = time.perf_counter()
        stats.add("targets", made - started)
        if not self.transforms:
            return _Piece(records, targets, None)
        seen = (torch.from_numpy(row).permute(2, 0, 1) for row in rows)
        seed = (self.filler.augmentation.seed, epoch)
        images, targets = self.transforms.batch(seen, targets, self.filler.pack, records, seed)
        stats.add("transform", time.perf_counter() - made)
        return _Piece(records, targets, images)

    def _finish(self, block: _Pending, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield the batches of a block whose parts are done, or as soon as they are."""
        parts = block.results.wait()
        replaced = [(n * block.part_size + row, what) for n, (_, some) in enumerate(parts) for row, what in some]
        pieces = iter([piece for some, _ in parts for piece in some])
        rows, ends = block.rows, block.ends
        block.rows = _NOTHING  # from here on only the batches keep the memory
        for start, end in zip([0, *ends], ends, strict=False):
            mine: list[_Piece] = []
            while sum(len(piece.records) for piece in mine) < end - start:
                mine.append(next(pieces))
            stats.images += end - start
            stats.batches += 1
            if replaced and self.replacer is not None:
                self.replacer.report([what for row, what in replaced if start <= row < end], stats)
            # each batch is a tensor of its own: what refers to one, saves it or sends it takes no more than it
            if self.transforms.of_images:
                images = stack_images([image for piece in mine for image in piece.images or ()])
            else:
                images = torch.from_numpy(rows[start:end]).permute(0, 3, 1, 2)
            size = int(images.shape[-2]), int(images.shape[-1])
            targets = join_targets([piece.targets for piece in mine], self.work.collation, size)
            yield images, targets, np.concatenate([piece.records for piece in mine])


Memory = NDArray[np.uint8]


def _references(arrays: list[Memory], number: int) -> int:
    return sys.getrefcount(arrays[number])


_FREE = _references([np.zeros(1, np.uint8)], 0)
"""What `_references` gives for an array that only its list knows."""


class BufferPool:
    """Buffers of one size, for batches that are built on the CPU.

    A fresh allocation of a large batch costs more than filling it (the kernel hands out zeroed pages one by one), and
    pinned memory is dearer still. A tensor over a buffer refers to it, and so does every view of that tensor:
    a buffer without references is free. A batch that the consumer keeps is therefore never overwritten; the
    pool grows instead.

    Args:
        size: bytes of each buffer.
        pinned: whether they are page-locked, so that copies to a GPU need no wait.
    """

    def __init__(self, size: int, pinned: bool = False) -> None:
        self.size = size
        self.pinned = pinned
        self._buffers: list[Memory] = []
        self._lock = threading.Lock()  # two iterations may go on at once, in two threads

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self) -> Memory:
        """Return a buffer that nobody refers to, uint8 (size,), its content undefined."""
        with self._lock:
            for number in range(len(self._buffers)):
                if _references(self._buffers, number) == _FREE:
                    return self._buffers[number]
            # torch aligns to 64 bytes; numpy only to 16
            memory = torch.empty(self.size, dtype=torch.uint8, device="cpu", pin_memory=self.pinned).numpy()
            self._buffers.append(memory)
            return memory

    def trim(self, count: int) -> None:
        """Give free buffers back to the system, as long as there are more than `count`: batches were kept once."""
        # the garbage collector may call it within `take`: waiting would be for ever, and the next call will do
        if self._lock.acquire(blocking=False):
            try:
                for number in reversed(range(len(self._buffers))):
                    if len(self._buffers) > count and _references(self._buffers, number) == _FREE:
                        del self._buffers[number]
            finally:
                self._lock.release()
