"""The bytes of a pack's records: whether they are here, and whether they match their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError, printable
from packer.format.bits import Bits
from packer.format.indexes import RESTORE
from packer.format.places import Places
from packer.model.annotation import Int64
from packer.model.parts import IMAGE, column_of, key_of

if TYPE_CHECKING:
    from packer.format.remote import Remote

_HERE = nullcontext()


class Records(Places):
    """The records of an open pack. Its `packer.format.pack.Pack` makes images and annotations of them.

    Args:
        path: The directory of the pack, or its URL.
        cache_dir: The folder where packs at URLs are kept.
        cache_bytes: The size of that folder at most.
    """

    def __init__(self, path: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> None:
        super().__init__(path, cache_dir, cache_bytes)
        self._checked = {IMAGE: Bits(len(self)), **{name: Bits(len(self)) for name in self.manifest.parts}}
        """Which records this process has verified, of the image and of each part."""

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

    def part(self, i: int, name: str) -> bytes | None:
        """Return the bytes of a part of record `i`; None if it lacks that part.

        Args:
            i: Number of the record.
            name: One of `Manifest.parts`.

        Raises:
            DamagedPack: They do not match their checksum, which is verified when this process first reads them.
            UsageError: The pack has no such part.
        """
        self._require(i)
        if name not in self.manifest.parts:
            has = ", ".join(self.manifest.parts) or "nothing but images"
            raise UsageError(self.path, f"has no part {printable(name)}", f"its records have {has}")
        with self.held(np.array([i]), (name,)):
            return bytes(self._record(i, name)) if self._value(column_of(name, "size"), i) >= 0 else None

    def _record(self, i: int, name: str = IMAGE) -> memoryview:
        if not self._checked[name].has(i):
            self._check_unseen(np.array([i]), name)
        start, stop = self.span(i, name)
        data: memoryview = self.region.data[start:stop]
        return data

    def span(self, i: int, name: str = IMAGE) -> tuple[int, int]:
        """Return where the bytes of the image, or of a part, of record `i` begin and end in `region`."""
        shard = self._shard_of(i)
        start = int(self._starts[shard]) + self.indexes.value(column_of(name, "offset"), shard, i)
        return start, start + self.indexes.value(column_of(name, "size"), shard, i)

    def held(self, records: Int64, names: Sequence[str] = (IMAGE,)) -> AbstractContextManager[None]:
        """Return a context in which the bytes of `records`, int64 (n,), are in `region`; only a remote pack needs it.

        Args:
            records: Numbers of records.
            names: Which of their parts.

        Raises:
            StorageError: They cannot be fetched.
        """
        return _HERE if self.remote is None else self._held(self.remote, records, names)

    def _held(self, remote: Remote, records: Int64, names: Sequence[str]) -> AbstractContextManager[None]:
        if (whole := remote.whole()) is not None:
            return whole
        blocks = remote.blocks_of(*self._ranges(records, names))
        try:
            held = remote.held(blocks)
        except DamagedPack as error:
            error.with_location(self.path, self._shard_at(error.where))
            raise
        self._forget_evicted(remote, blocks)
        return held

    def note_whole(self, remote: Remote) -> bool:
        """Return whether all records are here, and stay while all are pinned; from then on reading costs nothing."""
        if remote.is_whole():
            return True
        if not self._is_large:
            self.open_all()
        # records of a shard that is not open may be absent
        known = self._open_shards.all() and not remote.is_fetching()
        if known and (remote.blocks.states >= self._needed).all():
            self._forget_evicted(remote, np.arange(remote.blocks.layout.num_blocks))
            remote.note_whole(self._needed)
        return remote.is_whole()

    @cached_property
    def _needed(self) -> NDArray[np.uint8]:
        """Whether a record lies in each block of a remote pack: a container has others, too."""
        assert self.remote is not None
        layout = self.remote.blocks.layout
        edges = np.zeros(layout.num_blocks + 1, np.int64)
        for places in self._all_places():
            first, last = self.remote.ends_of(*places)
            edges += np.bincount(first, minlength=len(edges)) - np.bincount(last + 1, minlength=len(edges))
        return (np.cumsum(edges[:-1]) > 0).astype(np.uint8)

    def _all_places(self) -> Iterator[tuple[Int64, Int64]]:
        """Yield where all records begin, and their sizes; of each of many shards, that of all its records together."""
        if self._is_large:
            shards = np.flatnonzero(self.indexes.spans[:, 1])
            begins, ends = self.indexes.spans[shards].T
            yield self._starts[shards] + begins, ends - begins
        else:
            for start in range(0, len(self), 1 << 20):  # in pieces, to save memory
                yield self._ranges(np.arange(start, min(start + (1 << 20), len(self))), [*self._checked])

    def _ranges(self, records: Int64, names: Sequence[str]) -> tuple[Int64, Int64]:
        """Return where these parts of records begin, and their sizes, without those that records lack."""
        if tuple(names) == (IMAGE,):
            return self.places(records)
        offsets, sizes = (
            np.concatenate(every) for every in zip(*(self.places(records, n) for n in names), strict=True)
        )
        return offsets[sizes >= 0], sizes[sizes >= 0]

    def _forget_evicted(self, remote: Remote, blocks: Int64) -> None:
        """Verify the records of (held) blocks that were evicted again: they were fetched again."""
        for start, stop, extent in remote.evicted(blocks):
            shard = int(np.searchsorted(self._starts, start, "right")) - 1
            if self._open_shards[shard]:
                records = np.arange(*self._bounds[shard : shard + 2])
                for name, checked in self._checked.items():
                    offsets, sizes = self.places(records, name)
                    checked.clear(records[(offsets < stop) & (offsets + sizes > start)])
            remote.seen(extent)

    def check(self, records: Int64, names: Sequence[str] = (IMAGE,)) -> None:
        """Verify the checksums of `records`, int64 (n,), unless this process has already done so; of these parts."""
        for name in names:
            seen = self._checked[name][records]
            if np.count_nonzero(seen) < len(seen):
                self._check_unseen(records[~seen], name)

    def _check_unseen(self, records: Int64, name: str = IMAGE) -> None:
        data, shards, places = self.region.data, self._shards_of(records), self.places(records, name)
        rows = (records, *places, self.indexes.values(column_of(name, "crc32c"), shards, records))
        keys: list[Any] = self.indexes.keys(shards, records)
        if name != IMAGE:
            keys = [key_of(key, name) for key in keys]
        # lists of Python numbers: this loop takes most of the first epoch, and numpy scalars would double its time
        for i, start, size, crc, key in zip(*(numbers.tolist() for numbers in rows), keys, strict=True):
            if size >= 0 and crc32c(data[start : start + size], crc32c(key)) != crc:
                self._repair(i, name)
        self._checked[name].set(records)

    def _repair(self, i: int, name: str) -> None:
        """Fetch a remote record again that does not match its checksum. Raise DamagedPack if that does not help."""
        if self.remote is not None:
            start, stop = self.span(i, name)
            self.remote.repair(start, stop, lambda data: self._matches(i, name, data))
            if self._matches(i, name, self.region.data[start:stop]):
                return
        what = "does not match its checksum"
        self._damaged(i, what if name == IMAGE else f"has a {name} that {what}")

    def _matches(self, i: int, name: str, data: Any) -> bool:
        wanted = self._value(column_of(name, "crc32c"), i)
        return bool(crc32c(data, crc32c(key_of(self._key(i), name))) == wanted)

    def damage(self, i: int, problem: str) -> DamagedPack:
        """Return the error that record `i` has this `problem`."""
        number, row = self.locate(i)
        shard, key = self.shards[number].container.name, self.key(i)
        error = DamagedPack(self._file(shard), f"record {key} (row {row}) {problem}", RESTORE)
        return error.with_location(self.path, shard, key)

    def _damaged(self, i: int, problem: str) -> NoReturn:
        raise self.damage(i, problem)

    def _key(self, i: int) -> memoryview:
        records = np.array([i])
        return self.indexes.keys(self._shards_of(records), records)[0]

    def key(self, i: int) -> str:
        """Return the key of record `i`: ``00000042``."""
        self._require(i)
        return bytes(self._key(i)).decode("ascii", "replace")
