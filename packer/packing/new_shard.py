"""Writes records to one shard with its index, verifies it and gives it its name; this runs in a worker."""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.errors import BadInput, DamagedPack, StorageError, printable
from packer.format.index import INDEX_SUFFIX, IndexBuilder
from packer.format.lists import Changed
from packer.format.manifest import FileEntry, Rejected, ShardEntry
from packer.format.written import digest_of_written
from packer.model.annotation import Record
from packer.packing.journal import ShardResult, SourcesDigest
from packer.system.child import Report
from packer.system.storage import storage_errors

TEMPORARY_SUFFIX = ".tmp"
CHUNK_BYTES = 4 * 1024**2
CHUNK_RECORDS = 64


class Made(NamedTuple):
    """The result of converting one input."""

    record: Record | None
    rejected: Rejected | None
    """The reason if there is no record."""
    digest: bytes
    """XXH3-128 of the source file, b"" if it cannot be read."""
    cropped: int = 0
    """Number of boxes outside the crop."""
    damage: str = ""
    """What is wrong with an image that was decoded leniently."""
    late: tuple[tuple[int, int], list[str]] | None = None
    """(height, width) of the image and what the mode loses of it, if its header was not read before."""
    check: Callable[[int], None] | None = None
    """Called with the checksum of the record; raises an error if its bytes come from elsewhere and are altered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShard:
    """A shard to write, as a job of `packer.system.pool.Pool`; subclasses say what is in it."""

    folder: str
    name: str
    """File name of the container; the index is named after it."""
    container: str
    spec: ShardSpec
    bad_allowed: int
    """The job ends early, without a shard, if more of its inputs than this are bad."""
    threads: int = 1
    finished: ShardResult | None = None
    """The shard with this name that an earlier attempt finished."""
    checked: bool = False
    """Whether its files are elsewhere, and were found unchanged."""
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Inputs on which the decoder crashed or hung, by row number."""
    attempt: str = field(default_factory=partial(secrets.token_hex, 4))
    """Part of the names of its files until the shard is finished: an attempt that was given up may still be running."""

    def clear(self) -> None:
        """Remove the files of this attempt, whose worker is dead."""
        for path in files_of(self.folder, self.name, self.attempt):
            with suppress(OSError):
                os.unlink(path)

    def write(self, chunks: Generator[list[Made], None, None], report: Report) -> ShardResult:
        """Write the shard under the names of this attempt and verify it. `name_files` gives it its own names.

        Raises:
            StorageError: A file cannot be written.
        """
        try:
            with closing(chunks):
                result = _write(self, chunks, report, *files_of(self.folder, self.name, self.attempt))
        except BaseException:
            self.clear()
            raise
        if result.entry is None:
            self.clear()
        result.attempt = self.attempt
        return result


def files_of(folder: str, name: str, attempt: str = "") -> tuple[str, str]:
    """Return the paths of the container and the index of a shard, of one attempt or when it is finished."""
    end = f".{attempt}{TEMPORARY_SUFFIX}" if attempt else ""
    return os.path.join(folder, name + end), os.path.join(folder, f"{name.partition('.')[0]}{INDEX_SUFFIX}{end}")


def name_files(folder: str, name: str, attempt: str) -> None:
    """Give the files of an attempt the names of the finished shard. Raise StorageError on failure."""
    for written, path in zip(files_of(folder, name, attempt), files_of(folder, name), strict=True):
        with storage_errors(path):
            os.replace(written, path)


Chunk = TypeVar("Chunk")


def ahead(
    make: Callable[[Chunk], list[Made]], chunks: Iterator[Chunk], threads: int
) -> Generator[list[Made], None, None]:
    """Yield what `make` makes of each chunk, in order; with several threads, a few chunks ahead of the writer."""
    if threads == 1:
        yield from map(make, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[list[Made]]] = deque()
        try:
            for chunk in chunks:
                pending.append(pool.submit(make, chunk))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _write(
    job: NewShard, chunks: Iterator[list[Made]], report: Report, working: str, working_index: str
) -> ShardResult:
    """Write the shard to the two files `working` and `working_index`."""
    container = open_container(job.container)
    builder, sources = IndexBuilder(job.spec.parts), SourcesDigest()
    result = ShardResult(None)
    writer = None
    try:
        for chunk in chunks:
            bad = len(result.rejected)
            for made in chunk:
                sources.add(made.digest)
                if made.late is not None:
                    result.add_late(*made.late)
                if made.record is None:
                    assert made.rejected is not None
                    result.rejected.append(made.rejected)
                    if len(result.rejected) > job.bad_allowed:
                        return result
                    continue
                if writer is None:
                    writer = container.create(working, job.spec)
                checksum = builder.add(made.record)
                if made.check is not None:
                    made.check(checksum)
                writer.write(made.record)
                _count(made, result)
            report(len(chunk), len(result.rejected) - bad)
    except BaseException:
        writer = None  # closes its file, which the traceback would keep open with this frame
        raise
    result.sources = sources.hexdigest()
    if writer is None:
        return result
    places = writer.close()
    try:
        index = builder.write(working_index, places)
        sha256 = digest_of_written(working, working_index, index)
        file = FileEntry(job.name, os.path.getsize(working), sha256)
    except DamagedPack as error:  # the pack is new, so the disk or memory is at fault
        problem = f"changed after it was written: {error.problem}"
        raise StorageError(working, problem, "check the disk and the memory of this machine") from error
    result.entry = ShardEntry(
        len(builder), file, replace(index, name=os.path.basename(files_of(job.folder, job.name)[1]))
    )
    return result


def _count(made: Made, result: ShardResult) -> None:
    assert made.record is not None
    if made.damage:
        result.counts["lenient"] += 1
        result.changed.append(Changed(os.fsdecode(made.record.path), "lenient", "", "", printable(made.damage), ""))
    annotation = made.record.annotation
    if annotation.label is not None:
        result.label_counts[annotation.label] += 1
    if annotation.boxes is not None:
        result.counts["boxes"] += len(annotation.boxes)
        result.counts["boxes_cropped"] += made.cropped
    if annotation.box_labels is not None:
        result.box_counts.update(annotation.box_labels.tolist())
