"""Reads one file of another tool: the places, headers, labels and digests of its images; this runs in a worker."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from xxhash import xxh3_128_digest

from packer.errors import BadInput, BadLabel, DamagedPack, PackerError, UsageError, printable
from packer.format.index_rows import coded
from packer.format.indexes import overlapping
from packer.format.lists import Changed
from packer.format.manifest import Rejected
from packer.format.schema import DTYPES, ENCODINGS, FULL_SCHEMA
from packer.images.base import Header, OnAnimation
from packer.images.jpeg_header import frame_like_last
from packer.model.annotation import Annotation
from packer.model.fields import BY_NAME, FIELD_NAMES, NO_TEXTS, Texts, annotation_arrays, label_arrays, listed_members
from packer.packing.convert import rejected
from packer.packing.partition import checked_texts
from packer.packing.resolve import ClassIds, Resolver
from packer.repack.adopt_images import HEAD_BYTES, NPY, UNKNOWN, ImageFacts, no_bytes
from packer.repack.formats import open_format
from packer.repack.formats.base import GET_AGAIN, Class, ForeignFile, FormatOptions, Numbered, Rich, Row
from packer.sources.paths import MOST_CLASSES
from packer.system.child import Decoding, Report, unmarked
from packer.system.storage import storage_errors

ROWS_A_CHUNK = 8192
HASH_BYTES = 8 << 20
Noted = tuple[Annotation, Texts]
NOTHING: Noted = Annotation(), NO_TEXTS


@dataclass(frozen=True, slots=True)
class FileJob:
    """A file to read."""

    path: str
    format: str
    options: FormatOptions
    table: str
    """Where to write the table of its images."""
    key_prefix: bytes
    classes: tuple[str, ...] | None
    """Of ``--classes``; None: those of the files."""
    boxes: str
    max_pixels: int
    on_animation: OnAnimation
    threads: int = 0
    """1 on the second try, after a worker has crashed, so that the counters name the image."""
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Images whose header crashed a worker twice, by their number in the file."""


@dataclass(slots=True)
class FileResult:
    """What was found. Class ids in the table are those of `names`."""

    bytes: int = 0
    sha256: str = ""
    rows: int = 0
    names: list[str] = field(default_factory=list)
    titles: dict[int, str] = field(default_factory=dict)
    """Names of classes that the labels number."""
    declared: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    rejected: list[Rejected] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    fields: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def adopt_file(job: FileJob, report: Report, decoding: Decoding = unmarked) -> FileResult:
    """Read a file, and write the table of its images (FULL_SCHEMA) as an Arrow file to `job.table`.

    Raises:
        UsageError: The file cannot be read, or its images not in place.
    """
    try:
        with ForeignFile(job.path) as file, ThreadPoolExecutor(1) as beside:
            reader = _Reader(job, file, _Digest(file, beside))
            reader.read(report, decoding)
            return reader.result
    except DamagedPack as error:  # of a container's own reader
        raise UsageError(job.path, error.problem, GET_AGAIN) from None
    except PackerError:
        raise
    except OSError as error:
        raise UsageError(job.path, f"cannot be read: {error.strerror or error}", "check its permissions") from None


@contextmanager
def _new_table(path: str) -> Iterator[Callable[[Any], None]]:
    """Yield what writes record batches of FULL_SCHEMA to a new Arrow file. Raise StorageError if the disk refuses."""
    with storage_errors(path):
        sink = pa.OSFile(os.fsencode(path), "wb")
        writer = pa.ipc.new_file(sink, FULL_SCHEMA)

    def write(batch: Any) -> None:
        with storage_errors(path):
            writer.write_batch(batch)

    try:
        yield write
    except BaseException:
        for file in (writer, sink):
            with suppress(OSError):  # of a full disk again: the first error says it
                file.close()
        raise
    with storage_errors(path):
        writer.close()
        sink.close()


class _Digest:
    """SHA-256 of a file, computed in another thread and little ahead of its reader, so that it is read once."""

    def __init__(self, file: ForeignFile, beside: ThreadPoolExecutor) -> None:
        self._file = file
        self._beside = beside
        self._hash = hashlib.sha256()
        self._done = 0
        self._pending: Future[None] | None = None

    def advance(self, stop: int) -> None:
        """Take in the bytes up to `stop`."""
        while stop - self._done >= HASH_BYTES or (stop == self._file.size > self._done):
            end = min(stop, self._done + HASH_BYTES)
            if self._pending is not None:
                self._pending.result()
            self._pending = self._beside.submit(self._add, self._done, end)
            self._done = end

    def _add(self, start: int, stop: int) -> None:
        with memoryview(self._file.view) as view, view[start:stop] as part:
            self._hash.update(part)

    def hexdigest(self) -> str:
        """Return the digest of the whole file."""
        self.advance(self._file.size)
        if self._pending is not None:
            self._pending.result()
        return self._hash.hexdigest()


class _Reader:
    """Collects the rows of a file."""

    def __init__(self, job: FileJob, file: ForeignFile, digest: _Digest) -> None:
        self._job = job
        self._file = file
        self._digest = digest
        self._classes = ClassIds(job.classes)
        self._resolver = Resolver(self._classes, job.boxes)
        self._images = ImageFacts(file, job.max_pixels, job.on_animation)
        self._ids: dict[Any, int] = {None: -1, -1: -1}
        self.result = FileResult(file.size)

    def read(self, report: Report, decoding: Decoding) -> None:
        """Read all rows."""
        job, result = self._job, self.result
        reader = open_format(job.format, job.options)
        rows = reader(self._file)
        places: list[Any] = []
        first = 0
        with _new_table(job.table) as write:
            more = True
            while more:
                chunk, more, taken = self._chunk(rows, first, decoding)
                bad = len(result.rejected)
                if chunk is not None:
                    write(chunk)
                    places.append((chunk.column(1).to_numpy(), chunk.column(2).to_numpy()))
                    self._digest.advance(int((places[-1][0] + places[-1][1]).max()))
                    result.rows += len(chunk)
                first += taken
                report(taken, len(result.rejected) - bad)
        if places:
            offsets, sizes = (np.concatenate(column) for column in zip(*places, strict=True))
            if overlapping(offsets, sizes, np.ones(len(offsets), np.bool_)).any():
                raise self._file.damaged("has images that overlap")
        result.sha256 = self._digest.hexdigest()
        result.losses = self._images.losses
        names, order = self._classes.final(())
        result.names = [names[number] for number in order.tolist()]
        self._title(dict(enumerate(getattr(reader, "titles", ()))))
        result.declared = reader.classes
        result.tags = getattr(reader, "tags", None) or ()
        result.notes = reader.notes
        result.counts = self._resolver.counts
        result.changed = list(self._resolver.changed)

    def _chunk(self, rows: Iterator[Row], first: int, decoding: Decoding) -> tuple[Any, bool, int]:
        """Return some rows as a record batch, None if none is good; whether there are more; and how many were read."""
        view, limit, prefix = self._file.view, self._file.size, self._job.key_prefix
        checksum, digest, ids, images = crc32c, xxh3_128_digest, self._ids, self._images
        refused, mark, frames = self._job.refused, self._job.threads > 0, images.frames
        keys: list[bytes] = []
        kept: list[tuple[int, int, int, tuple[int, ...], int, bytes, bytes]] = []
        rich: dict[int, Noted] = {}
        number = first
        stop = first + ROWS_A_CHUNK
        with memoryview(view) as data:
            for path, offset, size, known, pixels in rows:
                number += 1
                try:
                    if refused and number - 1 in refused:
                        raise refused[number - 1]
                    start, count = offset, size
                    if size < 1 or offset < 0 or offset > limit - size:
                        raise known if isinstance(known, BadInput) else no_bytes(offset, size, limit)
                    if pixels is None:
                        image = data[offset : offset + size]
                        least, like = frames.get(frame_like_last(image), UNKNOWN)
                        if like is not None and size >= least:
                            facts = like
                        elif (head := bytes(image[:HEAD_BYTES]))[:6] == NPY:
                            facts, start, count = images.of_npy(offset, size, head)
                            image = data[start : start + count]
                        elif mark:
                            with decoding(number - 1):
                                facts = images.of_image(head, offset, size)
                        else:
                            facts = images.of_image(head, offset, size)
                    else:
                        facts, image = images.of_pixels(pixels, size), data[offset : offset + size]
                    if type(known) is Rich or (label := ids.get(known)) is None:
                        label = self._label(known, facts.header, path, len(kept), rich)
                    key = b"%s%08d" % (prefix, number - 1)
                    crc = checksum(image, checksum(key))
                    kept.append((start, count, crc, facts.columns, label, path, digest(image)))
                    keys.append(key)
                except BadInput as error:
                    self.result.rejected.append(rejected(path, error))
                if number == stop:
                    break
        return (self._batch(keys, kept, rich) if kept else None), number == stop, number - first

    def _label(self, known: Any, header: Header, path: bytes, row: int, rich: dict[int, Noted]) -> int:
        """Return the local class id of an image; add the rest of its annotation to `rich`. Raise BadLabel."""
        if isinstance(known, BadLabel):
            raise known
        if not isinstance(known, Rich):
            return self._class_id(known)
        label = self._ids.get(known.label)
        if label is None:
            label = self._class_id(known.label)
        annotation = self._resolver.annotation([known.raw], header, path)
        texts = checked_texts(annotation, path)
        self._title(known.names)
        self.result.fields.update(listed_members(annotation))
        rich[row] = annotation, texts
        return label

    def _class_id(self, known: Class) -> int:
        number = known if isinstance(known, int) else known.number if isinstance(known, Numbered) else None
        origin = self._file.name
        if number is not None and not 0 <= number < MOST_CLASSES:
            problem = f"class {number} is not a number from 0 to {MOST_CLASSES - 1}"
            raise BadLabel(origin, problem, "correct the label, or name the field of the class: --columns")
        if isinstance(known, Numbered):
            self._title({known.number: known.name})
        name = str(number) if number is not None else str(known)
        if isinstance(known, Numbered) and self._job.classes is not None and known.name in self._job.classes:
            name = known.name
        self._ids[known] = found = self._classes.id_of(name, origin)
        return found

    def _title(self, names: Any) -> None:
        titles = self.result.titles
        for number, name in names.items():
            if titles.setdefault(number, name) != name:
                problem = f"class {number} is {printable(titles[number])} and also {printable(name)}"
                raise self._file.damaged(problem, "name the field of the class: --columns=label=FIELD")

    def _batch(self, keys: list[bytes], kept: list[Any], rich: dict[int, Noted]) -> Any:
        """Return rows as a record batch of FULL_SCHEMA."""
        offsets, sizes, crcs, facts, labels, paths, digests = zip(*kept, strict=True)
        numbers = np.fromiter(chain.from_iterable(facts), np.int64, 5 * len(facts))
        heights, widths, channels, dtypes, encodings = numbers.reshape(-1, 5).T
        ids = np.array(labels, np.int32)
        if rich:
            every = [rich.get(row, NOTHING) for row in range(len(kept))]
            annotations = annotation_arrays([one for one, _ in every], [texts for _, texts in every])
            annotations[0] = label_arrays(ids)[0]
        else:
            annotations = label_arrays(ids)
        for name, column in zip(FIELD_NAMES, annotations, strict=True):
            if column.null_count < len(column) and not BY_NAME[name].has_members:
                self.result.fields.add(name)
        columns = [
            pa.array(keys, pa.binary()).cast(pa.string()),
            pa.array(offsets, pa.int64()),
            pa.array(sizes, pa.int64()),
            pa.array(crcs, pa.uint32()),
            pa.array(heights.astype(np.int32)),
            pa.array(widths.astype(np.int32)),
            pa.array(channels.astype(np.int8)),
            coded(dtypes.astype(np.int8), DTYPES),
            coded(encodings.astype(np.int8), ENCODINGS),
            pa.array(paths, pa.binary()),
            pa.Array.from_buffers(pa.binary(16), len(kept), [None, pa.py_buffer(b"".join(digests))]),
            *annotations,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=FULL_SCHEMA)
