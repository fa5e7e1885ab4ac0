"""What the disk can do at most: the bytes of cold files, one after another, in large pieces."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from packer.bench.chosen import chosen_records
from packer.bench.job import Job
from packer.bench.limits import PIECE_BYTES, Kind, Worker
from packer.format.pack import open_pack


def disk_files(job: Job) -> Kind:
    """The files of the folder."""
    return _reads(job.files, [os.path.getsize(file) for file in job.files], len(job.files))


def disk_pack(job: Job) -> Kind:
    """The containers of a pack; of a large one as many bytes as the records take that are measured."""
    pack = open_pack(job.pack)
    images = len(chosen_records(pack, job.images))
    files = [os.path.join(job.pack, shard.container.name) for shard in pack.shards]
    return _reads(files, [shard.container.bytes * images // len(pack) for shard in pack.shards], images)


def _reads(files: Sequence[str], sizes: Sequence[int], images: int) -> Kind:
    ends = list(accumulate(sizes))
    total = max(1, ends[-1])

    def worker() -> Worker:
        buffer = memoryview(bytearray(PIECE_BYTES))

        def work(first: int, stop: int) -> None:
            at, end = first * total // images, stop * total // images
            number = bisect_right(ends, at)
            while at < end and number < len(files):
                begin = ends[number] - sizes[number]
                with open(files[number], "rb", buffering=0) as file:
                    file.seek(at - begin)
                    while at < min(end, ends[number]):
                        read = file.readinto(buffer[: min(PIECE_BYTES, min(end, ends[number]) - at)])
                        if not read:
                            raise EOFError(f"{files[number]} is shorter than it was")
                        at += read
                number += 1

        return work

    return Kind(images, max(1, images * PIECE_BYTES // total), worker)
