"""Decodes every input without writing anything, so that all bad images are found in one run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from packer.containers.storage import storage_errors
from packer.errors import BadInput
from packer.format.manifest import Rejected
from packer.images.opencv import quiet_opencv
from packer.packing.convert import Recipe, rejected, rows_of
from packer.packing.table import Inputs
from packer.system.child import Decoding, Report
from packer.types import Annotation

ROWS_A_JOB = 256


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Some rows of a table of inputs."""

    table: str
    """Path of the mapped table."""
    start: int
    stop: int
    recipe: Recipe
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashed or hung."""


@quiet_opencv()
def check_images(job: CheckJob, report: Report, decoding: Decoding) -> dict[int, Rejected]:
    """Decode the images of a job. Return why an image cannot be packed, by its row."""
    bad = {}
    with pa.memory_map(job.table) as source:
        rows = iter(list(rows_of(pa.ipc.open_file(source).read_all().slice(job.start, job.stop - job.start))))
    for number, (row, read) in enumerate(job.recipe.reads(rows), job.start):
        try:
            if number in job.refused:
                raise job.refused[number]
            data = read()
            with decoding(number):
                job.recipe.record("", job.recipe.with_header(row, data), data, Annotation())
        except BadInput as error:
            bad[number] = rejected(row.path, error)
        report(1, number in bad)
    return bad


Run = Callable[[Sequence[CheckJob]], Iterator[tuple[int, dict[int, Rejected]]]]


def decode_all(inputs: Inputs, recipe: Recipe, suspects: bool, run: Run) -> None:
    """Decode all inputs, and reject those that cannot be packed.

    Args:
        inputs: The inputs; bad ones are moved from the table to `rejected`.
        recipe: How they will be converted.
        suspects: Also decode images whose labels an option would let pass: the next run should not fail for them.
        run: Runs jobs in worker processes.
    """
    good = inputs.table.select(inputs.base.names)
    more = inputs.suspects if suspects else []
    table = pa.concat_tables([good, pa.Table.from_batches(more, inputs.base)])
    starts = range(0, len(table), ROWS_A_JOB)
    bad: list[int] = []
    handle, path = tempfile.mkstemp(prefix="packer-check-")
    try:
        with storage_errors(path), open(handle, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        jobs = [CheckJob(path, start, min(start + ROWS_A_JOB, len(table)), recipe) for start in starts]
        for _, found in run(jobs):
            bad += found
            for row in found.values():
                inputs.rejected.add(row)
    finally:
        os.unlink(path)
    in_table = np.array([number for number in bad if number < len(good)], np.int64)
    inputs.twice += len(bad) - len(in_table)
    keep: Any = np.ones(len(good), np.bool_)
    keep[in_table] = False
    inputs.table = inputs.table.filter(pa.array(keep))
