"""The .idx beside a shard of RecordIO: listed, verified, restored, and the same for any build."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from packs import MakePack

from packer.errors import DamagedPack
from packer.format.manifest import read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify


@pytest.fixture
def pack(copied: MakePack) -> Path:
    return copied("boxes", "recordio")


def test_each_shard_has_one(pack: Path) -> None:
    manifest = read_manifest(pack)
    assert len(manifest.shards) > 1
    for shard in manifest.shards:
        companion = manifest.companions[shard.container.name]
        assert companion.name == shard.container.name.replace(".rec", ".idx") and companion in manifest.files
        whole = (pack / shard.container.name).read_bytes()
        lines = [line.split("\t") for line in (pack / companion.name).read_text().splitlines()]
        assert [int(number) for number, _ in lines] == list(range(shard.records))
        assert {struct.unpack_from("<I", whole, int(at))[0] for _, at in lines} == {0xCED7230A}


def test_other_packs_have_none(make_pack: MakePack) -> None:
    pack = make_pack("boxes", "lmdb")
    assert read_manifest(pack).companions == {} and b"companions" not in (pack / "pack.json").read_bytes()


@pytest.mark.parametrize("damage", ["altered", "longer", "missing"])
def test_it_is_verified_and_restored(pack: Path, damage: str) -> None:
    path = pack / "shard-00001.idx"
    before = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"x" + before[1:] if damage == "altered" else before + b"\n")
    problem = {"altered": "was altered", "longer": "bytes, but the pack says", "missing": "is missing"}[damage]
    (found,) = verify(pack).problems
    assert found.file == "shard-00001.idx" and problem in found.problem
    report = repair(pack)
    assert (report.out, report.restored, report.lost) == (None, ("shard-00001.idx",), ())
    assert path.read_bytes() == before and verify(pack, deep=True).problems == ()


def test_with_its_shard(pack: Path) -> None:
    """The image of a record is gone, so that shard and list are written again, in a new pack."""
    (pack / "shard-00001.idx").unlink()
    with open(pack / "shard-00001.rec", "r+b") as file:
        file.seek(400)
        file.write(b"\xff" * 40)
    report = repair(pack)
    assert report.out is not None and report.lost_records == 1
    assert verify(report.out, deep=True).problems == ()
    manifest = read_manifest(report.out)
    assert manifest.companions.keys() == {shard.container.name for shard in manifest.shards}


def test_without_a_manifest(pack: Path) -> None:
    before = read_manifest(pack).companions
    (pack / "pack.json").unlink()
    report = repair(pack)
    assert report.out is not None and report.lost == ()
    assert read_manifest(report.out).companions == before


def test_a_manifest_with_one_of_another_shard_is_refused(pack: Path) -> None:
    manifest = read_manifest(pack)
    companions = {"shard-00009.rec": manifest.companions["shard-00000.rec"]}
    (pack / "pack.json").write_bytes(replace(manifest, companions=companions).to_json())
    with pytest.raises(DamagedPack, match=r"companions \['shard-00009.rec'\] are not those of its shards"):
        read_manifest(pack)
