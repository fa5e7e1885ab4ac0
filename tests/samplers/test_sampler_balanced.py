"""BalancedSampler: how often each class and each record comes."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import PackedDataset, open_pack
from packer.errors import UsageError
from packer.model.annotation_columns import Ragged
from packer.samplers import BalancedSampler

LABELS = np.repeat([0, 1, 7], [900, 90, 10])


def ragged(*rows: list[int]) -> Ragged:
    return Ragged(np.array(list(chain(*rows)), np.int64), np.cumsum([0, *map(len, rows)]))


def drawn(sampler: BalancedSampler, epochs: int = 1) -> np.ndarray:
    """(epochs, records): how often each record comes."""
    n = sampler.num_records
    return np.stack([np.bincount(sampler.order(epoch), minlength=n) for epoch in range(epochs)])


def by_class(counts: np.ndarray) -> list[int]:
    return [int(counts[..., c == LABELS].sum()) for c in (0, 1, 7)]


def test_power_0_is_every_record_once() -> None:
    sampler = BalancedSampler(LABELS, power=0)
    assert (drawn(sampler, 5) == 1).all()
    assert sampler.order(0).tolist() != sampler.order(1).tolist()


def test_power_1_is_every_class_alike() -> None:
    for row in drawn(BalancedSampler(LABELS), 20):
        assert all(abs(count - 1000 / 3) < 40 for count in by_class(row))
    assert all(abs(count - 20_000 / 3) < 250 for count in by_class(drawn(BalancedSampler(LABELS), 20)))


def test_power_in_between_is_the_share_that_the_formula_says() -> None:
    shares = np.sqrt([900, 90, 10])
    counts = by_class(drawn(BalancedSampler(LABELS, 0.5), 20))
    assert np.allclose(counts, 20_000 * shares / shares.sum(), atol=250)


def test_every_record_comes_as_often_as_expected_rounded_down_or_up() -> None:
    counts = drawn(BalancedSampler(LABELS), 400)
    expected = 1000 / 3 / np.array([900, 90, 10])[np.searchsorted([0, 1, 7], LABELS)]
    assert (counts >= np.floor(expected)).all() and (counts <= np.ceil(expected)).all()
    assert abs(counts.mean(axis=0) - expected).max() < 5 * 0.5 / np.sqrt(400)


def test_which_records_come_together_is_left_to_chance() -> None:
    # unshuffled systematic sampling would draw every tenth record, always the same together
    seen = drawn(BalancedSampler(LABELS), 400)[:, :900]
    correlations = np.corrcoef(seen[:, :40].T)[~np.eye(40, dtype=bool)]
    assert abs(correlations).max() < 0.3 and abs(correlations.mean()) < 0.01


def test_samples_of_a_class_are_spread_over_the_epoch() -> None:
    order = BalancedSampler(LABELS).order(0)
    rare = np.flatnonzero(LABELS[order] == 7)
    assert abs(rare.mean() - 500) < 90
    assert np.count_nonzero(np.diff(rare) == 1) < 170  # one in three would be 111


@pytest.mark.parametrize("num_samples", [1, 999, 1000, 12_345])
def test_the_number_of_samples_is_the_users(num_samples: int) -> None:
    sampler = BalancedSampler(LABELS, num_samples=num_samples)
    assert len(sampler) == len(list(sampler)) == len(sampler.order(3)) == num_samples


def test_many_seeds_and_sizes_give_exactly_as_many_samples() -> None:
    rng = np.random.default_rng(1)
    for seed in range(300):
        labels = rng.integers(-1, 5, rng.integers(6, 60))
        labels[0] = 0
        size = int(rng.integers(1, 200))
        order = BalancedSampler(labels, float(rng.random()), seed, num_samples=size).order(seed)
        assert len(order) == size and order.min() >= 0 and order.max() < len(labels)


def test_an_image_without_a_class_counts_as_one_of_the_most_common() -> None:
    labels = np.array([-1] * 50 + [0] * 40 + [1] * 10)
    counts = drawn(BalancedSampler(labels), 200).mean(axis=0)
    assert np.allclose(counts[labels == -1].mean(), counts[labels == 0].mean(), rtol=0.02)
    assert np.allclose(counts[labels == 1].mean(), 4 * counts[labels == 0].mean(), rtol=0.02)


def test_an_image_with_boxes_counts_as_its_rarest_class() -> None:
    rows = [[3, 3, 3]] * 40 + [[3, 9]] * 10 + [[]] * 50
    counts = drawn(BalancedSampler(ragged(*rows)), 400).mean(axis=0)
    # class 3 is in 50 images, class 9 in 10: weights 1 and 5
    assert np.allclose(counts, np.array([1] * 40 + [5] * 10 + [1] * 50) * 100 / 140, atol=0.2)


def test_a_class_counts_once_an_image() -> None:
    one, many = ragged([0], [0], [1]), ragged([0] * 9, [0], [1])
    assert np.array_equal(drawn(BalancedSampler(one), 50), drawn(BalancedSampler(many), 50))


@pytest.mark.parametrize("big", [0, 10**12])
def test_class_ids_may_be_any_numbers(big: int) -> None:
    one, other = BalancedSampler(LABELS), BalancedSampler(LABELS * 3 + big)
    assert np.array_equal(one.order(2), other.order(2))


def test_a_subset_is_balanced_in_itself() -> None:
    records = np.flatnonzero(LABELS < 7)[::3]
    counts = by_class(drawn(BalancedSampler(LABELS, indices=records), 10))
    assert counts[2] == 0 and abs(counts[0] - counts[1]) < 200
    rows = ragged([5], [0], [0, 1], [0], [])
    order = BalancedSampler(rows, indices=[4, 2, 1], num_samples=4000).order()
    assert np.bincount(order).tolist() == [0, 1000, 2000, 0, 1000]


def test_classes_are_read_from_the_index(shuffled_pack: Path) -> None:
    data = PackedDataset(shuffled_pack)
    sampler = BalancedSampler(data, num_samples=1260)
    assert np.allclose(np.bincount(data.labels[sampler.order()]), 420, atol=40)
    assert np.array_equal(sampler.order(), BalancedSampler(open_pack(shuffled_pack), num_samples=1260).order())
    assert np.array_equal(sampler.order(), BalancedSampler(data.labels, num_samples=1260).order())


def test_boxes_are_read_from_the_index(boxes_pack: Path) -> None:
    data = PackedDataset(boxes_pack)
    by_pack, by_boxes = BalancedSampler(data), BalancedSampler(data.box_labels)
    assert np.array_equal(by_pack.order(), by_boxes.order())
    assert np.array_equal(by_pack.order(), BalancedSampler(data, by="box_labels").order())


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (LABELS, {"power": 1.5}, "power: must be a number from 0 to 1, got 1.5"),
        (LABELS, {"power": -0.1}, "power: .*got -0.1"),
        (LABELS, {"power": float("nan")}, "power: .*got nan"),
        (LABELS, {"power": True}, "power: .*got True"),
        (LABELS, {"power": "1"}, "power: .*got '1'"),
        (LABELS, {"num_samples": 0}, "num_samples: .* at least 1, got 0"),
        (LABELS, {"by": "class"}, "by: must be label or box_labels, got 'class'"),
        (LABELS * 1.0, {}, r"data: .*got float64 of shape \(1000,\)"),
        (100, {}, r"data: .*got int64 of shape \(\)"),
        (np.full(9, -1), {}, "data: has no class labels"),
        (ragged([], []), {}, "data: has no class labels"),
        (LABELS, {"num_samples": 2, "rank": 0, "world_size": 3}, "2 records for 3 ranks"),
    ],
)
def test_options_that_cannot_be_are_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BalancedSampler(data, **options)


def test_a_pack_without_the_column_is_refused(boxes_pack: Path) -> None:
    with pytest.raises(UsageError, match="has no class labels"):
        BalancedSampler(open_pack(boxes_pack), by="label")
