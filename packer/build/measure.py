"""Encodes a few images to see how large they become. A decoder may crash on one: it is a job for a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packer.build.record import Recipe
from packer.build.shard import Decoding, Report, unmarked
from packer.errors import BadInput
from packer.ops.encode import encode
from packer.ops.opencv import quiet_opencv


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Rows of the table of inputs, and how they are to be encoded."""

    rows: tuple[dict[str, Any], ...]
    recipe: Recipe
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashes or hangs."""


@quiet_opencv()
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
                image = job.recipe.image(data, (row["width"], row["height"]))
                sizes.append((len(encode(image, job.recipe.encode, job.recipe.quality)), image.nbytes))
        except BadInput:
            continue  # the worker that packs it will reject it with its reason
    return sizes
