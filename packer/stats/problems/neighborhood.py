"""Problems that an embedding shows: records far from all others, and those whose neighbors have another label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural
from packer.model.annotation import Progress
from packer.stats.embeddings import Embedding
from packer.stats.neighbors import NEIGHBORS, Neighborhoods, neighborhoods
from packer.stats.problems.problem import CHECK, SHOWN, DataProblem, ProblemColumns, usual

OF_EMBEDDINGS = ("label-neighbors", "outlier")
"""The kinds that are found here."""
FEWEST = 30
"""Records from which it is known what is usual."""
DEVIATIONS, FACTOR = 4.0, 1.15
"""Standard deviations, and how many times the median, beyond which a distance is unusual: see `problem.usual`."""
MOST_VOTES = 0.5
"""Share of the votes that is always enough to contradict a label."""


def embedding_problems(columns: ProblemColumns, name: str, progress: Progress) -> tuple[list[DataProblem], list[str]]:
    """Return the problems that an embedding shows, and notes on what could not be compared.

    Raises:
        UsageError: The pack has no such embedding.
        DamagedPack: A row does not match its checksum.
    """
    embedding = Embedding(columns.pack, name)
    found = neighborhoods(embedding, NEIGHBORS, progress)
    notes = []
    if left_out := int((~found.known).sum()):
        what = plural(left_out, "record has", "records have")
        notes.append(f"{name}: {what} no direction: zeros, or numbers that are not finite")
    if found.known.sum() < FEWEST:
        return [], [*notes, f"{name}: of fewer than {FEWEST} vectors, it is not known what is usual"]
    return [*_suspects(columns, name, found), *_outliers(columns, name, found)], notes


def _outliers(columns: ProblemColumns, name: str, found: Neighborhoods) -> Iterator[DataProblem]:
    far = found.mean_distances
    some = np.flatnonzero(far > 0)  # not NaN, and no copies
    if len(some) < FEWEST:
        return
    logs = np.log(far[some])
    median, most = usual(logs, FACTOR, DEVIATIONS)
    records = some[logs > median + most]
    records = records[np.argsort(-far[records], kind="stable")]
    if len(records):
        yield _with_neighbors(found, columns.problem(
            ("outlier", CHECK, f"Images unlike all others ({name})"),
            f"{plural(len(records), 'record is', 'records are')} far from the {NEIGHBORS} nearest ones: at a mean "
            f"cosine distance of {far[records].min():.2f} to {far[records].max():.2f}, where half of all are within "
            f"{np.exp(median):.2f}. Broken or foreign images, or rare ones that are worth more of their kind.",
            records,
            detail=lambda record: f"mean distance {far[record]:.2f}, the nearest {found.distances[record, 0]:.2f}",
        ))  # fmt: skip


def _suspects(columns: ProblemColumns, name: str, found: Neighborhoods) -> Iterator[DataProblem]:
    """Yield the records whose neighbors say another class, as surely as they do of records of that class.

    A neighbor votes with its cosine similarity. What is sure differs by class: it is the mean share of the votes that
    records of a class get for it (confident learning: Northcutt et al., arXiv:1911.00068). The first are those whose
    own class gets fewest, compared with that.
    """
    if "label" not in columns.fields or len(columns.classes) < 2:
        return
    labels = np.asarray(columns.labels, np.int64)
    labels = np.where((labels >= 0) & (labels < len(columns.classes)), labels, -1)
    own, other, share = _votes(labels, found)
    asked = np.flatnonzero((labels >= 0) & ~np.isnan(own))
    counts = np.bincount(labels[asked], minlength=len(columns.classes))
    sure = np.bincount(labels[asked], own[asked], len(columns.classes)) / np.maximum(counts, 1)
    asked = asked[other[asked] >= 0]
    agree = float(np.mean(own[asked] > share[asked])) if len(asked) else 0.0
    contradicted = (own[asked] < sure[labels[asked]]) & (share[asked] >= np.minimum(sure[other[asked]], MOST_VOTES))
    records = asked[contradicted & (share[asked] > own[asked])]
    records = records[np.lexsort((-share[records], own[records] - sure[labels[records]]))]
    if len(records):
        yield _with_neighbors(found, columns.problem(
            ("label-neighbors", CHECK, f"Labels that the neighbors contradict ({name})"),
            f"The {NEIGHBORS} nearest ones of {plural(len(records), 'record')} have another class, as clearly as those "
            f"of that class do. Wrong labels are among the first. For {agree:.0%} of all records, the neighbors say "
            "the class of the record: the fewer, the less this embedding knows of these classes.",
            records, detail=_said(columns, labels, own, other, share),
        ))  # fmt: skip


def _said(
    columns: ProblemColumns, labels: NDArray[np.int64], own: NDArray[np.float64],
    other: NDArray[np.int64], share: NDArray[np.float64],
) -> Callable[[int], str]:  # fmt: skip
    def said(record: int) -> str:
        mine, its = columns.class_name(int(labels[record])), columns.class_name(int(other[record]))
        return f"{mine}; of its neighbors, {share[record]:.0%} are {its}, {own[record]:.0%} {mine}"

    return said


def _votes(
    labels: NDArray[np.int64], found: Neighborhoods
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the share of the votes for the own class of each record, NaN without any; and the class that has most of
    the others, and its share."""
    voters = found.records
    votes = np.where(voters >= 0, labels[voters], -1)
    weights = np.where(votes >= 0, np.maximum(1 - np.nan_to_num(found.distances, nan=1.0), 0), 0).astype(np.float64)
    total = weights.sum(axis=1)
    total[total == 0] = np.nan
    is_own = votes == labels[:, None]
    own = (weights * is_own).sum(axis=1) / total
    other, share = np.full(len(labels), -1, np.int64), np.zeros(len(labels))
    for column in range(votes.shape[1]):  # k of them, whatever the number of classes
        its = np.where(is_own[:, column] | (votes[:, column] < 0), -2, votes[:, column])
        value = (weights * (votes == its[:, None])).sum(axis=1) / total
        better = (value > share) & (its >= 0)
        other[better], share[better] = its[better], value[better]
    return own, other, share


def _with_neighbors(found: Neighborhoods, problem: DataProblem) -> DataProblem:
    """Return the problem with the neighbors of each example."""
    examples = [
        replace(one, neighbors=tuple(record for record in found.records[one.record, :SHOWN].tolist() if record >= 0))
        for one in problem.examples
    ]
    return replace(problem, examples=tuple(examples))
