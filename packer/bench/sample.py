"""Samples the images to measure, and the limits of the machine: bare loops without order, checks, queue or
collation."""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import cv2
import numpy as np
import simplejpeg

from packer.bench.report import IMAGES, LEAST_IMAGES, BenchOptions, Job
from packer.errors import BadImage, DamagedPack, UsageError, plural
from packer.format.jpeg_index_list import JPEG_INDEX_PREFIX
from packer.format.mmap import map_files
from packer.format.pack import Pack, open_pack
from packer.images import decoders
from packer.images.header import decoded_shape, read_header
from packer.images.jpeg import HEADROOM, is_known, reduction
from packer.model.annotation import Int64
from packer.packing import BuildOptions, build_pack
from packer.sources.tree import find_tree
from packer.system import available_bytes, tells_pages

MOST_SIDE = 224
MOST_BYTES = 1 << 30
"""Larger than the caches of a processor, and read from a slow disk in seconds."""
MOST_DECODED = 1 << 14
"""Limit for encoded images: reading them once, to warm up, should also take seconds."""
MOST_COPIED = 1 << 28
"""Limit for the JPEGs that are indexed for a measurement."""
MOST_PIXELS = 1 << 40
"""What is in a pack is not too large."""
RUNS = 16


@dataclass(frozen=True)
class Images:
    """The sample of a folder.

    Attributes:
        folder: Folder with copies of the files, named by number.
        files: The user's own files, in the order of the copies' names.
        size: (width, height) of the batches.
        found: Number of images in the whole folder.
        bytes: Size of all files of the sample.
    """

    folder: str
    files: tuple[str, ...]
    size: tuple[int, int]
    found: int
    bytes: int

    def original(self, name: str) -> str:
        """Return the user's file whose copy has this name."""
        return self.files[int(os.path.splitext(name)[0])]


def sample_images(source: str, folder: str, options: BenchOptions) -> Images:
    """Draw a sample of the images in `source`, and copy it to `folder`; raise UsageError if there are too few."""
    tree = find_tree(source, lambda path: False)[0]
    if tree.members is not None:
        raise UsageError(source, "its images are in archives", "unpack them: a folder of files is measured")
    found = list(tree.images)
    files, shapes, total, most = [], [], 0, available_bytes() // 4
    for i in np.random.default_rng(options.seed).permutation(len(found)).tolist():
        path = os.path.join(tree.root, found[i])
        shape = _shape(path)
        if shape is None:
            continue
        total += os.path.getsize(path)
        if total > most:
            break
        files.append(os.fsdecode(path))
        shapes.append(shape)
        if len(files) == (options.images or IMAGES):
            break
    if len(files) < LEAST_IMAGES:
        problem = f"has {plural(len(files), 'readable image')}"
        raise UsageError(source, problem, f"choose a folder with at least {LEAST_IMAGES}")
    # in the order of a walk over the folder, so that the sample is on the disk in the same order
    ordered = sorted(files)
    os.makedirs(folder)
    for number, file in enumerate(ordered):
        extension = os.path.splitext(file)[1].lower()
        with open(file, "rb") as own, open(os.path.join(folder, f"{number:06d}{extension}"), "xb") as copy:
            shutil.copyfileobj(own, copy)
    size = batch_size_of(np.array(shapes)) if options.resize is None else options.size_of(options.resize)
    return Images(folder, tuple(ordered), size, len(found), sum(os.path.getsize(file) for file in ordered))


def batch_size_of(sizes: Int64) -> tuple[int, int]:
    """Return the (width, height) of batches for images of these sizes, (n, 2): the median, up to MOST_SIDE."""
    width, height = (int(side) for side in np.median(sizes, axis=0))
    return max(1, min(width, MOST_SIDE)), max(1, min(height, MOST_SIDE))


def _shape(path: bytes) -> tuple[int, int] | None:
    """Return (width, height) of an image file, None if it is not one."""
    try:
        with open(path, "rb") as file:
            height, width, *_ = decoded_shape(read_header(file.read()), "rgb")
    except (OSError, BadImage):
        return None
    return width, height


def indexed_sample(pack: Pack, folder: str, options: BenchOptions) -> tuple[str, str] | None:
    """Build a pack of some of a pack's JPEGs twice, in `folder`: return the paths without and with an index of them.

    None: the native decoder is not there, or does not read this pack, or nothing could be indexed.
    """
    if (
        pack.manifest.windows
        or decoders.native_for_auto() is None
        or pack.manifest.encoding not in ("jpeg", "copy")
        or pack.manifest.lenient
    ):
        return None
    each = max(1.0, float(np.asarray(pack.column("size")).sum()) / len(pack))
    count = min(options.images or IMAGES, max(LEAST_IMAGES, int(MOST_COPIED / each)))
    source, plain, indexed = (os.path.join(folder, name) for name in ("images", "plain", "indexed"))
    os.makedirs(source)
    for record in sample_records(pack, count).tolist():
        if pack.reader.encoding_of(record) == "jpeg":
            with open(os.path.join(source, f"{record}.jpg"), "xb") as file:
                file.write(pack.record(record))
    if len(os.listdir(source)) < LEAST_IMAGES:
        return None
    built = build_pack(
        BuildOptions(
            source, indexed, labels=("none",), encode="copy", jpeg_index="row", mode=pack.manifest.mode,
            max_pixels=MOST_PIXELS, on_bad="skip", workers=options.threads,
        )
    )  # fmt: skip
    if built.jpeg_index is None or not built.jpeg_index.indexed:
        return None
    shutil.copytree(indexed, plain, ignore=shutil.ignore_patterns(f"{JPEG_INDEX_PREFIX}*"))
    return plain, indexed


def sample_records(pack: Pack, images: int | None) -> Int64:
    """Return the numbers of the records to measure, ascending: `images` of them, or as many as are read in seconds.

    They are runs of neighbors from all over the pack, so that a disk reads them like the whole pack.
    """
    each = max(1.0, float(np.asarray(pack.column("size")).sum()) / len(pack))
    most = int(available_bytes() / 4 / each)
    if images is None:
        images = int(MOST_BYTES / each)
        if pack.manifest.encoding != "raw":
            images = min(images, MOST_DECODED)
    count = max(1, min(len(pack), most, images))
    if count == len(pack):
        return np.arange(count)
    runs = min(RUNS, count)
    firsts = np.arange(runs) * len(pack) // runs
    lengths = np.full(runs, count // runs) + (np.arange(runs) < count % runs)
    return np.concatenate([np.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)])


POLL_S = 0.002
PIECE_BYTES = 1 << 20
"""Bytes of pixels that a thread takes at a time."""
BATCHES = 4
"""Number of batches that a loader has in memory. Copies to a single buffer would stay in the processor's cache."""

Piece = Callable[[int, int], None]
"""Processes the images from one number to another."""


# The limits of the machine: bare loops without order, checks, queue or targets.
#
# Their threads run without pauses: nothing restarts with an epoch or waits for the slowest thread, and all memory has
# been touched before. A loader that is faster than its limit does less work. Warm reads are compared with copying or
# decoding, cold ones with reading the same bytes from the disk in large pieces.


@dataclass(frozen=True)
class BareLoop:
    """A bare loop.

    Attributes:
        images: Number of images.
        piece: Number of images that a thread takes at a time.
        in_thread: Called once in each thread; returns a function that processes a piece, with its own memory.
    """

    images: int
    piece: int
    in_thread: Callable[[], Piece]


class Limit:
    """Threads that repeat the same work."""

    def __init__(self, work: Callable[[Job], BareLoop], job: Job) -> None:
        self._work = work(job)
        self._pieces = itertools.count()
        self._done = [0] * job.threads
        self._stopped = False
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(job.threads)]
        self._warm = False

    def epoch(self) -> Iterator[int]:
        """Yield the number of images done each time. The first epoch ends after all images, the second never."""
        before, end = sum(self._done), None if self._warm else self._work.images
        if not self._warm:
            for thread in self._threads:
                thread.start()
        self._warm = True
        while end is None or before < end:
            time.sleep(POLL_S)
            now = sum(self._done)
            if self._errors:
                raise self._errors[0]
            if now > before:
                yield now - before
            before = now

    def end(self) -> None:
        """Stop the threads."""
        self._stopped = True
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        images, piece = self._work.images, self._work.piece
        try:
            do = self._work.in_thread()
            while not self._stopped:
                # next() is atomic, so faster threads take more
                first = next(self._pieces) * piece % images
                stop = min(first + piece, images)
                do(first, stop)
                self._done[number] += stop - first
        except BaseException as error:
            self._errors.append(error)


def copies(job: Job) -> BareLoop:
    """Copy the raw images of a pack from one array in memory to batches, in random order."""
    pack = open_pack(job.pack, job.cache_dir)
    size = pack.reader.record_bytes
    if size is None:
        raise DamagedPack(job.pack, "is not of raw images of one shape")
    records = sample_records(pack, job.images)
    rows = np.empty((len(records), size), np.uint8)
    for row, record in zip(rows, records.tolist(), strict=True):
        row[:] = np.frombuffer(pack.record(record), np.uint8)
    order = np.random.default_rng(job.seed).permutation(len(rows))
    piece = max(1, min(len(rows), PIECE_BYTES // size))

    def in_thread() -> Piece:
        targets = max(2, BATCHES * job.batch_size // (piece * job.threads))
        out = np.ones((targets, piece, size), np.uint8)  # touched: np.empty has no pages yet
        turn = itertools.cycle(range(targets))

        def do(first: int, stop: int) -> None:
            # other modes copy twice
            np.take(rows, order[first:stop], axis=0, out=out[next(turn)][: stop - first], mode="clip")

        return do

    return BareLoop(len(rows), piece, in_thread)


def packed_decodes(job: Job) -> BareLoop:
    """Decode the encoded images of a pack, as small as the loader may decode them."""
    pack = open_pack(job.pack, job.cache_dir)
    records = sample_records(pack, job.images).tolist()
    files = [bytes(pack.record(i)) for i in records]
    if pack.manifest.shape is not None:
        factors = [1] * len(files)
    else:
        least = HEADROOM * job.size[0], HEADROOM * job.size[1]
        factors = [reduction(pack.reader.shape_of(i)[1::-1], least) for i in records]
    return _decodes(files, factors, "GRAY" if pack.reader.shape_of(records[0])[2] == 1 else "RGB")


def file_decodes(job: Job) -> BareLoop:
    """Decode the files of the folder, from memory."""
    files = []
    for path in job.files:
        with open(path, "rb") as file:
            files.append(file.read())
    return _decodes(files, [1] * len(files), "RGB")


def _decodes(files: Sequence[bytes], factors: Sequence[int], space: str) -> BareLoop:
    sizes = [simplejpeg.decode_jpeg_header(data)[:2] if is_known(data) else None for data in files]
    plans = [_plan(size, factor) for size, factor in zip(sizes, factors, strict=True)]
    most = max((3 * height * width for height, width in filter(None, sizes)), default=0)
    flags = cv2.IMREAD_COLOR if space == "RGB" else cv2.IMREAD_GRAYSCALE

    def in_thread() -> Piece:
        buffer = np.ones(most, np.uint8)

        def do(first: int, stop: int) -> None:
            for data, plan in zip(files[first:stop], plans[first:stop], strict=True):
                if plan is not None:
                    try:
                        simplejpeg.decode_jpeg(data, space, buffer=buffer, **plan)
                        continue
                    except ValueError:  # CMYK and the like
                        pass
                cv2.imdecode(np.frombuffer(data, np.uint8), flags)

        return do

    pixels = sum(PIECE_BYTES // 4 if size is None else 3 * size[0] * size[1] for size in sizes)
    return BareLoop(len(files), max(1, min(16, PIECE_BYTES * len(files) // pixels)), in_thread)


def _plan(size: tuple[int, int] | None, factor: int) -> dict[str, Any] | None:
    """Return simplejpeg's arguments for an image of (height, width) at 1/factor; None without a size."""
    if size is None:
        return None
    return {"min_height": -(-size[0] // factor), "min_width": -(-size[1] // factor), "min_factor": factor}


def disk_files(job: Job) -> BareLoop:
    """Read the files of the folder."""
    return _reads(job.files, [os.path.getsize(file) for file in job.files], len(job.files))


def disk_pack(job: Job) -> BareLoop:
    """Read the containers of a pack; of a large one as many bytes as the measured records take."""
    pack = open_pack(job.pack, job.cache_dir)
    images = len(sample_records(pack, job.images))
    files = [os.path.join(job.pack, shard.container.name) for shard in pack.reader.shards]
    return _reads(files, [shard.container.bytes * images // len(pack) for shard in pack.reader.shards], images)


def _reads(files: Sequence[str], sizes: Sequence[int], images: int) -> BareLoop:
    ends = list(accumulate(sizes))
    total = max(1, ends[-1])

    def in_thread() -> Piece:
        buffer = memoryview(bytearray(PIECE_BYTES))

        def do(first: int, stop: int) -> None:
            at, end = first * total // images, stop * total // images
            number = bisect_right(ends, at)
            while at < end and number < len(files):
                with open(files[number], "rb", buffering=0) as file:
                    file.seek(at - (ends[number] - sizes[number]))
                    while at < min(end, ends[number]):
                        read = file.readinto(buffer[: min(PIECE_BYTES, min(end, ends[number]) - at)])
                        if not read:
                            raise EOFError(f"{files[number]} is shorter than before")
                        at += read
                number += 1

        return do

    return BareLoop(images, max(1, images * PIECE_BYTES // total), in_thread)


def pages_in_memory(paths: Sequence[str]) -> float | None:
    """Return the approximate share of these files in the page cache, which file systems may refuse to drop.

    None if it is unknown.
    """
    total = found = 0.0
    for path in paths:
        size = os.path.getsize(path)
        if not size or not tells_pages(path):
            continue
        share = map_files([(path, size)])[0].share_in_memory(np.arange(0, size, mmap.PAGESIZE, dtype=np.int64))
        total += size
        found += share * size
    return found / total if total else None
