"""Where a pack is written: what may be replaced, and that nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from drawn import draw, draw_plain, tree_state
from running import digests, good, refused, run

from packer.errors import StorageError, UsageError
from packer.format.pack import open_pack
from packer.packing import BuildOptions, build_pack


@pytest.fixture
def source(sources: Path) -> Path:
    return sources / "plain"


def test_default_output_lies_beside_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_plain(tmp_path / "my set", 2)
    good("build", f"{tmp_path}/my set/", "--format", "webdataset")
    assert len(open_pack(tmp_path / "my set.webdataset")) == 2
    monkeypatch.chdir(tmp_path / "my set")
    good("build", ".", "--format", "hdf5")
    assert sorted(os.listdir(tmp_path)) == ["my set", "my set.hdf5", "my set.webdataset"]


@pytest.mark.parametrize(("name", "container"), [
    ("p.lmdb", "lmdb"), ("p.hdf5", "hdf5"), ("p.H5", "hdf5"), ("p.tfrecord/", "tfrecord"), ("p.tfrecords", "tfrecord"),
    ("p.tar", "webdataset"), ("p.webdataset", "webdataset"), ("p.wds", "webdataset"), ("p.v2", "lmdb"), ("h5", "lmdb"),
    ("p.parquet", "parquet"), ("p.zarr/", "zarr"), ("p.n5", "n5"),
])  # fmt: skip
def test_the_extension_chooses_the_container(tmp_path: Path, name: str, container: str) -> None:
    assert BuildOptions("imgs", f"{tmp_path}/{name}").container == container
    assert BuildOptions("imgs", f"{tmp_path}/{name}", format=container).container == container


def test_a_pack_has_the_container_of_its_name(source: Path, tmp_path: Path) -> None:
    good("build", source, "-o", tmp_path / "p.h5")
    assert open_pack(tmp_path / "p.h5").manifest.container == "hdf5"
    good("build", source, "-o", tmp_path / "p.h5", "--format", "hdf5", "--overwrite")
    line = refused(2, "build", source, "-o", tmp_path / "p.h5", "--format", "tfrecord", "--overwrite")
    assert "p.h5 means hdf5, but --format is tfrecord; leave out --format" in line
    with pytest.raises(UsageError, match="format is tfrecord"):
        BuildOptions("imgs", "p.tar", format="tfrecord")


def test_existing_output(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "foreign")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = tree_state(tmp_path)
    for name in ("file", "foreign", "link", "dangling"):
        for options in ([], ["--overwrite"]):
            line = refused(2, "build", source, "-o", tmp_path / name, *options)
            assert f"{tmp_path}/{name}: exists and is not a pack; choose another --out" in line
    assert tree_state(tmp_path) == before


def test_empty_folder_is_taken(source: Path, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    good("build", source, "-o", tmp_path / "p")
    assert len(open_pack(tmp_path / "p")) == 12 and os.listdir(tmp_path) == ["p"]


def test_overwrite_replaces_a_pack_and_only_when_asked(source: Path, tmp_path: Path) -> None:
    good("build", source, "-o", tmp_path / "p")
    before = digests(tmp_path / "p")
    line = refused(2, "build", source, "-o", tmp_path / "p", "--resize", "8")
    assert "exists; choose another --out, or replace it with --overwrite" in line
    assert digests(tmp_path / "p") == before
    good("build", source, "-o", tmp_path / "p", "--resize", "8", "--overwrite", "--format", "hdf5")
    assert open_pack(tmp_path / "p").manifest.container == "hdf5"
    assert os.listdir(tmp_path) == ["p"]


def test_failing_overwrite_keeps_the_old_pack(source: Path, tmp_path: Path) -> None:
    good("build", source, "-o", tmp_path / "p")
    before = digests(tmp_path / "p")
    bad = tmp_path / "bad"
    shutil.copytree(source, bad)
    (bad / "005.jpg").write_bytes((bad / "005.jpg").read_bytes()[:-300])  # only a worker sees it
    assert run("build", bad, "-o", tmp_path / "p", "--overwrite").code == 1
    assert digests(tmp_path / "p") == before and sorted(os.listdir(tmp_path)) == ["bad", "p", "p.partial"]
    good("build", bad, "-o", tmp_path / "p", "--overwrite", "--max-bad", "1")  # resumes
    assert digests(tmp_path / "p") != before and sorted(os.listdir(tmp_path)) == ["bad", "p"]


@pytest.mark.parametrize("failing", ["pack.json", "rename"])
def test_overwrite_that_fails_at_the_end_keeps_the_old_pack(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    out = tmp_path / "p"
    options = BuildOptions(str(source), out=str(out), overwrite=True, workers=1)
    build_pack(options)
    before = digests(out)
    rename, fsync = os.rename, os.fsync

    def no_rename(old: Any, new: Any) -> None:
        if str(old).endswith(".partial/pack"):
            raise OSError(5, "Input/output error")
        rename(old, new)

    def no_fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("pack.json"):
            raise OSError(28, "No space left on device")
        fsync(fd)

    # where two names cannot change places in one step, as on some file systems
    monkeypatch.setattr("packer.packing.publish.exchange_names", lambda a, b: False)
    monkeypatch.setattr(os, "rename", no_rename) if failing == "rename" else monkeypatch.setattr(os, "fsync", no_fsync)
    with pytest.raises(StorageError, match=r"cannot be published: (Input/output error|No space left on device)"):
        build_pack(options)
    monkeypatch.undo()
    assert digests(out) == before
    build_pack(options)  # resumes from the finished shards
    assert digests(out) == before and os.listdir(tmp_path) == ["p"]


def test_source_and_output_lie_apart(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "up" / "src", 2)
    (tmp_path / "alias").symlink_to(source)
    before = tree_state(tmp_path)
    for out in (source / "p", source / "deep" / "p", tmp_path / "alias" / "p"):
        assert "is inside the source folder" in refused(2, "build", source, "-o", out)
    for out in (source, tmp_path / "up", tmp_path / "alias"):
        assert "would replace the source folder" in refused(2, "build", source, "-o", out, "--overwrite")
    assert tree_state(tmp_path) == before


def test_left_work_is_cleared_and_a_foreign_folder_of_that_name_is_not_ours(source: Path, tmp_path: Path) -> None:
    left = tmp_path / "p.partial"
    left.mkdir()
    (left / "pack").mkdir()
    (left / "pack" / "shard-00000.lmdb.tmp").write_bytes(b"torn")
    (left / "plan").mkdir()
    for name in ("inputs.arrow", "inputs.arrow.suspects", "part-00000.arrow.0123abcd"):
        (left / "plan" / name).write_bytes(b"torn")
    for mine in ("mine.txt", "partners.txt"):  # not a part of a build
        (left / mine).write_bytes(b"dear")
        assert f"holds {mine}, which was not left by a build; move it away" in refused(
            2, "build", source, "-o", tmp_path / "p", "--overwrite"
        )
        assert (left / mine).read_bytes() == b"dear"
        (left / mine).unlink()
    good("build", source, "-o", tmp_path / "p")
    assert os.listdir(tmp_path) == ["p"]


def test_a_pack_that_does_not_fit_is_refused_with_what_to_change(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 20_000, 20_000))
    line = refused(3, "build", source, "-o", tmp_path / "p")
    assert "the pack needs about" in line and "19.5 KB are free" in line
    assert (
        "make it smaller with --encode jpeg or --resize, choose another disk with --out, or try it with --force" in line
    )
    assert "smaller with --resize, choose" in refused(3, "build", source, "-o", tmp_path / "p", "--encode", "bmp")
    refused(3, "build", source, "-o", tmp_path / "p", "--dry-run")
    assert os.listdir(tmp_path) == []
    good("build", source, "-o", tmp_path / "p", "--resize", "8", "--format", "tfrecord")


@pytest.mark.parametrize("format", ["lmdb", "hdf5", "tfrecord", "webdataset"])
@pytest.mark.parametrize("encode", ["raw", "copy"])
def test_planned_size_is_the_size(sources: Path, tmp_path: Path, format: str, encode: str) -> None:
    options = [
        "--labels",
        "voc",
        "--format",
        format,
        "--encode",
        encode,
        "-o",
        tmp_path / "p",
        "--no-fingerprints",
        "--json",
    ]
    plan = json.loads(good("build", sources / "voc", *options, "--dry-run").out)
    made = json.loads(good("build", sources / "voc", *options).out)
    files = sum(p.stat().st_size for p in (tmp_path / "p").iterdir() if p.name != "pack.json")
    assert files == made["bytes"]
    assert 0.6 < plan["pack_bytes"] / files < 1.5  # of a pack of 8 images; large ones come closer


def test_dry_run_writes_nothing(sources: Path, tmp_path: Path) -> None:
    before = tree_state(sources)
    ran = good("build", sources / "shots", "--labels", "voc", "-o", tmp_path / "p", "--dry-run", "--encode", "jpeg")
    assert "plan: 6 images, " in ran.out and "(lmdb, jpeg, 40x30x3)" in ran.out
    assert "plan: 6 images, 2 classes, 6 boxes, " in ran.out  # what there is none of is not counted
    points = ["--labels", f"list:{sources}/shots/landmarks.txt", "--columns", "path (x y)*5 label"]
    assert "plan: 6 images, 2 classes, 30 landmarks, " in good("build", sources / "shots", *points, "--dry-run").out
    assert "packed" not in ran.out
    assert os.listdir(tmp_path) == [] and tree_state(sources) == before


def test_unreadable_labels_and_masks_stop_a_build(tmp_path: Path) -> None:
    for i in range(3):
        draw(tmp_path / "coco" / "images" / f"{i:03d}.jpg", i)
        draw(tmp_path / "pairs" / "images" / f"{i:03d}.jpg", i)
        draw(tmp_path / "pairs" / "masks" / f"{i:03d}.png", i, format="PNG")
    names = [{"id": i, "file_name": f"{i:03d}.jpg"} for i in range(3)]
    (tmp_path / "coco" / "instances.json").write_text(json.dumps({"images": names, "annotations": []}))
    line = refused(2, "build", tmp_path / "coco", "-o", tmp_path / "p")
    assert "instances.json names images; choose one: --labels folder (" in line and "--labels none" in line
    assert '"images/" and "masks/" hold images' in refused(2, "build", tmp_path / "pairs", "-o", tmp_path / "p")
    ran = good("build", tmp_path / "coco", "-o", tmp_path / "p", "--labels", "none")
    assert "plan: 3 images, " in ran.out and "class" not in ran.out
    ran = good("build", tmp_path / "pairs", "-o", tmp_path / "q", "--labels", "folder")
    assert "plan: 6 images, 2 classes, " in ran.out


def test_the_source_is_never_touched(sources: Path, tmp_path: Path) -> None:
    before = tree_state(sources)
    for kind in ("plain", "classes", "voc"):
        good("build", sources / kind, "-o", tmp_path / kind, "--resize", "16")
    run("build", sources / "faces", "-o", tmp_path / "faces", "--labels", "yolo")
    assert tree_state(sources) == before


def test_json_of_a_good_build(source: Path, tmp_path: Path) -> None:
    ran = good("build", source, "-o", tmp_path / "p", "--json")
    facts = json.loads(ran.out)
    assert ran.err == "" and ran.out.count("\n") == 1
    assert facts["path"] == str(tmp_path / "p") and facts["counts"]["packed"] == 12
    info = json.loads(good("info", tmp_path / "p", "--json").out)
    assert info["bytes"] == facts["bytes"] and info["records"] == 12
    assert json.loads(good("verify", tmp_path / "p", "--json").out)["good"] is True


def test_json_of_a_failed_build(source: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.jpg").write_bytes(b"nothing")
    (tmp_path / "src" / "b.jpg").write_bytes((source / "000.jpg").read_bytes())
    ran = run("build", tmp_path / "src", "-o", tmp_path / "p", "--json")
    facts = json.loads(ran.out)
    assert ran.code == facts["exit_code"] == 1 and facts["error"] == "TooManyBad"
    assert [(r["path"], r["reason"]) for r in facts["rejected"]] == [("a.jpg", "not-an-image")]
    assert facts["next_step"] == "fix it, or skip it with --max-bad 1"


def test_quiet_prints_nothing(source: Path, tmp_path: Path) -> None:
    ran = good("build", source, "-o", tmp_path / "p", "--quiet")
    assert ran.out == ran.err == ""
    ran = good("build", source, "-o", tmp_path / "q", "--quiet", "--dry-run")
    assert ran.out == ran.err == ""
    ran = good("verify", tmp_path / "p", "--quiet")
    assert ran.out == ran.err == ""


def test_two_builds_of_one_output(source: Path, tmp_path: Path) -> None:
    from packer.packing.publish import Output

    with Output(str(tmp_path / "p"), str(source), False):
        line = refused(2, "build", source, "-o", tmp_path / "p")
        assert "another build is writing to it; wait for it, or choose another --out" in line
    good("build", source, "-o", tmp_path / "p")
