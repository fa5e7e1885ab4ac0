"""Weights that follow the loss: what is drawn against a slow plain reference, and updates, ranks, states, curricula."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import floor, frexp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from sampler_kinds import plain, saved

from packer import PackedDataset, open_pack
from packer.errors import UsageError
from packer.samplers import BalancedSampler, ShuffleSampler, WeightedSampler, class_weights, curriculum_weights
from packer.samplers.order import VISIT, bits_at, derive, permutation
from packer.samplers.weighted import _Table


def slow_order(weights: Sequence[float], seed: int, epoch: int, samples: int) -> list[tuple[int, int]]:
    """The (record, visit) of each position, one stratum after another, in Python's own numbers.

    The weights lie on a line, as whole numbers of which the largest has 31 bits. The line is cut into equal strata, a
    random point is taken in each, and the record where it falls is drawn. A record's visits are counted as they come.
    Then the samples change places.
    """
    scale = 2 ** (31 - frexp(max(weights))[1])
    shares = [max(round(Fraction(weight) * scale), int(weight > 0)) for weight in weights]
    total = sum(shares)
    edges = [floor(Fraction(number * total, samples)) for number in range(samples + 1)]
    random = (bits_at(derive(seed, epoch, 2), np.arange(samples)) >> np.uint64(11)).tolist()
    line = [sum(shares[:record]) for record in range(len(shares) + 1)]
    drawn, visits = [], Counter[int]()
    for number in range(samples):
        width = edges[number + 1] - edges[number]
        point = edges[number] + min(int(random[number] * 2.0**-53 * width), width - 1)
        record = next(record for record in range(len(shares)) if line[record] <= point < line[record + 1])
        drawn.append((record, visits[record]))
        visits[record] += 1
    return [drawn[place] for place in permutation(samples, derive(seed, epoch, 1)).tolist()]


def samples_of(sampler: WeightedSampler, epoch: int, batch_size: int = 1, start: int = 0) -> list[tuple[int, int]]:
    samples = np.concatenate([np.zeros(0, int), *sampler.rank_samples(batch_size, epoch, start)])
    return [(sample % VISIT, sample // VISIT) for sample in samples.tolist()]


numbers = some.one_of(
    some.floats(0, 100, width=32), some.sampled_from([0.0, 1.0, 1.0, 2.0, 1e-30, 1e30]), some.integers(0, 9)
)
weight_lists = some.lists(numbers, min_size=1, max_size=90).filter(lambda weights: max(weights) > 0)
WORLDS = (1, 2, 3, 8, 24)
quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(weight_lists, some.integers(0, 9), some.integers(0, 9), some.integers(1, 300))
def test_the_order_is_that_of_the_plain_reference(
    weights: list[float], seed: int, epoch: int, num_samples: int
) -> None:
    sampler = WeightedSampler(len(weights), np.array(weights, np.float32), seed, num_samples=num_samples)
    assert samples_of(sampler, epoch) == slow_order(np.array(weights, np.float32).tolist(), seed, epoch, num_samples)


@settings(quick, max_examples=25)
@given(some.data())
def test_updates_ranks_and_resumes_give_the_same_samples(data: some.DataObject) -> None:
    """One process that is never stopped, and ranks that are stopped anywhere and go on as other numbers of ranks."""
    n, size = data.draw(some.integers(24, 60)), 24
    weights = np.array(data.draw(some.lists(numbers, min_size=n, max_size=n)), np.float32) + np.float32(0.5)
    num_samples = data.draw(some.integers(24, 100))

    def start(world_size: int) -> list[WeightedSampler]:
        options: Any = {"num_samples": num_samples, "world_size": world_size}
        return [WeightedSampler(n, weights, 5, rank=rank, **options) for rank in range(world_size)]

    (alone,), ranks = start(1), start(data.draw(some.sampled_from(WORLDS)))
    for epoch in range(3):
        position, expected = 0, samples_of(alone, epoch, size)
        assert expected == slow_order(alone.weights.tolist(), 5, epoch, num_samples)
        while position < num_samples:
            world_size = len(ranks)
            batches = [next(rank.rank_samples(size // world_size, epoch, position)) for rank in ranks]
            together = np.stack(batches, axis=1).ravel()[: num_samples - position]
            assert [(s % VISIT, s // VISIT) for s in together.tolist()] == expected[position : position + size]
            records = together % VISIT
            losses = np.array(data.draw(some.lists(numbers, min_size=len(records), max_size=len(records)))) + 0.1
            # gathered rank by rank, that is in another order than in one process
            by_rank = np.argsort(np.arange(len(records)) % world_size, kind="stable")
            alone.update(records, losses)
            for rank in ranks:
                rank.update(records[by_rank], torch.tensor(losses[by_rank]))
            position = min(position + size, num_samples)
            if data.draw(some.booleans()):
                state = saved(ranks[-1].state_at(epoch, position, size))
                ranks = start(data.draw(some.sampled_from(WORLDS)))
                for rank in ranks:
                    assert rank.check_state(state, size) == (epoch, position)
                    rank.restore(state)


def test_shares_of_draws_are_those_of_the_weights() -> None:
    weights = np.random.default_rng(0).exponential(size=300)
    sampler = WeightedSampler(300, weights, num_samples=450)
    expected = weights / weights.sum() * 450
    counts = np.zeros(300)
    for epoch in range(400):
        here = np.bincount(sampler.order(epoch), minlength=300)
        assert (np.abs(here - expected) < 2).all()  # in every epoch
        counts += here
    assert np.abs(counts / 400 - expected).max() < 5 * 0.5 / 400**0.5


def test_neighbors_are_drawn_independently_enough() -> None:
    """Not as of a lattice: of two neighbors with half a sample each, both may be drawn, or none."""
    sampler = WeightedSampler(1000, num_samples=500)
    pairs = Counter[int]()
    for epoch in range(20):
        drawn = np.bincount(sampler.order(epoch), minlength=1000)
        pairs.update((drawn[1:-1:2] + drawn[2::2]).tolist())
    assert pairs[0] > 1000 and pairs[2] > 1000


def test_equal_weights_are_a_shuffle() -> None:
    sampler = WeightedSampler(1000, seed=3)
    orders = [sampler.order(epoch) for epoch in range(3)]
    assert all(np.array_equal(np.sort(order), np.arange(1000)) for order in orders)
    assert not np.array_equal(orders[0], orders[1]) and max(visit for _, visit in samples_of(sampler, 0)) == 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 1e6])
def test_temperature(temperature: float) -> None:
    weights = np.array([1.0, 4.0, 9.0, 0.0])
    sampler = WeightedSampler(4, weights, temperature=temperature)
    assert np.allclose(sampler.weights, [1, 4 ** (1 / temperature), 9 ** (1 / temperature), 0], rtol=1e-6)
    sampler.update([0], [16.0])
    assert np.isclose(sampler.weights[0], 16 ** (1 / temperature))
    assert sampler.identity["temperature"] == temperature


def test_updates_take_effect_with_the_next_epoch() -> None:
    sampler, untouched = (WeightedSampler(100, seed=1) for _ in range(2))
    found = []
    for record in sampler:
        found.append(record)
        sampler.update([record], [0.01 if record % 2 else 1.0])
    assert found == list(untouched)
    assert np.count_nonzero(sampler.order() % 2) == np.count_nonzero(untouched.order() % 2) == 50  # this epoch
    assert np.count_nonzero(np.array(list(sampler)) % 2) <= 2
    assert sampler.epoch == 1


def test_importance_weights_make_up_for_the_weights() -> None:
    weights = np.random.default_rng(1).exponential(size=200) + 0.1
    sampler = WeightedSampler(200, weights, num_samples=100_000)
    order = np.concatenate(list(sampler.rank_batches(1000, 0)))
    given = sampler.importance(order)
    assert given.dtype == np.float32 and np.allclose(given * 200 * (weights / weights.sum())[order], 1, rtol=1e-5)
    assert abs(given.mean() - 1) < 1e-3
    numbers = np.random.default_rng(2).normal(size=200)
    assert abs((given * numbers[order]).mean() - numbers.mean()) < 1e-3
    sampler.update(order[:1], [5.0])
    assert np.array_equal(sampler.importance(order), given)  # of the epoch that is read


def test_of_a_record_that_is_named_twice_the_larger_number_counts() -> None:
    sampler = WeightedSampler(5)
    sampler.update([1, 3, 1, 1], [0.25, 2.0, 0.75, 0.5])
    assert sampler.weights.tolist() == [1, 0.75, 1, 2, 1]
    sampler.update([], [])
    sampler.update(torch.tensor([1]), torch.tensor([0.125], requires_grad=True))
    sampler.update(np.array([3], np.uint8), torch.tensor([3.0], dtype=torch.bfloat16))
    assert sampler.weights.tolist() == [1, 0.125, 1, 3, 1]


def test_weights_may_differ_as_far_as_floats_do() -> None:
    weights = np.array([1e-38, 3e38, 1e-45, 0], np.float32)
    sampler = WeightedSampler(4, weights, num_samples=1000)
    assert sampler.order().tolist() == [1] * 1000 and sampler.weights[2] > 0
    sampler.set_weights(np.array([1e-38, 1e-45, 1e-45, 0]))
    assert set(sampler.order(1).tolist()) == {0, 1, 2}  # no float is smaller than 1e-38
    sampler.set_weights([False, True, False, True])
    assert sorted(sampler.order(2).tolist()) == [1] * 500 + [3] * 500


def test_only_one_epoch_is_read_at_a_time() -> None:
    sampler = WeightedSampler(100_000)
    first = sampler.rank_batches(10, 0)
    next(first)
    order = sampler.order(1)
    next(sampler.rank_batches(10, 1))
    assert np.array_equal(sampler.order(1), order)
    with pytest.raises(UsageError, match="epoch: 0 is still read, but epoch 1 has begun"):
        list(first)


@pytest.mark.parametrize("later", [False, True])
def test_a_state_holds_the_weights_of_its_epoch_and_of_the_next(later: bool) -> None:
    sampler = WeightedSampler(64, np.arange(64), 2, rank=0, world_size=2, num_samples=40)
    taken = []
    for record in sampler:
        taken.append(record)
        if later or len(taken) < 4:
            sampler.update([record], [100.0])
        if len(taken) == 7:
            break
    state = saved(sampler.state_dict())
    assert ("shares" in state) and len(state["weights"]) == 64
    rest, following = list(iter_from(sampler, state)), list(sampler)
    for world_size in (1, 2):
        again = [WeightedSampler(64, seed=2, rank=r, world_size=world_size, num_samples=40) for r in range(world_size)]
        for rank in again:
            rank.load_state_dict(state)
        copies = pickle.loads(pickle.dumps(again))
        for ranks in (again, copies):
            read = [list(rank) for rank in ranks]
            assert (read[0] if world_size == 2 else read[0][::2]) == rest
            assert list(ranks[0])[:: 2 // world_size] == following
    assert plain(saved(state)) == plain(state)


def iter_from(sampler: WeightedSampler, state: dict[str, Any]) -> WeightedSampler:
    sampler.load_state_dict(state)
    return sampler


def test_a_state_between_epochs_holds_one_set_of_weights() -> None:
    sampler = WeightedSampler(10, seed=2)
    list(sampler)
    sampler.update([3], [0.0])
    state = saved(sampler.state_dict())
    assert "shares" not in state
    again = WeightedSampler(10, seed=2)
    again.load_state_dict(state)
    following = list(again)
    assert 3 not in following and following == list(sampler)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": None}, "has weights object of shape"),
        ({"weights": torch.zeros(9)}, r"has weights float32 of shape \(9,\), not 10 numbers"),
        ({"weights": torch.ones(10, dtype=torch.float64)}, "has weights float64"),
        ({"weights": torch.full((10,), torch.nan)}, "weights that are not numbers from 0"),
        ({"weights": torch.zeros(10)}, "weights that are not numbers from 0, some above"),
        ({"shares": -torch.ones(10, dtype=torch.int32)}, "shares that are not numbers from 0"),
        ({"temperature": 2.0}, "temperature is 2.0 in the state, 1.0 here"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    sampler = WeightedSampler(10, np.arange(10))
    state = {**sampler.state_at(1, 4), **change}
    with pytest.raises(UsageError, match=f"state: .*{message}"):
        sampler.load_state_dict(state)
    assert sampler.weights.tolist() == list(range(10)) and sampler.epoch == 0


def test_a_subset_has_the_numbers_of_its_records(sorted_pack: Path) -> None:
    records = np.array([100, 3, 77, 50])
    sampler = WeightedSampler(126, np.arange(126), indices=records)
    assert sampler.weights.tolist() == records.tolist()
    sampler.update([77, 3], [0.0, 9.0])
    assert sampler.weights.tolist() == [100, 9, 0, 50] and 77 not in list(sampler)
    assert np.allclose(sampler.importance([50, 3]), [159 / 4 / 50, 159 / 4 / 9])
    for wrong, message in ((5, "has record 5, which this sampler does not read"), (125, "has record 125")):
        with pytest.raises(UsageError, match=message):
            sampler.update([3, wrong], [1.0, 1.0])
    some = PackedDataset(sorted_pack, indices=records)
    own = WeightedSampler(some, [0.0, 1.0, 2.0, 3.0])
    of_loader = own.of_pack()
    assert isinstance(of_loader, WeightedSampler)
    of_loader.update([100, 50], [7.0, 4.0])
    own.update([1], [5.0])  # the dataset's number of record 3
    assert own.weights.tolist() == of_loader.weights.tolist() == [7, 5, 2, 4]
    of_loader.set_weights(np.arange(126))
    assert own.weights.tolist() == records.tolist()
    own.set_weights([1, 2, 3, 4])
    assert records[own.order()].tolist() == of_loader.order().tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1, 2]}, r"weights: must be 3 numbers, one per record, got shape \(2,\)"),
        ({"weights": [0, 0, 0]}, "weights: are all 0"),
        ({"weights": [1, -1, 0]}, "weights: must be finite numbers from 0"),
        ({"weights": [1, np.nan, 0]}, "weights: must be finite numbers from 0"),
        ({"weights": ["a", "b", "c"]}, "weights: must be numbers, got <U1"),
        ({"temperature": 0}, "temperature: must be a number above 0, got 0"),
        ({"temperature": "hot"}, "temperature: .*got 'hot'"),
        (
            {"temperature": 0.01, "weights": [1, 2, 1e9]},
            r"weights: \(1 / 0.01\)-th powers are above 3e38; use a larger",
        ),
        ({"num_samples": 0}, "num_samples: .* got 0"),
        ({"num_samples": 1 << 31}, "num_samples: .* to 1073741824"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WeightedSampler(3, **options)


@pytest.mark.parametrize(
    ("records", "losses", "message"),
    [
        ([0, 3], [1, 1], "indices: must be from 0 to 2, got 0 to 3"),
        ([0, -1], [1, 1], "indices: must be from 0 to 2, got -1 to 0"),
        ([0.0], [1], r"indices: must be record numbers \(n,\), got float64"),
        ([[0]], [[1]], r"indices: .*shape \(1, 1\)"),
        ([0, 1], 0.5, r'losses: must be one number per record, \(2,\), got shape \(\); .*reduction="none"'),
        ([0, 1], [0.5, np.nan], "losses: must be finite numbers from 0; look for NaN in the loss"),
        ([0, 1], [0.5, np.inf], "losses: must be finite"),
        ([0, 1], [0.5, -0.1], "losses: must be finite numbers from 0"),
    ],
)
def test_updates_that_cannot_be_are_refused_and_change_nothing(records: Any, losses: Any, message: str) -> None:
    sampler = WeightedSampler(3)
    with pytest.raises(UsageError, match=message):
        sampler.update(records, losses)
    assert sampler.weights.tolist() == [1, 1, 1]


def test_nothing_to_draw_and_nothing_begun() -> None:
    sampler = WeightedSampler(3)
    with pytest.raises(UsageError, match="importance: is known when an epoch has begun"):
        sampler.importance([0])
    sampler.update([0], [0.0])
    next(iter(sampler))
    with pytest.raises(UsageError, match="whose weight is 0 in this epoch"):
        sampler.importance([1, 0])
    sampler.update([1, 2], [0.0, 0.0])
    with pytest.raises(UsageError, match="weights: are all 0: there is nothing to draw; add a small constant"):
        list(sampler)


def test_a_few_changes_are_redrawn_as_all_would_be() -> None:
    """Only blocks with changed weights are computed again."""
    rng = np.random.default_rng(0)
    sampler = WeightedSampler(5000, rng.random(5000), num_samples=700)
    for epoch in range(6):
        list(sampler.rank_batches(100, epoch))
        whole = _Table(5000)
        whole.replace(lambda part: sampler.weights[part])
        sampler.update(rng.integers(0, 5000, 9), rng.random(9) * 2.0 ** (epoch - 3))  # the scale changes, too
        whole.replace(lambda part: sampler.weights[part])
        whole.draw(epoch + 1)
        sampler._table.draw(epoch + 1)
        assert np.array_equal(sampler._table.shares, whole.shares)
        assert np.array_equal(sampler._table.ends, whole.ends)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_class_weights_are_those_of_a_balanced_sampler(sorted_pack: Path, power: float) -> None:
    """126 records: 90 ants, 30 bees, 6 cats."""
    pack = open_pack(sorted_pack)
    weights = class_weights(pack, power)
    assert np.allclose(weights, np.repeat([(6 / 90) ** power, (6 / 30) ** power, 1], [90, 30, 6]))
    several = [np.bincount(pack.column("label")[WeightedSampler(pack, weights).order(e)]) for e in range(100)]
    balanced = [np.bincount(pack.column("label")[BalancedSampler(pack, power).order(e)]) for e in range(100)]
    assert np.abs(np.mean(several, axis=0) - np.mean(balanced, axis=0)).max() < 0.5


def test_class_weights_of_the_effective_number_of_images(boxes_pack: Path) -> None:
    classes = [0] * 90 + [1] * 30 + [2] * 6
    effective = [(1 - 0.99**count) / (1 - 0.99) for count in (90, 30, 6)]
    weights = class_weights(classes, beta=0.99)
    assert np.allclose(weights, np.repeat([effective[2] / n for n in effective], [90, 30, 6]))
    assert np.allclose(class_weights(classes, beta=1 - 1e-12), class_weights(classes), rtol=1e-6)
    assert (class_weights(classes, beta=0) == 1).all()
    assert len(class_weights(open_pack(boxes_pack))) == 12
    some = PackedDataset(boxes_pack, indices=[3, 4])
    assert len(WeightedSampler(some, class_weights(some))) == 2
    for options, message in (({"power": 2}, "power: .*got 2"), ({"beta": 1.0}, "beta: .*got 1.0; write 0.999")):
        with pytest.raises(UsageError, match=message):
            class_weights(classes, **options)


def test_a_curriculum_adds_the_harder_records(sorted_pack: Path) -> None:
    pack = open_pack(sorted_pack)
    width = pack.column("width")
    for share in (0.01, 0.5, 1.0):
        chosen = curriculum_weights(pack, "width", share)
        assert chosen.sum() == max(1, round(share * 126)) and width[chosen].max() <= min([9, *width[~chosen]])
    assert curriculum_weights(3, [np.nan, 0.5, 0.1], 0.5).tolist() == [False, True, True]
    some = PackedDataset(sorted_pack, indices=[9, 3])
    sampler = WeightedSampler(some, curriculum_weights(some, [0.3, 0.1], 0.5), num_samples=4)
    assert sampler.order().tolist() == [1] * 4
    for data, by, share, message in (
        (pack, "width", 0, "share: must be a number above 0, and 1 at most, got 0"),
        (pack, "path", 0.5, "by: must have one number per record, but the column 'path' has lists or text"),
        (pack, [1, 2], 0.5, "by: has 2 numbers for 126 records"),
        (pack, "girth", 0.5, "there is no column 'girth'"),
        (3, "width", 0.5, "by: is the column 'width', but data is not a pack"),
        (3, [[1], [2]], 0.5, r"got shape \(2, 1\)"),
    ):
        with pytest.raises(UsageError, match=message):
            curriculum_weights(data, by, share)


def test_a_weighted_order_is_another_one_than_a_shuffle() -> None:
    assert list(WeightedSampler(50)) != list(ShuffleSampler(50))
