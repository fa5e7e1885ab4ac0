"""Places of records in two dimensions, from their embedding: the principal components at once, or UMAP."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, option
from packer.model.annotation import Progress
from packer.stats.embeddings import Embedding, Vectors
from packer.stats.neighbors import Cells, nearest_of
from packer.system.registry import choose

METHODS = ("pca", "umap")
UMAP_RECORDS = 20_000
"""Records that UMAP places: on two cores, in a minute. The others lie among the nearest of these."""
UMAP_DIMENSIONS, UMAP_NEIGHBORS, AMONG = 50, 15, 3


def projected(
    embedding: Embedding, method: str = "pca", progress: Progress | None = None, seed: int = 0
) -> tuple[Vectors, NDArray[np.bool_]]:
    """Return the place of each record, (records, 2), and which have one, bool (records,).

    Args:
        embedding: The vectors.
        method: One of METHODS.
        progress: Receives the records that were read.
        seed: For UMAP; PCA has no chance in it.

    Raises:
        UsageError: There is no such method, or it is not installed.
        DamagedPack: A row does not match its checksum.
    """
    progress = progress or Progress()
    progress.stage("reading vectors", embedding.records, "vectors")
    if choose(option("method"), method, METHODS) == "pca":
        return _flat(*embedding.reduced(2, progress))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, about one another
            from umap import UMAP
    except ImportError:
        raise UsageError("UMAP", "needs umap-learn, which is not installed", "pip install umap-learn") from None
    vectors, known = embedding.reduced(UMAP_DIMENSIONS, progress)
    rows = np.flatnonzero(known)
    sample = np.intersect1d(embedding.sample(UMAP_RECORDS), rows)
    if len(sample) <= UMAP_NEIGHBORS:
        return _flat(vectors, known)  # too few for it
    progress.stage(f"UMAP of {len(sample):,} records")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = UMAP(n_neighbors=UMAP_NEIGHBORS, metric="euclidean", random_state=seed, n_jobs=1)
        its = np.asarray(made.fit_transform(vectors[sample]), np.float32)
    places = np.zeros((embedding.records, 2), np.float32)
    others = np.setdiff1d(rows, sample, assume_unique=True)
    if len(others):
        progress.stage("placing the other records", len(others))
        for mine, near, _ in nearest_of(Cells(vectors[sample]), vectors[others], AMONG):
            places[others[mine]] = its[near].mean(axis=1)
            progress.advance(len(mine))
    places[sample] = its
    return places, known


def _flat(vectors: Vectors, known: NDArray[np.bool_]) -> tuple[Vectors, NDArray[np.bool_]]:
    """Return the first two coordinates; those of a vector of one number lie on a line."""
    return np.pad(vectors[:, :2], ((0, 0), (0, max(0, 2 - vectors.shape[1])))), known
