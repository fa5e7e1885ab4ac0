"""Lists of a pack: sorted in bounded memory, and read as they were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from drawn import draw_plain
from running import good, run

from packer.errors import DamagedPack
from packer.format import lists
from packer.format.lists import Changed, Listing, Skipped, read_list
from packer.format.manifest import Rejected, read_manifest

ODD = [
    "tab\there.jpg",
    "line\nbreak.jpg",
    "back\\slash.jpg",
    "\\x41.jpg",
    os.fsdecode(b"\xff.jpg"),
    "\u4e2d.jpg",
    "\xa0.jpg",
]


@pytest.mark.parametrize("in_memory", [3, 1000])
def test_rows_come_back_sorted_however_many_fit_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_memory: int
) -> None:
    monkeypatch.setattr(lists, "ROWS_IN_MEMORY", in_memory)
    monkeypatch.setattr(lists, "BLOCK_BYTES", 7)
    rows = [Skipped(f"{i * 37 % 100:03d}.jpg", "even" if i % 2 == 0 else "odd") for i in range(100)]
    listing = Listing(Skipped, rows)
    assert len(listing) == 100 and listing.counts == {"even": 50, "odd": 50}
    assert [row.path for row in listing] == [f"{i:03d}.jpg" for i in range(100)] == [row.path for row in listing]
    assert listing.examples["even"] == min((r for r in rows if r.reason == "even"), key=lambda row: row.path)
    entry = listing.write(str(tmp_path / "skipped.tsv"))
    text = (tmp_path / "skipped.tsv").read_bytes()
    assert entry.bytes == len(text) and text.startswith(b"path\treason\n000.jpg\teven\n")


def test_odd_names_come_back() -> None:
    rows = {Changed(name, "clipped", f"{name}:3", "1 cat", "0 0 5 5", "") for name in ODD}
    assert {row.path for row in Listing(Changed, rows)} == set(ODD)
    assert all(line.count(b"\n") == 1 and line.count(b"\t") == 5 for line in Listing(Changed, rows).lines())


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack with three rejected inputs."""
    source = draw_plain(tmp_path / "src", 6)
    for i in range(3):
        (source / f"bad{i}.jpg").write_bytes(b"no image at all" * 9)
    good("build", source, "-o", tmp_path / "p", "--max-bad", 3, "--shard-size", "8KB")
    return tmp_path / "p"


def test_lists_are_files_of_the_pack(pack: Path) -> None:
    manifest = read_manifest(pack)
    assert list(manifest.lists) == ["rejected"] and manifest.counts["rejected"] == 3
    assert tuple(read_list(pack, "rejected")) == manifest.rejected
    assert list(read_list(pack, "skipped")) == []
    assert f"good: 6 records in {2 * len(manifest.shards) + 3} files" in good("verify", pack).out


def test_the_manifest_holds_only_the_first(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.packing.resume.MOST_IN_MANIFEST", 2)
    good("build", pack.parent / "src", "-o", pack, "--max-bad", 3, "--overwrite")
    manifest = read_manifest(pack)
    assert len(manifest.rejected) == 2 and len(list(read_list(pack, "rejected"))) == 3
    assert good("info", pack, "--rejected").out.count("bad") >= 3


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_list_is_found_and_left_out_by_repair(pack: Path, damage: str) -> None:
    path = pack / "rejected.tsv"
    path.write_bytes(path.read_bytes().replace(b"bad1", b"bad9"))
    if damage == "missing":
        path.unlink()
        with pytest.raises(DamagedPack, match=r"rejected\.tsv: cannot be read: No such file"):
            list(read_list(pack, "rejected"))
    ran = run("verify", pack)
    assert ran.code == 4 and "rejected.tsv" in ran.err
    good("repair", pack)
    repaired = pack.with_name("p.repaired")
    assert "rejected.tsv was damaged or missing, and is left out" in good("info", repaired).out
    assert [row.path for row in read_list(repaired, "rejected")] == ["bad0.jpg", "bad1.jpg", "bad2.jpg"]
    good("verify", repaired)


@pytest.mark.parametrize("cell", [rb"\N{DOG}.jpg", rb"\101.jpg", rb"\q", b"a\\", rb"\U00110000", rb"\xZZ"])
def test_escapes_that_packer_does_not_write(tmp_path: Path, pack: Path, cell: bytes) -> None:
    (tmp_path / "rejected.tsv").write_bytes(b"path\treason\tproblem\n%s\tx\ty\n" % cell)
    with pytest.raises(DamagedPack, match=r"rejected\.tsv: cannot be read"):
        list(read_list(tmp_path, "rejected", read_manifest(pack)))


def test_repair_adds_what_is_lost(pack: Path) -> None:
    manifest = read_manifest(pack)
    for file in (manifest.shards[0].container, manifest.shards[0].index):
        (pack / file.name).write_bytes(b"")
    assert run("repair", pack).code == 1
    reasons = [row.reason for row in read_list(pack.with_name("p.repaired"), "rejected")]
    assert reasons.count("lost") >= 1 and reasons.count("not-an-image") == 3
    good("verify", pack.with_name("p.repaired"))


def test_packs_of_before_list_all_in_their_manifest(pack: Path) -> None:
    manifest = read_manifest(pack)
    old = type(manifest)(**{f: getattr(manifest, f) for f in manifest.__dataclass_fields__ if f != "lists"})
    assert b'"lists"' not in old.to_json()
    (pack / "rejected.tsv").unlink()
    (pack / "pack.json").write_bytes(old.to_json())
    assert (
        list(read_list(pack, "rejected"))
        == list(old.rejected)
        == [Rejected(f"bad{i}.jpg", "not-an-image", old.rejected[i].problem) for i in range(3)]
    )
    good("verify", pack)
