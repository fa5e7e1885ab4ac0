"""Problems of a data set that its labels, parts and files and the figures of its images show: no model is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, option, plural
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.repack.repeated import repeated
from packer.stats.columns import digests
from packer.stats.problems.look_alike import near_problems
from packer.stats.problems.names import class_problems, file_problems, image_problems
from packer.stats.problems.neighborhood import OF_EMBEDDINGS, embedding_problems
from packer.stats.problems.odd_images import figures_of, odd_problems
from packer.stats.problems.problem import CHECK, NOTE, WRONG, DataProblem, Example, ProblemColumns
from packer.stats.problems.regions import READ, missing_parts, part_problems
from packer.stats.problems.shapes import box_problems, landmark_problems
from packer.system.registry import choose

__all__ = ["CHECK", "NOTE", "WRONG", "DataProblem", "Example", "Problems", "find_problems", "records_with"]

ORDER = (
    "label-conflict", "leak", "near-leak", "near-label-conflict", "class-ids", "class-names", "mask-ids", "box-area",
    "two-classes", "double-box", "label-neighbors", "box-without-mask", "mask-without-box", "no-part", "empty-mask",
    "flat-map", "blank", "outlier", "landmark-shape", "landmark-count", "landmark-outside", "small-box", "large-box",
    "aspect-box", "tiny-box", "class-in-one-pack", "duplicate", "near-duplicate", "dark", "bright", "overexposed",
    "blurred", "low-information", "image-size", "mask-islands", "no-object", "gray-among-colors", "color-among-grays",
    "rare-class", "empty-class", "border-box",
)  # fmt: skip
"""All kinds, the most serious first."""
MOST_REMOTE = 100
"""Masks and maps that are read of a pack at a URL: each costs a block of 1 MiB or more."""


@dataclass(frozen=True, eq=False)
class Problems:
    """The problems of a pack, the most serious first."""

    found: tuple[DataProblem, ...]
    notes: tuple[str, ...]
    """What could not be checked, and why."""


def find_problems(
    pack: Pack, most_parts: int | None = None, progress: Progress | None = None, embedding: str | None = None
) -> Problems:
    """Look for problems in the index and the parts of a pack, or of several that are joined (`packer.join_packs`).

    Those that only pixels show are told by its fingerprints; a small pack without them is read.

    Args:
        pack: The pack.
        most_parts: Of more masks and maps, this number is read, spread evenly over the pack; a note says so. Of a pack
            at a URL, no more than `MOST_REMOTE`. With 0, no image is read, either.
        progress: Receives the number of those that were read.
        embedding: The sidecar whose nearest vectors are looked at, too.

    Raises:
        UsageError: If the pack has no such embedding.
        DamagedPack: If an index or a part is damaged.
    """
    columns = ProblemColumns(pack)
    looks = (file_problems, class_problems, box_problems, landmark_problems, image_problems, missing_parts)
    found = [problem for look in looks for problem in look(columns)]
    records, notes = np.arange(len(pack)), list[str]()
    kinds = [f"{kind}s" for kind in READ if kind in pack.manifest.parts.values()]
    is_remote = any(part.reader.remote is not None for part in pack.packs)
    most = min(len(pack) if most_parts is None else most_parts, MOST_REMOTE if is_remote else len(pack))
    if kinds and most < len(pack):
        records = np.linspace(0, len(pack) - 1, most).astype(np.int64)
        many = f"{most:,} of {len(pack):,} records were" if most else "not"
        step = "to look at all, copy the pack: packer pull" if is_remote else "packer stats --problems reads all"
        notes.append(f"{' and '.join(kinds)}: {many} looked at; {step}")
    found += part_problems(columns, records, progress or Progress())
    rows, missing = figures_of(columns, not is_remote and most_parts != 0, progress or Progress())
    found += [*odd_problems(columns, rows), *near_problems(columns, rows, notes)]
    if embedding is not None:
        its, its_notes = embedding_problems(columns, embedding, progress or Progress())
        found, notes = found + its, notes + its_notes
    if unknown := int((~digests(pack).any(axis=1)).sum()):
        notes.append(f"equal images: {plural(unknown, 'record has', 'records have')} no digest of the source file")
    return Problems(tuple(sorted(found, key=lambda problem: ORDER.index(problem.kind))), (*notes, *missing))


def records_with(pack: Pack, kinds: Sequence[str], progress: Progress | None = None) -> NDArray[np.int64]:
    """Return the records of a pack that have one of these problems; of a duplicate, all but one.

    Args:
        pack: The pack.
        kinds: `DataProblem.kind` of each.
        progress: Receives the number of masks and maps that were read.

    Raises:
        UsageError: There is no such problem, or no record has one.
        DamagedPack: If an index or a part is damaged.
    """
    known = [kind for kind in ORDER if kind not in OF_EMBEDDINGS]  # which somebody must look at
    wanted = {choose(option("problems"), kind, known) for kind in kinds}
    found = [np.zeros(0, np.int64)]
    for problem in find_problems(pack, progress=progress).found:
        records = problem.records if problem.kind in wanted else found[0]
        if problem.kind == "duplicate":
            _, first = np.unique(digests(pack)[records], axis=0, return_index=True)
            records = np.delete(records, first)
        if problem.kind == "near-duplicate":
            removed = repeated(pack, "near", Progress())
            records = records[np.isin(records, [*removed])]
        found.append(records)
    if not len(records := np.unique(np.concatenate(found))):
        raise UsageError(option("problems"), f"finds no record with {', '.join(sorted(wanted))}", "leave it out")
    return records
