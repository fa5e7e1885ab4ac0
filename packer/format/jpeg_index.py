"""The index of a pack's JPEGs: files beside the shards with which a decoder starts inside a JPEG.

packer/format/jpeg_index_list.py says which files. Each has the rows of a shard, one per record: the index of its JPEG.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, StorageError, UsageError
from packer.format.beside import beside_text, parse_beside
from packer.format.index import one_batch
from packer.format.indexes import FETCHED_AT_ONCE, in_memory
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.manifest import IndexEntry
from packer.format.mmap import MANY_FILES, check_files, map_file, map_files
from packer.format.pack import Pack
from packer.format.pack_files import PackFiles
from packer.model.annotation import Int64
from packer.stores import join_url
from packer.stores.waiting import all_of, pool
from packer.system import PORTABLE

if TYPE_CHECKING:
    from packer.format.remote import Remote


SCHEMA = pa.schema([pa.field("index", pa.large_binary(), nullable=False)])
COLUMN = "index"
MADE_OF = b"packer.jpeg_index"
"""In the metadata of the schema: what the index was made of, as JSON."""
Addresses = NDArray[np.uint64]


def open_jpeg_indexes(pack: Pack) -> JpegIndexes | None:
    """Return the index of a pack's JPEGs; None if it has none.

    Of a pack at a URL the file of a shard is fetched when it is first needed, into the cache. If the cache is too small
    for the pack and its index, there is none.

    Args:
        pack: An open pack, also a joined one; then records of those of its packs without an index have none.

    Raises:
        DamagedPack: The index was altered, a file is missing, or it was made of other containers.
        StorageError: A file cannot be opened or fetched.
    """
    while True:
        texts = [
            None if one.remote else beside_text(JpegIndexList, one.folder, one.manifest) for one in pack.reader.files
        ]
        problem, found = None, None
        try:
            listed = [_read_list_file(*each) for each in zip(pack.reader.files, texts, strict=True)]
            if any(listed):
                found = JpegIndexes(pack, listed)
        except DamagedPack as error:
            problem = error
        # whoever replaces an index removes its list before its files
        if texts == [
            None if one.remote else beside_text(JpegIndexList, one.folder, one.manifest) for one in pack.reader.files
        ]:
            if problem is not None:
                raise problem
            return found


def _read_list_file(files: PackFiles, text: bytes | None) -> JpegIndexList | None:
    """Return the list of the index files of a pack, whose `text` it is if the pack is in a folder."""
    if files.remote is not None:
        return _fetch_list(files, files.remote)
    try:
        return None if text is None else parse_beside(JpegIndexList, files.folder, text, files.manifest)
    except DamagedPack as error:
        error.with_location(files.path)
        raise


def _fetch_list(files: PackFiles, remote: Remote) -> JpegIndexList | None:
    """Return the list of the index files of a pack at a URL; None if its cache has no room for them."""
    from packer.format.pack_objects import beside_at

    try:
        listed = beside_at(JpegIndexList, remote.store, files.manifest)
    except DamagedPack as error:
        raise error.with_location(files.path) from None
    except (StorageError, UsageError) as error:
        # a store may refuse to say that there is no such object, and a forked process may not ask
        warnings.warn(f"JPEGs are decoded without an index, if there is one: {error}", stacklevel=2)
        return None
    return listed if listed is not None and remote.fits(listed.bytes) else None


class JpegIndexes:
    """The index of each record of a pack, mapped. The file of a shard is verified when it is first needed.

    It can be shared between threads and forked processes, and is pickled as its pack. `open_jpeg_indexes` opens it.

    Args:
        pack: The open pack.
        listed: The list of the index files of each of `Records.files`; None for one without an index.
    """

    def __init__(self, pack: Pack, listed: Sequence[JpegIndexList | None]) -> None:
        """Map the files. Raise DamagedPack if one is missing or has another size."""
        self._pack, self._listed = pack, listed
        self._entries: list[IndexEntry | None] = []
        self._files: list[tuple[str, int]] = []
        for files, its in zip(pack.reader.files, listed, strict=True):
            entries = [None] * len(files.shards) if its is None else [shard.index for shard in its.shards]
            paths = [(files.manifest.path_of(files.folder, one.name), one.bytes) if one else ("", 0) for one in entries]
            if files.remote is None:
                try:
                    check_files([path for path in paths if path[0]])
                except DamagedPack as error:
                    name = os.path.basename(os.fsdecode(error.where))
                    raise self._damage(files, name, error.problem) from None
            self._entries += entries
            self._files += paths
        self._mapped = all(files.folder for files in pack.reader.files) and not PORTABLE
        if self._mapped:
            self._region, self._starts = map_files(self._files, late=True, check=False)
            for number in range(len(self._files) if len(self._files) <= MANY_FILES else 0):
                if pack.reader.files_of(number).remote is None:
                    # the maps stay those of the files that were there when another index replaces them
                    self._region.map(number)
        else:
            local = [path if pack.reader.files_of(n).remote is None else ("", 0) for n, path in enumerate(self._files)]
            self._maps, self._places = map_files(local, check=False)
            self._region, self._starts = in_memory([size for _, size in self._files])
        self._bytes = self._region.parts[0]
        self._base = self._bytes.ctypes.data
        self._bounds = self._bytes.view(np.int64)
        counts = [shard.records for shard in pack.reader.shards]
        self._firsts = np.cumsum([0, *counts], dtype=np.int64)
        self._ends = self._firsts[1:].view(np.uint64)  # a negative number, as an unsigned one, is beyond them
        self._has = np.array([entry is not None for entry in self._entries])
        self._open = ~self._has
        # by how much the place of a record's bounds in the view differs from the number of the record
        self._shifts = np.zeros(len(counts), np.int64)
        self._data = np.zeros(len(counts), np.int64)
        """Address of the indexes of each shard."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open_jpeg_indexes, (self._pack,)

    @property
    def interval(self) -> int:
        """Blocks (MCUs) between two entries of an index; 0: an entry per row of blocks."""
        return next(one.interval for one in self._listed if one is not None)

    @property
    def indexed(self) -> int:
        """Number of records with an index."""
        return sum(one.indexed for one in self._listed if one is not None)

    def places(self, records: Int64) -> tuple[Addresses, Addresses]:
        """Return where the indexes of `records`, int64 (n,), are in memory. It stays mapped as long as this object.

        Returns:
            The address and the size in bytes of each, uint64 (n,) both; 0 and 0 for a record without an index.

        Raises:
            DamagedPack: The file of a shard was altered; found when it is first needed.
            IndexError: There is no such record.
        """
        if self._pack.manifest.windows:
            records = self._pack.reader.firsts_of_images(records)
        shards = self._ends.searchsorted(records.view(np.uint64), "right")
        if not (opened := self._open.take(shards)).all():
            self._open_new(np.unique(shards[~opened]).tolist())
        places = self._shifts.take(shards) + records
        if self._has.all():
            starts = self._bounds.take(places)
            sizes = self._bounds.take(places + 1) - starts
        else:
            has = self._has.take(shards)
            places *= has
            starts = self._bounds.take(places)
            sizes = (self._bounds.take(places + 1) - starts) * has
        addresses = (self._data.take(shards) + starts) * (sizes > 0)
        return addresses.view(np.uint64), sizes.view(np.uint64)

    def _open_new(self, numbers: list[int]) -> None:
        if not self._pack.reader.is_remote or len(numbers) == 1:
            for number in numbers:
                self._verify(number)
        else:
            with pool(FETCHED_AT_ONCE) as threads:
                all_of([threads.submit(self._verify, number) for number in numbers])

    def _content(self, number: int, again: bool) -> NDArray[np.uint8]:
        """Return the content of the file of a shard, which is fetched `again` if it came wrong."""
        size, start = self._files[number][1], int(self._starts[number])
        fetched, files, entry = None, self._pack.reader.files_of(number), self._entries[number]
        assert entry is not None
        if files.remote is not None:
            lock = len(files.shards) + number - files.first_shard
            try:
                fetched = files.remote.file(entry, lock, again)
            except DamagedPack as error:
                raise self._damage(files, entry.name, error.problem) from None
        if self._mapped:
            self._region.map(number, again)
        else:
            if fetched is None and files.remote is not None:  # its file is in the cache
                fetched = map_file(*self._files[number])
            elif fetched is None:
                place = int(self._places[number])
                fetched = np.frombuffer(self._maps.data[place : place + size], np.uint8)
            self._bytes[start : start + size] = fetched
        return self._bytes[start : start + size]

    def _verify(self, number: int) -> None:
        """Verify the file of a shard, and note where its column is."""
        path, entry, files = self._files[number][0], self._entries[number], self._pack.reader.files_of(number)
        assert entry is not None
        data = self._content(number, again=False)
        if crc32c(data) != entry.crc32c and files.remote is not None:
            data = self._content(number, again=True)
        if crc32c(data) != entry.crc32c:
            raise self._damage(files, entry.name, "was altered: it does not match its checksum")
        try:
            column = index_column(path, data)
        except DamagedPack as error:
            raise self._damage(files, entry.name, error.problem) from None
        rows = self._pack.reader.shards[number].records
        if len(column) != rows:
            raise self._damage(files, entry.name, f"has {len(column):,} rows, but the pack says {rows:,}")
        _, bounds, values = column.buffers()
        place = bounds.address - self._base
        if place % 8:
            raise self._damage(files, entry.name, "has a column that is not aligned")
        # two threads that do this at once write the same numbers
        self._shifts[number] = place // 8 - self._firsts[number]
        self._data[number] = self._base if values is None else values.address
        self._open[number] = True

    def _damage(self, files: PackFiles, name: str, problem: str) -> DamagedPack:
        where = join_url(files.path, name) if files.remote else files.manifest.path_of(files.path, name)
        return DamagedPack(where, problem, JpegIndexList.again(files.path)).with_location(files.path)


def index_column(path: str, data: NDArray[np.uint8]) -> Any:
    """Return the column of an index file, a pyarrow.LargeBinaryArray over `data`, its content, fully validated.

    Raises:
        DamagedPack: It is not such a file; `path` is for messages.
    """

    def check(batch: Any) -> None:
        if batch.column(COLUMN).null_count:
            raise DamagedPack(path, "has rows without a value")

    return one_batch(path, data, lambda found: found.equals(SCHEMA), check).column(COLUMN)
