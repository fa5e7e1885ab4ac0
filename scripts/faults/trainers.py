"""Kill trainers with SIGKILL at random steps, resume them from the last checkpoint, compare with an undisturbed run.

scripts/torture.py runs it as rows `trainers:bare`, `trainers:lightning`, ... Each case is a run of three epochs of 6
steps on a small pack, with a checkpoint every second step, that is killed and then resumed. It must train on exactly
the batches that the undisturbed run trains on after that checkpoint, so that both parts together have each record once
in every epoch. Steps between the checkpoint and the kill are trained again, as always.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 18
LOADERS = ("early", "late", "shuffle", "block", "balanced")
TIMEOUT_S = 120
KILLED = "killed"


@dataclass(frozen=True)
class Trainer:
    """A way to train: the module of tests/integration, and the number of processes."""

    module: str
    libraries: tuple[str, ...] = ()
    ranks: int = 1
    loaders: tuple[str, ...] = LOADERS
    env: tuple[tuple[str, str], ...] = ()


LIGHTNING, WORKERS = ("lightning", "torchdata"), (("WORKERS", "2"),)
TRAINERS = {
    "bare": Trainer("with_bare"),
    "torchrun": Trainer("with_bare", ranks=2),
    "lightning": Trainer("with_lightning", LIGHTNING),
    "lightning-ddp": Trainer("with_lightning", LIGHTNING, ranks=2),
    "lightning-workers": Trainer("with_lightning", LIGHTNING, loaders=LOADERS[2:], env=WORKERS),
    "accelerate": Trainer("with_accelerate", ("accelerate",)),
    "accelerate-2": Trainer("with_accelerate", ("accelerate",), ranks=2),
    "torchdata": Trainer("with_torchdata", ("torchdata",), loaders=LOADERS[2:]),
    "torchdata-workers": Trainer("with_torchdata", ("torchdata",), loaders=LOADERS[2:], env=WORKERS),
    "transformers": Trainer("with_transformers", ("transformers",)),
}

Batches = list[Any]


def cases(name: str, seeds: Iterable[int]) -> Iterator[tuple[int, str, str]]:
    """Kill a trainer for each seed and resume it; yield the seed, what happened, and what was wrong.

    Raises:
        ModuleNotFoundError: If its libraries are not installed.
    """
    trainer = TRAINERS[name]
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
    os.environ.update(STOPS=json.dumps([*range(2, STEPS + 1, 2)]), TOKENIZERS_PARALLELISM="false")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "integration"), str(ROOT / "tests")]
    for library in ("torch.distributed", *trainer.libraries):
        importlib.import_module(library)  # once: the children are forked
    whole: dict[str, list[Batches]] = {}
    with tempfile.TemporaryDirectory(prefix="kill-trainers-") as folder:
        home = Path(folder)
        draw_pack(home)
        for seed in seeds:
            chance = random.Random(f"{seed} {name}")
            loader, step, late_s = chance.choice(trainer.loaders), chance.randint(1, STEPS - 2), chance.random() * 0.01
            problem = "" if loader in whole else undisturbed(trainer, home, loader, whole)
            if problem:
                yield seed, problem, problem
            else:
                yield seed, *killed(trainer, home, whole[loader], loader, (step, late_s))


def undisturbed(trainer: Trainer, home: Path, loader: str, whole: dict[str, list[Batches]]) -> str:
    """Put a whole run into `whole`; return what is wrong with it."""
    ranks, error = run(trainer, home / "whole" / loader, loader)
    epochs: dict[int, list[int]] = {}
    for epoch, batch in (step for rank in ranks for step in rank):
        epochs.setdefault(epoch, []).extend(batch)
    if error or [sorted(records) for records in epochs.values()] != [list(range(48))] * 3:
        return f"{loader}: {error or 'not each record once in an epoch'}: {epochs}"
    whole[loader] = ranks
    return ""


def killed(
    trainer: Trainer, home: Path, whole: list[Batches], loader: str, after: tuple[int, float]
) -> tuple[str, str]:
    """Kill a run and resume it; return what happened, and what was wrong."""
    where = home / "killed"
    shutil.rmtree(where, ignore_errors=True)
    before, error = run(trainer, where, loader, kill_after=after)
    if error != KILLED:
        return "had ended before", error
    saved, checkpoint = last_checkpoint(where)
    again, error = run(trainer, where, loader, checkpoint)
    wrong = ""
    if error or again != [rank[saved:] for rank in whole]:
        wrong = f"{error or 'another order'}: {again}"
    elif any(part != rank[: len(part)] for part, rank in zip(before, whole, strict=True)):
        wrong = f"another order before the kill: {before}"
    outcome = "resumed" if checkpoint else "killed before the first checkpoint"
    return outcome, wrong and f"{loader}, killed after step {after[0]}, resumed at {saved}: {wrong}"


def run(
    trainer: Trainer, home: Path, loader: str, resume: Path | None = None, kill_after: tuple[int, float] | None = None
) -> tuple[list[Batches], str]:
    """Return the batches of each rank, and how it ended: "", KILLED, or an error.

    Args:
        trainer: what runs.
        home: where its checkpoints go.
        loader: kind of loader (`runs.KINDS`).
        resume: the checkpoint to resume from.
        kill_after: so many steps, and seconds more.
    """
    home.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = [home / f"log-{rank}" for rank in range(trainer.ranks)]
    for log in logs:
        log.write_text("")
    pids = []
    for rank in range(trainer.ranks):
        pid = os.fork()
        if pid == 0:
            child(trainer, home, loader, resume, {"LOG": str(logs[rank]), "RANK": str(rank), "MASTER_PORT": str(port)})
        pids.append(pid)
    left, ends, deadline = set(pids), set(), time.monotonic() + TIMEOUT_S
    while left:
        if time.monotonic() > deadline or (kill_after and lines_of(logs[0]) >= kill_after[0]):
            time.sleep(kill_after[1] if kill_after else 0)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            kill_after = None
        for pid in list(left):
            if (done := os.waitpid(pid, os.WNOHANG))[0]:
                left.discard(pid)
                ends.add(os.waitstatus_to_exitcode(done[1]))
        time.sleep(0.001)
    errors = "\n".join(file.read_text() for file in home.glob("error-*"))
    end = KILLED if -signal.SIGKILL in ends else errors if ends != {0} else ""
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs], end


def child(trainer: Trainer, home: Path, loader: str, resume: Path | None, env: dict[str, str]) -> None:
    """Train, in a forked process that ends here."""
    rank = env["RANK"]
    try:
        with open(home / "output", "a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ.update(env, **dict(trainer.env), WORLD_SIZE=str(trainer.ranks))
        if trainer.ranks > 1:
            os.environ.update(MASTER_ADDR="127.0.0.1", LOCAL_RANK=rank, LOCAL_WORLD_SIZE=str(trainer.ranks))
            os.environ.update(GROUP_RANK="0", TORCHELASTIC_RUN_ID="kill")
        else:
            del os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]
        runs, module = importlib.import_module("runs"), importlib.import_module(trainer.module)
        runs.torch.set_num_threads(1)
        pack = Path(os.environ["PACK"])
        early = runs.packed_loader(pack) if loader == "early" else None
        getattr(module, "start", int)()

        def make() -> Any:
            if early is not None or loader == "late":
                return early or runs.packed_loader(pack)
            return getattr(module, "data_loader", runs.data_loader)(pack, loader)

        module.fit(make, home, resume)
        os._exit(0)
    except BaseException:
        (home / f"error-{rank}").write_text(traceback.format_exc())
        os._exit(1)


def lines_of(log: Path) -> int:
    """Return the number of lines."""
    return log.read_bytes().count(b"\n")


def last_checkpoint(home: Path) -> tuple[int, Path | None]:
    """Return the step and path of the last complete checkpoint, as the modules take it; (0, None) if there is none."""
    for step, path in sorted(checkpoints(home), reverse=True):
        if path.is_dir() and not (path / "done").exists():
            continue
        if path.is_file() and not loads(path):
            continue
        return step, home / str(step)
    return 0, None


def checkpoints(home: Path) -> Iterator[tuple[int, Path]]:
    """Yield the step of each checkpoint: a file N or N.ckpt, a folder N or checkpoint-N."""
    for path in home.iterdir():
        number = path.name.removesuffix(".ckpt").removeprefix("checkpoint-")
        if number.isdecimal():
            yield int(number), path


def loads(path: Path) -> bool:
    """Return whether a file was written to its end."""
    import torch

    try:
        torch.load(path, weights_only=False)
    except Exception:
        return False
    return True


def draw_pack(home: Path) -> None:
    """Make the pack of the integration tests, in a process of its own: this one forks, and must have no threads."""
    os.environ["PACK"] = str(home / "pack")
    program = "import sys, pathlib, conftest; conftest.build_numbered(*map(pathlib.Path, sys.argv[1:]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3])}
    command = [sys.executable, "-c", program, str(home / "images"), str(home / "pack")]
    subprocess.run(command, check=True, env=env)
