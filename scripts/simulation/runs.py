"""Runs of packer in processes of their own on this machine: plans, builds, and epochs from a store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("server.py")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

MAKE = """
import json, os, resource, sys, time
from packer import BuildOptions, build_pack
from packer.packing import plan_pack
from packer.sources.tree import find_tree

what, source, out, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
begun = time.process_time()
find_tree(source)
listed = time.process_time() - begun
options = BuildOptions(source, out, labels=("folder",), format="tfrecord", **options)
print(flush=True)
sys.stdin.readline()
wall, begun = time.perf_counter(), time.process_time()
(plan_pack if what == "plan" else build_pack)(options)
wall, own = time.perf_counter() - wall, time.process_time() - begun
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([wall, listed, own, children.ru_utime + children.ru_stime]), flush=True)
"""
READ = """
import json, sys, time
from packer import CenterCrop, PackedLoader, open_pack
from packer.samplers import BlockShuffleSampler, ShuffleSampler

where, kind, rank, ranks, caches = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
loaders = []
for cache in caches:
    pack = open_pack(where, cache_dir=cache) if "://" in where else open_pack(where)
    if kind == "full":
        sampler = ShuffleSampler(pack, rank=rank, world_size=ranks)
    else:
        canonical = {"nodes": ranks, "local_world_size": 1} if kind == "nodes" else {}
        sampler = BlockShuffleSampler(pack, rank=rank, world_size=ranks, **canonical)
    crop = {} if pack.record_bytes else {"crop": CenterCrop(224)}
    loaders.append(PackedLoader(pack, 64, sampler=sampler, threads=2, **crop))
print(flush=True)
sys.stdin.readline()
wall, begun = time.perf_counter(), time.process_time()
for loader in loaders:
    for _ in loader:
        pass
print(json.dumps([time.perf_counter() - wall, time.process_time() - begun]), flush=True)
"""


@dataclass
class Run:
    """What a run took."""

    wall_s: float
    cpu_s: list[float]
    """Processor time of its parts."""
    others_cores: float = 0.0
    requests: int = 0
    sent: int = 0
    server_s: float = 0.0


def cpu_of(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def machine_s() -> float:
    """Return the processor time of all processes of this machine so far."""
    parts = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return (sum(parts) - parts[3] - parts[4]) * TICK_S


def made(what: str, source: Path, folder: Path, workers: int, options: dict[str, Any]) -> Run:
    """Plan or build in a new process."""
    out = folder / "out.pack"
    shutil.rmtree(out, ignore_errors=True)
    words = [what, str(source), str(out), json.dumps({"workers": workers, **options})]
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = machine_s()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        used = machine_s() - before
    wall, listed, own, children = json.loads(answer)
    return Run(wall, [listed, own, children], max(0.0, (used - own - children) / wall))


@dataclass(frozen=True)
class Reading:
    """Epochs of a pack, one after another, in some processes at once.

    Attributes:
        pack: Its name in the folder that is served.
        kind: "block", "full", "nodes" (canonical nodes, one a process), or "shared" (one cache for all processes).
        processes: How many read.
        epochs: How many each reads, each with an empty cache.
        delay_s: Of each answer of the server; None: from the folder.
        ranks: How many share an epoch; 0: all processes.
    """

    pack: str
    kind: str
    processes: int
    epochs: int
    delay_s: float | None = None
    ranks: int = 0


def read(reading: Reading, home: Path) -> Run:
    """Read, after all packs are opened in all processes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=home)))
        where, server = str(home / reading.pack), None
        if reading.delay_s is not None:
            server = _started(stack, str(SERVER), str(home), str(reading.delay_s))
            assert server.stdout is not None
            where = f"{server.stdout.readline().strip()}/{reading.pack}"
        ranks = str(reading.ranks or reading.processes)
        readers = []
        for number in range(reading.processes):
            owner = 0 if reading.kind == "shared" else number
            caches = [str(folder / f"{owner}-{epoch}") for epoch in range(reading.epochs)]
            readers.append(_started(stack, "-c", READ, where, reading.kind, str(number), ranks, *caches))
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.readline()
        before = machine_s(), cpu_of(server.pid) if server else 0.0
        started = time.perf_counter()
        for reader in readers:
            assert reader.stdin is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
        answers = [json.loads(reader.stdout.readline()) for reader in readers if reader.stdout is not None]
        wall = max(answer[0] for answer in answers)
        used = machine_s() - before[0]  # before they end, which takes time, too
        passed = time.perf_counter() - started
        own = sum(answer[1] for answer in answers)
        run = Run(wall, [own])
        if server:
            run.server_s = cpu_of(server.pid) - before[1]
            requests, sent = server.communicate()[0].split()
            run.requests, run.sent = int(requests), int(sent)
        run.others_cores = max(0.0, (used - own - run.server_s) / passed)
        for reader in readers:  # before their caches are removed
            reader.wait()
        return run


def _started(stack: ExitStack, *words: str) -> subprocess.Popen[str]:
    """Start Python."""
    words = (sys.executable, *words)
    return stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
