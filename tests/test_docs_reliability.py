"""docs/reliability.md names a test for every fault, and each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = {"B": 27, "N": 14, "I": 17, "L": 16, "P": 15, "R": 23, "C": 12, "S": 4}
TEXT = (ROOT / "docs" / "reliability.md").read_text()
TABLE = dict(re.findall(r"^\| ([A-Z]\d+) \| .*? \| (.*) \|$", TEXT, re.MULTILINE))


def test_every_row_is_there_once() -> None:
    expected = [f"{letter}{i}" for letter, count in ROWS.items() for i in range(1, count + 1)]
    assert re.findall(r"^\| ([A-Z]\d+) \|", TEXT, re.MULTILINE) == expected


def test_every_row_has_a_test_or_a_reason() -> None:
    for row, cell in TABLE.items():
        assert "::" in cell or cell.startswith(("not applicable", "not tested")), f"{row}: {cell}"


def test_every_test_that_is_named_exists() -> None:
    named = 0
    for row, cell in TABLE.items():
        file = ""
        for path, name in re.findall(r"(tests/[\w/]+\.py)?::([\w*]+)", cell):
            file = path or file
            source = (ROOT / file).read_text()
            assert name == "*" or f"def {name}(" in source, f"{row}: {file}::{name}"
            named += 1
    assert named > 150
