"""In which order a rank reads a pack: the samplers of packer, and what its loader asks for in advance.

Nothing of that is modelled: samplers, windows and announcements are those of packer, for a pack that has no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from simulation.fetching import Files
from simulation.setting import Setting

from packer.format.mmap import MANY_FILES
from packer.format.remote import Remote
from packer.loading.page_cache import announced
from packer.loading.pipeline import DECODED_A_PART, PART_BYTES
from packer.loading.windows import Closable, InWindows
from packer.model.annotation import Int64
from packer.samplers import BlockShuffleSampler, Sampler, ShuffleSampler
from packer.samplers.order import RUN, SAMPLED_RUNS

ROW_BYTES = 224 * 224 * 3
"""Of an image in a batch. Images of this size are stored raw."""


def sampler_of(setting: Setting, files: Files, rank: int) -> Sampler:
    """Return the sampler of a rank."""
    world_size = setting.nodes * setting.ranks
    if not setting.block_shuffle:
        return ShuffleSampler(setting.images, rank=rank, world_size=world_size)
    return BlockShuffleSampler(
        np.diff(files.firsts).tolist(), block=setting.block_records, window=setting.window_blocks, rank=rank,
        world_size=world_size, nodes=setting.nodes if setting.canonical else None, local_world_size=setting.ranks,
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a loader asks for at once."""

    shards: list[int]
    """Whose indexes it needs first."""
    blocks: list[int]
    later: bool


class _Nothing:
    def close(self) -> None:
        """Hold nothing."""


class _Windows(InWindows):
    """Windows, each of which one rank of a node asks for: the model keeps the blocks of all ranks in one queue."""

    known: set[int]

    def ahead(self, ask: Callable[[Int64], list[Closable]]) -> Any:
        def ask_once(records: Int64) -> list[Closable]:
            if (first := int(records.min())) in self.known:
                return [_Nothing()]
            self.known.add(first)
            return ask(records)

        return super().ahead(ask_once)


class Reader:
    """A pack of a store as the loader of one rank sees it: it notes what is asked for.

    Args:
        setting: The pack, and who reads it.
        files: Its shards.
        rank: Of all ranks.
        known: The windows that were asked for on this node, by their first record.
    """

    manifest = None
    blocks_of, ends_of = Remote.blocks_of, Remote.ends_of

    def __init__(self, setting: Setting, files: Files, rank: int, known: set[int]) -> None:
        self._setting, self._files = setting, files
        self.starts, self.layout = files.starts, files.layout
        self.blocks, self.remote, self.packs = self, self, (self,)
        self._known, self._opened = known, np.zeros(setting.shards, np.bool_)
        self._new: list[int] = []
        self._asked: list[Asked] = []
        self.sampler = sampler_of(setting, files, rank)

    def batches(self, begun: float) -> Iterator[tuple[Int64, list[Asked]]]:
        """Yield the records of each batch, and what is asked for before it comes; after this share of the epoch."""
        sampler, size = self.sampler, self.sampler.global_batch(self._setting.batch)
        start = int(begun * sampler.num_batches(self._setting.batch)) * size
        records: Any = sampler.rank_batches(self._setting.batch, 0, start)
        if isinstance(sampler, BlockShuffleSampler):
            records = _Windows(records, sampler, 0, start, size)
            records.known = self._known
        reader: Any = self
        for batch in announced(records, reader):
            asked, self._asked = self._asked, []
            yield batch, asked

    def parts(self, records: Int64) -> list[tuple[int, list[int]]]:
        """Return the images of each part of a batch that a thread prepares, and their blocks."""
        setting: Setting = self._setting
        if setting.image_bytes < ROW_BYTES:
            size = min(-(-len(records) // setting.threads), DECODED_A_PART)
        else:
            size = -(-len(records) // max(1, min(setting.threads, round(len(records) * ROW_BYTES / PART_BYTES))))
        cuts = [records[start : start + size] for start in range(0, len(records), size)]
        return [(len(cut), self._blocks(cut).tolist()) for cut in cuts]

    def _blocks(self, records: Int64) -> Int64:
        reader: Any = self
        return Remote.blocks_of(reader, *self.shards_and_places(records)[1:])

    def shards_and_places(self, records: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the shards of records, where they are, and their sizes."""
        shards = self._files.firsts.searchsorted(records, "right") - 1
        offsets = self._files.starts[shards] + (records - self._files.firsts[shards]) * self._files.image_bytes
        return shards, offsets, np.full(len(records), self._files.image_bytes)

    # -- as `packer.loading.page_cache` asks a pack, and what fetches it

    def by_pack(self, records: Int64) -> Iterator[tuple[Any, Any, Int64]]:
        """Yield the pack, of which all records are."""
        yield self, slice(None), records

    def places(self, records: Int64) -> tuple[Int64, Int64]:
        """Return where records are, and their sizes; it opens the shards that are new."""
        shards, offsets, sizes = self.shards_and_places(records)
        if setting_is_large(self._setting) and not (opened := self._opened[shards]).all():
            self._new += np.unique(shards[~opened]).tolist()
            self._opened[shards] = True
        return offsets, sizes

    def fits(self) -> bool:
        """Return whether the cache holds the whole pack."""
        return self._setting.pack_bytes <= self._setting.cache_bytes

    def announce(self, blocks: Int64, later: bool) -> None:
        """Note what is asked for."""
        self._asked.append(Asked(self._new, blocks.tolist(), later))
        self._new = []

    def pinned(self, blocks: Int64) -> Closable:
        """Hold blocks: there is no eviction."""
        return _Nothing()

    def all_pinned(self) -> Closable:
        """Hold all blocks."""
        return _Nothing()

    def note_whole(self, remote: Any) -> bool:
        """Return whether it is known that everything is there."""
        return False

    def begin(self) -> None:
        """Begin to announce."""

    def end(self, token: object) -> None:
        """End."""


def blocks_before(setting: Setting, files: Files, rank: int, begun: float) -> list[int]:
    """Return the blocks of the windows that this share of an epoch has before: runs that come later share some."""
    reader: Any = Reader(setting, files, rank, set())
    ends = [runs for start, _, runs in reader.sampler.windows(0) if start < begun * setting.images]
    records = np.concatenate(ends)
    _, first, _ = reader.shards_and_places(records[:, 0])
    _, last, _ = reader.shards_and_places(records[:, 1] - 1)
    firsts, lasts = Remote.ends_of(reader, first, last - first + setting.image_bytes)
    edges = np.bincount(firsts, minlength=files.layout.num_blocks + 1)
    edges -= np.bincount(lasts + 1, minlength=files.layout.num_blocks + 1)
    return np.flatnonzero(np.cumsum(edges)).tolist()


def setting_is_large(setting: Setting) -> bool:
    """Return whether the indexes of a pack are fetched when its shards are first read, not when it is opened."""
    return setting.shards > MANY_FILES


def sampled_shards(setting: Setting, files: Files) -> list[int]:
    """Return the shards at whose labels a block shuffle looks when it is made, to tell whether the pack is sorted."""
    if not setting.block_shuffle or not setting_is_large(setting):
        return []
    starts = np.linspace(0, setting.images - RUN, SAMPLED_RUNS).astype(np.int64)
    ends = np.concatenate([starts, starts + RUN - 1])
    return np.unique(files.firsts.searchsorted(ends, "right") - 1).tolist()


def shards_of_epoch(setting: Setting, files: Files, node: int) -> int:
    """Return of how many shards a node needs the indexes: all, or of its part of the pack and of the sample."""
    if not setting_is_large(setting):
        return 0
    if not (setting.block_shuffle and setting.canonical):
        return setting.shards
    bounds = np.array([setting.images * node // setting.nodes, setting.images * (node + 1) // setting.nodes - 1])
    first, last = (files.firsts.searchsorted(bounds, "right") - 1).tolist()
    return len({*range(first, last + 1), *sampled_shards(setting, files)})
