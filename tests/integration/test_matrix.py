"""Every trainer with every kind of loader: each record once an epoch over all ranks; resumed is uninterrupted.

The jobs of a trainer run once, in three launches: one process (three epochs whole, then resumed from the checkpoints
made on the way), two processes (likewise, and from the checkpoints of one), one process from those of two.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import pytest
from conftest import Job
from runs import EPOCHS, KINDS, RECORDS, SAMPLERS, STEPS, STOPS

TRAINERS = {
    "bare": (), "lightning": ("lightning", "torchdata"), "accelerate": ("accelerate",),
    "transformers": ("transformers", "accelerate"), "torchdata": ("torchdata",), "torchdata-workers": ("torchdata",),
}  # fmt: skip
"""Trainer -> libraries that it needs."""
ALONE = ("torchdata", "torchdata-workers")
"""Those that run in one process only: it is the loader that is looked at."""
Steps = list[tuple[int, list[int]]]


def kinds_of(trainer: str) -> tuple[str, ...]:
    return ("torch", *SAMPLERS) if trainer in ALONE else KINDS


def resumed_kinds_of(trainer: str) -> tuple[str, ...]:
    """With shuffle=True it is torch's sampler that is resumed, or not; torchdata's is."""
    return tuple(kind for kind in kinds_of(trainer) if kind != "torch" or trainer in ALONE)


@pytest.fixture(scope="session")
def seen(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """seen(trainer): (world, case) -> what each rank saw, step by step; an error as text."""

    @cache
    def run(trainer: str) -> dict[tuple[int, str], list[Any]]:
        for library in TRAINERS[trainer]:
            if importlib.util.find_spec(library) is None:
                pytest.skip(f"{library} is not installed")
        home = tmp_path_factory.mktemp(trainer)
        options = {"module": f"with_{trainer.partition('-')[0]}", "kinds": kinds_of(trainer)}
        if trainer in ALONE:
            env = {"WORKERS": "2" if trainer.endswith("workers") else "0"}
            launches = [(1, job(home, "one", 1, env, whole=True, worlds=[1], torch_resumes=True, **options))]
        else:
            launches = [
                (1, job(home, "one", 1, whole=True, worlds=[1], **options)),
                (2, job(home, "two", 2, whole=True, worlds=[1, 2], **options)),
                (1, job(home, "back", 1, whole=False, worlds=[2], **options)),
            ]
        return {(len(ranks), case): [r.get(case) for r in ranks] for _, ranks in launches for case in ranks[0]}

    return run


def steps_of(ranks: list[Any]) -> Steps:
    """The epoch and the records of each global batch, which ranks took together."""
    for rank in ranks:
        assert isinstance(rank, list), rank
    assert len({len(rank) for rank in ranks}) == 1
    steps = []
    for step in zip(*ranks, strict=True):
        (epoch, *others) = {epoch for epoch, _ in step}
        assert not others
        steps.append((epoch, sorted(record for _, batch in step for record in batch)))
    return steps


CASES = [(t, w) for t in TRAINERS for w in ((1,) if t in ALONE else (1, 2))]


@pytest.mark.parametrize(("trainer", "world", "kind"), [(t, w, k) for t, w in CASES for k in kinds_of(t)])
def test_every_record_once_an_epoch(seen: Any, trainer: str, world: int, kind: str) -> None:
    steps = steps_of(seen(trainer)[world, f"{kind} whole"])
    assert [epoch for epoch, _ in steps] == [epoch for epoch in range(EPOCHS) for _ in range(STEPS)]
    orders = [[records for e, records in steps if e == epoch] for epoch in range(EPOCHS)]
    for order in orders:
        assert sorted(record for batch in order for record in batch) == list(range(RECORDS))
    assert (orders[0] == orders[1]) == (kind == "sequential")
    if kind != "torch":  # the same global batches for any number of ranks
        assert steps == steps_of(seen(trainer)[1, f"{kind} whole"])


@pytest.mark.parametrize(
    ("trainer", "world", "kind", "stop", "of"),
    [
        (t, w, k, stop, of)
        for t, w in CASES for k in resumed_kinds_of(t) for stop in STOPS for of in ((1,) if t in ALONE else (1, 2))
    ],
)  # fmt: skip
def test_a_resumed_run_is_the_uninterrupted_one(
    seen: Any, trainer: str, world: int, kind: str, stop: int, of: int
) -> None:
    whole = steps_of(seen(trainer)[1, f"{kind} whole"])
    assert steps_of(seen(trainer)[world, f"{kind} resumed at {stop} of {of}"]) == whole[stop:]


def test_the_jobs_had_all_cases(seen: Any) -> None:
    for trainer, world in CASES:
        if all(importlib.util.find_spec(library) for library in TRAINERS[trainer]):
            resumed = len(resumed_kinds_of(trainer)) * len(STOPS) * (1 if trainer in ALONE else 2)
            found = [case for w, case in seen(trainer) if w == world]
            assert len(found) == len(kinds_of(trainer)) + resumed
