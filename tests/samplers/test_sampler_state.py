"""Resume: from every position, by another number of ranks, twice; and refusal of a state that does not fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sampler_kinds import KINDS, SHUFFLED

from packer.errors import UsageError
from packer.samplers import BlockShuffleSampler, Sampler, ShuffleSampler

N = 97


def run(
    kind: str, batch_size: int, world_size: int, state: dict[str, Any] | None, drop_last: bool
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Each global batch from a state on, in the order of its positions, and the state after it, of the last rank."""
    ranks = [KINDS[kind](N, drop_last=drop_last, rank=r, world_size=world_size) for r in range(world_size)]
    starts = {s.load_state_dict(state, batch_size) if state else 0 for s in ranks}
    position = starts.pop()
    for parts in zip(*(s.rank_batches(batch_size, start=position) for s in ranks), strict=True):
        position = min(position + batch_size * world_size, N)
        yield np.stack(parts, 1).ravel().tolist(), ranks[-1].state_dict(position, batch_size)


def fresh(kind: str, epoch: int, drop_last: bool, batch: int) -> dict[str, Any]:
    sampler = KINDS[kind](N, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return sampler.state_dict(0, batch)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_position_resumes_exactly_at_every_number_of_ranks(kind: str, drop_last: bool) -> None:
    """R14 and R17, with global batches of 1 (every position there is), 4 and 12."""
    for size, worlds in ((1, (1,)), (4, (1, 2, 4)), (12, (1, 2, 3, 4, 6, 12))):
        start = fresh(kind, 2, drop_last, size)
        full = list(run(kind, size, 1, start, drop_last))
        states = [start, *(state for _, state in full)]
        assert states[-1]["position"] == (N - N % size if drop_last else N)
        for number, state in enumerate(states):
            stored = json.loads(json.dumps(state))
            assert stored == state and pickle.loads(pickle.dumps(state)) == state
            for world_size in worlds:
                resumed = list(run(kind, size // world_size, world_size, stored, drop_last))
                for (batch, after), (there, state_there) in zip(resumed, full[number:], strict=True):
                    # the last batch of an epoch may be padded, by other samples for other numbers of ranks
                    assert batch[: len(there)] == there and len(batch) - len(there) < world_size
                    assert after == state_there


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_and_a_third_resume_go_on_exactly(kind: str) -> None:
    full = [batch for batch, _ in run(kind, 12, 1, fresh(kind, 5, True, 12), True)]
    state, got = fresh(kind, 5, True, 12), []
    for world_size, batches in ((2, 1), (3, 3), (12, 2), (1, 99)):
        for _, (batch, after) in zip(
            range(batches), run(kind, 12 // world_size, world_size, state, True), strict=False
        ):
            got.append(batch)
            state = after
    assert got == full


@pytest.mark.parametrize("kind", SHUFFLED)
def test_a_plain_iteration_resumes_once_and_the_next_epoch_is_whole(kind: str) -> None:
    for rank in range(2):
        sampler, whole = KINDS[kind](N, rank=rank, world_size=2), KINDS[kind](N, rank=rank, world_size=2)
        whole.set_epoch(4)
        assert sampler.load_state_dict(whole.state_dict(24, 6), 6) == 24
        sampler.set_epoch(4)  # as every training loop does
        assert list(sampler) == list(whole)[12:]
        assert list(sampler) == list(whole)
        for next_epoch in (sampler, whole):
            next_epoch.set_epoch(5)
        assert list(sampler) == list(whole) and len(sampler) == 49
        sampler.load_state_dict(whole.state_dict(N, 6), 6)
        assert list(sampler) == []
        sampler.load_state_dict(whole.state_dict(24, 6), 6)
        sampler.set_epoch(6)
        assert len(list(sampler)) == 49


def test_an_iteration_that_is_never_advanced_takes_nothing_of_a_state() -> None:
    """Lightning calls iter() twice."""
    sampler, whole = ShuffleSampler(N), ShuffleSampler(N)
    whole.set_epoch(1)
    sampler.load_state_dict(whole.state_dict(24, 6), 6)
    iter(sampler)
    last = iter(sampler)
    sampler.set_epoch(1)
    assert list(last) == list(whole)[24:]


def put(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {**state, **fields}


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def state_now(sampler: Sampler) -> tuple[Any, ...]:
    return sampler.epoch, sampler._start, tuple(sampler.order())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(version=2), "has version 2, but this packer knows 1; install a newer packer"),
        (put(version="1"), "no valid version: '1'"),
        (put(version=True), "no valid version: True"),
        (without("version"), "no valid version: None"),
        (put(seed=1), "seed is 1 in the state, 0 here"),
        (put(seed=False), "seed is False in the state, 0 here"),
        (put(kind="shuffle"), "kind is 'shuffle' in the state, 'block' here"),
        (put(num_records=98), "num_records is 98 in the state, 97 here"),
        (put(num_samples=98), "num_samples is 98"),
        (put(drop_last=True), "drop_last is True in the state, False here"),
        (put(global_batch=8), "global_batch is 8 in the state, 4 here"),
        (put(pack="0" * 64), "pack is '0+' in the state, None here"),
        (put(records="0"), "records is '0' in the state, None here"),
        (put(block=6), "block is 6 in the state, 5 here"),
        (put(window=None), "window is None in the state, 3 here"),
        (put(shards="?"), "shards is"),
        (without("block"), "has no block"),
        (put(power=1.0), "fields that a block sampler does not have: power"),
        (put(epoch=-1), "epoch: .*got -1"),
        (put(epoch="3"), "epoch: .*got '3'"),
        (without("epoch"), "epoch: .*got None"),
        (put(position=5), "position: must be a multiple of the global batch, 4, got 5"),
        (put(position=98), "position: .* from 0 to 97, got 98"),
        (put(position=-4), "position: .*got -4"),
        (put(position=4.0), "position: .*got 4.0"),
        (without("position"), "position: .*got None"),
        (list, "must be a dict as state_dict gives, got list"),
        (lambda state: {}, "no valid version"),
        (lambda state: None, "got NoneType"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: Any, message: str) -> None:
    sampler = KINDS["block"](N)
    sampler.set_epoch(1)
    before = state_now(sampler)
    state = sampler.state_dict(8, 4)
    assert sampler.load_state_dict(state, 4) == 8
    sampler._start = 0
    with pytest.raises(UsageError, match=f"state: .*{message}"):
        sampler.load_state_dict(change(state), 4)
    assert state_now(sampler) == before


def test_other_subsets_shards_and_weights_are_refused() -> None:
    state = ShuffleSampler(10, indices=[1, 2, 3]).state_dict(0, 1)
    ShuffleSampler(10, indices=np.array([1, 2, 3], np.uint8)).load_state_dict(state, 1)
    with pytest.raises(UsageError, match="records is"):
        ShuffleSampler(10, indices=[1, 2, 4]).load_state_dict(state, 1)
    state = BlockShuffleSampler([4, 6]).state_dict(0, 1)
    with pytest.raises(UsageError, match="shards is"):
        BlockShuffleSampler([5, 5]).load_state_dict(state, 1)


def test_positions_between_batches_are_refused() -> None:
    sampler = ShuffleSampler(N, rank=0, world_size=2)
    for position in (3, 98, -1, None):
        with pytest.raises(UsageError, match="position"):
            sampler.state_dict(position, 2)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="position"):
            sampler.rank_batches(2, start=position)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"batch_size: .*got 0"):
        sampler.state_dict(0, 0)
