"""Reads the records of the next batches into the page cache.

The kernel cannot prefetch them by itself, because it does not know the order.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import compress, islice
from typing import TYPE_CHECKING

import numpy as np

from packer.errors import UsageError, size_text
from packer.format.pack import Pack
from packer.format.pack_files import PackFiles
from packer.loading.windows import Closable, InWindows
from packer.model.annotation import Int64
from packer.samplers import BlockShuffleSampler, Sampler, SequentialSampler
from packer.samplers.order import SortedPackWarning
from packer.stores.layout import Layout

if TYPE_CHECKING:
    from packer.format.remote import Held, Remote

BEHIND_BATCHES = 4
AHEAD_BYTES = 64 * 1024**2
"""Enough for a disk to sort many requests at once, little enough to stay in any page cache."""
LEAD_BATCHES = 4
WARM = 0.98
SAMPLED_RECORDS = 64


def announced(batches: Iterable[Int64], pack: Pack) -> Iterator[Int64]:
    """Yield the same record numbers, requesting their bytes AHEAD_BYTES in advance: from the disk, or from the store.

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
        for files, its in pack.by_files(records):
            if not later or ahead_of[files].takes_windows:
                places = pack.own_places(its)
                size += int(places[1].sum())
                held += ahead_of[files].ask(*places, later)
        return size, held

    windows = batches.ahead(lambda records: ask(records, later=True)[1]) if isinstance(batches, InWindows) else None
    try:
        for one in pack.files:
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


def _share_in_memory(pack: Pack, files: PackFiles) -> float:
    """Return the approximate share of the records in `files` that is in memory."""
    return files.region.share_in_memory(pack.own_places(_sample(files))[0])


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
        self._everything: Held | None = None
        self._is_here = self._remote is None
        self._is_cold: bool | None = None
        if self._remote is None:
            self.look()
        else:
            self._everything = self._remote.all_pinned() if self._remote.fits() else None
            self._token = self._remote.begin()

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the pack is on this machine, and in memory."""
        return self._remote is None and not self._is_cold

    def look(self) -> None:
        """Look whether the pack is on this machine now, and if it is, once whether it is in memory."""
        if self._remote is not None:
            self._is_here = self._everything is not None and self._pack.note_whole(self._files)
        if self._is_here and self._is_cold is None:
            self._is_cold = _share_in_memory(self._pack, self._files) < WARM

    @property
    def takes_windows(self) -> bool:
        """Whether the pack is in a store, not all of it is here, and the cache holds all that is fetched early."""
        return self._everything is not None and not self._is_here

    def ask(self, offsets: Int64, sizes: Int64, later: bool = False) -> list[Closable]:
        """Ask for byte ranges, `later` than for others, and return what holds those that would be evicted."""
        if self._remote is not None and not self._is_here:
            blocks = self._remote.blocks_of(offsets, sizes)
            held: list[Closable] = [] if self._everything is not None else [self._remote.pinned(blocks)]
            self._remote.announce(blocks, later)
            return held
        if self._is_cold:
            self._files.region.fetch(offsets, sizes)
        return []

    def close(self) -> None:
        """Ask for nothing more, and hold nothing."""
        if self._remote is not None:
            self._remote.end(self._token)
        if self._everything is not None:
            self._everything.close()


def check_cache(pack: Pack, sampler: Sampler, batch_size: int) -> None:
    """Raise UsageError if the cache of remote packs cannot hold what an order needs at once: of several, all."""
    remotes = [one.remote for one in pack.files if one.remote is not None and one.remote.limit]
    total = sum(sum(remote.blocks.layout.sizes) for remote in remotes)
    room = int(min((remote.room() for remote in remotes), default=0))
    if total <= room or not remotes:
        return
    if pack.remote is None:
        problem = f"leaves {size_text(max(0, room))} for images, but these packs have {size_text(total)}"
        raise UsageError("cache_bytes", problem, f"pass cache_bytes={total + (remotes[0].limit or 0) - room} or more")
    remote = pack.remote
    each = int(pack.about(_sample(pack.files[0])[:, None] + np.arange(2))[1].mean())
    batches = 2 * (LEAD_BATCHES + BEHIND_BATCHES) * batch_size * each
    span = 2 * AHEAD_BYTES + batches
    if (need := _needed(pack, remote, sampler, span)) > room:
        enough = min(need + need // 4, sum(remote.blocks.layout.sizes))  # other epochs need a little more
        step = f"pass cache_bytes={enough + (remote.limit or 0) - room} or more"
        if not isinstance(sampler, BlockShuffleSampler):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SortedPackWarning)
                less = _needed(pack, remote, BlockShuffleSampler(pack, sampler.seed), span)
            step += f", or BlockShuffleSampler, which needs {size_text(less)}" if less < need else ""
        problem = f"leaves {size_text(max(0, room))} for images, but this order needs {size_text(need)} at a time"
        raise UsageError("cache_bytes", problem, step)


def _needed(pack: Pack, remote: Remote, sampler: Sampler, span: int) -> int:
    """Return how many bytes of a pack must be in the cache for an order of which each rank reads `span` at a time."""
    layout = remote.blocks.layout
    extent_bytes = np.bincount(layout.extents, layout.block_sizes).astype(np.int64)
    total = int(extent_bytes.sum())
    if isinstance(sampler, SequentialSampler):
        return min(total, span * sampler.world_size + 4 * Layout.EXTENT_BLOCKS * Layout.BLOCK_BYTES)
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
            where = pack.about(runs)
            extents.append(remote.extents_of(remote.blocks_of(*where)))
            places = np.append(places, [[start], [stop], [int(where[1].sum())]], axis=1)
        most = max(most, int(extent_bytes[np.unique(np.concatenate(extents))].sum()))
    return most
