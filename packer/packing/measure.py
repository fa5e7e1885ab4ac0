"""Encodes a few images to see how large they become. A decoder may crash on one: it is a job for a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packer.errors import BadInput
from packer.images.encode import encode
from packer.packing.convert import Recipe, Row
from packer.packing.write_shard import Decoding, Report, unmarked


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Rows of the table of inputs, and how they are to be encoded."""

    rows: tuple[Row, ...]
    recipe: Recipe
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashes or hangs."""


def measure(
    job: MeasureJob, report: Report = lambda done, bad: None, decoding: Decoding = unmarked
) -> list[tuple[int, int]]:
    """(bytes encoded, bytes of pixels) of each image that is good."""
    sizes = []
    for number, row in enumerate(job.rows):
        if number in job.refused:
            continue
        assert job.recipe.encode != "copy"
        try:
            data = job.recipe.read(row)
            with decoding(number):
                image = job.recipe.image(data, row, row.header)
                sizes.append((len(encode(image, job.recipe.encode, job.recipe.quality)), image.nbytes))
        except BadInput:
            continue  # the worker that packs it will reject it with its reason
    return sizes
