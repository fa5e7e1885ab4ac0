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


def blocks() -> dict[str, str]:
    """The modules and patches of the page, by title."""
    found = BLOCK.finditer(PAGE.read_text())
    return {match["title"]: match["text"] for match in found if match["title"]}


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
    for title, text in blocks().items():
        if title.startswith("packed_"):
            (home / title).write_text(text)
        elif title.partition("/")[0] == home.name:
            script = home / title.split("/")[1]
            script.write_text(patched(script.read_text(), text))
    return home
