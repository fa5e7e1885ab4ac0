"""Builds on executors of concurrent.futures, and in parts: the same bytes as on one machine."""

from __future__ import annotations

import os
import platform
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crashing
import executors
import pytest
from crashing import mark
from drawn import draw, draw_classes, draw_plain
from running import digests, good, refused

import packer.packing.partial_builds
import packer.packing.plan
from packer import BuildOptions, build_pack
from packer.containers import CONTAINERS
from packer.errors import StorageError, TooManyBad, UsageError, WorkerDied
from packer.format.manifest import FileEntry
from packer.format.pack import open_pack
from packer.format.verify import verify
from packer.model.annotation import Progress
from packer.packing import build_part, plan_pack
from packer.packing.engines import executor
from packer.packing.partial_builds import FinishedParts
from packer.packing.publish import Output
from packer.system.locks import lock_folder

IMAGES = 12
SHARD = 3 * 40 * 30 * 3


class Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(autouse=True)
def fresh() -> None:
    executors.LOST.clear()
    executors.ENDS.clear()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return draw_plain(tmp_path / "src", IMAGES)


def options(source: Path, name: str = "p", **others: Any) -> BuildOptions:
    given = {"out": str(source.parent / name), "workers": 2, "decode_timeout": 20.0, "shard_bytes": SHARD, **others}
    return BuildOptions(str(source), **given)


def reference(source: Path, **others: Any) -> dict[str, str]:
    build_pack(options(source, "reference", **others))
    return digests(source.parent / "reference")


# -- engines


@pytest.mark.workers
@pytest.mark.parametrize("engine", ["executors:threads", "executors:processes", "executors:losing"])
def test_the_same_bytes(source: Path, engine: str) -> None:
    summary = build_pack(options(source, engine=engine))
    assert digests(source.parent / "p") == reference(source)
    lost = {shard.container.name for shard in summary.manifest.shards} if engine.endswith("losing") else set()
    assert set(executors.LOST) == lost


@pytest.mark.parametrize("container", ["hdf5", "webdataset", "zarr"])
def test_labels_in_other_containers(tmp_path: Path, container: str) -> None:
    source = draw_classes(tmp_path / "src")
    build_pack(options(source, format=container, engine="executors:threads", shuffle=3))
    assert digests(tmp_path / "p") == reference(source, format=container, shuffle=3)


@pytest.mark.workers
def test_an_image_that_crashes_the_decoder_costs_itself(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer.packing.plan, "Recipe", crashing.CrashingRecipe)
    mark(source / "004.jpg", "SIGSEGV")
    build_pack(options(source, engine="executors:threads", max_bad="1"))
    pack = open_pack(source.parent / "p")
    assert [(row.path, row.reason) for row in pack.manifest.rejected] == [("004.jpg", "crashed")]
    assert len(pack) == IMAGES - 1


def test_bad_images_count_as_everywhere(source: Path) -> None:
    draw(source / "020.jpg", 20)
    data = (source / "020.jpg").read_bytes()
    (source / "020.jpg").write_bytes(data[: len(data) // 2])
    with pytest.raises(TooManyBad, match="1 of 13"):
        build_pack(options(source, engine="executors:threads"))
    build_pack(options(source, engine="executors:threads", max_bad="1"))
    assert digests(source.parent / "p") == reference(source, max_bad="1")


def test_tasks_that_are_lost_for_ever_end_the_build_and_local_workers_resume_it(source: Path) -> None:
    with pytest.raises(WorkerDied, match=r"executors:hopeless has lost a task: BrokenProcessPool: the node is gone"):
        build_pack(options(source, engine="executors:hopeless"))
    assert not (source.parent / "p.partial").exists(), "no shard was finished"
    build_pack(options(source))
    assert digests(source.parent / "p") == reference(source)


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Let builds end when this number of shards is finished."""
    add, added = Output.add, []

    def stopping(output: Output, name: str, result: Any) -> None:
        if len(added) == shards:
            raise StorageError("disk", "is full", "free disk space")
        added.append(name)
        add(output, name, result)

    monkeypatch.setattr(Output, "add", stopping)


def test_a_build_that_fails_cancels_its_tasks(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 0)
    with pytest.raises(StorageError, match="is full"):
        build_pack(options(source, engine="executors:stuck"))
    assert executors.ENDS == ["done", "canceled"]


@pytest.mark.parametrize("engines", [("local", "executors:threads"), ("executors:threads", "local")])
def test_resumes_with_another_engine(source: Path, engines: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        stop_after(patch, 2)
        build_pack(options(source, engine=engines[0]))
    notes = Notes()
    build_pack(options(source, engine=engines[1]), notes)
    assert "note: 2 finished shards kept" in notes.texts
    assert digests(source.parent / "p") == reference(source)


def test_a_node_with_other_libraries_is_named(source: Path) -> None:
    with pytest.raises(StorageError, match=r"this node has numpy .*, not 0\.1") as caught:
        build_pack(options(source, engine="executors:other_versions"))
    assert caught.value.where == platform.node()


@pytest.mark.parametrize("scratch", [False, True])
def test_a_node_that_does_not_see_the_files_is_named(source: Path, scratch: bool) -> None:
    where = {"out": f"file://{source.parent}/p", "scratch": str(source.parent)} if scratch else {}
    with pytest.raises(StorageError, match=f"does not see /elsewhere{source}; put .* all nodes share") as caught:
        build_pack(options(source, engine="executors:other_disk", **where))
    assert caught.value.where == platform.node()


def test_a_folder_in_an_archive(source: Path) -> None:
    archive = shutil.make_archive(str(source.parent / "set"), "zip", source.parent, source.name)
    build_pack(options(Path(archive) / source.name, engine="executors:threads", out=str(source.parent / "p")))
    assert len(open_pack(source.parent / "p")) == IMAGES


def test_a_node_where_nothing_is_mounted_is_named(source: Path) -> None:
    with pytest.raises(StorageError, match="this node does not see") as caught:
        build_pack(options(source, engine="executors:nothing_mounted", on_bad="skip"))
    assert caught.value.where == platform.node()


def test_an_error_of_a_node_names_it(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("disk", "is full")

    monkeypatch.setattr(executor.Pool, "run", full)
    with pytest.raises(StorageError, match=f"disk: is full \\(on {platform.node()}\\)"):
        build_pack(options(source, engine="executors:threads"))


@pytest.mark.parametrize("engine", ["idle", "leaving"])  # from the beginning, and after the first task
def test_a_cluster_without_workers_is_no_secret(engine: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Notes):
        def note(self, text: str) -> None:
            super().note(text)
            if "no workers" in text:
                raise KeyboardInterrupt

    notes = Enough()
    monkeypatch.setattr(executor, "PATIENCE_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        build_pack(options(source, engine=f"executors:{engine}"), notes)
    assert f"note: executors:{engine} has no workers; the build waits for them" in notes.texts


@pytest.mark.parametrize(
    ("engine", "problem"),
    [("none", "a task returned a NoneType, not"), ("text", "submit returned a str, not a future")],
)
def test_executors_that_are_none(source: Path, engine: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"executors:{engine}: {problem}"):
        build_pack(options(source, engine=f"executors:{engine}"))


def test_tasks_that_somebody_else_cancels(source: Path) -> None:
    with pytest.raises(WorkerDied, match="executors:canceled has lost a task: CancelledError"):
        build_pack(options(source, engine="executors:canceled"))


def test_a_cluster_that_does_not_answer_any_more(source: Path) -> None:
    with pytest.raises(WorkerDied, match="executors:gone has lost a task: ConnectionResetError: the scheduler is gone"):
        build_pack(options(source, engine="executors:gone"))


def test_a_dry_run_knows_the_engines(source: Path) -> None:
    with pytest.raises(UsageError, match="must be local, ray"):
        plan_pack(options(source, engine="spark"))


def test_finish_needs_no_room(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part))
    monkeypatch.setattr(packer.packing.plan, "free_bytes", lambda _: 0)
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source, force=True)


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ("executors:nothing", "returned a list"), ("executors:absent", "has no function absent"),
        ("no_such_module:f", "cannot be imported"), ("nonsense", "must be local, ray"), ("pathlib:Path.home", "has no"),
    ],
)  # fmt: skip
def test_what_is_no_engine(source: Path, engine: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        build_pack(options(source, engine=engine))
    assert not (source.parent / "p.partial").exists()


def test_the_files_of_another_attempt_stay(source: Path) -> None:
    """A node that was given up still writes: its files have other names, and are not in the pack."""
    late: list[Path] = []

    class Late(Progress):
        def note(self, text: str) -> None:
            if text.startswith("plan"):
                late.append(source.parent / "p.partial" / "pack" / "shard-00001.lmdb.deadbeef.tmp")
                late[0].parent.mkdir(parents=True, exist_ok=True)
                late[0].write_bytes(b"late")

    build_pack(options(source, engine="executors:losing"), Late())
    assert late and digests(source.parent / "p") == reference(source)


# -- parts


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_in_any_order(source: Path, parts: int) -> None:
    for number in reversed(range(1, parts + 1)):
        summary = build_part(options(source, job=f"{number}/{parts}"))
        assert str(summary.part) == f"{number}/{parts}" and summary.of_shards == 4
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)
    assert not (source.parent / "p.partial").exists()


def test_a_part_that_is_missing_is_named_and_may_follow(source: Path) -> None:
    build_part(options(source, job="1/2"))
    with pytest.raises(UsageError, match=r"part 2/2 is not complete") as caught:
        build_pack(options(source, finish=True))
    assert str(caught.value).endswith('run job="2/2"')
    build_part(options(source, job="2/2"))
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)


def test_a_part_of_bad_images_only(source: Path) -> None:
    for number in range(3):
        data = (source / f"{number:03d}.jpg").read_bytes()
        (source / f"{number:03d}.jpg").write_bytes(data[: len(data) // 2])
    for part in ("1/4", "2/4", "3/4", "4/4"):
        build_part(options(source, job=part, max_bad="3"))
    build_pack(options(source, finish=True, max_bad="3"))
    assert digests(source.parent / "p") == reference(source, max_bad="3")


def test_more_parts_than_shards(source: Path) -> None:
    for number in range(1, 10):
        build_part(options(source, job=f"{number}/9"))
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)


def test_a_finish_that_was_interrupted(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part))
    notes = Notes()
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(Output, "publish_folder", lambda *_: (_ for _ in ()).throw(StorageError("disk", "is full")))
        build_pack(options(source, finish=True), notes)
    assert notes.texts[-1].endswith("p.partial: run --finish again")
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)
    assert not (source.parent / "p.partial").exists()


def test_a_part_that_was_begun_resumes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        stop_after(patch, 1)
        build_part(options(source, job="2/2"))
    notes = Notes()
    build_part(options(source, job="2/2"), notes)
    assert "note: 1 finished shard kept" in notes.texts
    build_part(options(source, job="1/2"))
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)


def test_a_source_that_changed_between_the_parts(source: Path) -> None:
    build_part(options(source, job="1/2"))
    draw(source / "000.jpg", 99, 44, 33)
    build_part(options(source, job="2/2"))
    with pytest.raises(UsageError, match="the source has changed since part 1/2"):
        build_pack(options(source, finish=True))
    build_part(options(source, job="1/2"))
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)


def test_parts_with_other_options(source: Path) -> None:
    build_part(options(source, job="1/2"))
    build_part(options(source, job="2/2", resize="16"))
    with pytest.raises(UsageError, match='part 2/2 differs from this build: resize="16", now none'):
        build_pack(options(source, finish=True))
    with pytest.raises(UsageError, match="discard it with overwrite"):
        build_part(options(source, job="2/2"), notes := Notes())
    assert not any("run the same command" in text for text in notes.texts)
    build_part(options(source, job="2/3"))
    with pytest.raises(
        UsageError, match=r"holds builds in 2 and 3 parts; remove the folders of all but one, such as part-\*-of-2"
    ):
        build_pack(options(source, finish=True))


def test_builds_that_get_in_the_way_of_parts(source: Path) -> None:
    with pytest.raises(UsageError, match="holds no parts of a build"):
        build_pack(options(source, finish=True))
    build_part(options(source, job="1/2"))
    with pytest.raises(UsageError, match="holds parts of a build"):
        build_pack(options(source))
    lock = lock_folder(str(source.parent / "p.partial" / "part-1-of-2"))
    assert lock is not None
    with pytest.raises(UsageError, match="part 1/2 is still being built"):
        build_pack(options(source, finish=True))
    with pytest.raises(UsageError, match="another build is writing to it"):
        build_part(options(source, job="1/2"))
    with pytest.raises(UsageError, match="part-1-of-2 is still being built"):
        build_pack(options(source, overwrite=True))
    lock.close()
    build_pack(options(source, overwrite=True))
    assert digests(source.parent / "p") == reference(source)


def test_a_part_waits_for_others_that_begin_and_not_for_a_build(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = source.parent / "p.partial"
    lock = lock_folder(str(partial))
    assert lock is not None
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="a whole build, or finish, is writing to it"):
        patch.setattr(packer.packing.partial_builds, "PATIENCE_S", 0.2)
        build_part(options(source, job="1/2"))
    assert {*os.listdir(partial)} <= {".lock"}
    polled: list[float] = []

    def sleep(seconds: float) -> None:
        polled.append(seconds)
        lock.close()

    monkeypatch.setattr(packer.packing.partial_builds, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    build_part(options(source, job="1/2"))
    assert len(polled) == 1


def test_a_part_that_fails_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 0)
    with pytest.raises(StorageError, match="is full"):
        build_part(options(source, job="1/2"))
    assert os.listdir(source.parent) == [source.name]


@pytest.mark.parametrize("mine", ["slurm-17.out", "part-0-of-0"])
def test_finish_removes_nothing_of_the_user(source: Path, mine: str) -> None:
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part))
    (source.parent / "p.partial" / mine).write_text("dear")
    with pytest.raises(UsageError, match=f"holds {mine}, which was not left by a build"):
        build_pack(options(source, finish=True))
    (source.parent / "p.partial" / mine).unlink()
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)


@pytest.mark.parametrize("file", ["container", "index"])
@pytest.mark.parametrize("format", CONTAINERS)
def test_finish_publishes_no_shard_that_was_damaged_after_its_part(source: Path, format: str, file: str) -> None:
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part, format=format))
    folder = source.parent / "p.partial" / "part-2-of-2" / "pack"
    path = min(path for path in folder.glob("shard-*") if (path.suffix == ".arrow") == (file == "index"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="part 2/2: shards have changed since they were packed"):
        build_pack(options(source, finish=True, format=format))
    assert not (source.parent / "p").exists()
    build_part(options(source, job="2/2", format=format))
    build_pack(options(source, finish=True, format=format))
    assert not verify(source.parent / "p").problems


@pytest.mark.parametrize("count", range(1, 5))
def test_finish_goes_on_after_an_interruption_between_any_two_files(
    source: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part))
    taken: list[str] = []
    take = FinishedParts._take

    def stopped(self: FinishedParts, path: str, file: FileEntry) -> None:
        if len(taken) == count:
            raise KeyboardInterrupt
        taken.append(path)
        take(self, path, file)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FinishedParts, "_take", stopped)
        build_pack(options(source, finish=True))
    build_pack(options(source, finish=True))
    assert digests(source.parent / "p") == reference(source)


@pytest.mark.parametrize("what", ["source", "shard"])
def test_finish_reads_everything_again_if_it_is_asked_to(source: Path, what: str) -> None:
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part))
    shard = source.parent / "p.partial" / "part-2-of-2" / "pack" / "shard-00003.lmdb"
    file = source / "011.jpg" if what == "source" else shard
    data = bytearray(file.read_bytes())
    data[14] ^= 1  # of a JPEG, the horizontal density
    file.write_bytes(data)
    with pytest.raises(UsageError, match="part 2/2: shards or images have changed since") as caught:
        build_pack(options(source, finish=True, recheck=True))
    assert str(caught.value).endswith('run job="2/2"')
    build_part(options(source, job="2/2"))
    build_pack(options(source, finish=True, recheck=True))
    assert digests(source.parent / "p") == reference(source)


def test_a_part_does_not_decode_the_images_of_others_to_list_them(source: Path) -> None:
    """As a whole build does if it will fail: each of a thousand parts would."""
    data = (source / "000.jpg").read_bytes()
    (source / "000.jpg").write_bytes(data[:20])  # found when its header is read
    (source / "001.jpg").write_bytes(data[:-40] + bytes(38) + data[-2:])  # found when it is decoded
    with pytest.raises(TooManyBad, match=r"1 of 12 inputs is bad, 0 allowed \(images were not decoded to the end"):
        build_part(options(source, job="2/2"))
    with pytest.raises(TooManyBad, match="2 of 12 inputs are bad, 0 allowed;"):
        build_pack(options(source))


def test_each_part_lists_its_bad_images(source: Path) -> None:
    for number in (0, 11):
        data = (source / f"{number:03d}.jpg").read_bytes()
        (source / f"{number:03d}.jpg").write_bytes(data[:-40] + bytes(38) + data[-2:])  # found when it is decoded
    for part in ("1/2", "2/2"):
        build_part(options(source, job=part, max_bad="2", quarantine=str(source.parent / "bad")))
    build_pack(options(source, finish=True, max_bad="2", quarantine=str(source.parent / "bad")))
    lists = {file.name: file.read_text() for file in (source.parent / "bad").iterdir()}
    assert {name: ("000.jpg" in text, "011.jpg" in text) for name, text in lists.items()} == {
        "rejected-1-of-2.tsv": (True, False), "rejected-2-of-2.tsv": (False, True), "rejected.tsv": (True, True),
    }  # fmt: skip


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "a/b", "", "-1/3", None])
def test_what_is_no_part(source: Path, part: str | None) -> None:
    with pytest.raises(UsageError, match="must be K/N"):
        build_part(options(source, job=part))
    assert not (source.parent / "p.partial").exists()


def test_a_part_is_not_published_as_a_pack(source: Path) -> None:
    with pytest.raises(UsageError, match="call build_part"):
        build_pack(options(source, job="1/2"))
    assert not (source.parent / "p").exists()


def test_the_commands(source: Path) -> None:
    out = source.parent / "p"
    for part in ("1/2", "2/2"):
        text = good("build", source, "-o", out, "--shard-size", SHARD, "--job", part).out
        assert f"part {part}: 6 images in 2 of 4 shards" in text
    assert "packed 12 images" in good("build", source, "-o", out, "--shard-size", SHARD, "--finish").out
    assert "excludes --finish" in refused(2, "build", source, "-o", out, "--job", "1/2", "--finish")
    assert digests(out) == reference(source)
