"""`packer index` and `packer build --jpeg-index`: what they write, refuse and resume; and who takes an index along."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from damage import flip
from drawn import draw_plain, tree_state
from indexing import fast, needs_fast, stand_in
from packs import MakePack
from running import good, refused, run, run_apart

from packer import BuildOptions, build_pack, convert, merge, open_pack, split
from packer.errors import DamagedPack, StorageError, UsageError
from packer.format import make_jpeg_index
from packer.format.jpeg_index import open_jpeg_indexes
from packer.format.jpeg_index_list import JPEG_INDEX_NAME, WORK_FOLDER, own_files
from packer.format.verify import verify
from packer.images import decoders as fast_decoder
from packer.repack.index_jpegs import index_jpegs, remove_jpeg_index
from packer.repack.url_packs import clean, find_unreferenced, pull, push
from packer.system.locks import lock_folder

__all__ = ["fast"]


@pytest.fixture
def pack(copied: MakePack, fast: ModuleType) -> Path:
    return copied("copy", "lmdb")


def state(pack: Path) -> dict[bytes, Any]:
    """Names and bytes of all files."""
    return {os.fsencode(path.name): path.read_bytes() for path in pack.iterdir()}


class Stop(Exception):
    pass


def stopped_after(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the making of indexes fail after some shards."""
    real: Callable[..., Any] = make_jpeg_index.index_rows
    left = [shards]

    def index_rows(*given: Any) -> Any:
        if not left[0]:
            raise Stop
        left[0] -= 1
        return real(*given)

    monkeypatch.setattr(make_jpeg_index, "index_rows", index_rows)


def test_command(pack: Path) -> None:
    before = state(pack)
    out = good("index", pack).out
    assert f"{pack}: 9 of 24 records indexed: " in out and "without an index: 6 bmp, 9 png" in out
    made = state(pack)
    assert before.items() <= made.items()
    shards = len(open_pack(pack).reader.shards)
    assert len(made) == len(before) + shards + 1
    assert verify(pack, deep=True).problems == verify(pack).unknown_files == ()
    assert verify(pack).files == len(before) - 1 + shards + 1
    assert "9 of 24 records, an entry per row, " in good("info", pack).out
    facts = json.loads(good("info", pack, "--json").out)["jpeg_index"]
    assert (facts["indexed"], facts["without"], facts["interval"]) == (9, {"bmp": 6, "png": 9}, 0)
    facts = json.loads(good("index", pack, "--interval", "4", "--json").out)
    assert (facts["interval"], facts["records"], facts["indexed"], facts["kept"]) == (4, 24, 9, 0)
    assert facts["bytes"] == sum(
        len(data) for name, data in state(pack).items() if name.startswith(b"jpeg-index.shard")
    )
    assert "an entry per 4 blocks" in good("info", pack).out
    good("index", pack, "--quiet")
    assert state(pack) == made
    assert f"{shards + 1} files removed" in good("index", pack, "--remove").out
    assert "has no index" in good("index", pack, "--remove").out and state(pack) == before
    assert json.loads(good("index", pack, "--remove", "--json").out)["files"] == 0


def test_a_damaged_one_is_shown_and_made_again(pack: Path) -> None:
    good("index", pack, "--quiet")
    right = state(pack)
    flip(pack / JPEG_INDEX_NAME, 60)
    for text in (good("info", pack).out, json.loads(good("info", pack, "--json").out)["jpeg_index"]["text"]):
        assert "make it again: packer index" in text
    assert run("verify", pack).code == 4
    (pack / "jpeg-index.shard-99999.arrow").write_bytes(b"of another pack")
    good("index", pack, "--quiet")
    assert state(pack) == right


def test_what_is_refused(pack: Path, make_pack: MakePack, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is a URL" in refused(2, "index", "s3://bucket/x")
    assert "is not a pack" in refused(2, "index", pack.parent)
    assert "has no JPEGs: its images are stored as raw" in refused(2, "index", make_pack("raw", "lmdb"))
    assert "--interval: is for an index that is made" in refused(2, "index", pack, "--remove", "--interval", "4")
    assert "must be one of row, 4" in refused(2, "index", pack, "--interval", "8")
    with pytest.raises(UsageError, match="interval: must be row or 4, got '16'"):
        index_jpegs(pack, "16")
    lock = lock_folder(str(pack / WORK_FOLDER))
    assert lock is not None
    for more in ([], ["--remove"]) if sys.platform == "linux" else ():
        assert "is being indexed by another process" in refused(2, "index", pack, *more)
    lock.close()
    monkeypatch.setattr(fast_decoder, "native", lambda: (None, fast_decoder.NOT_THERE))
    for line in (
        refused(2, "index", pack),
        refused(2, "build", pack.parent, "--encode", "copy", "--jpeg-index", "4", "-o", pack.parent / "x"),
    ):
        assert line.endswith("pip install ./packer-fast in a clone of packer")
    assert own_files(str(pack)) == []


def test_an_interrupted_one_resumes(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that was there stays meanwhile."""
    index_jpegs(pack, workers=1)
    before = state(pack)
    with monkeypatch.context() as patched:
        stopped_after(2, patched)
        with pytest.raises(Stop):
            index_jpegs(pack, "4", workers=1)
    assert len(list((pack / WORK_FOLDER).glob("*.arrow"))) == 2
    assert {name: data for name, data in tree_files(pack).items() if name in before} == before
    assert verify(pack).problems == () and open_jpeg_indexes(open_pack(pack)) is not None
    (pack / WORK_FOLDER / "jpeg-index.shard-00000.arrow.0011.tmp").write_bytes(b"of a worker that was killed")
    report = index_jpegs(pack, "4", workers=1)
    assert report.kept == 2 and report.interval == 4 and not (pack / WORK_FOLDER).exists()
    made = state(pack)
    remove_jpeg_index(pack)
    assert index_jpegs(pack, "4", workers=1).kept == 0 and state(pack) == made


@pytest.mark.parametrize("option", [[], ["--remove"]])
def test_a_work_folder_that_holds_something_else_stays(pack: Path, option: list[str]) -> None:
    (pack / WORK_FOLDER / "photos").mkdir(parents=True)
    (pack / WORK_FOLDER / "photos" / "1.jpg").write_bytes(b"of the user")
    line = refused(2, "index", pack, *option)
    assert f"{WORK_FOLDER}: holds photos, which packer index has not left; move it away" in line
    assert (pack / WORK_FOLDER / "photos" / "1.jpg").read_bytes() == b"of the user"


def tree_files(pack: Path) -> dict[bytes, Any]:
    return {os.fsencode(path.name): path.read_bytes() for path in pack.iterdir() if path.is_file()}


def test_what_was_made_of_something_else_is_not_kept(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stopped_after(2, patched)
        with pytest.raises(Stop):
            index_jpegs(pack, workers=1)
    flip(pack / WORK_FOLDER / "jpeg-index.shard-00000.arrow", 8)
    stand_in(monkeypatch, "10.0")
    assert index_jpegs(pack, workers=1).kept == 0
    assert verify(pack, deep=True).problems == ()


def test_damage_of_the_pack_ends_it(pack: Path) -> None:
    here = open_pack(pack)
    jpeg = next(i for i in range(len(here)) if here.reader.encoding_of(i) == "jpeg")
    shard = here.reader.shards[here.reader.locate(jpeg)[0]].container.name
    with open(pack / shard, "r+b") as file:
        file.seek(int(here.reader.span(jpeg)[0] - here.reader._starts[here.reader.locate(jpeg)[0]]) + 3)
        file.write(b"\0")
    with pytest.raises(DamagedPack, match=f"record {here.key(jpeg)} does not match its checksum"):
        index_jpegs(pack, workers=1)
    assert own_files(str(pack)) == []


@pytest.mark.parametrize(("code", "step"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "copy the pack")])
@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_disk_that_refuses(pack: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: str, call: str) -> None:
    before = state(pack)
    real = getattr(os, call)

    def refuse(path: Any, *more: Any, **options: Any) -> Any:
        if "jpeg-index" in os.fsdecode(path):
            raise OSError(code, os.strerror(code), path)
        return real(path, *more, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        line = refused(3, "index", pack)
        assert os.strerror(code) in line and "--out" not in line
        assert step in line or call == "replace"
        with pytest.raises(StorageError):
            index_jpegs(pack, workers=1)
    shutil.rmtree(pack / WORK_FOLDER, ignore_errors=True)
    assert state(pack) == before


def options(source: Path, out: Path, **more: Any) -> BuildOptions:
    given: dict[str, Any] = {"labels": ("none",), "encode": "jpeg", "shard_bytes": 2000, "workers": 1, **more}
    return BuildOptions(str(source), str(out), **given)


def test_build(tmp_path: Path, fast: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build writes the same files as a build and packer index, also one that was interrupted or made in parts."""
    source = draw_plain(tmp_path / "source")
    build_pack(options(source, tmp_path / "after"))
    assert index_jpegs(tmp_path / "after", workers=1).indexed == 12
    summary = build_pack(options(source, tmp_path / "at_once", jpeg_index="row"))
    assert summary.jpeg_index is not None and summary.jpeg_index.indexed == 12
    wanted = state(tmp_path / "after")
    assert len(open_pack(tmp_path / "after").reader.shards) > 2 and state(tmp_path / "at_once") == wanted
    with monkeypatch.context() as patched:
        stopped_after(1, patched)
        with pytest.raises(Stop):
            build_pack(options(source, tmp_path / "again", jpeg_index="row"))
    assert (tmp_path / "again.partial").is_dir()
    build_pack(options(source, tmp_path / "again", jpeg_index="row"))
    assert state(tmp_path / "again") == wanted and not (tmp_path / "again.partial").exists()
    line = ["build", source, "--labels", "none", "--encode", "jpeg", "--shard-size", "2000", "--workers", "1"]
    for part in ("1/2", "2/2"):
        good(*line, "--jpeg-index", "row", "-o", tmp_path / "parts", "--job", part)
    good(*line, "--jpeg-index", "row", "-o", tmp_path / "parts", "--finish")
    assert state(tmp_path / "parts") == wanted
    out = good(*line, "-o", tmp_path / "after", "--overwrite", "--jpeg-index", "4").out
    assert "JPEG index: 12 of 12 records, an entry per 4 blocks" in out
    (tmp_path / "config.yaml").write_text("jpeg-index: 4\nencode: jpeg\n")
    facts = json.loads(good(*line, "-o", tmp_path / "c", "--config", tmp_path / "config.yaml", "--json").out)
    assert facts["jpeg_index"]["interval"] == 4
    good(*line, "-o", tmp_path / "after", "--overwrite")  # the new pack has none
    assert own_files(str(tmp_path / "after")) == []


def test_builds_that_cannot(tmp_path: Path, fast: ModuleType) -> None:
    source = draw_plain(tmp_path / "source", 2)
    for encode in ("raw", "png"):
        with pytest.raises(UsageError, match=f"is for JPEGs, but --encode is {encode}|is for JPEGs"):
            build_pack(options(source, tmp_path / "p", encode=encode, jpeg_index="row"))
    line = refused(2, "build", "--encode", "jpeg", "--jpeg-index", source)  # which it takes for its value
    assert f"got {source}; write --jpeg-index=row if {source} is not its value" in line
    good("build", "--encode", "jpeg", "--jpeg-index=row", source, "--labels", "none", "--dry-run")
    with pytest.raises(UsageError, match="must be one of row, 4; got 8"):
        build_pack(options(source, tmp_path / "p", jpeg_index="8"))
    with pytest.raises(UsageError, match="packer push the pack"):
        build_pack(BuildOptions(str(source), f"file://{tmp_path}/p", encode="jpeg", jpeg_index="row"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_push_and_pull(pack: Path, tmp_path: Path) -> None:
    url, store = f"file://{tmp_path}/bucket/pack", tmp_path / "bucket" / "pack"
    assert push(pack, url).sent == len(state(pack)) - 1
    index_jpegs(pack, workers=1)
    shards = len(open_pack(pack).reader.shards)
    report = push(pack, url)  # the pack is there already
    assert report.sent == shards + 1 and report.files == len(state(pack)) - 1
    assert push(pack, url).sent == 0
    pull(url, tmp_path / "back")
    assert state(tmp_path / "back") == state(pack) == state(store)
    assert verify(tmp_path / "back", deep=True).problems == ()
    assert good("verify", url).out.endswith(f"24 records in {report.files} files\n")
    assert find_unreferenced(url, 0).objects == ()
    index_jpegs(pack, "4", workers=1)
    push(pack, url)
    pull(url, tmp_path / "back", overwrite=True)
    assert state(tmp_path / "back") == state(pack)
    flip(store / "jpeg-index.shard-00001.arrow", 500)
    assert "jpeg-index.shard-00001.arrow" in run("verify", url).err
    with pytest.raises(DamagedPack, match=r"jpeg-index\.shard-00001\.arrow"):
        pull(url, tmp_path / "damaged")
    push(pack, url)  # sizes are as they were: the file is not read again
    flip(store / JPEG_INDEX_NAME, 50)
    assert JPEG_INDEX_NAME in run("verify", url).err
    assert "jpeg-index.json and its files are not copied" in good("pull", url, tmp_path / "without").out
    assert own_files(str(tmp_path / "without")) == []
    found = find_unreferenced(url, 0)
    assert {one.name for one in found.objects} == set(own_files(str(pack)))
    clean(found)
    assert own_files(str(store)) == [] and run("verify", url).code == 0
    push(pack, url)
    flip(pack / "jpeg-index.shard-00000.arrow", 500)
    remove = [store / name for name in own_files(str(store))]
    for path in remove:
        path.unlink()
    with pytest.raises(DamagedPack, match="packer index"):
        push(pack, url)
    assert JPEG_INDEX_NAME not in os.listdir(store)


def test_converted_packs_have_none(pack: Path, tmp_path: Path) -> None:
    note = "the index of JPEGs is not copied"
    assert note not in good("convert", pack, tmp_path / "plain").out
    index_jpegs(pack, workers=1)
    before = tree_state(pack)
    assert note in good("convert", pack, tmp_path / "converted").out
    convert(tmp_path / "plain", tmp_path / "twice")
    assert any(note in one for one in merge([pack, tmp_path / "plain"], tmp_path / "merged").notes)
    assert not split(pack, "a=0.5,b=0.5", tmp_path).notes
    for made in (tmp_path / "converted", tmp_path / "merged"):
        assert own_files(str(made)) == [] and verify(made).problems == ()
        assert index_jpegs(made, workers=1).records == len(open_pack(made))
        assert verify(made, deep=True).problems == ()
    assert tree_state(pack) == before


@needs_fast
@pytest.mark.workers
def test_with_workers(tmp_path: Path) -> None:
    """In processes, as a user runs it."""
    source = draw_plain(tmp_path / "source", 40, width=200, height=120)
    line = ["--labels", "none", "--encode", "jpeg", "--shard-size", "30KB", "--workers", "2"]
    ran = run_apart("build", source, "-o", tmp_path / "p", *line, "--jpeg-index")
    assert ran.code == 0 and "JPEG index: 40 of 40 records" in ran.out, ran
    before = state(tmp_path / "p")
    ran = run_apart("index", tmp_path / "p", "--workers", "2")
    assert ran.code == 0 and "40 of 40 records indexed" in ran.out and " ms per image)" in ran.out, ran
    assert state(tmp_path / "p") == before
