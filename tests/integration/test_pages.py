"""The examples of docs/trainers.md, as they stand there: each in a process of its own, those for torchrun in two."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Launch
from doc_blocks import Block, blocks_of
from drawn import draw_classes

from packer import BuildOptions, build_pack

BLOCKS = [block for block in blocks_of(ROOT / "docs" / "trainers.md") if block.language == "python"]
LIBRARIES = ("lightning", "accelerate", "torchdata", "transformers")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packs that the page names."""
    home = tmp_path_factory.mktemp("packs")
    for name, each in (("imgs", 16), ("val", 3)):
        draw_classes(home / name, each=each)
        build_pack(BuildOptions(str(home / name), str(home / f"{name}.lmdb"), "lmdb", workers=1, resize="32x32"))
    return home


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_examples_run(block: Block, packs: Path, tmp_path: Path, launch: Launch) -> None:
    for library in LIBRARIES:
        if f"import {library}" in block.text or f"from {library}" in block.text:
            pytest.importorskip(library, reason=f"{library} is not installed")
    for pack in packs.glob("*.lmdb"):
        shutil.copytree(pack, tmp_path / pack.name)
    script = tmp_path / (block.title or "example.py")
    script.write_text(block.text)
    ranks = 2 if block.title else 1
    for _ in range(ranks):  # the script for torchrun also resumes
        launch(script, ranks=ranks, cwd=tmp_path)
