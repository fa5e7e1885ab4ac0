"""Kill a node in the middle of builds on Ray and dask, and compare every file with that of a local build.

scripts/torture.py runs it as rows `nodes:ray` and `nodes:dask`. Each case is a build of 30 shards on two nodes of this
machine. When a random number of shards is finished, one node is killed: of Ray, a node with all its processes; of dask,
a worker with SIGKILL. The build must go on to its end, and every file of the pack must have the SHA-256 of the local
build. It needs ray and distributed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import drawn, repeated

from packer.format.digests import sha256_of

ROOT = Path(__file__).resolve().parents[2]
IMAGES, SHARDS = 1200, 30
FORMATS = ("lmdb", "hdf5", "tfrecord", "webdataset", "parquet", "zarr")
TIMEOUT_S = 300
RAY_NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


def cases(name: str, seeds: Iterable[int]) -> Iterator[tuple[int, str, str]]:
    """Kill a node for each seed; yield the seed, what happened, and what was wrong."""
    os.environ.update(PYTHONPATH=str(ROOT), RAY_USAGE_STATS_ENABLED="0")
    with tempfile.TemporaryDirectory(prefix="kill-nodes-") as folder:
        home = Path(folder)
        repeated(list(drawn(400)), home / "src", IMAGES)
        for seed in seeds:
            chance = random.Random(f"{seed} {name}")
            container, after = chance.choice(FORMATS), chance.randint(1, SHARDS * 2 // 3)
            with ENGINES[name]() as (engine, kill):
                problem = killed(home, container, engine, after, kill)
            yield seed, "equal", problem and f"{container}, a node killed after {after} shards: {problem}"


def killed(home: Path, container: str, engine: str, after: int, kill: Callable[[], None]) -> str:
    """Return what was wrong with a build of which a node was killed; empty if nothing."""
    local, out = home / f"local-{container}", home / "out"
    if not local.exists():
        build(home, local, container, "local").wait()
    shutil.rmtree(out, ignore_errors=True)
    process = build(home, out, container, engine)
    journal = home / "out.partial" / "journal"
    try:
        while process.poll() is None and lines(journal) <= after:
            time.sleep(0.02)
        kill()
        if process.poll() is not None:
            return "had ended before"
        if process.wait(TIMEOUT_S) != 0:
            return f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        return f"hangs for {TIMEOUT_S} s"
    finally:
        process.kill()
        process.wait()
    made, asked = ({path.name: sha256_of(str(path)) for path in pack.iterdir()} for pack in (out, local))
    return ", ".join(sorted(name for name in {*made, *asked} if made.get(name) != asked.get(name)))


def lines(journal: Path) -> int:
    """Return the number of lines of a journal: one, and one for each finished shard."""
    try:
        return journal.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def build(home: Path, out: Path, container: str, engine: str) -> subprocess.Popen[bytes]:
    """Start a build of 30 shards."""
    size = IMAGES * 128 * 128 * 3 // SHARDS
    command = [sys.executable, "-m", "packer", "build", home / "src", "-o", out, "--format", container]
    command += ["--resize", "128x128", "--shard-size", size, "--shuffle", 1, "--engine", engine]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)


@contextmanager
def ray_cluster() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the engine of a cluster of Ray with two nodes, and what kills one."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**RAY_NODE, "include_dashboard": False})
    try:
        node = cluster.add_node(**RAY_NODE)
        yield f"ray:{cluster.address}", lambda: cluster.remove_node(node, allow_graceful=False)
    finally:
        cluster.shutdown()


@contextmanager
def dask_cluster() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the engine of a cluster of dask with two workers, and what kills one."""
    from distributed import LocalCluster

    with LocalCluster(2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        yield f"dask:{cluster.scheduler_address}", lambda: os.kill(cluster.workers[0].pid, signal.SIGKILL)


ENGINES: dict[str, Callable[[], Any]] = {"ray": ray_cluster, "dask": dask_cluster}
