"""MixtureSampler: exact shares, each record once before any twice, the same at any world size."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from packer import join_packs
from packer.errors import UsageError
from packer.samplers import MixtureSampler, subset
from packer.samplers.order import records_in
from packer.samplers.shares import MOST, WINDOW, samples_before, whole_weights

COUNTS, SHARES = (1000, 50, 300), (0.5, 0.2, 0.3)


def mixture(counts: Any = COUNTS, weights: Any = SHARES, seed: int = 3, **options: Any) -> MixtureSampler:
    return MixtureSampler(counts, weights, seed, **{"rank": 0, "world_size": 1, **options})


def packs_of(sampler: MixtureSampler, records: Any) -> Any:
    """The number of the pack of each record."""
    return np.searchsorted(sampler._firsts, records, side="right") - 1


@pytest.mark.parametrize("samples", [1350, 512, 100, 1700, 7, 5120])
def test_each_pack_has_its_share_and_gives_each_record_once_before_any_twice(samples: int) -> None:
    sampler = mixture(num_samples=samples)
    orders = [sampler.order(epoch) for epoch in range(max(4, 6000 // samples))]
    records = np.concatenate(orders)
    packs = packs_of(sampler, records)
    positions = np.arange(1, len(records) + 1)
    for pack, (count, share) in enumerate(zip(COUNTS, SHARES, strict=True)):
        off = np.cumsum(packs == pack) - positions * share
        window_ends = [i for i in range(len(off)) if (i % samples + 1) % WINDOW == 0 or (i + 1) % samples == 0]
        assert np.abs(off[window_ends]).max() < 1 + math.log(len(COUNTS)) and np.abs(off).max() < 40
        own = records[packs == pack] - sampler._firsts[pack]
        for start in range(0, len(own), count):
            assert len(set(own[start : start + count].tolist())) == len(own[start : start + count])
        if len(own) >= 2 * count > 20:
            assert own[:count].tolist() != own[count : 2 * count].tolist() != sorted(own[:count].tolist())


def test_neighbors_are_as_random_as_independent_draws() -> None:
    packs = packs_of(sampler := mixture((5000, 5000), (1, 1)), sampler.order(0))
    for step in (1, 2, 3, 4, 7, 8, 16, 32, 64, 512):
        for rank in range(min(step, 5)):
            ours = packs[rank::step]
            assert abs(ours.mean() - 0.5) < 3 / math.sqrt(len(ours))
            repeats = (ours[1:] == ours[:-1]).mean()
            assert abs(repeats - 0.5) < max(0.1, 3 / math.sqrt(len(ours)))


@pytest.mark.parametrize("drop_last", [True, False])
def test_every_world_size_reads_the_same_and_resumes_what_another_left(drop_last: bool) -> None:
    def ranks(world: int) -> list[MixtureSampler]:
        return [mixture(rank=rank, world_size=world, num_samples=1387, drop_last=drop_last) for rank in range(world)]

    expected = mixture(num_samples=1387)
    for world in range(1, 17):
        for other in (1, 7, world, 16) if drop_last else range(1, 17):
            stop = math.lcm(world, other) * max(1, 700 // math.lcm(world, other))
            here, there = ranks(world), ranks(other)
            got = np.empty(stop, np.int64)
            for rank, sampler in enumerate(here):
                sampler.set_epoch(5)
                numbers = iter(sampler)
                got[rank::world] = [next(numbers) for _ in range(stop // world)]
                assert sampler.state_dict()["position"] == stop // world * world
            for sampler in there:
                sampler.load_state_dict(here[0].state_dict())
            for epoch in (5, 6):
                rest = np.stack([list(sampler) for sampler in there], axis=1).ravel()
                order = expected.order(epoch)
                wanted = order[: 1387 // other * other] if drop_last else np.resize(order, 1387 + -1387 % other)
                assert np.array_equal(np.concatenate([got, rest]) if epoch == 5 else rest, wanted)


def test_positions_far_from_the_start() -> None:
    sampler = mixture((1 << 33, 3), (1 - 1e-9, 1e-9), num_samples=1 << 40)
    assert sampler.weights == (999999999, 1) and sum(sampler.weights) <= MOST
    positions = np.arange((1 << 40) - 100, 1 << 40)
    pack, turn = sampler.turns(1000, positions)
    before = samples_before(sampler.weights, 1000 * (1 << 40) + positions + 1)
    for k in range(2):
        exact = Fraction((1001 * (1 << 40)) * sampler.weights[k], sum(sampler.weights))
        assert abs(before[k, -1] - exact) < 2
        assert not (pack == k).any() or turn[pack == k].max() + 1 == before[k, -1]
    records = records_in(sampler.samples_at(1000)(positions))
    assert (records >= 0).all() and (records < (1 << 33) + 3).all()


def test_counts_never_fall_and_add_up() -> None:
    random = np.random.default_rng(0)
    for packs in (1, 2, 7, 40):
        weights = random.integers(1, 1000, packs).tolist()
        positions = np.arange(3000)
        before = samples_before(weights, positions)
        assert np.array_equal(before.sum(axis=0), positions) and (np.diff(before, axis=1) >= 0).all()
        off = before - np.outer(np.array(weights) / sum(weights), positions)
        assert np.abs(off).max() < 1 + math.log(packs)


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ((0.7, 0.3), (7, 3)),
        ((70, 30), (7, 3)),
        ((np.float32(0.25), 0.75), (1, 3)),
        ((1, 1, 1), (1, 1, 1)),
        ((1_281_167, 500), (1_281_167, 500)),
        ((0.1, 0.2), (1, 2)),
        ((1e300, 1e300), (1, 1)),
        ((5,), (1,)),
    ],
)
def test_decimal_weights_are_exact(weights: Any, whole: tuple[int, ...]) -> None:
    assert whole_weights(weights, len(weights)) == whole


def test_other_weights_are_exact_to_a_billionth() -> None:
    whole = whole_weights((1 / 3, 2 / 3, math.pi), 3)
    assert sum(whole) <= MOST
    assert np.allclose(np.array(whole) / sum(whole), np.array([1 / 3, 2 / 3, math.pi]) / (1 + math.pi), atol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": (1, 0, 1)}, "weights: must be positive numbers, got 0"),
        ({"weights": (1, -0.5, 1)}, "weights: must be positive numbers, got -0.5"),
        ({"weights": (1, math.nan, 1)}, "got nan"),
        ({"weights": (1, math.inf, 1)}, "got inf"),
        ({"weights": (1, "2", 1)}, "got '2'"),
        ({"weights": (1, True, 1)}, "got True"),
        ({"weights": 1}, "weights: must be a list of numbers, got 1"),
        ({"weights": {"a": 1}}, "weights: must be a list of numbers"),
        ({"weights": (1, 1)}, "weights: has 2 numbers for 3 packs"),
        ({"weights": (1, 1e-12, 1)}, "weights: are too far apart"),
        ({"counts": (5, 0, 5)}, "data: must be an integer at least 1, got 0"),
        ({"counts": 100}, "data: must be a pack made by packer.join_packs, .* got 100; join the packs first"),
        ({"counts": ("a.lmdb", "b.lmdb")}, "data: must be a pack made by packer.join_packs"),
        ({"num_samples": 0}, "num_samples: must be an integer at least 1, got 0"),
        ({"indices": range(1040)}, "indices: has no record of 1 pack, such as number 2; leave those packs out"),
        ({"counts": (1, 1, 1), "rank": 0, "world_size": 4}, "3 records for 4 ranks"),
    ],
)
def test_what_cannot_be_mixed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mixture(**options)


def test_a_subset_of_each_pack_is_mixed(sorted_pack: Any, shuffled_pack: Any) -> None:
    joined = join_packs([sorted_pack, shuffled_pack])
    bees = subset(joined, lambda columns: columns["label"] == 1)
    assert len(bees) == 60 and np.count_nonzero(bees < 126) == 30
    sampler = MixtureSampler(joined, (3, 1), indices=bees[::-1], num_samples=120)
    assert "60 of 252 records, 120 samples per epoch, seed 0" in repr(sampler)
    drawn = sampler.order(0)
    assert sorted(set(drawn.tolist())) == bees.tolist()
    assert np.count_nonzero(drawn < 126) == 90
    assert sampler.identity["pack"] == joined.manifest.digest
    with pytest.raises(
        UsageError, match=f"indices: has no record of 1 pack, such as {re.escape(joined.packs[1].path)}"
    ):
        MixtureSampler(joined, (3, 1), indices=bees[bees < 126])


def test_a_state_is_for_these_packs_and_weights(sorted_pack: Any, shuffled_pack: Any) -> None:
    one = MixtureSampler(join_packs([sorted_pack, shuffled_pack]), (0.7, 0.3))
    with pytest.raises(UsageError, match="weights is '7,3' in the state, '1,1' here"):
        MixtureSampler(join_packs([sorted_pack, shuffled_pack]), (1, 1)).load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="pack is '"):
        MixtureSampler(join_packs([shuffled_pack, sorted_pack]), (0.7, 0.3)).load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="packs is '1000,50,300' in the state, '1000,51,299' here"):
        mixture((1000, 51, 299)).load_state_dict(mixture().state_dict())
