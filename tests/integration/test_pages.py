"""Examples of pages that need a trainer: each in a process of its own, those for torchrun in two."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from conftest import Launch
from doc_blocks import PAGES, Block, blocks_of
from drawn import draw_classes, draw_shots
from drawn_masks import pairs, write_files

from packer import BuildOptions, build_pack

BLOCKS = [block for page in PAGES for block in blocks_of(page) if "test_pages.py" in (block.reason or "")]
LIBRARIES = (
    "torchvision", "segmentation_models_pytorch", "lightning", "accelerate", "torchdata", "transformers", "tensorflow",
    "keras", "ignite", "fastai", "composer", "mmengine", "mmdet", "jax",
)  # fmt: skip


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packs that the page names."""
    home = tmp_path_factory.mktemp("packs")
    for name, each in (("imgs", 16), ("val", 3)):
        draw_classes(home / name, each=each)
        build_pack(BuildOptions(str(home / name), str(home / f"{name}.lmdb"), "lmdb", workers=1, resize="32x32"))
    draw_shots(home / "shots", 9)
    build_pack(BuildOptions(str(home / "shots"), str(home / "shots.lmdb"), labels=("voc",), workers=1))
    how = {"encode": "jpeg", "resize": "64x64", "workers": 1}
    build_pack(BuildOptions(str(home / "imgs"), str(home / "imgs.tfrecord"), "tfrecord", **how))
    scenes = write_files(home / "scenes", pairs(count=8) | {"masks/class_names.txt": b"background\nant\nbee\ncat\n"})
    build_pack(BuildOptions(str(scenes), str(home / "scenes-train.lmdb"), encode="jpeg", workers=1))
    return home


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_examples_run(block: Block, packs: Path, tmp_path: Path, launch: Launch) -> None:
    for library in LIBRARIES:
        # not imported: Keras cannot be before its backend is chosen
        named = any(form.format(library) in block.text for form in ("import {}", "from {}", '= "{}"'))
        if named and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    for pack in packs.glob("*.*"):
        shutil.copytree(pack, tmp_path / pack.name)
    script = tmp_path / (block.title or "example.py")
    script.write_text(block.text)
    ranks = 2 if block.title else 1
    for _ in range(ranks):  # the script for torchrun also resumes
        launch(script, ranks=ranks, cwd=tmp_path)
