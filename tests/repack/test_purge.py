"""Erased records leave every file of a pack and of its versions, and a purge that dies leaves a pack that is whole."""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from crc32c import crc32c
from drawn import draw_classes, draw_voc, tree_state
from indexing import fast
from packs import noise
from PIL import Image
from running import good, refused, run

from packer import PackWriter, adopt, attach, edit, merge, open_pack, purge, update, versions_of
from packer.containers import CONTAINERS
from packer.errors import DamagedPack, UsageError
from packer.format.content import content_digest
from packer.format.jpeg_index import open_jpeg_indexes
from packer.format.lists import Changed, Listing, lists_of, read_list
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.packing.publish_version import NextVersion
from packer.repack.compact import compact_shard
from packer.repack.index_jpegs import index_jpegs

__all__ = ["fast"]

RECORDS = 12
DELETED = [2, 3, 7]
Search = Callable[[Iterable[bytes]], dict[str, set[bytes]]]


def random_bytes(i: int, what: int, count: int = 64) -> bytes:
    return np.random.default_rng((i, what)).bytes(count)


def name_of(i: int) -> str:
    return random_bytes(i, 1, 8).hex()


def secrets_of(i: int) -> list[bytes]:
    """What only record `i` has: bytes of its image, of an array and a text beside it, its note, its path."""
    texts = (name_of(i), *(random_bytes(i, what, 16).hex() for what in (2, 3)))
    return [random_bytes(i, 0), random_bytes(i, 4), *(text.encode() for text in texts)]


def image_of(i: int, kind: str) -> Any:
    if kind == "raw":
        pixels = noise(i, 8, 12)
        pixels.reshape(-1)[:64] = np.frombuffer(random_bytes(i, 0), np.uint8)
        return pixels
    file = io.BytesIO()
    Image.fromarray(noise(i, 8, 12)).save(file, "jpeg")
    return file.getvalue() + random_bytes(i, 0)


def write(pack: Path, container: str, kind: str = "copy", records: int = RECORDS, shard_bytes: int = 2200) -> Path:
    """A pack whose records have something secret in each of their places."""
    parts = {"caption": "text", "code": "array"}
    with PackWriter(pack, format=container, classes=("ant", "bee"), shard_bytes=shard_bytes, parts=parts) as writer:
        for i in range(records):
            array = np.frombuffer(random_bytes(i, 4), np.uint8)
            given = {"caption": random_bytes(i, 2, 16).hex(), "code": array}
            note = random_bytes(i, 3, 16).hex()
            writer.write(image_of(i, kind), i % 2, path=f"x/{name_of(i)}.jpg", parts=given, extras={"note": note})
    return pack


def found_in(folder: Path, secrets: Iterable[bytes]) -> dict[str, set[bytes]]:
    """The files below a folder with secrets in their bytes or names."""
    hits: dict[str, set[bytes]] = {}
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        where = str(path.relative_to(folder))
        if there := {one for one in secrets if one in content or one in os.fsencode(where)}:
            hits[where] = there
    return hits


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """Return what finds secrets in all files: of packs, temporary ones, the cache, the user's state."""
    for name, variable in (("tmp", "TMPDIR"), ("cache", "PACKER_CACHE"), ("state", "XDG_STATE_HOME")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return partial(found_in, tmp_path)


def all_secrets(records: Sequence[int] = DELETED) -> list[bytes]:
    return [secret for i in records for secret in secrets_of(i)]


def content(pack: Path | str) -> str:
    opened = open_pack(pack)
    return content_digest(opened.reader.indexes, opened.manifest)


def is_good(pack: Path | str) -> bool:
    report = verify(pack, deep=True)
    assert (report.problems, report.unknown_files) == ((), ()), pack
    return True


def all_good(pack: Path) -> bool:
    return all(is_good(name) for name in (pack, *(version.path for version in versions_of(pack))))


@pytest.mark.parametrize("kind", ["copy", "raw"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_nothing_of_deleted_records_is_left(tmp_path: Path, search: Search, container: str, kind: str) -> None:
    pack = write(tmp_path / "p", container, kind)
    edit(pack, delete=DELETED[:2])
    (tmp_path / "list").write_text(name_of(0))
    edit(pack, set=[("split=val", tmp_path / "list")])
    edit(pack, delete=[DELETED[2] - 2])
    wanted = edit(f"{pack}@1", tmp_path / "w", delete=DELETED).manifest
    before, last = content(tmp_path / "w"), content(pack)
    shutil.rmtree(tmp_path / "w")
    shutil.copytree(pack, tmp_path / "once")
    assert set().union(*search(all_secrets()).values()) == {*all_secrets()}
    shutil.rmtree(tmp_path / "once")
    report = purge(pack)
    shards = {number for number, shard in enumerate(read_manifest(pack).shards) if ".v5." in shard.container.name}
    assert (report.records, report.shards, report.versions, report.version) == (3, len(shards), 3, 5)
    assert report.complete and report.files and len(shards) < report.of_shards
    paths = {name_of(i).encode() for i in DELETED}
    hits = search(all_secrets())
    assert all(os.path.basename(name).startswith(("skipped", "exclude")) for name in hits), hits
    assert set().union(*hits.values()) == paths
    assert content(pack) == last and content(f"{pack}@1") == before
    assert read_manifest(f"{pack}@1").class_counts == wanted.class_counts
    assert all_good(pack) and purge(pack).records == 0


@pytest.mark.parametrize("container", CONTAINERS)
def test_paths_are_forgotten_if_that_is_asked_for(tmp_path: Path, search: Search, container: str) -> None:
    pack = write(tmp_path / "p", container)
    lines = [f"x/{name_of(DELETED[0])}.jpg", f"x/{name_of(DELETED[1])}*", name_of(DELETED[2]), "x/other*", "other/"]
    (tmp_path / "ids.txt").write_text("\n".join(lines))
    edit(pack, delete=tmp_path / "ids.txt")
    (tmp_path / "ids.txt").unlink()
    assert purge(pack, forget_paths=True).records == 3
    assert not search(all_secrets())
    assert (pack / read_manifest(pack).lists["exclude"].name).read_text() == "x/other*\nother/\n"
    assert read_manifest(pack).counts["skipped"] == 3 and all_good(pack)


@pytest.mark.parametrize("deleted", [range(5), range(55, 60), range(20, 30), [0, 59]])
def test_an_index_has_no_bytes_of_rows_that_were_deleted(tmp_path: Path, deleted: Sequence[int]) -> None:
    """Of long runs of rows, slices are taken, which must be copies."""
    pack, corners = tmp_path / "p", [np.random.default_rng(i).random((3, 2)).astype(np.float32) + 1 for i in range(60)]
    with PackWriter(pack, format="lmdb") as writer:
        for i, points in enumerate(corners):
            box = [*points[0], *(points[0] + 2)]
            texts = {"path": f"x/{name_of(i)}.png", "extras": {"note": random_bytes(i, 3, 16).hex()}}
            writer.write(noise(i, 8, 8), boxes=[box], box_labels=[i], polygons=[points.tolist()], **texts)
    secrets = [corners[i].tobytes() for i in deleted] + [corners[i][0].tobytes() for i in deleted]
    secrets += [text.encode() for i in deleted for text in (name_of(i), random_bytes(i, 3, 16).hex())]
    before = {"data.mdb", "data.index.arrow"}
    assert {*found_in(pack, secrets)} == before
    edit(pack, delete=[*deleted])
    lists = {"skipped.v2.tsv"}
    assert {*found_in(pack, secrets)} == before | lists
    purge(pack)
    assert {*found_in(pack, secrets)} == lists and all_good(pack)


def test_only_touched_shards_are_written_again(tmp_path: Path) -> None:
    pack = write(tmp_path / "p", "webdataset", records=200, shard_bytes=800)
    shards = read_manifest(pack).shards
    assert len(shards) == 100
    deleted = [*range(20, 24), 61, *range(150, 155)]
    edit(pack, delete=deleted)
    before = tree_state(pack)
    told = good("purge", pack, "--dry-run").out
    assert tree_state(pack) == before and "would erase 10 records" in told
    report = purge(pack)
    touched = {number // 2 for number in deleted}
    assert report.records == 10 and report.shards == len(touched) == 6 and report.written_bytes < 6 * 30_000
    after = tree_state(pack)
    for number, shard in enumerate(shards):
        same = [os.fsencode(pack / name) for name in (shard.container.name, shard.index.name)]
        if number in touched:
            assert not any(name in after for name in same)
        else:
            assert [before[name] for name in same] == [after[name] for name in same]
    assert is_good(pack) and len(open_pack(f"{pack}@1")) == 190


DIES = """
import os, sys
from packer import purge
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.listdir", "os.scandir"}
seen, last = 0, int(sys.argv[2])
def hook(event, args):
    global seen
    if event in EVENTS and sys.argv[1] in str(args[0]):
        seen += 1
        if seen == last:
            os._exit(9)
sys.addaudithook(hook)
purge(sys.argv[1])
"""


@pytest.mark.parametrize(("container", "step"), [("recordio", 97), ("lmdb", 5), ("hdf5", 7)])
def test_the_pack_is_whole_wherever_a_purge_dies(tmp_path: Path, container: str, step: int) -> None:
    source = write(tmp_path / "source", container, records=6, shard_bytes=1500)
    array = np.stack([np.frombuffer(random_bytes(i, 9), np.uint8) for i in range(6)])
    np.save(tmp_path / "array.npy", array)
    attach(source, tmp_path / "array.npy", name="embedding")
    edit(source, delete=[1])
    edit(source, map=["ant=wasp"])
    wanted, secrets = content(source), [*secrets_of(1)[:2], random_bytes(1, 9)]
    done = shutil.copytree(source, tmp_path / "done")
    purge(done)
    first = content(f"{done}@1")
    shutil.rmtree(done)
    olds, seen = content(f"{source}@1"), set()
    steps = [*range(1, 600, step)]
    for last in [*steps, 10_000]:
        pack = shutil.copytree(source, tmp_path / "pack")
        words = [sys.executable, "-c", DIES, str(pack), str(last)]
        ended = subprocess.run(words, check=False, capture_output=True, text=True)
        assert ended.returncode in (0, 9), ended.stderr
        assert content(pack) == wanted and content(f"{pack}@1") in (olds, first)
        assert np.array_equal(open_pack(pack).sidecar("embedding").read(np.arange(5)), np.delete(array, 1, 0))
        assert not verify(pack, deep=True).problems and not verify(f"{pack}@1").problems, last
        assert not verify(f"{pack}@2").problems and not verify(f"{pack}@3").problems
        whole = not found_in(pack, secrets)
        seen.add((ended.returncode, whole, content(f"{pack}@1") == first))
        report = purge(pack)
        assert report.complete and not found_in(pack, secrets), last
        assert len(versions_of(pack)) == 4 and all_good(pack) and content(f"{pack}@1") == first
        parents = [version.made.parents[0] for version in versions_of(pack)[1:3]]
        assert parents == [version.made.digest for version in versions_of(pack)[:2]]
        assert {*os.listdir(pack / "versions")} - {".lock"} == {"1", "2", "3", "4"}
        shutil.rmtree(pack)
        if ended.returncode == 0:
            break
    assert ended.returncode == 0
    assert seen >= {(9, False, False), (0, True, True)}
    assert step > 7 or (9, False, True) in seen  # earlier versions without them, in files that are still there


def test_a_pack_of_links_whose_purge_died(tmp_path: Path, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its container knows what it lacks, and no version has the container in the end."""
    edit(write(tmp_path / "whole", "webdataset"), tmp_path / "p", delete=DELETED)
    shutil.rmtree(tmp_path / "whole")
    pack = tmp_path / "p"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("packer.repack.purge.EarlierVersions.rewrite", mock.Mock(side_effect=KeyboardInterrupt))
        purge(pack, forget_paths=True)
    assert len(versions_of(pack)) == 2 and search(all_secrets())
    report = purge(pack, forget_paths=True)
    assert (report.records, report.complete) == (3, True) and not search(all_secrets()) and all_good(pack)


def test_a_shard_without_a_record_left_is_removed(tmp_path: Path, search: Search) -> None:
    pack = write(tmp_path / "p", "lmdb")
    first = read_manifest(pack).shards[0]
    edit(pack, delete=range(first.records))
    report = purge(pack)
    assert (report.records, report.shards, report.written_bytes, report.version) == (first.records, 1, 0, None)
    assert not (pack / first.container.name).exists()
    assert {os.path.basename(name)[:7] for name in search(all_secrets(range(first.records)))} == {"skipped"}
    assert len(open_pack(f"{pack}@1")) == RECORDS - first.records and all_good(pack)


def test_a_version_without_a_record_left_is_removed(tmp_path: Path) -> None:
    for name, first in (("p", 0), ("q", 20)):
        with PackWriter(tmp_path / name, format="hdf5") as writer:
            for i in range(first, first + 3):
                writer.write(noise(i, 6, 6), i)
    pack, other = tmp_path / "p", read_manifest(tmp_path / "q")
    with NextVersion(pack, "packer update p") as new:  # all images of the source were replaced
        for shard in other.shards:
            for name in (shard.container.name, shard.index.name):
                shutil.copy(tmp_path / "q" / name, os.path.join(new.folder, new.name(name)))
        shards = [
            replace(
                shard,
                container=replace(shard.container, name=new.name(shard.container.name)),
                index=replace(shard.index, name=new.name(shard.index.name)),
            )
            for shard in other.shards
        ]
        new.publish(replace(other, shards=tuple(shards)), (), {}, {"added": 3})
    assert purge(pack).records == 3
    assert [version.number for version in versions_of(pack)] == [2] and is_good(pack)
    assert edit(pack, delete=[0]).version == 3


def test_records_that_were_moved_to_other_shards_stay_in_earlier_versions(tmp_path: Path, search: Search) -> None:
    """A shard that was written again without its deleted records leaves the old one to earlier versions only."""
    pack = write(tmp_path / "p", "tfrecord")
    edit(pack, delete=DELETED)
    wanted = content(pack)
    with NextVersion(pack, "packer update p") as new:
        shards = []
        for number, shard in enumerate(new.manifest.shards):
            names = new.name(shard.container.name), new.name(shard.index.name)
            shards.append(compact_shard(str(pack), new.manifest, number, new.folder, names).entry)
        listings, selections = lists_of(str(pack), new.manifest)
        new.publish(replace(new.manifest, shards=tuple(shards), linked={}), listings.values(), selections)
    report = purge(pack)
    assert (report.records, report.version, report.written_bytes) == (3, None, 0)
    assert [content(f"{pack}@{number}") for number in (1, 2, 3)] == [wanted] * 3 and all_good(pack)
    assert set().union(*search(all_secrets()).values()) == {name_of(i).encode() for i in DELETED}


def test_records_that_are_twice_in_a_pack(tmp_path: Path) -> None:
    merge([write(tmp_path / "a", "webdataset"), write(tmp_path / "b", "webdataset")], tmp_path / "p")
    pack = tmp_path / "p"
    edit(pack, delete=[1, RECORDS + 2])
    wanted = content(pack)
    report = purge(pack)
    assert report.records == 2 and content(pack) == wanted == content(f"{pack}@1") and all_good(pack)
    assert not report.complete  # the shards of `a` are the same files


def test_other_packs_that_share_a_file_are_named(tmp_path: Path) -> None:
    pack = write(tmp_path / "p", "lmdb")
    edit(pack, tmp_path / "fewer", delete=DELETED)
    edit(pack, tmp_path / "sub", map=["ant=wasp"])
    elsewhere = tmp_path / "far"
    elsewhere.mkdir()
    shared = [shard.container.name for shard in read_manifest(pack).shards]
    os.link(pack / shared[0], elsewhere / "x")
    ran = run("purge", tmp_path / "fewer", "--json")
    told = json.loads(ran.out)
    assert ran.code == 1 and told["records"] == 3 and told["complete"] is False
    named = {one["path"] for one in told["remains"]}
    assert {str(tmp_path / "sub" / shared[0]), str(pack / shared[0])} <= named
    assert any("1 more name elsewhere: find -inum" in one["why"] for one in told["remains"])
    assert content(pack) and all_good(tmp_path / "fewer") and is_good(pack) and is_good(tmp_path / "sub")


def test_files_of_other_tools_stay(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    with PackWriter(theirs, format="webdataset", classes=("ant", "bee")) as writer:
        for i in range(4):
            writer.write(image_of(i, "copy"), i % 2)
    adopt([theirs / read_manifest(theirs).shards[0].container.name], tmp_path / "p")
    pack = tmp_path / "p"
    before = tree_state(theirs)
    assert purge(pack).complete
    edit(pack, delete=[1])
    report = purge(pack)
    assert report.records == 1 and not report.complete and tree_state(theirs) == before
    assert [one.path for one in report.remains] == [str(theirs / "shard-00000.tar")]
    assert "is of another tool" in report.remains[0].why
    assert not any(read_manifest(pack).linked.values()) and all_good(pack)
    shutil.rmtree(theirs)
    assert all_good(pack) and len(open_pack(pack)) == 3


def test_unfinished_work_beside_a_pack_is_named(tmp_path: Path) -> None:
    pack = write(tmp_path / "p", "pth")
    edit(pack, delete=DELETED)
    (tmp_path / "p.partial").mkdir()
    ran = run("purge", pack, "--quiet")
    assert ran.code == 1 and not ran.out
    assert f"remains: {pack}.partial: was left by a build or a repair" in ran.err


def test_files_that_no_version_names_are_removed(tmp_path: Path) -> None:
    pack = write(tmp_path / "p", "n5")
    for name in ("shard-00009.n5.zip", "pack.json.0123abcd.tmp", "skipped.v9.tsv", "notes.txt"):
        (pack / name).write_bytes(secrets_of(1)[0])
    assert json.loads(good("purge", pack, "--dry-run", "--json").out)["files"] == 3
    report = purge(pack)
    assert report.files == 3 and (pack / "notes.txt").exists()
    assert report.notes == ("not packer's, and left alone: notes.txt",)
    assert "nothing to erase" in good("purge", pack).out and not (pack / "versions").exists()


def test_labels_in_lists_and_notes(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src")
    (tmp_path / "src/JPEGImages/bad.jpg").write_bytes(b"not an image")
    good("build", tmp_path / "src", "-o", tmp_path / "p.hdf5", "--max-bad", "9", "--missing-labels", "skip")
    pack = tmp_path / "p.hdf5"
    paths = open_pack(pack).paths
    with NextVersion(pack, "packer edit p") as new:
        listings, selections = lists_of(str(pack), new.manifest)
        changed = (
            Changed(path, "clipped", f"{number}.xml:3", "1 dog", "1 2 3 4", "1 2 3 3")
            for number, path in enumerate(paths)
        )
        listings["changed"] = Listing(Changed, changed)
        notes = (f"odd: {paths[1]}", f"odd: {paths[0]}")
        new.publish(replace(new.manifest, notes=notes), listings.values(), selections)
    rejected = [row.path for row in read_list(pack, "rejected")]
    edit(pack, delete=[1])
    purge(pack)
    for name in (pack, f"{pack}@2", f"{pack}@3"):
        assert [row.path for row in read_list(name, "changed")] == sorted({*paths} - {paths[1]})
        assert paths[1] not in "".join(read_manifest(name).notes) and paths[0] in "".join(read_manifest(name).notes)
        assert rejected and [row.path for row in read_list(name, "rejected")] == rejected
    assert all_good(pack)


@pytest.mark.parametrize("deleted_first", [True, False])
def test_what_is_attached(tmp_path: Path, search: Search, deleted_first: bool) -> None:
    pack = write(tmp_path / "p", "parquet")
    if deleted_first:
        edit(pack, delete=DELETED)
    there = [i for i in range(RECORDS) if i not in DELETED or not deleted_first]
    array, texts = np.stack([np.frombuffer(random_bytes(i, 9), np.uint8) for i in there]), tmp_path / "texts"
    texts.mkdir()
    for i in there:
        (texts / f"{name_of(i)}.txt").write_text(random_bytes(i, 8).hex())
        Image.fromarray(noise(i, 8, 12, 1)[..., 0]).save(texts / f"{name_of(i)}.png")
    np.save(tmp_path / "array.npy", array)
    attach(pack, tmp_path / "array.npy", name="embedding")
    attach(pack, f"{texts}/{{stem}}.txt", name="words", kind="text")
    attach(pack, f"{texts}/{{stem}}.png", name="depth", kind="map")
    (tmp_path / "array.npy").unlink()
    shutil.rmtree(texts)
    if not deleted_first:
        edit(pack, delete=DELETED)
    secrets = [secret for i in DELETED for secret in (random_bytes(i, 9), random_bytes(i, 8).hex().encode())]
    assert bool(search(secrets)) is not deleted_first
    assert not purge(pack).notes
    assert not search(secrets)
    left, opened = [i for i in range(RECORDS) if i not in DELETED], open_pack(pack)
    rows = np.arange(len(left))
    assert np.array_equal(opened.sidecar("embedding").read(rows), array[[there.index(i) for i in left]])
    assert opened.sidecar("words").read(rows) == [random_bytes(i, 8).hex() for i in left]
    depth = [np.array(Image.open(io.BytesIO(data))) for data, _ in opened.sidecar("depth").read(rows)]
    assert all(np.array_equal(one, noise(i, 8, 12, 1)[..., 0]) for one, i in zip(depth, left, strict=True))
    assert all_good(pack)


def test_what_is_attached_and_damaged(tmp_path: Path) -> None:
    pack = write(tmp_path / "p", "lmdb")
    np.save(tmp_path / "array.npy", np.arange(RECORDS))
    attach(pack, tmp_path / "array.npy", name="embedding")
    edit(pack, delete=DELETED)
    data = (pack / "sidecar.embedding.npy").read_bytes()
    (pack / "sidecar.embedding.npy").write_bytes(data[:-1] + b"x")
    (note,) = purge(pack).notes  # the version with records that are not to be read is not kept for it
    assert note == "what was attached to p@1 is removed: it was altered: it does not match its checksums"
    assert "embedding" in open_pack(pack).sidecars and all_good(pack)
    edit(pack, delete=[0])
    before = tree_state(pack)
    (pack / "jpeg-index.json").write_bytes(b"damaged")
    with pytest.raises(DamagedPack, match="make it again: packer index"):
        purge(pack)
    (pack / "jpeg-index.json").unlink()
    assert {*tree_state(pack)} == {*before} and purge(pack).records == 1 and all_good(pack)


def test_an_index_of_jpegs_goes_along(tmp_path: Path, fast: ModuleType) -> None:
    """The stand-in's index of a JPEG begins with its checksum."""
    pack = write(tmp_path / "p", "hdf5", shard_bytes=4000)
    index_jpegs(pack, workers=1)
    edit(pack, delete=DELETED)
    secrets = [b"%08x at 0" % crc32c(image_of(i, "copy")) for i in DELETED]
    assert found_in(pack, secrets)
    assert not purge(pack).notes and not found_in(pack, secrets)
    for name in (pack, f"{pack}@1", f"{pack}@2"):
        opened = open_pack(name)
        indexes = open_jpeg_indexes(opened)
        assert indexes is not None and len(opened) == RECORDS - len(DELETED)
        places, sizes = indexes.places(np.arange(len(opened)))
        for i, place, size in zip(range(len(opened)), places, sizes, strict=True):
            assert ctypes.string_at(int(place), int(size)).startswith(b"%08x at 0" % crc32c(bytes(opened.record(i))))
    assert all_good(pack)


@pytest.mark.parametrize("forget", [False, True])
def test_an_update_brings_back_what_is_forgotten_only(tmp_path: Path, forget: bool) -> None:
    draw_classes(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--shard-size", "3KB")
    pack = tmp_path / "p"
    records = len(open_pack(pack))
    edit(pack, delete=[1])
    edit(pack, delete=[3])
    purge(pack, forget_paths=forget)
    update(pack)  # it still knows where the source is
    assert len(open_pack(pack)) == records - (0 if forget else 2) and all_good(pack)
    (tmp_path / "src/ant/000.jpg").unlink()
    update(pack)
    assert purge(pack).records == 1 and all_good(pack)


def test_what_cannot_be_purged(tmp_path: Path) -> None:
    pack = write(tmp_path / "p", "zarr")
    assert "is a URL, and packer purge works on folders; copy it first: packer pull" in refused(
        2, "purge", "file:///x/p"
    )
    edit(pack, delete=[1])
    assert "is a version of a pack, which stays as it is" in refused(2, "purge", f"{pack}@1")
    before = {name for name, *_ in tree_state(pack).items()}
    with NextVersion(pack, "packer edit p"), pytest.raises(UsageError, match="being changed by another packer"):
        purge(pack)
    shard = read_manifest(pack).shards[0]
    with open(pack / shard.container.name, "r+b") as file:
        file.seek(int(np.asarray(open_pack(pack).column("offset"))[0]) + 3)
        file.write(b"\0\0\0\1")
    with pytest.raises(DamagedPack, match="does not match its checksum"):
        purge(pack)
    assert {*tree_state(pack)} == before and len(versions_of(pack)) == 2
