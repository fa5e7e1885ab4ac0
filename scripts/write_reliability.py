"""Makes the tables of docs/reliability.md from the runs in docs/evidence, which scripts/torture.py appends.

    scripts/write_reliability.py

A row has a line for its last run, and one for its largest if that is another; slices of a run count as one.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torture_rows import EVIDENCE, OTHERS, ROOT, ROWS, Row

PAGE = ROOT / "docs" / "reliability.md"
HEAD = ("row", "what", "must hold", "run", "faults", "seeds", "commit")
BLOCK = re.compile(r"(<!-- evidence: (\w+) -->\n).*?(<!-- end of evidence -->)", re.DOTALL)
Run = dict[str, Any]


def runs() -> list[Run]:
    """Return all runs that were kept, oldest first in each file."""
    files = sorted(EVIDENCE.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def joined(found: Iterable[Run]) -> list[Run]:
    """Return runs of one commit whose seeds follow one another as one: long ones are kept in slices."""
    whole: list[Run] = []
    for run in found:
        last = whole[-1] if whole else {}
        same = all(run.get(name) == last.get(name) for name in ("row", "commit", "of"))
        if same and run.get("first_seed", -1) == last.get("first_seed", 0) + last.get("runs", 0) and "outcomes" in run:
            outcomes = Counter(last["outcomes"]) + Counter(run["outcomes"])
            sums = {name: last[name] + run[name] for name in ("runs", "faults", "seconds")}
            whole[-1] = {**run, **sums, "first_seed": last["first_seed"], "outcomes": dict(outcomes.most_common())}
        else:
            whole.append(run)
    return whole


def shown(row: Row, found: Iterable[Run]) -> list[Run]:
    """Return the last run of a row, and the largest one if that is another."""
    mine = joined(run for run in found if run["row"] == row.name)
    if not mine:
        return []
    largest = max(mine, key=lambda run: run["runs"])
    return [mine[-1]] if largest["runs"] == mine[-1]["runs"] else [mine[-1], largest]


def reached(run: Run) -> str:
    """Return what happened in a run, and how long it took."""
    if "reached" in run:
        text = run["reached"]
    else:
        of = f" of {run['of']:,}" if run["of"] else ""
        counts = ", ".join(f"{count:,} {name}" for name, count in run["outcomes"].items())
        text = counts if "executions" in run["outcomes"] else f"{run['runs']:,}{of}: {counts}"
    return f"{text}; {run['seconds']:,.0f} s" if run.get("seconds") else text


def table(group: str, found: list[Run]) -> str:
    """Return the table of a group of rows."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for row in ROWS.values():
        if row.group != group:
            continue
        what, must_hold, name = row.what, row.must_hold, f"`{row.name}`"
        for run in shown(row, found):
            seeds = "not kept"
            if "first_seed" in run:
                first, last = run["first_seed"], run["first_seed"] + run["runs"] - 1
                seeds = str(first) if "executions" in run["outcomes"] else f"{first:,} to {last:,}"
            commit = (
                f"{'before ' if run.get('recorded', '').endswith('commit') else ''}`{run['commit'][:7]}`, {run['date']}"
            )
            lines.append((name, what, must_hold, reached(run), str(run["faults"]), seeds, commit))
            name = what = must_hold = ""
    if group in OTHERS:  # the page says it once
        lines = [(*cells[:2], *cells[3:]) for cells in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written(page: str) -> str:
    """Return the page with the tables of all groups between their markers."""
    found = runs()
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2], found)}\n\n{match[3]}", page)


def main() -> None:
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
