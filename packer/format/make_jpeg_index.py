"""Makes the index of a shard's JPEGs (packer/format/jpeg_index.py) with packer-fast; this runs in a worker."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from packer.errors import BadInput, DamagedPack, NotInstalled, option
from packer.format.beside import L, read_beside
from packer.format.digests import crc32c_of, sha256_of
from packer.format.index import ENCODINGS, write_index
from packer.format.indexes import RESTORE, Indexes, IndexFiles
from packer.format.jpeg_index import MADE_OF, SCHEMA, index_column
from packer.format.jpeg_index_list import (
    VERSION,
    JpegIndexList,
    ShardJpegIndex,
    index_file_of,
    own_files,
    remove_files,
)
from packer.format.manifest import FileEntry, IndexEntry, Manifest, ShardEntry
from packer.format.mmap import map_file
from packer.format.verify_records import DECODE_TIMEOUT_S, Problem
from packer.images.decoders import INSTALL, load_native
from packer.images.header import read_header
from packer.model.annotation import Int64, Progress, advancing
from packer.model.annotation_columns import column
from packer.model.tiles import WINDOW
from packer.system import usable_cores
from packer.system.child import Decoding, Report, unmarked
from packer.system.pool import Pool
from packer.system.storage import storage_errors

ROWS_AT_ONCE = 64


def check_installed(option: str) -> str:
    """Return the name and version of what makes an index.

    Raises:
        NotInstalled: packer-fast is missing, or its library cannot be loaded.
    """
    return f"packer-fast {load_native(option, INSTALL).version().split()[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JpegIndexJob:
    """The JPEGs of a shard to index, as a job of `packer.system.pool.Pool`."""

    folder: str
    """The pack."""
    container: str
    """Path of the container file."""
    shard: ShardEntry
    interval: int
    out: str
    """The folder for the index; one that is there already is kept if it is the same."""
    name: str
    """Name of the file."""
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashed or hung."""
    attempt: str = field(default_factory=partial(secrets.token_hex, 4))
    """Part of the name of the file until it is complete."""

    @property
    def path(self) -> str:
        """The file to write."""
        return os.path.join(self.out, self.name)

    @property
    def temporary(self) -> str:
        """Its name until it is complete."""
        return f"{self.path}.{self.attempt}.tmp"

    def clear(self) -> None:
        """Remove the incomplete file of this attempt, whose worker is dead."""
        with suppress(OSError):
            os.unlink(self.temporary)


@dataclass(frozen=True, slots=True)
class MadeJpegIndex:
    """The index of a shard's JPEGs, made."""

    entry: ShardJpegIndex
    indexed: int
    without: Mapping[str, int]
    """Why records have no index -> their number."""
    seconds: float
    """Time of the processor; 0 if it was there already."""


def jobs_for(
    folder: str,
    shards: Sequence[ShardEntry],
    path_of: Callable[[str, str], str],
    interval: int,
    out: str,
    version: int | None = None,
) -> list[JpegIndexJob]:
    """Return a job for each shard.

    Args:
        folder: The pack.
        shards: Its shards.
        path_of: Returns the path of a container, given the folder and its name.
        interval: MCUs between two entries.
        out: The folder for the index.
        version: The version of the pack that will have the index. None: the pack has no versions.
    """
    return [
        JpegIndexJob(
            folder=folder,
            container=path_of(folder, shard.container.name),
            shard=shard,
            interval=interval,
            out=out,
            name=index_file_of(shard, version),
        )
        for shard in shards
    ]


def make_jpeg_index(job: JpegIndexJob, report: Report, decoding: Decoding = unmarked) -> MadeJpegIndex:
    """Write the index of a shard's JPEGs, unless it is there.

    Args:
        job: The shard.
        report: Called with (records done, 0) from time to time.
        decoding: Returns a context for each JPEG.

    Raises:
        NotInstalled: packer-fast is missing.
        DamagedPack: A file of the shard was altered.
        StorageError: A file cannot be read or written.
    """
    made_of = _made_of(job)
    if (kept := _earlier_result(job, made_of)) is not None:
        report(job.shard.records, 0)
        return kept
    indexes, without, seconds = index_rows(job, report, decoding)
    batch = _batch(indexes, made_of, without)
    try:
        entry = write_index(job.temporary, batch)
        with storage_errors(job.path):
            os.replace(job.temporary, job.path)
    except BaseException:
        job.clear()
        raise
    entry = replace(entry, name=os.path.basename(job.path))
    return MadeJpegIndex(_entry(job, entry), len(indexes) - sum(without.values()), without, seconds)


SHARED = "that of another tile"
"""Why a tile has no index: its image is shared, and the index is that of the first of its tiles."""
OTHER = "other JPEGs"
"""Why records have no index, if nobody knows any more."""


def take_jpeg_index(
    path: str, entry: ShardJpegIndex, rows: Int64 | None, shard: ShardEntry, table: Any, out: str
) -> MadeJpegIndex:
    """Write the index of some of the JPEGs of a shard, without reading these.

    Args:
        path: The index of all of them.
        entry: What its list says of it.
        rows: Which of them. None: all, and nothing is written.
        shard: The new shard.
        table: Its own index, of these rows.
        out: The new file.

    Raises:
        DamagedPack: The index was altered.
        StorageError: It cannot be written.
    """
    data, index = map_file(path, entry.index.bytes), entry.index
    if rows is not None and crc32c(data) != index.crc32c:
        raise DamagedPack(path, "was altered: it does not match its checksum")
    indexes = index_column(path, data)
    with pa.ipc.open_file(pa.py_buffer(data)) as file:
        made_of = json.loads(file.schema.metadata[MADE_OF])
    without = Counter(made_of.pop("without"))
    if rows is not None:
        indexes = indexes.take(pa.array(rows))
        without = _reasons(indexes, without, np.asarray(column(table, "encoding")))
        made_of |= {"container_sha256": shard.container.sha256, "rows_sha256": shard.index.sha256}
        index = write_index(out, _batch(indexes, made_of, without))
    made = ShardJpegIndex(shard.container.name, shard.container.sha256, shard.index.sha256, index)
    return MadeJpegIndex(made, len(indexes) - without.total(), without, 0.0)


def _reasons(indexes: Any, before: Mapping[str, int], codes: Any) -> Counter[str]:
    """Return why rows have no index, of which it is known why the rows of the whole shard have none."""
    missing = np.flatnonzero(np.asarray(pc.binary_length(indexes)) == 0)
    of_jpegs = [why for why in before if why not in ENCODINGS]
    names = [ENCODINGS[code] for code in codes[missing].tolist()]
    why = of_jpegs[0] if len(of_jpegs) == 1 else OTHER
    return Counter(sorted(why if name == "jpeg" else name for name in names))


def _batch(indexes: Any, made_of: Mapping[str, Any], without: Mapping[str, int]) -> Any:
    metadata = {MADE_OF: json.dumps({**made_of, "without": without}, sort_keys=True)}
    return pa.RecordBatch.from_arrays([indexes], schema=SCHEMA.with_metadata(metadata))


def is_right(job: JpegIndexJob, report: Report, decoding: Decoding = unmarked) -> bool:
    """Return whether the index of a shard is the one that its JPEGs give; it must have been made by this version.

    Arguments and errors are those of `make_jpeg_index`.
    """
    there = index_column(job.path, map_file(job.path, os.path.getsize(job.path)))
    indexes, _, _ = index_rows(job, report, decoding)
    return bool(there.equals(indexes))


def _made_of(job: JpegIndexJob) -> dict[str, Any]:
    """Return what determines the content of an index."""
    return {
        "version": VERSION,
        "interval": job.interval,
        "container_sha256": job.shard.container.sha256,
        "rows_sha256": job.shard.index.sha256,
        "made_with": check_installed(""),
    }


def _earlier_result(job: JpegIndexJob, made_of: Mapping[str, Any]) -> MadeJpegIndex | None:
    """Return the index that an earlier attempt has written; None if it is not there, or another."""
    try:
        size = os.path.getsize(job.path)
        data = map_file(job.path, size)
        indexes = index_column(job.path, data)
        with pa.ipc.open_file(pa.py_buffer(data)) as file:
            found = json.loads(file.schema.metadata[MADE_OF])
        without = dict(found.pop("without"))
        if found != made_of or len(indexes) != job.shard.records or job.refused:
            return None
        entry = IndexEntry(os.path.basename(job.path), size, sha256_of(job.path), crc32c_of(job.path))
        return MadeJpegIndex(_entry(job, entry), len(indexes) - sum(without.values()), without, 0.0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # DamagedPack and StorageError are OSErrors
        return None


def _entry(job: JpegIndexJob, index: IndexEntry) -> ShardJpegIndex:
    shard = job.shard
    return ShardJpegIndex(shard.container.name, shard.container.sha256, shard.index.sha256, index)


def index_rows(job: JpegIndexJob, report: Report, decoding: Decoding = unmarked) -> tuple[Any, dict[str, int], float]:
    """Return the index of each record of a shard (empty if it has none), why -> the number of those, and the seconds.

    The records are verified against their checksums; arguments and errors are those of `make_jpeg_index`.
    """
    native = load_native("", INSTALL)
    container, shard = job.container, job.shard
    indexes = Indexes(IndexFiles(job.folder, [shard]))
    offsets, table = indexes.offsets(0), indexes[0]
    data = map_file(container, shard.container.bytes)
    numbers = (offsets, *(np.asarray(column(table, name)) for name in ("size", "crc32c", "encoding")))
    keys: Any = column(table, "key")
    _, firsts = np.unique(offsets, return_index=True)
    again = {*range(len(offsets))} - {*firsts.tolist()} if WINDOW in table.column_names else set[int]()

    def one(row: int, offset: int, size: int, crc: int, code: int) -> bytes | str:
        """Return the index of a record, or why it has none."""
        if row in again:
            return SHARED
        if ENCODINGS[code] != "jpeg":
            return ENCODINGS[code]
        if row in job.refused:
            return job.refused[row].reason
        jpeg, key = data[offset : offset + size], bytes(keys[row])
        if crc32c(jpeg, crc32c(key)) != crc:
            problem = f"record {key.decode('ascii', 'replace')} does not match its checksum"
            raise DamagedPack(container, problem, RESTORE)
        try:
            with decoding(row):
                made: bytes = native.make_index(jpeg, job.interval)
                return made
        except native.IndexNotPossible as error:
            if error.error == native.Error.NO_MEMORY:
                raise MemoryError(f"{container}: an index needs more memory") from None
            return _why(bytes(jpeg), "damaged" if error.error == native.Error.DAMAGED else "unsupported")

    def chunk(first: int) -> tuple[list[bytes | str], float]:
        started, stop = time.thread_time(), first + ROWS_AT_ONCE
        rows = zip(range(first, shard.records), *(some[first:stop].tolist() for some in numbers), strict=False)
        return [one(*row) for row in rows], time.thread_time() - started

    found: list[bytes | str] = []
    seconds = 0.0
    for some, its_seconds in _map_jobs(chunk, range(0, shard.records, ROWS_AT_ONCE), job.threads):
        found += some
        seconds += its_seconds
        report(len(some), 0)
    without = Counter(one for one in found if isinstance(one, str))
    values = [b"" if isinstance(one, str) else one for one in found]
    return pa.array(values, pa.large_binary()), dict(sorted(without.items())), seconds


def _map_jobs(work: Any, jobs: Sequence[int], threads: int) -> Iterator[Any]:
    if threads == 1:
        yield from map(work, jobs)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from pool.map(work, jobs)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _why(jpeg: bytes, otherwise: str) -> str:
    """Return the kind of JPEG that has no index."""
    with suppress(BadInput):
        header = read_header(jpeg)
        if header.cmyk:
            return "CMYK"
        if header.many_scans:
            return "progressive or arithmetic"
    return otherwise


def list_of(made: Sequence[MadeJpegIndex], interval: int, made_with: str = "") -> JpegIndexList:
    """Return the list of the index files of a pack, in the order of its shards.

    Args:
        made: The files.
        interval: MCUs between two entries.
        made_with: What has made them. Empty: what is installed.
    """
    without: Counter[str] = Counter()
    for one in made:
        without.update(one.without)
    return JpegIndexList(
        interval=interval,
        made_with=made_with or check_installed(""),
        indexed=sum(one.indexed for one in made),
        without=dict(sorted(without.items())),
        shards=tuple(one.entry for one in made),
    )


def find_beside(kind: type[L], folder: str, manifest: Manifest) -> tuple[L | None, list[Problem]]:
    """Return the list of a kind of files beside a pack, if it has one, and what is wrong with it."""
    try:
        return read_beside(kind, folder, manifest), []
    except DamagedPack as error:
        return None, [Problem(kind.NAME, None, error.problem)]


def index_problems(
    folder: str, manifest: Manifest, listed: JpegIndexList, left_out: Collection[str], deep: Progress | None = None
) -> Iterator[Problem]:
    """Check the index files of a pack.

    Args:
        folder: The pack.
        manifest: Its manifest.
        listed: The list of the files.
        left_out: The names of files whose digests are wrong, or were not looked at.
        deep: Make the index again, and compare: receives the stage indexing, in records. None: do not.
    """
    bad = {*left_out}
    for problem in _file_problems(folder, manifest, listed, bad):
        bad.add(problem.file)
        yield problem
    if deep is not None:
        yield from _deep_problems(folder, manifest, listed, bad, deep)


def drop_damaged(folder: str, manifest: Manifest, check: Callable[[FileEntry], Problem | None]) -> tuple[str, ...]:
    """Remove the index of a pack's JPEGs if it is damaged, for a repair: no image is lost with it.

    Args:
        folder: The pack.
        manifest: Its manifest.
        check: Returns what is wrong with the size and digest of a file.

    Returns:
        A note, if it is removed.
    """
    listed, problems = find_beside(JpegIndexList, folder, manifest)
    if listed is not None:
        problems += filter(None, map(check, listed.data_files))
        problems += index_problems(folder, manifest, listed, {problem.file for problem in problems})
    if not problems:
        return ()
    remove_files(folder, own_files(folder))
    return (f"the index of its JPEGs was damaged and is removed ({problems[0]}): packer index makes it again",)


def _file_problems(folder: str, manifest: Manifest, listed: JpegIndexList, bad: Collection[str]) -> Iterator[Problem]:
    """Check what is in the files that are not in `bad`, whose digests are right."""
    for shard, one in zip(manifest.shards, listed.shards, strict=True):
        if one.index.name not in bad:
            path = manifest.path_of(folder, one.index.name)
            try:
                rows = len(index_column(path, map_file(path, one.index.bytes)))
            except DamagedPack as error:
                yield Problem(one.index.name, None, error.problem)
                continue
            if rows != shard.records:
                yield Problem(one.index.name, None, f"has {rows:,} rows, but the pack says {shard.records:,}")


def _deep_problems(
    folder: str, manifest: Manifest, listed: JpegIndexList, bad: Collection[str], progress: Progress
) -> Iterator[Problem]:
    """Make the index again, and compare; only the version of packer-fast that has made it makes the same."""
    with suppress(NotInstalled):
        if check_installed(option("deep")) != listed.made_with:
            return
        base = os.path.join(folder, manifest.base)
        jobs = [
            replace(job, name=one.index.name)
            for job, one in zip(
                jobs_for(base, manifest.shards, manifest.path_of, listed.interval, base), listed.shards, strict=True
            )
            if not {one.index.name, job.shard.container.name, job.shard.index.name} & {*bad}
        ]
        progress.stage("indexing", sum(job.shard.records for job in jobs), "records")
        with Pool(usable_cores(), DECODE_TIMEOUT_S, "packer.format.make_jpeg_index") as pool:
            for number, right in pool.run(is_right, jobs, advancing(progress)):
                if not right:
                    name = os.path.basename(jobs[number].path)
                    yield Problem(name, None, "is not the index that the JPEGs of its shard give")
