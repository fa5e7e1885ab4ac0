"""One worker's job: pack a run of inputs into one finished, durable shard with its index."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from glob import escape, glob
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_128_digest

from packer.build.inputs import rejected
from packer.build.kept import Sources, digest_of_inputs, keeps
from packer.build.locks import in_use
from packer.build.record import Recipe
from packer.build.result import ShardResult
from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.containers.storage import storage_errors
from packer.digests import crc32c_of, sha256_of
from packer.errors import BadInput, DamagedPack, StorageError
from packer.index import INDEX_SUFFIX, IndexBuilder
from packer.manifest import FileEntry, IndexEntry, Rejected, ShardEntry
from packer.ops.opencv import quiet_opencv
from packer.sample import Record
from packer.verify import require_intact

CHUNK_BYTES = 4 * 1024**2
CHUNK_RECORDS = 64
TEMPORARY_SUFFIX = ".tmp"

Report = Callable[[int, int], None]
"""Called with (images done, of these bad) since the last call."""
Decoding = Callable[[int], AbstractContextManager[None]]
"""Wraps the decoding of the row of this number, from several threads at once."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """All that a worker needs to make one shard."""

    table: str
    """Path of the mapped table of inputs, in packing order."""
    start: int
    stop: int
    folder: str
    name: str
    """File name of the container; the index is named after it."""
    container: str
    spec: ShardSpec
    recipe: Recipe
    class_ids: tuple[int, ...]
    key_digits: int
    bad_allowed: int
    """The job ends early, without a shard, when more of its own inputs than this are bad."""
    threads: int = 1
    finished: ShardResult | None = None
    """The shard that an earlier build has finished under this name."""
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """By number of the row: inputs on which the decoder has crashed, or which it never finished."""

    @property
    def index(self) -> str:
        """Path of the finished index."""
        return os.path.join(self.folder, f"{os.path.splitext(self.name)[0]}{INDEX_SUFFIX}")

    def clear(self) -> None:
        """Remove what an attempt has left whose worker is dead."""
        for path in (os.path.join(self.folder, self.name), self.index):
            for left in glob(f"{escape(path)}.*{TEMPORARY_SUFFIX}"):
                with suppress(OSError):
                    os.unlink(left)


Made = tuple[Record, int] | Rejected
"""A record with the number of boxes that a crop has left outside; or why there is none."""


def unmarked(row: int) -> AbstractContextManager[None]:
    """A `Decoding` that tells nobody."""
    return nullcontext()


@quiet_opencv()
def pack_shard(job: ShardJob, report: Report, decoding: Decoding = unmarked) -> ShardResult:
    """Make the shard of `job`, or keep the finished one that it names, if nothing has changed since.

    Raises StorageError where the disk refuses.
    """
    with in_use(job.folder), pa.memory_map(job.table) as source:
        rows = pa.ipc.open_file(source).read_all().slice(job.start, job.stop - job.start)
        inputs = digest_of_inputs(job, rows)
        if job.finished is not None and job.finished.inputs == inputs and keeps(job, job.finished, rows, report):
            return replace(job.finished, kept=True)
        path = os.path.join(job.folder, job.name)
        with _temporary(path) as working, _temporary(job.index) as working_index:
            result = _pack(job, rows, report, decoding, working, working_index)
            if result.entry is not None:
                with storage_errors(path):
                    os.rename(working, path)
                    os.rename(working_index, job.index)
        result.inputs = inputs
        return result


@contextmanager
def _temporary(path: str) -> Iterator[str]:
    """A name beside `path` for this attempt alone: another one may be under way. No file of it is left."""
    name = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
    try:
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name)


def _pack(
    job: ShardJob, rows: Any, report: Report, decoding: Decoding, working: str, working_index: str
) -> ShardResult:
    """The shard in the two files `working` and `working_index`, and what became of its inputs."""
    container = open_container(job.container)
    builder = IndexBuilder(job.stop - job.start)
    result = ShardResult(None)
    sources = Sources()
    writer = None
    for made, digest in _records(job, rows, decoding):
        sources.add(digest)
        bad = isinstance(made, Rejected)
        if isinstance(made, Rejected):
            result.rejected.append(made)
            if len(result.rejected) > job.bad_allowed:
                return result
        else:
            record, cropped = made
            if writer is None:
                writer = container.create(working, job.spec)
            builder.add(record)
            writer.write(record)
            _count(record, cropped, result)
        report(1, int(bad))
    result.sources = sources.hexdigest()
    if writer is None:
        return result
    writer.close()
    with ThreadPoolExecutor(1) as beside:  # the digest takes as long as all the rest, and holds no GIL
        digest_of_file = beside.submit(file_entry, working, job.name)
        try:
            builder.write(working_index, container.locate(working))
            require_intact(working, working_index)  # as a reader will find it
        except DamagedPack as error:  # no pack yet: the disk has not kept it, or does not give it back
            problem = f"is not as it was written: {error.problem}"
            raise StorageError(working, problem, "check the disk and the memory of this machine") from error
    index = index_entry(working_index, os.path.basename(job.index))
    result.entry = ShardEntry(len(builder), digest_of_file.result(), index)
    return result


def _records(job: ShardJob, rows: Any, decoding: Decoding) -> Iterator[tuple[Made, bytes]]:
    """The records in order, each with its source's digest; with several threads, a few chunks ahead of the writer."""
    class_ids = np.array(job.class_ids, np.int64)

    def record(number: int, row: dict[str, Any]) -> tuple[Made, bytes]:
        return _record(job, number, row, class_ids, decoding)

    def make(chunk: list[tuple[int, dict[str, Any]]]) -> list[tuple[Made, bytes]]:
        return [record(*item) for item in chunk]

    if job.threads == 1:
        for chunk in _chunks(job, rows):
            for item in chunk:
                yield record(*item)
        return
    with ThreadPoolExecutor(job.threads) as pool:
        ahead: deque[Future[list[tuple[Made, bytes]]]] = deque()
        try:
            for chunk in _chunks(job, rows):
                ahead.append(pool.submit(make, chunk))
                if len(ahead) > 2 * job.threads:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _record(
    job: ShardJob, number: int, row: dict[str, Any], class_ids: Any, decoding: Decoding
) -> tuple[Made, bytes]:
    """What became of one input, and the digest of its file; b"" where that cannot be read."""
    data = None
    try:
        data = job.recipe.read(row)
        if number in job.refused:
            raise job.refused[number]
        with decoding(number):
            made = job.recipe.record(f"{number:0{job.key_digits}d}", row, data, class_ids)
    except BadInput as error:
        return rejected(row["path"], error), b"" if data is None else xxh3_128_digest(data)
    return made, made[0].source_xxh3


def _chunks(job: ShardJob, rows: Any) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Runs of rows of about CHUNK_BYTES of pixels, so that a window of them stays small."""
    chunk: list[tuple[int, dict[str, Any]]] = []
    pixels = 0
    number = job.start
    for batch in rows.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            chunk.append((number, row))
            number += 1
            pixels += row["width"] * row["height"]
            if pixels * 3 >= CHUNK_BYTES or len(chunk) == CHUNK_RECORDS:
                yield chunk
                chunk, pixels = [], 0
    if chunk:
        yield chunk


def _count(record: Record, cropped: int, result: ShardResult) -> None:
    annotation = record.annotation
    if annotation.label is not None:
        result.label_counts[annotation.label] += 1
    if annotation.boxes is not None:
        result.counts["boxes"] += len(annotation.boxes)
        result.counts["boxes_cropped"] += cropped
    if annotation.box_labels is not None:
        result.box_counts.update(annotation.box_labels.tolist())


def file_entry(path: str, name: str) -> FileEntry:
    """Size and digest of the finished file at `path`, which will have this name in the pack."""
    try:
        return FileEntry(name, os.path.getsize(path), sha256_of(path))
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None


def index_entry(path: str, name: str) -> IndexEntry:
    """Size, digest and checksum of the finished index at `path`."""
    file = file_entry(path, name)
    try:
        return IndexEntry(file.name, file.bytes, file.sha256, crc32c_of(path))
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None
