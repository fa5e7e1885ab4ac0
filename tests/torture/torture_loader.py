"""Stops a loader at every position and goes on; opens and closes packs until something would have leaked."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from outcome import Budget, Outcome
from torture_packs import RECORDS, build

from packer import DataLoader, Pack, PackedDataset, PackedLoader, RandomResizedCrop, collate, open_pack
from packer.containers import CONTAINERS
from packer.samplers import ShuffleSampler

EPOCH = 3
THREADS = (1, 2, 4)
WORLDS = range(1, 9)
OPENS = 10_000
EPOCHS = 20
MIB = 1 << 20

Sample = tuple[bytes, int]


def samples(batches: Iterable[Any]) -> list[Sample]:
    """Every sample that comes: the bytes of its image, and its label."""
    return [(i.numpy().tobytes(), int(t)) for images, targets in batches for i, t in zip(images, targets, strict=True)]


def loader_of(pack: Pack, threads: int, rank: int = 0, world: int = 1) -> PackedLoader:
    """One rank's loader, one sample a batch, so that every position can be a state's; cropped and flipped at random."""
    sampler = ShuffleSampler(pack, 1, rank=rank, world_size=world)
    return PackedLoader(pack, 1, sampler=sampler, crop=RandomResizedCrop(8), flip=True, threads=threads)


def state_after(loader: PackedLoader, count: int) -> tuple[list[Sample], dict[str, Any]]:
    """What comes in so many batches, and the state then."""
    iteration = iter(loader)
    got = samples(islice(iteration, count))
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    iteration.close()  # type: ignore[attr-defined]
    return got, state


class Expected:
    """What an undisturbed loader gives, for each number of ranks."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self._kept: dict[tuple[int, int], tuple[list[Sample], list[Sample]]] = {}

    def of(self, rank: int, world: int) -> tuple[list[Sample], list[Sample]]:
        """This epoch's samples of a rank, and the next epoch's."""
        if (rank, world) not in self._kept:
            loader = loader_of(self.pack, 1, rank, world)
            loader.set_epoch(EPOCH)
            self._kept[rank, world] = samples(loader), samples(loader)
        return self._kept[rank, world]

    def together(self, world: int) -> list[Sample]:
        """The ranks' samples of this epoch in their common order, without those handed out twice."""
        ranks = [self.of(rank, world)[0] for rank in range(world)]
        return [sample for step in zip(*ranks, strict=True) for sample in step][:RECORDS]


def resumed(expected: Expected, threads: int, world: int, position: int) -> list[str]:
    """Stop every rank after `position` batches, go on, stop again, go on twice more; what was wrong."""
    wrong = []
    for rank in range(world):
        whole, following = expected.of(rank, world)
        loader = loader_of(expected.pack, threads, rank, world)
        loader.set_epoch(EPOCH)
        got, state = state_after(loader, position)
        for number in (2, 3):  # the second and the third time, with other numbers of threads
            loader = loader_of(expected.pack, THREADS[(number + threads) % 3], rank, world)
            loader.load_state_dict(state)
            more, state = state_after(loader, (len(whole) - len(got)) // number)
            got += more
        loader = loader_of(expected.pack, threads, rank, world)
        loader.load_state_dict(state)
        got += samples(loader)
        case = f"{threads} threads, rank {rank} of {world}, position {position}"
        if got != whole:
            wrong.append(f"{case}: another order or other images")
        if position % 7 == 0 and samples(loader) != following:
            wrong.append(f"{case}: the next epoch is not whole")
    return wrong


def resumes(pack: Path, worlds: Iterable[int], step: int, budget: Budget) -> Outcome:
    """Every `step`-th position of every number of ranks and threads."""
    what = "resume positions of the loader: all 97 of a small set x threads {1, 2, 4} x world sizes 1 to 8"
    outcome = Outcome(what, "exact order")
    expected = Expected(open_pack(pack))
    order = expected.together(1)
    for world in worlds:
        if expected.together(world) != order:
            outcome.faults.append(f"{world} ranks have another order than one")
        for threads in THREADS:
            for position in range(0, -(-RECORDS // world) + 1, step):
                if budget.spent:
                    return outcome
                outcome.faults += resumed(expected, threads, world, position)
                outcome.count("positions")
                outcome.count("resumes", 3 * world)
    return outcome


def resume(budget: Budget) -> Outcome:
    """The row of the table, for raw and for JPEG images."""
    with tempfile.TemporaryDirectory() as home:
        outcome = resumes(build(Path(home)), WORLDS, 1, budget)
        outcome.add(resumes(build(Path(home), "webdataset", "jpeg"), WORLDS, 1, budget))
    return outcome


# -- leaks


def resident_bytes(trim: bool = True) -> int:
    """Memory of this process, what malloc only keeps in store given back."""
    gc.collect()
    if trim:
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def use(path: Path) -> None:
    """Open a pack, read a little of all there is, and close it."""
    data = PackedDataset(path)
    data.__getitems__([0, 50, 96])
    _ = data[3], data.targets[1], data.labels, data.keys, data.pack.annotation(96)


def open_and_close(path: Path, count: int, budget: Budget) -> Outcome:
    """Open and close a pack so often."""
    outcome = Outcome("10,000 open/close; 20 epochs", "no descriptor left, memory < +1 MiB; < 2 %")
    for _ in range(300):
        use(path)
    before = resident_bytes(), descriptors()
    for _ in range(count):
        if budget.spent:
            break
        use(path)
        outcome.count("opens")
    grown, left = resident_bytes() - before[0], descriptors() - before[1]
    outcome.done["grown_kib"] = grown // 1024
    if left:
        outcome.faults.append(f"{path.name}: {left} descriptors left")
    if grown >= MIB:
        outcome.faults.append(f"{path.name}: {grown / MIB:.2f} MiB more memory after {count} opens")
    return outcome


def epochs(path: Path, count: int) -> Outcome:
    """Read so many epochs, with threads and with workers that stay; memory after the third is the measure."""
    outcome = Outcome("10,000 open/close; 20 epochs", "no descriptor left, memory < +1 MiB; < 2 %")
    loader = PackedLoader(path, 8, shuffle=True, crop=RandomResizedCrop(8), flip=True, threads=2)
    workers = DataLoader(
        PackedDataset(path), 8, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=collate,
        multiprocessing_context="fork",
    )  # fmt: skip
    begun: dict[str, int] = {}
    for epoch in range(count):
        for _ in loader:
            pass
        batches = iter(workers)
        for _ in batches:
            pass
        pids = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]
        now = {"the loader": resident_bytes(), **{f"worker {n}": proportional_bytes(p) for n, p in enumerate(pids)}}
        begun = now if epoch == 2 else begun
        outcome.count("epochs")
    for who, was in begun.items():
        share = (now[who] - was) / was
        outcome.done["grown_permille"] = max(outcome.done.get("grown_permille", 0), round(1000 * share))
        if share >= 0.02:
            outcome.faults.append(f"{path.name}, {who}: {100 * share:.1f} % more memory after {count} epochs")
    batches._shutdown_workers()  # type: ignore[attr-defined]
    return outcome


def proportional_bytes(pid: int) -> int:
    """Memory of a process, its part of what it shares."""
    for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def leaks(budget: Budget) -> Outcome:
    """The row of the table: every container, raw and JPEG."""
    outcome = Outcome("10,000 open/close; 20 epochs", "no descriptor left, memory < +1 MiB; < 2 %")
    most = {"grown_kib": 0, "grown_permille": 0}
    with tempfile.TemporaryDirectory() as home:
        for container in CONTAINERS:
            for part in (
                open_and_close(build(Path(home), container), OPENS, budget),
                epochs(build(Path(home), container, "jpeg"), EPOCHS),
            ):
                most = {name: max(value, part.done.pop(name, 0)) for name, value in most.items()}
                outcome.add(part)
    outcome.done |= most
    return outcome
