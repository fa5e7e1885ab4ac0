"""Builds to a store, with a folder as the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn import draw_plain
from running import refused
from store_outputs import Notes, StoreOutputs, objects, options, reference

from packer import BuildOptions, build_pack
from packer.errors import StorageError, UsageError
from packer.packing.store_journal import PLAIN, TAGGED
from packer.stores.obstore import ObstoreStore


@pytest.fixture
def bucket_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/pack"


class TestFolderAsAStore(StoreOutputs):
    pass


@pytest.mark.workers
def test_with_worker_processes(bucket_url: str, tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 12)
    expected = reference(source)
    build_pack(options(source, bucket_url, workers=2))
    assert objects(bucket_url) == expected


def test_a_store_that_ignores_conditions(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ObstoreStore.write
    monkeypatch.setattr(ObstoreStore, "write", lambda self, name, content, only_if=None: write(self, name, content))
    source, notes = draw_plain(tmp_path / "src", 4), Notes()
    build_pack(options(source, bucket_url), notes)
    assert notes.has(f"{bucket_url} ignores conditions")
    build_pack(options(source, bucket_url, overwrite=True), notes)


def test_options(bucket_url: str, tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 4)
    with pytest.raises(UsageError, match="scratch: is for builds to a store"):
        BuildOptions(str(source), out=str(tmp_path / "p"), scratch=str(tmp_path))
    with pytest.raises(UsageError, match="recheck: is for builds to a store"):
        BuildOptions(str(source), recheck=True)
    line = refused(2, "build", source, "-o", bucket_url, "--scratch", tmp_path / "none")
    assert "no such folder for unfinished shards" in line
    line = refused(2, "build", source, "-o", "s3://user:secret@bucket/x")
    assert "holds credentials" in line and "secret" not in line
    assert "is inside the source folder" in refused(2, "build", source, "-o", f"file://{source}/pack")
    assert not (source / "pack").exists()


@pytest.mark.parametrize("command", ["merge", "split", "adopt"])
def test_packs_of_links_want_a_folder(command: str, bucket_url: str, tmp_path: Path) -> None:
    pack = tmp_path / "p.tfrecord"
    build_pack(BuildOptions(str(draw_plain(tmp_path / "src", 4)), out=str(pack), workers=1))
    inputs = {"merge": [pack, pack], "split": [pack, "--parts", "a=0.5,b=0.5"], "adopt": [*pack.glob("*.tfrecord")]}
    line = refused(2, command, *inputs[command], "-o", bucket_url)
    assert f"packer {command} links files of a disk; choose a folder as --out, then packer push it there" in line


def test_scratch_that_is_too_small(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_plain(tmp_path / "src", 12)
    monkeypatch.setattr("packer.packing.plan.free_bytes", lambda options: 3000)
    with pytest.raises(StorageError, match=r"unfinished shards need about .* are free; choose another disk with"):
        build_pack(options(source, bucket_url))
    monkeypatch.setattr("packer.packing.plan.free_bytes", lambda options: 20_000)  # less than the pack
    build_pack(options(source, bucket_url, shard_bytes=3000))


def test_names() -> None:
    ours = [
        "shard-00012-3f9a2c1b.n5.zip",
        "data-3f9a2c1b.index.arrow",
        "rejected-00000000.tsv",
    ]
    assert all(TAGGED.fullmatch(name) for name in ours)
    others = [
        "cat.jpg",
        "shard-00012.jpg.bak/x",
        "rejected.tsv",
        "include.txt",
        "shard-00000.json",
        "data.csv",
        "shard-1.tar",
    ]
    assert not any(TAGGED.fullmatch(name) or PLAIN.fullmatch(name) for name in others)
    assert PLAIN.fullmatch("shard-00012.lmdb") and PLAIN.fullmatch("data.mdb")
