"""The limits of the machine: bare loops without order, checks, queue or targets.

Their threads run without pauses: nothing restarts with an epoch or waits for the slowest thread, and all memory has
been touched before. A loader that is faster than its limit does less work. Warm reads are compared with copying or
decoding, cold ones with reading the same bytes from the disk in large pieces.
"""

from __future__ import annotations

import itertools
import mmap
import os
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

from packer.bench.report import Job
from packer.bench.sample import sample_records
from packer.errors import DamagedPack
from packer.format.mmap import map_files
from packer.format.pack import open_pack
from packer.images.jpeg import HEADROOM, is_known, reduction
from packer.system import tells_pages

POLL_S = 0.002
PIECE_BYTES = 1 << 20
"""Bytes of pixels that a thread takes at a time."""
BATCHES = 4
"""Number of batches that a loader has in memory. Copies to a single buffer would stay in the processor's cache."""

Piece = Callable[[int, int], None]
"""Processes the images from one number to another."""


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
    size = pack.record_bytes
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
        factors = [reduction(pack.shape_of(i)[1::-1], least) for i in records]
    return _decodes(files, factors, "GRAY" if pack.shape_of(records[0])[2] == 1 else "RGB")


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
    files = [os.path.join(job.pack, shard.container.name) for shard in pack.shards]
    return _reads(files, [shard.container.bytes * images // len(pack) for shard in pack.shards], images)


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
