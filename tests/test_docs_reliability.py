"""docs/reliability.md names a test for every fault; each of them exists, and pytest runs it."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = {"B": 27, "N": 14, "I": 17, "L": 16, "P": 15, "R": 23, "C": 12, "S": 4, "O": 12}
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
