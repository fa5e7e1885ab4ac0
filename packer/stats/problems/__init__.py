"""Problems of a data set that its labels, its masks and the digests of its files show: no image, no model is asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.errors import plural
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.stats.columns import digests
from packer.stats.problems.names import class_problems, file_problems, image_problems
from packer.stats.problems.problem import CHECK, NOTE, WRONG, DataProblem, Example, ProblemColumns
from packer.stats.problems.regions import mask_problems, missing_masks
from packer.stats.problems.shapes import box_problems, landmark_problems

__all__ = ["CHECK", "NOTE", "WRONG", "DataProblem", "Example", "Problems", "find_problems"]

ORDER = (
    "label-conflict", "leak", "class-ids", "class-names", "mask-ids", "box-area", "two-classes", "double-box",
    "box-without-mask", "mask-without-box", "no-mask", "empty-mask", "landmark-shape", "landmark-count",
    "landmark-outside", "small-box", "large-box", "aspect-box", "tiny-box", "class-in-one-pack", "duplicate",
    "image-size", "mask-islands", "no-object", "rare-class", "empty-class", "border-box",
)  # fmt: skip
"""All kinds, the most serious first."""


@dataclass(frozen=True, eq=False)
class Problems:
    """The problems of a pack, the most serious first."""

    found: tuple[DataProblem, ...]
    notes: tuple[str, ...]
    """What could not be checked, and why."""


def find_problems(pack: Pack, most_masks: int | None = None, progress: Progress | None = None) -> Problems:
    """Look for problems in the index and the masks of a pack, or of several that are joined (`packer.join_packs`).

    Args:
        pack: The pack.
        most_masks: Of more, this number is read, spread evenly over the pack; a note says so.
        progress: Receives the number of masks read.

    Raises:
        DamagedPack: If an index or a mask is damaged.
    """
    columns = ProblemColumns(pack)
    looks = (file_problems, class_problems, box_problems, landmark_problems, image_problems, missing_masks)
    found = [problem for look in looks for problem in look(columns)]
    records, notes = np.arange(len(pack)), []
    if pack.manifest.masks and most_masks is not None and most_masks < len(pack):
        records = np.linspace(0, len(pack) - 1, most_masks).astype(np.int64)
        many = f"{most_masks:,} of {len(pack):,} records were" if most_masks else "not"
        notes.append(f"masks: {many} looked at; packer stats --problems reads all")
    found += mask_problems(columns, records, progress or Progress())
    if unknown := int((~digests(pack).any(axis=1)).sum()):
        notes.append(f"equal images: {plural(unknown, 'record has', 'records have')} no digest of the source file")
    return Problems(tuple(sorted(found, key=lambda problem: ORDER.index(problem.kind))), tuple(notes))
