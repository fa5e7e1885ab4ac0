"""Verifies a pack: the digest of every file, then every record, then that container and index agree."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from threading import Lock
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.containers import open_container
from packer.errors import AnyPath, DamagedPack, PackerError, StorageError, UsageError, option, plural
from packer.format.digests import crc32c_of, sha256_of
from packer.format.index import read_index
from packer.format.indexes import value_problems
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.make_jpeg_index import find_beside, index_problems
from packer.format.manifest import MANIFEST_NAME, FileEntry, IndexEntry, Manifest, ShardEntry, read_manifest
from packer.format.pack_objects import beside_at, manifest_at, objects_in
from packer.format.sidecar_list import BESIDE
from packer.format.verify_records import (
    DecodeJob,
    IndexRows,
    Problem,
    Window,
    check_images,
    decode_jobs,
    record_problems,
    text_of,
    texts,
)
from packer.model.annotation import Progress
from packer.model.annotation_columns import column
from packer.model.record_json import annotation_json
from packer.stores import open_store
from packer.stores.store import NoObject, PackObjects, Store
from packer.stores.waiting import all_of, pool
from packer.system import usable_cores

__all__ = ["Problem", "VerifyReport", "verify"]

MOST_THREADS = 4
ALTERED = "was altered: its digest does not match the manifest"
UNUSED = (
    "every record matches its CRC-32C: no accident has changed what packer reads, but whoever forges an image can "
    "forge that, too, which only the digest shows; other readers may see other keys, annotations and format bytes"
)
SHARD_NAME = re.compile(r"(shard-\d+(?:-[0-9a-f]{8})?|data(?:-[0-9a-f]{8})?(?=\.(mdb|index\.arrow)$))\.")
"""Start of the file names of a shard; a single LMDB shard is called data.mdb."""
_WRONG = (PackerError, ValueError, IndexError, TypeError, OverflowError)
"""Errors that an invalid row may raise."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`."""

    path: str
    files: int
    records: int
    bytes: int
    problems: tuple[Problem, ...]
    unknown_files: tuple[str, ...] = ()
    """Files in the pack's directory that are not in the manifest. Harmless, because readers never open them."""


def verify(path: AnyPath, progress: Progress | None = None, deep: bool = False) -> VerifyReport:
    """Verify the pack at `path` and list all problems; `packer.format.verify` does it for a URL.

    A file is opened with the library of its format only after its digest has been verified.

    Args:
        path: The directory of the pack.
        progress: Receives the stages verifying (bytes) and, if `deep`, decoding (images).
        deep: Also decode every image, in worker processes, and compare each record of the containers, with its
            annotation, with the index.

    Returns:
        The report; a good pack has no problems.

    Raises:
        UsageError: If `path` is not a pack.
        DamagedPack: If the manifest cannot be trusted.
    """
    folder, progress = os.path.abspath(os.fsdecode(path)), progress or Progress()
    manifest = read_manifest(folder)
    lists, wrong = zip(*(find_beside(kind, folder, manifest) for kind in BESIDE), strict=True)
    beside = [file for listed in lists if listed is not None for file in listed.files]
    report = check_pack(folder, manifest, progress, deep, beside)
    problems = [*report.problems, *chain.from_iterable(wrong)]
    for listed in lists:
        if isinstance(listed, JpegIndexList):
            problems += index_problems(folder, manifest, listed, problems, progress if deep else None)
    return replace(report, problems=tuple(problems))


def check_pack(
    folder: str, manifest: Manifest, progress: Progress, deep: bool = False, beside: Sequence[FileEntry] = ()
) -> VerifyReport:
    """Verify the pack in `folder`, whose manifest has been read already, and files `beside` those of the manifest."""
    looks_like_shards, unknown_files = unlisted(folder, manifest, beside)
    problems = [*check_names(manifest), *looks_like_shards]
    jobs: list[DecodeJob] = []
    files = (*manifest.files, *beside)
    total = sum(file.bytes for file in files)
    progress.stage("verifying", total, "bytes")
    others = (*manifest.companions.values(), *manifest.lists.values(), *beside)
    problems += filter(None, (check_file(folder, manifest, file, progress) for file in others))
    with _checked_files(folder, manifest, progress) as checked:
        for shard, (container, index) in zip(manifest.shards, checked, strict=True):
            check = _ShardCheck(folder, manifest, shard, deep)
            problems += check.problems(container, index)
            jobs += check.jobs
    if jobs:
        progress.stage("decoding", sum(job.rows[1] - job.rows[0] for job in jobs), "images")
        problems += check_images(jobs, progress)
    return VerifyReport(folder, len(files), manifest.records, total, tuple(problems), tuple(unknown_files))


def damaged_files(folder: str, manifest: Manifest, problems: Sequence[Problem]) -> frozenset[str]:
    """Return the names of damaged files, for a repair. Raise UsageError if packer did not write all files itself."""
    if any(manifest.linked.values()):
        first = f": {problems[0]}" if problems else ""
        problem = f"refers to files that other tools wrote, which packer does not repair{first}"
        raise UsageError(folder, problem, "restore the files, or make the pack again")
    return frozenset(problem.file for problem in problems)


def check_file(folder: str, manifest: Manifest, file: FileEntry, progress: Progress) -> Problem | None:
    """Check the size and digest of a file, and the checksum for readers of an index."""
    path = manifest.path_of(folder, file.name)
    try:
        if not os.path.isfile(path):  # reading a pipe would block
            return Problem(file.name, None, "is not a file" if os.path.lexists(path) else "is missing")
        size = os.path.getsize(path)
        if size != file.bytes:
            return Problem(file.name, None, f"has {size:,} bytes, but the pack says {file.bytes:,}")
        if sha256_of(path, progress.advance) != file.sha256:
            return Problem(file.name, None, ALTERED)
        if isinstance(file, IndexEntry) and crc32c_of(path) != file.crc32c:
            return Problem(file.name, None, "does not match its checksum in the manifest")
    except FileNotFoundError:
        return Problem(file.name, None, "is missing")
    except OSError as error:
        return Problem(file.name, None, f"cannot be read: {error.strerror or error}")
    return None


def check_names(manifest: Manifest) -> list[Problem]:
    """List the names that are twice in the manifest."""
    names = [MANIFEST_NAME, *(file.name for file in manifest.files)]
    again = [name for name, times in Counter(names).items() if times > 1]
    return [Problem(name, None, "is listed twice in the manifest") for name in again]


def unlisted(folder: str, manifest: Manifest, beside: Sequence[FileEntry] = ()) -> tuple[list[Problem], list[str]]:
    """Return the files in the directory that are neither in the manifest nor `beside` it.

    Shards and indexes are problems: the pack was combined from two, or files were renamed. Others are only listed.
    """
    listed = {file.name for file in (*manifest.files, *beside)}
    try:
        others = sorted(set(os.listdir(folder)) - listed - {MANIFEST_NAME})
    except OSError as error:
        raise StorageError(folder, error.strerror or str(error)) from None
    shards = [name for name in others if SHARD_NAME.match(name)]
    problems = [Problem(name, None, "looks like a shard, but is not in the manifest") for name in shards]
    return problems, [name for name in others if name not in shards]


class OneAtATime(Progress):
    """Passes on the reports of several threads."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = Lock()

    def advance(self, done: int, bad: int = 0) -> None:
        with self._lock:
            self._progress.advance(done, bad)


Checked = Future[Problem | None]


@contextmanager
def _checked_files(folder: str, manifest: Manifest, progress: Progress) -> Iterator[list[tuple[Checked, Checked]]]:
    """Check the size and digest of each file in background threads.

    Hashing releases the GIL; the checks of records do not, and take about as long.
    """
    progress = OneAtATime(progress)
    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores() - 1))) as pool:
        try:
            files = [
                (pool.submit(check_file, folder, manifest, shard.container, progress), index)
                for shard in manifest.shards
                for index in [pool.submit(check_file, folder, manifest, shard.index, progress)]
            ]
            yield files
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def row_problems(table: Any, shard: ShardEntry, manifest: Manifest) -> Iterator[Problem]:
    """Compare the index of a shard with the manifest."""
    name = shard.index.name
    if len(table) != shard.records:
        yield Problem(name, None, f"has {len(table)} rows, but the pack says {shard.records}")
    keys = texts(column(table, "key"))
    for before, key in pairwise(keys):
        if key <= before:
            yield Problem(name, text_of(key), "does not come after the key before it")
            break
    for row, problem in value_problems(table, manifest):
        yield Problem(name, text_of(keys[row]), problem)


def _differ(a: Mapping[str, tuple[int, int]], b: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether parts are at other places; those without bytes may have none."""
    return {name: place for name, place in a.items() if place[1]} != {name: p for name, p in b.items() if p[1]}


class _ShardCheck:
    """The checks of one shard, except the digests of its files."""

    def __init__(self, folder: str, manifest: Manifest, shard: ShardEntry, deep: bool) -> None:
        self._manifest = manifest
        self._shard = shard
        self._deep = deep
        self._container = manifest.path_of(folder, shard.container.name)
        self._index = os.path.join(folder, shard.index.name)
        self._linked = shard.container.name in manifest.linked
        self.jobs: list[DecodeJob] = []
        """Images to decode."""

    def problems(self, container: Checked, index: Checked) -> list[Problem]:
        """List all problems of the shard, including those of its files from the futures."""
        bad_index, name = index.result(), self._shard.container.name
        table: Any = None
        try:
            table = read_index(self._index) if bad_index is None else None
        except PackerError as error:
            bad_index = Problem(self._shard.index.name, None, error.problem)
        if bad_index is not None:
            return [problem for problem in (container.result(), bad_index) if problem is not None]
        bad: list[Problem] = []
        # records are read without any library, so they need not wait for the container's digest
        if os.path.isfile(self._container):
            keys: Any = column(table, "key")
            found = enumerate(record_problems(self._container, table))
            bad = [Problem(name, text_of(keys[row]), problem) for row, problem in found if problem is not None]
            if self._deep:
                self.jobs = decode_jobs((self._container, self._index), name, len(table), self._manifest)
        altered, rows = container.result(), row_problems(table, self._shard, self._manifest)
        if altered is None:
            return [*bad, *rows, *(self._entries(table) if self._deep and not self._linked else ())]
        if altered.problem == ALTERED and not bad:
            altered = replace(altered, problem=f"{ALTERED}; {UNUSED}")
        return [altered, *bad, *rows]

    def _entries(self, table: Any) -> Iterator[Problem]:
        """Compare the container, read with its own library, with the index.

        If its digest is right it is the file that was read back after it was written: what differs here is a fault of
        packer itself, or a pack that somebody else has made.
        """
        name = self._shard.container.name
        keys = map(text_of, texts(column(table, "key")))
        wanted = list(zip(keys, *(np.asarray(column(table, n)).tolist() for n in ("offset", "size")), strict=True))
        count = 0
        try:
            rows = IndexRows(table, self._index)
            with Window(self._container) as window:
                for row, entry in enumerate(open_container(self._manifest.container).scan(self._container)):
                    count = row + 1
                    if row >= len(wanted):
                        yield Problem(name, entry.key, "is not in the index")
                        continue
                    if entry[:3] != wanted[row] or _differ(entry.parts, rows.places(row)):
                        yield Problem(name, entry.key, "is not where the index says")
                    yield from self._annotation(rows, row, entry.annotation, window)
        except PackerError as error:
            yield Problem(name, None, error.problem)
            return
        except _WRONG as error:
            yield Problem(name, None, f"cannot be read: {error!r}")
            return
        if count < len(wanted):
            yield Problem(name, None, f"holds {plural(count, 'record')}, but the index has {len(wanted):,}")

    def _annotation(self, rows: IndexRows, row: int, text: bytes | None, window: Window) -> Iterator[Problem]:
        try:
            record = rows.record(row, parts=rows.parts(row, window))
            wanted = annotation_json(record, self._manifest.classes).encode("ascii")
        except _WRONG as error:
            yield Problem(self._shard.index.name, rows.key(row), f"has no valid row: {error}")
            return
        if text != wanted:
            problem = "has another annotation in the container than in the index"
            yield Problem(self._shard.container.name, rows.key(row), problem)


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
    for kind in BESIDE:
        try:
            files += () if (listed := beside_at(kind, store, manifest)) is None else listed.files
        except DamagedPack as error:
            wrong.append(Problem(kind.NAME, None, error.problem))
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
        self._objects = PackObjects(store, [(file.name, file.bytes) for file in files])
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
        if shard is None:  # of what is beside the pack, whose digest says enough
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
