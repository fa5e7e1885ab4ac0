"""Writes behind each pin of the constraints which versions of Python it wants: `python scripts/write_constraints.py`.

pip asks its index for the metadata of all pins, also of those for other versions of Python; nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FILES = sorted(Path(__file__).parent.glob("constraints*.txt"))


def main() -> None:
    """Rewrite both files."""
    for file in FILES:
        lines = file.read_text().splitlines()
        pins = [line.partition("#")[0].strip() for line in lines]
        wanted = wanted_pythons([pin.partition(";")[0] for pin in pins if pin])
        new = [f"{pin}  # {wanted[key(pin)]}" if pin else line for pin, line in zip(pins, lines, strict=True)]
        file.write_text("\n".join(new) + "\n")


def key(pin: str) -> tuple[str, str]:
    """Return the normalized name and the version of a pin."""
    name, _, version = pin.partition(";")[0].partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def wanted_pythons(pins: list[str]) -> dict[tuple[str, str], str]:
    """Return the Requires-Python of each pin, by its `key`; "any" where it has none."""
    options = ("--dry-run", "--quiet", "--report=-", "--no-deps", "--ignore-requires-python", "--ignore-installed")
    found = {}
    while pins:  # of a library with two pins, one at a time
        once = list({key(pin)[0]: pin for pin in pins}.values())
        command = [sys.executable, "-m", "pip", "install", *options, *once]
        report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        for item in report["install"]:
            pin = f"{item['metadata']['name']}=={item['metadata']['version'].partition('+')[0]}"
            found[key(pin)] = item["metadata"].get("requires_python", "any").replace(" ", "")
        pins = [pin for pin in pins if pin not in once]
    return found


if __name__ == "__main__":
    main()
