"""Packs split into parts: nothing lost, nothing twice, the same parts every time."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import IO

import numpy as np
import pytest
from drawn import draw, draw_classes
from packs import MakePack
from running import digests, good, refused

from packer import BuildOptions, PackedDataset, build_pack, merge, open_pack, split
from packer.errors import UsageError
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.packing.publish import Output
from packer.repack.split import SplitOptions, interleaved, joined_groups, sizes_of
from packer.system.atomic import replacing


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """30 images of three classes in two shards or more, those of `ant` in folders."""
    source = draw_classes(tmp_path / "src", ("ant", "bee", "cat"), 10)
    out = tmp_path / "set.lmdb"
    build_pack(BuildOptions(str(source), str(out), resize="8x8", shard_bytes=3000, workers=1))
    return out


def records(pack: Path) -> list[tuple[bytes, object, bytes]]:
    opened = open_pack(pack)
    return [(opened.paths[i], opened.annotation(i).label, opened.image(i).tobytes()) for i in range(len(opened))]


def test_containers(make_pack: MakePack, tmp_path: Path, container: str) -> None:
    whole = make_pack("boxes", container)
    before = digests(whole)
    report = split(whole, "train=0.6,val=0.4", tmp_path, progress=None)
    assert [part.records for part in report.parts] == [5, 4]
    parts = [Path(part.path) for part in report.parts]
    assert [part.name for part in parts] == [f"pack-train.{container}", f"pack-val.{container}"]
    found = [record for part in parts for record in records(part)]
    assert sorted(found, key=lambda record: record[0]) == records(whole)
    assert all(not verify(part, deep=True).problems for part in parts)
    assert digests(whole) == before
    of_whole = dict(zip(open_pack(whole).paths, PackedDataset(whole).targets, strict=True))
    for part in parts:
        for path, target in zip(open_pack(part).paths, PackedDataset(part).targets, strict=True):
            wanted = of_whole[path]
            assert all(np.array_equal(target[name], wanted[name]) for name in ("boxes", "labels", "landmarks"))
    again = merge(parts, tmp_path / "again")
    assert again.manifest.records == 9 and again.manifest.classes == read_manifest(whole).classes


def test_parts_are_deterministic_and_stratified(pack: Path, tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        seed = ("--seed", "7") if folder == "c" else ()
        good("split", pack, "--parts", "train=0.7,val=0.2,test=0.1", "--stratify", "-o", tmp_path / folder, *seed)
    for part, count in (("train", 7), ("val", 2), ("test", 1)):
        a, b, c = (tmp_path / folder / f"set-{part}.lmdb" for folder in "abc")
        assert digests(a) == digests(b) != digests(c)
        assert Counter(PackedDataset(a).targets) == {0: count, 1: count, 2: count}
        manifest = read_manifest(a)
        assert manifest.class_counts == {"label": [count] * 3}
        assert manifest.counts == {"found": 3 * count, "packed": 3 * count, "rejected": 0, "skipped": 0}
        assert manifest.made_from[0].name == "set.lmdb"
    command = good("info", tmp_path / "c" / "set-val.lmdb", "--command").out
    assert command == "packer split set.lmdb --parts train=0.7,val=0.2,test=0.1 --stratify --seed 7\n"


def test_strata_of_boxes(make_pack: MakePack, tmp_path: Path) -> None:
    whole = make_pack("boxes", "lmdb")
    report = split(whole, SplitOptions("a=1/3,b=2/3", stratify=True), tmp_path)
    assert [part.records for part in report.parts] == [3, 6]


def test_groups_stay_together(tmp_path: Path) -> None:
    lines = ["path,label,person"]
    for i in range(24):
        folder = f"f{i % 5}"
        draw(tmp_path / "src" / folder / f"{i}.jpg", i // 2)  # two and two are equal files
        lines.append(f"{folder}/{i}.jpg,{'xy'[i % 2]},p{i % 7}")
    (tmp_path / "src" / "labels.csv").write_text("\n".join(lines))
    pack = tmp_path / "p.lmdb"
    columns = ("path label text",)
    build_pack(
        BuildOptions(
            str(tmp_path / "src"), str(pack), resize="8x8", labels=("list:labels.csv",), columns=columns, workers=1
        )
    )
    for group in ("folder", "source", "text"):
        split(pack, SplitOptions("a=0.5,b=0.5", group=group, stratify=group == "text"), tmp_path, overwrite=True)
        a, b = (open_pack(tmp_path / f"p-{name}.lmdb") for name in "ab")
        assert len(a) + len(b) == 24 and abs(len(a) - len(b)) <= 5
        for name, value in (("folder", lambda p, i: p.paths[i].rpartition("/")[0]),
                            ("source", lambda p, i: bytes(p.column("source_xxh3")[i])),
                            ("text", lambda p, i: p.annotation(i).extras["text"])):  # fmt: skip
            if name == group:
                assert not {value(a, i) for i in range(len(a))} & {value(b, i) for i in range(len(b))}
    assert 'has no field "person": the fields are text' in refused(
        2, "split", pack, "--parts", "c=0.5,d=0.5", "--group", "person"
    )


def test_a_long_chain_of_groups_takes_no_time_of_its_square() -> None:
    """Frames of a video, each near the next, cut into tiles."""
    places = np.random.default_rng(0).permutation(60_000)
    assert not joined_groups(places // 2, (places + 1) // 2).any()
    apart = joined_groups(places // 2, places // 4)
    assert len(np.unique(apart)) == 15_000
    assert np.array_equal(apart[np.argsort(places)].reshape(-1, 4).min(axis=1), apart[np.argsort(places)][::4])


def test_lists(pack: Path, tmp_path: Path) -> None:
    report = json.loads(good("split", pack, "--parts", "a=0.9,b=0.1", "--lists", "-o", tmp_path, "--json").out)
    assert [part["records"] for part in report["parts"]] == [27, 3]
    paths = [line for name in "ab" for line in (tmp_path / f"set-{name}.txt").read_text().splitlines()]
    assert sorted(paths) == open_pack(pack).paths
    out = tmp_path / "b.lmdb"
    good("build", tmp_path / "src", "-o", out, "--include", tmp_path / "set-b.txt", "--resize", "8x8")
    split(pack, "a=0.9,b=0.1", tmp_path)
    assert {record[::2] for record in records(out)} == {record[::2] for record in records(tmp_path / "set-b.lmdb")}


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_interrupted_lists_resume(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: int) -> None:
    """A list that an interrupted split has written is left as it is, if others are missing."""
    command = ("split", pack, "--parts", "a=0.5,b=0.3,c=0.2", "--lists", "-o")
    once, out = tmp_path / "once", tmp_path / "out"
    once.mkdir()
    out.mkdir()
    good(*command, once)
    written = iter(range(finished))

    def interrupted(path: str) -> AbstractContextManager[IO[bytes]]:
        if next(written, None) is None:
            raise KeyboardInterrupt
        return replacing(path)

    with monkeypatch.context() as patched:
        patched.setattr("packer.repack.split.replacing", interrupted)
        with pytest.raises(KeyboardInterrupt):
            split(pack, SplitOptions("a=0.5,b=0.3,c=0.2", lists=True), out)
    names = [f"set-{name}.txt" for name in "abc"]
    stamps = [(out / name).stat().st_ino for name in names[:finished]]
    assert sorted(path.name for path in out.iterdir()) == names[:finished]
    if finished:
        assert "set-a.txt: exists" in refused(2, *command, out, "--seed", "1")
        kept = (out / names[0]).rename(tmp_path / "kept")
        (out / names[0]).symlink_to(kept)
        assert "set-a.txt: exists" in refused(2, *command, out)
        kept.replace(out / names[0])
    assert good(*command, out).out.count(" is finished\n") == finished
    assert [(out / name).read_bytes() for name in names] == [(once / name).read_bytes() for name in names]
    assert [(out / name).stat().st_ino for name in names[:finished]] == stamps
    assert sorted(path.name for path in out.iterdir()) == names
    assert "set-a.txt: exists" in refused(2, *command, out)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("train=0.8", "add up to 0.8, not 1"),
        ("train=0.8,val", 'has no share in "val"'),
        ("train=0.8,train=0.2", 'has no valid name in "train=0.2", or has it twice'),
        ("../x=0.5,b=0.5", 'has no valid name in "../x=0.5"'),
        ("a=1.5,b=-0.5", 'has a share that is not above 0 in "b=-0.5"'),
        ("a=nan,b=0.5", 'has no share in "a=nan"'),
        ("a=0.999,b=0.001", "leave nothing for b: 30 records; make its share larger"),
    ],
)
def test_wrong_parts(pack: Path, tmp_path: Path, parts: str, said: str) -> None:
    before = sorted(tmp_path.iterdir())
    assert said in refused(2, "split", pack, "--parts", parts)
    assert sorted(tmp_path.iterdir()) == before


def test_existing_parts_stay(pack: Path, tmp_path: Path) -> None:
    """Nothing is published if one of the parts exists."""
    (tmp_path / "set-b.lmdb").mkdir()
    (tmp_path / "set-b.lmdb" / "mine").write_text("x")
    assert "exists and is not a pack" in refused(2, "split", pack, "--parts", "a=0.5,b=0.5", "-o", tmp_path)
    assert not (tmp_path / "set-a.lmdb").exists() and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("last", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("killed", [False, True], ids=["interrupted", "killed"])
def test_interrupted_split_resumes(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, last: bool, killed: bool
) -> None:
    """A part that an interrupted split has published is left as it is, if others are missing."""
    parts = ("split", pack, "--parts", "a=0.5,b=0.3,c=0.2", "-o")
    names = [f"set-{name}.lmdb" for name in "abc"]
    (tmp_path / "once").mkdir()
    good(*parts, tmp_path / "once")
    out = tmp_path / "out"
    out.mkdir()
    take_name = Output._take_name

    def interrupted(output: Output) -> None:
        this = output.path.endswith(names[at])
        if last or not this:
            take_name(output)
        if this:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Output, "_take_name", interrupted)
        if killed:  # a killed process does not clean up
            patched.setattr(Output, "_leave", Output._close)
        with pytest.raises(KeyboardInterrupt):
            split(pack, parts[3], out)
    published = names[: at + last]
    assert sorted(path.name for path in out.glob("*.lmdb")) == published
    stamps = [(out / name).stat().st_ino for name in published]
    if published:
        assert "exists; choose another --out" in refused(2, *parts, out, "--seed", "1")
        assert sorted(path.name for path in out.glob("*.lmdb")) == published
    if len(published) < len(names):
        said = good(*parts, out).out
        assert said.count(" is finished\n") == len(published)
    assert [digests(out / name) for name in names] == [digests(tmp_path / "once" / name) for name in names]
    assert [(out / name).stat().st_ino for name in published] == stamps
    if len(published) < len(names):
        assert not list(out.glob("*.partial"))
    assert "exists; choose another --out" in refused(2, *parts, out)


@pytest.mark.parametrize("line", range(6))
def test_a_second_ctrl_c_between_two_parts_that_are_left(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """Whatever line of the code that leaves all parts it arrives in, each part is left to its end."""
    leave, to_come = Output.__exit__, line

    def second(frame: FrameType, event: str, arg: object) -> object:
        nonlocal to_come
        to_come -= event == "line"
        if to_come < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return second

    def left(output: Output, *error: object) -> None:
        leave(output, *error)
        if output is outputs[-1] and to_come == line:
            sys._getframe(1).f_trace = second
            sys.settrace(lambda *_: None)

    def interrupted(output: Output, *_: object) -> None:
        raise KeyboardInterrupt

    outputs: list[Output] = []
    with monkeypatch.context() as patched:
        patched.setattr(Output, "__exit__", left)
        patched.setattr(Output, "__enter__", lambda output, enter=Output.__enter__: outputs.append(enter(output)))
        patched.setattr(Output, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            split(pack, "a=0.5,b=0.3,c=0.2", tmp_path)
    sys.settrace(None)
    assert len(outputs) == 3 and not any(output._lock for output in outputs)
    assert len(split(pack, "a=0.5,b=0.3,c=0.2", tmp_path).parts) == 3
    assert not list(tmp_path.glob("*.partial"))


def test_part_of_another_split_is_not_taken(make_pack: MakePack, tmp_path: Path, container: str) -> None:
    """Only a part with equal records counts as published before; companions of its shards do not matter."""
    pack = make_pack("boxes", container)
    first = tmp_path / f"pack-a.{container}"
    split(pack, "a=0.5,b=0.5", tmp_path)
    before = digests(first)
    shutil.rmtree(tmp_path / f"pack-b.{container}")
    with pytest.raises(UsageError, match="exists"):
        split(pack, "a=0.6,b=0.4", tmp_path)
    assert digests(first) == before and not list(tmp_path.glob("pack-[ab].*.partial"))
    split(pack, "a=0.5,b=0.5", tmp_path)
    assert digests(first) == before


def test_runs_have_all_parts_in_proportion() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        weights = random.integers(1, 40, random.integers(1, 6)).tolist()
        count = int(random.integers(1, 300))
        shares = [Fraction(weight, sum(weights)) for weight in weights]
        sizes = sizes_of(count, shares)
        assert sum(sizes) == count
        assert all(abs(size - share * count) < 1 for size, share in zip(sizes, shares, strict=True))
        mixed = interleaved(sizes)
        assert np.bincount(mixed, minlength=len(sizes)).tolist() == sizes
        start, stop = sorted(random.integers(0, count + 1, 2).tolist())
        for part, size in enumerate(sizes):
            assert abs(np.count_nonzero(mixed[start:stop] == part) - (stop - start) * size / count) <= len(sizes)


def test_groups_of_either_of_two_groupings() -> None:
    """A chain of any length is one group, and takes no time."""
    count = 200_000
    for order in (np.arange(count), np.arange(count)[::-1]):
        assert not joined_groups(order // 2, (order + 1) // 2).any()
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 120, (2, 150))
    found = joined_groups(one, other)
    sets = [{record} for record in range(150)]
    for of in (one, other):
        for group in np.unique(of).tolist():
            members = {*np.flatnonzero(of == group).tolist()}
            sets = [one for one in sets if not one & members] + [set().union(*(one for one in sets if one & members))]
    assert sorted(map(sorted, sets)) == sorted(np.flatnonzero(found == root).tolist() for root in np.unique(found))
