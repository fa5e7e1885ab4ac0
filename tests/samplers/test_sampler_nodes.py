"""Canonical nodes: the same global batches on any machines, each of which always reads the same part of the pack."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.samplers import BlockShuffleSampler
from packer.samplers.ranks import nodes_of

SHARDS, N = [41, 0, 20, 40], 101


def sampler(nodes: int | None, rank: int = 0, world: int = 1, machines: int = 1, **options: Any) -> BlockShuffleSampler:
    ranks = {"rank": rank, "world_size": world, "local_world_size": world // machines}
    return BlockShuffleSampler(SHARDS, 5, block=7, window=8, nodes=nodes, **ranks, **options)


def machines_of(world: int, nodes: int) -> list[int]:
    return [machines for machines in range(1, world + 1) if world % machines == 0 == nodes % machines]


def every_job(nodes: int, **options: Any) -> Iterator[list[BlockShuffleSampler]]:
    """The ranks of each world size from 1 to 16, with every split into machines that divides `nodes`."""
    for world in range(1, 17):
        for machines in machines_of(world, nodes):
            yield [sampler(nodes, rank, world, machines, **options) for rank in range(world)]


def samples(job: list[BlockShuffleSampler], batch_size: int, epoch: int, start: int) -> list[int]:
    """What all ranks read from `start` on, in the order of the positions."""
    share = {ranks._ranks().first: list(ranks.rank_batches(batch_size, epoch, start)) for ranks in job}
    assert len({tuple(map(len, batches)) for batches in share.values()}) == 1
    together = [np.concatenate([*share[first], np.empty(0, np.int64)]) for first in range(len(job))]
    return np.stack(together, axis=1).ravel().tolist()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("nodes", "starts"), [(12, 8), (35, 2), (48, 2)])
def test_global_batches_are_those_of_one_process(nodes: int, starts: int, drop_last: bool) -> None:
    """R14 and R17, from every position where a job of any world size may have stopped."""
    order = sampler(nodes).order(3).tolist()
    assert sorted(order) == list(range(N))
    for job in every_job(nodes, drop_last=drop_last):
        world = len(job)
        for number, start in list(enumerate(range(0, N, world)))[:starts]:
            batch = [size for size in (1, 2, 3, 5) if number % size == 0][-1]
            end = N - N % (batch * world) if drop_last else N
            together = samples(job, batch, 3, start)
            assert together[: N - start] == order[start:end]
            assert len(together) == (end if drop_last else N + -N % world) - start


@pytest.mark.parametrize("nodes", [6, 16])
def test_a_state_resumes_on_every_other_job(nodes: int) -> None:
    order = sampler(nodes).order(1).tolist()
    jobs = list(every_job(nodes))
    others: dict[int, set[int]] = {world: set() for world in range(1, 17)}
    for size in (12, 16, 30, 55, 63, 70, 72, 78, 80, 88, 91):
        able = [job for job in jobs if size % len(job) == 0]
        states = [json.loads(json.dumps(job[-1].state_at(1, size, size))) for job in able]
        assert len(able) > 2 and all(state == states[0] for state in states)
        for job in able:
            rest = samples(job, size // len(job), *job[0].check_state(states[0], size))
            assert rest[: N - size] == order[size:]
            others[len(job)] |= {len(other) for other in able if len(other) != len(job)}
    assert min(map(len, others.values())) > 4


def test_a_plain_iteration_resumes_on_another_job() -> None:
    order = sampler(6).order(0).tolist()
    first = [iter(sampler(6, rank, 6, 3)) for rank in range(6)]
    taken = [next(numbers) for numbers in first * 4]
    state = first[5].state_dict()  # type: ignore[attr-defined]
    assert state["position"] == 24 and sorted(taken) == sorted(order[:24])
    rest = []
    for rank in range(4):
        other = sampler(6, rank, 4, 2)
        other.load_state_dict(state)
        rest += list(other)
    assert set(taken) | set(rest) == set(range(N)) and len(rest) == N - 24 + -N % 4


@pytest.mark.parametrize("nodes", [6, 16])
@pytest.mark.parametrize("indices", [None, np.arange(0, N, 2)])
def test_each_machine_reads_the_same_part_in_every_epoch(nodes: int, indices: np.ndarray | None) -> None:
    for job in every_job(nodes, indices=indices):
        machines = job[0]._ranks().nodes
        for epoch in range(2):
            parts: list[set[int]] = [set() for _ in range(machines)]
            for ranks in job:
                ranks.set_epoch(epoch)
                parts[ranks._ranks().node] |= set(ranks)
            if epoch == 0:
                before = parts
            assert parts == before  # also what is repeated at the end
        assert sum(map(len, parts)) == job[0].num_indices == len(set().union(*parts))
        assert max(map(len, parts)) - min(map(len, parts)) <= nodes // machines
        starts = [[start for start, _, _ in job[rank].windows(1)] for rank in (0, -1)]
        assert all(start == sorted(start) for start in starts)
        order = job[0].order(1)
        for ranks in (job[0], job[-1]):
            reads = []
            for start, stop, runs in ranks.windows(1):
                records = np.concatenate([np.arange(*run) for run in runs])
                records = records if indices is None else np.intersect1d(records, indices)
                assert np.array_equal(np.sort(order[start:stop:nodes]), np.sort(records))
                reads.append(records)
            assert set(np.concatenate(reads)) == parts[ranks._ranks().node]


def test_every_global_batch_has_the_same_share_of_each_part() -> None:
    big = BlockShuffleSampler([1000] * 12, 1, block=20, window=16, nodes=8)
    for batch in big.order().reshape(-1, 80):
        assert np.array_equal(np.bincount(batch // 1500), np.full(8, 10))
    # a window of all nodes together is 16 blocks
    assert {len(runs) for start, _, runs in big.windows() if start < 8} == {2}


@pytest.mark.parametrize("nodes", [4, 12, 64])
def test_the_number_of_machines_divides_that_of_the_nodes(nodes: int) -> None:
    fit = {4: "1, 2, 4", 12: "1, 2, 3, 4, 6, 12", 64: "1, 2, 4, 8, 16, 32, 64"}[nodes]
    message = (
        f"nodes: is {nodes}, which 5 machines do not divide; use a multiple of 5, or another number of machines: {fit}"
    )
    with pytest.raises(UsageError, match=re.escape(message)):
        sampler(nodes, 0, 10, 5)
    BlockShuffleSampler(SHARDS, rank=0, world_size=10, local_world_size=2)  # does not ask


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (0, "local_world_size: .*got 0"),
        (3, "local_world_size: is 3, which does not divide world_size 10: each machine"),
    ],
)
def test_every_machine_has_as_many_ranks(local: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BlockShuffleSampler(SHARDS, nodes=2, rank=0, world_size=10, local_world_size=local)


@pytest.mark.parametrize(
    ("environment", "machines"),
    [
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 2),
        ({"PMI_SIZE": "8", "MPI_LOCALNRANKS": "1"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 2),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "8"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4,2(x2)"}, None),  # machines that differ
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, None),  # that of a launcher under srun
        ({"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"}, None),  # a group of 8 of 64 ranks
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": ""}, None),
        ({"WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "0"}, None),  # Lightning's own launcher
        (
            {
                "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            },
            2,
        ),
    ],
)  # fmt: skip
def test_launchers_say_how_many_ranks_a_machine_has(
    environment: dict[str, str], machines: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert nodes_of(8, None) == machines and nodes_of(8, 1) == 8
    # before there is a process group
    assert (
        nodes_of(1, None) == nodes_of(1, 4) == len(BlockShuffleSampler(SHARDS, nodes=2, local_world_size=4)) // N == 1
    )


def test_ranks_of_unknown_machines_read_as_one_with_a_warning() -> None:
    unknown = BlockShuffleSampler(SHARDS, nodes=6, rank=1, world_size=2)
    with pytest.warns(UserWarning, match="how many of the 2 ranks run on each machine.*local_world_size") as warned:
        assert [len(list(unknown)) for _ in range(2)] == [51, 51]
    assert len(warned) == 1 and warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(BlockShuffleSampler(SHARDS, nodes=6))
        list(BlockShuffleSampler(SHARDS, rank=1, world_size=2))
        list(sampler(6, 1, 2, 2))


def test_a_state_holds_the_canonical_nodes_and_not_the_machines() -> None:
    state = sampler(6, 3, 12, 3).state_at(0, 24)
    assert state["nodes"] == 6 and sampler(6, 0, 4, 2).check_state(state) == (0, 24)
    for other, message in ((None, "fields that a block sampler does not have: nodes"), (3, "nodes is 6 in the state")):
        with pytest.raises(UsageError, match=message):
            sampler(other).load_state_dict(state)
    with pytest.raises(UsageError, match="has no nodes"):
        sampler(6).load_state_dict(sampler(None).state_at(0, 24))


def test_machines_with_unequal_numbers_of_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun says how many machines there are; otherwise ranks would read some records twice, and others never."""
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "1"), ("GROUP_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="local_world_size: is 1 here, but 4 ranks are on 3 machines"):
        BlockShuffleSampler(100, nodes=4, rank=0, world_size=4)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "4")
    assert len(list(BlockShuffleSampler(100, nodes=4, rank=0, world_size=4))) == 25
