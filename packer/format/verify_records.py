"""Verifies the checksums of the records of a shard, and decodes their images.

Images are decoded in worker processes, so that a decoder that crashes or hangs means only one bad record.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from crc32c import crc32c

from packer.containers import open_container
from packer.errors import AnyPath, BadInput, DamagedPack
from packer.format.index import DTYPES, ENCODINGS, read_index
from packer.format.indexes import bad_ranges
from packer.format.manifest import FileEntry, IndexEntry, Manifest
from packer.format.stored_images import LastImage, window_of
from packer.model.annotation import COLUMNS, IMAGE, MISSING, Part, Progress, Record, column_of, key_of, names_in
from packer.model.annotation import ENCODINGS as PART_ENCODINGS
from packer.model.annotation_columns import Annotations, column
from packer.model.tiles import WINDOW
from packer.system import READ_FLAGS, read_at, usable_cores
from packer.system.atomic import replacing
from packer.system.pool import Pool
from packer.system.storage import storage_errors

if TYPE_CHECKING:
    from packer.images.decode import Decoder
    from packer.images.header import Mode


WINDOW_BYTES = 1 << 20
ALTERED = "does not match its checksum"
OVERLAPS = "overlaps another record"
ROWS_A_JOB = 512
DECODE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a pack."""

    file: str
    record: str | None
    """Key of the record; None if the problem is about the whole file."""
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {'' if self.record is None else f'record {self.record} '}{self.problem}"


class IndexRows:
    """The records of an index, without their images. Methods raise DamagedPack or ValueError for an invalid row."""

    def __init__(self, table: Any, path: AnyPath) -> None:
        names = ("offset", "size", "crc32c", "height", "width", "channels", "dtype", "encoding")
        self._numbers = {name: np.asarray(column(table, name)) for name in names}
        self._keys, self._paths, self._sources = (column(table, name) for name in ("key", "path", "source_xxh3"))
        self._annotations = Annotations(table, path)
        self._parts = {
            name: {what: np.asarray(column(table, column_of(name, what))) for what in COLUMNS}
            for name in names_in(table.column_names)
        }

    def __len__(self) -> int:
        return len(self._annotations)

    def key(self, row: int) -> str:
        """Return the key of a row as text, even if its bytes are invalid."""
        return text_of(self._keys[row])

    def path(self, row: int) -> bytes:
        """Return the path of its source file."""
        return bytes(self._paths[row])

    def number(self, name: str, row: int) -> int:
        """Return a number from a row: offset, size, crc32c, height, width, channels, dtype or encoding."""
        return int(self._numbers[name][row])

    def places(self, row: int) -> dict[str, tuple[int, int]]:
        """Return offset and size of each part of a row."""
        found = ((name, int(part["offset"][row]), int(part["size"][row])) for name, part in self._parts.items())
        return {name: (offset, size) for name, offset, size in found if size >= 0}

    def parts(self, row: int, content: Window) -> tuple[Part, ...]:
        """Return the parts of a row, read from its container."""
        found = []
        for name, (offset, size) in self.places(row).items():
            encoding = int(self._parts[name]["encoding"][row])
            if not (0 <= offset <= content.file_bytes - size and 0 <= encoding < len(PART_ENCODINGS)):
                raise ValueError(f"row {row} has no valid place or encoding of its {name}")
            found.append(Part(name, bytes(content.bytes(offset, size)), PART_ENCODINGS[encoding]))
        return tuple(found)

    def record(self, row: int, data: bytes = b"", parts: tuple[Part, ...] = ()) -> Record:
        """Return the record of a row, whose image is `data`."""
        dtype, encoding = self.number("dtype", row), self.number("encoding", row)
        if not (0 <= dtype < len(DTYPES) and 0 <= encoding < len(ENCODINGS)):
            raise ValueError(f"row {row} has no valid dtype or encoding")
        return Record(
            key=self.key(row),
            data=data,
            encoding=ENCODINGS[encoding],
            height=self.number("height", row),
            width=self.number("width", row),
            channels=self.number("channels", row),
            dtype=DTYPES[dtype],
            annotation=self._annotations[row],
            path=self.path(row),
            source_xxh3=bytes(self._sources[row]),
            parts=parts,
        )


def record_problems(container: str | Window, table: Any, among: range | None = None) -> Iterator[str | None]:
    """Return the problem of each row (`among` these) of an index; None if its bytes match their checksums.

    The container is read, not mapped, so that a file truncated during the check, or a failing disk, is a problem of
    some records and does not kill the process.
    """
    of_image = _part_problems(container, table, IMAGE, among)
    if not (names := names_in(table.column_names)):
        yield from of_image
        return
    # one part after another: they may lie far apart, and a window is read once
    found = [[*of_image], *([*_part_problems(container, table, name, among)] for name in names)]
    for image, *others in zip(*found, strict=True):
        wrong = (f"has a {name} that {problem}" for name, problem in zip(names, others, strict=True) if problem)
        yield image or next(wrong, None)


def _part_problems(container: str | Window, table: Any, name: str, among: range | None) -> Iterator[str | None]:
    """Return the problem of the image, or of a part, of each row; None if the record lacks it."""
    offsets, sizes, crcs = (np.asarray(column(table, column_of(name, what))) for what in ("offset", "size", "crc32c"))
    with Window(container) if isinstance(container, str) else container as window:
        outside, overlaps = bad_ranges(table, window.file_bytes)
        place = [IMAGE, *names_in(table.column_names)].index(name)
        refused, outside = outside[place] | overlaps[place], outside[place]
        part = slice(0, len(offsets)) if among is None else slice(among.start, among.stop)
        numbers = (values[part].tolist() for values in (offsets, sizes, crcs, refused, outside))
        keys = texts(column(table, "key")[part])
        if name != IMAGE:
            keys = [key_of(key, name) for key in keys]
        # this loop takes most of the time for small images, so it only calls the checksum
        start, stop, held, checksum_of = 0, 0, memoryview(b""), crc32c
        for key, offset, size, checksum, is_refused, is_outside in zip(keys, *numbers):  # noqa: B905
            if size == MISSING[1] and name != IMAGE:
                yield None
                continue
            if is_refused:
                yield f"is outside its file ({size} bytes at {offset})" if is_outside else OVERLAPS
                continue
            if offset < start or offset + size > stop:
                try:
                    start, held = window.holding(offset, size)
                except OSError as error:
                    yield f"cannot be read: {error.strerror or error}"
                    continue
                stop = start + len(held)
            data = held[offset - start : offset - start + size]
            yield None if checksum_of(data, checksum_of(key)) == checksum and len(data) == size else ALTERED


class Window:
    """Reads a file one window at a time, so that many consecutive records take one read."""

    ahead_bytes = WINDOW_BYTES

    def __init__(self, path: str) -> None:
        self._path = path
        self._start = self._stop = 0
        self._data = memoryview(b"")
        self._descriptor: int | None = None
        self.file_bytes = 0

    def __enter__(self) -> Window:
        try:
            self._descriptor = os.open(self._path, READ_FLAGS)
            self.file_bytes = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def holding(self, offset: int, size: int) -> tuple[int, memoryview]:
        """Return the start and the bytes of a window that holds this range; fewer bytes at the end of the file."""
        if not self._start <= offset <= offset + size <= self._stop:
            ahead = self.ahead_bytes if offset >= self._start else 0  # random access: read no more than requested
            try:
                self._read(offset, max(size, ahead))
            except OSError:
                self._read(offset, size)  # the error may be in the bytes ahead
        return self._start, self._data

    def bytes(self, offset: int, size: int) -> memoryview:
        """Return these bytes; fewer at the end of the file. Raise OSError on failure."""
        start, data = self.holding(offset, size)
        return data[offset - start : offset - start + size]

    def _read(self, offset: int, size: int) -> None:
        self._start = self._stop = 0
        if self._descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        data = read_at(self._descriptor, size, offset)
        self._data, self._start, self._stop = memoryview(data), offset, offset + len(data)


def texts(rows: Any) -> list[bytes]:
    """Return the rows of a column of text or bytes."""
    data = rows.flat().tobytes()
    first = int(rows.offsets[0])
    bounds = (rows.offsets - first).tolist()
    return [data[a:b] for a, b in pairwise(bounds)]


def text_of(key: Any) -> str:
    """Return a key as text, even if its bytes are invalid."""
    return bytes(key).decode("ascii", "backslashreplace")


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """Some rows of a shard whose index is intact."""

    container: str
    index: str
    name: str
    """Name of the container, for messages."""
    rows: tuple[int, int]
    mode: str
    decoder: str
    windows: bool = False
    """Whether the records are windows on images that they share."""
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashed or hung."""


def decode_jobs(paths: tuple[str, str], name: str, rows: range, manifest: Manifest) -> list[DecodeJob]:
    """Return the jobs for rows of a shard; `paths` are of its container and its index."""
    starts = range(rows.start, rows.stop, ROWS_A_JOB)
    how = manifest.mode, "lenient" if manifest.lenient else "auto"
    return [
        DecodeJob(*paths, name, (start, min(start + ROWS_A_JOB, rows.stop)), *how, manifest.windows) for start in starts
    ]


def check_images(jobs: Sequence[DecodeJob], progress: Progress) -> list[Problem]:
    """Decode the images of all jobs; list those that fail, or have another shape or dtype than their row."""
    reported = reported_bad = 0

    def tick(done: int, bad: int) -> None:
        nonlocal reported, reported_bad
        progress.advance(done - reported, bad - reported_bad)
        reported, reported_bad = done, bad

    with Pool(usable_cores(), DECODE_TIMEOUT_S, f"{__name__} packer.images.decode") as pool:
        results: dict[int, list[Problem]] = dict(pool.run(decode_rows, jobs, tick))
    return list(chain.from_iterable(results[number] for number in sorted(results)))


def decode_rows(
    job: DecodeJob,
    report: Callable[[int, int], object],
    decoding: Callable[[int], AbstractContextManager[None]],
) -> list[Problem]:
    """Run a job, in a worker process."""
    return list(_decoding_problems(job, report, decoding))


def _decoding_problems(job: DecodeJob, report: Any, decoding: Any) -> Iterator[Problem]:
    table = read_index(job.index)
    rows, among = IndexRows(table, job.index), range(*job.rows)
    last = LastImage() if job.windows else None
    with Window(job.container) as window:
        for row, damage in zip(among, record_problems(job.container, table, among), strict=True):
            problem = None
            if damage is None:  # the others are listed already, and the decoder must not receive altered data
                try:
                    if row in job.refused:
                        raise job.refused[row]
                    with decoding(row):
                        problem = _wrong_image(rows, row, window, job, last)
                except BadInput as error:
                    problem = f"cannot be decoded: {error.problem}"
                except (DamagedPack, ValueError) as error:
                    problem = f"has no valid row in the index: {getattr(error, 'problem', error)}"
            if problem is not None:
                yield Problem(job.name, rows.key(row), problem)
            report(1, int(problem is not None))


def _wrong_image(rows: IndexRows, row: int, window: Window, job: DecodeJob, last: Any) -> str | None:
    from packer.images.decode import decode  # imported here because it loads OpenCV

    mode, decoder = cast("Mode", job.mode), cast("Decoder", job.decoder)

    record = rows.record(row, bytes(window.bytes(rows.number("offset", row), rows.number("size", row))))
    if record.encoding == "raw":
        size = record.height * record.width * record.channels * (2 if record.dtype == "uint16" else 1)
        return None if len(record.data) == size else f"has {len(record.data)} bytes, but its shape says {size}"
    if last is None:
        image = decode(record.data, mode, decoder, max_pixels=max(1, record.height * record.width))
    elif (tile := record.annotation.window) is None or len(tile) != 6:
        return "has no window on its image"
    else:
        pixels, place = max(1, int(tile[4]) * int(tile[5])), rows.number("offset", row)
        whole = last.get(place, lambda: decode(record.data, mode, decoder, max_pixels=pixels))
        image = window_of(whole, tile.astype(np.int64), record.channels)
    if (image.shape, image.dtype.name) != (record.shape, record.dtype):
        return f"decodes to {image.dtype.name} {image.shape}, but its row says {record.dtype} {record.shape}"
    return None


READ_BYTES = 1 << 20


def digest_of_written(container: str, index: str, entry: IndexEntry) -> str:
    """Return the SHA-256 of a finished container, whose index must match `entry`.

    Raises:
        DamagedPack: The index was altered, or a record does not match its checksum.
        StorageError: A file cannot be read.
    """
    with open(index, "rb") as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DamagedPack(index, "does not match its digest")
    table = read_index(index, np.frombuffer(data, np.uint8))
    offsets, sizes, crcs, names = _ranges(table)
    order = np.argsort(offsets, kind="stable")  # LMDB fills its pages from the end
    if WINDOW in table.column_names:  # tiles of an image share its bytes, of which the index has just been made
        order = order[np.diff(offsets[order], prepend=-1) > 0]
    rows = zip(order.tolist(), *(numbers[order].tolist() for numbers in (offsets, sizes, crcs)), strict=True)
    digest = hashlib.sha256()
    # two blocks in turn: one is digested beside (that takes as long as the checksums, and releases the GIL) while the
    # other is filled; new ones for each read would be zeroed by the kernel
    blocks = [memoryview(bytearray(READ_BYTES)) for _ in range(2)]
    start = 0
    row = next(rows, None)
    found = 0 if row is None else crc32c(names[row[0]])
    with open(container, "rb", buffering=0) as file, ThreadPoolExecutor(1) as beside:
        pending = None
        while size := file.readinto(blocks[0]):
            block, stop = blocks[0][:size], start + size
            if pending is not None:
                pending.result()
            pending = beside.submit(digest.update, block)
            while row is not None and row[1] < stop:
                number, offset, length, checksum = row
                end = offset + length
                found = crc32c(block[max(offset - start, 0) : min(end, stop) - start], found)
                if end > stop:
                    break
                if found != checksum:
                    raise DamagedPack(container, f"record {names[number].decode()} does not match its checksum")
                row = next(rows, None)
                found = 0 if row is None else crc32c(names[row[0]])
            start = stop
            blocks.reverse()
        if pending is not None:
            pending.result()
    if row is not None:
        raise DamagedPack(container, f"record {names[row[0]].decode()} is beyond the end of the file")
    return digest.hexdigest()


def _ranges(table: Any) -> tuple[Any, Any, Any, list[bytes]]:
    """Return offset, size and checksum of all images and parts of an index, and what each checksum begins with."""
    records = texts(column(table, "key"))
    numbers: list[list[Any]] = []
    names: list[bytes] = []
    for name in (IMAGE, *names_in(table.column_names)):
        found = [np.asarray(column(table, column_of(name, what))) for what in ("offset", "size", "crc32c")]
        if name == IMAGE:
            names += records
        else:
            there = np.flatnonzero(found[1] > 0)
            found = [values[there] for values in found]
            names += [key_of(records[row], name) for row in there.tolist()]
        numbers.append(found)
    offsets, sizes, crcs = (np.concatenate(values) for values in zip(*numbers, strict=True))
    return offsets, sizes, crcs, names


def write_companions(folder: str, manifest: Manifest) -> dict[str, FileEntry]:
    """Write the files that readers of a format want beside its shards; most formats have none.

    Args:
        folder: The pack's folder, with its shards.
        manifest: The manifest. Shards in other folders are left as their tools made them, and those whose companions
            it lists have theirs.

    Returns:
        `Manifest.companions`.

    Raises:
        StorageError: A file cannot be written.
    """
    there = {*manifest.companions, *(name for name, path in manifest.linked.items() if path)}
    names = [shard.container.name for shard in manifest.shards if shard.container.name not in there]
    if not names or not hasattr(open_container(manifest.container), "companion"):
        return dict(manifest.companions)
    made = {name: write_companion(manifest.container, os.path.join(folder, name), folder) for name in names}
    return {**manifest.companions, **made}


def write_companion(container: str, shard: str, folder: str) -> FileEntry:
    """Write the companion of the file `shard` into a folder, durably, and return its entry."""
    extension, content = open_container(container).companion(shard)  # type: ignore[attr-defined]
    name = os.path.splitext(os.path.basename(shard))[0] + extension
    path = os.path.join(folder, name)
    with storage_errors(path), replacing(path) as file:
        file.write(content)
    return FileEntry(name, len(content), hashlib.sha256(content).hexdigest())


def restore_companions(folder: str, work: str, manifest: Manifest, damaged: Collection[str]) -> bool:
    """Write the damaged companions of a pack again; return whether they are as they were.

    Args:
        folder: The pack.
        work: Where to write them; shards in this folder replace those of the pack.
        manifest: Its manifest.
        damaged: Names of damaged files.
    """
    for name, file in manifest.companions.items():
        if file.name in damaged:
            made = os.path.join(work, name)
            shard = made if os.path.isfile(made) else manifest.path_of(folder, name)
            if write_companion(manifest.container, shard, work) != file:
                return False
    return True
