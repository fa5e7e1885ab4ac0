"""Verifies a pack in an object store: the digest of every object, and the records of altered ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, PackerError, StorageError, UsageError, option
from packer.format.index import read_index
from packer.format.manifest import FileEntry, IndexEntry, ShardEntry
from packer.format.pack_objects import beside_at, manifest_at, objects_in, objects_of
from packer.format.pack_paths import MANIFEST_NAME
from packer.format.sidecar_list import BESIDE
from packer.format.verify import ALTERED, UNUSED, OneAtATime, VerifyReport, check_names, row_problems
from packer.format.verify_part import Portion, portion_of
from packer.format.verify_records import Problem, Window
from packer.model.annotation import Progress
from packer.stores import open_store
from packer.stores.store import NoObject, PackObjects, Store
from packer.stores.waiting import all_of, pool

RANGE_BYTES = 8 << 20
OBJECTS_AT_ONCE = 8


def verify_url(
    url: str,
    progress: Progress | None = None,
    deep: bool = False,
    subset: str | None = None,
    newer_than: str | None = None,
) -> VerifyReport:
    """Verify the pack at `url` as `packer.format.verify.verify` does; every object is read.

    Objects that are not in the manifest are listed as unknown files, shards too: another build of the pack, or an
    earlier one whose readers have not ended, may own them.
    """
    store, progress = open_store(url), progress or Progress()
    if deep:
        step = f"packer pull {store.url} PACK, and packer verify PACK --deep"
        raise UsageError(option("deep"), "needs the pack on this machine", step)
    manifest, beside, wrong = manifest_at(store), list[FileEntry](), list[Problem]()
    for kind in BESIDE:
        try:
            beside += () if (listed := beside_at(kind, store, manifest)) is None else listed.files
        except DamagedPack as error:
            wrong.append(Problem(kind.NAME, None, error.problem))
    portion = portion_of(manifest, beside, store.origin, subset, newer_than, partial(_modified_at, store))
    progress.stage("verifying", portion.bytes, "bytes")
    check = _Check(store, portion, OneAtATime(progress))
    with portion.interrupted():
        with pool(OBJECTS_AT_ONCE) as threads:
            found = all_of([threads.submit(check.file, number) for number in range(len(portion.files))])
        problems = [*check_names(manifest), *check.problems(found), *wrong]
    there = objects_in(store)
    if there is not None:
        problems += (Problem(file.name, None, "is missing") for file in portion.left_out if file.name not in there)
    known = {MANIFEST_NAME, *(file.name for unit in portion.units for file in unit.files), *(one.file for one in wrong)}
    unknown = tuple(name for name in there or () if name not in known)
    counts = len(portion.files), portion.records, portion.bytes
    return VerifyReport(store.url, *counts, tuple(problems), unknown, portion.finish(problems))


def _modified_at(store: Store, files: Sequence[FileEntry]) -> dict[str, float]:
    """Return when objects were written; those that are missing, or of which the store does not say it, are left out."""
    found = objects_of(store, files)
    return {name: one.modified_s for name, one in found.items() if one is not None and one.modified_s}


class _Check:
    """The checks of one pack. Threads may share it."""

    def __init__(self, store: Store, portion: Portion, progress: Progress) -> None:
        self._store, self._portion, self._progress = store, portion, progress
        self._files = portion.files
        self._objects = PackObjects(store, [(file.name, file.bytes) for file in self._files])
        self._shards: dict[str, ShardEntry] = {shard.index.name: shard for shard in portion.manifest.shards}
        self._in_part = {unit.files[0].name for unit in portion.rows}
        self.tables: dict[str, Any] = {}
        """The good indexes, by the name of the container."""

    def file(self, number: int) -> list[Problem]:
        """Read a file of the pack and list what is wrong with it; of a container in part, with its size."""
        file = self._files[number]
        names = () if file.name in self._in_part else (file.name,)
        return self._portion.found(names, self._file(number, file))

    def _file(self, number: int, file: FileEntry) -> list[Problem]:
        is_index, digest, checksum, content = isinstance(file, IndexEntry), hashlib.sha256(), 0, bytearray()
        try:
            found = self._store.size(file.name).size
            if found != file.bytes:
                return [Problem(file.name, None, f"has {found:,} bytes, but the pack says {file.bytes:,}")]
            if file.name in self._in_part:
                return []
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
        if shard is None:  # of what is beside the pack, whose digest says enough
            return
        try:
            table = read_index(os.path.join(self._store.url, name), content)
            yield from row_problems(table, shard, self._portion.manifest)
        except PackerError as error:
            yield Problem(name, None, error.problem)
            return
        self.tables[shard.container.name] = table

    def problems(self, found: list[list[Problem]]) -> Iterator[Problem]:
        """Return the problems of all files; of altered containers, also the records, and of one in part those rows."""
        for number, file in enumerate(self._files):
            if file.name in self._in_part and file.name in self.tables and not found[number]:
                yield from self._records(number, self._progress)
                continue
            altered = any(problem.problem == ALTERED for problem in found[number])
            records = list(self._records(number)) if altered and file.name in self.tables else None
            yield from found[number] if records != [] else [Problem(file.name, None, f"{ALTERED}; {UNUSED}")]
            yield from records or ()

    def _records(self, number: int, progress: Progress | None = None) -> Iterator[Problem]:
        """List the records of a container that do not match their checksums."""
        name, size = self._files[number].name, self._files[number].bytes
        window = _ObjectWindow(self._objects, number, size)
        return self._portion.record_problems(window, self.tables[name], name, progress or Progress())


class _ObjectWindow(Window):
    """Reads an object one window at a time."""

    ahead_bytes = RANGE_BYTES

    def __init__(self, objects: PackObjects, number: int, size: int) -> None:
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
