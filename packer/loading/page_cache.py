"""Reads a pack into the page cache: the records of the next batches, or the whole pack (``cache="ram"``).

The kernel cannot prefetch these by itself, because it does not know the order.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from packer.errors import PackerError, UsageError, size_text
from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.samplers import BlockShuffleSampler, Sampler, SequentialSampler
from packer.samplers.order import SortedPackWarning
from packer.stores.layout import Layout
from packer.system import available_bytes
from packer.types import Int64

if TYPE_CHECKING:
    from packer.format.remote import Held, Remote

BEHIND_BATCHES = 4
AHEAD_BYTES = 64 * 1024**2
"""Enough for a disk to sort many requests at once, little enough to stay in any page cache."""
LEAD_BATCHES = 4
WARM = 0.98
STEP_BYTES = 32 * 1024**2


def announced(batches: Iterable[Int64], pack: Pack) -> Iterator[Int64]:
    """Yield the same record numbers, requesting their bytes from the disk AHEAD_BYTES in advance.

    Do nothing if the pack is in the page cache already, which is checked once, at the start.
    """
    if pack.remote is not None:
        yield from _fetched(batches, pack, pack.remote)
        return
    if pack.region.share_in_memory(pack.offsets) >= WARM:
        yield from batches
        return
    source = iter(batches)
    waiting: deque[tuple[Int64, int]] = deque()
    ahead = 0
    while True:
        # the lead grows by a few batches with each batch, so that the first one does not wait
        for _ in range(LEAD_BATCHES):
            if (waiting and ahead > AHEAD_BYTES) or (records := next(source, None)) is None:
                break
            sizes = pack.sizes[records]
            pack.region.fetch(pack.offsets[records], sizes)
            waiting.append((records, int(sizes.sum())))
            ahead += waiting[-1][1]
        if not waiting:
            return
        following, size = waiting.popleft()
        ahead -= size
        yield following


def _fetched(batches: Iterable[Int64], pack: Pack, remote: Remote) -> Iterator[Int64]:
    """Yield the same record numbers, asking the store for their blocks in advance, which stay until they are used."""
    source = iter(batches)
    waiting: deque[tuple[Int64, int, Held | None]] = deque()
    used: deque[tuple[int, Held | None]] = deque()
    everything = remote.all_pinned() if remote.fits() else None
    token, ahead, behind, cold = remote.begin(), 0, 0, None
    try:
        while True:
            whole = everything is not None and pack.note_whole(remote)
            if whole and cold is None:
                cold = pack.region.share_in_memory(pack.offsets) < WARM
            for _ in range(LEAD_BATCHES):
                if (waiting and ahead > AHEAD_BYTES) or (records := next(source, None)) is None:
                    break
                size, held = int(pack.sizes[records].sum()), None
                if not whole:
                    blocks = remote.blocks_of(pack.offsets[records], pack.sizes[records])
                    held = None if everything is not None else remote.pinned(blocks)
                    remote.announce(blocks)
                elif cold:  # in the cache, but not in memory any more
                    pack.region.fetch(pack.offsets[records], pack.sizes[records])
                waiting.append((records, size, held))
                ahead += size
            if not waiting:
                return
            following, size, held = waiting.popleft()
            used.append((size, held))
            ahead, behind = ahead - size, behind + size
            yield following
            # threads hold what they read, but they may not have begun
            while len(used) > BEHIND_BATCHES and behind > AHEAD_BYTES:
                size, held = used.popleft()
                behind -= size
                if held is not None:
                    held.close()
    finally:
        remote.end(token)
        for held in (everything, *(held for _, _, held in waiting), *(held for _, held in used)):
            if held is not None:
                held.close()


def check_cache(pack: Pack, sampler: Sampler, batch_size: int) -> None:
    """Raise UsageError if the cache of a remote pack cannot hold what an order needs at once."""
    remote = pack.remote
    if remote is None or not remote.limit or remote.fits():
        return
    room = int(remote.room())
    batches = (2 * (LEAD_BATCHES + BEHIND_BATCHES) * batch_size * int(pack.sizes.sum())) // len(pack)
    span = 2 * AHEAD_BYTES + batches
    if (need := _needed(pack, remote, sampler, span)) > room:
        step = f"pass cache_bytes={need + remote.limit - room} or more"
        if not isinstance(sampler, BlockShuffleSampler):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SortedPackWarning)
                less = _needed(pack, remote, BlockShuffleSampler(pack, sampler.seed), span)
            step += f", or BlockShuffleSampler, which needs {size_text(less)}" if less < need else ""
        problem = f"leaves {size_text(max(0, room))} for images, but this order needs {size_text(need)} at a time"
        raise UsageError("cache_bytes", problem, step)


def _needed(pack: Pack, remote: Remote, sampler: Sampler, span: int) -> int:
    """Return how many bytes of a pack must be in the cache for an order that reads `span` at a time."""
    layout = remote.blocks.layout
    extent_bytes = np.bincount(layout.extents, layout.block_sizes).astype(np.int64)
    total = int(extent_bytes.sum())
    if isinstance(sampler, SequentialSampler):
        return min(total, span + 4 * Layout.EXTENT_BLOCKS * Layout.BLOCK_BYTES)
    if not isinstance(sampler, BlockShuffleSampler):
        return total
    most, here = 0, deque[tuple[Int64, int]]()
    for _, runs in sampler.windows():
        records = np.concatenate([np.arange(first, stop) for first, stop in runs.tolist()])
        blocks = remote.blocks_of(pack.offsets[records], pack.sizes[records])
        here.append((remote.extents_of(blocks), int(pack.sizes[records].sum())))
        while sum(read for _, read in here) - here[0][1] - here[-1][1] > span:
            here.popleft()
        most = max(most, int(extent_bytes[np.unique(np.concatenate([some for some, _ in here]))].sum()))
    return most


class RamCache:
    """Reads a pack's shards sequentially in the background.

    The pages are locked if the limit on locked memory (``ulimit -l``) allows it; else they stay until the kernel
    needs the memory. The thread ends with its owner, and unlocks them.

    Raises:
        UsageError: if the pack does not fit into the free memory.
    """

    def __init__(self, pack: Pack) -> None:
        need, free = len(pack.region), available_bytes()
        if need > free:
            raise UsageError(
                pack.path, f"has {size_text(need)}, but only {size_text(free)} of memory is free",
                'leave out cache="ram": the page cache keeps what fits',
            )  # fmt: skip
        if pack.remote is not None and not pack.remote.fits():
            raise UsageError("cache_bytes", f"is less than the {size_text(need)} of the pack", 'leave out cache="ram"')
        stop: SimpleQueue[None] = SimpleQueue()
        self._read = threading.Event()
        arguments = pack.region, pack.remote, stop, self._read
        self._thread = threading.Thread(target=_keep, args=arguments, name="packer-ram", daemon=True)
        self._thread.start()
        # no lock and no join: the garbage collector may call this in the same thread, or while a lock is held
        self.close = weakref.finalize(self, stop.put, None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is read; return False if it takes longer than `timeout_s`."""
        return self._read.wait(timeout_s)


_owners: WeakKeyDictionary[Region, int] = WeakKeyDictionary()
"""Number of threads that keep each region locked: locks of memory do not add up."""
_lock = threading.Lock()


def _keep(region: Region, remote: Remote | None, stop: SimpleQueue[None], done: threading.Event) -> None:
    held = None if remote is None else _all_fetched(remote, stop)
    with _lock:
        _owners[region] = _owners.get(region, 0) + 1
    locked = True
    for start in range(0, len(region), STEP_BYTES):
        if not stop.empty():
            break
        locked = region.read(start, min(start + STEP_BYTES, len(region)), locked)
    done.set()
    stop.get()
    with _lock:
        _owners[region] -= 1
        if not _owners[region]:
            region.unlock()
    if held is not None:
        held.close()


def _all_fetched(remote: Remote, stop: SimpleQueue[None]) -> Held:
    """Fetch a whole remote pack, and return a context in which it stays."""
    held = remote.all_pinned()
    step = max(1, STEP_BYTES // Layout.BLOCK_BYTES)
    blocks = np.arange(remote.blocks.layout.num_blocks)
    for start in range(0, len(blocks), step):
        if not stop.empty():
            break
        remote.announce(blocks[start : start + 2 * step])
        try:
            with remote.held(blocks[start : start + step]):
                pass
        except PackerError:
            break  # who reads those records gets the error
    return held
