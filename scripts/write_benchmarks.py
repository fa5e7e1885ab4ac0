"""Puts the output of a benchmark between its markers in docs/benchmarks.md; scripts/bench_all.sh calls it.

scripts/write_benchmarks.py bench_build OUTPUT
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from packer.bench.options import machine

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def written(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the markers of `name`.

    Raises:
        ValueError: If the page does not have these markers exactly once.
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    result, count = pattern.subn(lambda match: match[1] + text.strip() + "\n\n" + match[2], page)
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} pairs of markers for {name}")
    return result


def measured_on() -> str:
    """Return date, machine and versions in one line."""
    facts = machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    memory = facts["memory_bytes"] / 2**30
    return f"{facts['date']}: {facts['processor']}, {facts['cores']} cores, {memory:.0f} GiB; {versions}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    text = given.output.read_text("utf-8")
    if "|" not in text:
        sys.exit(f"{given.name} has printed no table: {PAGE.name} stays as it is")
    page = written(PAGE.read_text("utf-8"), given.name, f"{text}\n{measured_on()}")
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
