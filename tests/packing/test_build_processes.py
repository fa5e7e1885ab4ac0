"""Builds that are interrupted, killed, or whose workers die: no pack, no leavings, no process, one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from drawn import draw_plain, image_file
from running import ROOT, Ran, good, members_of, refused, run_apart, start, until, workers_of

from packer.format.pack import open_pack
from packer.system import PORTABLE

pytestmark = pytest.mark.workers

IMAGES = 1000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many images that packing them as PNG takes many seconds."""
    root = tmp_path_factory.mktemp("many")
    (root / "src").mkdir()
    (root / "one.jpg").write_bytes(image_file(3, 480, 360))
    for i in range(IMAGES):
        os.link(root / "one.jpg", root / "src" / f"{i:05d}.jpg")
    return root / "src"


@contextmanager
def building(source: Path, out: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A build under way: its shards are being written."""
    process = start("build", source, "-o", out, "--encode", "png", "--workers", "2", "--shard-size", "8MB", *options)
    try:
        assert until(lambda: list(out.parent.glob(f"{out.name}.partial/pack/*.tmp")), 120), process.poll()
        yield process
    finally:
        for pid in members_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def packing_in(session: int) -> list[int]:
    """The workers that are writing a shard."""
    return [pid for pid in workers_of(session) if any(".partial/pack/" in file for file in opened_by(pid))]


def opened_by(pid: int) -> Iterator[str]:
    """The files that a process has open; it may close some, or end, meanwhile."""
    with suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{file}")


def stopped_worker(session: int) -> int:
    """A worker that is writing a shard, and stays at it: it was stopped there."""
    found: list[int] = []

    def stop() -> bool:
        for pid in packing_in(session):
            os.kill(pid, signal.SIGSTOP)
            assert until(lambda pid=pid: state_of(pid) == "T", 60)  # type: ignore[misc]
            if pid in packing_in(session):
                found.append(pid)
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    assert until(stop, 60)
    return found[0]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def end_of(process: subprocess.Popen[str], timeout_s: float = 120) -> Ran:
    out, err = process.communicate(timeout=timeout_s)
    return Ran(process.returncode, out, err)


def only_finished_shards_left(process: subprocess.Popen[str], folder: Path) -> None:
    """No process is left, and only the work from which the next build resumes, if there is any."""
    assert until(lambda: not members_of(process.pid), 60), members_of(process.pid)
    assert os.listdir(folder) in ([], ["p.partial"])
    only_finished_shards_in(folder)


def only_finished_shards_in(folder: Path) -> None:
    left = sorted(p.name for p in (folder / "p.partial" / "pack").glob("*"))
    assert len(left) % 2 == 0 and all(name.endswith((".lmdb", ".index.arrow")) for name in left)
    assert bool(left) == (folder / "p.partial").exists()


def test_ctrl_c(many: Path, tmp_path: Path) -> None:
    with building(many, tmp_path / "p") as process:
        os.killpg(process.pid, signal.SIGINT)
        ran = end_of(process)
        assert ran.code == 130
        assert ran.err.strip().splitlines() == ["packer: interrupted"]
        only_finished_shards_left(process, tmp_path)


@pytest.mark.skipif(PORTABLE, reason="nothing keeps Ctrl-C from a worker that is just being started")
def test_ctrl_c_before_packing_has_begun(many: Path, tmp_path: Path) -> None:
    process = start("build", many, "-o", tmp_path / "p", "--encode", "png", "--workers", "2")
    assert until(lambda: workers_of(process.pid), 120)  # the workers are coming up
    os.killpg(process.pid, signal.SIGINT)
    ran = end_of(process)
    assert ran.code == 130 and ran.err.strip().splitlines() == ["packer: interrupted"]
    only_finished_shards_left(process, tmp_path)


STARTING = pytest.mark.skipif(PORTABLE, reason="nothing keeps Ctrl-C from a worker that is just being started")
HANGUP = pytest.mark.skipif(PORTABLE, reason="there is no SIGHUP")
MOMENTS: dict[str, Callable[[int, Path], object]] = {
    "first worker": lambda pid, out: workers_of(pid),
    "all workers": lambda pid, out: len(workers_of(pid)) > 1,
    "folder": lambda pid, out: os.listdir(out),
    "pack": lambda pid, out: "p" in os.listdir(out),
}


@STARTING
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((signal.SIGINT, moment) for moment in ("first worker", "folder", "pack")),
        (signal.SIGTERM, "all workers"),
        pytest.param(signal.SIGHUP, "pack", marks=HANGUP),
    ],
)
def test_at_any_moment(tmp_path: Path, number: int, moment: str) -> None:
    """While libraries are loaded, workers start, packing begins or ends: no traceback, and a whole pack or none."""
    source = draw_plain(tmp_path / "src", 20)
    out = tmp_path / "out"
    out.mkdir()
    process = start("build", source, "-o", out / "p", "--workers", "2")
    assert until(lambda: MOMENTS[moment](process.pid, out) or process.poll() is not None, 120)
    with suppress(ProcessLookupError):
        os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
    ran = end_of(process)
    assert "Traceback" not in ran.err and until(lambda: not members_of(process.pid), 60)
    assert ran.code in (0, 128 + number, -number)
    assert os.listdir(out) in ((["p"], ["p.partial"], []) if ran.code else (["p"],))
    only_finished_shards_in(out)
    if os.listdir(out) == ["p"]:
        assert len(open_pack(out / "p")) == 20


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM), pytest.param(os.killpg, signal.SIGHUP, marks=HANGUP)],
)
def test_terminate(many: Path, tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals) -> None:
    """SIGTERM of a service, SIGHUP of a terminal that is closed: to the build alone, or to all its processes."""
    with building(many, tmp_path / "p") as process:
        send(process.pid, number)
        ran = end_of(process)
        assert (ran.code, ran.err) == (128 + number, "")
        only_finished_shards_left(process, tmp_path)


def test_under_nohup(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 20)
    command = [sys.executable, "-m", "packer", "build", str(source), "-o", str(tmp_path / "p"), "--workers", "2"]
    process = subprocess.Popen(["nohup", *command], cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    assert until(lambda: workers_of(process.pid) or process.poll() is not None, 120)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=240)
    assert process.returncode == 0 and len(open_pack(tmp_path / "p")) == 20


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_ctrl_c_again_and_again(many: Path, tmp_path: Path, pause_s: float) -> None:
    """While it cleans up, and while Python ends: the work is left in order all the same."""
    with building(many, tmp_path / "p") as process:
        for _ in range(4):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(pause_s)
        ran = end_of(process)
        assert ran.code == 130 and ran.err.strip().splitlines() == ["packer: interrupted"]
        only_finished_shards_left(process, tmp_path)


def test_a_worker_is_killed(many: Path, tmp_path: Path) -> None:
    with building(many, tmp_path / "p") as process:
        os.kill(stopped_worker(process.pid), signal.SIGKILL)
        ran = end_of(process)
        assert ran.code == 3
        assert ran.err.replace("\ntry: ", "; ").splitlines() == [
            "packer: error: a worker process died (killed by SIGKILL); free memory or use fewer --workers"
        ]
        only_finished_shards_left(process, tmp_path)


def test_a_worker_that_crashes_is_replaced(many: Path, tmp_path: Path) -> None:
    """Its job runs again, which shows that no image is at fault."""
    with building(many, tmp_path / "p", "--shard-size", "none") as process:
        crashed = stopped_worker(process.pid)  # others have read headers
        os.kill(crashed, signal.SIGSEGV)
        os.kill(crashed, signal.SIGCONT)
        assert until(lambda: packing_in(process.pid) not in ([], [crashed]), 60)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        assert end_of(process).code == 130
        only_finished_shards_left(process, tmp_path)


def test_the_build_itself_is_killed(many: Path, tmp_path: Path) -> None:
    with building(many, tmp_path / "p") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert until(lambda: not members_of(process.pid), 60), members_of(process.pid)
    assert os.listdir(tmp_path) == ["p.partial"]
    assert "is an unfinished build, not a pack" in refused(2, "info", tmp_path / "p.partial")
    assert "its build did not finish" in refused(2, "info", tmp_path / "p")
    source = draw_plain(tmp_path / "src", 3)
    good("build", source, "-o", tmp_path / "p", "--overwrite")
    assert sorted(os.listdir(tmp_path)) == ["p", "src"] and len(open_pack(tmp_path / "p")) == 3


def test_a_second_build_of_the_same_output(many: Path, tmp_path: Path) -> None:
    with building(many, tmp_path / "p") as process:
        os.killpg(process.pid, signal.SIGSTOP)  # so that it does not end first
        ran = run_apart("build", many, "-o", tmp_path / "p")
        os.killpg(process.pid, signal.SIGCONT)
        assert ran.code == 2
        assert ran.err.replace("\ntry: ", "; ").splitlines() == [
            f"packer: error: {tmp_path}/p.partial: another build is writing to it; wait for it, or choose another --out"
        ]
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        assert end_of(process).code == 130
        only_finished_shards_left(process, tmp_path)


def test_an_overwrite_that_is_interrupted_keeps_the_old_pack(many: Path, tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 3)
    good("build", source, "-o", tmp_path / "p")
    with building(many, tmp_path / "p", "--overwrite") as process:
        os.killpg(process.pid, signal.SIGINT)
        assert end_of(process).code == 130
    assert {"p", "src"} <= set(os.listdir(tmp_path)) <= {"p", "p.partial", "src"}
    assert len(open_pack(tmp_path / "p")) == 3


def test_too_many_bad_ends_the_build_early(many: Path, tmp_path: Path) -> None:
    """With --fail-fast, a bad image in the first shard ends the build: the other shards are not packed first."""
    source = tmp_path / "src"
    source.mkdir()
    good_one = (many / "00000.jpg").read_bytes()
    for i in range(IMAGES):
        (source / f"{i:05d}.jpg").write_bytes(good_one if i else good_one[:-2000])
    ran = run_apart(
        "build", source, "-o", tmp_path / "p", "--encode", "png", "--shard-size", "8MB", "--workers", "1", "--fail-fast"
    )
    assert ran.code == 1 and f"1 of {IMAGES:,} inputs is bad, 0 allowed" in ran.err
    assert os.listdir(tmp_path) == ["src"]
