"""Builds from wherever a user may call them: they work, and leave the process as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from drawn import draw_plain
from running import ROOT, until

from packer.errors import PackerError, UsageError, WorkerDied
from packer.system import pool as pool_module
from packer.system.child import READY
from packer.system.pool import Pool, import_path

pytestmark = pytest.mark.workers
IMAGES = 12
HEAD = """
import __main__, asyncio, json, multiprocessing, os, signal, sys, threading, warnings
from multiprocessing import forkserver, resource_tracker
import cv2

def state():
    server = forkserver._forkserver
    return {
        "main": id(__main__), "environment": dict(os.environ), "path": list(sys.path),
        "method": multiprocessing.get_start_method(allow_none=True), "preloaded": list(server._preload_modules),
        "server": server._forkserver_pid, "tracker": resource_tracker._resource_tracker._pid,
        "cv2": [cv2.getNumThreads(), log_level()], "switch": sys.getswitchinterval(), "folder": os.getcwd(),
        "signals": {str(n): repr(signal.getsignal(n)) for n in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "files": sorted(os.readlink(f.path) for f in os.scandir("/proc/self/fd") if os.path.exists(f.path)),
        "threads": sorted(map(repr, threading.enumerate())), "warnings": len(warnings.filters),
    }

def log_level():
    return (cv2 if hasattr(cv2, "getLogLevel") else cv2.utils.logging).getLogLevel()

def build(name):
    from packer import BuildOptions, build_pack
    from packer.format.verify import verify
    options = BuildOptions(sys.argv[1], out=f"{sys.argv[2]}/{name}", workers=2, encode="png", shard_bytes=8000)
    assert build_pack(options).manifest.records == 12
    assert not verify(f"{sys.argv[2]}/{name}", deep=True).problems

def at_once(kind, **options):
    each = [kind(target=build, args=(f"p{n}",), **options) for n in range(2)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    assert all(getattr(one, "exitcode", 0) == 0 for one in each)

async def in_a_loop():
    build("p")

cv2.setNumThreads(3)
"""
COMPARED = """
before = state()
{}
after = state()
assert before == after, [(name, before[name], after[name]) for name in before if before[name] != after[name]]
print("same")
"""
ALONE = 'build("p")'
CALLS = {
    "threads": "at_once(threading.Thread)",
    "daemonic processes": 'at_once(multiprocessing.get_context("fork").Process, daemon=True)',
    "event loop": "asyncio.run(in_a_loop())",
}


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """The source, and a folder for packs."""
    draw_plain(tmp_path / "src", IMAGES)
    (tmp_path / "out").mkdir()
    return [str(tmp_path / "src"), str(tmp_path / "out")]


def output_of(command: list[str], program: str | None = None, **variables: str) -> str:
    """What it prints; its standard input is `program`, or a pipe that nobody writes to and nobody may read."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    done = subprocess.run(
        [sys.executable, *command], input=program or "", env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("call", CALLS)
def test_nothing_changes(places: list[str], call: str) -> None:
    assert output_of(["-c", HEAD + COMPARED.format(CALLS[call]), *places]) == "same\n"
    assert all(os.path.isfile(os.path.join(places[1], name, "pack.json")) for name in os.listdir(places[1]))


@pytest.mark.parametrize("way", ["script", "standard input"])
def test_without_a_main_guard(places: list[str], tmp_path: Path, way: str) -> None:
    """A script, and lines typed into an interpreter; the fork server is unchanged."""
    server = 'multiprocessing.set_forkserver_preload(["json"])\nforkserver.ensure_running()\n'
    program = HEAD + server + COMPARED.format(ALONE)
    (tmp_path / "script.py").write_text(program)
    if way == "script":
        assert output_of([str(tmp_path / "script.py"), *places]) == "same\n"
    else:
        assert output_of(["-", *places], program) == "same\n"


def test_a_python_that_prints_when_it_starts_and_no_temporary_file_stays(places: list[str], tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "sitecustomize.py").write_text("print('welcome', flush=True)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    said = output_of(["-c", HEAD + ALONE, *places], PYTHONPATH=path, TMPDIR=str(tmp_path / "tmp"))
    assert said == "welcome\n" and os.listdir(tmp_path / "tmp") == []


def test_workers_import_nothing_from_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert "" not in import_path() and str(ROOT) in import_path()


def printing(text: str, report: object, decoding: object) -> str:
    print(text, flush=True)
    os.write(1, READY)
    return text


def failing(error: Exception, report: object, decoding: object) -> None:
    raise error


def ending(code: int, report: object, decoding: object) -> None:
    os._exit(code)


def test_jobs_that_print(capfd: pytest.CaptureFixture[str]) -> None:
    """Their words do not get between the results, and not into what this process prints."""
    with Pool(1, None, "") as pool:
        texts = ["a" * 100_000, "b"]
        assert dict(pool.run(printing, texts)) == dict(enumerate(texts))
    out, err = capfd.readouterr()
    assert out == "" and "b" in err


@pytest.mark.parametrize(
    ("error", "caught"),
    [(UsageError("--x", "is wrong"), UsageError), (OSError(5, "no"), OSError), (ValueError("no"), ValueError)],
)
def test_errors_come_as_they_are(error: Exception, caught: type[Exception]) -> None:
    with Pool(2, None, "") as pool:
        with pytest.raises(caught, match=str(error.args[-1] or error.args[1])) as found:
            list(pool.run(failing, [error]))
        assert "in failing\n" in str(found.value.__cause__)
        assert dict(pool.run(printing, ["still there"])) == {0: "still there"}


def test_a_job_that_cannot_be_run_again_ends_the_run() -> None:
    with Pool(1, None, "") as pool, pytest.raises(WorkerDied, match="exit code 3"):
        list(pool.run(ending, [3]))


def counting(row: int, report: Callable[[int, int], None], decoding: object) -> None:
    report(row, 1)


@pytest.mark.parametrize("inherited", [True, False])
def test_counters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inherited: bool) -> None:
    """Also where a process inherits no file, and opens it by its name."""
    monkeypatch.setattr(pool_module, "INHERITED", inherited)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told: list[tuple[int, int]] = []
    with Pool(1, None, "") as pool:
        list(pool.run(counting, [3, 4], lambda done, bad: told.append((done, bad))))
        assert len(list(tmp_path.iterdir())) == (not inherited)
    assert told[-1] == (7, 2) and not list(tmp_path.iterdir())


def test_modules_that_cannot_be_loaded() -> None:
    with Pool(1, None, "no.such.module") as pool:
        assert dict(pool.run(printing, ["a"])) == {0: "a"}


def test_all_processes_end_with_the_pool() -> None:
    with Pool(3, None, "numpy") as pool:
        pool.start(3)
        pids = [one.process.pid for one in pool._idle]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    with pytest.raises(PackerError), Pool(3, None, "numpy") as pool:
        pool.start(3)
        pids = [one.process.pid for one in pool._idle]
        raise PackerError("now")
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 60)
