"""The nearest vectors of every record: all are compared up to EXACT records; of more, those of near cells.

Cells: the vectors, reduced to REDUCED principal components, belong to the nearest of some thousand centroids (k-means
of a sample). A record is compared with those of the PROBED nearest cells, and the distances of the best are computed
again from the whole vectors. docs/guides/embeddings.md says how many of the true neighbors this finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Int64, Progress
from packer.packing.write_shard import ahead
from packer.stats.embeddings import Embedding, Vectors
from packer.system import usable_cores

NEIGHBORS = 10
EXACT = 50_000
"""Records up to which each is compared with each: of 768 dimensions, in 70 seconds of CPU."""
REDUCED, PROBED, PROBED_MOST = 64, 24, 24_000
"""Components in which candidates are looked for; cells whose records are candidates, and how many these are at most:
of a cell with more, evenly spread ones."""
MORE = 2
"""Candidates for each neighbor, whose distances are computed exactly."""
ROUNDS, ROWS_A_CELL = 10, 64
"""Of k-means, and its sample for each cell."""
SCORES = 1 << 24
"""Scores that are held at once by a thread: 64 MB."""
_GROUP, _MOST_TIES = 64, 2048
_ROWS = 8192
"""Of a cell that are compared at once: it may have nearly all."""


@dataclass(frozen=True)
class Neighborhoods:
    """The nearest records of each record, the nearest first, without itself.

    Attributes:
        records: int32 (n, k); -1 where there are fewer, and of records without a vector.
        distances: Cosine distances (0 to 2), float32 (n, k); NaN there.
        known: Which records have a vector, bool (n,).
        exact: Whether all vectors were compared.
    """

    records: NDArray[np.int32]
    distances: Vectors
    known: NDArray[np.bool_]
    exact: bool

    @cached_property
    def mean_distances(self) -> Vectors:
        """The mean distance of each record to its neighbors, (n,); NaN if it has none."""
        counts = np.isfinite(self.distances).sum(axis=1)
        total: Vectors = np.nansum(self.distances, axis=1)
        return np.where(counts > 0, total / np.maximum(counts, 1), np.nan).astype(np.float32)


def neighborhoods(embedding: Embedding, count: int = NEIGHBORS, progress: Progress | None = None) -> Neighborhoods:
    """Find the nearest records of each record; the same each time.

    Args:
        embedding: The vectors.
        count: Neighbors of each record.
        progress: Receives the records whose neighbors were found.

    Raises:
        DamagedPack: A row does not match its checksum.
    """
    progress = progress or Progress()
    exact = embedding.records <= EXACT
    progress.stage("reading vectors", embedding.records, "vectors")
    if exact:
        vectors, known = np.zeros((embedding.records, embedding.dimensions), np.float32), np.zeros(0, np.bool_)
        parts = []
        for block, (part, has) in embedding.in_blocks(lambda *made: made, progress):
            vectors[block] = part
            parts.append(has)
        known = np.concatenate([known, *parts])
    else:
        vectors, known = embedding.reduced(REDUCED, progress)
    rows = np.flatnonzero(known)
    vectors = vectors if known.all() else vectors[rows]
    records = np.full((embedding.records, count), -1, np.int32)
    distances = np.full(records.shape, np.nan, np.float32)
    progress.stage("comparing vectors", len(rows), "vectors")
    for mine, its, far in _compared(vectors, count) if exact else _of_cells(embedding, rows, vectors, count):
        records[rows[mine], : its.shape[1]] = np.where(its < 0, -1, rows[its])
        distances[rows[mine], : its.shape[1]] = np.where(its < 0, np.nan, np.maximum(far, 0))
        progress.advance(len(mine))
    return Neighborhoods(records, distances, known, exact)


def _compared(vectors: Vectors, count: int) -> Iterator[tuple[Int64, Int64, Vectors]]:
    """Yield rows, their nearest rows and the distances: every vector is compared with every other."""
    size = max(1, SCORES // max(1, len(vectors)))

    def found(begin: int) -> tuple[Int64, Int64, Vectors]:
        mine = np.arange(begin, min(begin + size, len(vectors)))
        scores = vectors[mine] @ vectors.T
        scores[np.arange(len(mine)), mine] = -np.inf
        its, best = highest(scores, count)
        return mine, its, 1 - best

    yield from ahead(found, range(0, len(vectors), size), usable_cores())


def highest(scores: Vectors, count: int) -> tuple[Int64, Vectors]:
    """Return the columns of the `count` highest scores of each row, the highest first, and these scores.

    Scores of -inf are none: their columns are -1. Of equal scores, the first columns count. It takes a tenth of the
    time of numpy's argpartition: the highest of groups of columns say from which value on a score must be looked at.
    """
    rows, columns = scores.shape
    count = min(count, columns)
    groups = columns // _GROUP
    if groups > 2 * count:
        tops = scores[:, : groups * _GROUP].reshape(rows, groups, _GROUP).max(axis=2)
        least = np.partition(tops, groups - count, axis=1)[:, groups - count]
        least = np.maximum(least, np.finfo(np.float32).min)
    else:
        least = np.full(rows, np.finfo(np.float32).min, np.float32)
    chosen = scores >= least[:, None]
    many = np.flatnonzero(chosen.sum(axis=1) > _MOST_TIES)  # of copies, all scores are equal: the first are enough
    if len(many):
        ties = scores[many] == least[many, None]
        chosen[many] &= ~ties | (np.cumsum(ties, axis=1, dtype=np.int32) <= count)
    row, column = np.nonzero(chosen)
    values = scores[row, column]
    order = np.lexsort((column, -values, row))
    row, column, values = row[order], column[order], values[order]
    place = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    kept = place < count
    its = np.full((rows, count), -1, np.int64)
    best = np.full((rows, count), -np.inf, np.float32)
    its[row[kept], place[kept]] = column[kept]
    best[row[kept], place[kept]] = values[kept]
    return its, best


class Cells:
    """Vectors, sorted by the nearest of some centroids.

    Args:
        vectors: float32 (n, d). Euclidean distances count.
    """

    def __init__(self, vectors: Vectors) -> None:
        cells = max(1, min(len(vectors), 1 << round(np.log2(2 * np.sqrt(len(vectors) or 1)))))
        random = np.random.default_rng(0)
        sample = vectors[np.sort(random.choice(len(vectors), min(len(vectors), ROWS_A_CELL * cells), replace=False))]
        self.centroids = sample[random.choice(len(sample), cells, replace=False)]
        for _ in range(ROUNDS):
            where = self.nearest(sample)
            order = np.argsort(where, kind="stable")
            begins = np.flatnonzero(np.diff(where[order], prepend=-1))
            means = np.add.reduceat(sample[order], begins, axis=0)
            means /= np.diff(begins, append=len(order))[:, None]
            self.centroids[where[order][begins]] = means  # a cell without records stays where it is
        where = self.nearest(vectors)
        self.order = np.argsort(where, kind="stable")
        """Rows of the vectors, cell by cell."""
        self.begins = np.searchsorted(where[self.order], np.arange(cells + 1))
        self.sorted = vectors[self.order]
        self.halves = np.einsum("ij,ij->i", self.sorted, self.sorted) / 2

    def nearest(self, vectors: Vectors) -> Int64:
        """Return the number of the nearest centroid of each vector."""
        halves = np.einsum("ij,ij->i", self.centroids, self.centroids) / 2
        size = max(1, SCORES // len(self.centroids))
        found = [
            np.argmax(vectors[at : at + size] @ self.centroids.T - halves, axis=1)
            for at in range(0, len(vectors), size)
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def near(self, cell: int) -> Int64:
        """Return places in `sorted`: those of the nearest cells."""
        apart = ((self.centroids - self.centroids[cell]) ** 2).sum(axis=1)
        cells = np.argsort(apart, kind="stable")[:PROBED]
        sizes = self.begins[cells + 1] - self.begins[cells]
        enough = max(1, int(np.searchsorted(np.cumsum(sizes), PROBED_MOST, "right")))
        places = np.concatenate([np.arange(self.begins[one], self.begins[one + 1]) for one in cells[:enough].tolist()])
        return places[:: -(-len(places) // PROBED_MOST) or 1]  # one cell has more if most vectors are nearly equal


def nearest_of(
    cells: Cells, vectors: Vectors, count: int, without_itself: bool = False
) -> Iterator[tuple[Int64, Int64, NDArray[np.float32]]]:
    """Yield rows of `vectors`, the nearest of those in the cells, and how near: (n,), (n, count), (n, count).

    Args:
        cells: What is looked among.
        vectors: What is looked for, (n, d).
        count: Number of the nearest ones; -1 where there are fewer.
        without_itself: The vectors are those in the cells, and none is its own neighbor.
    """
    where = cells.nearest(vectors)
    order = np.argsort(where, kind="stable")
    begins = np.searchsorted(where[order], np.arange(len(cells.centroids) + 1))

    def found(part: tuple[int, int]) -> tuple[Int64, Int64, NDArray[np.float32]]:
        cell, at = part
        near, mine = cells.near(cell), order[at : min(at + _ROWS, begins[cell + 1])]
        candidates, rows = cells.sorted[near].T, cells.order[near]
        size = max(1, SCORES // max(1, len(near)))
        its, best = [], []
        for at in range(0, len(mine), size):
            own = mine[at : at + size]
            scores = vectors[own] @ candidates - cells.halves[near]
            if without_itself:
                scores[own[:, None] == rows] = -np.inf
            places, far = highest(scores, count)
            its.append(np.where(places < 0, -1, rows[places]))
            best.append(far)
        return mine, np.concatenate(its), np.concatenate(best)

    parts = [
        (cell, at) for cell, (begin, end) in enumerate(pairwise(begins.tolist())) for at in range(begin, end, _ROWS)
    ]
    yield from ahead(found, parts, usable_cores())


def _of_cells(
    embedding: Embedding, rows: Int64, vectors: Vectors, count: int
) -> Iterator[tuple[Int64, Int64, Vectors]]:
    """Yield rows, their nearest rows and the distances, among those of near cells; `rows` are their records."""
    for mine, its, _ in nearest_of(Cells(vectors), vectors, MORE * count, without_itself=True):
        yield (mine, *_ranked(embedding, rows, mine, its, count))


def _ranked(embedding: Embedding, rows: Int64, mine: Int64, its: Int64, count: int) -> tuple[Int64, Vectors]:
    """Return the nearest of some candidates of each row, by their whole vectors, and the distances."""
    asked, where = np.unique(np.append(its, mine), return_inverse=True)
    vectors, _ = embedding.of(rows[np.maximum(asked, 0)])
    where = where.reshape(-1)
    queries, candidates = vectors[where[its.size :]], where[: its.size].reshape(its.shape)
    scores = np.empty(its.shape, np.float32)
    size = max(1, SCORES // max(1, its.shape[1] * vectors.shape[1]))
    for at in range(0, len(mine), size):
        part = vectors[candidates[at : at + size]]
        scores[at : at + size] = np.matmul(part, queries[at : at + size, :, None])[:, :, 0]
    scores[its < 0] = -np.inf
    places, best = highest(scores, count)
    return np.where(places < 0, -1, np.take_along_axis(its, places, axis=1)), 1 - best
