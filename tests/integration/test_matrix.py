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

LIBRARIES = {
    "bare": (), "lightning": ("lightning", "torchdata"), "accelerate": ("accelerate",),
    "transformers": ("transformers", "accelerate"), "torchdata": ("torchdata",),
}  # fmt: skip
TRAINERS = (*LIBRARIES, "lightning-workers", "accelerate-workers", "transformers-workers", "torchdata-workers")
"""Those with workers give two worker processes to each DataLoader."""
Steps = list[tuple[int, list[int]]]


def libraries_of(trainer: str) -> tuple[str, ...]:
    return LIBRARIES[trainer.partition("-")[0]]


def worlds_of(trainer: str) -> tuple[int, ...]:
    return (1,) if trainer in ("accelerate-workers", "transformers-workers") else (1, 2)


def kinds_of(trainer: str, world: int) -> tuple[str, ...]:
    """Which loaders are tried: torchdata's is one itself, and not divided among ranks with shuffle=True."""
    if trainer.startswith("torchdata"):
        return ("torch", *SAMPLERS) if world == 1 else tuple(SAMPLERS)
    return ("shuffle", "block") if trainer.endswith("workers") else KINDS


def resumed_kinds_of(trainer: str, world: int, of: int) -> tuple[str, ...]:
    """With shuffle=True it is torch's sampler that is resumed: torchdata and transformers can."""
    resumes = trainer == "transformers" or (trainer.startswith("torchdata") and world == of == 1)
    return tuple(kind for kind in kinds_of(trainer, world) if kind != "torch" or resumes)


@pytest.fixture(scope="session")
def seen(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """seen(trainer): (world, case) -> what each rank saw, step by step; an error as text."""

    @cache
    def run(trainer: str) -> dict[tuple[int, str], list[Any]]:
        for library in libraries_of(trainer):
            if importlib.util.find_spec(library) is None:
                pytest.skip(f"{library} is not installed")
        home = tmp_path_factory.mktemp(trainer)
        module, _, workers = trainer.partition("-")
        launches = [("one", 1, True, [1]), ("two", 2, True, [1, 2]), ("back", 1, False, [2])]
        seen = {}
        for name, world, whole, worlds in launches[: None if 2 in worlds_of(trainer) else 1]:
            resumes = {of: resumed_kinds_of(trainer, world, of) for of in worlds}
            options = {"module": f"with_{module}", "kinds": kinds_of(trainer, world), "resumes": resumes}
            ranks = job(home, name, world, {"WORKERS": "2" if workers else "0"}, whole=whole, **options)
            seen.update({(world, case): [rank.get(case) for rank in ranks] for case in ranks[0]})
        return seen

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


CASES = [(trainer, world) for trainer in TRAINERS for world in worlds_of(trainer)]


@pytest.mark.parametrize(("trainer", "world", "kind"), [(t, w, k) for t, w in CASES for k in kinds_of(t, w)])
def test_every_record_once_an_epoch(seen: Any, trainer: str, world: int, kind: str) -> None:
    steps = steps_of(seen(trainer)[world, f"{kind} whole"])
    assert [epoch for epoch, _ in steps] == [epoch for epoch in range(EPOCHS) for _ in range(STEPS)]
    orders = [[records for e, records in steps if e == epoch] for epoch in range(EPOCHS)]
    for order in orders:
        assert sorted(record for batch in order for record in batch) == list(range(RECORDS))
    assert (orders[0] == orders[1]) == (kind == "sequential")
    if kind != "torch":  # the same global batches for any number of ranks
        assert steps == steps_of(seen(trainer)[1, f"{kind} whole"])


RESUMED = [
    (trainer, world, kind, stop, of)
    for trainer, world in CASES for of in worlds_of(trainer) for kind in resumed_kinds_of(trainer, world, of)
    for stop in STOPS
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "world", "kind", "stop", "of"), RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one(
    seen: Any, trainer: str, world: int, kind: str, stop: int, of: int
) -> None:
    whole = steps_of(seen(trainer)[1, f"{kind} whole"])
    assert steps_of(seen(trainer)[world, f"{kind} resumed at {stop} of {of}"]) == whole[stop:]


def test_the_jobs_had_all_cases(seen: Any) -> None:
    for trainer in TRAINERS:
        if all(importlib.util.find_spec(library) for library in libraries_of(trainer)):
            wanted = {(world, f"{kind} whole") for t, world in CASES if t == trainer for kind in kinds_of(t, world)}
            wanted |= {(w, f"{k} resumed at {stop} of {of}") for t, w, k, stop, of in RESUMED if t == trainer}
            assert set(seen(trainer)) == wanted
