"""What the machine can do at most: bare loops without order, checks, queue or targets.

Their threads run through: nothing begins anew with an epoch, nobody waits for the slowest, and all memory has been
touched before. A loader that is faster than this does less.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import simplejpeg

from packer.bench.chosen import chosen_records
from packer.bench.job import Job
from packer.errors import DamagedPack
from packer.format.pack import open_pack
from packer.images.jpeg import HEADROOM, reduction

LOOK_S = 0.002
PIECE_BYTES = 1 << 20
"""A thread takes images of so many bytes of pixels at a time."""
BATCHES = 4
"""A loader has so many in memory: ahead of the consumer, and with it. A copy that always went to the same place would
stay in the processor's cache."""

Worker = Callable[[int, int], None]
"""Does the images from one number up to another."""


@dataclass(frozen=True)
class Kind:
    """A limit: how many images there are, how many a thread takes at a time, and what makes a thread's function."""

    images: int
    piece: int
    worker: Callable[[], Worker]


class Limit:
    """Threads that do the same again and again, each with memory of its own."""

    def __init__(self, kind: Callable[[Job], Kind], job: Job) -> None:
        self._kind = kind(job)
        self._pieces = itertools.count()
        self._done = [0] * job.threads
        self._stopped = False
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(job.threads)]
        self._warm = False

    def epoch(self) -> Iterator[int]:
        """The first one ends when as many images are done as there are; the second has no end."""
        before, end = sum(self._done), None if self._warm else self._kind.images
        if not self._warm:
            for thread in self._threads:
                thread.start()
        self._warm = True
        while end is None or before < end:
            time.sleep(LOOK_S)
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
        images, piece = self._kind.images, self._kind.piece
        try:
            work = self._kind.worker()
            while not self._stopped:
                # next() is one step for all threads: who is faster takes more
                first = next(self._pieces) * piece % images
                stop = min(first + piece, images)
                work(first, stop)
                self._done[number] += stop - first
        except BaseException as error:
            self._errors.append(error)


def copies(job: Job) -> Kind:
    """The raw images of a pack out of one array in memory, in random order, into the memory of batches."""
    pack = open_pack(job.pack)
    size = pack.record_bytes
    if size is None:
        raise DamagedPack(job.pack, "is not of raw images of one shape")
    records = chosen_records(pack, job.images)
    rows = np.empty((len(records), size), np.uint8)
    for row, record in zip(rows, records.tolist(), strict=True):
        row[:] = np.frombuffer(pack.record(record), np.uint8)
    order = np.random.default_rng(job.seed).permutation(len(rows))
    piece = max(1, min(len(rows), PIECE_BYTES // size))

    def worker() -> Worker:
        places = max(2, BATCHES * job.batch_size // (piece * job.threads))
        out = np.ones((places, piece, size), np.uint8)  # touched: np.empty has no pages yet
        turn = itertools.cycle(range(places))

        def work(first: int, stop: int) -> None:
            # other modes copy twice
            np.take(rows, order[first:stop], axis=0, out=out[next(turn)][: stop - first], mode="clip")

        return work

    return Kind(len(rows), piece, worker)


def packed_decodes(job: Job) -> Kind:
    """The encoded images of a pack, decoded and nothing else; as small as the loader may decode them."""
    pack = open_pack(job.pack)
    records = chosen_records(pack, job.images).tolist()
    files = [bytes(pack.record(i)) for i in records]
    if pack.manifest.shape is not None:
        factors = [1] * len(files)
    else:
        least = HEADROOM * job.size[0], HEADROOM * job.size[1]
        factors = [reduction(pack.shape_of(i)[1::-1], least) for i in records]
    channels = pack.shape_of(records[0])[2]
    return _decodes(files, factors, "GRAY" if channels == 1 else "RGB")


def file_decodes(job: Job) -> Kind:
    """The files of the folder, in memory, decoded and nothing else."""
    files = []
    for path in job.files:
        with open(path, "rb") as file:
            files.append(file.read())
    return _decodes(files, [1] * len(files), "RGB")


def _decodes(files: Sequence[bytes], factors: Sequence[int], space: str) -> Kind:
    sizes = [simplejpeg.decode_jpeg_header(data)[:2] if simplejpeg.is_jpeg(data) else None for data in files]
    plans = [_plan(size, factor) for size, factor in zip(sizes, factors, strict=True)]
    most = max((3 * height * width for height, width in filter(None, sizes)), default=0)
    flags = cv2.IMREAD_COLOR if space == "RGB" else cv2.IMREAD_GRAYSCALE

    def worker() -> Worker:
        buffer = np.ones(most, np.uint8)

        def work(first: int, stop: int) -> None:
            for data, plan in zip(files[first:stop], plans[first:stop], strict=True):
                if plan is not None:
                    try:
                        simplejpeg.decode_jpeg(data, space, buffer=buffer, **plan)
                        continue
                    except ValueError:  # CMYK and the like
                        pass
                cv2.imdecode(np.frombuffer(data, np.uint8), flags)

        return work

    piece = PIECE_BYTES * len(files) // sum(map(_bytes, sizes))
    return Kind(len(files), max(1, min(16, piece)), worker)


def _plan(size: tuple[int, int] | None, factor: int) -> dict[str, Any] | None:
    """How simplejpeg decodes an image of (height, width) at 1/factor; None where it does not."""
    if size is None:
        return None
    return {"min_height": -(-size[0] // factor), "min_width": -(-size[1] // factor), "min_factor": factor}


def _bytes(size: tuple[int, int] | None) -> int:
    return PIECE_BYTES // 4 if size is None else 3 * size[0] * size[1]
