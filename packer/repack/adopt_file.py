"""Reads one file of another tool: the places, headers, labels and digests of its images; this runs in a worker."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from xxhash import xxh3_128_digest

from packer.errors import BadImage, BadInput, BadLabel, BadMask, DamagedPack, PackerError, UsageError, printable
from packer.format.index import DTYPES, ENCODINGS, FULL_SCHEMA, PART_COLUMNS, dictionary_column
from packer.format.indexes import all_ranges, overlapping
from packer.format.lists import Changed
from packer.format.manifest import Rejected
from packer.images.header import IncompleteHeader, check_header, decoded_shape, losses, read_header
from packer.images.image_headers import Header, OnAnimation, frame_like_last, least_bytes
from packer.images.masks import read_mask_header, stored_obstacle
from packer.images.parts import check_size
from packer.model.annotation import ENCODINGS as PART_ENCODINGS
from packer.model.annotation import MISSING, Annotation, RawAnnotation, key_of
from packer.model.fields import BY_NAME, FIELD_NAMES, NO_TEXTS, Texts, annotation_arrays, label_arrays, listed_members
from packer.packing.make_record import rejected
from packer.packing.partition import checked_texts
from packer.packing.resolve import ClassIds, Resolver
from packer.repack.formats import (
    GET_AGAIN,
    NPY,
    Class,
    ForeignFile,
    FormatOptions,
    Masked,
    Numbered,
    Pixels,
    Rich,
    Row,
    open_format,
)
from packer.repack.formats.array_formats import header_of
from packer.sources.mask_files import MASK
from packer.sources.paths import MOST_CLASSES
from packer.system.child import Decoding, Report, unmarked
from packer.system.storage import storage_errors

HEAD_BYTES = 4096
MOST_FACTS = 1 << 16
MOST_SIDE = 1 << 31
UNKNOWN = 0, None


class CommonFacts(NamedTuple):
    """What many images have in common."""

    columns: tuple[int, int, int, int, int]
    """Height, width, channels, code of the dtype, code of the encoding."""
    header: Header
    error: BadInput | None = None
    """Why such images cannot be packed."""
    losses: tuple[str, ...] = ()


class ImageFacts:
    """Finds the facts of the images in a file; those with equal headers share them."""

    def __init__(self, file: ForeignFile, max_pixels: int, on_animation: OnAnimation) -> None:
        self._file = file
        self._max_pixels = max_pixels
        self._on_animation = on_animation
        self._facts: dict[Header | Pixels, CommonFacts] = {}
        self.frames: dict[bytes | None, tuple[int, CommonFacts]] = {}
        """Facts of good JPEGs by `frame_like_last`, with the least size of such a file."""
        self.losses: Counter[str] = Counter()

    def of_image(self, head: bytes, offset: int, size: int) -> CommonFacts:
        """Return the facts of an image file. Raise BadImage if it cannot be decoded."""
        try:
            header = read_header(head, size <= HEAD_BYTES, size)
        except IncompleteHeader:
            header = read_header(self._file.view[offset : offset + size])
        facts = self._facts.get(header) or self._checked(header)
        if facts.error is not None:
            raise facts.error
        if facts.losses:
            self.losses.update(facts.losses)
        elif len(self.frames) < MOST_FACTS and (frame := frame_like_last(memoryview(head))) is not None:
            self.frames[frame] = least_bytes(header), facts
        return facts

    def _checked(self, header: Header) -> CommonFacts:
        height, width, channels, dtype = decoded_shape(header, "rgb")
        columns = height, width, channels, DTYPES.index(dtype), ENCODINGS.index(header.format)
        facts = CommonFacts(columns, header, None, losses(header, "rgb"))
        try:
            check_header(header, self._max_pixels, self._on_animation)
        except BadInput as error:
            facts = facts._replace(error=error)
        return self._keep(header, facts)

    def _keep(self, of: Header | Pixels, facts: CommonFacts) -> CommonFacts:
        if len(self._facts) >= MOST_FACTS:
            self._facts.clear()
        self._facts[of] = facts
        return facts

    def of_pixels(self, pixels: Pixels, size: int) -> CommonFacts:
        """Return the facts of a raw image."""
        facts = self._facts.get(pixels) or self._checked_pixels(pixels)
        if facts.error is not None:
            raise facts.error
        height, width, channels, dtype = pixels
        if size != height * width * channels * (2 if dtype == "uint16" else 1):
            raise BadImage("", f"{size} bytes are not {dtype} pixels of shape {tuple(pixels[:3])}", "write it again")
        return facts

    def _checked_pixels(self, pixels: Pixels) -> CommonFacts:
        height, width, channels, dtype = pixels
        error = None
        if dtype not in DTYPES or not 1 <= channels <= 4 or min(height, width) < 1 or max(height, width) >= MOST_SIDE:
            problem = f"an array of {dtype} {tuple(pixels[:3])}, not of uint8 or uint16 (height, width, 1 to 4)"
            error = BadImage("", problem, "convert it")
        elif height * width > self._max_pixels:
            problem = f"{width}x{height} pixels are more than {self._max_pixels}"
            error = BadImage("", problem, "raise --max-pixels if this is intended")
        code = 0 if error else DTYPES.index(dtype)
        return self._keep(
            pixels, CommonFacts((height, width, channels, code, 0), Header("png", width, height, 3, 8), error)
        )

    def of_npy(self, offset: int, size: int, head: bytes) -> tuple[CommonFacts, int, int]:
        """Return the place and the facts of the pixels in a .npy file."""
        try:
            shape, order, kind, start = header_of(head)
            if kind.byteorder == ">":
                raise ValueError("its numbers are big-endian")
        except ValueError as error:
            raise BadImage("", f"a .npy file that cannot be read: {error}", "write it again") from None
        if order or len(shape) not in (2, 3):
            raise BadImage("", f"a .npy array of shape {shape}, not of rows of pixels", "write it again in C order")
        pixels = Pixels(shape[0], shape[1], shape[2] if len(shape) == 3 else 1, kind.name)
        return self.of_pixels(pixels, size - start), offset + start, size - start


def no_bytes(offset: int, size: int, limit: int) -> BadImage:
    if size < 0:
        return BadImage("", "a link or a sparse file, without bytes of its own", "write the image itself into the file")
    if not size:
        return BadImage("", "not an image: it is empty", "write the image itself into the file")
    return BadImage("", f"lies outside its file: {size} bytes at {offset} of {limit}", "get the file again")


TABLE_SCHEMA = pa.schema([*FULL_SCHEMA, *(pa.field(f"{MASK}_{name}", kind) for name, kind in PART_COLUMNS.items())])
"""Of the images of a file: `FULL_SCHEMA`, and where their masks are."""
PNG = PART_ENCODINGS.index("png")
ROWS_A_CHUNK = 8192
HASH_BYTES = 8 << 20
MaskPlace = tuple[int, int, int]
"""Where a mask begins; its size and checksum."""
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
    masks: int = 0
    """How many images have a mask."""
    has_deep_masks: bool = False
    """Whether ids of masks have 16 bits."""
    obstacles: dict[str, str] = field(default_factory=dict)
    """`Format.obstacles`."""
    notes: list[str] = field(default_factory=list)


def adopt_file(job: FileJob, report: Report, decoding: Decoding = unmarked) -> FileResult:
    """Read a file, and write the table of its images (TABLE_SCHEMA) as an Arrow file to `job.table`.

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
    """Yield what writes record batches of TABLE_SCHEMA to a new Arrow file. Raise StorageError if the disk refuses."""
    with storage_errors(path):
        sink = pa.OSFile(os.fsencode(path), "wb")
        writer = pa.ipc.new_file(sink, TABLE_SCHEMA)

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
                    places.append(all_ranges(pa.Table.from_batches([chunk])))
                    self._digest.advance(int((places[-1][0] + places[-1][1]).max()))
                    result.rows += len(chunk)
                first += taken
                report(taken, len(result.rejected) - bad)
        if places:
            offsets, sizes = (np.concatenate(column) for column in zip(*places, strict=True))
            if overlapping(offsets, sizes, sizes > 0).any():
                raise self._file.damaged("has images that overlap")
        result.sha256 = self._digest.hexdigest()
        result.losses = self._images.losses
        names, order = self._classes.final(())
        result.names = [names[number] for number in order.tolist()]
        self._title(dict(enumerate(reader.titles)))
        result.declared = reader.classes
        result.tags = reader.tags
        result.notes, result.obstacles = reader.notes, reader.obstacles
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
        masks: dict[int, MaskPlace] = {}
        number = first
        stop = first + ROWS_A_CHUNK
        with memoryview(view) as data:
            for path, offset, size, said, pixels in rows:
                number += 1
                try:
                    known = said.known if type(said) is Masked else said
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
                    if type(said) is Masked and said.size:
                        masks[len(kept)] = self._mask_place(said, key, facts.columns)
                    kept.append((start, count, crc, facts.columns, label, path, digest(image)))
                    keys.append(key)
                except BadInput as error:
                    self.result.rejected.append(rejected(path, error))
                if number == stop:
                    break
        return (self._batch(keys, kept, rich, masks) if kept else None), number == stop, number - first

    def _mask_place(self, masked: Masked, key: bytes, columns: tuple[int, ...]) -> MaskPlace:
        """Return where the mask of an image is. Raise BadMask if it cannot be read as it is stored."""
        start, size = masked.offset, masked.size
        height, width, *_ = columns
        try:
            if size < 0 or start < 0 or start > self._file.size - size:
                raise no_bytes(start, size, self._file.size)
            data = self._file.view[start : start + size]
            header = read_mask_header(data, True, size, self._job.max_pixels)
            if what := stored_obstacle(data, header):
                raise BadMask("", f"is {what}, which cannot be read in place", "packer build reads such masks")
            check_size((header.width, header.height), Header("png", width, height, 3, 8))
        except BadInput as error:
            raise BadMask("", f"its mask {error.problem}", error.next_step) from None
        self.result.masks += 1
        self.result.has_deep_masks |= header.bit_depth > 8
        return start, size, crc32c(data, crc32c(key_of(key, MASK)))

    def _label(self, known: Any, header: Header, path: bytes, row: int, rich: dict[int, Noted]) -> int:
        """Return the local class id of an image; add the rest of its annotation to `rich`. Raise BadLabel."""
        if isinstance(known, BadLabel):
            raise known
        if not isinstance(known, Rich):
            return self._class_id(known)
        label = self._ids.get(known.label)
        if label is None:
            label = self._class_id(known.label)
        annotation = self._resolver.annotation([self._named(known)], header, path)
        texts = checked_texts(annotation, path)
        self._title(known.names)
        self.result.fields.update(listed_members(annotation))
        rich[row] = annotation, texts
        return label

    def _named(self, known: Rich) -> RawAnnotation:
        """Return the annotation; boxes have the names of their classes if ``--classes`` has some of these.

        Else the numbers are places in that list.
        """
        labels, classes = known.raw.box_labels, self._job.classes
        if classes is None or labels is None or not {*classes}.intersection(known.names.values()):
            return known.raw
        names = {str(number): name for number, name in known.names.items()}
        return replace(known.raw, box_labels=tuple(names.get(label, label) for label in labels))

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

    def _batch(self, keys: list[bytes], kept: list[Any], rich: dict[int, Noted], masks: dict[int, MaskPlace]) -> Any:
        """Return rows as a record batch of TABLE_SCHEMA."""
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
            dictionary_column(dtypes.astype(np.int8), DTYPES),
            dictionary_column(encodings.astype(np.int8), ENCODINGS),
            pa.array(paths, pa.binary()),
            pa.Array.from_buffers(pa.binary(16), len(kept), [None, pa.py_buffer(b"".join(digests))]),
            *annotations,
            *_mask_columns(len(kept), masks),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)


def _mask_columns(count: int, masks: Mapping[int, MaskPlace]) -> list[Any]:
    """Return the columns of the masks of `count` images, those of some rows."""
    places = np.tile(np.array((*MISSING, 0), np.int64), (count, 1))
    codes = np.zeros(count, np.int8)
    if masks:
        rows = [*masks]
        places[rows], codes[rows] = [*masks.values()], PNG
    starts, sizes, crcs = places.T
    return [pa.array(starts), pa.array(sizes), pa.array(crcs, pa.uint32()), dictionary_column(codes, PART_ENCODINGS)]
