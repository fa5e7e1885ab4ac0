"""The map by UMAP: clusters stay together, records beyond its sample lie among their nearest, the same each time."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from large_packs import labeled_pack

import packer
from packer.repack.attach import attach
from packer.stats import projection
from packer.stats.embeddings import Embedding

umap = pytest.importorskip("umap", reason="umap-learn is optional, and not installed here")
COUNT, CLASSES = 900, 6


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Numba looks for libraries of threads when it first runs: what packer may load, the guard of the tests judges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        umap.UMAP(n_neighbors=5, random_state=0, n_jobs=1).fit_transform(np.eye(40, dtype=np.float32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("placed", [COUNT, 320])
def test_neighbors_on_the_map_have_one_class(tmp_path: Path, placed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "UMAP_RECORDS", placed)
    random, labels = np.random.default_rng(0), np.arange(COUNT) % CLASSES
    vectors = random.normal(size=(CLASSES, 16))[labels] + 0.3 * random.normal(size=(COUNT, 16))
    vectors[5] = 0
    np.save(tmp_path / "clip.npy", vectors.astype(np.float16))
    sides = np.full(COUNT, 8)
    path = labeled_pack(tmp_path / "pack", {"width": sides, "height": sides, "label": labels}, list("abcdef"))
    attach(path, tmp_path / "clip.npy", "clip")
    embedding = Embedding(packer.open_pack(path), "clip")
    places, known = projection.projected(embedding, "umap")
    assert np.flatnonzero(~known).tolist() == [5] and np.isfinite(places).all()
    apart = ((places[:, None] - places[None]) ** 2).sum(axis=2)
    apart[:, 5] = apart[np.arange(COUNT), np.arange(COUNT)] = np.inf
    nearest = np.argsort(apart, axis=1)[:, :5]
    assert (labels[nearest] == labels[:, None])[known].mean() > 0.99
    np.testing.assert_array_equal(places, projection.projected(embedding, "umap")[0])
