"""Verifies a pack at a URL: every object is read as a stream, without a cache, and its digest compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, PackerError, StorageError, UsageError, option
from packer.format.index import read_index
from packer.format.jpeg_index_list import JPEG_INDEX_NAME
from packer.format.manifest import MANIFEST_NAME, FileEntry, IndexEntry, Manifest, ShardEntry
from packer.format.objects import jpeg_index_at, manifest_at, objects_in
from packer.format.verify import (
    ALTERED,
    UNUSED,
    OneAtATime,
    Problem,
    VerifyReport,
    check_names,
    row_problems,
)
from packer.format.verify_records import Window, record_problems, text_of
from packer.model.annotation import Progress
from packer.model.columns import column
from packer.stores import open_store
from packer.stores.base import NoObject, Store
from packer.stores.objects import Objects
from packer.stores.threads import all_of, pool

RANGE_BYTES = 8 << 20
OBJECTS_AT_ONCE = 8


def verify_url(url: str, progress: Progress | None = None, deep: bool = False) -> VerifyReport:
    """Verify the pack at `url` as `packer.format.verify.verify` does; every object is read.

    Objects that are not in the manifest are listed as unknown files, shards too: another build of the pack, or an
    earlier one whose readers have not ended, may own them.
    """
    store, progress = open_store(url), progress or Progress()
    if deep:
        step = f"packer pull {store.url} PACK, and packer verify PACK --deep"
        raise UsageError(option("deep"), "needs the pack on this machine", step)
    manifest = manifest_at(store)
    files, wrong = manifest.files, list[Problem]()
    try:
        files += () if (index := jpeg_index_at(store, manifest)) is None else index.files
    except DamagedPack as error:
        wrong = [Problem(JPEG_INDEX_NAME, None, error.problem)]
    total = sum(file.bytes for file in files)
    progress.stage("verifying", total, "bytes")
    check = _Check(store, manifest, files, OneAtATime(progress))
    with pool(OBJECTS_AT_ONCE) as threads:
        found = all_of([threads.submit(check.file, number) for number in range(len(files))])
    problems = [*check_names(manifest), *check.problems(found), *wrong]
    known = {MANIFEST_NAME, *(file.name for file in files), *(problem.file for problem in wrong)}
    unknown = tuple(name for name in objects_in(store) or () if name not in known)
    return VerifyReport(store.url, len(files), manifest.records, total, tuple(problems), unknown)


class _Check:
    """The checks of one pack. Threads may share it."""

    def __init__(self, store: Store, manifest: Manifest, files: Sequence[FileEntry], progress: Progress) -> None:
        self._store, self._manifest, self._files, self._progress = store, manifest, files, progress
        self._objects = Objects(store, [(file.name, file.bytes) for file in files])
        self._shards: dict[str, ShardEntry] = {shard.index.name: shard for shard in manifest.shards}
        self.tables: dict[str, Any] = {}
        """The good indexes, by the name of the container."""

    def file(self, number: int) -> list[Problem]:
        """Read a file of the pack and list what is wrong with it."""
        file = self._files[number]
        is_index, digest, checksum, content = isinstance(file, IndexEntry), hashlib.sha256(), 0, bytearray()
        try:
            found = self._store.size(file.name).size
            if found != file.bytes:
                return [Problem(file.name, None, f"has {found:,} bytes, but the pack says {file.bytes:,}")]
            for start in range(0, file.bytes, RANGE_BYTES):
                data = self._objects.read(number, start, min(start + RANGE_BYTES, file.bytes))
                digest.update(data)
                if is_index:
                    checksum = crc32c(data, checksum)
                    content += memoryview(data)
                self._progress.advance(len(memoryview(data)))
        except NoObject:
            return [Problem(file.name, None, "is missing")]
        except DamagedPack as error:
            return [Problem(file.name, None, error.problem)]
        if digest.hexdigest() != file.sha256:
            return [Problem(file.name, None, ALTERED)]
        if isinstance(file, IndexEntry):
            if checksum != file.crc32c:
                return [Problem(file.name, None, "does not match its checksum in the manifest")]
            return list(self._index(file.name, np.frombuffer(content, np.uint8)))
        return []

    def _index(self, name: str, content: NDArray[np.uint8]) -> Iterator[Problem]:
        shard = self._shards.get(name)
        if shard is None:  # of the index of the JPEGs, whose digest says enough
            return
        try:
            table = read_index(os.path.join(self._store.url, name), content)
            yield from row_problems(table, shard, self._manifest)
        except PackerError as error:
            yield Problem(name, None, error.problem)
            return
        self.tables[shard.container.name] = table

    def problems(self, found: list[list[Problem]]) -> Iterator[Problem]:
        """Return the problems of all files; of altered containers, also the records."""
        for number, file in enumerate(self._files):
            altered = any(problem.problem == ALTERED for problem in found[number])
            records = list(self._records(number)) if altered and file.name in self.tables else None
            yield from found[number] if records != [] else [Problem(file.name, None, f"{ALTERED}; {UNUSED}")]
            yield from records or ()

    def _records(self, number: int) -> Iterator[Problem]:
        """List the records of a container that do not match their checksums."""
        name, size = self._files[number].name, self._files[number].bytes
        table = self.tables[name]
        keys = column(table, "key")
        for row, problem in enumerate(record_problems(_ObjectWindow(self._objects, number, size), table)):
            if problem is not None:
                yield Problem(name, text_of(keys[row]), problem)


class _ObjectWindow(Window):
    """Reads an object one window at a time."""

    ahead_bytes = RANGE_BYTES

    def __init__(self, objects: Objects, number: int, size: int) -> None:
        super().__init__("")
        self._objects, self._number, self.file_bytes = objects, number, size

    def __enter__(self) -> Window:
        return self

    def _read(self, offset: int, size: int) -> None:
        self._start = self._stop = 0
        stop = min(offset + size, self.file_bytes)
        try:
            data = memoryview(self._objects.read(self._number, offset, stop))
        except DamagedPack as error:
            raise StorageError(error.where, error.problem) from None
        self._data, self._start, self._stop = data, offset, offset + len(data)
