"""Packs a range of inputs into one shard with its index; this runs in a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_128_digest

from packer.errors import BadInput
from packer.images.header import losses_named
from packer.images.opencv import quiet_opencv
from packer.model.annotation import Annotation
from packer.model.columns import Annotations
from packer.packing.convert import UNREAD, Recipe, Row, rejected, rows_of
from packer.packing.journal import ShardResult, SourcesDigest, is_intact
from packer.packing.new_shard import CHUNK_BYTES, CHUNK_RECORDS, Made, NewShard, ahead
from packer.packing.rows import classes_of, mapped, rows_at
from packer.samplers.order import shuffled
from packer.sources.archives.places import held_open
from packer.system.child import Decoding, Report, unmarked

Check = Callable[..., bool]
"""`is_unchanged` or `has_intact_files`, as a pool runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob(NewShard):
    """Everything that a worker needs to pack inputs into one shard."""

    table: str
    """Path of the table of inputs, in the order of the source."""
    order: tuple[int, int] | None
    """The arguments of `shuffled` for the packing order; None: that of the table."""
    start: int
    stop: int
    recipe: Recipe
    key_digits: int


@quiet_opencv(in_worker=True)
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
    rows = _rows_of(job)
    job = replace(job, spec=replace(job.spec, classes=classes_of(rows)))
    inputs = _digest_of(job, rows)
    finished = job.finished
    if finished is not None and finished.inputs == inputs and _is_unchanged(job, finished, rows):
        report(len(rows), len(finished.rejected))
        return replace(finished, unchanged=True)
    annotations = Annotations(rows, job.table)
    with held_open(job.recipe.archives) as archives:
        make = partial(_convert, replace(job, recipe=replace(job.recipe, archives=archives)), decoding)
        result = job.write(ahead(make, _chunks(job, rows, annotations), job.threads), report)
    result.inputs = inputs
    return result


def is_unchanged(job: ShardJob, report: Report, decoding: Decoding = unmarked) -> bool:
    """Return whether the files of the finished shard of a job are intact and its source files unchanged.

    Args:
        job: The shard, with what an earlier build made of it.
        report: Called when it is done.
        decoding: Not used: no image is decoded.
    """
    assert job.finished is not None
    rows = _rows_of(job)
    answer = _is_unchanged(job, job.finished, rows)
    report(len(rows), 0)
    return answer


def has_intact_files(job: ShardJob, report: Report, decoding: Decoding = unmarked) -> bool:
    """Return whether the files of the finished shard of a job are as they were written; arguments as `is_unchanged`."""
    assert job.finished is not None
    answer = job.finished.entry is None or is_intact(job.finished.entry, job.folder)
    report(job.stop - job.start, 0)
    return answer


def _is_unchanged(job: ShardJob, finished: ShardResult, rows: Any) -> bool:
    """Return whether the files of a finished shard are intact and its source files unchanged.

    Args:
        job: The shard.
        finished: What an earlier build made of it.
        rows: Its inputs.
    """
    if finished.entry is not None and not job.checked and not is_intact(finished.entry, job.folder):
        return False
    if "etag" in rows.column_names and all(rows.column("etag").to_pylist()):
        return True  # the ETags are part of its inputs
    sources = SourcesDigest()
    for _, read in job.recipe.reads(rows_of(rows)):
        try:
            sources.add(xxh3_128_digest(read()))
        except BadInput:
            sources.add(b"")
    return sources.hexdigest() == finished.sources


def digest_of_inputs(job: ShardJob) -> str:
    """Return the SHA-256 of everything that determines a shard, except the contents of its source files."""
    rows = _rows_of(job)
    return _digest_of(replace(job, spec=replace(job.spec, classes=classes_of(rows))), rows)


def _rows_of(job: ShardJob) -> Any:
    """Return the rows of the table of inputs that a job packs, in packing order."""
    table = mapped(job.table)
    if job.order is None:
        return table.slice(job.start, job.stop - job.start).combine_chunks()
    return rows_at(table, shuffled(*job.order)(np.arange(job.start, job.stop)))


def _digest_of(job: ShardJob, rows: Any) -> str:
    digest = hashlib.sha256()
    recipe = job.recipe
    asked = (
        recipe.mode, recipe.decoder, recipe.max_pixels, recipe.resize, recipe.encode, recipe.quality,
        job.container, job.name, job.start, job.stop, job.spec, job.key_digits,
    )  # fmt: skip
    digest.update(repr(asked).encode("utf-8", "surrogateescape"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    digest.update(sink.getvalue())
    return digest.hexdigest()


PIXELS_A_BYTE = 4
"""Of a JPEG, roughly."""
Input = tuple[int, Row, Annotation, Callable[[], bytes]]
"""Row number in the table of inputs, the row, its annotation before resizing, and what reads its file."""


def _convert(job: ShardJob, decoding: Decoding, chunk: list[Input]) -> list[Made]:
    """Convert a chunk of inputs to records."""
    recipe = job.recipe
    results = []
    for number, row, annotation, read in chunk:
        data = late = None
        try:
            data = read()
            if number in job.refused:
                raise job.refused[number]
            with decoding(number):
                known = recipe.with_header(row, data)
                if known is not row:
                    late = (known.height, known.width), losses_named(known.header, recipe.mode)
                record, damage = recipe.record(f"{number:0{job.key_digits}d}", known, data, annotation)
        except BadInput as error:
            digest = b"" if data is None else xxh3_128_digest(data)
            results.append(Made(None, rejected(row.path, error), digest, late=late))
        else:
            before, after = annotation.boxes, record.annotation.boxes
            cropped = 0 if before is None or after is None else len(before) - len(after)
            results.append(Made(record, None, record.source_xxh3, cropped, damage, late))
    return results


def _chunks(job: ShardJob, rows: Any, annotations: Annotations) -> Iterator[list[Input]]:
    """Yield runs of rows with about CHUNK_BYTES of pixels, so that the chunks in progress stay small."""
    of_label: dict[int, Annotation] = {}  # most datasets have only a class per image, so images can share annotations
    labels = annotations.labels_only
    chunk: list[Input] = []
    pixels = 0
    for number, (row, read) in enumerate(job.recipe.reads(rows_of(rows)), job.start):
        if labels is None:
            annotation = annotations[number - job.start]
        else:
            label = labels[number - job.start]
            annotation = of_label.get(label) or of_label.setdefault(label, annotations[number - job.start])
        chunk.append((number, row, annotation, read))
        pixels += row.width * row.height if row.code != UNREAD else PIXELS_A_BYTE * row.bytes
        if pixels * 3 >= CHUNK_BYTES or len(chunk) == CHUNK_RECORDS:
            yield chunk
            chunk, pixels = [], 0
    if chunk:
        yield chunk
