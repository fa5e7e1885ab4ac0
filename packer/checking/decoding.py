"""Decodes every image of a pack, in processes of its own: a decoder that crashes or hangs is one bad record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

from packer.checking.problems import Problem
from packer.checking.records import Window, record_problems
from packer.checking.rows import Rows
from packer.cores import usable_cores
from packer.errors import BadInput, DamagedPack
from packer.index import read_index
from packer.ops.decode import decode
from packer.ops.header import Mode
from packer.ops.opencv import quiet_opencv
from packer.processes.pool import Pool
from packer.sample import Record

ROWS_A_JOB = 512
DECODE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """Some rows of a shard whose index is intact."""

    container: str
    index: str
    name: str
    """Of the container, for messages."""
    rows: tuple[int, int]
    mode: str
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder has crashed, or which it never finished."""


def decode_jobs(paths: tuple[str, str], name: str, records: int, mode: str) -> list[DecodeJob]:
    """The jobs of a shard; `paths` are of its container and its index."""
    starts = range(0, records, ROWS_A_JOB)
    return [DecodeJob(*paths, name, (start, min(start + ROWS_A_JOB, records)), mode) for start in starts]


def check_images(jobs: Sequence[DecodeJob], images: Callable[[int], None]) -> list[Problem]:
    """What cannot be decoded, or has another shape or dtype than its row; `images` is told of images done."""
    told = 0

    def tick(done: int, bad: int) -> None:
        nonlocal told
        images(done - told)
        told = done

    with Pool(usable_cores(), DECODE_TIMEOUT_S, __name__) as pool:
        results: dict[int, list[Problem]] = dict(pool.run(decode_rows, jobs, tick))
    return list(chain.from_iterable(results[number] for number in sorted(results)))


@quiet_opencv()
def decode_rows(
    job: DecodeJob, report: Callable[[int, int], bool], decoding: Callable[[int], AbstractContextManager[None]]
) -> list[Problem]:
    """The work of one process."""
    return list(_problems(job, report, decoding))


def _problems(job: DecodeJob, report: Any, decoding: Any) -> Iterator[Problem]:
    table = read_index(job.index)
    rows, among = Rows(table, job.index), range(*job.rows)
    with Window(job.container) as window:
        for row, damage in zip(among, record_problems(job.container, table, among), strict=True):
            problem = None
            if damage is None:  # others are listed already, and a decoder gets nothing that was altered
                try:
                    if row in job.refused:
                        raise job.refused[row]
                    with decoding(row):
                        problem = _wrong(rows, row, window, cast("Mode", job.mode))
                except BadInput as error:
                    problem = f"cannot be decoded: {error.problem}"
                except (DamagedPack, ValueError) as error:
                    problem = f"has no valid row in the index: {getattr(error, 'problem', error)}"
            if problem is not None:
                yield Problem(job.name, rows.key(row), problem)
            report(1, int(problem is not None))


def _wrong(rows: Rows, row: int, window: Window, mode: Mode) -> str | None:
    record: Record = rows.record(row, bytes(window.bytes(rows.number("offset", row), rows.number("size", row))))
    if record.encoding == "raw":
        size = record.height * record.width * record.channels * (2 if record.dtype == "uint16" else 1)
        return None if len(record.data) == size else f"has {len(record.data)} bytes where its shape says {size}"
    image = decode(record.data, mode, max_pixels=max(1, record.height * record.width))
    if (image.shape, image.dtype.name) != (record.shape, record.dtype):
        return f"decodes to {image.dtype.name} {image.shape}, its row says {record.dtype} {record.shape}"
    return None
