"""Packs a range of inputs into one shard with its index; this runs in a worker."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from packer.containers import open_container
from packer.containers.container import Places, ShardSpec
from packer.errors import BadInput, DamagedPack, StorageError, printable
from packer.format.index import IndexBuilder
from packer.format.lists import Changed
from packer.format.manifest import FileEntry, Rejected, ShardEntry
from packer.format.pack_paths import INDEX_SUFFIX
from packer.format.verify_records import digest_of_written
from packer.images.header import losses_named
from packer.images.opencv import quiet_opencv
from packer.model.annotation import Annotation, Record
from packer.model.annotation_columns import Annotations
from packer.packing.decoded_once import DecodedOnce
from packer.packing.journal import ShardResult, SourcesDigest, is_intact
from packer.packing.make_record import UNREAD, InputBytes, InputRow, Recipe, rejected, rows_of
from packer.packing.partition import classes_of, map_table, rows_at
from packer.samplers.order import permutation_function
from packer.sources.places import held_open
from packer.system.child import Decoding, Report, unmarked
from packer.system.storage import storage_errors

TEMPORARY_SUFFIX = ".tmp"
CHUNK_BYTES = 4 * 1024**2
CHUNK_RECORDS = 64


class ConvertedInput(NamedTuple):
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
    is_shared: bool = False
    """Whether records are tiles: the container gets the whole image of each run of those that are of one."""
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

    def write(self, chunks: Generator[list[ConvertedInput], None, None], report: Report) -> ShardResult:
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
Made = TypeVar("Made")


def ahead(make: Callable[[Chunk], Made], chunks: Iterable[Chunk], threads: int) -> Generator[Made, None, None]:
    """Yield what `make` makes of each chunk, in order; with several threads, a few chunks ahead of the writer."""
    if threads == 1:
        yield from map(make, chunks)
        return
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[Made]] = deque()
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
    job: NewShard, chunks: Iterator[list[ConvertedInput]], report: Report, working: str, working_index: str
) -> ShardResult:
    """Write the shard to the two files `working` and `working_index`."""
    container = open_container(job.container)
    builder, sources = IndexBuilder(job.spec.parts), SourcesDigest()
    result = ShardResult(None)
    fingerprints: list[bytes] = []
    writer, last, image_of = None, b"", list[int]()
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
                is_next = not (job.is_shared and image_of and last == made.record.path)
                if is_next:
                    writer.write(_whole_image(made.record) if job.is_shared else made.record)
                last = made.record.path
                fingerprints.append(made.record.fingerprint)
                image_of.append((image_of[-1] if image_of else -1) + is_next)
                _count(made, result)
            report(len(chunk), len(result.rejected) - bad)
    except BaseException:
        writer = None  # closes its file, which the traceback would keep open with this frame
        raise
    result.sources = sources.hexdigest()
    result.fingerprints = b"".join(fingerprints)
    if writer is None:
        return result
    places = writer.close()
    if job.is_shared:
        places = Places(places.offsets[image_of], places.sizes[image_of])
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


def _whole_image(tile: Record) -> Record:
    """Return the record of the whole image of a tile, which has its key, and no labels."""
    assert tile.annotation.window is not None
    width, height = tile.annotation.window[4:].tolist()
    return replace(tile, annotation=Annotation(), width=width, height=height)


def _count(made: ConvertedInput, result: ShardResult) -> None:
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
    first_key: int = 0
    """Number of the first record of the table."""


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
    job, rows = _with_rows(job)
    inputs, finished = _digest_of(job, rows), job.finished
    if finished is not None and finished.inputs == inputs and _is_unchanged(job, finished, rows):
        report(len(rows), len(finished.rejected))
        return replace(finished, unchanged=True)
    annotations = Annotations(rows, job.table)
    with held_open(job.recipe.archives) as archives:
        make = partial(_convert, replace(job, recipe=replace(job.recipe, archives=archives)), DecodedOnce(), decoding)
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
    _, rows = _with_rows(job)
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
    """Return whether the files of a finished shard are intact and the source files of its rows unchanged."""
    if finished.entry is not None and not job.checked and not is_intact(finished.entry, job.folder):
        return False
    if "etag" in rows.column_names and all(rows.column("etag").to_pylist()):
        return True  # the ETags are part of its inputs
    sources = SourcesDigest()
    for _, read in job.recipe.reads(rows_of(rows)):
        try:
            sources.add(read().digest)
        except BadInput:
            sources.add(b"")
    return sources.hexdigest() == finished.sources


def digest_of_inputs(job: ShardJob) -> str:
    """Return the SHA-256 of everything that determines a shard, except the contents of its source files."""
    return _digest_of(*_with_rows(job))


def _with_rows(job: ShardJob) -> tuple[ShardJob, Any]:
    """Return a job with the classes of the table of inputs, and the rows that it packs, in packing order."""
    table = map_table(job.table)
    if job.order is None:
        rows = table.slice(job.start, job.stop - job.start).combine_chunks()
    else:
        rows = rows_at(table, permutation_function(*job.order)(np.arange(job.start, job.stop)))
    return replace(job, spec=replace(job.spec, classes=classes_of(rows))), rows


def _digest_of(job: ShardJob, rows: Any) -> str:
    digest = hashlib.sha256()
    recipe = job.recipe
    asked = (
        recipe.mode, recipe.decoder, recipe.max_pixels, recipe.resize, recipe.encode, recipe.quality,
        job.container, job.name, job.start, job.stop, job.spec, job.key_digits,
        *((recipe.parts,) if recipe.parts else ()), *((job.first_key,) if job.first_key else ()),
    )  # fmt: skip
    digest.update(repr(asked).encode("utf-8", "surrogateescape"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    digest.update(sink.getvalue())
    return digest.hexdigest()


PIXELS_A_BYTE = 4
"""Of a JPEG, roughly."""
Input = tuple[int, InputRow, Annotation, Callable[[], InputBytes]]
"""Row number in the table of inputs, the row, its annotation before resizing, and what reads its file."""


def _convert(job: ShardJob, whole: DecodedOnce, decoding: Decoding, chunk: list[Input]) -> list[ConvertedInput]:
    """Convert a chunk of inputs to records."""
    recipe = job.recipe
    results = []
    for number, row, annotation, read in chunk:
        contents = late = None
        try:
            contents = read()
            if number in job.refused:
                whole.refuse(row.path, job.refused[number])
                raise job.refused[number]
            with decoding(number):
                known = recipe.with_header(row, contents.image)
                if known is not row:
                    late = (known.height, known.width), losses_named(known.header, recipe.mode)
                key = f"{job.first_key + number:0{job.key_digits}d}"
                record, damage = recipe.record(key, known, contents, annotation, whole)
        except BadInput as error:
            digest = b"" if contents is None else contents.digest
            results.append(ConvertedInput(None, rejected(row.path, error), digest, late=late))
        else:
            before, after = annotation.boxes, record.annotation.boxes
            cropped = 0 if before is None or after is None else len(before) - len(after)
            is_of_file = not contents.parts and annotation.window is None
            digest = record.source_xxh3 if is_of_file else contents.digest
            results.append(ConvertedInput(record, None, digest, cropped, damage, late))
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
        size = (row.width, row.height) if annotation.window is None else annotation.window[2:4].tolist()
        pixels += size[0] * size[1] if row.code != UNREAD else PIXELS_A_BYTE * row.bytes
        if pixels * 3 >= CHUNK_BYTES or len(chunk) == CHUNK_RECORDS:
            yield chunk
            chunk, pixels = [], 0
    if chunk:
        yield chunk
