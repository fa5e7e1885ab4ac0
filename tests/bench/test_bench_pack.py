"""`packer bench PACK`, `--tune` and `--report`: the sweep, the line to paste, the page."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_plain, tree_state
from indexing import needs_fast
from running import Ran, good, refused
from torch.utils.data import DataLoader

from packer import PackedLoader, Resize, open_pack
from packer.bench.conclude import index_pays
from packer.bench.report import CROPS, INDEXED, Job, Measured, Report, Row
from packer.bench.sample import RUNS, sample_records
from packer.errors import StorageError
from packer.samplers import BlockShuffleSampler
from packer.system import PORTABLE

QUICK = ["--rounds", 2, "--seconds", 0.05, "--threads", 2]
WEB = ("http:", "https:", "//", "<script", "<link", "url(")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_plain(tmp_path_factory.mktemp("packs") / "src", 40)


@pytest.fixture(scope="module")
def raw(folder: Path) -> Path:
    good("build", folder, "-o", folder.parent / "raw <b>", "--shard-size", "60KB")
    return folder.parent / "raw <b>"


@pytest.fixture(scope="module")
def swept(raw: Path) -> Any:
    return json.loads(good("bench", raw, *QUICK, "--report", raw.parent / "report", "--json").out)


def names(facts: Any) -> list[str]:
    return [row["name"] for row in facts["rows"]]


def test_a_sweep_has_threads_and_batches(swept: Any) -> None:
    assert names(swept) == [
        "limit: memory copy, 1 thread", "1 thread, batches of 16",
        "limit: memory copy, 2 threads", "2 threads, batches of 16",
    ]  # fmt: skip
    assert swept["what"] == "sweep" and swept["settings"]["records"] == 40
    for row in swept["rows"]:
        assert len(row["rounds"]) == 2 and min(one["images"] for one in row["rounds"]) > 0
    assert swept["answer"].startswith(("Fastest: ", "UNRELIABLE: "))


def test_an_unfinished_build_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "imgs.lmdb.partial").mkdir()
    for tune in ((), ("--tune",)):
        said = refused(2, "bench", tmp_path / "imgs.lmdb.partial", *QUICK, *tune)
        assert "is an unfinished build, not a pack" in said


def test_packs_of_images_of_many_sizes_are_swept_too(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src" / "small", 9)
    draw_plain(tmp_path / "src" / "large", 9, width=200, height=160)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--encode", "copy")
    before = tree_state(tmp_path / "p")
    ran = good("bench", tmp_path / "p", "--rounds", 2, "--seconds", 0.05, "--threads", 1, "--cold")
    assert "1 thread, batches of 16" in ran.out and "note: cold:" in ran.out
    assert ("cached" in ran.out) is not PORTABLE  # where nobody can say, there is no such column
    assert tree_state(tmp_path / "p") == before
    tuned = good("bench", tmp_path / "p", "--tune", "--batch-size", 8, *QUICK[:4], "--threads", 1, "--resize", "32x20")
    loader = eval(pasted(tuned), {"PackedLoader": PackedLoader, "Resize": Resize})
    assert [tuple(images.shape[1:]) for images, _ in loader] == [(3, 20, 32)] * 3


def test_a_report_needs_nothing_else(swept: Any, raw: Path) -> None:
    report = raw.parent / "report"
    page = (report / "index.html").read_text("utf-8")
    assert not [word for word in WEB if word in page] and "raw &lt;b&gt;" in page and "raw <b>" not in page
    assert "1 thread, batches of 16" in page and "numpy" in page and "<img" not in page
    assert page.count('<circle class="dot"') == len(swept["rows"])
    assert json.loads((report / "report.json").read_text("utf-8")) == swept


def pasted(ran: Ran) -> str:
    return next(line for line in ran.out.splitlines() if line.startswith("paste: ")).removeprefix("paste: ")


def test_tune_prints_a_line_that_reads_the_pack(raw: Path) -> None:
    ran = good("bench", raw, "--tune", "--step-ms", 2, "--batch-size", 8, *QUICK[:4], "--threads", 1)
    line = pasted(ran)
    assert isinstance(ast.parse(line).body[0], ast.Expr)
    loader = eval(line, {"PackedLoader": PackedLoader})
    assert sum(len(images) for images, _ in loader) == 40 and loader.batch_size == 8
    assert "with steps of 2 ms" in ran.out and "this machine can" in ran.out


def test_cold_tune_prints_a_line_that_reads_the_pack(raw: Path) -> None:
    ran = good("bench", raw, "--tune", "--cold", "--batch-size", 8, *QUICK[:4], "--threads", 1)
    known = {"PackedLoader": PackedLoader, "BlockShuffleSampler": BlockShuffleSampler, "pack": open_pack(raw)}
    assert sum(len(images) for images, _ in eval(pasted(ran), known)) == 40


@needs_fast
def test_tune_says_whether_an_index_pays(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 12, width=300, height=200)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--encode", "jpeg")
    before, work = tree_state(tmp_path / "p"), tmp_path / "work"
    line = ["--batch-size", 4, *QUICK[:4], "--threads", 1, "--work-dir", work]
    ran = good("bench", tmp_path / "p", "--tune", *line)
    verdict = " ".join(ran.out.split("with an index of its JPEGs, ")[1].splitlines())
    assert re.match(
        r"random crops are read [\d.]+ \(.*\) times as fast: (packer index /|it would not pay here)", verdict
    )
    assert "random crops, indexed" in ran.out and tree_state(tmp_path / "p") == before and not list(work.iterdir())
    loader = eval(pasted(ran), {"PackedLoader": PackedLoader})
    assert len(loader.pack) == 12
    assert "random crops" not in good("bench", tmp_path / "p", "--tune", "--cold", *line).out


def test_tune_without_an_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native decoder, and without a disk to try it on."""
    good("build", folder, "-o", folder.parent / "jpegs", "--encode", "jpeg")
    line = ["bench", folder.parent / "jpegs", "--tune", "--batch-size", 8, *QUICK[:4], "--threads", 1]
    assert "random crops" not in good(*line).out

    def full(*given: Any) -> None:
        raise StorageError("/tmp", "No space left on device")

    monkeypatch.setattr(sys.modules["packer.bench.sweep"], "indexed_sample", full)
    ran = good(*line)
    assert "an index of the JPEGs would do is not known: /tmp: No space left on device" in ran.out and pasted(ran)


@pytest.mark.parametrize(("rates", "said"), [((150, 152), "packer index '/a b'"), ((103, 104), "it would not pay")])
def test_when_an_index_pays(rates: tuple[int, int], said: str) -> None:
    job = Job("pack", (8, 8), 4, 1, 0.1)
    rows = [
        Row(name, job, 1.0, rounds=[Measured(images, 1.0, 1.0, 0.1, 0, None) for images in some])
        for name, some in ((CROPS, (100, 100)), (INDEXED, rates))
    ]
    (line,) = index_pays(Report("tune", "/a b", "", {}, {}, rows))
    assert f" times as fast: {said}" in line


def test_tune_of_a_folder_finds_workers(folder: Path, tmp_path: Path) -> None:
    work = ["--work-dir", tmp_path / "work"]
    ran = good("bench", folder, "--tune", "--images", 8, "--batch-size", 4, *QUICK[:4], "--threads", 1, *work)
    loader = eval(pasted(ran), {"DataLoader": DataLoader, "dataset": list(range(9))})
    assert loader.batch_size == 4 and loader.num_workers in (0, 1, 2)
    assert not list((tmp_path / "work").iterdir())


def test_steps_go_with_tune(raw: Path) -> None:
    line = refused(2, "bench", raw, "--step-ms", 5)
    assert line == "packer: error: --step-ms: needs a folder, --tune or --loader; add --tune"


def test_a_damaged_pack_is_told_of(raw: Path, tmp_path: Path) -> None:
    shutil.copytree(raw, tmp_path / "p")
    shard = next((tmp_path / "p").glob("*.lmdb"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 255
    shard.write_bytes(data)
    assert "checksum" in refused(4, "bench", tmp_path / "p", *QUICK, "--quiet")


class FakePack:
    """As much of a pack as `sample_records` looks at."""

    def __init__(self, count: int, each: int, encoding: str) -> None:
        self._sizes = np.full(count, each)
        self.manifest = type("Manifest", (), {"encoding": encoding})

    def __len__(self) -> int:
        return len(self._sizes)

    def column(self, name: str) -> Any:
        return {"size": self._sizes}[name]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 1000, 1 << 20])
@pytest.mark.parametrize("images", [None, 1, 16, 37, 10**5])
def test_records_are_chosen_from_all_over(count: int, images: int | None) -> None:
    pack: Any = FakePack(count, 10_000, "jpeg")
    chosen = sample_records(pack, images)
    assert len(chosen) == min(count, images or 1 << 14)
    assert (np.diff(chosen) > 0).all() and chosen[0] == 0 and chosen[-1] < count
    assert len(chosen) < RUNS or chosen[-1] >= count * (RUNS - 1) // RUNS
