"""`packer verify --subset` and `--newer-than`: calls in turn verify everything, and say what they have left out."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import edit_index, flip, shard_files, vouch
from drawn import draw, draw_plain
from packs import MakePack
from running import digests, good, refused, run

from packer import BuildOptions, attach, build_pack, open_pack
from packer.format import verify_part
from packer.format.manifest import read_manifest
from packer.format.verify import check_file, verify
from packer.format.verify_part import Times, VerifiedPart, time_of, wanted_of
from packer.model.annotation import Progress

DAY_S = 86400.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's user keeps what was verified when."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "packer" / "verified"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A pack of twenty shards."""
    build_many(tmp_path)
    return tmp_path / "many"


def build_many(tmp_path: Path, images: int = 20) -> None:
    source = draw_plain(tmp_path / "src", 20)
    how: dict[str, Any] = {
        "labels": ("none",),
        "workers": 1,
        "shard_bytes": 1000,
        "overwrite": True,
        "no_fingerprints": True,
    }
    build_pack(BuildOptions(str(source), str(tmp_path / "many"), "tfrecord", **how))
    assert len(read_manifest(tmp_path / "many").shards) == images


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A pack of twenty records in one shard."""
    source = draw_plain(tmp_path / "src", 20)
    given: dict[str, Any] = {"labels": ("none",), "encode": "copy", "no_fingerprints": True}
    build_pack(BuildOptions(str(source), str(tmp_path / "one"), "tfrecord", **given))
    return tmp_path / "one"


def part_of(pack: Path, subset: str | None = None, **options: Any) -> VerifiedPart:
    """What a call has verified, of a pack that must be good."""
    report = verify(pack, subset=subset, **options)
    assert report.problems == () and report.part is not None
    return report.part


def place_of(pack: Path, record: int) -> tuple[Path, int]:
    """The container of a record, and the offset of a byte of it."""
    found = open_pack(pack)
    shard, row = found.reader.locate(record)
    return pack / found.reader.shards[shard].container.name, found.reader.indexes[shard].column("offset")[row].as_py()


# -- shards in turn


@pytest.mark.parametrize(("subset", "calls"), [("1/7", 7), ("1/20", 20), ("15%", 7), ("100%", 1), ("1/1", 1)])
def test_calls_in_turn_read_every_file_once(
    many: Path, monkeypatch: pytest.MonkeyPatch, subset: str, calls: int
) -> None:
    read: list[str] = []

    def counted(folder: str, manifest: Any, file: Any, progress: Any) -> Any:
        read.append(file.name)
        return check_file(folder, manifest, file, progress)

    monkeypatch.setattr("packer.format.verify.check_file", counted)
    for call in range(calls):
        before = len(read)
        part = part_of(many, subset)
        assert part.shards >= 1 and len(read) - before == 2 * part.shards and part.records == part.shards
        assert (part.since is None) == (call < calls - 1) == bool(part.left_shards)
    assert {*read} == {path.name for path in many.iterdir()} - {"pack.json"}
    assert len({*read[:before]}) == before  # only the last call begins again


def test_a_size_is_rounded_up_to_whole_shards(many: Path) -> None:
    total = read_manifest(many).shard_bytes
    first = part_of(many, f"{total // 2 / 1024:.3f}KB")
    assert total // 2 <= first.bytes < total // 2 + total // 10
    assert part_of(many, "1TB").shards == 20


def test_the_oldest_come_first(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share that changes between calls leaves nothing out."""
    for now, subset in enumerate(["1/4", "1/2", "1/4"], 1_700_000_000):
        monkeypatch.setattr(verify_part.time, "time", lambda now=now: float(now))
        part = part_of(many, subset)
    assert part.since == "2023-11-14T22:13:20Z" and part.left_shards == 0
    monkeypatch.setattr(verify_part.time, "time", lambda: 1_700_000_009.0)
    assert part_of(many, "1/4").since == "2023-11-14T22:13:21Z"  # those of the first call were the oldest


@pytest.mark.parametrize("damage", ["flipped", "index"])
def test_damage_is_found_by_the_call_that_reads_it_and_by_all_that_follow(many: Path, damage: str) -> None:
    container, index = shard_files(many, 19)
    path, whole = (index, index.read_bytes()) if damage == "index" else (container, container.read_bytes())
    flip(path, len(whole) // 2)
    assert [run("verify", many, "--subset", "1/5").code for _ in range(5)] == [0, 0, 0, 0, 4]
    ran = run("verify", many, "--subset", "1/5")  # with those that have their turn
    assert ran.code == 4 and path.name in ran.err and "packer repair" in ran.err
    assert (
        ran.out == f"{many}: {ran.out.partition(': ')[2]}" and "good" not in ran.out and "5 of 20 shards, " in ran.out
    )
    path.write_bytes(whole)
    assert part_of(many, "1/5").shards == 5
    assert part_of(many, "1/5").shards == 4


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_is_left_out_must_be_there_in_its_size(many: Path, damage: str) -> None:
    path = shard_files(many, 19)[0]
    path.unlink() if damage == "missing" else os.truncate(path, 10)
    (problem,) = verify(many, subset="1/20").problems
    assert problem.file == path.name and ("is missing" if damage == "missing" else "has 10 bytes") in problem.problem


def test_lists_companions_and_sidecars_have_their_turn(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("boxes", "recordio")
    np.save(tmp_path / "clip.npy", np.zeros((len(open_pack(pack)), 4), np.float32))
    attach(pack, tmp_path / "clip.npy", "clip")
    others = 2 + len(read_manifest(pack).companions)
    part = part_of(pack, "100%")
    assert part.other_files == others
    flip(next(pack.glob("*.idx")), 0)
    found = [{one.file for one in verify(pack, subset="1/9").problems} for _ in range(9)]
    assert found[0] == set() and len(found[-1]) == 1


# -- a pack of one shard


def test_the_records_of_one_shard_in_turn(one: Path) -> None:
    parts = [part_of(one, "1/3") for _ in range(3)]
    assert [part.left_records for part in parts] == [13, 6, 0]
    assert parts[2].since is not None and {part.shards for part in parts} == {0}
    (unchecked,) = parts[0].unchecked
    container = shard_files(one, 0)[0]
    assert unchecked == f"the digest of {container.name}, and what lies between its records"
    for record in (0, 19):
        flip(*place_of(one, record))
    found = [verify(one, subset="1/3").problems for _ in range(3)]
    assert [[problem.record for problem in problems] for problems in found].count([]) == 1
    assert {problem.record for problems in found for problem in problems} == {"00000000", "00000019"}


def test_a_bad_record_keeps_no_other_from_being_verified(one: Path) -> None:
    flip(*place_of(one, 0))
    parts = [verify(one, subset="1/3").part for _ in range(4)]
    assert [(part.records, part.left_records) for part in parts if part is not None] == [
        (7, 13),
        (8, 6),
        (8, 0),
        (8, 0),
    ]


def test_what_is_between_the_records_is_seen_only_as_a_whole(one: Path) -> None:
    flip(shard_files(one, 0)[0], 8)  # the checksum of a length, which packer does not read
    assert all(part_of(one, "1/2").unchecked for _ in range(3))
    ran = run("verify", one, "--subset", "100%")
    assert ran.code == 4 and "was altered" in ran.err and "note:" not in ran.out


def test_the_whole_shard_counts_for_its_records(one: Path) -> None:
    assert part_of(one, "100%").unchecked == ()
    assert part_of(one, "1/10").left_records == 0
    assert part_of(one, "1/10").since is not None


def test_with_deep_only_the_images_of_the_part_are_decoded(one: Path) -> None:
    stages = []

    class Listener(Progress):
        def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
            stages.append((name, total))

    report = verify(one, Listener(), deep=True, subset="1/4")
    assert stages[1] == ("decoding", report.records) and 5 <= report.records <= 6


def test_what_cannot_be_decoded_is_not_remembered_as_good(one: Path) -> None:
    edit_index(shard_files(one, 0)[1], "height", lambda old: [old[0] + 1, *old[1:]])
    vouch(one, lambda manifest: replace(manifest, shape=None))
    counts = []
    for _ in range(2):
        report = verify(one, deep=True, subset="1/4")
        assert [problem.record for problem in report.problems] == ["00000000"]
        counts.append(report.records)
    assert counts[1] == counts[0] + 1  # that one again, and the next
    assert part_of(one, "1/4").records == counts[1]  # its bytes are as they were packed
    assert part_of(one, "1/4").records < counts[1]


def test_a_damaged_index_leaves_all_of_its_records(one: Path) -> None:
    index = shard_files(one, 0)[1]
    flip(index, index.stat().st_size // 2)
    report = verify(one, subset="1/4")
    assert [problem.file for problem in report.problems] == [index.name]
    assert run("verify", one, "--subset", "1/4").code == 4


# -- what is remembered


def test_a_pack_that_grows_forgets_nothing(many: Path, tmp_path: Path) -> None:
    assert part_of(many, "1/2").left_shards == 10
    draw(tmp_path / "src" / "zzz.jpg", 99)
    build_many(tmp_path, 21)
    part = part_of(many, "1/7")
    assert part.of_shards == 21 and part.left_shards == 11 - part.shards


def test_a_copy_is_other_bytes_and_a_link_is_not(many: Path, tmp_path: Path) -> None:
    part_of(many, "100%")
    shutil.copytree(many, tmp_path / "copy")
    assert part_of(tmp_path / "copy", "1/2").left_shards == 10
    os.symlink(many, tmp_path / "link")
    assert part_of(tmp_path / "link", "1/2").left_shards == 0


def test_nothing_is_written_into_the_pack(many: Path, state: Path) -> None:
    before = digests(many)
    os.chmod(many, 0o500)
    part_of(many, "1/7")
    os.chmod(many, 0o700)
    assert digests(many) == before and len(list(state.glob("*.json"))) == 1
    verify(many)
    part_of(many, newer_than="1d")
    assert len(list(state.glob("*.json"))) == 1  # neither remembers anything


def test_two_at_once_forget_nothing_of_each_other() -> None:
    keys = [f"shard-{number:05d}" for number in range(12)]
    threads = [threading.Thread(target=Times("/place").add, args=([key], [], keys)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(Times("/place").read()) == {*keys}


def test_shards_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_part.time, "time", lambda: 1_800_000_000.0007)
    Times("/place").add(["old"], ["new"], ["old", "new"])
    assert set(Times("/place").add(["other"], [], ["new", "other"])) == {"new", "other"}


def test_a_clock_that_was_ahead(many: Path, state: Path) -> None:
    part_of(many, "1/2")
    (path,) = state.glob("*.json")
    content = json.loads(path.read_text())
    content["verified"] = {key: found + 365 * DAY_S for key, found in content["verified"].items()}
    path.write_text(json.dumps(content))
    assert part_of(many, "1/20").left_shards == 19


def test_what_was_done_before_an_interrupt_is_remembered(many: Path) -> None:
    class Stops(Progress):
        bytes = 0

        def advance(self, done: int, bad: int = 0) -> None:
            self.bytes += done
            if self.bytes > read_manifest(many).shard_bytes // 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(many, Stops(), subset="100%")
    assert 0 < part_of(many, "1/20").left_shards < 19


def test_a_state_that_cannot_be_kept_stops_before_the_work(many: Path, state: Path) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)  # a build of the fixture may have remembered its source there
    state.write_text("a file")
    flip(shard_files(many, 0)[0], 30)
    assert "verified" in refused(3, "verify", many, "--subset", "1/7")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"verified": 5}', '{"verified": {"a": "x"}}'])
def test_a_damaged_state(many: Path, state: Path, content: str) -> None:
    part_of(many, "1/7")
    (path,) = state.glob("*.json")
    path.write_text(content)
    line = refused(3, "verify", many, "--subset", "1/7")
    assert str(path) in line and "move it away" in line


# -- newer files


@pytest.fixture
def aged(many: Path) -> Path:
    """`many`, written a month ago but for one container and one index."""
    for path in many.iterdir():
        os.utime(path, (time.time() - 30 * DAY_S,) * 2)
    for path in (shard_files(many, 3)[0], shard_files(many, 5)[1]):
        os.utime(path, (time.time() - 2 * DAY_S,) * 2)
    return many


def test_only_what_was_written_lately(aged: Path) -> None:
    flip(shard_files(aged, 9)[0], 30)
    for path in shard_files(aged, 9):
        os.utime(path, (0, 0))
    counts = {age: part_of(aged, newer_than=age).shards for age in ("3d", "72h", "1w", "1d", "2 d")}
    assert counts == {"3d": 2, "72h": 2, "1w": 2, "1d": 0, "2 d": 0}
    date = time.strftime("%Y-%m-%d", time.localtime(time.time() - 5 * DAY_S))
    part = part_of(aged, newer_than=date)
    assert (part.shards, part.records, part.since, part.left_shards) == (2, 2, None, 0)
    assert run("verify", aged, "--newer-than", "2w").out.startswith(f"{aged}: good: 2 of 20 shards, ")
    assert part_of(aged, newer_than="1970-01-03").shards == 19
    assert run("verify", aged, "--newer-than", "99999w").code == 4


def test_a_missing_file_is_new(aged: Path) -> None:
    path = shard_files(aged, 7)[1]
    path.unlink()
    report = verify(aged, newer_than="1d")
    assert [problem.file for problem in report.problems] == [path.name]


# -- what is asked for, and said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--subset", "2/7"], "--subset: must be one part, such as 1/7, got 2/7; write 1/7"),
        (["--subset", "0/7"], "--subset: must be one part"),
        (["--subset", "1/0"], "--subset: must be one part"),
        *((["--subset", wrong], "--subset: must be a part such as 1/7 or 5%, or a size") for wrong in
          ("0%", "101%", "10", "0GB", "-1GB", "nanGB", "7d", "", "1/", "%")),
        *((["--newer-than", wrong], "--newer-than: must be an age such as 12h, 7d or 2w, or a date") for wrong in
          ("7", "7m", "-7d", "yesterday", "", "2026-13-01")),
        (["--subset", "1/7", "--newer-than", "7d"], "--subset: excludes --newer-than; leave out one of them"),
    ],
)  # fmt: skip
def test_wrong_values(make_pack: MakePack, state: Path, options: list[str], message: str) -> None:
    assert message in refused(2, "verify", make_pack("raw", "lmdb"), *options)
    assert not state.exists()


def test_parts_and_ages() -> None:
    assert wanted_of(" 1/3 ", 100) * 3 == 100
    assert wanted_of("2.5%", 1000) == 25 and wanted_of("1.5kb", 1) == 1536
    assert time_of("12h", DAY_S) == DAY_S / 2 and time_of("1w", 0) == 0
    assert time_of("2026-11-20T12:00:00Z", 0) == time_of("2026-11-20T13:00:00+01:00", 0) == 1795176000


def test_what_is_said(many: Path) -> None:
    ran = good("verify", many, "--subset", "1/2")
    assert ran.out.startswith(f"{many}: good: 10 of 20 shards, ") and ran.out.endswith(", are left\n")
    assert "; 10 shards, " in ran.out
    today = time.strftime("%Y-%m-%d", time.gmtime())
    ran = good("verify", many, "--subset", "1/2")
    assert ran.out.endswith(f"; all were verified since {today}\n")
    facts = json.loads(good("verify", many, "--subset", "1/20", "--json").out)
    assert facts["good"] and facts["part"]["since"].startswith(today)
    assert (facts["part"]["shards"], facts["part"]["of_shards"], facts["files"], facts["records"]) == (1, 20, 2, 1)
    assert good("verify", many, "--subset", "1/2", "--quiet").out == ""
    assert json.loads(good("verify", many, "--json").out)["part"] is None


def test_records_are_said_of_one_shard(one: Path) -> None:
    ran = good("verify", one, "--subset", "1/2")
    first, note = ran.out.splitlines()
    assert first.startswith(f"{one}: good: 1") and " of 20 records, " in first
    assert note.startswith("note: the digest of ")
