"""Runs the rows of docs/reliability.md, of which the suite runs a few cases each, and keeps what happened.

    scripts/torture.py                            list the rows
    scripts/torture.py kills --seed 17            run one case, and say what happened
    scripts/torture.py kills --runs 400           run seeds 0 to 399, and append a line to docs/evidence/kills.jsonl
    scripts/torture.py flips --runs all           run every case there is
    scripts/torture.py core:yolo --runs 2000000   fuzz one parser (needs atheris: pip install -e ".[torture]");
                                                  other options go to libFuzzer

A seed is a case: each seed below the number of cases is another one, and those above repeat cases with other random
numbers. For fuzzing, the seed is libFuzzer's, and so many inputs follow from it. `scripts/docs.py reliability`
makes the page from docs/evidence.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
PAGE = ROOT / "docs" / "reliability.md"


# -- the rows of docs/reliability.md, which says what each does and what must hold; here is how their cases run

BLOCK = re.compile(r"(<!-- evidence: (\w+) -->\n)(.*?)(<!-- end of evidence -->)", re.DOTALL)
BUILDS, CHANGES, PACKS = "test_torture_builds.py", "test_torture_changes.py", "test_torture_packs.py"
LOADER, PARSERS, REMOTE = "test_torture_loader.py", "test_torture_parsers.py", "test_torture_remote.py"
CASES = {
    "kills": (BUILDS, "test_a_fault_at_any_call and kill"),
    "random-kills": (BUILDS, "test_random_kills"),
    "faults": (BUILDS, "test_a_fault_at_any_call and error"),
    "short-writes": (BUILDS, "test_short_writes"),
    "power-cuts": (BUILDS, "test_a_fault_at_any_call and power"),
    "change-kills": (CHANGES, "test_a_change_meets_a_fault and kill"),
    "change-random-kills": (CHANGES, "test_random_kills_of_changes"),
    "change-faults": (CHANGES, "test_a_change_meets_a_fault and error"),
    "change-power-cuts": (CHANGES, "test_a_change_meets_a_fault and power"),
    "flips": (PACKS, "test_damage and flips"),
    "truncations": (PACKS, "test_damage and truncations"),
    "changes": (PACKS, "test_damage and changes"),
    "hostile": (PACKS, "test_hostile_packs"),
    "workers": (LOADER, "test_worker_deaths"),
    "resume": (LOADER, "test_resume_positions"),
    "left-early": (LOADER, "test_epochs_left_early"),
    "leaks": (LOADER, "test_opening_leaves_nothing or test_workers_take_no_more_memory"),
    "images": (PARSERS, "test_mutations and decode"),
    "image-flips": (PARSERS, "test_flipped_bits_of_images"),
    "labels": (PARSERS, "test_mutations and not decode and not header"),
    "cache-kills": (REMOTE, "test_kills_while_filling"),
    "block-flips": (REMOTE, "test_flipped_bits_of_every_block"),
    "cache-disk": (REMOTE, "test_a_full_disk"),
    "evictions": (REMOTE, "test_evictions_while_reading"),
    "store-replaced": (REMOTE, "test_an_object_that_is_replaced"),
    "store-faults": (REMOTE, "test_a_store_at_its_worst"),
}
"""The file in tests/torture that has the cases of a row, and which tests, as pytest's -k. Rows with a colon have other
scripts; those that are not here are of the past, and other tests check the same."""


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    group: str
    """The table that it stands in."""
    name: str
    facts: tuple[str, ...]
    """What it does; and what must hold, where the page does not say that of the whole table."""

    @property
    def can_run(self) -> bool:
        """Whether it has cases."""
        return self.name in CASES or ":" in self.name

    @property
    def evidence(self) -> str:
        """The file of its runs."""
        return f"{self.name.partition(':')[0]}.jsonl"


def rows_of(page: str) -> Iterator[Row]:
    """Yield the rows of all tables, by their first lines."""
    for _, group, table, _ in BLOCK.findall(page):
        end = 2 if "| must hold |" not in table else 3
        for line in table.splitlines():
            if line.startswith("| `"):
                name, *facts = line.strip("| ").split(" | ")[:end]
                yield Row(group, name.strip("`"), tuple(facts))


ROWS = {row.name: row for row in rows_of(PAGE.read_text("utf-8"))}


# -- running them

MEASURED = ("docs/evidence", "docs/reliability.md")
"""What a run changes itself: no reason to call its commit dirty."""


@dataclass
class Series:
    """What became of some cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    of: int = 0
    """How many different cases there are; 0 if any number."""

    def add(self, outcomes: dict[str, int], failed: Sequence[int], of: int = 0) -> None:
        """Count more cases."""
        self.outcomes.update(outcomes)
        self.failed += failed
        self.of += of


def by_pytest(row: Row, first: int, runs: int | None) -> Series:
    """Run cases that tests have, in pytest."""
    series = Series()
    with tempfile.TemporaryDirectory(prefix="packer-evidence-") as folder:
        report = Path(folder, "report.jsonl")
        seeds = {"PACKER_TORTURE_SEEDS": f"{first}:{'all' if runs is None else runs}"}
        file, tests = CASES[row.name]
        command = [sys.executable, "-m", "pytest", f"tests/torture/{file}", "-k", tests, "-s", "-rs"]
        command += ["--no-header", "-o", "faulthandler_timeout=0", "-o", "addopts=-q --strict-markers"]
        command += ["-p", "no:cacheprovider"]
        env = {**os.environ, **seeds, "PACKER_TORTURE_REPORT": str(report)}
        code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        for line in report.read_text("utf-8").splitlines() if report.exists() else ():
            series.add(**json.loads(line))
    if code and not series.failed:
        sys.exit(f"{row.name}: pytest ended with exit code {code} without a failed case; nothing is kept")
    return series


def by_script(row: Row, first: int, runs: int) -> Series:
    """Run cases that kill nodes or trainers."""
    group, _, name = row.name.partition(":")
    series = Series()
    for seed, outcome, problem in importlib.import_module(f"faults.{group}").cases(name, range(first, first + runs)):
        print(f"{row.name} {seed}: {problem or outcome}", flush=True)
        series.add({"failed" if problem else outcome: 1}, [seed] if problem else [])
    return series


def by_fuzzing(row: Row, first: int, runs: int, options: Sequence[str]) -> Series:
    """Fuzz a parser in a process of its own, which libFuzzer ends."""
    command = [sys.executable, "scripts/faults/fuzz.py", row.name, f"-runs={runs}", "-print_final_stats=1", *options]
    command += [f"-seed={first}"] if first else []  # libFuzzer takes 0 for any
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    executed = re.search(r"number_of_executed_units: +(\d+)", "".join(lines))
    if executed is None:
        sys.exit(f"{row.name}: the fuzzer has not run; nothing is kept")
    series = Series()
    series.add({"executions": int(executed[1])}, [first] if process.returncode else [])
    return series


def state_of_tree() -> tuple[str, bool]:
    """Return the commit, and whether files of the working tree differ from it."""
    changed = [f":(exclude){path}" for path in MEASURED]
    commands = (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--", ".", *changed])
    commit, status = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for words in commands
    )
    return commit, bool(status)


def line_of(row: Row, series: Series, first: int, seconds: float, tree: tuple[str, bool]) -> dict[str, Any]:
    """Return what is kept of a series: nothing of it names this machine or its folders."""
    from packer.bench.report import machine

    facts = machine()
    return {
        "row": row.name,
        "date": facts["date"],
        "commit": tree[0],
        "dirty": tree[1],
        "first_seed": first,
        "runs": sum(series.outcomes.values()),
        "of": series.of,
        "outcomes": dict(series.outcomes.most_common()),
        "faults": len(series.failed),
        "failed_seeds": series.failed,
        "seconds": round(seconds, 1),
        "machine": {
            "cpu": facts["processor"],
            "cores": facts["cores"],
            "kernel": facts["system"].partition("-")[0],
            "python": platform.python_version(),
        },
    }


def list_rows() -> None:
    """Print all rows."""
    width = max(map(len, ROWS))
    for row in ROWS.values():
        note = "" if row.can_run else " (cannot be run: its past runs are kept, and other tests check it now)"
        print(f"{row.name:{width}}  {row.facts[0]}{note}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", metavar="ROW", help="row of docs/reliability.md (default: list them)")
    parser.add_argument("--runs", help="number of cases to run and keep, or all (default: 1, which is not kept)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case (default: 0)")
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, help="folder of the runs (default: docs/evidence)")
    given, others = parser.parse_known_args(arguments)
    if given.row is None:
        list_rows()
        return 0
    row = ROWS.get(given.row)
    if row is None or not row.can_run:
        parser.error(f"{given.row!r} is not a row that can be run; scripts/torture.py lists them")
    group = row.name.partition(":")[0]
    fuzzed = group in ("fuzz", "core")
    if fuzzed and importlib.util.find_spec("atheris") is None:
        sys.exit(f'{row.name}: atheris is not installed; pip install -e ".[torture]" (Python 3.13 or older)')
    if others and not fuzzed:
        parser.error(f"unknown options: {' '.join(others)}")
    if given.runs == "all" and row.name not in CASES:
        parser.error(f"{row.name} has any number of cases; give --runs a number")
    if given.runs not in (None, "all") and not re.fullmatch("[1-9][0-9]*", given.runs):
        parser.error(f"--runs must be a number or all, got {given.runs!r}")
    runs = None if given.runs == "all" else int(given.runs or 1)
    if runs is None and given.seed:
        parser.error("--runs all begins at seed 0; omit --seed")
    tree, started = state_of_tree(), time.monotonic()
    if row.name in CASES:
        series = by_pytest(row, given.seed, runs)
    elif fuzzed:
        series = by_fuzzing(row, given.seed, runs or 1, others)
    else:
        series = by_script(row, given.seed, runs or 1)
    if not series.outcomes:
        sys.exit(f"{row.name}: no case ran; the reason stands above")
    line = line_of(row, series, given.seed, time.monotonic() - started, tree)
    for seed in series.failed:
        print(f"To repeat: scripts/torture.py {row.name} --seed {seed}")
    if given.runs:
        given.evidence.mkdir(parents=True, exist_ok=True)
        with open(given.evidence / row.evidence, "a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
        print(json.dumps(line, indent=1))
    return 1 if series.failed else 0


if __name__ == "__main__":
    sys.exit(main())
