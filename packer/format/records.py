"""The bytes of a pack's records: whether they are here, and whether they match their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, UsageError, printable
from packer.format.index import DTYPES, ENCODINGS
from packer.format.indexes import RESTORE
from packer.format.manifest import Manifest
from packer.format.pack_files import PackFiles, PackPlaces
from packer.model.annotation import ENCODINGS as PART_ENCODINGS
from packer.model.annotation import IMAGE, Annotation, Int64, column_of, key_of
from packer.model.fields import CLASS_IDS, with_class_ids
from packer.model.tiles import WINDOW
from packer.system.locks import Locked

if TYPE_CHECKING:
    from packer.format.remote import Remote


IN_BYTES = 1 << 21
"""Up to so many flags have a byte each: picking bits takes 5 % of the time of a batch of raw images."""
_BIT = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.uint8)


class Bits(Locked):
    """`count` flags, all False. Thread-safe; a process may fork while its threads set flags."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._flags = np.zeros(count, np.bool_) if count <= IN_BYTES else None
        self._bytes = np.zeros(-(-count // 8) if self._flags is None else 0, np.uint8)

    def __getitem__(self, numbers: Int64) -> NDArray[np.bool_]:
        """Return the flags of `numbers`, bool (n,)."""
        if self._flags is not None:
            return self._flags[numbers]
        found: NDArray[np.bool_] = self._bytes.take(numbers >> 3) & _BIT.take(numbers & 7) != 0
        return found

    def has(self, number: int) -> bool:
        """Return one flag."""
        if self._flags is not None:
            return bool(self._flags[number])
        return bool(self._bytes[number >> 3] >> (number & 7) & 1)

    def set(self, numbers: Int64) -> None:
        """Set the flags of `numbers`."""
        if self._flags is not None:
            self._flags[numbers] = True
            return
        with self.lock:  # neighbors share a byte
            np.bitwise_or.at(self._bytes, numbers >> 3, _BIT.take(numbers & 7))

    def clear(self, numbers: Int64) -> None:
        """Clear the flags of `numbers`."""
        if self._flags is not None:
            self._flags[numbers] = False
            return
        with self.lock:
            np.bitwise_and.at(self._bytes, numbers >> 3, ~_BIT.take(numbers & 7))


_HERE = nullcontext()


class Records(PackPlaces):
    """The records of an open pack. Its `packer.format.pack.Pack` makes images and annotations of them.

    Args:
        files: The files of the pack, or of several whose records follow one another.
        manifest: What it holds.
    """

    def __init__(self, files: Sequence[PackFiles], manifest: Manifest) -> None:
        super().__init__(files, manifest)
        self._checked = {IMAGE: Bits(len(self)), **{name: Bits(len(self)) for name in self.manifest.parts}}
        """Which records this process has verified, of the image and of each part."""
        self._needed_of: dict[PackFiles, NDArray[np.uint8]] = {}
        self._firsts_in: dict[int, Int64] = {}

    def record(self, i: int) -> memoryview:
        """Return the bytes of record `i` (`Pack.record`)."""
        self._require(i)
        if self.is_remote:
            with self.held(np.array([i])):
                return memoryview(bytes(self._record(i)))  # a copy: its block may be evicted
        return self._record(i)

    def part(self, i: int, name: str) -> bytes | None:
        """Return the bytes of a part of record `i` as they are stored; None if it lacks that part."""
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

    def held(self, records: Int64, names: Sequence[str] = (IMAGE,)) -> AbstractContextManager[Any]:
        """Return a context in which the bytes of `records`, int64 (n,), are in `region`; only a remote pack needs it.

        Args:
            records: Numbers of records.
            names: Which of their parts.

        Raises:
            StorageError: They cannot be fetched.
        """
        if not self.is_remote:
            return _HERE
        if self.remote is not None:
            return self._held(self.files[0], self.remote, records, names)
        with ExitStack() as stack:
            for files, its in self.by_files(records):
                if files.remote is not None:
                    stack.enter_context(self._held(files, files.remote, its, names))
            return stack.pop_all()

    def by_files(self, records: Int64) -> Iterator[tuple[PackFiles, Int64]]:
        """Yield (one of `files`, those of `records` that are in them) for each that has any."""
        if len(self.files) == 1:
            yield self.files[0], records
            return
        for files in self.files:
            if len(its := records[(records >= files.first_record) & (records < files.end)]):
                yield files, its

    def _held(
        self, files: PackFiles, remote: Remote, records: Int64, names: Sequence[str]
    ) -> AbstractContextManager[None]:
        if (whole := remote.whole()) is not None:
            return whole
        blocks = remote.blocks_of(*self.own_places(records, names))
        try:
            held = remote.held(blocks)
        except DamagedPack as error:
            error.with_location(files.path, files.shard_at(error.where))
            raise
        self._forget_evicted(files, remote, blocks)
        return held

    def note_whole(self, files: PackFiles) -> bool:
        """Return whether all records in `files`, which are remote, are here, and stay while all are pinned.

        From then on reading them costs nothing.
        """
        remote = files.remote
        assert remote is not None
        if remote.is_whole():
            return True
        if not self._is_large:
            self.open_all()
        # records of a shard that is not open may be absent
        opened = self._open_shards[files.first_shard :][: len(files.shards)].all()
        if opened and not remote.fetcher.is_busy():
            needed = self._needed(files, remote)
            if (remote.blocks.states >= needed).all():
                self._forget_evicted(files, remote, np.arange(remote.blocks.layout.num_blocks))
                remote.note_whole(needed)
        return remote.is_whole()

    def _needed(self, files: PackFiles, remote: Remote) -> NDArray[np.uint8]:
        """Return whether a record lies in each block of a remote pack: a container has others, too."""
        if (found := self._needed_of.get(files)) is None:
            layout = remote.blocks.layout
            edges = np.zeros(layout.num_blocks + 1, np.int64)
            for places in self._all_places(files):
                first, last = remote.ends_of(*places)
                edges += np.bincount(first, minlength=len(edges)) - np.bincount(last + 1, minlength=len(edges))
            found = self._needed_of[files] = (np.cumsum(edges[:-1]) > 0).astype(np.uint8)
        return found

    def _all_places(self, files: PackFiles) -> Iterator[tuple[Int64, Int64]]:
        """Yield where all records begin in the region of their pack, and their sizes.

        Of each of many shards, that of all its records together.
        """
        if self._is_large:
            spans = self.indexes.spans[files.first_shard :][: len(files.shards)]
            shards = np.flatnonzero(spans[:, 1])
            begins, ends = spans[shards].T
            yield files.starts[shards] + begins, ends - begins
        else:
            step = 1 << 20  # in pieces, to save memory
            for start in range(files.first_record, files.end, step):
                yield self.own_places(np.arange(start, min(start + step, files.end)), [*self._checked])

    def own_places(self, records: Int64, names: Sequence[str] = (IMAGE,)) -> tuple[Int64, Int64]:
        """Return where these parts of `records`, all of one pack, begin in the region of that pack, and their sizes.

        Those that records lack are left out.
        """
        moved = None if self._moves is None else self._moves.take(self._shards_of(records))
        if tuple(names) == (IMAGE,):
            starts, sizes = self.places(records)
            return (starts if moved is None else starts - moved), sizes
        found = [self.places(records, name) for name in names]
        starts, sizes = (np.concatenate(every) for every in zip(*found, strict=True))
        if moved is not None:
            starts = starts - np.tile(moved, len(names))
        return starts[sizes >= 0], sizes[sizes >= 0]

    def _forget_evicted(self, files: PackFiles, remote: Remote, blocks: Int64) -> None:
        """Verify the records of (held) blocks that were evicted again: they were fetched again."""
        for start, stop, extent in remote.evicted(blocks):
            shard = files.first_shard + int(np.searchsorted(files.starts, start, "right")) - 1
            if self._open_shards[shard]:
                records = np.arange(*self._bounds[shard : shard + 2])
                for name, checked in self._checked.items():
                    offsets, sizes = self.places(records, name)
                    offsets = offsets - (0 if self._moves is None else self._moves[shard])
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
        shard = self._shard_of(i)
        if (remote := self.files_of(shard).remote) is not None:
            start, stop = self.span(i, name)
            moved = 0 if self._moves is None else int(self._moves[shard])
            remote.repair(start - moved, stop - moved, lambda data: self._matches(i, name, data))
            if self._matches(i, name, self.region.data[start:stop]):
                return
        what = "does not match its checksum"
        raise self.damage_error(i, what if name == IMAGE else f"has a {name} that {what}")

    def _matches(self, i: int, name: str, data: Any) -> bool:
        wanted = self._value(column_of(name, "crc32c"), i)
        return bool(crc32c(data, crc32c(key_of(self._key(i), name))) == wanted)

    def shape_of(self, i: int) -> tuple[int, int, int]:
        """Return (height, width, channels) of the decoded image of record `i`."""
        self._require(i)
        if self.manifest.shape is not None:
            return self.manifest.shape
        height, width, channels = (self._value(name, i) for name in ("height", "width", "channels"))
        return height, width, channels

    def dtype_of(self, i: int) -> str:
        """Return the dtype of the decoded image of record `i`, uint8 or uint16."""
        self._require(i)
        return self.manifest.dtype or self._named("dtype", DTYPES, i)

    def encoding_of(self, i: int, name: str = IMAGE) -> str:
        """Return the encoding of record `i`: raw, or the format of an image file; or that of one of its parts."""
        self._require(i)
        if name != IMAGE:
            return self._named(column_of(name, "encoding"), PART_ENCODINGS, i)
        encoding = self.manifest.encoding
        return encoding if encoding != "copy" else self._named("encoding", ENCODINGS, i)

    def window(self, i: int) -> Int64 | None:
        """Return `Annotation.window` of record `i` if its image is a window on one that is stored; else None."""
        found = self.windows(np.array([i]))
        return None if found is None else found[0]

    def firsts_of_images(self, records: Int64) -> Int64:
        """Return the first record, in the shard of each of `records`, that shares its stored image."""
        found = np.empty_like(records)
        shards = self._shards_of(records)
        for shard in np.unique(shards).tolist():
            if (firsts := self._firsts_in.get(shard)) is None:
                offsets = self.indexes.offsets(shard)
                _, first, image = np.unique(offsets, return_index=True, return_inverse=True)
                firsts = self._firsts_in[shard] = self._firsts[shard] + first[image]
            mine = shards == shard
            found[mine] = firsts[records[mine] - self._firsts[shard]]
        return found

    def windows(self, records: Int64) -> Int64 | None:
        """Return `Annotation.window` of `records` if their images are windows on those that are stored, int64 (n, 6).

        None: each is stored by itself.

        Raises:
            DamagedPack: A window is not in its image, or of another size than its record.
        """
        if not self.manifest.windows:
            return None
        (rows,) = self.rows([WINDOW], records)
        found = np.array([row if len(row) == 6 else [-1] * 6 for row in rows], np.int64).reshape(-1, 6)
        x, y, width, height, whole_width, whole_height = found.T
        sizes = self.manifest.shape or (self.values(name, records) for name in ("height", "width"))
        tall, wide = [*sizes][:2]
        good = (x >= 0) & (y >= 0) & (x + width <= whole_width) & (y + height <= whole_height)
        good &= (width == wide) & (height == tall) & (width > 0) & (height > 0)
        for row in np.flatnonzero(~good)[:1].tolist():
            raise self.damage_error(
                int(records[row]), f"has the window {found[row].tolist()}, which is none of its image"
            )
        return found

    def _named(self, name: str, names: tuple[str, ...], i: int) -> str:
        code = self._value(name, i)
        if not 0 <= code < len(names):
            raise self.damage_error(i, f"has no valid {name} in the index")
        return names[code]

    def annotation(self, i: int) -> Annotation:
        """Return the annotation of record `i`; its arrays are read-only views of the index."""
        shard, row = self.locate(i)
        files = self.files_of(shard)
        try:
            found = self.indexes.annotations(shard)[row]
        except DamagedPack as error:
            error.with_location(files.path, self.shards[shard].container.name, self.key(i))
            raise
        return found if files.class_ids is None else with_class_ids(found, files.class_ids)

    def shard_columns(self, name: str) -> Iterator[Any]:
        """Yield the column `name` of each shard, not copied."""
        return self.indexes.parts(name)

    def rows(self, names: Sequence[str], records: Int64) -> list[list[Any]]:
        """Return the rows of `records` in each column of lists in `names` (boxes, ...), not copied."""
        shards, found = self._shards_of(records), []
        places = list(zip(shards.tolist(), (records - self._firsts[shards]).tolist(), strict=True))
        for name in names:
            parts: dict[int, Any] = {shard: self.indexes.part(name, shard) for shard, _ in places}
            # not parts[shard][row], whose checks would be half of the time
            cut = {shard: (part.values, part.offsets) for shard, part in parts.items()}
            rows = [cut[s][0][cut[s][1][row] : cut[s][1][row + 1]] for s, row in places]
            if name in CLASS_IDS and len(self.files) > 1:
                rows = [self.indexes.with_class_ids(name, s, row) for (s, _), row in zip(places, rows, strict=True)]
            found.append(rows)
        return found

    def damage_error(self, i: int, problem: str) -> DamagedPack:
        """Return the error that record `i` has this `problem`."""
        number, row = self.locate(i)
        files, shard, key = self.files_of(number), self.shards[number].container.name, self.key(i)
        error = DamagedPack(files.file(shard), f"record {key} (row {row}) {problem}", RESTORE)
        error.record = i
        return error.with_location(files.path, shard, key)

    def _key(self, i: int) -> memoryview:
        records = np.array([i])
        return self.indexes.keys(self._shards_of(records), records)[0]

    def key(self, i: int) -> str:
        """Return the key of record `i`: ``00000042``."""
        self._require(i)
        return bytes(self._key(i)).decode("ascii", "replace")
