"""The published scripts of trainers, as docs/trainers.md changes them.

They are not in the packages that pip installs. `PACKER_TRAINER_SCRIPTS` names a folder that has `references/` of a
checkout of pytorch/vision, or `examples/` of one of huggingface/transformers.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from doc_blocks import BLOCK, ROOT

PAGE = ROOT / "docs" / "trainers.md"


def scripts(folder: str) -> Path:
    """A folder of published scripts, such as references/detection; skip without them."""
    home = os.environ.get("PACKER_TRAINER_SCRIPTS")
    if not home:
        pytest.skip("the published scripts are not here: PACKER_TRAINER_SCRIPTS names no folder with them")
    if not (found := Path(home) / folder).is_dir():
        pytest.skip(f"PACKER_TRAINER_SCRIPTS has no {folder}")
    return found


def modules() -> dict[str, str]:
    """The modules of the page that stand beside a script, by name."""
    found = BLOCK.finditer(PAGE.read_text())
    return {match["title"]: match["text"] for match in found if (match["title"] or "").startswith("packed_")}


def patches() -> dict[str, str]:
    """The patches of the page, by folder and name of the script."""
    found = (match["text"] for match in BLOCK.finditer(PAGE.read_text()) if match["language"] == "diff")
    return {text.split()[1]: text.partition("\n")[2] for text in found}


def patched(text: str, patch: str) -> str:
    """A script after a patch of the page: `-` lines become the `+` lines that follow; `-    ...` is all between two.

    One line alone is replaced wherever it stands, whatever its indentation.
    """
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", patch, re.MULTILINE):
        lines = [line[1:] for line in old.splitlines()]
        added = "\n".join(line[1:] for line in new.splitlines())
        if len(lines) == 1:
            assert lines[0] in text, lines[0]
            text = text.replace(lines[0], added)
            continue
        first, _, last = "\n".join(lines).partition("\n    ...\n")
        start = text.index(first)
        end = text.index(last, start) + len(last) if last else start + len(first)
        text = text[:start] + added + text[end:]
    return text


def prepare(folder: str, home: Path) -> Path:
    """Copy a folder of scripts to `home`, with the modules of the page beside them, and patch what the page patches."""
    shutil.copytree(scripts(folder), home)
    for name, text in modules().items():
        (home / name).write_text(text)
    for place, patch in patches().items():
        folder, _, name = place.partition("/")
        if folder == home.name:
            (home / name).write_text(patched((home / name).read_text(), patch))
    return home
