"""pad=False: every sample once, whatever the number of ranks, and states that resume so."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sampler_kinds import KINDS, plain, saved

from packer.errors import UsageError
from packer.samplers import BlockShuffleSampler, Sampler, SequentialSampler, ShuffleSampler

quick = settings(max_examples=80, deadline=None, derandomize=True)


def uneven(kind: str, n: int, world_size: int) -> list[Sampler]:
    return [KINDS[kind](n, 1, pad=False, rank=rank, world_size=world_size) for rank in range(world_size)]


@quick
@given(some.sampled_from(sorted(KINDS)), some.integers(1, 120), some.integers(1, 9), some.integers(1, 9))
def test_ranks_share_the_order_without_repeating(kind: str, n: int, world_size: int, batch_size: int) -> None:
    ranks = uneven(kind, n, world_size)
    order = KINDS[kind](n, 1).order(3).tolist()
    assert ranks[0].padded == 0
    for rank, sampler in enumerate(ranks):
        sampler.set_epoch(3)
        batches = [batch.tolist() for batch in sampler.rank_batches(batch_size)]
        assert list(chain.from_iterable(batches)) == list(sampler) == order[rank::world_size]
        assert len(sampler) == len(order[rank::world_size])
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert len(batches) == sampler.num_batches(batch_size)


@quick
@given(some.data())
def test_a_stopped_run_goes_on_at_another_number_of_ranks(data: some.DataObject) -> None:
    kind, n, size = data.draw(some.sampled_from(sorted(KINDS))), data.draw(some.integers(1, 100)), 12
    order, position = KINDS[kind](n, 1).order(2).tolist(), 0
    while position < n:
        world_size = data.draw(some.sampled_from([1, 2, 3, 4, 6, 12]))
        ranks = uneven(kind, n, world_size)
        batches = [next(rank.rank_batches(size // world_size, 2, position), np.zeros(0, int)) for rank in ranks]
        for rank, batch in enumerate(batches):
            assert batch.tolist() == order[position : position + size][rank::world_size]
        position = min(position + size, n)
        state = saved(ranks[-1].state_at(2, position, size))
        assert state["pad"] is False
        assert {rank.check_state(state, size) for rank in uneven(kind, n, 3)} == {(2, position)}


def test_a_plain_iteration_resumes_at_every_number() -> None:
    whole = ShuffleSampler(11, 1).order(0).tolist()
    for rank in range(3):
        mine = whole[rank::3]
        for count in range(len(mine)):
            sampler, again = uneven("shuffle", 11, 3)[rank], uneven("shuffle", 11, 3)[rank]
            sampler.set_epoch(0)
            taken = list(islice(sampler, count))
            again.load_state_dict(saved(sampler.state_dict()))
            assert taken + list(again) == mine
    ended = uneven("shuffle", 11, 3)
    states = [[*sampler] and sampler.state_dict() for sampler in ended]
    assert [state["position"] for state in states] == [11] * 3  # a rank with fewer has ended, too
    for sampler in ended:
        sampler.load_state_dict(states[2])
        assert list(sampler) == sampler.order(1)[sampler.rank :: 3].tolist()


def test_more_ranks_than_records() -> None:
    ranks = uneven("sequential", 3, 5)
    assert [list(rank) for rank in ranks] == [[0], [1], [2], [], []]
    assert [rank.num_batches(4) for rank in ranks] == [1, 1, 1, 0, 0]
    with pytest.raises(UsageError, match="0 records for"):
        SequentialSampler(0, pad=False)


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_each_machine_reads_its_own_part(machines: int) -> None:
    here = 4 // machines
    options: Any = {"block": 4, "window": 8, "nodes": 4, "pad": False, "world_size": 4, "local_world_size": here}
    ranks = [BlockShuffleSampler(46, 1, rank=rank, **options) for rank in range(4)]
    shares = [list(rank) for rank in ranks]
    assert sorted(chain.from_iterable(shares)) == list(range(46))
    alone = BlockShuffleSampler(46, 1, nodes=4, block=4, window=8).order(0).tolist()
    # position p belongs to machine p % machines
    assert shares == [alone[rank % here * machines + rank // here :: 4] for rank in range(4)]


def test_it_is_in_the_state_only_if_it_is_chosen() -> None:
    assert "pad" not in ShuffleSampler(10).state_dict()
    assert plain(ShuffleSampler(10, pad=False).state_dict())["pad"] is False
    with pytest.raises(UsageError, match="fields that a shuffle sampler does not have: pad"):
        ShuffleSampler(10).load_state_dict(ShuffleSampler(10, pad=False).state_dict())
    with pytest.raises(UsageError, match="state: has no pad"):
        ShuffleSampler(10, pad=False).load_state_dict(ShuffleSampler(10).state_dict())


def test_what_it_contradicts() -> None:
    with pytest.raises(UsageError, match="pad: is False, for every sample to come once, but drop_last=True"):
        ShuffleSampler(10, pad=False, drop_last=True)
