"""What the machine can do at most: bare loops without order, checks, queue or targets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import simplejpeg

from packer.bench.job import Job
from packer.errors import DamagedPack
from packer.pack import open_pack


class Limit:
    """Threads that do the same again and again, each with memory of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._images, self._work_of = KINDS[job.kind](job)

    def epoch(self) -> Iterator[int]:
        """As many images as there are, shared out to the threads."""
        bounds = np.linspace(0, self._images, self._job.threads + 1).astype(int).tolist()
        errors: list[BaseException] = []

        def run(first: int, stop: int) -> None:
            try:
                self._work_of(first, stop)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=part) for part in pairwise(bounds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        yield self._images

    def end(self) -> None:
        """Nothing is held but memory."""


Kind = tuple[int, Callable[[int, int], None]]


def copies(job: Job) -> Kind:
    """The raw images of a pack out of one array in memory, in random order, into the memory of a batch."""
    pack = open_pack(job.pack)
    size = pack.record_bytes
    if size is None:
        raise DamagedPack(job.pack, "is not of raw images of one shape")
    order = np.random.default_rng(job.seed).permutation(len(pack))
    rows = np.stack([np.frombuffer(pack.record(i), np.uint8) for i in range(len(pack))])

    def work(first: int, stop: int) -> None:
        out = np.empty((job.batch_size, size), np.uint8)
        for start in range(first, stop, job.batch_size):
            part = order[start : min(start + job.batch_size, stop)]
            np.take(rows, part, axis=0, out=out[: len(part)], mode="clip")  # other modes copy twice

    return len(pack), work


def packed_decodes(job: Job) -> Kind:
    """The JPEGs of a pack, decoded and nothing else."""
    pack = open_pack(job.pack)
    return _decodes([bytes(pack.record(i)) for i in range(len(pack))])


def file_decodes(job: Job) -> Kind:
    """The files of the folder, in memory, decoded and nothing else."""
    files = []
    for path in job.files:
        with open(path, "rb") as file:
            files.append(file.read())
    return _decodes(files)


def _decodes(files: list[bytes]) -> Kind:
    jpegs = [simplejpeg.is_jpeg(data) for data in files]

    def work(first: int, stop: int) -> None:
        for i in range(first, stop):
            _decode(files[i], jpegs[i])

    return len(files), work


def _decode(data: bytes, is_jpeg: bool) -> Any:
    if is_jpeg:
        try:
            return simplejpeg.decode_jpeg(data, "RGB")
        except ValueError:  # CMYK and the like
            pass
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


KINDS: dict[str, Callable[[Job], Kind]] = {
    "copy": copies,
    "decode-packed": packed_decodes,
    "decode-files": file_decodes,
}
