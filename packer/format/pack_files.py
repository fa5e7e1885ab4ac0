"""The files of one pack or several, on this machine or at a URL, and where in them the records lie."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError
from packer.format.indexes import FETCHED_AT_ONCE, Indexes, IndexFiles
from packer.format.manifest import Manifest, ShardEntry, read_manifest
from packer.format.mmap import MANY_FILES, Region, joined_region, map_files
from packer.model.annotation import IMAGE, Int64, column_of
from packer.model.annotation_columns import Ragged
from packer.stores import clean_url, is_url, join_url
from packer.stores.cache import origin_of
from packer.stores.waiting import all_of, pool

if TYPE_CHECKING:
    from packer.format.remote import Remote


@dataclass(frozen=True, eq=False)
class PackFiles:
    """The files of one pack. An open pack (`packer.format.pack.Pack`) reads those of one, or of several.

    Attributes:
        path: The directory of the pack, or its URL.
        folder: Where its files are on this machine; "" if they are in memory.
        manifest: Its manifest.
        region: The bytes of its containers.
        starts: The offset in `region` at which each shard begins.
        remote: What fetches a pack at a URL; None: it is in a directory.
        cache_options: Folder and size of the cache as they were given, to open the pack again.
        first_shard: The number of its first shard in the open pack.
        first_record: The number of its first record in the open pack.
        class_ids: The class id in the open pack of each class of this one, and -1 for none at the end. None: the same.
    """

    path: str
    folder: str
    manifest: Manifest
    region: Region
    starts: Int64
    remote: Remote | None = None
    cache_options: tuple[AnyPath | None, int | str | None] = None, None
    first_shard: int = 0
    first_record: int = 0
    class_ids: NDArray[Any] | None = None

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        """Its shards."""
        return self.manifest.shards

    @property
    def end(self) -> int:
        """The number of the record after its last one in the open pack."""
        return self.first_record + self.manifest.records

    def file(self, name: str) -> str:
        """Return the path or URL of one of its files."""
        return join_url(self.path, name) if self.remote else self.manifest.path_of(self.path, name)

    def shard_at(self, file: AnyPath) -> str | None:
        """Return the shard that a file of this pack belongs to; None for the manifest."""
        return _shard_at(self.shards, file)

    def index_files(self) -> IndexFiles:
        """Return its indexes, to open them."""
        content = None if self.remote is None else self.remote.index
        return IndexFiles(self.folder, self.shards, self.manifest, content, self.class_ids)


def open_files(path: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> PackFiles:
    """Open the files of a pack.

    Args:
        path: The directory of the pack, or its URL.
        cache_dir: The folder where packs at URLs are kept.
        cache_bytes: The size of that folder at most.

    Raises:
        PackNotFound: The directory is not a pack.
        DamagedPack: The manifest was altered, or a file is missing or has another size.
        StorageError: A file or the store cannot be read.
    """
    options = cache_dir, cache_bytes
    name = clean_url(path) if is_url(path) else os.path.abspath(os.fsdecode(path))
    try:
        return _at_url(name, path, options) if is_url(path) else _in_folder(name, options)
    except DamagedPack as error:
        error.with_location(name)
        raise


def _at_url(url: str, path: AnyPath, options: tuple[AnyPath | None, int | str | None]) -> PackFiles:
    from packer.format.remote import open_remote

    remote = open_remote(path, *options)
    return PackFiles(url, remote.folder, remote.manifest, remote.region, remote.starts, remote, options)


def _in_folder(folder: str, options: tuple[AnyPath | None, int | str | None]) -> PackFiles:
    if (origin := origin_of(folder)) is not None:
        raise UsageError(folder, "is packer's cache of a pack at a URL", f"open {origin['url']}")
    manifest = read_manifest(folder)
    files = [(manifest.path_of(folder, s.container.name), s.container.bytes) for s in manifest.shards]
    try:
        # of many files, each is mapped when it is first read; of few all are, so that errors come early
        region, starts = map_files(files, late=len(files) > MANY_FILES)
    except DamagedPack as error:
        error.with_location(folder, _shard_at(manifest.shards, error.where))
        raise
    return PackFiles(folder, folder, manifest, region, starts, cache_options=options)


def _shard_at(shards: tuple[ShardEntry, ...], file: AnyPath) -> str | None:
    name = os.path.basename(os.fsdecode(file))
    return next((s.container.name for s in shards if name in (s.container.name, s.index.name)), None)


FILES_AT_ONCE = 8
"""On a file server, each file takes a while."""
MANY_RECORDS = 1 << 21
"""Of more records, no number is kept for each of them: 2,097,152 places take 32 MB in every process."""


class PackPlaces:
    """The files of an open pack, and where its records lie in them.

    Args:
        files: Those of the pack, or of several whose records follow one another.
        manifest: What it holds.
    """

    def __init__(self, files: Sequence[PackFiles], manifest: Manifest) -> None:
        self.files = tuple(files)
        self.manifest = manifest
        self.path = " + ".join(one.path for one in files)
        self.shards: tuple[ShardEntry, ...] = tuple(chain.from_iterable(one.shards for one in files))
        one = files[0] if len(files) == 1 else None
        self.remote = one.remote if one else None
        """What fetches a pack at a URL; None: it is in a directory, or joined."""
        self.is_remote = any(its.remote is not None for its in files)
        """Whether records are fetched from a store, and may be evicted again."""
        self.folder = one.folder if one else ""
        """Where its files are on this machine; "" if they are in memory, or in the folders of several packs."""
        self.cache_options = one.cache_options if one else (None, None)
        self._of = [number for number, its in enumerate(files) for _ in its.shards]
        """Which of `files` each shard is in."""
        self._moves: Int64 | None = None
        """By how much the bytes of each shard lie elsewhere in `region` than in that of its pack; None: they do not."""
        self.region, self._starts = files[0].region, files[0].starts
        """The bytes of all container files, and the offset at which each begins."""
        if one is None:
            self.region, self._starts = joined_region([(its.region, its.starts) for its in files])
            self._moves = self._starts - np.concatenate([its.starts for its in files])
        try:
            self.indexes = Indexes(*(its.index_files() for its in files))
        except DamagedPack as error:
            if one is not None:
                error.with_location(one.path, one.shard_at(error.where))
            raise
        self._bounds = [0, *accumulate(shard.records for shard in self.shards)]
        self._firsts = np.array(self._bounds, np.int64)
        """The first record of each shard, and the end."""
        self._ends = self._firsts[1:].view(np.uint64)  # a negative number, as an unsigned one, is beyond them
        self._open_shards = np.zeros(len(self.shards), np.bool_)

    def __len__(self) -> int:
        return self.manifest.records

    # -- where things lie

    @property
    def _is_large(self) -> bool:
        """Whether each shard is opened when it is first read. Of other packs all are, so that errors come early."""
        return len(self.shards) > MANY_FILES

    @cached_property
    def record_bytes(self) -> int | None:
        """Bytes per record if all are raw images of one shape, else None."""
        if self._one_size is not None and not self._is_large:
            self.open_all()
        return self._one_size

    @property
    def _one_size(self) -> int | None:
        shape, manifest = self.manifest.shape, self.manifest
        if manifest.encoding != "raw" or shape is None or manifest.dtype is None:
            return None
        return math.prod(shape) * np.dtype(manifest.dtype).itemsize

    def places(self, records: Int64, name: str = IMAGE) -> tuple[Int64, Int64]:
        """Return where the images, or this part, of `records`, int64 (n,), begin in `region`, and their sizes.

        Both are int64 (n,); the size is -1 for a record that lacks the part.
        """
        if name == IMAGE and (found := self._all_at_hand) is not None:
            return found[0].take(records), found[1].take(records)
        return self._looked_up(records, name)

    @cached_property
    def _all_at_hand(self) -> tuple[Int64, Int64] | None:
        """The places of all records, if they are few: it saves a tenth of the time that tiny images take."""
        return self._looked_up(np.arange(len(self))) if self._has_few_records else None

    @property
    def _has_few_records(self) -> bool:
        return not self._is_large and len(self) <= MANY_RECORDS

    def _looked_up(self, records: Int64, name: str = IMAGE) -> tuple[Int64, Int64]:
        shards = self._shards_of(records)
        offsets = self.indexes.values(column_of(name, "offset"), shards, records) + self._starts.take(shards)
        return offsets, self.indexes.values(column_of(name, "size"), shards, records)

    def values(self, name: str, records: Int64) -> NDArray[Any]:
        """Return the values of `records`, int64 (n,), in a column of `indexes.NUMBERS`, (n,)."""
        if self._has_few_records:
            found: NDArray[Any] = np.asarray(self.column(name)).take(records)
            return found
        return self.indexes.values(name, self._shards_of(records), records)

    def _shards_of(self, records: Int64) -> Int64:
        """Return the shard of each record, and open those that are new."""
        shards = self._ends.searchsorted(records.view(np.uint64), "right")
        try:
            opened = self._open_shards.take(shards)
        except IndexError:
            self._require(int(records[shards == len(self.shards)][0]))
            raise
        if not opened.all():
            self._open_new(np.unique(shards[~opened]) if self._is_large else np.flatnonzero(~self._open_shards))
        return shards

    def _value(self, name: str, i: int) -> int:
        return self.indexes.value(name, self._shard_of(i), i)

    def _shard_of(self, i: int) -> int:
        """Return the shard of one record, open."""
        shard, _ = self.locate(i)
        if not self._open_shards[shard]:
            self._shards_of(np.array([i]))
        return shard

    def open_all(self) -> None:
        """Open all shards. Raise DamagedPack if an index was altered, or makes no sense."""
        self._open_new(np.flatnonzero(~self._open_shards))

    def _open_new(self, shards: Int64) -> None:
        if self._is_large and len(shards) > 1:
            with pool(FETCHED_AT_ONCE if self.is_remote else FILES_AT_ONCE) as threads:
                all_of([threads.submit(self._read_files, number) for number in shards.tolist()])
        for number in shards.tolist():
            try:
                if self._is_large:
                    self._map(number)
                self.indexes.prepare(number, self._one_size)
            except DamagedPack as error:
                error.with_location(self.files_of(number).path, self.shards[number].container.name)
                raise
            self._open_shards[number] = True

    def _read_files(self, number: int) -> None:
        with suppress(DamagedPack):  # raised again when the shard is opened
            self._map(number)
        self.indexes.read(number)

    def _map(self, number: int) -> None:
        files = self.files_of(number)
        files.region.map(number - files.first_shard)

    def pack_at(self, i: int) -> int:
        """Return which of `files` record `i` is in."""
        return self._of[self.locate(i)[0]]

    def files_of(self, number: int) -> PackFiles:
        """Return the files of the pack that a shard is from."""
        return self.files[self._of[number]]

    def approximate_extents(self, runs: Int64) -> tuple[Int64, Int64]:
        """Return the places (`places`) of all records in runs; in a large pack, of each run, as if its records had even
        sizes, so that no index is needed.

        Args:
            runs: The first record of each and the one after its last, both of one shard, int64 (n, 2).
        """
        if not self._is_large:
            return self.places(np.concatenate([np.arange(*run) for run in runs.tolist()]))
        shards = self._firsts.searchsorted(runs[:, 0], "right") - 1
        firsts, ends = self._firsts[shards], self._firsts[shards + 1]
        each = np.array([self.shards[shard].container.bytes for shard in shards.tolist()]) / (ends - firsts)
        begins, stops = ((runs - firsts[:, None]) * each[:, None]).astype(np.int64).T
        return self._starts[shards] + begins, stops - begins

    def locate(self, i: int) -> tuple[int, int]:
        """Return (number of its shard, row in that shard) of record `i`."""
        self._require(i)
        shard = bisect_right(self._bounds, i) - 1
        return shard, i - self._bounds[shard]

    def _require(self, i: int) -> None:
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return a column of the index over all shards (`Pack.column`)."""
        return self.indexes.column(name)
