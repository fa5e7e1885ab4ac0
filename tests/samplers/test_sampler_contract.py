"""What every sampler promises: an order pure in (seed, epoch), refusals that quote the value, pickles, subsets."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sampler_kinds import KINDS, SHUFFLED, WITHOUT_REPLACEMENT

import packer.samplers
from packer.errors import UsageError
from packer.samplers import BlockShuffleSampler, SequentialSampler, ShuffleSampler
from packer.samplers.order import records_in


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_depends_on_seed_and_epoch_alone(kind: str) -> None:
    one, other = KINDS[kind](500, 3, rank=0, world_size=1), KINDS[kind](500, 3, rank=2, world_size=5)
    first = one.order(7)
    assert first.shape == (500,) and first.dtype == np.int32
    one.set_epoch(7)
    list(other)
    assert np.array_equal(one.order(), first) and np.array_equal(other.order(7), first)
    assert np.array_equal(pickle.loads(pickle.dumps(one)).order(), first)
    assert list(one) == first.tolist()
    one.order(1)[:] = 0
    assert np.array_equal(one.order(), first)


@pytest.mark.parametrize("kind", SHUFFLED)
def test_other_seeds_and_epochs_have_other_orders(kind: str) -> None:
    orders = [tuple(KINDS[kind](100, seed).order(epoch)) for seed in range(12) for epoch in range(12)]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("kind", WITHOUT_REPLACEMENT)
def test_every_record_is_there_once_for_every_n(kind: str) -> None:
    for n in range(1, 301):
        assert np.array_equal(np.sort(KINDS[kind](n).order(n)), np.arange(n))


@pytest.mark.parametrize("kind", WITHOUT_REPLACEMENT)
def test_a_subset_is_sampled_and_nothing_else(kind: str) -> None:
    records = np.flatnonzero(np.arange(200) % 3 == 1)
    sampler = KINDS[kind](200, indices=records)
    assert (len(sampler), sampler.num_records, sampler.num_indices) == (67, 200, 67)
    assert sorted(sampler) == records.tolist()
    assert repr(sampler).endswith("67 of 200 records, seed 0, rank 0 of 1>")


@pytest.mark.parametrize("kind", KINDS)
def test_samples_at_any_positions_are_those_of_the_order(kind: str) -> None:
    """At none, too: the images of a mosaic or a pair are drawn so."""
    sampler = KINDS[kind](700, 3)
    whole = sampler.samples_at(2)(np.arange(700))
    assert np.array_equal(records_in(whole), sampler.order(2))
    for count in (0, 1, 400):
        positions = np.random.default_rng(count).integers(0, 700, count)
        assert np.array_equal(sampler.samples_at(2)(positions), whole[positions])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_many_records_are_parts_of_the_order(kind: str, drop_last: bool) -> None:
    """They are computed in pieces, which end elsewhere than batches and epochs."""
    records, ranks, batch = np.arange(100_000, 50_000, -1)[: 40_000 + 1], 3, 700
    order = KINDS[kind](100_001, 5, indices=records).order(4)
    found = [
        list(
            KINDS[kind](100_001, 5, indices=records, drop_last=drop_last, rank=rank, world_size=ranks).rank_batches(
                batch, 4, 2100
            )
        )
        for rank in range(ranks)
    ]
    each = [np.stack(batches, axis=1).ravel() for batches in zip(*found, strict=True)]
    end = len(order) // 2100 * 2100 if drop_last else len(order) + -len(order) % ranks
    assert np.array_equal(np.concatenate(each), np.resize(order, end)[2100:])


def test_a_sequence_of_chosen_records_stays_as_given() -> None:
    assert list(KINDS["sequential"](10, indices=[7, 2, 9])) == [7, 2, 9]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "indices: is empty"),
        ([0, 10], "indices: must be from 0 to 9, got 0 to 10"),
        ([-1, 3], "indices: must be from 0 to 9, got -1 to 3"),
        ([1, 2, 1], "indices: repeats 1 record"),
        ([True] * 10, r"got bool of shape \(10,\); convert a mask with numpy.flatnonzero"),
        ([0.0, 1.0], r"got float64 of shape \(2,\); write a list of integers"),
        ({1, 2}, "write a list of integers"),
        ([[1], [2]], r"shape \(2, 1\)"),
    ],
)
def test_records_that_cannot_be_are_refused(records: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KINDS["shuffle"](10, indices=records)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("shuffle", {"seed": -1}, "seed: .*got -1"),
        ("shuffle", {"seed": 1 << 64}, "seed: .* from 0 to 18446744073709551615"),
        ("shuffle", {"seed": "a"}, "seed: must be an integer, got 'a'"),
        ("balanced", {"seed": 1.5}, "seed: .*got 1.5"),
    ],
)
def test_options_that_cannot_be_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KINDS[kind](10, **options)


@pytest.mark.parametrize("epoch", [-1, 0.5, None, "1"])
def test_epochs_that_cannot_be_are_refused(epoch: Any) -> None:
    sampler = KINDS["shuffle"](10)
    with pytest.raises(UsageError, match="epoch"):
        sampler.set_epoch(epoch)
    if epoch is not None:
        with pytest.raises(UsageError, match="epoch"):
            sampler.order(epoch)


@pytest.mark.parametrize("data", [None, 3.5, "no" and object()])
def test_data_without_a_length_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="data: must be an integer"):
        KINDS["shuffle"](data)


@pytest.mark.parametrize("kind", [ShuffleSampler, BlockShuffleSampler, SequentialSampler])
def test_a_path_is_not_a_pack(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"data: must be a pack, .* got 'a.lmdb'; open it first"):
        kind("a.lmdb")


def test_whatever_has_a_length_is_sampled() -> None:
    assert sorted(KINDS["shuffle"](["a", "b"])) == [0, 1]


def test_samplers_import_no_torch() -> None:
    code = "import sys, packer.samplers as s; list(s.ShuffleSampler(9)); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_algorithm_says_when_to_use_it_and_when_not() -> None:
    for name in ("ShuffleSampler", "SequentialSampler", "BlockShuffleSampler", "BalancedSampler", "WeightedSampler"):
        sampler = getattr(packer.samplers, name)
        text = (inspect.getdoc(sampler) or "") + (sys.modules[sampler.__module__].__doc__ or "")
        assert "Use it for" in text and ("Do not" in text or "Drawbacks" in text)
    assert all(getattr(packer.samplers, name).__doc__ for name in packer.samplers.__all__)
