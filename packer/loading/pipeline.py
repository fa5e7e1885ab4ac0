"""Makes batches on the CPU: threads fill parts of several batches ahead, in order, into memory that is used again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from packer.loading.buffers import BufferPool
from packer.loading.moved import batched
from packer.loading.readahead import announced
from packer.loading.rows import Placement, RowFiller
from packer.loading.stats import Stats
from packer.sample import Int64

PART_BYTES = 1 << 20
"""A part of a batch is at least that large: handing out a smaller one costs more than another thread gains."""
DECODED_A_PART = 16

Transform = Callable[[torch.Tensor], Any]
TargetsOf = Callable[[Int64, Placement], Any]


@dataclass(slots=True)
class _Pending:
    """A batch that threads are working on."""

    rows: NDArray[Any]
    parts: list[Future[Any]]


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
        self, filler: RowFiller, targets_of: TargetsOf, batch_size: int, work: Work, transform: Transform | None = None
    ) -> None:
        """Args: what fills images; what makes targets; images of the largest batch; how much at once; the user's
        function of each image (channels, height, width), after crop and flip."""
        self.filler = filler
        self.targets_of = targets_of
        self.work = work
        self.transform = transform
        height, width, channels = filler.row_shape
        self._row_bytes: int = height * width * channels * filler.dtype.itemsize
        self._pool = BufferPool(batch_size * self._row_bytes, work.pinned)
        self._stage = "read" if filler.pack.record_bytes is not None else "decode"

    def run(self, batches: Iterable[Int64], epoch: int, stats: Stats) -> Iterator[tuple[torch.Tensor, Any]]:
        """One batch for each array of record numbers, in order. What a thread raises is raised here."""
        own_threads = torch.get_num_threads()
        threads = ThreadPoolExecutor(self.work.threads, "packer", _one_torch_thread, (own_threads,))
        pending: deque[_Pending] = deque()
        source = announced(batches, self.filler.pack)
        try:
            while True:
                while len(pending) <= self.work.prefetch and (records := next(source, None)) is not None:
                    pending.append(self._begin(threads, records, epoch, stats))
                if not pending:
                    return
                yield self._finish(pending.popleft(), stats)
        finally:
            for batch in pending:
                for part in batch.parts:
                    part.cancel()
            threads.shutdown(wait=True, cancel_futures=True)
            pending.clear()
            self._pool.trim(2 * self.work.prefetch + 4)  # in the threads, on their way, and with the consumer

    def _begin(self, threads: ThreadPoolExecutor, records: Int64, epoch: int, stats: Stats) -> _Pending:
        rows = self._pool.take()[: len(records) * self._row_bytes]
        shaped = rows.view(self.filler.dtype).reshape(len(records), *self.filler.row_shape)
        size = self._part_size(len(records))
        parts = [
            threads.submit(self._fill, records[start : start + size], epoch, shaped[start : start + size], stats)
            for start in range(0, len(records), size)
        ]
        return _Pending(shaped, parts)

    def _part_size(self, records: int) -> int:
        even = -(-records // self.work.threads)
        if self._stage == "decode":
            return min(even, DECODED_A_PART)
        return max(even, min(records, PART_BYTES // self._row_bytes), 1)

    def _fill(self, records: Int64, epoch: int, rows: NDArray[Any], stats: Stats) -> Any:
        started = time.perf_counter()
        placement = self.filler.placement(records, epoch)
        self.filler.fill(records, placement, rows)
        filled = time.perf_counter()
        stats.add(self._stage, filled - started)
        targets = self.targets_of(records, placement)
        made = time.perf_counter()
        stats.add("targets", made - filled)
        if self.transform is None:
            return targets, None
        images = [self.transform(torch.from_numpy(row).permute(2, 0, 1)) for row in rows]
        stats.add("transform", time.perf_counter() - made)
        return targets, images

    def _finish(self, batch: _Pending, stats: Stats) -> tuple[torch.Tensor, Any]:
        parts = [part.result() for part in batch.parts]
        stats.images += len(batch.rows)
        stats.batches += 1
        if self.transform is None:
            images = torch.from_numpy(batch.rows).permute(0, 3, 1, 2)
        else:
            images = torch.stack([image for _, transformed in parts for image in transformed])
        return images, batched([targets for targets, _ in parts])


def _one_torch_thread(own_threads: int) -> None:
    """Each of our threads is one: torch would start as many again in each of them."""
    torch.get_num_threads()  # takes the default, which would otherwise overrule the next line at the first use
    torch.set_num_threads(1)  # of this thread; but it is also the default of all threads that start from now on
    restore = threading.Thread(target=torch.set_num_threads, args=(own_threads,))
    restore.start()
    restore.join()
