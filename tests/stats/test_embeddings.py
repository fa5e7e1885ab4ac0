"""Embeddings: unit vectors, components, neighbors, outliers and suspects, against plain numpy and planted faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from large_packs import labeled_pack
from running import good, refused

import packer
from packer.errors import UsageError
from packer.stats import neighbors
from packer.stats.embeddings import Embedding, embedding_names, unit_vectors
from packer.stats.neighbors import highest, neighborhoods
from packer.stats.problems import find_problems, records_with
from packer.stats.projection import projected

COUNT, CLASSES = 600, 5
FLIPPED = np.random.default_rng(1).choice(np.arange(200, COUNT), 30, replace=False)
FOREIGN = np.array([100, 101])
"""Records with a wrong label, and those that are unlike all others."""
WITHOUT = {7: 0.0, 8: np.nan, 9: np.inf}


def vectors(dtype: str = "float16", dimensions: int = 24) -> np.ndarray:
    """Clusters, one for each class; and vectors that have no direction."""
    random = np.random.default_rng(0)
    classes = np.arange(COUNT) % CLASSES
    found = random.normal(size=(CLASSES, dimensions))[classes] + 0.2 * random.normal(size=(COUNT, dimensions))
    found[FOREIGN] = 3 * random.normal(size=(2, dimensions))
    for record, value in WITHOUT.items():
        found[record] = value
    return found.astype(dtype)


@pytest.fixture
def pack(tmp_path: Path) -> packer.Pack:
    labels = np.arange(COUNT) % CLASSES
    labels[FLIPPED] = (labels[FLIPPED] + 1 + np.arange(30) % (CLASSES - 1)) % CLASSES
    sides = np.full(COUNT, 8)
    path = labeled_pack(tmp_path / "pack", {"width": sides, "height": sides, "label": labels}, list("abcde"), 2)
    np.save(tmp_path / "clip.npy", vectors())
    np.save(tmp_path / "score.npy", np.arange(COUNT, dtype=np.float32))
    good("attach", path, tmp_path / "clip.npy", "--as", "clip")
    good("attach", path, tmp_path / "score.npy", "--as", "score")
    return packer.open_pack(path)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unit_vectors(dtype: str) -> None:
    values = np.array([[3, 4], [0, 0], [1, np.nan], [np.inf, 1], [-1e-4, 0], [60000, 0]], dtype)
    found, known = unit_vectors(values)
    assert known.tolist() == [True, False, False, False, True, True]
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [0, 0], [0, 0], [-1, 0], [1, 0]], atol=1e-6)


def test_unit_vectors_of_numbers_that_float32_cannot_square() -> None:
    found, known = unit_vectors(np.array([[3e300, 4e300], [3e-300, 4e-300]]))
    assert known.all()
    np.testing.assert_allclose(found, [[0.6, 0.8]] * 2, atol=1e-6)


def test_only_vectors_of_floats_are_embeddings(pack: packer.Pack) -> None:
    assert embedding_names(pack) == ("clip",)
    with pytest.raises(UsageError, match="no embedding"):
        Embedding(pack, "score")


@pytest.mark.parametrize("rows", [64, 100, COUNT])
def test_the_first_components_are_those_of_the_covariance(pack: packer.Pack, rows: int) -> None:
    embedding = Embedding(pack, "clip")
    embedding._rows = rows
    found, known = embedding.reduced(2)
    assert np.flatnonzero(~known).tolist() == sorted(WITHOUT)
    plain = vectors().astype(np.float64)[known]
    plain /= np.linalg.norm(plain, axis=1)[:, None]
    centered = plain - plain.mean(axis=0)
    _, directions = np.linalg.eigh(centered.T @ centered)
    expected = centered @ directions[:, ::-1][:, :2]
    expected *= np.sign((expected * found[known]).sum(axis=0))
    np.testing.assert_allclose(found[known], expected, atol=2e-3)
    assert not found[~known].any()
    np.testing.assert_array_equal(projected(Embedding(pack, "clip"))[0], Embedding(pack, "clip").reduced(2)[0])


def test_similar_records(pack: packer.Pack) -> None:
    plain, known = unit_vectors(vectors().astype(np.float64))
    distances = 1 - plain @ plain[50]
    distances[~known] = np.inf
    distances[50] = np.inf
    records, far = Embedding(pack, "clip").similar(50, 9)
    np.testing.assert_array_equal(records, np.argsort(distances, kind="stable")[:9])
    np.testing.assert_allclose(far, np.sort(distances)[:9], atol=1e-5)
    assert len(Embedding(pack, "clip").similar(50, COUNT)[0]) == COUNT - 1 - len(WITHOUT)
    assert len(Embedding(pack, "clip").similar(7, 9)[0]) == 0


@pytest.mark.parametrize("columns", [3, 40, 500])
def test_highest(columns: int) -> None:
    scores = np.random.default_rng(0).integers(0, 50, (20, columns)).astype(np.float32)
    scores[0] = -np.inf
    scores[1, 2:] = -np.inf
    its, best = highest(scores, 10)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    best_of = np.take_along_axis(scores, expected, axis=1)
    np.testing.assert_array_equal(its, np.where(np.isinf(best_of), -1, expected))
    np.testing.assert_array_equal(best, best_of)


def test_the_first_of_many_equal_scores() -> None:
    scores = np.zeros((2, 5000), np.float32)
    scores[1, ::2], scores[1, 4001] = -np.inf, 1
    its, _ = highest(scores, 4)
    np.testing.assert_array_equal(its, [[0, 1, 2, 3], [4001, 1, 3, 5]])


def test_a_cell_of_nearly_all_vectors_has_no_more_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that says nearly the same of all images, which would be compared each with each."""
    monkeypatch.setattr(neighbors, "PROBED_MOST", 100)
    monkeypatch.setattr(neighbors, "_ROWS", 300)
    same = np.ones((1000, 4), np.float32)
    cells = neighbors.Cells(same)
    assert 90 <= len(cells.near(0)) <= 100
    found = list(neighbors.nearest_of(cells, same, 3, without_itself=True))
    assert max(len(mine) for mine, *_ in found) <= 300
    mine, its = (np.concatenate(parts) for parts in list(zip(*found, strict=True))[:2])
    assert (np.sort(mine) == np.arange(1000)).all() and (its >= 0).all() and (its != mine[:, None]).all()


@pytest.mark.parametrize("exact", [True, False])
def test_neighbors(pack: packer.Pack, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vectors in cells nearly all neighbors are found, and the distances of those that are found are right."""
    if not exact:
        monkeypatch.setattr(neighbors, "EXACT", 100)
        monkeypatch.setattr(neighbors, "PROBED", 8)
    plain, known = unit_vectors(vectors().astype(np.float64))
    distances = 1 - plain @ plain.T
    distances[:, ~known] = distances[np.arange(COUNT), np.arange(COUNT)] = np.inf
    expected = np.argsort(distances, axis=1, kind="stable")[:, :10]
    found = neighborhoods(Embedding(pack, "clip"))
    assert found.exact == exact
    assert (found.records[~known] == -1).all() and np.isnan(found.distances[~known]).all()
    assert (found.records[known] != np.arange(COUNT)[known, None]).all()
    pairs = zip(expected[known].tolist(), found.records[known].tolist(), strict=True)
    common = [len(set(a) & set(b)) for a, b in pairs]
    assert np.mean(common) == 10 if exact else np.mean(common) > 9
    rows = np.flatnonzero(known)[:, None]
    np.testing.assert_allclose(found.distances[known], distances[rows, found.records[known]], atol=1e-5)
    np.testing.assert_array_equal(found.records, neighborhoods(Embedding(pack, "clip")).records)


def test_fewer_records_than_neighbors(tmp_path: Path) -> None:
    sides = np.full(4, 8)
    path = labeled_pack(tmp_path / "pack", {"width": sides, "height": sides}, ["a"])
    np.save(tmp_path / "v.npy", np.eye(4, dtype=np.float32))
    good("attach", path, tmp_path / "v.npy", "--as", "v")
    pack = packer.open_pack(path)
    assert (np.sort(neighborhoods(Embedding(pack, "v")).records, axis=1)[:, -3:] >= 0).all()
    assert projected(Embedding(pack, "v"))[1].all()
    np.save(tmp_path / "one.npy", np.array([[1.0], [2], [-1], [0]], np.float32))
    good("attach", path, tmp_path / "one.npy", "--as", "one")
    places, known = projected(Embedding(packer.open_pack(path), "one"))
    assert places.shape == (4, 2) and known.tolist() == [True, True, True, False]
    assert any("fewer than" in note for note in find_problems(pack, embedding="v").notes)


def test_planted_faults_are_the_first(pack: packer.Pack) -> None:
    found = find_problems(pack, embedding="clip")
    of = {problem.kind: problem for problem in found.found}
    suspects, outliers = of["label-neighbors"], of["outlier"]
    assert len(set(suspects.records[: len(FLIPPED) + 2].tolist()) & set(FLIPPED.tolist())) == len(FLIPPED)
    assert set(outliers.records[:2].tolist()) == set(FOREIGN.tolist())
    first = suspects.examples[0]
    assert first.neighbors and set(first.neighbors) <= set(range(COUNT)) and "of its neighbors" in first.detail
    assert any(note.startswith("clip: 3 records have no direction") for note in found.notes)
    assert not {"outlier", "label-neighbors"} & {problem.kind for problem in find_problems(pack).found}


def test_the_command(pack: packer.Pack) -> None:
    said = good("stats", pack.path, "--problems", "--embedding", "clip").out
    assert "Labels that the neighbors contradict (clip)" in said and "Images unlike all others (clip)" in said
    assert "has no sidecar nope" in refused(2, "stats", pack.path, "--problems", "--embedding", "nope")
    assert "no embedding" in refused(2, "stats", pack.path, "--problems", "--embedding", "score")
    assert "add --problems" in refused(2, "stats", pack.path, "--embedding", "clip")
    with pytest.raises(UsageError, match="must be one of"):  # somebody must look at them first
        records_with(pack, ["outlier"])
