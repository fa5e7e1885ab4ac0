"""docs/reliability.md names a test for every fault; each exists, and pytest runs it. Its tables show the runs kept."""

from __future__ import annotations

import json
import re
import socket
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import torture  # noqa: E402

import docs  # noqa: E402

ROWS_OF_PAGE = torture.ROWS
NAMED, ROW = re.compile(r"\(rows? ([^)]*)"), re.compile(r"`([a-z-]+)`")
ROWS = {"B": 28, "N": 14, "I": 17, "L": 16, "P": 15, "R": 23, "C": 12, "S": 4, "O": 12}
TEXT = (ROOT / "docs" / "reliability.md").read_text()
TABLE = dict(re.findall(r"^\| ([A-Z]\d+) \| .*? \| (.*) \|$", TEXT, re.MULTILINE))


def test_every_row_is_there_once() -> None:
    expected = [f"{letter}{i}" for letter, count in ROWS.items() for i in range(1, count + 1)]
    assert re.findall(r"^\| ([A-Z]\d+) \|", TEXT, re.MULTILINE) == expected


def test_every_row_has_a_test_or_a_reason() -> None:
    for row, cell in TABLE.items():
        assert "::" in cell or cell.startswith(("not applicable", "not tested")), f"{row}: {cell}"


def test_every_test_that_is_named_exists() -> None:
    named, missing = 0, []
    for row, cell in TABLE.items():
        file = ""
        for path, name in re.findall(r"(tests/[\w/]+\.py)?::([\w*]+)", cell):
            file = path or file
            exists = (ROOT / file).is_file() and (name == "*" or f"def {name}(" in (ROOT / file).read_text())
            named += 1
            if not exists:
                missing.append(f"{row}: {file}::{name}")
    assert missing == []
    assert named > 150


def test_pytest_passes_over_no_folder_of_tests(pytestconfig: pytest.Config) -> None:
    """By default it skips folders named `build`, where the tests of packing once were."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests" / "integration"}
    skipped = pytestconfig.getini("norecursedirs")
    assert [folder for folder in folders if any(fnmatch(folder.name, pattern) for pattern in skipped)] == []


def test_the_tables_are_made_from_the_evidence() -> None:
    groups = [group for _, group, _, _ in docs.BLOCK.findall(TEXT)]
    assert sorted(groups) == sorted({row.group for row in ROWS_OF_PAGE.values()})
    assert list(docs.reliability().values()) == [TEXT], "run scripts/docs.py reliability"


def test_the_evidence_is_of_rows_and_names_no_machine() -> None:
    runs = docs.runs()
    assert {run["row"] for run in runs} <= set(ROWS_OF_PAGE)
    for run in runs:
        assert re.fullmatch("[0-9a-f]{7,10}", run["commit"]) and re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"]), run
        assert not any(word in str(run) for word in ("/", socket.gethostname())), run
        if "recorded" not in run:
            assert run["runs"] == sum(run["outcomes"].values()) and len(run["failed_seeds"]) == run["faults"]
            assert run["machine"].keys() == {"cpu", "cores", "kernel", "python"} and "first_seed" in run


def test_the_page_shows_the_last_run_and_the_largest() -> None:
    def run(number: int, runs: int) -> dict[str, object]:
        return {
            "row": "kills", "date": "2026-01-02", "commit": f"{number}000000000", "first_seed": 1000 * number,
            "runs": runs, "of": 9000, "outcomes": {"killed": runs}, "faults": 0, "seconds": 61.2,
        }  # fmt: skip

    lines = docs.evidence_table("packs", [run(1, 5), run(2, 2000), run(3, 40)]).splitlines()[2:]
    assert [line.split(" | ")[3:] for line in lines] == [
        ["40 of 9,000: 40 killed; 61 s", "0", "3,000 to 3,039", "`3000000`, 2026-01-02 |"],
        ["2,000 of 9,000: 2,000 killed; 61 s", "0", "2,000 to 3,999", "`2000000`, 2026-01-02 |"],
    ]
    assert len(docs.evidence_table("packs", [run(1, 5), run(2, 5)]).splitlines()) == 3


def test_every_row_that_the_catalog_names_has_evidence() -> None:
    with_evidence = {run["row"] for run in docs.runs()}
    named = {name for cell in TABLE.values() for rows in NAMED.findall(cell) for name in ROW.findall(rows)}
    assert len(named) > 15 and named <= with_evidence


def test_every_row_has_cases_that_exist() -> None:
    sys.path[:0] = [str(ROOT / "tests" / "torture")]
    from torture_parsers import TARGETS  # isort: skip  # finds the others
    from torture_cores import CORES

    for group, parsers in (("fuzz", TARGETS), ("core", CORES)):
        assert {name.partition(":")[2] for name, row in ROWS_OF_PAGE.items() if row.group == group} == parsers.keys()
    assert torture.CASES.keys() <= ROWS_OF_PAGE.keys()
    for file, tests in torture.CASES.values():
        text = (ROOT / "tests" / "torture" / file).read_text()
        assert all(f"def {name}" in text for name in re.findall(r"\btest_\w+", tests)), tests


def test_a_series_of_runs_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert torture.main(["image-flips", "--runs", "1", "--seed", "5", "--evidence", str(tmp_path)]) == 0
    (line,) = (tmp_path / "image-flips.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert (kept["row"], kept["first_seed"], kept["runs"], kept["faults"]) == ("image-flips", 5, 1, 0)
    (outcome,) = kept["outcomes"]
    said = capfd.readouterr().out
    assert kept["of"] > 100_000 and re.search(rf"test_flipped_bits_of_images: .* \d+: {outcome}\n", said)
    with pytest.raises(SystemExit, match="2"):
        torture.main(["bombs"])
    assert "'bombs' is not a row that can be run" in capfd.readouterr().err


def test_fuzzing_needs_atheris(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^fuzz:yolo: atheris is not installed; pip install -e "):
        torture.main(["fuzz:yolo"])


def test_the_list_says_which_rows_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert torture.main([]) == 0
    noted = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "(cannot be run: " in line}
    assert noted == {row.name for row in ROWS_OF_PAGE.values() if not row.can_run} and "bombs" in noted
    assert torture.__doc__ is not None
    examples = re.findall(r"scripts/torture.py ([a-z:-]+) --", torture.__doc__)
    assert len(examples) == 4 and all(ROWS_OF_PAGE[name].can_run for name in examples)
