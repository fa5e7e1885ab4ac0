"""`packer verify`: a good pack is good; each kind of damage is found, and named as closely as can be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from damage import edit_index, exchange, flip, vouch
from running import run

from packer import open_pack
from packer.errors import DamagedPack, UsageError
from packer.format.manifest import read_manifest
from packer.format.verify import Problem, verify
from packer.format.verify_records import digest_of_written
from packer.model.annotation import Progress

KINDS = ("raw", "jpeg", "ragged", "boxes", "copy")


def names(pack: Path) -> list[tuple[str, str]]:
    return [(s.container.name, s.index.name) for s in read_manifest(pack).shards]


def record_place(pack: Path, i: int) -> tuple[Path, int]:
    """The container file of record `i`, and the offset of its middle."""
    good = open_pack(pack)
    shard, _ = good.reader.locate(i)
    offset = sum(good.reader.span(i)) // 2 - int(good.reader._starts[shard])
    return pack / good.reader.shards[shard].container.name, offset


@pytest.mark.parametrize("kind", KINDS)
def test_good_pack(make_pack, container, kind):
    pack = make_pack(kind, container)
    reported = []

    class Listener(Progress):
        def stage(self, name, total=None, unit="images"):
            reported.append((name, total, unit))

        def advance(self, done, bad=0):
            reported.append(done)

    report = verify(pack, Listener())
    assert reported.pop(0) == ("verifying", sum(reported), "bytes")
    assert report.problems == ()
    assert report.records == len(open_pack(pack)) and report.files == 2 * len(names(pack))
    assert report.bytes == sum(reported) == sum(p.stat().st_size for p in pack.iterdir() if p.name != "pack.json")


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_a_flipped_pixel_names_the_record(copied, container, kind):
    pack = copied(kind, container)
    path, offset = record_place(pack, 11)
    flip(path, offset)
    altered, record = verify(pack).problems
    assert altered == Problem(path.name, None, "was altered: its digest does not match the manifest")
    assert record == Problem(path.name, "00000011", "does not match its checksum")
    assert str(record) == f"{path.name}: record 00000011 does not match its checksum"


def test_a_flipped_byte_beside_the_records(copied, container):
    pack = copied("raw", container)
    path = pack / names(pack)[1][0]
    flip(path, path.stat().st_size - 1)
    (altered,) = verify(pack).problems
    assert altered.file == path.name and "was altered" in altered.problem


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", ["missing", "cut", "appended", "folder", "empty"])
def test_files(copied, container, which, damage):
    pack = copied("raw", container)
    path = pack / names(pack)[1][which]
    size = path.stat().st_size
    if damage in ("missing", "folder"):
        path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        os.truncate(path, {"cut": size - 1, "appended": size + 1, "empty": 0}[damage])
    problem, *rest = verify(pack).problems
    assert problem.file == path.name and problem.record is None
    lost = 8 if (damage, which) == ("empty", 0) else 0  # an index lost is no record lost; HDF5's last byte is no image
    assert len({p.record for p in rest}) == lost


def test_all_damage_is_listed(copied):
    pack = copied("raw", "lmdb")
    for i in (0, 5, 20):
        flip(*record_place(pack, i))
    (pack / names(pack)[1][1]).unlink()
    report = verify(pack)
    assert {p.record for p in report.problems if p.record} == {"00000000", "00000005", "00000020"}
    assert [p.file for p in report.problems if "missing" in p.problem] == [names(pack)[1][1]]


def test_swapped_shards(copied):
    pack = copied("raw", "tfrecord")
    (a, index_a), (b, index_b), *_ = names(pack)
    exchange(pack / a, pack / b)
    exchange(pack / index_a, pack / index_b)
    assert [p.file for p in verify(pack).problems] == [a, index_a, b, index_b]


def shifted(values):
    return [values[1], values[0], *values[2:]]


def test_index_and_container_that_disagree(copied, container):
    pack = copied("raw", container)
    index = pack / names(pack)[0][1]
    for name in ("offset", "crc32c"):  # record 0 now lies where record 1 is
        edit_index(index, name, shifted)
    vouch(pack)
    problems = verify(pack, deep=True).problems
    assert {p.record for p in problems} == {"00000000", "00000001"}
    assert any("is not where the index says" in p.problem for p in problems)


def test_index_with_other_keys(copied, container):
    pack = copied("raw", container)
    edit_index(pack / names(pack)[0][1], "key", lambda keys: [*keys[:-1], "00000099"])
    vouch(pack)
    problems = verify(pack, deep=True).problems
    assert any(p.record == "00000099" and "checksum" in p.problem for p in problems)
    assert any(p.record == "00000007" and "not where the index" in p.problem for p in problems)


def test_index_that_points_outside(copied, container):
    pack = copied("raw", container)
    edit_index(pack / names(pack)[0][1], "offset", lambda offsets: [2**62, -5, *offsets[2:]])
    vouch(pack)
    outside = [p for p in verify(pack).problems if "is outside its file" in p.problem]
    assert [p.record for p in outside] == ["00000000", "00000001"]


def test_a_container_that_its_own_library_cannot_read(copied, container):
    pack = copied("raw", container)
    path = pack / names(pack)[0][0]
    path.write_bytes(b"\0" * path.stat().st_size)
    vouch(pack)
    problems = verify(pack).problems
    assert {p.file for p in problems} == {path.name}
    assert {p.record for p in problems} >= {f"{i:08d}" for i in range(8)}


def test_what_is_no_pack(tmp_path, copied):
    with pytest.raises(UsageError, match="no such pack"):
        verify(tmp_path / "none")
    pack = copied("raw", "lmdb")
    flip(pack / "pack.json", 60)
    with pytest.raises(DamagedPack):
        verify(pack)


def test_a_shard_that_was_just_written(copied, container):
    pack = copied("raw", container)
    shard = read_manifest(pack).shards[0]
    files = str(pack / shard.container.name), str(pack / shard.index.name)
    assert digest_of_written(*files, shard.index) == shard.container.sha256
    flip(*record_place(pack, 2))
    with pytest.raises(DamagedPack, match="record 00000002 does not match its checksum"):
        digest_of_written(*files, shard.index)
    flip(Path(files[1]), 3000)
    with pytest.raises(DamagedPack, match="does not match its digest"):
        digest_of_written(*files, shard.index)


# -- on the command line


def test_command(copied, container):
    pack = copied("raw", container)
    good = run("verify", pack)
    assert (good.code, good.out.strip(), good.err) == (0, f"{pack}: good: 24 records in 6 files", "")
    assert run("verify", pack, "--quiet").out == ""
    path, offset = record_place(pack, 11)
    flip(path, offset)
    bad = run("verify", pack)
    assert bad.code == 4 and bad.out == ""
    assert bad.error_lines[1] == f"packer: {pack}: {path.name}: record 00000011 does not match its checksum"


def test_command_json(copied):
    pack = copied("raw", "webdataset")
    assert json.loads(run("verify", pack, "--json").out)["good"] is True
    name = names(pack)[2][1]
    (pack / name).unlink()
    ran = run("verify", pack, "--json")
    found = json.loads(ran.out)
    assert ran.code == 4 and found["good"] is False and found["records"] == 24
    assert found["problems"] == [{"file": name, "record": None, "problem": "is missing"}]


def test_command_lists_so_many_problems_and_no_more(copied):
    pack = copied("raw", "hdf5")
    for i in range(24):
        flip(*record_place(pack, i))
    ran = run("verify", pack)
    lines = ran.error_lines
    assert len(lines) == 21 and lines[20].startswith("packer: ... and 7 more")
    assert ran.steps == [f"try: packer repair {pack}"]


def test_command_on_what_is_no_pack(tmp_path):
    ran = run("verify", tmp_path)
    assert ran.code == 2 and len(ran.error_lines) == 1 and "is not a pack" in ran.err
