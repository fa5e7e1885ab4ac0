"""A pack at the URL of an object store: its manifest is fetched when it is opened, its records by blocks.

So are the indexes; of many shards, each when it is first needed.

`open_remote` returns what `packer.format.records` needs to read it as if it were a local one: its blocks are fetched
before they are read, and cannot be evicted while they are.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError, size_text
from packer.format.beside import BesideList
from packer.format.indexes import FETCHED_AT_ONCE
from packer.format.manifest import FileEntry, Manifest
from packer.format.mmap import MANY_FILES, Region, map_files
from packer.format.pack_objects import fetch_file, manifest_at
from packer.format.pack_paths import MANIFEST_NAME
from packer.model.annotation import Int64
from packer.stores import clean_url, join_url, open_store
from packer.stores.blocks import BlockLayout, Blocks, MemoryBlocks
from packer.stores.cache import ORIGIN, Cache, cache_at, cache_root, limit_of, make_folder
from packer.stores.fetch import Fetcher
from packer.stores.sparse import NAME, FileBlocks
from packer.stores.store import PackObjects, Store, check_process
from packer.stores.waiting import all_of, alone, has_file, pool, put_file
from packer.system import available_bytes
from packer.system.locks import Locked
from packer.system.storage import HAS_BYTE_LOCKS

FEW = 4
AHEAD_BLOCKS = 32
"""How far to read ahead of a reader of records in order that announces nothing."""


class PinnedBlocks:
    """A context in which blocks stay that are there when it begins."""

    __slots__ = ("_blocks", "_extents", "_pid")

    def __init__(self, blocks: Blocks, extents: Int64 | None = None) -> None:
        self._blocks, self._extents, self._pid = blocks, extents, os.getpid()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._blocks.unpin(self._pid, self._extents)

    close = __exit__


class Remote:
    """The remote side of an open pack.

    Args:
        store: the store of its URL.
        manifest: its manifest.
        root: the cache folder; "": the pack is kept in memory.
        limit: bytes that the cache folder may hold; None: what the disk has.
        beside: lists files beside the pack, which are then read in place of its containers.

    Attributes:
        folder: where its files are on this machine; "" if they are in memory.
        region: the bytes of all containers, of which those of held blocks are there.
        starts: where each container begins in `region`.
        limit: as given.
        fetcher: what fetches its blocks, and to whom those that will be needed are announced.
    """

    def __init__(
        self, store: Store, manifest: Manifest, root: str, limit: int | None, beside: BesideList | None = None
    ) -> None:
        self.store, self.manifest, self.limit, self._root = store, manifest, limit, root
        entries = [shard.container for shard in manifest.shards] if beside is None else beside.data_files
        containers = [(file.name, file.bytes) for file in entries]
        layout = BlockLayout([size for _, size in containers])
        objects = PackObjects(store, containers)
        self._read = objects.read
        self._is_late = len(containers) > MANY_FILES
        self.starts: Int64
        if root:
            self.folder = make_folder(root, (beside or manifest).digest, store, containers)
            texts = {MANIFEST_NAME: manifest.to_json(), **({beside.NAME: beside.to_json()} if beside else {})}
            for name, text in texts.items():
                if not has_file(path := os.path.join(self.folder, name), len(text)):
                    put_file(path, text)
            self._cache = cache_at(root, limit)
            with _opening.lock:
                found = _fetchers.get(self.folder)
                if found is None or not found.blocks.is_current():
                    stored = FileBlocks(self.folder, [name for name, _ in containers], layout)
                    found = _fetchers[self.folder] = Fetcher(stored, objects.read, self._cache)
                self.fetcher = found
            files = [(os.path.join(self.folder, name), size) for name, size in containers]
            self.region, self.starts = map_files(files, late=self._is_late)
        else:
            self.folder = ""
            if sum(layout.sizes) > (free := available_bytes()):
                raise UsageError(
                    store.url, f"has {size_text(sum(layout.sizes))}, but only {size_text(free)} of memory is free",
                    "leave out cache_bytes=0",
                )  # fmt: skip
            pages = [-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for _, size in containers]
            self.starts = np.cumsum([0, *pages[:-1]], dtype=np.int64)
            memory = MemoryBlocks(layout, self.starts.tolist())
            self.region = Region([memory.content], [0])
            self.fetcher = Fetcher(memory, objects.read, Cache(""))
        self.blocks = self.fetcher.blocks
        self._begin_reading()
        self._indexes: list[NDArray[np.uint8] | None] = []
        if not self._is_late and beside is None:
            with pool(FETCHED_AT_ONCE) as threads:
                self._indexes = all_of([threads.submit(self.index, number, False) for number in range(len(containers))])

    def _begin_reading(self) -> None:
        self._seen: NDArray[np.uint64] = self.blocks.generations.copy()
        self._whole_since = -1
        """The period of pins for which all blocks are known to be there."""
        self._last = -2
        """The last block that was missing."""

    def beside(self, listed: BesideList) -> Remote:
        """Return the same for the files of a list beside the pack."""
        return Remote(self.store, self.manifest, self._root, self.limit, listed)

    def for_another(self) -> Remote:
        """Return the same for another pack that reads its records, and has to see by itself what was evicted."""
        other = copy(self)
        other._begin_reading()
        return other

    def room(self) -> float:
        """Return how many bytes of containers the cache may hold beside the indexes of its packs; may be negative."""
        if not self.limit:
            return math.inf
        here = {*os.listdir(self.folder)}
        to_come = sum(shard.index.bytes for shard in self.manifest.shards if shard.index.name not in here)
        return self.limit - self._cache.kept() - to_come

    def fits(self, more: int = 0) -> bool:
        """Return whether the cache may hold the whole pack, and so many bytes more."""
        return sum(self.blocks.layout.sizes) + more <= self.room()

    def index(self, number: int, again: bool) -> NDArray[np.uint8] | None:
        """Fetch an index unless it is here, or `again`; return its content if its file is not in the cache."""
        if not self.folder and self._indexes and not again and (found := self._indexes[number]) is not None:
            return found
        return self.file(self.manifest.shards[number].index, number, again, self._is_late)

    def file(self, entry: FileEntry, lock: int, again: bool, makes_room: bool = True) -> NDArray[np.uint8] | None:
        """Fetch a whole file unless it is here, or `again`; return its content if it is not in the cache.

        Args:
            entry: the file.
            lock: a number that no other file of the pack has.
            again: whether to replace what is here.
            makes_room: whether blocks are evicted for it.
        """
        if not self.folder:
            return np.frombuffer(fetch_file(self.store, entry), np.uint8)
        path = os.path.join(self.folder, entry.name)
        if again or not has_file(path, entry.bytes):
            with alone(os.path.join(self.folder, NAME), lock):
                if again or not has_file(path, entry.bytes):
                    (self.fetcher.put if makes_room else put_file)(path, fetch_file(self.store, entry))
        return None

    def blocks_of(self, offsets: Int64, sizes: Int64) -> Int64:
        """Return the blocks of byte ranges of `region`, each once, in the order in which they are needed."""
        first, last = self.ends_of(offsets, sizes)
        counts = last - first + 1
        if int(counts.max(initial=1)) > 1:
            ends = np.cumsum(counts)
            first = np.arange(int(ends[-1])) + np.repeat(first - (ends - counts), counts)
        return np.fromiter(dict.fromkeys(first.tolist()), np.int64)

    def ends_of(self, offsets: Int64, sizes: Int64) -> tuple[Int64, Int64]:
        """Return the first and the last block of each byte range of `region`."""
        layout = self.blocks.layout
        file = np.searchsorted(self.starts, offsets, side="right") - 1
        inside, begin = offsets - self.starts[file], layout.first_blocks[file]
        # a range of no bytes may lie at the end of a file
        last = np.minimum(begin + (inside + np.maximum(sizes, 1) - 1) // BlockLayout.BLOCK_BYTES, layout.num_blocks - 1)
        return np.minimum(begin + inside // BlockLayout.BLOCK_BYTES, last), last

    def extents_of(self, blocks: Int64) -> Int64:
        """Return what these blocks are evicted with, each extent once."""
        return np.unique(self.blocks.layout.extents[blocks]).astype(np.int64)

    def whole(self) -> PinnedBlocks | None:
        """Return a context in which all blocks stay if all that have records are there, and known to be."""
        return PinnedBlocks(self.blocks) if self.blocks.pin_if_all(self._whole_since) else None

    def held(self, blocks: Int64) -> PinnedBlocks:
        """Fetch blocks that are missing, before all that was announced, and return a context in which they stay."""
        held = self.pinned(blocks)
        try:
            if len(blocks) <= FEW and not self.blocks.states[blocks].all():
                first, before, self._last = int(blocks.min()), self._last, int(blocks.max())
                if before <= first <= before + 1:  # read in order
                    last = min(self._last + 1 + AHEAD_BLOCKS, self.blocks.layout.num_blocks)
                    self.fetcher.announce(np.arange(self._last + 1, last))
            self.fetcher.need(blocks)
        except BaseException:
            held.close()
            raise
        return held

    def pinned(self, blocks: Int64) -> PinnedBlocks:
        """Return a context in which blocks stay, once they are there."""
        if self.blocks.pin_if_all():
            return PinnedBlocks(self.blocks)
        extents = self.extents_of(blocks)
        self.blocks.pin(extents)
        return PinnedBlocks(self.blocks, extents)

    def all_pinned(self) -> PinnedBlocks:
        """Return a context in which all blocks stay, once they are there."""
        self.blocks.pin()
        return PinnedBlocks(self.blocks)

    def is_whole(self) -> bool:
        """Return whether `whole` knows that all blocks are there."""
        return self._whole_since == self.blocks.period

    def note_whole(self, needed: NDArray[np.uint8]) -> None:
        """Let `whole` know if these blocks (1) are there: they stay for as long as all are pinned without a break."""
        period = self.blocks.period
        if self.blocks.pin_if_all(period):
            with PinnedBlocks(self.blocks):
                if (self.blocks.states >= needed).all() and (self.blocks.generations == self._seen).all():
                    self._whole_since = period

    def evicted(self, blocks: Int64) -> list[tuple[int, int, int]]:
        """Return what was evicted of (held) blocks, unless `seen` knows: (start, stop in `region`, extent)."""
        extents = self.blocks.layout.extents[blocks]
        changed = np.unique(extents[self.blocks.generations[extents] != self._seen[extents]]).tolist()
        firsts = self.blocks.layout.first_of_extent
        spans = [self.blocks.layout.span(int(firsts[e]), int(firsts[e + 1] - firsts[e])) for e in changed]
        begins = [int(self.starts[file]) for file, _, _ in spans]
        return [(b + start, b + stop, e) for b, (_, start, stop), e in zip(begins, spans, changed, strict=True)]

    def seen(self, extent: int) -> None:
        """Take note of the eviction of a (held) extent."""
        self._seen[extent] = self.blocks.generations[extent]

    def repair(self, start: int, stop: int, is_right: Callable[[Any], bool]) -> None:
        """Fetch a (held) range of `region` again, and write it if it is right now: never over what was right before."""
        check_process()
        file = int(np.searchsorted(self.starts, start, side="right")) - 1
        begin = int(self.starts[file])
        data = self._read(file, start - begin, stop - begin)
        if is_right(data):
            self.fetcher.rewrite(file, start - begin, data)


_fetchers: weakref.WeakValueDictionary[str, Fetcher] = weakref.WeakValueDictionary()
_opening = Locked()


def open_remote(url: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> Remote:
    """Open the pack at a URL.

    Args:
        url: of the pack.
        cache_dir: the cache folder; default: $PACKER_CACHE, or ~/.cache/packer.
        cache_bytes: what the cache folder may hold; 0: nothing, the pack is kept in memory.

    Raises:
        PackNotFound: the URL has no pack.
        DamagedPack: its manifest or an index was altered.
        UsageError: it cannot be read here.
        StorageError: the store or the cache folder cannot be used.
    """
    url, limit = clean_url(url), limit_of(cache_bytes)
    store = open_store(url)
    manifest = manifest_at(store)
    if limit != 0 and not HAS_BYTE_LOCKS:
        step = "pass cache_bytes=0 to read it into memory, or copy it: packer pull"
        raise UsageError(url, "a pack at a URL needs the locks of Linux for its cache", step)
    names = [file.name for file in manifest.files]
    if len({*names, MANIFEST_NAME, ORIGIN, NAME}) != len(names) + 3:
        where = join_url(url, MANIFEST_NAME)
        raise DamagedPack(where, "gives a file a name that another one has", "build the pack again")
    if outside := sorted(path for path in manifest.linked.values() if path):
        problem = f"has shards that are files elsewhere, such as {outside[0]}"
        raise UsageError(url, problem, "copy the pack with its shards: packer convert")
    return Remote(store, manifest, "" if limit == 0 else cache_root(cache_dir), limit)
