"""Invalid options of `packer bench` are reported before any work, in one line."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from drawn import draw_plain
from running import good, refused, run

from packer.bench import BenchOptions, Figure
from packer.bench.measure import memory_bytes, take_turns
from packer.containers import CONTAINERS
from packer.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import bench as bench_script  # noqa: E402

MISTAKES = {
    "--images 7": "--images: must be at least 8, got 7",
    "--images 0": "--images: must be at least 8, got 0",
    "--rounds 1": "--rounds: must be at least 2, got 1",
    "--batch-size 0": "--batch-size: must be at least 1, got 0",
    "--threads 0": "--threads: must be at least 1, got 0",
    "--threads 100000": "--threads: must be at most",
    "--seed -1": "--seed: must be at least 0, got -1",
    "--seconds 0": "--seconds: must be 0.05 to 3600, got 0",
    "--seconds nan": "--seconds: must be 0.05 to 3600, got nan",
    "--resize axb": "--resize: must be WIDTHxHEIGHT of 1 to 4096 pixels, got 'axb'; such as 224x224",
    "--resize 0x5": "--resize: must be WIDTHxHEIGHT",
    "--format zip": f"--format: must be one of {', '.join(CONTAINERS)}; got zip",
    "--encode png": "--encode: must be one of raw, jpeg; got png",
    "--device tpu": "--device: must be cpu, cuda or cuda:N, got 'tpu'",
    "--step-ms 0": "--step-ms: must be more than 0",
    "--tune --step-ms nan": "--step-ms: must be more than 0 and at most 60000, got nan",
    "--images 8.5": "Invalid value for '--images'",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_named(tmp_path: Path, words: str) -> None:
    draw_plain(tmp_path / "src", 8)
    line = refused(2, "bench", tmp_path / "src", *words.split())
    assert line.startswith(f"packer: error: {MISTAKES[words]}")


def test_tune_needs_something_to_read() -> None:
    assert refused(2, "bench", "--tune") == "packer: error: --tune: needs a pack or a folder; name one"


def test_without_cuda_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    draw_plain(tmp_path / "src", 8)
    line = refused(2, "bench", tmp_path / "src", "--device", "cuda")
    assert line == "packer: error: --device: torch cannot use cuda here; install torch with CUDA, or leave it out"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "no such folder" in refused(2, "bench", tmp_path / "absent")
    draw_plain(tmp_path / "few", 7)
    line = refused(2, "bench", tmp_path / "few")
    assert line.endswith("has 7 readable images; choose a folder with at least 8")
    (tmp_path / "file").write_bytes(b"")
    assert "is not a folder" in refused(2, "bench", tmp_path / "file")


def test_errors_as_json(tmp_path: Path) -> None:
    ran = run("bench", tmp_path / "absent", "--json")
    facts = json.loads(ran.out)
    assert ran.code == 2 and facts["error"] == "UsageError" and facts["exit_code"] == 2 and facts["next_step"]


def test_a_report_where_nothing_can_be_written(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 8)
    (tmp_path / "taken").write_bytes(b"a file")
    assert "cannot write" in refused(3, "bench", tmp_path / "src", "--report", tmp_path / "taken")


def test_too_little_space_is_told_before_the_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    draw_plain(tmp_path / "src", 8)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    line = refused(3, "bench", tmp_path / "src", "--work-dir", tmp_path / "work")
    assert "are free" in line and "--work-dir" in line and not list((tmp_path / "work").iterdir())


def test_sizes() -> None:
    assert BenchOptions.size_of("224x200") == (224, 200) and BenchOptions.size_of("64") == (64, 64)
    for text in ("", "x", "4097", "-1x4", "1x2x3", "²x4"):
        with pytest.raises(UsageError, match="resize: "):
            BenchOptions.size_of(text)


def test_works_take_turns_and_warm_up_rounds_do_not_count() -> None:
    order: list[str] = []
    works = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = take_turns(works, rounds=2, warm_up=1)
    assert "".join(order) == "abcbcacab"
    assert all(len(figure.rounds) == 2 and figure.lowest >= 0 for figure in seconds.values())


def test_figures_show_their_spread() -> None:
    figure = Figure((4.0, 1.0, 2.0))
    assert figure.text() == "2.0 (1.0 to 4.0)"
    assert (figure / Figure((2.0, 2.0, 2.0))).rounds == (2.0, 0.5, 1.0)
    assert figure.per_second(8).rounds == (2.0, 8.0, 4.0)


def test_memory_is_that_of_the_process() -> None:
    def growth() -> float:
        before = memory_bytes(os.getpid())
        block = bytearray(b"x") * (64 << 20)
        return (memory_bytes(os.getpid()) - before) / len(block)

    assert any(growth() > 0.9 for _ in range(20))  # children count too, and one may end meanwhile


def test_every_benchmark_has_its_place_in_the_docs() -> None:
    for page in ("benchmarks.md", "peers/trainers.md", "peers/odd-images.md", "peers/near-duplicates.md"):
        marked = re.findall(r"<!-- ((?:bench|native)_\w+) -->", (ROOT / "docs" / page).read_text("utf-8"))
        in_the_page = [name for name, one in bench_script.BENCHMARKS.items() if one.page == page]
        assert sorted(marked) == sorted(map(bench_script.marker, in_the_page))
    there = {path.stem for path in (ROOT / "scripts" / "benchmarks").glob("*.py")}
    assert {one.module for one in bench_script.BENCHMARKS.values()} == there - {
        "__init__",
        "common",
        "peer_loaders",
        "trainer_loaders",
    }


@pytest.mark.parametrize("name", bench_script.BENCHMARKS)
def test_benchmarks_have_the_options_that_all_runs_them_with(name: str) -> None:
    for options in (bench_script.BENCHMARKS[name].quick, bench_script.BENCHMARKS[name].full):
        module, parser = bench_script.prepared(name)
        assert parser.parse_args(["--rounds", "5", *options.split()]).rounds <= 5 and callable(module.run)


def test_tables_are_put_between_their_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("a\n<!-- bench_read -->\nold\n<!-- end -->\n<!-- native_loader -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(bench_script, "DOCS", tmp_path)
    bench_script.write("read", "| new |\n\nhere\n")
    expected = "a\n<!-- bench_read -->\n| new |\n\nhere\n\n<!-- end -->\n<!-- native_loader -->\nold\n<!-- end -->\n"
    assert page.read_text() == expected
    with pytest.raises(ValueError, match="0 pairs of markers for view"):
        bench_script.write("view", "| new |")


def test_help_has_an_example() -> None:
    assert "packer bench imgs.lmdb --tune" in good("bench", "--help").out
