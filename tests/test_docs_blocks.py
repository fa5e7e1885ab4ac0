"""The code blocks of README.md and of the documentation run, each page in a folder of drawn images."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from doc_blocks import PAGES, ROOT, blocks_of, page_name, run_page
from drawn import draw, draw_classes, draw_landmarks, draw_shots, draw_voc
from drawn_masks import pairs, write_files
from packs import needs_cache
from test_rooms import FLOOR, imported, nodes

from packer.format.pack import open_pack

RUFF = Path(sys.executable).with_name("ruff")
NOT_RUN = {
    "README.md": 2, "bench.md": 2, "benchmarks.md": 2, "build.md": 1, "extending.md": 1,
    "formats.md": 5, "guides/coco.md": 2,
    "guides/dali.md": 1, "guides/embeddings.md": 1, "guides/hugging-face.md": 4, "guides/keras.md": 3,
    "guides/lightning.md": 1,
    "guides/rf-detr.md": 2, "guides/segmentation.md": 6, "guides/ssl.md": 1, "guides/timm.md": 2, "guides/yolo.md": 6,
    "index.md": 1, "install.md": 2, "packs.md": 4, "peers/dali.md": 1, "peers/ffcv.md": 2, "peers/folder.md": 2,
    "peers/litdata.md": 2, "peers/own-files.md": 1, "peers/streaming.md": 1, "preprocessing.md": 1,
    "quickstart.md": 1, "reliability.md": 1, "remote.md": 3, "stats.md": 1, "trainers.md": 13,
    "training.md": 5, "view.md": 5,
}  # fmt: skip
"""Page -> how many blocks of it are not run, each with its reason before it."""
COLUMN = 100
"""Characters of code that fit into the column of the site, without scrolling (docs/extra.css)."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that each page gets a copy of."""
    home = tmp_path_factory.mktemp("drawn")
    draw_folder(home)
    return home


def draw_folder(home: Path) -> None:
    """The folders that the pages name: classes, VOC, YOLO, COCO, masks, landmarks, a list beside VOC, class names."""
    draw_classes(home / "imgs", each=16)
    draw_classes(home / "photos", each=3)
    draw_classes(home / "val", each=3)
    draw_voc(home / "VOC")
    draw_shots(home / "shots")
    draw_landmarks(home / "faces", 16)
    write_files(home / "streets", pairs() | {"masks/class_names.txt": b"rest\nroad\nhouse\ntree\n"})
    for i, size in enumerate(((500, 375), (333, 500), (640, 401))):
        draw(home / "pets" / ("cat", "dog")[i % 2] / f"{i}.jpg", i, *size)
    for i in range(6):
        draw(home / "coco" / "images" / "train" / f"{i}.jpg", i)
        draw(home / "named" / f"{('ant', 'bee')[i % 2]}_{i}.jpg", i)
        label = home / "coco" / "labels" / "train" / f"{i}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.25 0.5\n")
    draw(home / "crossing" / "1.jpg", 1)
    images = [{"id": 7, "file_name": "1.jpg", "width": 40, "height": 30}]
    objects = [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [10, 5, 20, 15]}]
    content = {"images": images, "annotations": objects, "categories": [{"id": 18, "name": "dog"}]}
    (home / "crossing" / "instances.json").write_text(json.dumps(content))
    with h5py.File(home / "train.h5", "w") as file:
        file["images"] = np.arange(24 * 16 * 16 * 3, dtype=np.uint64).reshape(24, 16, 16, 3).astype(np.uint8)
        file["labels"] = np.arange(24) % 3


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its shards open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page_name(page), marks=[needs_cache] * (page.name == "remote.md")) for page in PAGES],
)
def test_every_block_runs(
    page: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another are slow on a busy machine
    try:
        ran = run_page(page)
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)
    assert ran == len([block for block in blocks_of(page) if block.reason is None])
    if page.name == "quickstart.md":
        accuracies = re.findall(r"^epoch \d: ([\d.]+) % right", capsys.readouterr().out, re.MULTILINE)
        assert len(accuracies) == 6 and float(accuracies[-1]) >= 95, accuracies


def test_the_scripts_for_slurm_run_without_it(drawn: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn / "imgs", tmp_path / "imgs")
    page = (ROOT / "docs" / "cluster.md").read_text()
    files = re.findall(r"^```\w+ title=\"([\w.]+\.(?:yaml|sbatch))\"\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    for name, text in [*files, ("packer", f'#!/bin/sh\nexec "{sys.executable}" -m packer "$@"\n')]:
        (tmp_path / name).write_text(text.replace("/16", "/2"))
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "SLURM_CPUS_PER_TASK": "1"}
    for script, task in [("pack.sbatch", "2"), ("pack.sbatch", "1"), ("finish.sbatch", "")]:
        environment = {**os.environ, **path, "SLURM_ARRAY_TASK_ID": task}
        subprocess.run([tmp_path / script], cwd=tmp_path, env=environment, check=True)
    assert len(open_pack(tmp_path / "slurm.lmdb")) == 48


def test_blocks_that_do_not_run_are_known() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    for block in blocks:
        print(block, block.language, "runs" if block.reason is None else f"not run: {block.reason}")
    assert Counter(page_name(block.page) for block in blocks if block.reason is not None) == NOT_RUN
    assert len(blocks) > 50


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_code_is_not_wider_than_the_column(page: Path) -> None:
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        inside ^= line.startswith("```")
        code = inside or line.startswith("    ")
        assert not code or len(line) <= COLUMN + 4 * (not inside), f"{page_name(page)}:{number}"


def test_modules_that_the_pages_add_keep_the_style_and_the_arrows(tmp_path: Path) -> None:
    added = [block for page in PAGES for block in blocks_of(page) if block.title is not None]
    assert {Path(str(block.title)).parent.name for block in added} == {"", "samplers", "cli"}
    for block in added:
        file = tmp_path / str(block.title)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
        room = file.parent.name
        if room not in FLOOR:
            continue  # of a package of one's own
        others = {name.split(".")[1] for name in imported(nodes(file)) if name.startswith("packer.")} - {room}
        assert all(FLOOR[other] > FLOOR[room] for other in others), block
    config = ["--config", str(ROOT / "pyproject.toml"), "--line-length", str(COLUMN), "--no-cache"]
    for check in (["check", *config], ["format", "--check", *config]):
        done = subprocess.run([RUFF, *check, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
