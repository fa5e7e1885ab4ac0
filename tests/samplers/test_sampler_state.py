"""Resume: from every position, by another number of ranks, twice; and refusal of a state that does not fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from sampler_kinds import KINDS, SHUFFLED, plain, saved

from packer.errors import UsageError
from packer.samplers import BlockShuffleSampler, Sampler, ShuffleSampler

N = 97


def run(
    kind: str, batch_size: int, world_size: int, state: dict[str, Any] | None, drop_last: bool
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Each global batch from a state on, in the order of its positions, and the state after it, of the last rank."""
    ranks = [KINDS[kind](N, drop_last=drop_last, rank=r, world_size=world_size) for r in range(world_size)]
    size = batch_size * world_size
    ((epoch, position),) = {s.check_state(state, size) if state else (0, 0) for s in ranks}
    for parts in zip(*(s.rank_batches(batch_size, epoch, position) for s in ranks), strict=True):
        position = min(position + size, N)
        yield np.stack(parts, 1).ravel().tolist(), ranks[-1].state_at(epoch, position, size)


def fresh(kind: str, epoch: int, drop_last: bool, batch: int) -> dict[str, Any]:
    return KINDS[kind](N, drop_last=drop_last).state_at(epoch, 0, batch)


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
            stored = saved(state)
            assert plain(stored) == plain(state) == plain(pickle.loads(pickle.dumps(state)))
            for world_size in worlds:
                resumed = list(run(kind, size // world_size, world_size, stored, drop_last))
                for (batch, after), (there, state_there) in zip(resumed, full[number:], strict=True):
                    # the last batch of an epoch may be padded, by other samples for other numbers of ranks
                    assert batch[: len(there)] == there and len(batch) - len(there) < world_size
                    assert plain(after) == plain(state_there)


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


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    assert len(json.dumps(state)) < 1000
    copy: dict[str, Any] = json.loads(json.dumps(state))
    return copy


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", SHUFFLED)
def test_a_plain_iteration_resumes_at_every_number(kind: str, rank: int, drop_last: bool) -> None:
    """The state without arguments, as torchdata asks for it."""
    sampler, again = (KINDS[kind](N, rank=rank, world_size=2, drop_last=drop_last) for _ in range(2))
    sampler.set_epoch(4)
    whole, following = list(sampler), list(sampler)
    assert whole != following and len(whole) == len(sampler)
    for count in range(1, len(whole) + 1):
        sampler.set_epoch(4)
        numbers: Any = iter(sampler)
        taken = list(islice(numbers, count))
        state = saved(sampler.state_dict())
        assert plain(state) == plain(numbers.state_dict()) and state["position"] == min(2 * count, N)
        again.load_state_dict(state)
        if count < len(whole):
            assert taken + list(again) == whole
        assert list(again) == following  # also where nothing was left


@pytest.mark.parametrize("kind", SHUFFLED)
def test_each_iteration_is_the_next_epoch(kind: str) -> None:
    sampler = KINDS[kind](N)
    epochs = [sampler.order(epoch).tolist() for epoch in range(9)]
    assert [list(sampler) for _ in range(2)] == epochs[:2]
    next(iter(sampler))  # has begun
    for _ in range(3):
        iter(sampler)  # has not
    assert sampler.epoch == 2 and list(sampler) == epochs[3]
    sampler.set_epoch(3)
    assert list(sampler) == epochs[3] and list(sampler) == epochs[4]
    late = iter(sampler)
    sampler.set_epoch(7)  # before its first number
    assert list(late) == epochs[7] and list(sampler) == epochs[8]


def test_an_epoch_may_be_set_while_another_is_being_read() -> None:
    sampler = ShuffleSampler(N)
    numbers = iter(sampler)
    next(numbers)
    sampler.set_epoch(0)
    next(numbers)
    sampler.set_epoch(2)
    assert len(list(numbers)) == N - 2 and list(sampler) == sampler.order(2).tolist()
    left = iter(sampler)
    next(left)
    sampler.set_epoch(1)  # of a loop that was left
    assert list(sampler) == sampler.order(1).tolist()


def test_set_epoch_after_a_state_is_loaded() -> None:
    """That of the state keeps its position, once; another one begins at its start."""
    sampler = ShuffleSampler(N)
    whole = sampler.order(2).tolist()
    middle, end = sampler.state_at(2, 24), sampler.state_at(2, N)
    for state, rest in ((middle, whole[24:]), (end, [])):
        sampler.load_state_dict(state)
        sampler.set_epoch(2)
        assert list(sampler) == rest
        sampler.set_epoch(2)
        assert list(sampler) == whole
        sampler.load_state_dict(state)
        sampler.set_epoch(5)
        assert list(sampler) == sampler.order(5).tolist()


def test_a_state_resumes_on_another_number_of_ranks() -> None:
    order = ShuffleSampler(96).order(3).tolist()
    state = ShuffleSampler(96, rank=0, world_size=2).state_at(3, 24)
    ranks = [ShuffleSampler(96, rank=rank, world_size=3) for rank in range(3)]
    for sampler in ranks:
        sampler.load_state_dict(state)
    assert np.stack([list(sampler) for sampler in ranks], 1).ravel().tolist() == order[24:]
    with pytest.raises(UsageError, match=r"position: must be a multiple of .*, 5, got 24"):
        ShuffleSampler(96, rank=0, world_size=5).load_state_dict(state)


def test_an_iterator_is_told_its_own_state() -> None:
    """As torchdata does: an iterator resumed at the end is empty, and the next one is the next epoch."""
    sampler = ShuffleSampler(N)
    for position in (24, N):
        sampler.load_state_dict(sampler.state_at(4, position))
        numbers: Any = iter(sampler)
        numbers.load_state_dict(sampler.state_at(4, position))
        assert numbers.state_dict()["position"] == position
        assert list(numbers) == sampler.order(4)[position:].tolist()
        assert list(sampler) == sampler.order(5).tolist()
        again: Any = iter(sampler)
        again.load_state_dict(sampler.state_at(4, position))
        sampler.set_epoch(7)  # as Lightning does after an epoch's last batch
        assert list(again) == sampler.order(7).tolist()


def test_an_iteration_that_is_never_advanced_takes_nothing_of_a_state() -> None:
    """Lightning calls iter() twice."""
    sampler, whole = ShuffleSampler(N), ShuffleSampler(N).order(1).tolist()
    sampler.load_state_dict(sampler.state_at(1, 24))
    iter(sampler)
    last: Any = iter(sampler)
    assert last.state_dict()["position"] == 24
    sampler.set_epoch(1)
    assert list(last) == whole[24:]


def put(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {**state, **fields}


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def state_now(sampler: Sampler) -> tuple[Any, ...]:
    return sampler.epoch, sampler.state_dict(), tuple(sampler.order())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(version=3), "has version 3, but this packer knows 2; install a newer packer"),
        (put(version="1"), "no valid version: '1'"),
        (put(version=True), "no valid version: True"),
        (without("version"), "no valid version: None"),
        (put(seed=1), "seed is 1 in the state, 0 here"),
        (put(seed=False), "seed is False in the state, 0 here"),
        (put(kind="shuffle"), "kind is 'shuffle' in the state, 'block' here"),
        (put(num_records=98), "num_records is 98 in the state, 97 here"),
        (put(num_samples=98), "num_samples is 98"),
        (put(drop_last=True), "drop_last is True in the state, False here"),
        (put(global_batch=4), "fields that a block sampler does not have: global_batch"),
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
        (put(position=5), "position: must be a multiple of the samples of all ranks at once, 2, got 5"),
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
    sampler = KINDS["block"](N, rank=0, world_size=2)
    sampler.load_state_dict(sampler.state_at(1, 8))
    state, before = sampler.state_dict(), state_now(sampler)
    assert (state["epoch"], state["position"]) == (1, 8)
    with pytest.raises(UsageError, match=f"state: .*{message}"):
        sampler.load_state_dict(change(state))
    assert state_now(sampler) == before


def test_other_subsets_shards_and_weights_are_refused() -> None:
    state = ShuffleSampler(10, indices=[1, 2, 3]).state_dict()
    ShuffleSampler(10, indices=np.array([1, 2, 3], np.uint8)).load_state_dict(state)
    with pytest.raises(UsageError, match="records is"):
        ShuffleSampler(10, indices=[1, 2, 4]).load_state_dict(state)
    state = BlockShuffleSampler([4, 6]).state_dict()
    with pytest.raises(UsageError, match="shards is"):
        BlockShuffleSampler([5, 5]).load_state_dict(state)


def test_positions_between_batches_are_refused() -> None:
    sampler = ShuffleSampler(N, rank=0, world_size=2)
    for position in (3, 98, -1, None):
        with pytest.raises(UsageError, match="position"):
            sampler.state_at(0, position, 4)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="position"):
            sampler.rank_batches(2, start=position)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"batch_size: .*got 0"):
        sampler.rank_batches(0)
