"""docs/benchmarks.md, "Many machines, computed": its figures are those of its formulas, with the numbers it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from packer.packing.plan import default_shard_bytes
from packer.sources.store_files import READS
from packer.stores.blocks import BlockLayout

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md").read_text("utf-8")
CLOSE = 1 / 6
UNITS = {"s": 1, "min": 60, "h": 3600, "TB": 1e12}


def rows_of(name: str) -> list[list[str]]:
    """The cells of the rows of the tables between two markers, without heads."""
    block = PAGE.partition(f"<!-- {name} of a cluster -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip().strip("`") for cell in line.strip("| ").split(" | ")] for line in block.splitlines() if line]
    return [row for row in rows if row[0] not in ("number", "phase") and not row[0].startswith("---")]


class Numbers(dict[str, Any]):
    """The numbers of the page; one that is a formula is computed when it is asked for."""

    def __init__(self, **given: float) -> None:
        super().__init__(given)
        self.formulas = {}
        for names, formula, _ in rows_of("numbers"):
            self.formulas |= dict(zip(names.replace("`", "").split(", "), parts(formula), strict=True))

    def __missing__(self, name: str) -> float:
        return self.value(self.formulas[name])

    def value(self, formula: str) -> float:
        return float(eval(formula, {}, self))


def parts(formula: str) -> list[str]:
    """The formulas of one cell: of several names, or of one, which may call a function with commas."""
    return [formula] if "(" in formula else formula.split(", ")


FORMULAS = {phase: formulas for phase, *formulas in rows_of("formulas")}
FIGURES = {phase: figures for phase, *figures in rows_of("figures")}


def computed(phase: str, **given: float) -> Numbers:
    """The numbers, with `read`, `requests` and `seconds` of a phase."""
    numbers = Numbers(**given)
    for name, formula in zip(("read", "requests", "seconds"), FORMULAS[phase], strict=True):
        numbers[name] = numbers.value(formula)
    return numbers


def figure(text: str) -> float:
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * UNITS.get(unit, 1)


def phase_of(row: str) -> str:
    """The phase of a row, without how many prefixes there are and what is in the cache."""
    return re.sub(r", \d+ prefix.*|, \d+% is in the cache", "", row)


@pytest.mark.parametrize("row", FIGURES)
def test_figures_are_those_of_the_formulas(row: str) -> None:
    given = {"prefixes": float(found[1])} if (found := re.search(r", (\d+) prefix", row)) else {}
    numbers, (time, requests, read, machines, asked, *_) = computed(phase_of(row), **given), FIGURES[row]
    assert figure(time) == pytest.approx(numbers["seconds"], rel=CLOSE)
    assert figure(requests) == pytest.approx(numbers["requests"], rel=CLOSE)
    assert figure(read) == pytest.approx(numbers["read"], rel=CLOSE, abs=0.005e12)
    training = "Sampler" in row or row == "open the pack"
    count, rate = (numbers["nodes"], numbers["USD"]) if training else (numbers["build_nodes"], numbers["build_USD"])
    dollars = numbers["seconds"] / 3600 * (1 if row == "list" else count) * rate  # names are listed on one machine
    assert figure(machines) == pytest.approx(dollars, rel=CLOSE, abs=0.5)
    gets = 0 if row == "list" else min(numbers["requests"], numbers["images"])
    dollars = gets / 1000 * numbers["USD_1000_gets"] + (numbers["requests"] - gets) / 1000 * numbers["USD_1000_puts"]
    assert figure(asked) == pytest.approx(dollars, rel=CLOSE, abs=0.6)


def test_every_formula_has_a_figure_and_what_the_text_says_of_other_sets() -> None:
    assert FORMULAS.keys() == {phase_of(row) for row in FIGURES}
    raw = {"image_bytes": 224 * 224 * 3}
    assert computed("build", **raw)["seconds"] == pytest.approx(82 * 60, rel=CLOSE)
    assert computed("build to a shared file system", **raw)["seconds"] == pytest.approx(5.5 * 60, rel=CLOSE)
    assert computed("build")["random_share"] == pytest.approx(0.46, abs=0.01)


def test_what_packer_decides_is_as_in_the_formulas() -> None:
    numbers = Numbers()
    pack = int(numbers["pack_bytes"])
    assert numbers["shards"] == pytest.approx(pack / default_shard_bytes(pack)) and round(numbers["shards"]) == 2608
    assert numbers["block_bytes"] == BlockLayout.BLOCK_BYTES
    assert f"build_cores / {READS})" in Numbers().formulas["most_s"]
