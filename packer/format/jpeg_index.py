"""The index of a pack's JPEGs: files beside the shards with which a decoder starts inside a JPEG.

packer/format/jpeg_index_list.py says which files. Each has the rows of a shard, one per record: the index of its JPEG.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack
from packer.format.index import one_batch
from packer.format.indexes import in_memory
from packer.format.jpeg_index_list import JPEG_INDEX_NAME, JpegIndexList, list_text, make_again, parse_jpeg_index_list
from packer.format.mmap import MANY_FILES, map_files
from packer.format.pack import Pack
from packer.system import PORTABLE
from packer.types import Int64

SCHEMA = pa.schema([pa.field("index", pa.large_binary(), nullable=False)])
COLUMN = "index"
MADE_OF = b"packer.jpeg_index"
"""In the metadata of the schema: what the index was made of, as JSON."""
Addresses = NDArray[np.uint64]


def open_jpeg_indexes(pack: Pack) -> JpegIndexes | None:
    """Return the index of a pack's JPEGs; None if it has none.

    Packs at URLs have none for now: their JPEGs are decoded from the start. `packer pull` takes the index along.

    Args:
        pack: An open pack, also a joined one; then records of those of its packs without an index have none.

    Raises:
        DamagedPack: The index was altered, a file is missing, or it was made of other containers.
        StorageError: A file cannot be opened.
    """
    if len(pack.packs) > 1:
        parts = [open_jpeg_indexes(part) for part in pack.packs]
        return JoinedJpegIndexes(pack, parts) if any(part is not None for part in parts) else None
    pack = pack.packs[0]
    if pack.is_remote:
        return None
    while (text := list_text(pack.folder)) is not None:
        problem = None
        try:
            path = os.path.join(pack.folder, JPEG_INDEX_NAME)
            found = JpegIndexes(pack, parse_jpeg_index_list(path, text, pack.manifest, make_again(pack.folder)))
        except DamagedPack as error:
            problem = error.with_location(pack.path)
        if list_text(pack.folder) == text:  # whoever replaces an index removes its list before its files
            if problem is not None:
                raise problem
            return found
    return None


class JpegIndexes:
    """The index of each record of a pack, mapped. The file of a shard is verified when it is first needed.

    It can be shared between threads and forked processes, and is pickled as its pack. `open_jpeg_indexes` opens it.

    Args:
        pack: The open pack.
        listed: The list of its index files.
    """

    def __init__(self, pack: Pack, listed: JpegIndexList) -> None:
        """Map the files. Raise DamagedPack if one is missing or has another size."""
        self._pack, self._listed = pack, listed
        folder, shards = pack.folder, listed.shards
        files = [(os.path.join(folder, shard.index.name), shard.index.bytes) for shard in shards]
        try:
            if PORTABLE:
                self._maps, self._places = map_files(files)
                self._region, self._starts = in_memory([size for _, size in files])
            else:
                # the maps stay those of the files that were there when another index replaces them
                self._region, self._starts = map_files(files, late=len(files) > MANY_FILES)
        except DamagedPack as error:
            raise self._damage(os.path.basename(os.fsdecode(error.where)), error.problem) from None
        self._files = files
        self._bytes = self._region.parts[0]
        self._base = self._bytes.ctypes.data
        self._bounds = self._bytes.view(np.int64)
        counts = [shard.records for shard in pack.shards]
        self._firsts = np.cumsum([0, *counts], dtype=np.int64)
        self._ends = self._firsts[1:].view(np.uint64)  # a negative number, as an unsigned one, is beyond them
        self._open = np.zeros(len(shards), np.bool_)
        # by how much the place of a record's bounds in the view differs from the number of the record
        self._shifts = np.zeros(len(shards), np.int64)
        self._data = np.zeros(len(shards), np.int64)
        """Address of the indexes of each shard."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open_jpeg_indexes, (self._pack,)

    @property
    def interval(self) -> int:
        """Blocks (MCUs) between two entries of an index; 0: an entry per row of blocks."""
        return self._listed.interval

    @property
    def indexed(self) -> int:
        """Number of records with an index."""
        return self._listed.indexed

    def where(self, records: Int64) -> tuple[Addresses, Addresses]:
        """Return where the indexes of `records`, int64 (n,), are in memory. It stays mapped as long as this object.

        Returns:
            The address and the size in bytes of each, uint64 (n,) both; 0 and 0 for a record without an index.

        Raises:
            DamagedPack: The file of a shard was altered; found when it is first needed.
            IndexError: There is no such record.
        """
        shards = self._ends.searchsorted(records.view(np.uint64), "right")
        if not (opened := self._open.take(shards)).all():
            for number in np.unique(shards[~opened]).tolist():
                self._verify(number)
        places = self._shifts.take(shards) + records
        starts = self._bounds.take(places)
        sizes = self._bounds.take(places + 1) - starts
        addresses = (self._data.take(shards) + starts) * (sizes > 0)
        return addresses.view(np.uint64), sizes.view(np.uint64)

    def _verify(self, number: int) -> None:
        """Verify the file of a shard, and note where its column is."""
        path, size = self._files[number]
        entry, start = self._listed.shards[number].index, int(self._starts[number])
        if PORTABLE:
            place = int(self._places[number])
            self._bytes[start : start + size] = np.frombuffer(self._maps.data[place : place + size], np.uint8)
        self._region.map(number)
        data = self._bytes[start : start + size]
        if crc32c(data) != entry.crc32c:
            raise self._damage(entry.name, "was altered: it does not match its checksum")
        try:
            column = index_column(path, data)
        except DamagedPack as error:
            raise self._damage(entry.name, error.problem) from None
        rows = self._pack.shards[number].records
        if len(column) != rows:
            raise self._damage(entry.name, f"has {len(column):,} rows, but the pack says {rows:,}")
        _, bounds, values = column.buffers()
        place = bounds.address - self._base
        if place % 8:
            raise self._damage(entry.name, "has a column that is not aligned")
        # two threads that do this at once write the same numbers
        self._shifts[number] = place // 8 - self._firsts[number]
        self._data[number] = self._base if values is None else values.address
        self._open[number] = True

    def _damage(self, name: str, problem: str) -> DamagedPack:
        path = os.path.join(self._pack.folder, name)
        return DamagedPack(path, problem, make_again(self._pack.folder)).with_location(self._pack.path)


class JoinedJpegIndexes(JpegIndexes):
    """The indexes of several packs that are read as one."""

    def __init__(self, pack: Pack, parts: list[JpegIndexes | None]) -> None:
        self._pack = pack
        self._of = dict(zip(pack.packs, parts, strict=True))

    def _parts(self) -> Iterator[JpegIndexes]:
        return (part for part in self._of.values() if part is not None)

    @property
    def interval(self) -> int:
        return next(self._parts()).interval

    @property
    def indexed(self) -> int:
        return sum(part.indexed for part in self._parts())

    def where(self, records: Int64) -> tuple[Addresses, Addresses]:
        addresses, sizes = np.zeros(len(records), np.uint64), np.zeros(len(records), np.uint64)
        for pack, rows, inside in self._pack.by_pack(records):
            if (part := self._of[pack]) is not None:
                addresses[rows], sizes[rows] = part.where(inside)
        return addresses, sizes


def index_column(path: str, data: NDArray[np.uint8]) -> Any:
    """Return the column of an index file, a pyarrow.LargeBinaryArray over `data`, its content, fully validated.

    Raises:
        DamagedPack: It is not such a file; `path` is for messages.
    """

    def check(batch: Any) -> None:
        if batch.column(COLUMN).null_count:
            raise DamagedPack(path, "has rows without a value")

    return one_batch(path, data, lambda found: found.equals(SCHEMA), check).column(COLUMN)
