"""`packer demo`: before and after, and copies that are broken on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_plain
from running import good, refused, run

from packer.bench import demo as making
from packer.bench.breaking import Step, break_pack
from packer.bench.options import Job
from packer.bench.report import Row
from packer.cli.demo import has_screen
from packer.packing import BuildOptions, build_pack


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

    def broken(*given: Any) -> Any:
        yield Step("a promise", "this", "that", "nothing", False)

    monkeypatch.setattr("packer.bench.breaking.break_pack", broken)
    ran = run("demo", source, "--out", tmp_path / "b", "--break", "--seed", "3")
    assert ran.code == 1 and "a promise: NOT AS EXPECTED" in ran.out and "--seed 3:" in ran.out
    ran = run("demo", source, "--out", tmp_path / "c", "--break", "--json")
    assert ran.code == 1 and json.loads(ran.out)["steps"][0]["good"] is False
    assert not has_screen()  # this is no terminal


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
