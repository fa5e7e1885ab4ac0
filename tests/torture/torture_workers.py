"""Kills the worker processes of a packer.DataLoader in the middle of an epoch, in every way and at random moments."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from outcome import Budget, Outcome
from torch.utils.data import Dataset
from torture_packs import build

from packer import DataLoader, PackedDataset
from packer.errors import WorkerDied

METHODS = ("fork", "forkserver", "spawn")
WAYS = ("kill from outside", "SIGKILL", "SIGSEGV", "exit", "SystemExit", "SystemExit 0", "KeyboardInterrupt")
DEATHS = 200
HANG_S = 10.0
WORDS = {
    "kill from outside": "was killed by SIGKILL",
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "exit": "exit code 7",
    "SystemExit": "exit code 3",
    "SystemExit 0": "exit code 0",
    "KeyboardInterrupt": "exit code",
}
"""What the error must say of each way to die."""


class Hang(BaseException):
    """Nothing has come for too long."""


@dataclass
class Mortal(Dataset[Any]):
    """A dataset whose worker dies over one of its samples; each sample with `ballast` bytes of Python objects."""

    data: PackedDataset
    way: str = ""
    fatal: int = -1
    ballast: int = 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if index == self.fatal:
            die(self.way)
        image, target = self.data[index]
        return image, {"label": target, "number": index, "ballast": os.urandom(self.ballast)}


def die(way: str) -> None:
    """End this process."""
    if way == "exit":
        os._exit(7)
    if way.startswith("SystemExit"):
        sys.exit(0 if way.endswith("0") else 3)
    if way == "KeyboardInterrupt":
        raise KeyboardInterrupt
    if way in ("SIGKILL", "SIGSEGV"):
        if way == "SIGSEGV":
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # torch's handler prints
        os.kill(os.getpid(), getattr(signal, way))
        time.sleep(60)


def listed(samples: list[Any]) -> tuple[torch.Tensor, list[Any]]:
    """A collate function of the user's own."""
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise Hang where the block takes longer."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"nothing for {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def children() -> set[int]:
    """Processes that this one has, dead or alive, but the server of forks and the tracker of resources."""
    own = {os.getpid()}
    for module, name in (("forkserver", "_forkserver"), ("resource_tracker", "_resource_tracker")):
        server = getattr(sys.modules.get(f"multiprocessing.{module}"), name, None)
        own |= {getattr(server, "_forkserver_pid", None) or 0, getattr(server, "_pid", None) or 0}
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry)] = int(fields[1])
    return {pid for pid, parent in found.items() if parent in own and pid not in own}


@dataclass(frozen=True)
class Case:
    """One death."""

    method: str
    persistent: bool
    way: str
    seed: int


def cases(count: int, seed: int, methods: tuple[str, ...] = METHODS) -> list[Case]:
    """`count` deaths, evenly over start methods, persistence and ways."""
    draw = random.Random(seed)
    return [
        Case(methods[n // 2 % len(methods)], bool(n % 2), WAYS[draw.randrange(len(WAYS))], draw.randrange(1 << 30))
        for n in range(count)
    ]


def one_death(pack: Path, case: Case) -> list[str]:
    """Have one worker die; what was wrong with how that was told."""
    draw = random.Random(case.seed)
    workers, batch_size = draw.choice((1, 2)), draw.choice((1, 4, 7))
    ballast = draw.choice((0, 0, 3000, 60_000))
    fatal = -1 if case.way == "kill from outside" else draw.randrange(97)
    data = Mortal(PackedDataset(pack), case.way, fatal, ballast)
    before = children()
    options: dict[str, Any] = {"sampler": list(range(97)), "batch_size": batch_size}
    if draw.random() < 0.3:
        order = [list(range(k, min(k + batch_size, 97))) for k in range(0, 97, batch_size)]
        options = {"batch_sampler": order}
    loader = DataLoader(
        data, num_workers=workers, persistent_workers=case.persistent, collate_fn=listed,
        multiprocessing_context=case.method, **options,
    )  # fmt: skip
    wrong: list[str] = []
    first = draw.randrange(3)
    seen: list[int] = []
    killer = None
    try:
        with alarm(60):  # the start of a process, not yet a hang
            batches = iter(loader)
            for _ in range(first):
                seen += [target["number"] for target in next(batches)[1]]
        if case.way == "kill from outside":
            victim = draw.choice(batches._workers).pid  # type: ignore[attr-defined]
            killer = threading.Timer(draw.random() * 0.03, os.kill, (victim, signal.SIGKILL))
            killer.start()
        with alarm(HANG_S + (50 if not first else 0)):
            for _, targets in batches:
                seen += [target["number"] for target in targets]
                if case.way == "kill from outside":
                    time.sleep(0.002)
        if case.way != "kill from outside" or len(seen) < 97:  # else it came too late
            wrong.append("no error")
        if killer is not None:
            killer.join()
            next(iter(loader), None) if case.persistent else None
    except WorkerDied as error:
        text = str(error)
        if "DataLoader worker " not in text or WORDS[case.way] not in text:
            wrong.append(f"says: {text}")
    except BaseException as error:
        wrong.append(f"{type(error).__name__}: {error}")
    finally:
        if killer is not None:
            killer.join()
    if seen != list(range(len(seen))):
        wrong.append("batches in another order")
    if case.persistent and not wrong:
        wrong += _lives_again(loader, data)
    batches = loader = None  # type: ignore[assignment]
    gc.collect()
    end = time.monotonic() + 5
    while (left := children() - before) and time.monotonic() < end:
        time.sleep(0.02)
    if left:
        wrong.append(f"processes left: {sorted(left)}")
    return wrong


def _lives_again(loader: DataLoader, data: Mortal) -> list[str]:
    """After a death, the next loop has new workers."""
    data.fatal = -1
    try:
        with alarm(60):
            seen = [target["number"] for _, targets in loader for target in targets]
    except BaseException as error:
        return [f"the next loop: {type(error).__name__}: {error}"]
    return [] if seen == list(range(97)) else [f"the next loop gave {len(seen)} samples"]


def deaths(pack: Path, chosen: list[Case], budget: Budget) -> Outcome:
    """All these deaths."""
    what = "worker deaths while reading: fork, spawn, forkserver x persistent or not"
    outcome = Outcome(what, "200 deaths, 0 hangs, 1 error type")
    multiprocessing.set_forkserver_preload(["torch", "packer.loading.dataset", "torture_workers"])
    for case in chosen:
        if budget.spent:
            break
        wrong = one_death(pack, case)
        outcome.count("deaths")
        outcome.count(case.method)
        outcome.faults += [f"{case}: {line}" for line in wrong]
    return outcome


def workers(budget: Budget) -> Outcome:
    """The row of the table."""
    with tempfile.TemporaryDirectory() as home:
        count = DEATHS if budget.minutes is None else 1_000_000
        return deaths(build(Path(home)), cases(count, budget.seed), budget)
