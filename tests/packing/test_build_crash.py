"""Images on which the decoder crashes or hangs: each costs itself, and no other; the build never hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import crashing
import pytest
from crashing import mark
from drawn import draw_plain
from running import digests, good, run, until

import packer.packing.plan
from packer.errors import TooManyBad, WorkerDied
from packer.format.pack import open_pack
from packer.model.annotation import Progress
from packer.packing import BuildOptions, build_pack, plan_pack
from packer.packing.write_shard import files_of, name_files, pack_shard
from packer.system.pool import Pool, Worker

pytestmark = pytest.mark.workers

IMAGES = 12
HANGS_S = 2.0
"""A busy machine keeps a worker waiting for less, at least not twice at the same image."""
ONE_SHARD, FOUR_SHARDS = None, 3 * 40 * 30 * 3


@pytest.fixture(autouse=True)
def crashing_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer.packing.plan, "Recipe", crashing.CrashingRecipe)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return draw_plain(tmp_path / "src", IMAGES)


def options(source: Path, **others: Any) -> BuildOptions:
    given = {"out": str(source.parent / "p"), "workers": 2, "decode_timeout": 20.0, **others}
    return BuildOptions(str(source), **given)


def reasons(pack: Path) -> dict[str, str]:
    return {item.path: item.reason for item in open_pack(pack).manifest.rejected}


class Counts(Progress):
    """Keeps what a build has said of its progress."""

    def __init__(self) -> None:
        self.done = self.bad = 0
        self.reported: list[tuple[int, int]] = []

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        self.done = self.bad = 0

    def advance(self, done: int, bad: int = 0) -> None:
        self.done += done
        self.bad += bad
        self.reported.append((self.done, self.bad))


def test_each_signal_costs_one_image(source: Path) -> None:
    ways = {4: "SIGSEGV", 5: "SIGABRT", 6: "SIGBUS", 7: "SIGILL", 9: "SIGFPE"}
    for i, way in ways.items():
        mark(source / f"{i:03d}.jpg", way)
    summary = build_pack(options(source, max_bad="5", shard_bytes=FOUR_SHARDS))
    assert [(item.path, item.reason, item.problem) for item in summary.manifest.rejected] == [
        (f"{i:03d}.jpg", "crashed", f"crashed the decoder twice (killed by {way}); re-save it with an image editor")
        for i, way in ways.items()
    ]
    assert open_pack(source.parent / "p").paths == [f"{i:03}.jpg" for i in range(IMAGES) if i not in ways]


@pytest.mark.parametrize(("workers", "shard_bytes"), [(2, FOUR_SHARDS), (4, ONE_SHARD)])
def test_many_in_any_shards_with_any_threads(source: Path, workers: int, shard_bytes: int | None) -> None:
    """Several in one shard, the first, the last; one worker makes the same pack of several shards."""
    bad = {0: "SIGSEGV", 1: "SIGABRT", 11: "SIGSEGV"}
    for i, way in bad.items():
        mark(source / f"{i:03d}.jpg", way)
    counts = Counts()
    build_pack(options(source, on_bad="skip", shard_bytes=shard_bytes, workers=workers), counts)
    pack = open_pack(source.parent / "p")
    assert reasons(source.parent / "p") == {f"{i:03d}.jpg": "crashed" for i in bad}
    assert pack.paths == [f"{i:03}.jpg" for i in range(IMAGES) if i not in bad]
    assert pack.manifest.counts["found"] == pack.manifest.counts["packed"] + pack.manifest.counts["rejected"] == IMAGES
    assert all(done <= IMAGES and crashed <= len(bad) for done, crashed in counts.reported)
    assert counts.reported[-1] == (IMAGES, len(bad))
    good("verify", source.parent / "p")
    if shard_bytes == FOUR_SHARDS:
        build_pack(options(source, on_bad="skip", shard_bytes=shard_bytes, workers=1, out=str(source.parent / "q")))
        assert digests(source.parent / "p") == digests(source.parent / "q")


def test_by_default_it_ends_the_build_with_its_name(source: Path) -> None:
    mark(source / "004.jpg", "SIGSEGV")
    with pytest.raises(TooManyBad, match="1 of 12 inputs is bad, 0 allowed") as caught:
        build_pack(options(source))
    assert "004.jpg: crashed the decoder twice (killed by SIGSEGV); re-save it" in str(caught.value)
    assert not (source.parent / "p").exists()


def test_all_crash(source: Path) -> None:
    for file in list(source.iterdir())[2:]:
        file.unlink()
    for file in source.iterdir():
        mark(file, "SIGSEGV")
    with pytest.raises(TooManyBad, match="2 of 2 inputs are bad"):
        build_pack(options(source, on_bad="skip"))


def test_once_is_no_fault_of_the_image(source: Path) -> None:
    """Somebody kills a worker, memory has a bad moment: the job is run again, and nothing is lost."""
    mark(source / "004.jpg", f"once:{source.parent}/happened")
    summary = build_pack(options(source, shard_bytes=FOUR_SHARDS))
    assert (source.parent / "happened").exists()
    assert summary.manifest.records == IMAGES and not summary.manifest.rejected


@pytest.mark.parametrize("way", ["SIGKILL", "exit"])
def test_what_is_no_crash_ends_the_build(source: Path, way: str) -> None:
    mark(source / "004.jpg", way)
    with pytest.raises(WorkerDied) as caught:
        build_pack(options(source, on_bad="skip"))
    how = "killed by SIGKILL); free memory or use fewer workers" if way == "SIGKILL" else "exit code 7); build again"
    assert str(caught.value) == f"a worker process died ({how}"


@pytest.mark.parametrize(("way", "workers"), [("sleeps", 4), ("never", 1)])
def test_an_image_that_is_never_finished(source: Path, way: str, workers: int) -> None:
    """Also in a library call that holds the GIL forever."""
    mark(source / "004.jpg", way)
    mark(source / "009.jpg", "SIGSEGV")
    build_pack(options(source, on_bad="skip", decode_timeout=HANGS_S, workers=workers))
    assert reasons(source.parent / "p") == {"004.jpg": "timeout", "009.jpg": "crashed"}
    (item, _) = open_pack(source.parent / "p").manifest.rejected
    assert item.problem.startswith(f"was not decoded within {HANGS_S:g} s, twice; raise --decode-timeout, or re-save")


@pytest.mark.parametrize("timeout", [3.0, None])
def test_slow_images_are_none_that_hang(source: Path, timeout: float | None) -> None:
    """Together they take longer than the timeout, but each alone does not."""
    for i in range(8 if timeout else 1):
        mark(source / f"{i:03d}.jpg", "slow")
    build_pack(options(source, decode_timeout=timeout, workers=1))
    assert len(open_pack(source.parent / "p")) == IMAGES


def test_in_the_sample_that_the_plan_encodes(source: Path) -> None:
    mark(source / "000.jpg", "sleeps")
    mark(source / "011.jpg", "SIGABRT")
    asked = {"encode": "png", "on_bad": "skip", "decode_timeout": HANGS_S}
    plan = plan_pack(options(source, **asked))
    assert plan.pack_bytes > 0 and not plan.inputs.rejected
    mark(source / "000.jpg", "SIGABRT")  # the build samples again, and need not wait again
    build_pack(options(source, **asked))
    assert set(reasons(source.parent / "p")) == {"000.jpg", "011.jpg"}


def test_a_shard_with_a_crash_is_gone_on_with(source: Path) -> None:
    """The shard that lacks an image is finished; the next build keeps it and decodes nothing again."""
    mark(source / "001.jpg", "SIGSEGV")
    asked = {"on_bad": "skip", "shard_bytes": FOUR_SHARDS, "workers": 1}
    mark(source / "010.jpg", "SIGKILL")
    with pytest.raises(WorkerDied):
        build_pack(options(source, **asked))
    left = sorted(p.name for p in (source.parent / "p.partial" / "pack").glob("*.lmdb"))
    assert left == [f"shard-0000{i}.lmdb" for i in range(3)]
    (source / "010.jpg").write_bytes((source / "010.jpg").read_bytes().replace(b"SIGKILL", b"SIGSEGV"))
    build_pack(options(source, **asked))
    assert reasons(source.parent / "p") == {"001.jpg": "crashed", "010.jpg": "crashed"}


def test_on_the_command_line(source: Path) -> None:
    mark(source / "004.jpg", "SIGSEGV")
    ran = run("build", source, "-o", source.parent / "p", "--json")
    facts = json.loads(ran.out)
    assert ran.code == facts["exit_code"] == 1 and facts["error"] == "TooManyBad"
    assert [(item["path"], item["reason"]) for item in facts["rejected"]] == [("004.jpg", "crashed")]
    ran = good("build", source, "-o", source.parent / "p", "--max-bad", 1)
    assert "rejected: 004.jpg: crashed the decoder twice (killed by SIGSEGV)" in ran.out
    assert "packed 11 images of 12 found (1 rejected)" in ran.out


def test_a_worker_that_is_killed_while_it_is_idle_is_replaced(source: Path) -> None:
    plan = plan_pack(options(source))
    (source.parent / "out").mkdir()
    with Pool(2, 60, "packer.packing.write_shard") as pool:
        pool.start(1)
        (worker,) = pool._idle
        os.kill(worker.process.pid, signal.SIGKILL)
        assert until(lambda: worker.process.poll() is not None, 60)
        ((number, result),) = pool.run(pack_shard, list(plan.jobs(str(source.parent / "out"))))
    assert number == 0 and result.entry is not None and result.entry.records == IMAGES


def test_no_process_stays(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    begin = Worker.begin

    def add_note(worker: Worker, *task: Any) -> None:
        started.append(worker.process.pid)
        begin(worker, *task)

    monkeypatch.setattr(Worker, "begin", add_note)
    mark(source / "006.jpg", "SIGSEGV")
    with pytest.raises(TooManyBad):
        build_pack(options(source, shard_bytes=FOUR_SHARDS))
    assert len(set(started)) > 2
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started), 60)


def test_two_attempts_at_one_shard(source: Path) -> None:
    """The second begins and ends while the first is at work: neither meets what the other writes."""
    plan = plan_pack(options(source))
    folder = source.parent / "out"
    folder.mkdir()
    (job,) = plan.jobs(str(folder))
    results = []

    @contextmanager
    def decoding(row: int) -> Iterator[None]:
        if row == 5:
            results.append(pack_shard(replace(job, attempt="second"), lambda done, bad: None))
            name_files(job.folder, job.name, "second")
        yield

    results.append(pack_shard(job, lambda done, bad: None, decoding))
    assert results[0].entry is not None and results[0].entry == results[1].entry
    assert sorted(os.listdir(folder)) == sorted(
        ["data.index.arrow", "data.mdb", *(os.path.basename(path) for path in files_of("", job.name, job.attempt))]
    )
    name_files(job.folder, job.name, job.attempt)
    assert sorted(os.listdir(folder)) == ["data.index.arrow", "data.mdb"]


def test_what_a_dead_worker_leaves_goes_when_its_job_runs_again(source: Path) -> None:
    mark(source / "009.jpg", "SIGSEGV")
    plan = plan_pack(options(source, max_bad="1"))
    folder = source.parent / "out"
    folder.mkdir()
    (folder / "data.mdb.another.tmp").touch()
    with Pool(1, 60, "packer.packing.write_shard") as pool:
        result = dict(pool.run(pack_shard, list(plan.jobs(str(folder)))))[0]
    assert result.entry is not None
    name_files(str(folder), "data.mdb", result.attempt)
    assert sorted(os.listdir(folder)) == ["data.index.arrow", "data.mdb", "data.mdb.another.tmp"]
