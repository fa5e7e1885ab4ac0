"""Writes the records of a shard to another container, as they are or encoded again; this runs in a worker."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from xxhash import xxh3_128_digest

from packer.errors import BadImage, BadInput, DamagedPack, printable
from packer.format.index import DTYPES, ENCODINGS
from packer.format.indexes import Indexes, IndexFiles
from packer.format.manifest import ShardEntry
from packer.format.mmap import map_files
from packer.format.sidecar_list import FINGERPRINT_BYTES
from packer.format.stored_images import window_of
from packer.format.verify_records import ALTERED, text_of, texts
from packer.model.annotation import COLUMNS, OF_PIXELS, Annotation, Image, Part, Record, column_of, key_of, names_in
from packer.model.annotation import ENCODINGS as PART_ENCODINGS
from packer.model.annotation_columns import Annotations, column, present
from packer.model.fields import FIELD_NAMES
from packer.packing.decoded_once import DecodedOnce
from packer.packing.journal import ShardResult, is_intact
from packer.packing.write_shard import CHUNK_BYTES, CHUNK_RECORDS, ConvertedInput, NewShard, ahead
from packer.repack.pack_classes import NewClasses
from packer.system.child import Decoding, Report, unmarked

if TYPE_CHECKING:  # a copy of bytes does not need the libraries of images, which take a while to load
    from packer.images.decode import Decoder
    from packer.images.header import Mode
    from packer.images.resize import Encoding, TargetSize


KEY = "^[0-9]{8,18}$"


@dataclass(frozen=True, slots=True)
class Remake:
    """How each image of a pack is decoded, resized and encoded."""

    mode: Mode
    decoder: Decoder
    resize: TargetSize | None
    encode: Encoding
    quality: int
    windows: bool = False
    """Whether records are windows on images that they share."""
    whole: DecodedOnce = field(default_factory=DecodedOnce, compare=False, repr=False)

    def record(self, record: Record) -> Record:
        """Return a record with its image made again, and its annotation in the frame of the new image.

        Raises:
            BadImage: The image cannot be decoded, or the encoding cannot hold it.
        """
        from packer.images.fingerprint import fingerprint_of
        from packer.images.resize import encode
        from packer.packing.make_record import resize_annotation

        image = self._image(record)
        annotation = record.annotation
        fingerprint = fingerprint_of(image) if record.fingerprint else b""
        if self.resize is not None:
            annotation = resize_annotation(annotation, self.resize, (record.width, record.height))
        height, width, channels = image.shape
        return replace(
            record, data=encode(image, self.encode, self.quality), encoding=self.encode, height=height, width=width,
            channels=channels, annotation=annotation, fingerprint=fingerprint,
        )  # fmt: skip

    def _image(self, record: Record) -> Image:
        from packer.images.decode import decode

        size = (record.width, record.height)
        if self.windows:
            return self._tile(record)
        if record.encoding == "raw":
            image = np.frombuffer(record.data, record.dtype)
            if image.size != record.height * record.width * record.channels:
                raise BadImage("", f"has {len(record.data)} bytes, which is not {record.dtype} {record.shape}")
            image = image.reshape(record.shape)
            return image if self.resize is None else self.resize.apply(image)
        at_least = None if self.resize is None else self.resize.at_least(*size)
        image = decode(bytes(record.data), self.mode, self.decoder, at_least, max(1, record.width * record.height))
        try:
            if self.resize is not None:
                return self.resize.apply(image, size)
            if image.shape[:2] == size[::-1]:
                return image
        except ValueError as error:
            if isinstance(error, BadInput):
                raise
        raise BadImage("", f"decodes to {image.shape[1]}x{image.shape[0]} pixels, but its row says {size[0]}x{size[1]}")

    def _tile(self, record: Record) -> Image:
        from packer.images.decode import decode

        if (window := record.annotation.window) is None or len(window) != 6:
            raise BadImage("", "has no window on its image")
        data, pixels = bytes(record.data), max(1, int(window[4]) * int(window[5]))
        make = partial(decode, data, self.mode, self.decoder, None, pixels)
        tile = window_of(self.whole.get(xxh3_128_digest(data), "", make), window.astype(np.int64), record.channels)
        tile = np.ascontiguousarray(tile)
        return tile if self.resize is None else self.resize.apply(tile)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob(NewShard):
    """Everything that a worker needs to write records of a shard of a pack to a new one."""

    pack: str
    """The folder of the pack."""
    file: str
    """Path of the container."""
    entry: ShardEntry
    rows: tuple[int, ...] | None
    """The rows to write; None: all of them."""
    first_key: int | None
    """Number of the first record, from which new keys follow. None: keys stay."""
    remake: Remake | None
    """None: the bytes of the images stay."""
    encode_parts: Mapping[str, str] = field(default_factory=dict)
    """How parts with pixels are stored, if that is not as they are."""
    mode: str = "rgb"
    """The color mode of the pack."""
    class_ids: tuple[int, ...] = ()
    """New id of each class of the pack, -1 of dropped ones. Empty: ids stay."""
    mask_ids: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """(value, new value) of the pixels of masks, by their names."""
    fingerprints: bytes = b""
    """Those of all records of the shard; empty if they are not known."""

    def made(self, decoding: Decoding) -> Generator[list[ConvertedInput], None, None]:
        """Yield the new records."""
        source = _Source(self, decoding)
        if self.remake is None:
            yield from map(source.made, source.chunks())
            return
        from packer.images.opencv import quiet_opencv

        with quiet_opencv(in_worker=True), closing(ahead(source.made, source.chunks(), self.threads)) as made:
            yield from made

    @property
    def digest(self) -> str:
        """SHA-256 of everything that determines the new shard."""
        asked: tuple[Any, ...] = (
            self.name, self.container, self.spec, self.entry, self.rows, self.first_key, self.remake,
        )  # fmt: skip
        asked += (self.encode_parts,) if self.encode_parts else ()
        asked += (self.class_ids, self.mask_ids) if self.class_ids or self.mask_ids else ()
        return hashlib.sha256(repr(asked).encode("utf-8", "surrogateescape")).hexdigest()


def copy_shard(job: CopyJob, report: Report, decoding: Decoding = unmarked) -> ShardResult:
    """Write the shard of `job`, or keep the one that an earlier attempt finished.

    Args:
        job: The records.
        report: Called with (records done, bad images among them) from time to time.
        decoding: Returns a context for each decode.

    Returns:
        The shard's files, and the images that could not be decoded.

    Raises:
        DamagedPack: A record does not match its checksum.
        StorageError: A file cannot be read or written.
    """
    finished = job.finished
    if finished is not None and finished.inputs == job.digest and _is_intact(finished, job):
        report(job.spec.planned_records, len(finished.rejected))
        return replace(finished, unchanged=True)
    result = job.write(job.made(decoding), report)
    result.inputs = job.digest
    return result


def _is_intact(finished: ShardResult, job: CopyJob) -> bool:
    return finished.entry is None or job.checked or is_intact(finished.entry, job.folder)


def keys_may_stay(table: Any) -> bool:
    """Return whether the keys of a shard are as packer writes them: numbers, in increasing order."""
    keys = table.column("key")
    numbers = pc.all(pc.match_substring_regex(keys, KEY)).as_py()
    return bool(numbers and (len(keys) < 2 or pc.all(pc.less(keys[:-1], keys[1:])).as_py()))


def measure_rows(job: CopyJob, report: Report, decoding: Decoding = unmarked) -> list[int]:
    """Return the size of the image of each record of `job` as it would be stored."""
    return [len(made.record.data) for chunk in job.made(decoding) for made in chunk if made.record is not None]


class _Source:
    """The records of a job, read from a map of the container."""

    def __init__(self, job: CopyJob, decoding: Decoding) -> None:
        self._job, self._decoding = job, decoding
        indexes = Indexes(IndexFiles(job.pack, [job.entry]))
        table = indexes[0]
        if job.class_ids:
            table = pa.Table.from_batches([NewClasses(table, np.array(job.class_ids)).batch()])
        # lists of Python numbers: numpy scalars would take longer than copying a small image
        self._offsets = indexes.offsets(0).tolist()
        names = ("size", "crc32c", "height", "width", "channels", "dtype", "encoding")
        self._numbers = {name: np.asarray(column(table, name)).tolist() for name in names}
        self._keys, self._paths = texts(column(table, "key")), texts(column(table, "path"))
        self._digests = np.ascontiguousarray(column(table, "source_xxh3")).tobytes()
        absent = [name for name in FIELD_NAMES if name in table.column_names and not present(table, name).any()]
        self._annotations = Annotations(table.drop_columns(absent), indexes.path(0))
        self._labels = self._annotations.labels_only
        self._of_label: dict[int, Annotation] = {}
        self._parts = {
            name: [np.asarray(column(table, column_of(name, what))).tolist() for what in COLUMNS]
            for name in names_in(table.column_names)
        }
        region, _ = map_files([(job.file, job.entry.container.bytes)])
        self._data = region.data

    def chunks(self) -> Iterator[list[tuple[int, int]]]:
        """Yield runs of (number in the job, row) with about CHUNK_BYTES of images."""
        sizes = self._numbers["size"]
        chunk: list[tuple[int, int]] = []
        chunk_bytes = 0
        for number, row in enumerate(range(len(sizes)) if self._job.rows is None else self._job.rows):
            chunk.append((number, row))
            chunk_bytes += sizes[row]
            if chunk_bytes >= CHUNK_BYTES or len(chunk) == CHUNK_RECORDS:
                yield chunk
                chunk, chunk_bytes = [], 0
        if chunk:
            yield chunk

    def made(self, chunk: list[tuple[int, int]]) -> list[ConvertedInput]:
        """Return the new record of each row of a chunk."""
        return [self._made(number, row) for number, row in chunk]

    def _made(self, number: int, row: int) -> ConvertedInput:
        job, record, cropped = self._job, self._record(row), 0
        check: Callable[[int], None] | None = partial(self._check, row)
        if job.remake is not None or job.first_key is not None:  # the checksum will be another
            self._check(row, record.crc32c())
            check = None
        if job.remake is not None:
            before = record.annotation.boxes
            try:
                if row in job.refused:
                    raise job.refused[row]
                with self._decoding(row):
                    parts = tuple(self._part(part, record) for part in record.parts)
                    record = replace(job.remake.record(record), parts=parts)
            except BadInput as error:
                from packer.packing.make_record import rejected

                return ConvertedInput(None, rejected(record.path, error), record.source_xxh3)
            after = record.annotation.boxes
            cropped = 0 if before is None or after is None else len(before) - len(after)
        elif (job.encode_parts or job.mask_ids) and record.parts:
            record = replace(record, parts=tuple(self._part(part, record) for part in record.parts))
        if job.first_key is not None:
            record = replace(record, key=f"{job.first_key + number:08d}")
        return ConvertedInput(record, None, record.source_xxh3, cropped, check=check)

    def _part(self, part: Part, record: Record) -> Part:
        """Return a part with pixels in the size of the new image, and in its new encoding; another as it is."""
        spec = next(spec for spec in self._job.spec.parts if spec.name == part.name)
        remake = self._job.remake
        resize = None if remake is None else remake.resize
        encode = self._job.encode_parts.get(part.name, part.encoding)
        ids = self._job.mask_ids.get(part.name, ())
        if spec.kind not in OF_PIXELS or (resize is None and encode in (part.encoding, "copy") and not ids):
            return part
        from packer.images.parts import BY_KIND

        kind, shape = BY_KIND[spec.kind], (record.height, record.width)
        value = kind.decode(part.data, part.encoding, shape, spec, self._job.mode)
        if ids:
            table = np.arange(1 << 16)
            before, after = np.array(ids).T
            table[before] = after
            value = table[value].astype(value.dtype)
        if resize is not None:
            value = kind.resized(value, resize, spec)
        return Part(part.name, kind.encode(value, encode, 90 if remake is None else remake.quality), encode)

    def _record(self, row: int) -> Record:
        facts, start = self._numbers, self._offsets[row]
        try:
            return Record(
                key=self._keys[row].decode("ascii"),
                data=self._data[start : start + facts["size"][row]],
                encoding=ENCODINGS[facts["encoding"][row]],
                height=facts["height"][row],
                width=facts["width"][row],
                channels=facts["channels"][row],
                dtype=DTYPES[facts["dtype"][row]],
                annotation=self._annotation(row),
                path=self._paths[row],
                source_xxh3=self._digests[16 * row : 16 * row + 16],
                parts=tuple(self._parts_of(row)),
                fingerprint=self._job.fingerprints[FINGERPRINT_BYTES * row : FINGERPRINT_BYTES * (row + 1)],
            )
        except (DamagedPack, UnicodeDecodeError, IndexError) as error:
            raise self._damage(row, getattr(error, "problem", "has no valid row in the index")) from error

    def _parts_of(self, row: int) -> Iterator[Part]:
        """Yield the parts of a record besides its image, verified."""
        for name, (offsets, sizes, crcs, codes) in self._parts.items():
            if sizes[row] >= 0:
                data = self._data[offsets[row] : offsets[row] + sizes[row]]
                if crc32c(data, crc32c(key_of(self._keys[row], name))) != crcs[row]:
                    raise self._damage(row, f"has a {name} that {ALTERED}")
                yield Part(name, data, PART_ENCODINGS[codes[row]])

    def _annotation(self, row: int) -> Annotation:
        if self._labels is None:
            return self._annotations[row]
        label = self._labels[row]  # images of a class share their annotation
        return self._of_label.get(label) or self._of_label.setdefault(label, self._annotations[row])

    def _check(self, row: int, checksum: int) -> None:
        if checksum != self._numbers["crc32c"][row]:
            raise self._damage(row, ALTERED)

    def _damage(self, row: int, problem: str) -> DamagedPack:
        job, key = self._job, text_of(self._keys[row])
        step = f"save the others with packer repair {printable(job.pack)}"
        if os.path.realpath(os.path.dirname(job.file)) != os.path.realpath(job.pack):  # of another tool
            step = f"restore the file, adopt it again, or leave {key} out with --exclude"
        error = DamagedPack(job.file, f"record {key} (row {row}) {problem}", step)
        return error.with_location(job.pack, job.entry.container.name, key)
