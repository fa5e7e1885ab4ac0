"""Embeddings that were attached to a pack: unit vectors in blocks, and their principal components.

Only the direction of a vector counts, as in cosine similarity. Vectors of numbers that are not finite, and those of
length 0, have none: they are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, option, printable
from packer.format.pack import Pack
from packer.model.annotation import Int64, Progress
from packer.packing.write_shard import ahead
from packer.system import usable_cores

Vectors = NDArray[np.float32]
Made = TypeVar("Made")
BLOCK_BYTES = 8 << 20
SAMPLE, RUN = 10_240, 64
"""Records from which the components are computed: in runs of neighbors, so that a sample reads little of a disk."""
COMPONENTS, SPARE, ROUNDS_OF_BASIS = 64, 8, 5
"""Components that are computed; more make those exact, and so do rounds."""
LARGE_BYTES = 256 << 20
"""From this size on, what is fetched of a pack at a URL is said beforehand."""


def embedding_names(pack: Pack) -> tuple[str, ...]:
    """Return the names of the sidecars that are one vector of floats for each record."""
    facts = pack.sidecars.values()
    return tuple(one.name for one in facts if one.kind == "array" and len(one.shape) == 1 and "float" in one.dtype)


def unit_vectors(values: NDArray[np.floating]) -> tuple[Vectors, NDArray[np.bool_]]:
    """Return vectors with length 1, float32 (n, d), and which of them have a direction, bool (n,); others are 0."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = values.astype(np.float32)
        squares = np.einsum("ij,ij->i", found, found)
        odd = np.flatnonzero(~((squares > 1e-30) & (squares < 1e30)))  # none, or squared it leaves float32
        if len(odd):
            exact = values[odd].astype(np.float64)
            largest = np.abs(exact).max(axis=1, initial=0)
            found[odd] = exact / largest[:, None]
            squares[odd] = np.einsum("ij,ij->i", found[odd], found[odd])
        known = np.isfinite(squares) & (squares > 0)
        found *= (1 / np.sqrt(squares))[:, None].astype(np.float32)
    found[~known] = 0
    return found, known


class Components(NamedTuple):
    """Principal components of unit vectors: what is subtracted first, (d,), and the directions, (d, components)."""

    mean: Vectors
    directions: Vectors

    def of(self, vectors: Vectors) -> Vectors:
        """Return the coordinates of vectors, (n, components)."""
        return np.asarray(vectors @ self.directions - self.mean @ self.directions, np.float32)


class Embedding:
    """The vectors of a sidecar. Threads may share it.

    Args:
        pack: The pack.
        name: The sidecar.

    Raises:
        UsageError: The pack has no such sidecar, or it is not one vector of floats for each record.
    """

    def __init__(self, pack: Pack, name: str) -> None:
        self._sidecar = pack.sidecar(name)
        names = embedding_names(pack)
        if name not in names:
            step = f"choose {' or '.join(names)}" if names else "attach an array of shape (records, dimensions)"
            problem = f"{printable(name)} is no embedding: {self._sidecar.facts.form}, not one vector of floats each"
            raise UsageError(option("embedding"), problem, step)
        self.name, self.records = name, len(pack)
        (self.dimensions,) = self._sidecar.facts.shape
        self._rows = max(RUN, BLOCK_BYTES // (4 * self.dimensions))

    def of(self, records: Int64) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return the `unit_vectors` of records; raise DamagedPack if a row does not match its checksum."""
        return unit_vectors(self._sidecar.read(records))

    def in_blocks(
        self, make: Callable[[Vectors, NDArray[np.bool_]], Made], progress: Progress | None = None
    ) -> Iterator[tuple[slice, Made]]:
        """Yield what `make` returns of the unit vectors of each block of records, in order, and which these are.

        It is called in several threads. The memory does not grow with the number of records.
        """
        blocks = [slice(at, min(at + self._rows, self.records)) for at in range(0, self.records, self._rows)]

        def made(block: slice) -> Made:
            return make(*self.of(np.arange(block.start, block.stop)))

        for block, one in zip(blocks, ahead(made, blocks, usable_cores()), strict=True):
            yield block, one
            if progress is not None:
                progress.advance(block.stop - block.start)

    def sample(self, most: int) -> Int64:
        """Return up to `most` records, spread evenly over the pack in runs of neighbors."""
        if self.records <= most:
            return np.arange(self.records)
        firsts = np.linspace(0, self.records - RUN, max(1, most // RUN)).astype(np.int64)
        return np.unique((firsts[:, None] + np.arange(RUN)).reshape(-1))

    @cached_property
    def components(self) -> Components:
        """The principal components of a sample, those of the largest variance first; each is signed the same way."""
        vectors, known = self.of(self.sample(SAMPLE))
        vectors = vectors[known]
        mean = vectors.mean(axis=0) if len(vectors) else np.zeros(self.dimensions, np.float32)
        vectors -= mean
        # subspace iteration: of thousands of dimensions, a tenth of the time of all eigenvectors
        basis = np.random.default_rng(0).standard_normal((self.dimensions, min(self.dimensions, COMPONENTS + SPARE)))
        for _ in range(ROUNDS_OF_BASIS):
            basis, _ = np.linalg.qr(vectors.T @ (vectors @ basis.astype(np.float32)))
        within = (vectors @ basis.astype(np.float32)).astype(np.float64)
        _, turned = np.linalg.eigh(within.T @ within)
        directions = (basis @ turned)[:, ::-1][:, :COMPONENTS]
        largest = directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])]
        return Components(mean, np.ascontiguousarray(directions * np.sign(largest), np.float32))

    def reduced(self, dimensions: int, progress: Progress | None = None) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return up to COMPONENTS coordinates of all records, (records, dimensions), and which have any, (records,)."""
        mean, directions = self.components
        wanted = Components(mean, np.ascontiguousarray(directions[:, :dimensions]))
        found = np.zeros((self.records, wanted.directions.shape[1]), np.float32)
        known = np.zeros(self.records, np.bool_)
        for block, made in self.in_blocks(lambda vectors, known: (wanted.of(vectors), known), progress):
            found[block], known[block] = made
        found[~known] = 0
        return found, known

    def similar(self, record: int, most: int) -> tuple[Int64, Vectors]:
        """Return the records of the nearest vectors, the nearest first, without itself; and their cosine distances.

        Every vector is compared. Both are empty if the record has none.
        """
        (query,), (has,) = self.of(np.array([record]))
        if not has:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        distances = np.full(self.records, np.inf, np.float32)
        for block, made in self.in_blocks(lambda vectors, known: np.where(known, 1 - vectors @ query, np.inf)):
            distances[block] = made
        distances[record] = np.inf
        count = min(most, int(np.isfinite(distances).sum()))
        nearest = np.argpartition(distances, count - 1)[:count] if count else np.zeros(0, np.int64)
        nearest = np.sort(nearest)
        nearest = nearest[np.argsort(distances[nearest], kind="stable")]
        return nearest, np.maximum(distances[nearest], 0)
