"""How long Ultralytics YOLO takes from its data to the first batch: a folder, the same with its label cache, a pack.

Each in a new process, on the CPU, with files in memory, after a first batch of another set. The model is made in
between and not counted. Memory is what the process has allocated meanwhile.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Table, drawn, in_new_process, linked
from packer import BuildOptions, build_pack

START = """
import os, sys, time
import packer.ultralytics
from ultralytics.models.yolo.detect import DetectionTrainer
from packer.bench.measure import memory_bytes

theirs, small, data, results = sys.argv[1:]
kind = DetectionTrainer if theirs == "True" else packer.ultralytics.DetectionTrainer

def start(data):
    names = {"imgsz": 64, "device": "cpu", "model": "yolo11n.yaml", "project": results, "plots": False}
    started = time.perf_counter()
    trainer = kind(overrides={**names, "data": data})
    seconds = time.perf_counter() - started
    trainer.setup_model()
    before, started = memory_bytes(os.getpid()), time.perf_counter()
    loader = trainer.get_dataloader(trainer.data["train"], 16, rank=-1)
    batch = next(iter(loader))
    seconds += time.perf_counter() - started
    assert batch["img"].shape[0] == 16 and len(loader.dataset) > 16
    return seconds, memory_bytes(os.getpid()) - before

start(small)
print(*start(data))
"""


def draw_yolo(root: Path, count: int) -> None:
    """Make a YOLO folder: images, most of them links, seven boxes each."""
    names = [f"{number // 10_000:04d}/{number:07d}" for number in range(count)]
    linked((root / "images" / f"{name}.jpg" for name in names), list(drawn(32)))
    numbers = np.random.default_rng(0)
    for name in names:
        label = root / "labels" / f"{name}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        boxes = np.concatenate([numbers.uniform(0.3, 0.7, (7, 2)), numbers.uniform(0.05, 0.5, (7, 2))], axis=1)
        label.write_text("".join(f"{i % 3} {' '.join(f'{v:.6f}' for v in box)}\n" for i, box in enumerate(boxes)))
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images\nval: images\nnames: [ant, bee, cat]\n")


def options(parser: Any) -> None:
    parser.set_defaults(rounds=1)
    parser.add_argument("--images", type=int, default=100_000, help="number of images [%(default)s]")


def run(given: Any) -> None:
    if find_spec("ultralytics") is None:
        sys.exit("ultralytics is not installed: pip install ultralytics")
    results, small, folder = (given.home / name for name in ("results", "small", "set"))
    results.mkdir()
    quiet = {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(results), "YOLO_VERBOSE": "false"}
    for root, count in ((small, 32), (folder, given.images)):
        draw_yolo(root, count)
        build_pack(BuildOptions(str(root), f"{root}.lmdb", labels=("yolo",), encode="copy"))
    table = Table(f"{given.images:,} images", "first batch, s", "memory, MB")
    for name, theirs, end in (
        ("folder", True, "/data.yaml"), ("its label cache", True, "/data.yaml"), ("pack", False, ".lmdb"),
    ):  # fmt: skip
        rows = []
        for _ in range(given.rounds):
            for cache in folder.rglob("*.cache") if name == "folder" else ():
                cache.unlink()
            rows.append(in_new_process(START, theirs, f"{small}{end}", f"{folder}{end}", results, **quiet))
        seconds, used = min(rows)
        table.row(name, f"{seconds:.2f}", f"{used / 2**20:.0f}")
