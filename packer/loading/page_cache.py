"""Reads records ahead into the page cache, or all of a pack into memory (``cache="ram"``).

The kernel cannot prefetch them by itself, because it does not know the order.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import compress, islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from packer.errors import PackerError, UsageError, size_text
from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.format.pack_files import PackFiles
from packer.model.annotation import Int64
from packer.samplers import BlockShuffleSampler, Sampler, SequentialSampler
from packer.samplers.order import SortedPackWarning, records_in
from packer.stores.blocks import BlockLayout
from packer.system import available_bytes
from packer.system.locks import Locked

if TYPE_CHECKING:
    from packer.format.remote import PinnedBlocks, Remote


class Closable(Protocol):
    """What holds something until it is closed."""

    def close(self) -> None:
        """Hold it no longer."""


@dataclass
class _Window:
    stop: int
    """The position at which it ends."""
    held: list[Closable]
    has_ended: bool = False
    is_open: bool = True

    def close(self) -> None:
        for one in self.held:
            one.close()
        self.is_open = False


class WindowedBatches(Iterator[Int64]):
    """Batches of samples, and the windows that they are from.

    Args:
        batches: of the sampler.
        sampler: its windows.
        epoch: of the batches.
        position: the global position at which the first batch begins.
        step: global positions in a batch.
    """

    def __init__(
        self, batches: Iterator[Int64], sampler: BlockShuffleSampler, epoch: int, position: int, step: int
    ) -> None:
        self._batches, self._sampler, self._epoch = batches, sampler, epoch
        self._position, self._step = position, step

    def __next__(self) -> Int64:
        records = next(self._batches)
        self._position += self._step
        return records

    def ahead(self, ask: Callable[[Int64], list[Closable]]) -> Generator[list[_Window]]:
        """Ask for the records of windows: of those that the last batch has reached, and of the next one in advance.

        So two windows are asked for at any time (of each canonical node), unless they are small.

        Args:
            ask: Asks for records, and returns what holds them.

        Yields:
            After each batch, what holds the windows that end in it.
        """
        ranks, most = self._sampler.ranks_per_window, 2 * len(self._sampler.canonical_nodes)
        share = self._sampler.rank % ranks / ranks  # so that ranks of a machine do not all ask for the same first
        windows = self._sampler.windows(self._epoch)
        following = next(windows, None)
        begun: list[_Window] = []
        start = self._position - self._step
        try:
            while True:
                while following and (following[0] < self._position or sum(one.is_open for one in begun) < most):
                    _, stop, runs = following
                    if stop > start:
                        runs = np.roll(runs, -int(share * len(runs)), axis=0)
                        begun.append(_Window(stop, ask(np.concatenate([np.arange(*run) for run in runs.tolist()]))))
                    following = next(windows, None)
                ended = [one for one in begun if one.stop <= self._position and not one.has_ended]
                for one in ended:
                    one.has_ended = True
                yield ended
                begun = [one for one in begun if one.is_open]
        finally:
            for one in begun:
                one.close()


BEHIND_BATCHES = 4
AHEAD_BYTES = 64 * 1024**2
"""Enough for a disk to sort many requests at once, little enough to stay in any page cache."""
LEAD_BATCHES = 4
WARM = 0.98
SAMPLED_RECORDS = 64


def announced(batches: Iterable[Int64], pack: Pack) -> Iterator[Int64]:
    """Yield the same samples, requesting their bytes AHEAD_BYTES in advance: from the disk, or from the store.

    Blocks from a store stay until they are used; if the cache can hold the pack, those of a block shuffle are requested
    window by window. Do nothing for packs that are in the page cache already, which is checked once, at the start.
    """
    ahead_of: dict[PackFiles, _Ahead] = {}
    source = iter(batches)
    waiting: deque[tuple[Int64, int, list[Closable]]] = deque()
    used: deque[tuple[int, list[Closable]]] = deque()
    ahead, behind, lead = 0, 0, 2

    def ask(records: Int64, later: bool = False) -> tuple[int, list[Closable]]:
        """Ask for records; return their bytes, and what holds them."""
        size, held = 0, list[Closable]()
        for files, its in pack.reader.by_files(records_in(records)):
            if not later or ahead_of[files].takes_windows:
                places = pack.reader.own_places(its)
                size += int(places[1].sum())
                held += ahead_of[files].ask(*places, later)
        return size, held

    windows = (
        batches.ahead(lambda records: ask(records, later=True)[1]) if isinstance(batches, WindowedBatches) else None
    )
    try:
        for one in pack.reader.files:
            ahead_of[one] = _Ahead(pack, one)
        if all(each.has_nothing_to_do for each in ahead_of.values()):
            yield from source
            return
        while True:
            for each in ahead_of.values():
                each.look()
            # the lead grows by more batches with each batch, so that the first one does not wait
            for _ in range(lead):
                if (waiting and ahead > AHEAD_BYTES) or (records := next(source, None)) is None:
                    break
                size, held = ask(records)
                if windows is not None and any(each.takes_windows for each in ahead_of.values()):
                    held += next(windows)
                waiting.append((records, size, held))
                ahead += size
            if not waiting:
                return
            following, size, held = waiting.popleft()
            used.append((size, held))
            ahead, behind, lead = ahead - size, behind + size, min(2 * lead, LEAD_BATCHES)
            yield following
            # threads hold what they read, but they may not have begun
            while len(used) > BEHIND_BATCHES and behind > AHEAD_BYTES:
                size, held = used.popleft()
                behind -= size
                _close(held)
    finally:
        if windows is not None:
            windows.close()
        for each in ahead_of.values():
            each.close()
        for held in (*(held for _, _, held in waiting), *(held for _, held in used)):
            _close(held)


def _sample(files: PackFiles) -> Int64:
    """Return an even sample of the records in the files of a pack."""
    count = min(SAMPLED_RECORDS, files.manifest.records)
    return np.linspace(files.first_record, files.end - 1, count).astype(np.int64)


def _close(held: Iterable[Closable]) -> None:
    for one in held:
        one.close()


class _Ahead:
    """Asks for the bytes in the files of one pack in advance."""

    def __init__(self, pack: Pack, files: PackFiles) -> None:
        self._pack, self._files, self._remote = pack, files, files.remote
        self._everything: PinnedBlocks | None = None
        self._is_here = self._remote is None
        self._is_cold: bool | None = None
        if self._remote is None:
            self.look()
        else:
            self._everything = self._remote.all_pinned() if self._remote.fits() else None
            self._token = self._remote.fetcher.begin()

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the pack is on this machine, and in memory."""
        return self._remote is None and not self._is_cold

    def look(self) -> None:
        """Look whether the pack is on this machine now, and if it is, once whether it is in memory."""
        if self._remote is not None:
            self._is_here = self._everything is not None and self._pack.reader.note_whole(self._files)
        if self._is_here and self._is_cold is None:
            sample = self._pack.reader.own_places(_sample(self._files))[0]
            self._is_cold = self._files.region.share_in_memory(sample) < WARM

    @property
    def takes_windows(self) -> bool:
        """Whether the pack is in a store, not all of it is here, and the cache holds all that is fetched early."""
        return self._everything is not None and not self._is_here

    def ask(self, offsets: Int64, sizes: Int64, later: bool = False) -> list[Closable]:
        """Ask for byte ranges, `later` than for others, and return what holds those that would be evicted."""
        if self._remote is not None and not self._is_here:
            blocks = self._remote.blocks_of(offsets, sizes)
            held: list[Closable] = [] if self._everything is not None else [self._remote.pinned(blocks)]
            self._remote.fetcher.announce(blocks, later)
            return held
        if self._is_cold:
            self._files.region.fetch(offsets, sizes)
        return []

    def close(self) -> None:
        """Ask for nothing more, and hold nothing."""
        if self._remote is not None:
            self._remote.fetcher.end(self._token)
        if self._everything is not None:
            self._everything.close()


def check_cache(pack: Pack, sampler: Sampler, batch_size: int) -> None:
    """Raise UsageError if the cache of remote packs cannot hold what an order needs at once: of several, all."""
    remotes = [one.remote for one in pack.reader.files if one.remote is not None and one.remote.limit]
    total = sum(sum(remote.blocks.layout.sizes) for remote in remotes)
    room = int(min((remote.room() for remote in remotes), default=0))
    if total <= room or not remotes:
        return
    if pack.reader.remote is None:
        problem = f"leaves {size_text(max(0, room))} for images, but these packs have {size_text(total)}"
        raise UsageError("cache_bytes", problem, f"pass cache_bytes={total + (remotes[0].limit or 0) - room} or more")
    remote = pack.reader.remote
    each = int(pack.reader.approximate_extents(_sample(pack.reader.files[0])[:, None] + np.arange(2))[1].mean())
    batches = 2 * (LEAD_BATCHES + BEHIND_BATCHES) * batch_size * each
    span = 2 * AHEAD_BYTES + batches
    if (need := _bytes_needed(pack, remote, sampler, span)) > room:
        enough = min(need + need // 4, sum(remote.blocks.layout.sizes))  # other epochs need a little more
        step = f"pass cache_bytes={enough + (remote.limit or 0) - room} or more"
        if not isinstance(sampler, BlockShuffleSampler):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SortedPackWarning)
                less = _bytes_needed(pack, remote, BlockShuffleSampler(pack, sampler.seed), span)
            step += f", or BlockShuffleSampler, which needs {size_text(less)}" if less < need else ""
        problem = f"leaves {size_text(max(0, room))} for images, but this order needs {size_text(need)} at a time"
        raise UsageError("cache_bytes", problem, step)


def _bytes_needed(pack: Pack, remote: Remote, sampler: Sampler, span: int) -> int:
    """Return how many bytes of a pack must be in the cache for an order of which each rank reads `span` at a time."""
    layout = remote.blocks.layout
    extent_bytes = np.bincount(layout.extents, layout.block_sizes).astype(np.int64)
    total = int(extent_bytes.sum())
    if isinstance(sampler, SequentialSampler):
        return min(total, span * sampler.world_size + 4 * BlockLayout.EXTENT_BLOCKS * BlockLayout.BLOCK_BYTES)
    if not isinstance(sampler, BlockShuffleSampler):
        return total
    span *= sampler.ranks_per_window
    most, windows = 0, sampler.windows()
    places, extents = np.empty((3, 0), np.int64), list[Int64]()  # start, stop and bytes of each window at hand
    while begun := list(islice(windows, len(sampler.canonical_nodes))):  # about one of each
        starts, stops, sizes = places
        # what was read after a window: those that began after its end, and have ended
        read = np.cumsum(np.where(stops <= begun[0][0], sizes, 0)[::-1])[::-1]
        near = np.append(read, 0)[np.searchsorted(starts, stops)] <= span
        places, extents = places[:, near], list(compress(extents, near))
        for start, stop, runs in begun:
            where = pack.reader.approximate_extents(runs)
            extents.append(remote.extents_of(remote.blocks_of(*where)))
            places = np.append(places, [[start], [stop], [int(where[1].sum())]], axis=1)
        most = max(most, int(extent_bytes[np.unique(np.concatenate(extents))].sum()))
    return most


STEP_BYTES = 32 * 1024**2


class RamCache:
    """Reads a pack's shards sequentially in the background.

    The pages are locked if the limit on locked memory (``ulimit -l``) allows it; else they stay until the kernel
    needs the memory. The thread ends with its owner, and unlocks them. What cannot be read is left out: whoever reads
    those records gets the error.

    Raises:
        UsageError: if the pack does not fit into the free memory.
    """

    def __init__(self, pack: Pack) -> None:
        need, free = sum(len(one.reader.region) for one in pack.packs), available_bytes()
        if need > free:
            raise UsageError(
                pack.path, f"has {size_text(need)}, but only {size_text(free)} of memory is free",
                'leave out cache="ram": the page cache keeps what fits',
            )  # fmt: skip
        if any(one.reader.remote is not None and not one.reader.remote.fits() for one in pack.packs):
            raise UsageError("cache_bytes", f"is less than the {size_text(need)} of the pack", 'leave out cache="ram"')
        stop: SimpleQueue[None] = SimpleQueue()
        self._read = threading.Event()
        arguments = [(one.reader.region, one.reader.remote) for one in pack.packs], stop, self._read
        self._thread = threading.Thread(target=_keep, args=arguments, name="packer-ram", daemon=True)
        self._thread.start()
        # no lock and no join: the garbage collector may call this in the same thread, or while a lock is held
        self.close = weakref.finalize(self, stop.put, None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is read that can be; return False if it takes longer than `timeout_s`."""
        return self._read.wait(timeout_s)


class _Owners(Locked):
    """Counts the threads that keep each region locked: locks of memory do not add up.

    A forked child has neither the threads nor the locks of memory.
    """

    def _reset(self) -> None:
        super()._reset()
        self._counts: WeakKeyDictionary[Region, int] = WeakKeyDictionary()

    @contextmanager
    def including(self, regions: list[Region]) -> Iterator[None]:
        """Return a context in which the calling thread is one of them; unlock regions that nobody keeps after it."""
        with self.lock:
            for region in regions:
                self._counts[region] = self._counts.get(region, 0) + 1
        try:
            yield
        finally:
            with self.lock:
                for region in regions:
                    self._counts[region] -= 1
                    if not self._counts[region]:
                        region.unlock()


_owners = _Owners()


def _keep(packs: list[tuple[Region, Remote | None]], stop: SimpleQueue[None], done: threading.Event) -> None:
    held: list[PinnedBlocks] = []
    try:
        for _, remote in packs:
            if remote is not None:
                held.append(remote.all_pinned())
                _fetch_all(remote, stop)
        with _owners.including([region for region, _ in packs]):
            locked = True
            for region, _ in packs:
                for start in range(0, len(region), STEP_BYTES):
                    if not stop.empty():
                        break
                    locked = region.read(start, min(start + STEP_BYTES, len(region)), locked)
            done.set()
            stop.get()
    finally:
        done.set()  # an error must not leave anyone waiting
        for one in held:
            one.close()


def _fetch_all(remote: Remote, stop: SimpleQueue[None]) -> None:
    """Fetch a whole remote pack, up to the first error: whoever reads those records gets it."""
    step = max(1, STEP_BYTES // BlockLayout.BLOCK_BYTES)
    blocks = np.arange(remote.blocks.layout.num_blocks)
    with suppress(PackerError):
        for start in range(0, len(blocks), step):
            if not stop.empty():
                break
            remote.fetcher.announce(blocks[start : start + 2 * step])
            with remote.held(blocks[start : start + step]):
                pass
