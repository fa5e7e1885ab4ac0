"""What the engine ray costs against local workers: the same build, with as many tasks at a time as there are workers.

The cluster runs on this machine. Ray starts processes for each program that connects: their start is measured apart.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from functools import partial
from typing import Any

from benchmarks.common import Table, against_goal, images
from packer import BuildOptions, build_pack
from packer.bench.measure import take_turns
from packer.system import usable_cores

SHARDS = 30


def options(parser: Any) -> None:
    parser.add_argument("--photos", type=int, default=3000)


def run(given: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        sys.exit("ray is not installed: pip install ray")
    cores, source = usable_cores(), given.home / "images"
    images("photos", given.data, source, given.photos)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores, "include_dashboard": False})

    def build(engine: str) -> None:
        out, size = given.home / "pack", given.photos * 256 * 256 * 3 // SHARDS
        shutil.rmtree(out, ignore_errors=True)
        made = BuildOptions(str(source), str(out), "tfrecord", resize="256x256", shard_bytes=size, engine=engine)
        assert len(build_pack(made).manifest.shards) >= SHARDS

    try:
        ray.init(address=cluster.address, log_to_driver=False)
        seconds = take_turns({engine: partial(build, engine) for engine in ("local", "ray")}, given.rounds)
        ray.shutdown()
        seconds |= take_turns({"start": lambda: connect(cluster.address, cores)}, given.rounds)
    finally:
        cluster.shutdown()
    local, on_ray = seconds["local"], seconds["ray"]
    table = Table("build", "goal", "ratio", "ray, s", "local, s")
    title = f"{given.photos:,} photos to raw 256x256, {SHARDS} shards, {cores} workers"
    table.row("start of Ray's processes", "", "", seconds["start"].text(1), "")
    table.row(title, *against_goal(on_ray / local, 1.10, most=True), on_ray.text(1), local.text(1))


def connect(address: str, cores: int) -> None:
    """Connect to the cluster, and wait for a process on each core."""
    import ray

    ray.init(address=address, log_to_driver=False)
    wait = ray.remote(num_cpus=1)(lambda: time.sleep(0.1))
    ray.get([wait.remote() for _ in range(cores)])
    ray.shutdown()
