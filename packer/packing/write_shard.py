"""Packs a range of inputs into one shard with its index; this runs in a worker."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from glob import escape, glob
from typing import Any, NamedTuple

import pyarrow as pa
from xxhash import xxh3_128_digest

from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.containers.storage import storage_errors
from packer.errors import BadInput, DamagedPack, StorageError, printable
from packer.format.columns import Annotations
from packer.format.index import INDEX_SUFFIX, IndexBuilder
from packer.format.lists import Changed
from packer.format.manifest import FileEntry, Rejected, ShardEntry
from packer.format.written import digest_of_written
from packer.images.opencv import quiet_opencv
from packer.packing.convert import Recipe, Row, rejected, rows_of
from packer.packing.journal import ShardResult, SourcesDigest, is_unchanged
from packer.sources.archives.places import held_open
from packer.system.child import Decoding, Report, unmarked
from packer.system.locks import in_use
from packer.types import Annotation, Record

TEMPORARY_SUFFIX = ".tmp"
CHUNK_BYTES = 4 * 1024**2
CHUNK_RECORDS = 64


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Everything that a worker needs to write one shard."""

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
    key_digits: int
    bad_allowed: int
    """The job ends early, without a shard, if more of its inputs than this are bad."""
    threads: int = 1
    finished: ShardResult | None = None
    """The shard with this name that an earlier build finished."""
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Inputs on which the decoder crashed or hung, by row number."""

    @property
    def index(self) -> str:
        """Path of the finished index."""
        return os.path.join(self.folder, f"{self.name.partition('.')[0]}{INDEX_SUFFIX}")

    def clear(self) -> None:
        """Remove the temporary files of dead workers."""
        for path in (os.path.join(self.folder, self.name), self.index):
            for left in glob(f"{escape(path)}.*{TEMPORARY_SUFFIX}"):
                with suppress(OSError):
                    os.unlink(left)


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


@quiet_opencv()
def pack_shard(job: ShardJob, report: Report, decoding: Decoding = unmarked) -> ShardResult:
    """Write the shard of `job`, or keep the finished one if nothing has changed since.

    Args:
        job: The inputs and how to pack them.
        report: Called with (images done, bad images among them) from time to time.
        decoding: Returns a context for each decode.

    Returns:
        The shard's files, the rejected inputs, and counts.

    Raises:
        StorageError: A file cannot be written.
    """
    with in_use(job.folder), pa.memory_map(os.fsencode(job.table)) as source:
        rows = pa.ipc.open_file(source).read_all().slice(job.start, job.stop - job.start)
        inputs = _digest_of(job, rows)
        finished = job.finished
        if finished is not None and finished.inputs == inputs and is_unchanged(finished, job.folder, job.recipe, rows):
            report(len(rows), len(finished.rejected))
            return replace(finished, unchanged=True)
        path = os.path.join(job.folder, job.name)
        with (
            _temporary(path) as working,
            _temporary(job.index) as working_index,
            held_open(job.recipe.archives) as archives,
            closing(_made(replace(job, recipe=replace(job.recipe, archives=archives)), rows, decoding)) as chunks,
        ):
            result = _write(job, chunks, report, working, working_index)
            if result.entry is not None:
                with storage_errors(path):
                    os.replace(working, path)
                    os.replace(working_index, job.index)
        result.inputs = inputs
        return result


def _digest_of(job: ShardJob, rows: Any) -> str:
    """Return the SHA-256 of everything that determines a shard, except the contents of its source files."""
    digest = hashlib.sha256()
    recipe = job.recipe
    asked = (
        recipe.mode, recipe.decoder, recipe.max_pixels, recipe.resize, recipe.encode, recipe.quality,
        job.container, job.name, job.start, job.stop, job.spec, job.key_digits,
    )  # fmt: skip
    digest.update(repr(asked).encode("utf-8", "surrogateescape"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    digest.update(sink.getvalue())
    return digest.hexdigest()


@contextmanager
def _temporary(path: str) -> Iterator[str]:
    """Yield a unique temporary name beside `path`, and remove the file at the end. Another attempt may be running."""
    name = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
    try:
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name)


def _write(
    job: ShardJob, chunks: Iterator[list[Made]], report: Report, working: str, working_index: str
) -> ShardResult:
    """Write the shard to the two files `working` and `working_index`."""
    container = open_container(job.container)
    builder, sources = IndexBuilder(), SourcesDigest()
    result = ShardResult(None)
    writer = None
    for chunk in chunks:
        bad = len(result.rejected)
        for made in chunk:
            sources.add(made.digest)
            if made.record is None:
                assert made.rejected is not None
                result.rejected.append(made.rejected)
                if len(result.rejected) > job.bad_allowed:
                    return result
                continue
            if writer is None:
                writer = container.create(working, job.spec)
            builder.add(made.record)
            writer.write(made.record)
            _count(made, result)
        report(len(chunk), len(result.rejected) - bad)
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
    result.entry = ShardEntry(len(builder), file, replace(index, name=os.path.basename(job.index)))
    return result


def _made(job: ShardJob, rows: Any, decoding: Decoding) -> Generator[list[Made], None, None]:
    """Yield the converted inputs in order; with several threads, a few chunks ahead of the writer."""
    annotations = Annotations(rows, job.table)
    make = partial(_convert, job, decoding)
    chunks = _chunks(job, rows, annotations)
    if job.threads == 1:
        yield from map(make, chunks)
        return
    with ThreadPoolExecutor(job.threads) as pool:
        ahead: deque[Future[list[Made]]] = deque()
        try:
            for chunk in chunks:
                ahead.append(pool.submit(make, chunk))
                if len(ahead) > 2 * job.threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


Input = tuple[int, Row, Annotation]
"""Row number in the table of inputs, the row, and its annotation before resizing."""


def _convert(job: ShardJob, decoding: Decoding, chunk: list[Input]) -> list[Made]:
    """Convert a chunk of inputs to records."""
    recipe = job.recipe
    results = []
    for number, row, annotation in chunk:
        data = None
        try:
            data = recipe.read(row)
            if number in job.refused:
                raise job.refused[number]
            with decoding(number):
                record, damage = recipe.record(f"{number:0{job.key_digits}d}", row, data, annotation)
        except BadInput as error:
            digest = b"" if data is None else xxh3_128_digest(data)
            results.append(Made(None, rejected(row.path, error), digest))
        else:
            before, after = annotation.boxes, record.annotation.boxes
            cropped = 0 if before is None or after is None else len(before) - len(after)
            results.append(Made(record, None, record.source_xxh3, cropped, damage))
    return results


def _chunks(job: ShardJob, rows: Any, annotations: Annotations) -> Iterator[list[Input]]:
    """Yield runs of rows with about CHUNK_BYTES of pixels, so that the chunks in progress stay small."""
    of_label: dict[int, Annotation] = {}  # most datasets have only a class per image, so images can share annotations
    labels = annotations.labels_only
    chunk: list[Input] = []
    pixels = 0
    for number, row in enumerate(rows_of(rows), job.start):
        if labels is None:
            annotation = annotations[number - job.start]
        else:
            label = labels[number - job.start]
            annotation = of_label.get(label) or of_label.setdefault(label, annotations[number - job.start])
        chunk.append((number, row, annotation))
        pixels += row.width * row.height
        if pixels * 3 >= CHUNK_BYTES or len(chunk) == CHUNK_RECORDS:
            yield chunk
            chunk, pixels = [], 0
    if chunk:
        yield chunk


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
