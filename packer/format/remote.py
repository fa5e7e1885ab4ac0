"""A pack at the URL of an object store: its manifest and indexes are fetched when it is opened, its records by blocks.

`open_remote` returns what `Pack` needs to read it as if it were a local one, whose missing blocks are fetched first.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, PackNotFound, StorageError, UsageError
from packer.format.manifest import MANIFEST_NAME, FileEntry, Manifest, parse_manifest
from packer.format.mmap import RESTORE, Region, map_files
from packer.stores import clean_url, join_url, open_store
from packer.stores.base import NoObject, Store, check_process
from packer.stores.blocks import Blocks, MemoryBlocks
from packer.stores.cache import cache_root
from packer.stores.fetch import Fetcher, Objects
from packer.stores.layout import BLOCK_BYTES, Layout
from packer.stores.sparse import NAME, FileBlocks
from packer.system.sparse import HAS_BYTE_LOCKS
from packer.types import Int64

ORIGIN = "origin.json"
"""Says that packer has made this folder as a cache; without it nothing in there is ever removed."""
INDEX_THREADS = 32


class Held:
    """What a thread reads, while it reads it: a context in which records are there and stay there."""

    __slots__ = ("_blocks", "_extents", "_pid")

    def __init__(self, blocks: Blocks, pid: int, extents: Int64 | None) -> None:
        self._blocks, self._pid, self._extents = blocks, pid, extents

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._blocks.unpin(self._pid, self._extents)


class Remote:
    """The remote side of an open pack.

    Args:
        url: of the pack.
        manifest: its manifest.
        folder: where its files are on this machine; "" if they are in memory.
        store: the store of the URL.
    """

    def __init__(self, url: str, manifest: Manifest, folder: str, store: Store) -> None:
        self.url, self.manifest, self.folder, self.store = url, manifest, folder, store
        containers = [shard.container for shard in manifest.shards]
        layout = Layout([file.bytes for file in containers])
        objects = Objects(store, [(file.name, file.bytes) for file in containers])
        self._read = objects.read
        self.region: Region
        self._starts: Int64
        if folder:
            with _lock:
                fetcher = _fetchers.get(folder)
                if fetcher is None:
                    blocks: Blocks = FileBlocks(folder, [file.name for file in containers], layout)
                    fetcher = _fetchers[folder] = Fetcher(blocks, objects.read, _no_limit)
            self._fetcher = fetcher
            files = [(os.path.join(folder, file.name), file.bytes) for file in containers]
            self.region, self._starts = map_files(files)
        else:
            pages = [-(-file.bytes // 4096) * 4096 for file in containers]
            self._starts = np.cumsum([0, *pages[:-1]], dtype=np.int64)
            memory = MemoryBlocks(layout, self._starts.tolist())
            self.region = Region([memory.content], [0])
            self._fetcher = Fetcher(memory, objects.read, _no_limit)
        self.blocks = self._fetcher.blocks
        self._seen: NDArray[np.uint64] = self.blocks.generations.copy()

    @property
    def starts(self) -> Int64:
        """Where each container begins in `region`."""
        return self._starts

    def blocks_of(self, offsets: Int64, sizes: Int64) -> Int64:
        """Return the blocks of byte ranges of `region`, each once, in the order in which they are needed."""
        layout = self.blocks.layout
        file = np.searchsorted(self._starts, offsets, side="right") - 1
        inside = offsets - self._starts[file]
        first = layout.first_blocks[file] + inside // BLOCK_BYTES
        last = layout.first_blocks[file] + (inside + np.maximum(sizes, 1) - 1) // BLOCK_BYTES
        counts = last - first + 1
        if int(counts.max(initial=1)) > 1:
            ends = np.cumsum(counts)
            first = np.arange(int(ends[-1])) + np.repeat(first - (ends - counts), counts)
        return np.fromiter(dict.fromkeys(first.tolist()), np.int64)

    def held(self, blocks: Int64) -> Held:
        """Fetch blocks that are missing, and return a context in which they stay."""
        extents = None
        if self.blocks.pin_if_all():
            pid = os.getpid()
        else:
            extents = np.unique(self.blocks.layout.extents[blocks]).astype(np.int64)
            pid = self.blocks.pin(extents)
        try:
            self._fetcher.need(blocks)
        except BaseException:
            self.blocks.unpin(pid, extents)
            raise
        return Held(self.blocks, pid, extents)

    def evicted(self, blocks: Int64) -> list[tuple[int, int, int]]:
        """Return what was evicted of (held) blocks, unless `seen` knows: (start, stop in `region`, extent)."""
        extents = self.blocks.layout.extents[blocks]
        changed = np.unique(extents[self.blocks.generations[extents] != self._seen[extents]]).tolist()
        firsts = self.blocks.layout.first_of_extent
        spans = [self.blocks.layout.span(int(firsts[e]), int(firsts[e + 1] - firsts[e])) for e in changed]
        begins = [int(self._starts[file]) for file, _, _ in spans]
        return [(b + start, b + stop, e) for b, (_, start, stop), e in zip(begins, spans, changed, strict=True)]

    def seen(self, extent: int) -> None:
        """Take note of an eviction."""
        self._seen[extent] = self.blocks.generations[extent]

    def repair(self, start: int, stop: int, is_right: Callable[[Any], bool]) -> None:
        """Fetch a (held) range of `region` again, and write it if it is right now: never what was right before."""
        check_process()
        file = int(np.searchsorted(self._starts, start, side="right")) - 1
        begin = int(self._starts[file])
        data = self._read(file, start - begin, stop - begin)
        if is_right(data):
            self.blocks.write(file, start - begin, data)

    def announce(self, blocks: Int64) -> None:
        """Fetch blocks in the background, in this order."""
        self._fetcher.announce(blocks)


def _no_limit(size: int, full: bool) -> None:
    pass


_fetchers: weakref.WeakValueDictionary[str, Fetcher] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_remote(url: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> Remote:
    """Open the pack at a URL.

    Args:
        url: of the pack.
        cache_dir: the cache folder; default: $PACKER_CACHE, or ~/.cache/packer.
        cache_bytes: what the cache folder may hold; 0: nothing, the pack is kept in memory.

    Raises:
        PackNotFound: there is no pack.
        DamagedPack: its manifest or an index was altered.
        UsageError: it cannot be read here.
        StorageError: the store or the cache folder cannot be used.
    """
    url = clean_url(url)
    in_memory = cache_bytes == 0
    if not in_memory and not HAS_BYTE_LOCKS:
        step = "pass cache_bytes=0 to keep it in memory, or copy it: packer pull"
        raise UsageError(url, "a pack at a URL needs Linux", step)
    store = open_store(url)
    try:
        text = bytes(store.read(MANIFEST_NAME))
    except NoObject:
        raise PackNotFound(url, f"is not a pack: it has no {MANIFEST_NAME}", "check the URL") from None
    manifest = parse_manifest(join_url(url, MANIFEST_NAME), text)
    _check(url, manifest)
    folder = ""
    if not in_memory:
        folder = os.path.join(cache_root(cache_dir), "packs", manifest.digest[:16])
        _prepare(folder, url, manifest, text, store)
    return Remote(url, manifest, folder, store)


def _check(url: str, manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    if len({*names, MANIFEST_NAME, ORIGIN, NAME}) != len(names) + 3:
        raise DamagedPack(join_url(url, MANIFEST_NAME), "names a file twice", "build the pack again")
    if outside := sorted(path for path in manifest.linked.values() if path):
        problem = f"its shards are files elsewhere, such as {outside[0]}, which a store does not have"
        raise UsageError(url, problem, "copy them into the pack: packer convert")


def _prepare(folder: str, url: str, manifest: Manifest, text: bytes, store: Store) -> None:
    """Create the folder of a pack in the cache, with its manifest and indexes."""
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in ((ORIGIN, _origin(url)), (MANIFEST_NAME, text)):
            path = os.path.join(folder, name)
            if not _has(path, len(content)):
                _write(path, content)
    except OSError as error:
        problem = f"cannot be used as a cache: {error.strerror or error}"
        raise StorageError(folder, problem, "pass cache_dir=, or set PACKER_CACHE") from None
    absent = [
        shard.index for shard in manifest.shards if not _has(os.path.join(folder, shard.index.name), shard.index.bytes)
    ]
    with ThreadPoolExecutor(INDEX_THREADS, "packer-index") as threads:
        list(threads.map(partial(fetch_file, store, folder), absent))


def _origin(url: str) -> bytes:
    content = {"what": "made by packer's cache; packer removes what it has fetched", "url": url}
    return (json.dumps(content, indent=1) + "\n").encode()


def _has(path: str, size: int) -> bool:
    with suppress(OSError):
        return os.path.getsize(path) == size
    return False


def fetch_file(store: Store, folder: str, entry: FileEntry) -> str:
    """Fetch a whole file of a pack, verify its digest, and return its path."""
    where = join_url(store.url, entry.name)
    try:
        data = store.read(entry.name, 0, entry.bytes) if entry.bytes else b""
    except NoObject:
        raise DamagedPack(where, "is missing", RESTORE) from None
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DamagedPack(where, "was altered: it does not match its digest", RESTORE)
    path = os.path.join(folder, entry.name)
    try:
        _write(path, data)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise StorageError(path, problem, "free disk space, or choose another cache folder") from None
    return path


def _write(path: str, data: Any) -> None:
    """Write a file under another name first: other processes may open it at the same time."""
    handle, partial_path = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".packer-")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(partial_path, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial_path)
        raise
