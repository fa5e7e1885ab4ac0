"""Problems of a data set that its labels and the digests of its files show: no image is read, no model is asked."""

from __future__ import annotations

from dataclasses import dataclass

from packer.errors import plural
from packer.format.pack import Pack
from packer.stats.columns import digests
from packer.stats.problems.names import class_problems, file_problems, image_problems
from packer.stats.problems.problem import CHECK, NOTE, WRONG, DataProblem, Example, ProblemColumns
from packer.stats.problems.shapes import box_problems, landmark_problems

__all__ = ["CHECK", "NOTE", "WRONG", "DataProblem", "Example", "Problems", "find_problems"]

ORDER = (
    "label-conflict", "leak", "class-ids", "class-names", "box-area", "two-classes", "double-box",
    "landmark-shape", "landmark-count", "landmark-outside", "small-box", "large-box", "aspect-box", "tiny-box",
    "class-in-one-pack", "duplicate", "image-size", "no-object", "rare-class", "empty-class", "border-box",
)  # fmt: skip
"""All kinds, the most serious first."""


@dataclass(frozen=True, eq=False)
class Problems:
    """The problems of a pack, the most serious first."""

    found: tuple[DataProblem, ...]
    notes: tuple[str, ...]
    """What could not be checked, and why."""


def find_problems(pack: Pack) -> Problems:
    """Look for problems in the index of a pack, or of several that are joined (`packer.join_packs`).

    Raises:
        DamagedPack: If an index is damaged.
    """
    columns = ProblemColumns(pack)
    looks = (file_problems, class_problems, box_problems, landmark_problems, image_problems)
    found = [problem for look in looks for problem in look(columns)]
    notes = []
    if unknown := int((~digests(pack).any(axis=1)).sum()):
        notes.append(f"equal images: {plural(unknown, 'record has', 'records have')} no digest of the source file")
    return Problems(tuple(sorted(found, key=lambda problem: ORDER.index(problem.kind))), tuple(notes))
