"""Decodes every input without writing anything, so that all bad images are found in one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packer.errors import BadInput
from packer.format.manifest import Rejected
from packer.images.opencv import quiet_opencv
from packer.model.annotation import Annotation
from packer.packing.convert import Recipe, rejected, rows_of
from packer.packing.rows import mapped, write_table
from packer.packing.table import Inputs
from packer.system.child import Decoding, Report

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


@quiet_opencv(in_worker=True)
def check_images(job: CheckJob, report: Report, decoding: Decoding) -> dict[int, Rejected]:
    """Decode the images of a job. Return why an image cannot be packed, by its row."""
    bad = {}
    rows = rows_of(mapped(job.table).slice(job.start, job.stop - job.start))
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
    more = inputs.suspects if suspects else []
    suspected = f"{inputs.file}.suspects"
    write_table(more, inputs.base, suspected)
    files = {inputs.file: inputs.rows, suspected: sum(map(len, more))}
    jobs = [
        CheckJob(file, start, min(start + ROWS_A_JOB, rows), recipe)
        for file, rows in files.items()
        for start in range(0, rows, ROWS_A_JOB)
    ]
    bad: set[int] = set()
    for number, found in run(jobs):
        for row in found.values():
            inputs.rejected.add(row)
        if jobs[number].table == inputs.file:
            bad |= found.keys()
        else:
            inputs.twice += len(found)
    os.unlink(suspected)
    if bad:
        inputs.drop(bad)
