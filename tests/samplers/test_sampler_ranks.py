"""Ranks: the same number of samples for each, together the whole order, and no empty rank; for every N to 200."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sampler_kinds import KINDS, WITHOUT_REPLACEMENT

from packer.errors import UsageError
from packer.samplers import Sampler, SequentialSampler, ShuffleSampler
from packer.samplers.ranks import Ranks

RANKS = range(1, 17)
BATCHES = range(1, 9)


def each_rank(kind: str, n: int, world_size: int, drop_last: bool) -> list[Sampler]:
    return [KINDS[kind](n, drop_last=drop_last, rank=r, world_size=world_size) for r in range(world_size)]


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_number_of_records_and_ranks_is_shared_out_equally(drop_last: bool) -> None:
    for n in [*range(1, 65), *range(65, 201, 9)]:
        order = ShuffleSampler(n).order().tolist()
        for world_size in RANKS:
            if n < world_size:
                continue
            ranks = each_rank("shuffle", n, world_size, drop_last)
            shares = [list(sampler) for sampler in ranks]
            assert {len(share) for share in shares} == {len(ranks[0])}
            dealt = [shares[p % world_size][p // world_size] for p in range(len(ranks[0]) * world_size)]
            whole = n - n % world_size if drop_last else n + -n % world_size
            assert dealt == (order + order)[:whole]
            assert ranks[0].padded == max(0, whole - n)


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_batch_size_cuts_the_same_global_batches(drop_last: bool) -> None:
    for n in range(1, 201):
        order = ShuffleSampler(n).order().tolist()
        for world_size in (w for w in RANKS if w <= n):
            ranks = each_rank("shuffle", n, world_size, drop_last)
            # beyond 64 records the batch sizes take turns
            for batch_size in BATCHES if n <= 64 else [1 + (n + world_size) % len(BATCHES)]:
                size = batch_size * world_size
                if drop_last and n < size:
                    with pytest.raises(UsageError, match=f"{n} samples do not fill a batch of {batch_size}"):
                        ranks[0].rank_batches(batch_size)
                    continue
                batches = [list(sampler.rank_batches(batch_size)) for sampler in ranks]
                assert {len(b) for b in batches} == {ranks[0].num_batches(batch_size)}
                lengths = [len(batch) for batch in batches[0]]
                assert all(length == batch_size for length in lengths[:-1])
                assert all([len(batch) for batch in of_rank] == lengths for of_rank in batches)
                together = np.stack([np.concatenate(of_rank) for of_rank in batches], axis=1).ravel().tolist()
                expected = order[: len(lengths) * size]
                assert together == expected + order[: -len(expected) % world_size]
                left_out = n - ranks[0].num_batches(batch_size) * size
                assert 0 <= left_out < size if drop_last else left_out <= 0


@pytest.mark.parametrize("kind", WITHOUT_REPLACEMENT)
def test_every_kind_is_disjoint_and_complete(kind: str) -> None:
    for n, world_size in ((16, 16), (60, 4), (96, 3), (200, 8)):
        shares = [list(sampler) for sampler in each_rank(kind, n, world_size, False)]
        assert sorted(record for share in shares for record in share) == list(range(n))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_iterating_and_batches_give_the_same_samples(kind: str, drop_last: bool) -> None:
    for sampler in each_rank(kind, 100, 3, drop_last):
        flat = np.concatenate(list(sampler.rank_batches(4)))
        assert flat.dtype == np.int64
        numbers = list(sampler)
        assert all(isinstance(number, int) for number in numbers)
        assert numbers[: len(flat)] == flat.tolist()
        assert len(numbers) - len(flat) == (len(numbers) % 4 if drop_last else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_records_than_ranks_is_an_error(kind: str) -> None:
    with pytest.raises(UsageError, match="5 records for 6 ranks: some would get no record; use fewer ranks"):
        KINDS[kind](5, rank=0, world_size=6)


def test_an_empty_set_is_an_error() -> None:
    with pytest.raises(UsageError, match="0 records for 1 ranks"):
        ShuffleSampler(0)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (2, 2, "rank: must be below world_size 2, got 2"),
        (1, None, "must be below world_size 1"),
        (-1, 2, "rank: .* got -1"),
        (0, 0, "world_size: .* at least 1, got 0"),
        (0.5, 2, "rank: must be an integer, got 0.5"),
        (True, 2, "rank: .*got True"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank: int, world_size: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SequentialSampler(10, rank=rank, world_size=world_size)


class FakeDistributed:
    """torch.distributed, as far as it is asked."""

    def __init__(self, initialized: bool) -> None:
        self.is_initialized = lambda: initialized
        self.is_available = lambda: True
        self.get_rank = lambda: 3
        self.get_world_size = lambda: 8


@pytest.mark.parametrize("kind", KINDS)
def test_rank_and_world_size_are_those_of_when_an_iteration_begins(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, given = KINDS[kind](80), KINDS[kind](80, rank=1, world_size=2)
    late, later, begun = iter(sampler), iter(sampler), iter(sampler)
    first = next(begun)
    monkeypatch.setitem(sys.modules, "torch.distributed", FakeDistributed(True))
    assert (sampler.rank, sampler.world_size, len(sampler), sampler.num_batches(2)) == (3, 8, 10, 5)
    assert [*late] == sampler.order(1)[3::8].tolist() and [*later] == sampler.order(2)[3::8].tolist()
    assert np.concatenate([*sampler.rank_batches(2)]).tolist() == sampler.order()[3::8].tolist()
    assert [first, *begun] == sampler.order(0).tolist()
    assert (given.rank, given.world_size) == (1, 2) and [*given] == given.order()[1::2].tolist()
    batches = sampler.rank_batches(2)
    monkeypatch.setitem(sys.modules, "torch.distributed", FakeDistributed(False))
    assert np.concatenate([*batches]).tolist() == sampler.order()[3::8].tolist()


def test_more_ranks_than_records_is_an_error_when_an_iteration_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ShuffleSampler(5)
    monkeypatch.setitem(sys.modules, "torch.distributed", FakeDistributed(True))
    for begin in (lambda: next(iter(sampler)), lambda: sampler.rank_batches(1)):
        with pytest.raises(UsageError, match="5 records for 8 ranks"):
            begin()
    assert repr(sampler).endswith("rank 3 of 8>")


def test_a_world_size_without_a_process_group_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler, given = ShuffleSampler(9), ShuffleSampler(9, rank=0, world_size=1)
    assert len(sampler) == 9 == len(list(given))  # no warning: the process group may still come
    with pytest.warns(UserWarning, match="WORLD_SIZE is 2.* rank 0 of 1; call .*init_process_group") as warned:
        assert sorted(sampler) == list(range(9))
        assert len(list(sampler)) == 9
    assert len(warned) == 1
    with monkeypatch.context() as grouped:
        grouped.setitem(sys.modules, "torch.distributed", FakeDistributed(True))
        assert len(list(ShuffleSampler(16))) == 2
    for other in ("1", "0", "", "two"):
        monkeypatch.setenv("WORLD_SIZE", other)
        assert len(list(ShuffleSampler(9))) == 9


def test_the_default_is_what_torch_distributed_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", FakeDistributed(True))
    assert Ranks.of(None, None) == Ranks(3, 8)
    assert Ranks.of(0, 1) == Ranks(0, 1)
    assert (ShuffleSampler(80).rank, ShuffleSampler(80).world_size, len(ShuffleSampler(80))) == (3, 8, 10)
    monkeypatch.setitem(sys.modules, "torch.distributed", FakeDistributed(False))
    assert Ranks.of(None, None) == Ranks(0, 1)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert Ranks.of(None, None) == Ranks(0, 1)
