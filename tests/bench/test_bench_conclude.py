"""Answers and reasons of `packer bench`, from made-up figures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packer.bench.conclude import conclude, reasons
from packer.bench.report import Job, Measured, Report, Row, UserBatch, machine
from packer.bench.report_page import Scale, groups_of, prepare_report, write_report
from packer.cli.measuring import lines
from packer.errors import UsageError

FOLDER, RAW, JPEG = "folder, cv2", "lmdb, raw", "lmdb, jpeg"
QUIET: dict[str, Sequence[float]] = {
    "limit: memory copy": (200_000, 260_000, 150_000),
    "limit: jpeg decode": (15_000, 15_500, 14_000),
    FOLDER: (2000, 2100, 1900), RAW: (110_000, 112_000, 105_000), "hdf5, raw": (111_000, 100_000, 108_000),
    JPEG: (14_000, 13_800, 13_900), "hdf5, jpeg": (13_700, 13_900, 14_000),
}  # fmt: skip
"""Images/s as on an idle machine."""
KINDS = {
    "limit": "copy",
    "folder": "folder-cv2",
    "your loader": "loader",
    "perfect loader": "cached",
    "PackedDataset": "dataset",
}
LIMITS = {"raw": "limit: memory copy", "jpeg": "limit: jpeg decode"}


def row_of(name: str, rates: Sequence[float], waiting: float | None = None, others: float | None = 0.02) -> Row:
    kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), "pack")
    job = Job(kind, (224, 224), 64, 2, 0.7, loader="m:f" if kind == "loader" else "")
    encoding = name.rpartition(", ")[2]
    row = Row(name, job, 1000.0, None, {"raw": 90_000_000, "jpeg": 5_000_000}.get(encoding))
    batch = UserBatch(64, (224, 224), "float32 64x3x224x224") if kind == "loader" else None
    one = Measured(0, 1.0, 1.9, 0.1, 0, waiting, others=others, epochs=1, batch=batch)
    row.rounds = [replace(one, images=int(rate)) for rate in rates]
    return row


def report_of(rates: Mapping[str, Sequence[float]], step_ms: float | None = None, **changes: Any) -> Report:
    machine = {"cores": 2, "load_before": 0.1}
    settings = {"cold": False, "step_ms": step_ms, **changes}
    rows = [row_of(*one) for one in rates.items()]
    for row in rows:
        limit = LIMITS.get(row.name.rpartition(", ")[2])
        row.limit = limit if limit in rates else None
    return Report("compare", "photos", "packer bench photos", machine, settings, rows)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def test_quiet_figures_are_reliable_and_lead_to_an_answer() -> None:
    report = report_of(QUIET)
    conclude(report)
    assert report.reasons == [] and report.facts()["reliable"] is True
    assert report.answer == "Pack as JPEG: 6.9x your folder, 18x smaller than raw; enough for a step of 4.6 ms or more"
    assert report.conclusion[0] == "raw packs (lmdb, hdf5): 55.2 (50.5 to 56.1) times the images/s of folder, cv2"


def test_a_pack_in_a_data_loader_is_compared_with_the_same_pack_and_changes_no_answer() -> None:
    reports = report_of(QUIET), report_of({**QUIET, "PackedDataset, raw": (99_000, 95_200, 94_500)})
    for report in reports:
        conclude(report)
    without, report = reports
    (line,) = [line for line in report.conclusion if line not in without.conclusion]
    assert line == "PackedDataset in a DataLoader with 2 workers: 0.90 (0.85 to 0.90) times the images/s of lmdb, raw"
    assert report.answer == without.answer and len(report.conclusion) == len(without.conclusion) + 1
    assert "Pack in a DataLoader, raw" in [group.title for group in groups_of(report)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({RAW: (420e3, 410e3, 4e5), "hdf5, raw": (4e5,) * 3}, "lmdb, raw reaches 1.58 of its limit (and 1 more row)"),
        ({JPEG: (9000, 9100, 9200)}, "hdf5, jpeg reads 1.5 times as fast as lmdb, jpeg, with the same bytes and code"),
        ({FOLDER: (2000, 900, 1800)}, "folder, cv2 differs by a factor of 2.2 between rounds"),
    ],
)  # fmt: skip
def test_impossible_figures_are_unreliable(change: dict[str, Sequence[float]], reason: str) -> None:
    report = report_of({**QUIET, **change})
    conclude(report)
    assert reason in report.reasons and report.facts()["reliable"] is False
    assert report.answer.startswith(f"UNRELIABLE: {report.reasons[0]}")
    assert report.answer.endswith("; measure again while nothing else runs; more --rounds and --seconds help")
    assert report.conclusion == [] and "x your folder" not in report.answer


def test_other_processes_make_figures_unreliable() -> None:
    report = report_of(QUIET)
    for row in report.rows[:5]:  # most of the measurements
        row.rounds = [replace(one, others=0.9) for one in row.rounds]
    assert reasons(report) == ["other processes used 0.9 of 2 cores"]
    report.rows[0].job = replace(report.rows[0].job, threads=1)
    for row in report.rows:
        row.job = replace(row.job, threads=1)  # one core was left for it
    assert reasons(report) == []


def test_the_load_counts_where_nothing_else_is_known() -> None:
    report = report_of({})
    report.rows = [row_of(name, rates, others=None) for name, rates in QUIET.items()]
    assert reasons(report) == []
    report.machine["load_before"] = 3.5
    assert reasons(report) == ["the load average was 3.5 on 2 cores before"]


def test_a_limit_and_one_of_many_rounds_may_vary() -> None:
    assert reasons(report_of({**QUIET, FOLDER: (2000, 2010, 900, 2020, 1990)})) == []
    assert reasons(report_of({**QUIET, "limit: memory copy": (300_000, 100_000, 200_000)})) == []


def test_containers_may_differ_on_a_disk() -> None:
    assert reasons(report_of({**QUIET, JPEG: (9000, 9100, 9200)}, cold=True)) == []


def test_what_gains_nothing_is_not_recommended() -> None:
    report = report_of({FOLDER: (2000, 2010, 1990), JPEG: (2050, 2040, 2060)})
    conclude(report)
    assert report.answer == "Keep your folder: packs read 1.0x as many images/s"


def test_raw_is_recommended_if_it_is_not_much_larger() -> None:
    report = report_of(QUIET)
    for row in report.rows:
        row.disk_bytes = 5_000_000
    conclude(report)
    assert report.answer.startswith("Pack as raw: 55x your folder; ")


@pytest.mark.parametrize(
    ("folder", "jpeg", "answer"),
    [
        (0.6, 0.01, "Pack as JPEG: 6.9x your folder, 18x smaller than raw; enough for a step of 45 ms"),
        (0.0, 0.0, "Your folder is enough for a step of 45 ms; pack as JPEG: 6.9x your folder, 18x smaller than raw"),
        (0.9, 0.4, "Pack as raw: 55x your folder, 18x as large as JPEG; enough for a step of 45 ms"),
    ],
)
def test_steps(folder: float, jpeg: float, answer: str) -> None:
    report = report_of(QUIET, step_ms=45.0)
    for name, waiting in ((FOLDER, folder), (RAW, 0.0), (JPEG, jpeg)):
        report.rows.append(row_of(f"{name} + step", (1400, 1410, 1420), waiting))
    conclude(report)
    assert report.answer == answer
    assert f"with steps of 45 ms, {JPEG} lets the consumer wait {jpeg:.2f} ({jpeg:.2f} to {jpeg:.2f}) of the time" in (
        report.conclusion
    )


def test_a_loader_that_is_too_slow() -> None:
    report = report_of({"your loader": (500, 510, 490)}, step_ms=45.0)
    report.what = "loader"
    report.rows += [
        row_of("your loader + step", (400, 405, 395), 0.72),
        row_of("perfect loader + step", (1420, 1421, 1422), 0.0),
    ]
    conclude(report)
    assert report.answer == (
        "Your loader is too slow for a step of 45 ms: training waits 72% of the time, and would be 3.5x as fast "
        "with a perfect loader"
    )
    assert report.conclusion[:2] == [
        "your loader: 500 (490 to 510) images/s, each batch is float32 64x3x224x224",
        "it uses 1.9 of 2 cores: the processor is what it waits for",
    ]


def test_a_loader_beside_a_pack() -> None:
    report = report_of({"your loader": (500, 510, 490), "pack, jpeg": (5000, 5100, 4900)})
    report.what = "loader"
    conclude(report)
    assert report.answer == (
        "Your loader: 500 images/s, enough for a step of 128 ms or more; the pack: 10x your loader and "
        "enough for a step of 13 ms or more"
    )


def measured(report: Report) -> Report:
    report.machine = {**machine(), "cores": 2}
    report.settings |= {"rounds": 3}
    conclude(report)
    return report


def written(report: Report, folder: Path) -> str:
    write_report(measured(report), str(folder))
    return (folder / "index.html").read_text("utf-8")


def test_the_page_begins_with_the_answer(tmp_path: Path) -> None:
    page = written(report_of(QUIET), tmp_path)
    assert "<h1>Pack as JPEG: 6.9x your folder, 18x smaller than raw; enough for a step of 4.6 ms or more</h1>" in page
    assert page.count('<circle class="dot"') == len(QUIET) and "Size on disk" in page
    busy = written(report_of({**QUIET, FOLDER: (2000, 900, 1800)}), tmp_path)
    assert '<h1 class="unreliable">UNRELIABLE: folder, cv2 differs by a factor of 2.2' in busy
    assert "x your folder" not in busy


def test_links_in_the_place_of_a_report_are_replaced_themselves(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("report.json", "index.html"):
        (tmp_path / "folder" / name).symlink_to(tmp_path / f"not-yet-there-{name}")
    prepare_report(str(tmp_path / "folder"))
    written(report_of(QUIET), tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"] and not (tmp_path / "folder" / "index.html").is_symlink()


def test_only_a_report_is_replaced(tmp_path: Path) -> None:
    prepare_report(str(tmp_path / "new"))
    written(report_of(QUIET), tmp_path)
    prepare_report(str(tmp_path))
    for name in ("report.json", "index.html"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(UsageError, match=rf"^report: .*{name} was not written by packer bench; name another"):
            prepare_report(str(tmp_path))
        assert (tmp_path / name).read_text() == "{}"


def test_the_legend_is_about_the_columns() -> None:
    report = report_of({"your loader": (500, 510, 490)})
    report.what = "loader"
    report.rows[0].stored_bytes = 0  # unknown: the table has no such column
    text, full = (" ".join(lines(measured(one))) for one in (report, report_of(QUIET)))
    assert "MB/s" not in text and "of limit" not in text and "range; first s: until the first batch; peak MB: " in text
    assert "range; of limit: by its best round; MB/s: stored bytes, spread as images/s; first s: " in full


def test_equal_containers_are_one_group() -> None:
    groups = [(group.title, [row.name for row in group.rows]) for group in groups_of(report_of(QUIET))]
    assert groups == [
        ("Plain folder", [FOLDER]), ("Packs, raw", [RAW, "hdf5, raw"]), ("Packs, JPEG", [JPEG, "hdf5, jpeg"]),
        ("Limits of this machine", ["limit: memory copy", "limit: jpeg decode"]),
    ]  # fmt: skip


@pytest.mark.parametrize(("lowest", "highest"), [(900, 1000), (1, 10), (30, 200_000), (0.5, 2e6), (0, 100)])
def test_scales_have_a_few_round_ticks_inside(lowest: float, highest: float) -> None:
    scale = Scale(lowest, highest)
    places = [place for place, _ in scale.ticks()]
    assert 2 <= len(places) <= 9 and places == sorted(places) and places[0] >= 1.5 and places[-1] <= 98.5
    assert 1.5 <= scale.place(lowest) < scale.place(highest) <= 98.5
    assert scale.is_log is (lowest > 0 and highest / lowest > 12)
