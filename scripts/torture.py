"""Tries to make packer lose, mix up or hide something, for as long as you like, and writes what came of it.

    scripts/torture.py                      all rows, as many cases as docs/reliability.md asks for
    scripts/torture.py kills --minutes 5    one row, for five minutes
    scripts/torture.py --list               the rows

Counts and faults go to build/torture/ROW.json, and from there into the table of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "torture"), str(ROOT / "tests")]

from outcome import Budget, Outcome  # noqa: E402

RESULTS = ROOT / "build" / "torture"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"

ROWS: dict[str, str] = {
    "kills": "torture_kills:kills",
    "random-kills": "torture_kills:random_kills",
    "faults": "torture_faults:faults",
    "short-writes": "torture_faults:short_writes",
    "power-cuts": "torture_power:power_cuts",
    "identity": "torture_identity:identity",
    "flips": "torture_flips:flips",
    "truncations": "torture_flips:truncations",
    "changes": "torture_flips:changes",
    "bombs": "torture_bombs:bombs",
    "workers": "torture_workers:workers",
    "resume": "torture_loader:resume",
    "leaks": "torture_loader:leaks",
    "fuzz": "torture_fuzz:fuzz",
    "images": "torture_images:images",
    "image_flips": "torture_images:image_flips",
}
"""Row -> "module:function" in tests/torture; the function takes a Budget and returns an Outcome."""


def row(name: str) -> Callable[[Budget], Outcome]:
    """The function of a row."""
    module, _, function = ROWS[name].partition(":")
    found: Callable[[Budget], Outcome] = getattr(importlib.import_module(module), function)
    return found


def run(name: str, minutes: float | None, seed: int) -> Outcome:
    """Run one row, and keep its outcome."""
    print(f"{name} ...", flush=True)
    started = time.monotonic()
    outcome = row(name)(Budget(minutes, seed))
    seconds = round(time.monotonic() - started)
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts = {**dataclasses.asdict(outcome), "seconds": seconds, "date": time.strftime("%Y-%m-%d"), "row": name}
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{name}: {outcome.done}, {len(outcome.faults)} faults, {seconds} s", flush=True)
    for fault in outcome.faults[:20]:
        print(f"  {fault}", flush=True)
    return outcome


def table() -> str:
    """The table of all rows that have an outcome."""
    lines = ["| row | what | at least | reached | faults | time | date |", "|---|---|---|---|---|---|---|"]
    for name in ROWS:
        path = RESULTS / f"{name}.json"
        if path.is_file():
            facts = json.loads(path.read_text())
            took = f"{facts['seconds']:,} s" if facts["seconds"] else "several runs"
            reached = ", ".join(f"{n:,} {what}" for what, n in facts["done"].items())
            lines.append(
                f"| `{name}` | {facts['what']} | {facts['goal']} | {reached} | {len(facts['faults'])} "
                f"| {took} | {facts['date']} |"
            )
    return "\n".join(lines)


def write_page() -> None:
    """Put the table into docs/reliability.md."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")


def main() -> int:
    """Run the rows that are named; 1 where one of them has found a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--minutes", type=float, help="for each row, instead of the number of cases that is asked for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--write", action="store_true", help="only write the outcomes kept so far into the page")
    given = parser.parse_args()
    if given.list:
        print("\n".join(ROWS))
        return 0
    unknown = [name for name in given.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    faults = 0
    if not given.write:
        for name in given.rows or ROWS:
            faults += len(run(name, given.minutes, given.seed).faults)
    if PAGE.is_file():
        write_page()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
