"""Prepares batches on the CPU: threads fill parts of several batches in advance, in order, in reused memory."""

from __future__ import annotations

import math
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
from packer.loading.collate import join_targets, sizes_in, stack_images
from packer.loading.epoch_stats import Stats
from packer.loading.fill import Floats, ImageFiller
from packer.loading.loader_threads import LEFT_S, Results, ThreadPool, can_help
from packer.loading.memory import BufferPool
from packer.loading.page_cache import announced
from packer.loading.stand_ins import Replacements, Replacer
from packer.loading.targets import Targets
from packer.loading.user_functions import Transforms
from packer.model.annotation import Int64
from packer.samplers.order import records_in

BLOCK_BYTES = 4 << 20
"""Small batches are prepared together in blocks of about this size: for a batch of 1.5 MB, Python takes as long as
copying the bytes."""
BLOCK_BATCHES = 16
"""Maximum number of batches in a block: the first one waits for the whole block."""
PART_BYTES = 4 << 20
"""Approximate size of a part of a block of raw images: passing it to a thread and back waits for the GIL twice."""
DECODED_BYTES = 256 << 10
DECODED_A_PART = 16
"""Bytes of pixels, and minimum number of images, in a part of images to decode."""

FLOATS_AT_ONCE = 16
"""Images that a thread decodes before it normalizes them."""

LoadedBatch = tuple[Any, Any, Int64]
"""Images (a tensor or `Views`), targets (as `join_targets` returns them) and the samples, int64 (n,)."""
_NOTHING: NDArray[Any] = np.zeros(0, np.uint8)


@dataclass(slots=True)
class _Memory:
    """Memory of a block of batches, or of a part of it, and what fills it."""

    filler: ImageFiller
    rows: Any
    masks: NDArray[Any] | None
    """The targets, if they are masks."""

    def __getitem__(self, rows: slice) -> _Memory:
        """Return that of some of the images."""
        return _Memory(self.filler, self.rows[rows], None if self.masks is None else self.masks[rows])


@dataclass(slots=True)
class _Pending:
    """A block of batches in progress."""

    memory: _Memory
    results: Results
    ends: list[int]
    """Row at which each batch ends."""
    part_size: int
    """Rows of each part but the last."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Rows of one batch, prepared by a thread."""

    samples: Int64
    """After replacing damaged ones."""
    targets: Any
    images: list[Any] | None
    """Transformed images; None: they are in the rows."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How much work is done at once."""

    threads: int
    prefetch: int
    """Batches prepared ahead of the consumer."""
    pinned: bool = False
    collation: str = "list"
    """What becomes of boxes (`loading.collate`)."""
    floats: Floats | None = None
    """Normalizes images; None: they stay as they are."""


class Pipeline:
    """Yields (images, targets, samples) for runs of samples (record + visit * `samplers.order.VISIT`).

    Images are uint8 (n, channels, height, width), or a dict of such with views.

    Args:
        filler: fills rows of a batch with images.
        targets: the targets of the records.
        batch_size: images in the largest batch.
        work: how much work is done at once.
        transforms: the user's functions of each image (channels, height, width) and target, after crop and flip.
        replacer: replaces damaged records; None: they are errors.
    """

    def __init__(
        self, filler: ImageFiller, targets: Targets, batch_size: int, work: Workload,
        transforms: Transforms | None = None, replacer: Replacer | None = None,
    ) -> None:  # fmt: skip
        self.filler = filler
        self.targets = targets
        self.batch_size = batch_size
        self.work = work
        self.transforms = transforms or Transforms()
        self.replacer, self.floats = replacer, work.floats
        self._row_bytes = self._bytes_of(filler)
        # a transform may be slow, so no batch should wait for others; views of a batch lie one after another
        fit = round(BLOCK_BYTES / (batch_size * self._row_bytes))
        alone = bool(self.transforms) or filler.has_views or filler.varies
        self._batches_a_block = 1 if alone else max(1, min(fit, BLOCK_BATCHES))
        # where the largest image of all says little of a batch, `_begin` makes it larger
        rows = 0 if filler.grows else self._batches_a_block * batch_size
        self._buffers = BufferPool(rows * self._row_bytes, work.pinned)
        self._has_masks = targets.are_masks and not filler.has_views and not self.transforms
        self._mask_bytes = math.prod(filler.output) * targets.mask_dtype.itemsize if self._has_masks else 0
        self._mask_buffers = BufferPool(max(1, self._batches_a_block * batch_size * self._mask_bytes), work.pinned)
        self._stage = "read" if filler.pack.manifest.encoding == "raw" else "decode"

    def _bytes_of(self, filler: ImageFiller) -> int:
        """Return the bytes of a row of a batch."""
        return filler.row_bytes if self.floats is None else 4 * filler.row_numbers

    @property
    def decoded_by(self) -> str:
        """What decodes JPEGs; "" for a raw pack."""
        return self.filler.decoded_by

    def with_filler(self, filler: ImageFiller) -> Pipeline:
        """Return one for other crops."""
        replacer = None if self.replacer is None else self.replacer.with_filler(filler)
        return Pipeline(filler, self.targets, self.batch_size, self.work, self.transforms, replacer)

    def with_host(self, host: Pipeline) -> Pipeline:
        """Return what prepares the batches of another host: that one."""
        return host

    def targets_of(self, records: Int64, params: CropParams) -> Any:
        """Return the targets of a batch whose images are prepared elsewhere."""
        targets = self.filler.targets_of(self.targets, records, params)
        if self.transforms.of_targets:
            nothing = [torch.empty(0)] * len(records)
            _, targets = self.transforms.batch(nothing, targets, self.filler.pack, records, (0, 0))
        return join_targets([targets], self.work.collation, params.output)

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[LoadedBatch]:
        """Yield one batch for each array of samples, in order. Exceptions in threads are raised here."""
        # small raw images are copied faster than a thread is woken: the consumer copies, too, instead of waiting
        helps = self._batches_a_block > 1 and self._stage == "read" and self.work.threads > 1 and can_help()
        threads = ThreadPool(self.work.threads - helps)
        pending: deque[_Pending] = deque()
        source = announced(batches, self.filler.pack)
        timeout_s = None
        try:
            threads.start()
            while True:
                while len(pending) <= self.work.prefetch and (block := list(islice(source, self._batches_a_block))):
                    pending.append(self._begin(threads, block, epoch, stats))
                if not pending:
                    return
                parts = pending[0].results.wait(threads if helps else None)
                yield from self._finish(pending.popleft(), parts, stats)
        except GeneratorExit:
            timeout_s = LEFT_S
            raise
        finally:
            threads.close(timeout_s)
            pending.clear()
            self._mask_buffers.trim(2 * self.work.prefetch + 4)
            self._buffers.trim(2 * self.work.prefetch + 4)  # in the threads, in flight, and with the consumer

    def _begin(self, threads: ThreadPool, block: list[Int64], epoch: int, stats: Stats) -> _Pending:
        samples = block[0] if len(block) == 1 else np.concatenate(block)
        filler = self.filler.for_batch(samples, epoch)
        size = len(samples) * self._bytes_of(filler)
        if size > self._buffers.size:  # a sampler may have more samples than in the epoch before
            self._buffers = BufferPool(size, self.work.pinned)
            self._mask_buffers = BufferPool(max(1, len(samples) * self._mask_bytes), self.work.pinned)
        rows = filler.shaped(self._buffers.take()[:size], len(samples), self.floats)
        memory = _Memory(filler, rows, self._take_masks(len(samples), filler.output))
        size, step = self._part_size(len(samples)), len(block[0])
        if len(block) > 1:
            size = -(-size // step) * step  # whole batches
        step = min(size, step)

        def fill(part: int) -> tuple[list[_Piece], Replacements]:
            rows = slice(part * size, (part + 1) * size)
            return self._fill(samples[rows], epoch, memory[rows], stats, step)

        results = threads.run(-(-len(samples) // size), fill)
        return _Pending(memory, results, list(accumulate(len(batch) for batch in block)), size)

    def _take_masks(self, count: int, output: tuple[int, int]) -> NDArray[Any] | None:
        if not self._has_masks:
            return None
        dtype = self.targets.mask_dtype
        masks: NDArray[Any] = self._mask_buffers.take()[: count * math.prod(output) * dtype.itemsize].view(dtype)
        return masks.reshape(count, *output)

    def _part_size(self, records: int) -> int:
        if self._stage == "decode" or self.transforms:
            even = -(-records // self.work.threads)
            return min(even, max(DECODED_A_PART, DECODED_BYTES // self._row_bytes))
        parts = max(1, min(self.work.threads, round(records * self._row_bytes / PART_BYTES)))
        return -(-records // parts)

    def _fill(
        self, samples: Int64, epoch: int, memory: _Memory, stats: Stats, step: int
    ) -> tuple[list[_Piece], Replacements]:
        """Fill rows with the images of samples, and return them in pieces of `step` rows."""
        try:
            return self._pieces(samples, epoch, memory, stats, step), ()
        except DamagedPack:
            if self.replacer is None:
                raise
            samples, replaced = self.replacer.stand_ins(samples, epoch)
            return self._pieces(samples, epoch, memory, stats, step), replaced

    def _pieces(self, samples: Int64, epoch: int, memory: _Memory, stats: Stats, step: int) -> list[_Piece]:
        started = time.perf_counter()
        params, records = memory.filler.params(samples, epoch), records_in(samples)
        if self.floats is None:
            memory.filler.fill(records, params, memory.rows)
        else:
            started += self._fill_floats(records, params, memory, stats)
        stats.add(self._stage, time.perf_counter() - started)
        cuts = [slice(start, start + step) for start in range(0, len(records), step)]
        if not self.targets.is_array or memory.filler.has_views or self.transforms:
            return [self._piece(samples[cut], params[cut], epoch, memory.rows[cut], stats) for cut in cuts]
        started = time.perf_counter()
        labels: Any = memory.filler.targets_of(self.targets, records, params, memory.masks)
        stats.add("targets", time.perf_counter() - started)
        return [_Piece(samples[cut], labels[cut], None) for cut in cuts]

    def _fill_floats(self, records: Int64, params: CropParams, memory: _Memory, stats: Stats) -> float:
        """Fill rows with normalized images, a few at a time while they are in the cache; return the seconds it took."""
        assert self.floats is not None
        filler = memory.filler
        scratch, seconds = np.empty(min(len(records), FLOATS_AT_ONCE) * filler.row_bytes, np.uint8), 0.0
        for start in range(0, len(records), FLOATS_AT_ONCE):
            some = slice(start, start + FLOATS_AT_ONCE)
            count = len(records[some])
            stored = filler.shaped(scratch[: count * filler.row_bytes], count)
            filler.fill(records[some], params[some], stored)
            filled = time.perf_counter()
            filler.normalize(stored, memory.rows[some], self.floats)
            seconds += time.perf_counter() - filled
        stats.add("copy", seconds)
        return seconds

    def _piece(self, samples: Int64, params: CropParams, epoch: int, rows: Any, stats: Stats) -> _Piece:
        started, records = time.perf_counter(), records_in(samples)
        targets = self.filler.targets_of(self.targets, records, params)
        made = time.perf_counter()
        stats.add("targets", made - started)
        if not self.transforms:
            return _Piece(samples, targets, None)
        seen = (torch.from_numpy(row).permute(2, 0, 1) for row in rows)
        seed = (self.filler.augmentation.seed, epoch)
        images, targets = self.transforms.batch(seen, targets, self.filler.pack, samples, seed)
        stats.add("transform", time.perf_counter() - made)
        return _Piece(samples, targets, None if self.transforms.in_place else images)

    def _finish(self, block: _Pending, parts: list[Any], stats: Stats) -> Iterator[LoadedBatch]:
        """Yield the batches of a block whose parts are done."""
        replaced = [(n * block.part_size + row, what) for n, (_, some) in enumerate(parts) for row, what in some]
        pieces = iter([piece for some, _ in parts for piece in some])
        rows, masks, ends = block.memory.rows, block.memory.masks, block.ends
        block.memory = _Memory(self.filler, _NOTHING, None)  # from here on only the batches refer to the memory
        for start, end in zip([0, *ends], ends, strict=False):
            mine = [next(pieces)]
            while sum(len(piece.samples) for piece in mine) < end - start:
                mine.append(next(pieces))
            stats.images += end - start
            stats.batches += 1
            if replaced and self.replacer is not None:
                self.replacer.report([what for row, what in replaced if start <= row < end], stats)
            # a separate tensor for each batch, so that saving or sending one does not include the whole block
            if self.transforms.of_images and not self.transforms.in_place:
                images = stack_images([image for piece in mine for image in piece.images or ()])
            else:
                images = self.filler.tensors(rows[start:end], self.floats is not None and self.floats.planar)
            if masks is not None:
                targets: Any = torch.from_numpy(masks[start:end])
            else:
                targets = join_targets([piece.targets for piece in mine], self.work.collation, sizes_in(images))
            yield images, targets, np.concatenate([piece.samples for piece in mine]) if mine[1:] else mine[0].samples
