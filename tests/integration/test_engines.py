"""Builds on Ray and dask, of which a node dies in the middle: the same bytes as on one machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crashing import mark
from drawn import draw_classes
from running import GUARD_S, ROOT, digests, signals_heard, until

PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "packing")))
"""Of the nodes too: the recipe of the tests must be there."""
PROGRAM = (
    "import sys, crashing, packer.packing.plan as plan; plan.Recipe = crashing.CrashingRecipe\n"
    "from packer.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
SHARDS = 30
STORE_BYTES = 100 << 20
"""Of the objects of a node of Ray: it wants a third of the memory."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 images for 30 shards, of which the last ten take a while."""
    source = draw_classes(tmp_path_factory.mktemp("engines") / "src", ("ant", "bee", "cat"), 100)
    for number in range(5, 100, 10):
        mark(source / "cat" / f"{number:03d}.jpg", "slow")
    return source


@pytest.fixture(scope="module")
def reference(source: Path) -> dict[str, str]:
    assert f" in {SHARDS} shards" in finished(build(source, "reference"))
    return digests(source.parent / "reference")


@contextmanager
def build(
    source: Path, name: str, *options: str, program: tuple[str, ...] = (sys.executable, "-c", PROGRAM)
) -> Iterator[subprocess.Popen[str]]:
    """A build with a decoder that crashes and dawdles if an image says so."""
    command = [*program, "build", str(source), "-o", str(source.parent / name), *options]
    command += ["--format", "tfrecord", "--resize", "64x64", "--shard-size", "123000"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACKER_AUDIT")}
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # parsl and mpiexec have theirs there
    environment = {**kept, "PYTHONPATH": PATHS, "PATH": scripts}
    with (
        signals_heard(),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def finished(building: Any, code: int = 0) -> str:
    """What a build says until its end."""
    with building as process:
        output = str(process.communicate(timeout=GUARD_S)[0])
    assert process.returncode == code, output
    return output


def packed(source: Path, name: str) -> int:
    """The number of finished shards of a build."""
    journal = source.parent / f"{name}.partial" / "journal"
    return journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0


def wait_for(process: subprocess.Popen[str], source: Path, name: str, shards: int) -> None:
    """Wait until a build has packed so many shards, and is still running."""
    assert until(lambda: packed(source, name) >= shards or process.poll() is not None, GUARD_S)
    assert process.poll() is None, process.communicate()[0]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A cluster of Ray on this machine; its first node has one core."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", PATHS)
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        checks = {
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 4,
        }
        cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": checks})
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two workers of dask on this machine."""
    distributed = pytest.importorskip("distributed")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", PATHS)
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster:
            yield cluster


def test_a_node_of_ray_dies(ray_cluster: Any, source: Path, reference: dict[str, str]) -> None:
    node = ray_cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    with build(source, "ray", "--engine", f"ray:{ray_cluster.address}") as process:
        wait_for(process, source, "ray", SHARDS // 3)
        ray_cluster.remove_node(node, allow_graceful=False)
        output = process.communicate(timeout=GUARD_S)[0]
    assert process.returncode == 0, output
    assert digests(source.parent / "ray") == reference


def test_a_task_of_ray_that_is_canceled_ends(ray_cluster: Any, tmp_path: Path) -> None:
    """A build in a process that has called `ray.init` must not leave tasks behind."""
    import ray

    from packer.packing.engines.ray import executor

    def endless() -> None:
        (tmp_path / str(os.getpid())).touch()
        while True:
            time.sleep(1)

    ray.init(address=ray_cluster.address, log_to_driver=False)
    try:
        with executor("") as tasks:
            task = tasks.submit(endless)
            assert until(lambda: os.listdir(tmp_path), GUARD_S)
            task.cancel()
        (pid,) = os.listdir(tmp_path)
        assert until(lambda: not os.path.exists(f"/proc/{pid}"), GUARD_S)
    finally:
        ray.shutdown()


def test_a_worker_of_dask_dies(dask_cluster: Any, source: Path, reference: dict[str, str]) -> None:
    with build(source, "dask", "--engine", f"dask:{dask_cluster.scheduler_address}") as process:
        wait_for(process, source, "dask", SHARDS // 3)
        os.kill(dask_cluster.workers[0].pid, signal.SIGKILL)
        output = process.communicate(timeout=GUARD_S)[0]
    assert process.returncode == 0, output
    assert digests(source.parent / "dask") == reference


def test_interrupted_and_resumed_elsewhere(
    ray_cluster: Any, dask_cluster: Any, source: Path, reference: dict[str, str]
) -> None:
    file = source.parent / "scheduler.json"
    file.write_text(json.dumps({"address": dask_cluster.scheduler_address}))
    for engine in ("local", f"ray:{ray_cluster.address}", f"dask:{file}"):
        done = packed(source, "p")  # more than it waited for, if the one before took its time to end
        with build(source, "p", "--engine", engine) as process:
            wait_for(process, source, "p", done + 3)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=GUARD_S)[0]
        assert process.returncode == 130, output
        assert "run the same command to resume" in output
    done = packed(source, "p")
    output = finished(build(source, "p", "--engine", f"ray:{ray_cluster.address}"))
    assert f"note: {done} finished shards kept" in output, output
    assert digests(source.parent / "p") == reference


@pytest.mark.parametrize("library", ["loky", "parsl", "submitit"])
def test_executors_of_other_libraries(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    source = draw_classes(tmp_path / "src")
    finished(build(source, "p", "--engine", f"executors:{library}"))
    finished(build(source, "q"))
    assert digests(tmp_path / "p") == digests(tmp_path / "q")


def test_mpi(source: Path, reference: dict[str, str]) -> None:
    pytest.importorskip("mpi4py")
    if (mpiexec := shutil.which("mpiexec", path=Path(sys.executable).parent)) is None:
        pytest.skip("mpiexec is not installed")
    program = (mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", "-m", "packer")
    finished(build(source, "mpi", "--engine", "mpi4py.futures:MPIPoolExecutor", program=program))
    assert digests(source.parent / "mpi") == reference


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_bad_images(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """One crashes its decoder, one is cut off: they cost themselves, and no node."""
    cluster = request.getfixturevalue(f"{engine}_cluster")
    source = draw_classes(tmp_path / "src")
    mark(source / "ant" / "001.jpg", "SIGSEGV")
    data = (source / "bee" / "002.jpg").read_bytes()
    (source / "bee" / "002.jpg").write_bytes(data[: len(data) // 2])
    address = cluster.address if engine == "ray" else cluster.scheduler_address
    output = finished(build(source, "p", "--engine", f"{engine}:{address}", "--max-bad", "1"), code=1)
    assert "2 of 15" in output and "ant/001.jpg" in output and "bee/002.jpg" in output
    finished(build(source, "p", "--engine", f"{engine}:{address}", "--max-bad", "2"))
    finished(build(source, "q", "--max-bad", "2"))
    assert digests(tmp_path / "p") == digests(tmp_path / "q")


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_node_with_another_library_is_named(
    engine: str, request: pytest.FixtureRequest, source: Path, tmp_path: Path
) -> None:
    """Such as a worker whose environment was not updated."""
    cluster = request.getfixturevalue(f"{engine}_cluster")
    old = tmp_path / "old" / "simplejpeg-0.1.dist-info" / "METADATA"
    old.parent.mkdir(parents=True)
    old.write_text("Metadata-Version: 2.1\nName: simplejpeg\nVersion: 0.1\n")
    paths = f"{tmp_path / 'old'}{os.pathsep}{PATHS}"
    if engine == "ray":
        node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, env_vars={"PYTHONPATH": paths})
        try:
            output = finished(build(source, "other", "--engine", f"ray:{cluster.address}"), code=3)
        finally:
            cluster.remove_node(node)
    else:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--nthreads", "1"]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as worker:
            try:
                assert until(lambda: len(cluster.scheduler_info["workers"]) == 3, GUARD_S)
                output = finished(build(source, "other", "--engine", f"dask:{cluster.scheduler_address}"), code=3)
            finally:
                worker.terminate()
    assert re.search(r"packer: error: \S+: this node has simplejpeg 0\.1, not ", output)


def test_the_commands_of_the_page(ray_cluster: Any, dask_cluster: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    engines = {
        "ray:HEAD:6379": f"ray:{ray_cluster.address}",
        "dask:tcp://HOST:8786": f"dask:{dask_cluster.scheduler_address}",
    }
    draw_classes(tmp_path / "imgs")
    for options, engine in re.findall(r"^packer (build .*) --engine (\w+:\S+:\d+)$", page, re.MULTILINE):
        command = [sys.executable, "-m", "packer", *options.split(), "--overwrite", "--engine", engines.pop(engine)]
        subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": PATHS})
    assert not engines
