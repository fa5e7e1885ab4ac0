"""`packer repair`: what is proven is put back, the rest of a pack is saved beside it, and what is lost is listed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import crashing_decoder
import numpy as np
import pytest
from crc32c import crc32c
from damage import edit_index, flip, shard_files, vouch
from drawn import tree_state
from running import digests, run

from packer import open_pack
from packer.errors import DamagedPack, UsageError
from packer.format import salvage_records
from packer.format.manifest import read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify

KINDS = ("raw", "jpeg", "ragged", "boxes", "copy", "gray16")


def place_of(pack: Path, i: int) -> tuple[Path, int, int]:
    """Container file, offset and size of record `i`."""
    good = open_pack(pack)
    shard, _ = good.reader.locate(i)
    return (
        shard_files(pack, shard)[0],
        int(good.reader.span(i)[0] - good.reader._starts[shard]),
        int(np.ptp(good.reader.span(i))),
    )


def plain(value):
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist())
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def content(pack: Path) -> dict[str, object]:
    """All that each record holds, by key."""
    opened = open_pack(pack)
    found = {}
    for i, key in enumerate(opened.keys):
        a = opened.annotation(i)
        fields = ("label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras")
        facts = [plain(getattr(a, name)) for name in fields]
        source = bytes(np.asarray(opened.column("source_xxh3"))[i])
        image = opened.image(i)
        found[key] = (bytes(opened.record(i)), image.shape, image.dtype, opened.paths[i], source, facts)
    return found


def saved_beside(pack: Path, before: dict[str, object], lost: set[str], out: Path | None = None) -> Path:
    """Repair the pack: all but the lost records must be in the new one, and the old one must be as it was."""
    state = tree_state(pack)
    report = repair(pack, None if out is None else str(out))
    new = Path(report.out or "")
    assert new == (out or pack.with_name(pack.name + ".repaired"))
    assert tree_state(pack) == state and not Path(f"{new}.partial").exists()
    assert verify(new, deep=False).problems == ()
    assert content(new) == {key: value for key, value in before.items() if key not in lost}
    assert {entry.key for entry in report.lost} == lost and report.lost_records == len(lost)
    manifest = read_manifest(new)
    counts = manifest.counts
    assert counts["found"] == counts["packed"] + counts["rejected"] + counts["skipped"]
    assert counts["packed"] == manifest.records == len(before) - len(lost) == report.records
    return new


# -- what is proven is put back


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("jpeg", "missing"), ("copy", "missing"), ("ragged", "missing"), ("boxes", "flipped"), ("raw", "cut")],
)
def test_indexes(copied, container, kind, damage):
    pack = copied(kind, container)
    before = digests(pack)
    names = []
    for number in (0, -1):
        index = shard_files(pack, number)[1]
        names.append(index.name)
        if damage == "missing":
            index.unlink()
        elif damage == "cut":
            index.write_bytes(index.read_bytes()[:-500])
        else:
            flip(index, index.stat().st_size // 2)
    report = repair(pack)
    assert report.restored == tuple(names) and report.out is None and not report.lost
    assert digests(pack) == before and verify(pack, deep=True).problems == ()
    assert sorted(p.name for p in pack.parent.iterdir()) == [pack.name]


@pytest.mark.parametrize("kind", ["raw", "boxes", "jpeg"])
def test_a_flip_beside_the_records(copied, container, kind):
    pack = copied(kind, container)
    before, whole = digests(pack), content(pack)
    path = shard_files(pack, 0)[0]
    places = [place_of(pack, i) for i in range(len(open_pack(pack)))]
    taken = {b for file, start, size in places if file == path for b in range(start, start + size)}
    free = [b for b in range(path.stat().st_size) if b not in taken]
    flip(path, free[len(free) * 2 // 3])
    report = repair(pack)
    assert not report.lost
    assert (report.out, report.restored) == (None, (path.name,))
    assert digests(pack) == before and content(pack) == whole


@pytest.mark.parametrize("container", ["lmdb"])
@pytest.mark.parametrize("change", [lambda t: t.replace("\n", "\r\n"), lambda t: json.dumps(json.loads(t))])
def test_a_manifest_with_another_layout(copied, container, change):
    """Its digest is over what it says, so it is still the original."""
    pack = copied("boxes", container)
    before = digests(pack)
    file, index = pack / "pack.json", shard_files(pack, 0)[1]
    file.write_bytes(change(file.read_text()).encode())
    with pytest.raises(DamagedPack):
        open_pack(pack)
    index.unlink()
    report = repair(pack)
    assert report.restored == ("pack.json", index.name) and digests(pack) == before


# -- what is lost is listed, and the rest saved


@pytest.mark.parametrize("kind", KINDS)
def test_records(copied, container, kind):
    pack = copied(kind, container)
    before = content(pack)
    chosen = random.Random(kind).sample(range(len(before)), 3)
    for i in chosen:
        path, offset, size = place_of(pack, i)
        flip(path, offset + size // 2)
    lost = {f"{i:08d}" for i in chosen}
    new = saved_beside(pack, before, lost)
    listed = [r for r in read_manifest(new).rejected if r.reason == "lost"]
    assert {r.path for r in listed} == {before[key][3] for key in lost}
    counts = read_manifest(new).class_counts.get("label", [])
    assert sum(counts) == sum(value[5][0] is not None for key, value in before.items() if key not in lost)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "index too"])
def test_a_container(copied, container, damage):
    pack = copied("raw", container)
    before = content(pack)
    path, index = shard_files(pack, 1)
    keys = [f"{i:08d}" for i in range(len(before)) if place_of(pack, i)[0] == path]
    lost = set(keys)
    if damage in ("missing", "index too"):
        path.unlink()
        if damage == "index too":
            index.unlink()
            report = repair(pack)
            assert [(e.shard, e.key, e.records) for e in report.lost] == [(path.name, None, len(keys))]
            assert verify(report.out).problems == () and report.records == len(before) - len(keys)
            return
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        _, offset, size = place_of(pack, int(keys[3]))
        end = offset + size - 1
        lost = {key for key in keys if sum(place_of(pack, int(key))[1:]) > end}
        path.write_bytes(path.read_bytes()[:end])
    saved_beside(pack, before, lost)


@pytest.mark.parametrize("kind", ["raw", "boxes", "copy"])
def test_container_and_index_both_damaged(copied, container, kind):
    """A record counts if its row and the container agree about it; TFRecord is scanned up to the damage."""
    pack = copied(kind, container)
    before = content(pack)
    place_of_good = {key: place_of(pack, int(key))[0].name for key in before}
    path, offset, size = place_of(pack, 1)
    flip(path, offset + size // 2)
    index = shard_files(pack, 0)[1]
    row = index.read_bytes().index(before["00000002"][3].encode())  # the path of record 2
    flip(index, row + 1)
    rest = {key for key in before if key > "00000000" and place_of_good[key] == path.name}
    lost = rest if container == "tfrecord" else {"00000001", "00000002"}
    report = repair(pack)
    assert verify(report.out).problems == ()
    kept = content(Path(report.out))
    assert kept == {key: value for key, value in before.items() if key not in lost}
    assert report.lost_records == len(lost)


def test_frames_without_an_index(copied):
    """Frames of TFRecord have checksums of their own: those before the damage are good."""
    pack = copied("boxes", "tfrecord")
    before = content(pack)
    path, index = shard_files(pack, 0)
    _, offset, _ = place_of(pack, 1)
    index.unlink()
    flip(path, offset)
    report = repair(pack)
    assert report.lost_records == 2 and [entry.key for entry in report.lost] == [None]
    lost = ("00000001", "00000002")
    assert content(Path(report.out)) == {key: value for key, value in before.items() if key not in lost}


# -- no manifest


@pytest.mark.parametrize(("kind", "left"), [("raw", "nothing"), ("copy", "nothing"), ("boxes", "garbage")])
def test_without_a_manifest(copied, container, kind, left):
    pack = copied(kind, container)
    before, manifest = content(pack), read_manifest(pack)
    if left == "nothing":
        (pack / "pack.json").unlink()
    else:
        (pack / "pack.json").write_bytes(b"\0" * 4000)
    new = saved_beside(pack, before, set())
    again = read_manifest(new)
    for name in ("container", "encoding", "mode", "dtype", "shape", "classes", "fields", "class_counts"):
        assert getattr(again, name) == getattr(manifest, name), name
    assert any("rebuilt from" in note for note in again.notes) and any("unknown" in note for note in again.notes)


@pytest.mark.parametrize("container", ["parquet", "zarr", "n5"])
@pytest.mark.parametrize("left", ["manifest", "index"])
def test_other_containers(copied, container, left):
    """Also those whose file names have two extensions."""
    pack = copied("boxes", container)
    before, whole = content(pack), digests(pack)
    (pack / "pack.json" if left == "index" else shard_files(pack, 1)[1]).unlink()
    assert repair(pack, str(pack.with_name("new"))).lost == ()
    new = pack.with_name("new")
    assert verify(new, deep=True).problems == () and content(new) == before
    assert {name: found for name, found in digests(new).items() if name.startswith("shard")} == {
        name: found for name, found in whole.items() if name.startswith("shard")
    }


def test_without_a_manifest_and_with_damage(copied, container):
    pack = copied("boxes", container)
    before = content(pack)
    path, offset, size = place_of(pack, 2)
    flip(path, offset + size // 2)
    (pack / "pack.json").unlink()
    saved_beside(pack, before, {"00000002"})


@pytest.mark.parametrize("container", ["lmdb", "tfrecord"])
@pytest.mark.parametrize("where", ['"digest": "', '"sha256": "', '"classes": [\n  "', '\n "mode"', '"records": '])
def test_one_bit_of_the_manifest(copied, container, where):
    pack = copied("boxes", container)
    before, old = content(pack), digests(pack)
    text = (pack / "pack.json").read_text()
    flip(pack / "pack.json", text.index(where) + len(where))
    new = saved_beside(pack, before, set())
    assert {n: d for n, d in digests(new).items() if n != "pack.json"} == {
        n: d for n, d in old.items() if n != "pack.json"
    }


def test_without_a_manifest_and_an_index(copied, container):
    """Only a TFRecord vouches for its records itself."""
    pack = copied("raw", container)
    before = content(pack)
    path, index = shard_files(pack, 1)
    in_shard = {key for key in before if place_of(pack, int(key))[0] == path}
    (pack / "pack.json").write_bytes(b"\0" * 4000)
    index.unlink()
    report = repair(pack)
    lost = set() if container == "tfrecord" else in_shard
    assert content(Path(report.out)) == {key: value for key, value in before.items() if key not in lost}
    assert report.lost_records == len(lost)


@pytest.mark.workers
def test_a_container_that_crashes_its_library(copied, monkeypatch):
    """Without a manifest a container may be damaged, and its library crash: that ends a process of its own."""
    pack = copied("raw", "lmdb")
    before = content(pack)
    (pack / "pack.json").unlink()
    monkeypatch.setattr(salvage_records, "_scan", crashing_decoder.scan)
    saved_beside(pack, before, set())


# -- at the border


def test_a_good_pack_is_left_alone(make_pack, container):
    pack = make_pack("raw", container)
    state = tree_state(pack)
    report = repair(pack)
    assert (report.out, report.restored, report.lost, report.records) == (None, (), (), 24)
    assert tree_state(pack) == state


def test_out_leaves_the_pack_as_it_is(copied, container, tmp_path):
    pack = copied("raw", container)
    before, old = content(pack), digests(pack)
    shard_files(pack, 0)[1].unlink()
    new = saved_beside(pack, before, set(), tmp_path / "new")
    assert {n: d for n, d in digests(new).items() if n != "pack.json"} == {
        n: d for n, d in old.items() if n != "pack.json"
    }


def test_refusals(copied, tmp_path):
    pack = copied("raw", "lmdb")
    path, offset, _ = place_of(pack, 0)
    flip(path, offset)
    state = tree_state(pack)
    (tmp_path / "there").mkdir()
    for out in (str(tmp_path / "there"), str(pack), str(pack / "inside")):
        with pytest.raises(UsageError):
            repair(pack, out)
    with pytest.raises(UsageError, match="no such pack"):
        repair(tmp_path / "none")
    with pytest.raises(UsageError, match="is not a pack"):
        repair(tmp_path / "there")
    for file in pack.glob("shard*"):
        file.write_bytes(b"")
    with pytest.raises(DamagedPack, match="none of its records"):
        repair(pack)
    assert not pack.with_name(f"{pack.name}.repaired").exists()
    assert not pack.with_name(f"{pack.name}.repaired.partial").exists() and state


def test_command(copied):
    pack = copied("raw", "lmdb")
    assert run("repair", pack).out.strip() == f"{pack}: whole: 24 records"
    path, offset, _ = place_of(pack, 5)
    flip(path, offset)
    found = json.loads(run("repair", pack, "--json", "--out", f"{pack}.new").out)
    assert found["lost_records"] == 1 and found["lost"][0]["key"] == "00000005" and found["out"] == f"{pack}.new"
    ran = run("repair", pack)
    assert ran.code == 1 and ran.error_lines == [
        f"packer: {pack}: lost: {path.name}: record 00000005 ({found['lost'][0]['path']})"
    ]
    assert run("verify", f"{pack}.repaired", "--deep").code == 0
    again = run("repair", pack)
    assert again.code == 2 and "exists" in again.err
    shard_files(pack, 1)[1].unlink()
    assert run("repair", pack, "--quiet", "-o", f"{pack}.third").code == 1


def test_forged_records_are_not_blessed_in_silence(copied, container):
    """A CRC-32C can be forged: here it is computed anew, in an index with right digests."""
    pack = copied("raw", container)
    good = open_pack(pack)
    shard, place = good.reader.shards[0], good.reader.span(1)[0] - int(good.reader._starts[0])
    path, index = pack / shard.container.name, pack / shard.index.name
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    size = good.reader.span(1)[1] - good.reader.span(1)[0]
    del good
    edit_index(
        index,
        "crc32c",
        lambda old: [old[0], crc32c(bytes(data[place : place + size]), crc32c(b"00000001")), *old[2:]],
    )
    vouch(pack)  # all right, as of a forged index; and then the container is another than the one with this digest
    path.write_bytes(data)
    (problem,) = [problem for problem in verify(pack).problems if problem.record is None]
    assert "can forge that, too" in problem.problem and "was packed" not in problem.problem
    report = repair(pack)
    assert report.out is not None
    (note,) = [note for note in report.notes if "CRC-32C alone" in note]
    assert note in read_manifest(report.out).notes and shard.container.name in note
