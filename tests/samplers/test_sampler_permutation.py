"""The permutations: one to one for every n, always the same, and all orders equally likely."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from packer.samplers.order import SORTED_UP_TO, Feistel, compact, derive, permutation, permutation_function, random_bits
from packer.samplers.sampler import ShuffleSampler

Permute = Callable[[int, int], np.ndarray]


def feistel(n: int, key: int) -> np.ndarray:
    """The way of large n, at any n."""
    return Feistel(n, key)(np.arange(n))


@pytest.fixture(params=[permutation, feistel], ids=["sorted", "feistel"])
def permute(request: pytest.FixtureRequest) -> Permute:
    return request.param


def test_every_n_from_1_to_300_is_permuted(permute: Permute) -> None:
    for n in range(1, 301):
        for key in (0, derive(n)):
            assert np.array_equal(np.sort(permute(n, key)), np.arange(n))


@pytest.mark.parametrize("n", [SORTED_UP_TO, SORTED_UP_TO + 1, 8191, 8192, 8193, 65537, 99_991, 1 << 20, (1 << 20) + 1])
def test_large_n_are_permuted_and_do_not_repeat_themselves(n: int) -> None:
    first, second = permutation(n, derive(0, 0)), permutation(n, derive(0, 1))
    assert first.dtype == np.int32
    for order in (first, second):
        assert (np.bincount(order, minlength=n) == 1).all()
    assert np.count_nonzero(first == second) < 12
    assert np.count_nonzero(first == np.arange(n)) < 12  # a random order has 1 fixed point on average


def test_parts_of_a_permutation_are_those_of_the_whole() -> None:
    for n in (10, 5000):
        places = np.array([3, 9, 0])
        assert np.array_equal(permutation_function(n, 7)(places), permutation(n, 7)[places])


def test_numbers_beyond_32_bits() -> None:
    n = (1 << 40) + 5
    given = np.arange(n - 10_000, n)
    images = Feistel(n, 3)(given)
    assert len(np.unique(images)) == len(given)
    assert images.min() >= 0 and images.max() < n and images.max() > n // 2
    assert compact(1 << 31) is np.int32 and compact((1 << 31) + 1) is np.int64


def test_the_orders_stay_as_they_are_for_ever() -> None:
    """A run must resume with another version of numpy, or of packer: these numbers may not change."""
    assert permutation(10, derive(0, 0)).tolist() == GOLDEN_SMALL
    assert permutation(100_000, derive(42, 3))[:8].tolist() == GOLDEN_LARGE
    # Vigna's splitmix64.c, seed 1234567
    assert random_bits(1234567, 3).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


GOLDEN_SMALL = [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
GOLDEN_LARGE = [8518, 86050, 95548, 16898, 22595, 71810, 49423, 99678]


def test_keys_differ_by_every_number_and_their_order() -> None:
    keys = {derive(a, b) for a in range(100) for b in range(100)} | {derive(a) for a in range(100)}
    assert len(keys) == 10_100


def chi_square(counts: np.ndarray) -> float:
    """Distance of counts from all alike, in standard deviations of a chi-square."""
    expected, freedom = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("n", [7, 16, 50])
def test_every_record_is_at_every_place_equally_often(permute: Permute, n: int) -> None:
    epochs = 3000
    orders = np.stack([permute(n, derive(5, epoch)) for epoch in range(epochs)])
    places = np.zeros((n, n))
    np.add.at(places, (np.arange(n)[None].repeat(epochs, 0), orders), 1)
    # rows and columns sum to `epochs` each: (n - 1)**2 degrees of freedom
    distance = ((places - epochs / n) ** 2 / (epochs / n)).sum()
    freedom = (n - 1) ** 2
    assert abs(distance - freedom) / np.sqrt(2 * freedom) < 5


@pytest.mark.parametrize("n", [16, 50, 90])  # Feistel's grid of 2 x 4, which no sampler uses, is too small for this
def test_every_pair_of_neighbours_is_equally_likely(permute: Permute, n: int) -> None:
    orders = np.stack([permute(n, derive(6, epoch)) for epoch in range(3000)])
    pairs = np.zeros((n, n))
    np.add.at(pairs, (orders[:, :-1].ravel(), orders[:, 1:].ravel()), 1)
    assert abs(chi_square(pairs[~np.eye(n, dtype=bool)])) < 5
    rises = np.count_nonzero(orders[:, 1:] > orders[:, :-1]) / orders[:, 1:].size
    assert abs(rises - 0.5) < 0.01


def test_all_orders_of_four_are_equally_likely() -> None:
    epochs = 24 * 500
    orders = [tuple(permutation(4, derive(7, epoch))) for epoch in range(epochs)]
    _, counts = np.unique(np.array(orders), axis=0, return_counts=True)
    assert len(counts) == 24 and abs(chi_square(counts)) < 5


@pytest.mark.parametrize("n", [64, 1000, 10_000])
def test_the_halves_of_two_epochs_have_half_in_common(permute: Permute, n: int) -> None:
    epochs = 60 if n < 10_000 else 20
    orders = [permute(n, derive(8, epoch)) for epoch in range(epochs)]
    common = [len(np.intersect1d(a[: n // 2], b[: n // 2])) for a, b in pairwise(orders)]
    # hypergeometric: mean n / 4, variance about n / 16
    assert abs(np.mean(common) - n / 4) < 5 * np.sqrt(n / 16 / len(common))


def test_no_more_fixed_points_than_chance_has(permute: Permute) -> None:
    fixed = [np.count_nonzero(permute(100, derive(9, epoch)) == np.arange(100)) for epoch in range(2000)]
    assert abs(np.mean(fixed) - 1) < 5 / np.sqrt(2000)


def test_large_orders_are_free_of_drift_and_stride() -> None:
    n = 1 << 17
    order = permutation(n, derive(1, 1)).astype(np.float64)
    for lag in (1, 2, 3, 64, 256, 361, 362, 512, 1024):  # 256 and 512: columns and rows of the grid
        correlation = np.corrcoef(order[:-lag], order[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(n)
        steps = (order[lag:] - order[:-lag]).astype(np.int64) % n
        assert np.bincount(steps, minlength=n).max() < 12  # Poisson of mean 1
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 5 / np.sqrt(n)


def test_ten_million_records_take_less_than_100_mb() -> None:
    tracemalloc.start()
    try:
        order = ShuffleSampler(10_000_000).order()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert order.nbytes == 40_000_000 and peak < 50_000_000


def test_the_first_batch_of_100_million_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        batch = next(ShuffleSampler(100_000_000).rank_batches(256))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(np.unique(batch)) == 256 and peak < 20e6
