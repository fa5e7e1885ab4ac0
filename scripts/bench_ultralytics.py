"""How long Ultralytics YOLO takes from its data to the first batch: a folder, the same with its label cache, a pack.

Each in a new process, on the CPU, with files in memory, after a first batch of another set. The model is made in
between and not counted. Memory is what the process has allocated meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_common import Table, drawn, parser

from packer import BuildOptions, build_pack

LINKS = 1000
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
    """Make a YOLO folder: images (up to LINKS links to each file that is written), seven boxes each."""
    data = list(drawn(32))
    numbers = np.random.default_rng(0)
    origin = root
    for number in range(count):
        part = f"{number // 10_000:04d}"
        image, label = root / "images" / part / f"{number:07d}.jpg", root / "labels" / part / f"{number:07d}.txt"
        for path in (image, label):
            path.parent.mkdir(parents=True, exist_ok=True)
        if number % LINKS == 0:
            image.write_bytes(data[number // LINKS % len(data)])
            origin = image
        else:
            os.link(origin, image)
        boxes = np.concatenate([numbers.uniform(0.3, 0.7, (7, 2)), numbers.uniform(0.05, 0.5, (7, 2))], axis=1)
        label.write_text("".join(f"{i % 3} {' '.join(f'{v:.6f}' for v in box)}\n" for i, box in enumerate(boxes)))
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images\nval: images\nnames: [ant, bee, cat]\n")


def start(theirs: bool, small: Path, data: Path, results: Path) -> tuple[float, float]:
    """Return seconds to the first batch, and bytes of memory."""
    words = [sys.executable, "-c", START, str(theirs), str(small), str(data), str(results)]
    environment = {**os.environ, "YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(results), "YOLO_VERBOSE": "false"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    seconds, used = done.stdout.splitlines()[-1].split()
    return float(seconds), float(used)


def main() -> None:
    """Print one table."""
    options = parser(__doc__ or "", rounds=1)
    options.add_argument("--images", type=int, default=100_000, help="number of images [%(default)s]")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work_dir) as temporary:
        results = Path(temporary, "results")
        results.mkdir()
        small, folder = Path(temporary, "small"), Path(temporary, "set")
        for root, count in ((small, 32), (folder, given.images)):
            draw_yolo(root, count)
            build_pack(BuildOptions(str(root), f"{root}.lmdb", labels=("yolo",), encode="copy"))
        table = Table(f"{given.images:,} images", "first batch, s", "memory, MB")
        for name, theirs, end in (
            ("folder", True, "/data.yaml"),
            ("its label cache", True, "/data.yaml"),
            ("pack", False, ".lmdb"),
        ):
            rows = []
            for _ in range(given.rounds):
                for cache in folder.rglob("*.cache") if name == "folder" else ():
                    cache.unlink()
                rows.append(start(theirs, Path(f"{small}{end}"), Path(f"{folder}{end}"), results))
            seconds, used = min(rows)
            table.row(name, f"{seconds:.2f}", f"{used / 2**20:.0f}")


if __name__ == "__main__":
    main()
