"""Makes batches on the CPU: threads fill parts of several batches ahead, in order, into memory that is used again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import DamagedPack, noted
from packer.loading.buffers import BufferPool
from packer.loading.collate import stacked
from packer.loading.crew import Crew, Parts
from packer.loading.moved import batched
from packer.loading.readahead import announced
from packer.loading.replace import Places, Replacer
from packer.loading.rows import Placement, RowFiller
from packer.loading.stats import Stats
from packer.sample import Int64

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

Transform = Callable[[torch.Tensor], Any]
TargetsOf = Callable[[Int64, Placement], Any]


_NOTHING: NDArray[Any] = np.zeros(0, np.uint8)


@dataclass(slots=True)
class _Pending:
    """A block of batches that threads are working on."""

    rows: NDArray[Any]
    parts: Parts
    ends: list[int]
    """Row at which each batch ends."""
    part_size: int
    """Rows of each part but the last."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much is done at once."""

    threads: int
    prefetch: int
    """Batches that are made ahead of the consumer."""
    pinned: bool = False


class Pipeline:
    """Yields (images, targets) for runs of record numbers; the images uint8 (n, channels, height, width)."""

    def __init__(
        self, filler: RowFiller, targets_of: TargetsOf, batch_size: int, work: Work,
        transform: Transform | None = None, replacer: Replacer | None = None,
    ) -> None:  # fmt: skip
        """Args: what fills images; what makes targets; images of the largest batch; how much at once; the user's
        function of each image (channels, height, width), after crop and flip; what finds others for bad records."""
        self.filler = filler
        self.targets_of = targets_of
        self.work = work
        self.transform = transform
        self.replacer = replacer
        height, width, channels = filler.row_shape
        self._row_bytes: int = height * width * channels * filler.dtype.itemsize
        # a transform may take long: then nobody should wait for more than one batch
        fit = round(BLOCK_BYTES / (batch_size * self._row_bytes))
        self._batches_a_block = 1 if transform else max(1, min(fit, BLOCK_BATCHES))
        self._pool = BufferPool(self._batches_a_block * batch_size * self._row_bytes, work.pinned)
        self._stage = "read" if filler.pack.manifest.encoding == "raw" else "decode"

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[tuple[torch.Tensor, Any]]:
        """One batch for each array of record numbers, in order. What a thread raises is raised here."""
        crew = Crew(self.work.threads)
        pending: deque[_Pending] = deque()
        source = announced(batches, self.filler.pack)
        wait = True
        try:
            while True:
                while len(pending) <= self.work.prefetch and (block := list(islice(source, self._batches_a_block))):
                    pending.append(self._begin(crew, block, epoch, stats))
                if not pending:
                    return
                yield from self._finish(pending.popleft(), stats)
        except GeneratorExit:
            # maybe the garbage collector, in one of these very threads, or where somebody holds a lock that they need
            wait = False
            raise
        finally:
            crew.close(wait)
            pending.clear()
            self._pool.trim(2 * self.work.prefetch + 4)  # in the threads, on their way, and with the consumer

    def _begin(self, crew: Crew, block: list[Int64], epoch: int, stats: Stats) -> _Pending:
        records = block[0] if len(block) == 1 else np.concatenate(block)
        rows = self._pool.take()[: len(records) * self._row_bytes]
        shaped = rows.view(self.filler.dtype).reshape(len(records), *self.filler.row_shape)
        size = self._part_size(len(records))

        def fill(part: int) -> Any:
            rows = slice(part * size, (part + 1) * size)
            return self._fill(records[rows], epoch, shaped[rows], stats)

        parts = crew.do(-(-len(records) // size), fill)
        return _Pending(shaped, parts, list(accumulate(len(batch) for batch in block)), size)

    def _part_size(self, records: int) -> int:
        if self._stage == "decode" or self.transform is not None:
            even = -(-records // self.work.threads)
            return min(even, max(DECODED_A_PART, DECODED_BYTES // self._row_bytes))
        parts = max(1, min(self.work.threads, round(records * self._row_bytes / PART_BYTES)))
        return -(-records // parts)

    def _fill(self, records: Int64, epoch: int, rows: NDArray[Any], stats: Stats) -> Any:
        started = time.perf_counter()
        placement = self.filler.placement(records, epoch)
        places: Places = ()
        try:
            self.filler.fill(records, placement, rows)
        except DamagedPack:
            if self.replacer is None:
                raise
            records, places = self.replacer.stand_ins(records, epoch)
            placement = self.filler.placement(records, epoch)
            self.filler.fill(records, placement, rows)
        filled = time.perf_counter()
        stats.add(self._stage, filled - started)
        targets = self.targets_of(records, placement)
        made = time.perf_counter()
        stats.add("targets", made - filled)
        if self.transform is None:
            return targets, None, places
        images: list[Any] = []
        try:
            for row in rows:
                images.append(self.transform(torch.from_numpy(row).permute(2, 0, 1)))
        except Exception as error:
            pack = self.filler.pack
            noted(error, f"in the transform of record {pack.key(int(records[len(images)]))} of {pack.path}")
            raise
        stats.add("transform", time.perf_counter() - made)
        return targets, images, places

    def _finish(self, block: _Pending, stats: Stats) -> Iterator[tuple[torch.Tensor, Any]]:
        """The batches of a block whose parts are done, or as soon as they are."""
        parts = block.parts.wait()
        targets = batched([targets for targets, _, _ in parts])
        replaced = [(n * block.part_size + row, what) for n, (_, _, places) in enumerate(parts) for row, what in places]
        images: Any
        if self.transform is None:
            images = torch.from_numpy(block.rows).permute(0, 3, 1, 2)
        else:
            images = [image for _, transformed, _ in parts for image in transformed]
        ends = block.ends
        block.rows = _NOTHING  # from here on only the batches keep the memory
        for start, end in zip([0, *ends], ends, strict=False):
            stats.images += end - start
            stats.batches += 1
            if replaced and self.replacer is not None:
                self.replacer.report([what for row, what in replaced if start <= row < end], stats)
            part = images[start:end]
            yield part if self.transform is None else stacked(part), targets[start:end]
