"""`packer demo`: before and after, and copies that are broken on purpose."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_plain
from running import good, refused, run

from packer.bench import demo as making
from packer.bench.demo import Step, _kill, break_pack
from packer.bench.report import Job, Row
from packer.cli.measuring import has_screen
from packer.model.annotation import Progress
from packer.packing import BuildOptions, build_pack
from packer.system.pool import Ran


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("the folder", Job("folder-pil", (8, 8), 1, 1, 1.0), 1.0, left_out="not measured here")
    monkeypatch.setattr(making, "before_and_after", lambda made, progress: [row])


@pytest.mark.usefixtures("no_measuring")
def test_names_and_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_plain(tmp_path / "src", 12)
    before = {path: path.read_bytes() for path in source.iterdir()}
    out = good("demo", source, "--out", tmp_path / "a", "--images", "9", "--no-browser").out
    assert "packed 9 images: " in out and "look at it: packer view " in out and f"everything is in {tmp_path}/a" in out
    assert {path: path.read_bytes() for path in source.iterdir()} == before
    assert "exists; choose another --out" in refused(2, "demo", source, "--out", tmp_path / "a", "--seed", "1")
    assert "no such folder" in refused(2, "demo", tmp_path / "absent", "--out", tmp_path / "d")
    assert not (tmp_path / "d").exists()
    assert "--labels: needs FOLDER" in refused(2, "demo", "--labels", "none")

    def broken(*given: Any) -> Any:
        yield Step("a promise", "this", "that", "nothing", False)

    monkeypatch.setattr("packer.bench.demo.break_pack", broken)
    ran = run("demo", source, "--out", tmp_path / "b", "--break", "--seed", "3")
    assert ran.code == 1 and "a promise: NOT AS EXPECTED" in ran.out and "--seed 3:" in ran.out
    ran = run("demo", source, "--out", tmp_path / "c", "--break", "--json")
    assert ran.code == 1 and json.loads(ran.out)["steps"][0]["good"] is False
    assert not has_screen()  # this is no terminal


def test_a_sample_of_any_names(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 5)
    for i, name in enumerate(("new\nline.jpg", "tab\t.jpg", " lead.jpg", "back\\slash\\x41.jpg")):
        (source / name).write_bytes((source / f"00{i}.jpg").read_bytes()[:-2] + bytes([255, 217, i]))
    made = making.make_demo(str(source), str(tmp_path / "out"), 8, 0, Progress())
    assert made.summary.manifest.records == 8


@pytest.mark.usefixtures("no_measuring")
def test_a_folder_with_two_kinds_of_labels(tmp_path: Path) -> None:
    """The error says to pass --labels, which the demo takes; a demo that fails leaves no folder."""
    source = draw_plain(tmp_path / "src" / "ant", 9).parent
    (source / "bee").mkdir()
    draw_plain(source / "bee", 3)
    (source / "list.csv").write_text(
        "path,label\n" + "".join(f"{one.relative_to(source)},a\n" for one in source.rglob("*.*g"))
    )
    assert "2 kinds of labels fit" in refused(2, "demo", source, "--out", tmp_path / "a", "--images", "8")
    assert not (tmp_path / "a").exists()
    out = good("demo", source, "--labels", "folder", "--out", tmp_path / "a", "--images", "8", "--no-browser").out
    assert "packed 8 images: " in out


def test_a_build_that_is_faster_than_its_killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pack is not counted against the next try; if it is always faster, no promise is broken."""
    pack, out = tmp_path / "p.lmdb", tmp_path / "killed"
    build_pack(BuildOptions(str(draw_plain(tmp_path / "src", 2)), str(pack), labels=("none",)))
    slow_at = 2

    def built(words: list[str], kill_when: Any = None) -> Ran:
        if words[0] == "hash":
            return Ran(0, "a" * 64, killed=False)
        if kill_when is None:
            return Ran(0, "note: resuming an unfinished build", killed=False)
        assert not out.exists() and "--overwrite" not in words
        tries.append(words)
        killed = len(tries) == slow_at
        (tmp_path / "killed.partial" / "pack" if killed else out).mkdir(parents=True)
        return Ran(-9 if killed else 0, "", killed)

    monkeypatch.setattr("packer.bench.demo.run_packer", built)
    tries: list[list[str]] = []
    steps = list(_kill(str(pack), ["src"], str(tmp_path), random.Random(0)))
    assert len(tries) == 2 and [step.good for step in steps] == [True, True, True]
    slow_at = 0
    [step] = _kill(str(pack), ["src"], str(tmp_path), random.Random(0))
    assert step.good is None and "take more images" in step.seen


@pytest.mark.workers
def test_what_is_broken_is_found(tmp_path: Path) -> None:
    """The real steps, in real processes, which are killed."""
    source = draw_plain(tmp_path / "src", 60, width=160, height=120)
    options = BuildOptions(str(source), str(tmp_path / "p.lmdb"), encode="png", labels=("none",))
    build_pack(options)
    (tmp_path / "broken").mkdir()
    words = [str(source), "--encode", "png", "--labels", "none"]
    steps = list(break_pack(str(tmp_path / "p.lmdb"), words, str(tmp_path / "broken"), seed=4))
    assert [step.good for step in steps] == [True] * 7, [step for step in steps if not step.good]
    good("verify", tmp_path / "p.lmdb")
