"""The bytes of a pack's records: where they lie, whether they are here, and whether they match their checksums."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError
from packer.format.indexes import RESTORE, Indexes
from packer.format.manifest import Manifest, ShardEntry, read_manifest
from packer.format.mmap import map_files
from packer.format.ragged import Ragged
from packer.stores import clean_url, is_url, join_url
from packer.stores.cache import origin_of
from packer.types import Int64

if TYPE_CHECKING:
    from packer.format.remote import Remote

_HERE = nullcontext()


class Records:
    """The records of an open pack. Its `packer.format.pack.Pack` makes images and annotations of them.

    Args:
        path: The directory of the pack, or its URL.
        cache_dir: The folder where packs at URLs are kept.
        cache_bytes: The size of that folder at most.
    """

    def __init__(self, path: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> None:
        self.remote: Remote | None = None
        """What fetches a pack at a URL; None: it is in a directory."""
        self._cache = cache_dir, cache_bytes
        try:
            self._open(path)
        except DamagedPack as error:
            error.with_location(self.path, self._shard_at(error.where))
            raise
        self._firsts = np.cumsum([0, *(shard.records for shard in self.shards)])
        self._checked = np.zeros(len(self), np.bool_)

    def _open(self, path: AnyPath) -> None:
        if is_url(path):
            from packer.format.remote import open_remote

            self.path = clean_url(path)
            self.remote = open_remote(path, *self._cache)
            self.folder = self.remote.folder
            self.manifest: Manifest = self.remote.manifest
            self.shards: tuple[ShardEntry, ...] = self.manifest.shards
            self.region, self._starts = self.remote.region, self.remote.starts
            self.indexes = Indexes(self.folder, self.shards, self.remote.index)
        else:
            self.path = self.folder = os.path.abspath(os.fsdecode(path))
            if (origin := origin_of(self.path)) is not None:
                raise UsageError(self.path, "is packer's cache of a pack at a URL", f"open {origin['url']}")
            self.manifest = read_manifest(self.path)
            self.shards = self.manifest.shards
            files = [(self.manifest.path_of(self.path, s.container.name), s.container.bytes) for s in self.shards]
            self.region, self._starts = map_files(files)
            """The bytes of all container files, and the offset at which each begins."""
            self.indexes = Indexes(self.folder, self.shards)

    def _file(self, name: str) -> str:
        return join_url(self.path, name) if self.remote else self.manifest.path_of(self.path, name)

    def _shard_at(self, file: AnyPath) -> str | None:
        """Return the shard that a file of this pack belongs to; None for the manifest."""
        name = os.path.basename(os.fsdecode(file))
        names = (s.container.name for s in getattr(self, "shards", ()) if name in (s.container.name, s.index.name))
        return next(names, None)

    def __len__(self) -> int:
        return self.manifest.records

    # -- where things lie

    @cached_property
    def offsets(self) -> Int64:
        """Where each record begins in `region`, int64 (n,); checked for bounds and overlap."""
        starts = self._starts.tolist()
        return np.concatenate([self.indexes.offsets(number) + start for number, start in enumerate(starts)])

    @cached_property
    def sizes(self) -> Int64:
        """Bytes of each record, int64 (n,)."""
        return self._scalars("size")

    @cached_property
    def record_bytes(self) -> int | None:
        """Bytes per record if all are raw images of one shape, else None."""
        shape, manifest = self.manifest.shape, self.manifest
        if manifest.encoding != "raw" or shape is None or manifest.dtype is None:
            return None
        size = math.prod(shape) * np.dtype(manifest.dtype).itemsize
        wrong = np.flatnonzero(self.sizes != size)
        if len(wrong):
            number, row = self.locate(int(wrong[0]))
            shard = self.shards[number]
            problem = f"row {row} is of {self.sizes[wrong[0]]} bytes, not of {size}"
            raise DamagedPack(self._file(shard.index.name), problem, RESTORE).with_location(
                self.path, shard.container.name
            )
        return size

    def locate(self, i: int) -> tuple[int, int]:
        """Return (number of its shard, row in that shard) of record `i`."""
        self._require(i)
        shard = int(np.searchsorted(self._firsts, i, side="right")) - 1
        return shard, i - int(self._firsts[shard])

    def _require(self, i: int) -> None:
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")

    # -- records

    def record(self, i: int) -> memoryview:
        """Return the bytes of record `i`, mapped and read-only.

        Raises:
            DamagedPack: They do not match their checksum, which is verified when this process first reads the record.
        """
        self._require(i)
        if self.remote is not None:
            with self.held(np.array([i])):
                return memoryview(bytes(self._record(i)))  # a copy: its block may be evicted
        return self._record(i)

    def _record(self, i: int) -> memoryview:
        if not self._checked[i]:
            self._check_unseen(np.array([i]))
        start = int(self.offsets[i])
        data: memoryview = self.region.data[start : start + int(self.sizes[i])]
        return data

    def held(self, records: Int64) -> AbstractContextManager[None]:
        """Return a context in which the bytes of `records`, int64 (n,), are in `region`; only a remote pack needs it.

        Raises:
            StorageError: They cannot be fetched.
        """
        return _HERE if self.remote is None else self._held(self.remote, records)

    def _held(self, remote: Remote, records: Int64) -> AbstractContextManager[None]:
        if (whole := remote.whole()) is not None:
            return whole
        blocks = remote.blocks_of(self.offsets[records], self.sizes[records])
        try:
            held = remote.held(blocks)
        except DamagedPack as error:
            error.with_location(self.path, self._shard_at(error.where))
            raise
        self.forget_evicted(remote, blocks)
        return held

    def note_whole(self, remote: Remote) -> bool:
        """Return whether all records are here, and stay while all are pinned; from then on reading costs nothing."""
        if not remote.is_whole() and not remote.is_fetching() and (remote.blocks.states >= self._needed).all():
            self.forget_evicted(remote, np.arange(remote.blocks.layout.num_blocks))
            remote.note_whole(self._needed)
        return remote.is_whole()

    @cached_property
    def _needed(self) -> NDArray[np.uint8]:
        """Whether a record lies in each block of a remote pack: a container has others, too."""
        assert self.remote is not None
        layout = self.remote.blocks.layout
        edges = np.zeros(layout.num_blocks + 1, np.int64)
        for start in range(0, len(self), 1 << 20):  # in pieces, to save memory
            first, last = self.remote.ends_of(
                self.offsets[start : start + (1 << 20)], self.sizes[start : start + (1 << 20)]
            )
            edges += np.bincount(first, minlength=len(edges)) - np.bincount(last + 1, minlength=len(edges))
        return (np.cumsum(edges[:-1]) > 0).astype(np.uint8)

    def forget_evicted(self, remote: Remote, blocks: Int64) -> None:
        """Verify the records of (held) blocks that were evicted again: they were fetched again."""
        for start, stop, extent in remote.evicted(blocks):
            self._checked[(self.offsets < stop) & (self.offsets + self.sizes > start)] = False
            remote.seen(extent)

    def check(self, records: Int64) -> None:
        """Verify the checksums of `records`, int64 (n,), unless this process has already done so."""
        seen = self._checked[records]
        if np.count_nonzero(seen) < len(seen):
            self._check_unseen(records[~seen])

    def _check_unseen(self, records: Int64) -> None:
        data, keys = self.region.data, self._keys
        key_data = keys.values.data
        rows = (self.offsets, self.sizes, keys.offsets, keys.offsets[1:], self._crcs)
        # lists of Python numbers: this loop takes most of the first epoch, and numpy scalars would double its time
        for i, start, size, key, key_end, crc in zip(
            records.tolist(), *(numbers[records].tolist() for numbers in rows), strict=True
        ):
            if crc32c(data[start : start + size], crc32c(key_data[key:key_end])) != crc:
                self._repair(i)
        self._checked[records] = True

    def _repair(self, i: int) -> None:
        """Fetch a remote record again that does not match its checksum. Raise DamagedPack if that does not help."""
        if self.remote is not None:
            start, stop = int(self.offsets[i]), int(self.offsets[i] + self.sizes[i])
            self.remote.repair(start, stop, lambda data: self._matches(i, data))
            if self._matches(i, self.region.data[start:stop]):
                return
        self._damaged(i, "does not match its checksum")

    def _matches(self, i: int, data: Any) -> bool:
        return bool(crc32c(data, crc32c(self._keys[i])) == self._crcs[i])

    def damage(self, i: int, problem: str) -> DamagedPack:
        """Return the error that record `i` has this `problem`."""
        number, row = self.locate(i)
        shard, key = self.shards[number].container.name, self.key(i)
        error = DamagedPack(self._file(shard), f"record {key} (row {row}) {problem}", RESTORE)
        return error.with_location(self.path, shard, key)

    def _damaged(self, i: int, problem: str) -> NoReturn:
        raise self.damage(i, problem)

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return the column `name` of the index over all shards, without reading images.

        It is joined once, and read-only. docs/formats.md lists the columns.

        Returns:
            Numbers: array (n,); `label` is -1 if an image has none. Lists (boxes, box_labels, landmarks, ...): Ragged,
            in which row i is the array of record i.
        """
        return self.indexes.column(name)

    def _scalars(self, name: str) -> NDArray[Any]:
        return np.asarray(self.column(name))

    @property
    def _crcs(self) -> NDArray[Any]:
        return self._scalars("crc32c")

    @property
    def _keys(self) -> Any:
        return self.column("key")

    def key(self, i: int) -> str:
        """Return the key of record `i`: ``00000042``."""
        return bytes(self._keys[i]).decode("ascii", "replace")
