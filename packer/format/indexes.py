"""The indexes of a pack. Each is opened when first needed, and verified against its checksum before use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedPack, StorageError
from packer.format.columns import Annotations, column
from packer.format.digests import crc32c_of
from packer.format.index import read_index
from packer.format.manifest import ShardEntry
from packer.format.mmap import check_size, map_files
from packer.format.ragged import Ragged
from packer.types import Int64

Content = NDArray[np.uint8]
RESTORE = "run packer verify, and restore the file or build the pack again"


class Indexes:
    """The indexes of all shards, by shard number. Thread-safe: two threads that open one at once get equal results."""

    def __init__(
        self, folder: str, shards: Sequence[ShardEntry], content: Callable[[int, bool], Content | None] | None = None
    ) -> None:
        """Check only the sizes of the files. Raise DamagedPack if one is missing or has another size.

        Args:
            folder: The pack.
            shards: Its shards.
            content: Returns the bytes of an index that is not a file; else it fetches the file again if its second
                argument is true. None: the files are not fetched.
        """
        self._content = content
        self._folder = folder
        self._shards = shards
        self._tables: list[Any] = [None] * len(shards)
        self._annotations: list[Annotations | None] = [None] * len(shards)
        self._columns: dict[str, NDArray[Any] | Ragged] = {}
        self._parts: dict[str, list[NDArray[Any] | Ragged]] = {}
        for number, shard in enumerate(shards):
            if folder:
                check_size(self.path(number), shard.index.bytes)
            if shard.records > shard.index.bytes:  # checked before anything is allocated per record
                problem = f"has {shard.index.bytes} bytes, too few for {shard.records} rows"
                raise DamagedPack(self.path(number), problem, RESTORE)

    def path(self, number: int) -> str:
        """Return the file of a shard's index."""
        return os.path.join(self._folder, self._shards[number].index.name)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Any:
        """Return the table of a shard. Raise DamagedPack if the file was altered."""
        table = self._tables[number]
        if table is None:
            try:
                table = self._tables[number] = self._open(number)
            except DamagedPack as error:
                error.with_location(self._folder, self._shards[number].container.name)
                raise
        return table

    def _open(self, number: int) -> Any:
        path, shard = self.path(number), self._shards[number]
        data = None if self._content is None else self._content(number, False)
        if data is None:
            data, found = self._mapped(number)
            if found != shard.index.crc32c and self._content is not None:
                self._content(number, True)
                data, found = self._mapped(number)
            if found != shard.index.crc32c:
                raise DamagedPack(path, "was altered: it does not match its checksum", RESTORE)
        table = read_index(path, data)
        if len(table) != shard.records:
            raise DamagedPack(path, f"has {len(table)} rows, but the pack says {shard.records}", RESTORE)
        return table

    def _mapped(self, number: int) -> tuple[Content, int]:
        """Return the content of an index file, and its checksum."""
        path, size = self.path(number), self._shards[number].index.bytes
        region, _ = map_files([(path, size)])
        try:
            return region.parts[0][:size], crc32c_of(path)
        except FileNotFoundError:
            raise DamagedPack(path, "is missing", "restore it or build the pack again") from None
        except OSError as error:
            raise StorageError(path, error.strerror or str(error)) from None

    def annotations(self, number: int) -> Annotations:
        """Return the annotations of a shard."""
        found = self._annotations[number]
        if found is None:
            found = self._annotations[number] = Annotations(self[number], self.path(number))
        return found

    def offsets(self, number: int) -> Int64:
        """Return where the records of a shard begin in its container, int64 (n,); checked for bounds and overlap."""
        shard, table = self._shards[number], self[number]
        offsets, sizes = np.asarray(column(table, "offset")), np.asarray(column(table, "size"))
        outside = lies_outside(offsets, sizes, shard.container.bytes)
        if outside.any() or overlapping(offsets, sizes, ~outside).any():
            problem = "has offsets outside its shard" if outside.any() else "has overlapping records"
            error = DamagedPack(self.path(number), problem, RESTORE)
            raise error.with_location(self._folder, shard.container.name)
        return offsets

    def parts(self, name: str) -> list[NDArray[Any] | Ragged]:
        """Return the column of each shard (`packer.format.columns.column`), mapped, not copied."""
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = [column(self[number], name) for number in range(len(self._shards))]
        return found

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return a column over all shards (`packer.format.columns.column`)."""
        found = self._columns.get(name)
        if found is None:
            parts = self.parts(name)
            if ragged := [part for part in parts if isinstance(part, Ragged)]:
                found = Ragged.concat(ragged)
            else:
                found = np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])
                found.flags.writeable = False  # all callers share it
            self._columns[name] = found
        return found


def lies_outside(offsets: NDArray[Any], sizes: NDArray[Any], limit: int) -> NDArray[np.bool_]:
    """Return which ranges exceed a file of `limit` bytes, bool (n,). The inputs are int64 (n,), with any values."""
    return (offsets < 0) | (sizes < 0) | (sizes > limit) | (offsets > limit - sizes)


def overlapping(offsets: NDArray[Any], sizes: NDArray[Any], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which ranges overlap one that begins earlier, bool (n,). Only the ranges in `among` are compared."""
    wrong = np.zeros(len(offsets), np.bool_)
    rows = np.flatnonzero(among)
    starts = offsets[rows]
    if np.any(starts[1:] < starts[:-1]):  # rare: every container but LMDB writes its records in order
        rows = rows[np.argsort(starts, kind="stable")]
        starts = offsets[rows]
    ends = np.maximum.accumulate(starts + sizes[rows])
    wrong[rows[1:][starts[1:] < ends[:-1]]] = True
    return wrong
