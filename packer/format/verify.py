"""Verifies a pack: the digest of every file, then every record, then that container and index agree."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from threading import Lock
from typing import Any

import numpy as np

from packer.containers import open_container
from packer.errors import AnyPath, PackerError, StorageError, UsageError, plural
from packer.format.beside import BesideList, list_text
from packer.format.digests import crc32c_of, sha256_of
from packer.format.index import read_index
from packer.format.indexes import value_problems
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.make_jpeg_index import find_beside, index_problems
from packer.format.manifest import FileEntry, IndexEntry, Manifest, ShardEntry, read_manifest
from packer.format.pack_paths import MANIFEST_NAME, VERSIONS, numbers_in, own_folder
from packer.format.sidecar_list import BESIDE
from packer.format.verify_part import Portion, VerifiedPart, portion_of, whole_of
from packer.format.verify_records import (
    DecodeJob,
    IndexRows,
    Problem,
    Window,
    check_images,
    decode_jobs,
    text_of,
    texts,
)
from packer.format.versions import files_of_versions
from packer.model.annotation import Progress
from packer.model.annotation_columns import column
from packer.model.record_json import annotation_json
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
    part: VerifiedPart | None = None
    """Which part was verified. None: everything."""


def verify(
    path: AnyPath,
    progress: Progress | None = None,
    deep: bool = False,
    subset: str | None = None,
    newer_than: str | None = None,
) -> VerifyReport:
    """Verify the pack at `path` and list all problems; `packer.format.verify_url` does it for a URL.

    A file is opened with the library of its format only after its digest has been verified.

    Args:
        path: The directory of the pack.
        progress: Receives the stages verifying (bytes) and, if `deep`, decoding (images).
        deep: Also decode every image, in worker processes, and compare each record of the containers, with its
            annotation, with the index.
        subset: Verify only a part, ``1/7``, ``5%`` or ``10GB``: the shards that calls with `subset` have verified
            longest ago. The user's state folder remembers when that was.
        newer_than: Verify only the files that were written within an age, ``7d``, or since a date, ``2026-11-20``.

    Returns:
        The report; a good pack has no problems.

    Raises:
        UsageError: If `path` is not a pack, or an option is wrong.
        DamagedPack: If the manifest cannot be trusted.
        StorageError: If what was verified when cannot be kept.
    """
    folder, progress = os.path.abspath(os.fsdecode(path)), progress or Progress()
    manifest = read_manifest(folder)
    lists, wrong = zip(*(find_beside(kind, folder, manifest) for kind in BESIDE), strict=True)
    beside = [file for listed in lists if listed is not None for file in _files_beside(folder, listed)]
    modified = partial(_modified, folder, manifest)
    portion = portion_of(manifest, beside, os.path.realpath(folder), subset, newer_than, modified)
    with portion.interrupted():
        report = check_pack(folder, manifest, progress, deep, portion)
    problems = [*report.problems, *chain.from_iterable(wrong)]
    for listed in lists:
        if isinstance(listed, JpegIndexList):
            left_out = {*(file.name for file in portion.left_out), *(problem.file for problem in problems)}
            problems += index_problems(folder, manifest, listed, left_out, progress if deep else None)
    return replace(report, problems=tuple(problems), part=portion.finish(problems))


def _files_beside(folder: str, listed: BesideList) -> Sequence[FileEntry]:
    """Return the files of a list, and the list if it is beside the pack: that of a version was read, and fits."""
    return listed.files if list_text(type(listed), folder) == listed.to_json() else listed.data_files


def check_pack(
    folder: str, manifest: Manifest, progress: Progress, deep: bool = False, portion: Portion | None = None
) -> VerifyReport:
    """Verify the pack in `folder`, whose manifest has been read already, or a portion of it and of what is beside it.

    Of files that are left out, the size is compared.
    """
    portion = whole_of(manifest) if portion is None else portion
    looks_like_shards, unknown_files = unlisted(folder, {file.name for unit in portion.units for file in unit.files})
    problems = [*check_names(manifest), *looks_like_shards]
    jobs: list[DecodeJob] = []
    progress.stage("verifying", portion.bytes, "bytes")
    problems += filter(None, (check_size(folder, manifest, file) for file in portion.left_out))
    for file in portion.others:
        problems += portion.found([file.name], filter(None, [check_file(folder, manifest, file, progress)]))
    together = OneAtATime(progress)
    with _checked_files(folder, portion, together) as checked:
        for shard, (container, index) in zip(portion.shards, checked, strict=True):
            check = _ShardCheck(folder, portion, shard, deep, together)
            names = () if portion.rows else (shard.container.name, shard.index.name)
            problems += portion.found(names, check.problems(container, index))
            jobs += check.jobs
    if jobs:
        progress.stage("decoding", sum(job.rows[1] - job.rows[0] for job in jobs), "images")
        problems += check_images(jobs, progress)
    files, found = len(portion.files), tuple(problems)
    return VerifyReport(folder, files, portion.records, portion.bytes, found, tuple(unknown_files))


def _modified(folder: str, manifest: Manifest, files: Sequence[FileEntry]) -> dict[str, float]:
    """Return when files were last written; those that are missing are left out."""
    found = {}
    for file in files:
        with suppress(OSError):
            found[file.name] = os.stat(manifest.path_of(folder, file.name)).st_mtime
    return found


def damaged_files(folder: str, manifest: Manifest, problems: Sequence[Problem]) -> frozenset[str]:
    """Return the names of damaged files, for a repair. Raise UsageError if packer did not write all files itself."""
    if any(manifest.linked.values()):
        first = f": {problems[0]}" if problems else ""
        problem = f"refers to files that other tools wrote, which packer does not repair{first}"
        raise UsageError(folder, problem, "restore the files, or make the pack again")
    return frozenset(problem.file for problem in problems)


def check_size(folder: str, manifest: Manifest, file: FileEntry) -> Problem | None:
    """Check the size of a file."""
    path = manifest.path_of(folder, file.name)
    try:
        if not os.path.isfile(path):  # reading a pipe would block
            return Problem(file.name, None, "is not a file" if os.path.lexists(path) else "is missing")
        size = os.path.getsize(path)
    except OSError as error:
        return Problem(file.name, None, f"cannot be read: {error.strerror or error}")
    if size != file.bytes:
        return Problem(file.name, None, f"has {size:,} bytes, but the pack says {file.bytes:,}")
    return None


def check_file(folder: str, manifest: Manifest, file: FileEntry, progress: Progress) -> Problem | None:
    """Check the size and digest of a file, and the checksum for readers of an index."""
    path = manifest.path_of(folder, file.name)
    if (problem := check_size(folder, manifest, file)) is not None:
        return problem
    try:
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


def unlisted(folder: str, listed: Collection[str]) -> tuple[list[Problem], list[str]]:
    """Return the files in the directory of a pack that neither its manifest nor a list beside it has.

    Shards and indexes are problems: the pack was combined from two, or files were renamed. Others are only listed.
    """
    if own_folder(folder) != folder:  # of a version: what is beside its files is that of the pack
        return [], []
    if numbers := numbers_in(folder):
        listed = {*listed, *files_of_versions(folder, numbers), *(kind.NAME for kind in BESIDE)}
    listed = {*listed, MANIFEST_NAME, VERSIONS}
    try:
        others = sorted({*os.listdir(folder)} - listed)
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
def _checked_files(folder: str, portion: Portion, progress: Progress) -> Iterator[list[tuple[Checked, Checked]]]:
    """Check the size and digest of each file of the shards in background threads; of a container in part, the size.

    Hashing releases the GIL; the checks of records do not, and take about as long.
    """
    whole = partial(check_file, folder, portion.manifest, progress=progress)
    container = partial(check_size, folder, portion.manifest) if portion.rows else whole
    with ThreadPoolExecutor(max(1, min(MOST_THREADS, usable_cores() - 1))) as pool:
        try:
            files = [
                (pool.submit(container, shard.container), index)
                for shard in portion.shards
                for index in [pool.submit(whole, shard.index)]
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

    def __init__(self, folder: str, portion: Portion, shard: ShardEntry, deep: bool, progress: Progress) -> None:
        self._manifest = manifest = portion.manifest
        self._portion = portion
        self._progress = progress
        self._shard = shard
        self._deep = deep
        self._container = manifest.path_of(folder, shard.container.name)
        self._index = manifest.path_of(folder, shard.index.name)
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
            bad = list(self._portion.record_problems(self._container, table, name, self._progress))
            if self._deep:
                paths, all_rows = (self._container, self._index), [range(len(table))]
                rows = [unit.rows for unit in self._portion.rows] or all_rows
                self.jobs = [job for part in rows for job in decode_jobs(paths, name, part, self._manifest)]
        altered, of_rows = container.result(), row_problems(table, self._shard, self._manifest)
        if altered is None:
            is_proved = not self._linked and not self._portion.rows
            return [*bad, *of_rows, *(self._entries(table) if self._deep and is_proved else ())]
        if altered.problem == ALTERED and not bad:
            altered = replace(altered, problem=f"{ALTERED}; {UNUSED}")
        return [altered, *bad, *of_rows]

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
