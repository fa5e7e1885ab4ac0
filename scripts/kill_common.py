"""What the scripts that kill processes share: their arguments, and their tables in docs/reliability.md."""

from __future__ import annotations

import argparse
import datetime
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"


def parser(doc: str | None, count: str, default: int, each: str, choices: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of a script with a number of kills for each of its choices.

    Args:
        doc: Its help.
        count: The option for the number of kills.
        default: How many they are.
        each: The option that chooses; its name without s stands in the help.
        choices: What there is to choose.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(f"--{count}", type=int, default=default, help=f"per {each.removesuffix('s')}")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(f"--{each}", nargs="+", choices=choices, default=list(choices))
    made.add_argument("--write", action="store_true", help="write the table into docs/reliability.md")
    return made


def commit_now() -> str:
    """Return the commit that runs: HEAD may move meanwhile."""
    describe = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def write_table(marks: tuple[str, str], table: Sequence[str], seed: int, commit: str) -> None:
    """Put a table between its marks in docs/reliability.md."""
    last = f"Seed {seed}, commit `{commit}`, {datetime.date.today()}."
    text = PAGE.read_text()
    before, after = text[: text.index(marks[0])], text[text.index(marks[1]) :]
    PAGE.write_text("\n".join([before + marks[0], "", *table, "", last, "", after]))
