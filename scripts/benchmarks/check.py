"""Does `packer bench` report what a loop outside of the package measures? Prints the ratio for each row.

The loops here are what a user would write by hand: a Dataset in a DataLoader, and a `for` over `PackedLoader`. Each
runs in a process of its own, before and after a run of `packer bench` on the same images. They share no code with it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.common import Table, build, in_new_process
from benchmarks.loader import Loose
from packer import PackedLoader, open_pack
from packer.bench.measure import Figure
from packer.containers import CONTAINERS
from packer.samplers import BalancedSampler
from packer.sources.synthetic import draw_sample

FOLDERS = {"folder, PIL": "pil", "folder, cv2": "cv2"}
ENCODINGS = ("raw", "jpeg")
LOW, HIGH = 0.9, 1.1
LONG = 1 << 20
"""Samples of an epoch that is longer than any measurement."""
ONE = """
import sys
from benchmarks.check import one
print(one(*sys.argv[1:3], *map(int, sys.argv[3:6]), float(sys.argv[6])))
"""


def read_file(kind: str, size: int, path: str) -> torch.Tensor:
    """Decode a file, and stretch it to size x size."""
    if kind == "pil":
        with Image.open(path) as image:
            pixels: Any = np.array(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    else:
        bgr: Any = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
        bgr = cv2.resize(bgr, (size, size), interpolation=cv2.INTER_LINEAR)
        pixels = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def folder_loader(kind: str, folder: str, size: int, batch: int, workers: int) -> Iterable[Any]:
    """Return a DataLoader of image files."""
    cv2.setNumThreads(1)
    dataset = Loose(sorted(map(str, Path(folder).rglob("*.jpg"))), partial(read_file, kind, size))
    for i in range(len(dataset)):  # into the page cache
        dataset[i]
    order = RandomSampler(dataset, replacement=True, num_samples=LONG)
    return DataLoader(dataset, batch, sampler=order, num_workers=workers)


def pack_loader(path: str, batch: int, threads: int) -> Iterable[Any]:
    """Return a PackedLoader of a pack."""
    for _ in PackedLoader(path, batch, threads=threads):  # into the page cache
        pass
    return PackedLoader(path, batch, sampler=BalancedSampler(open_pack(path), num_samples=LONG), threads=threads)


def loop(loader: Iterable[Any], seconds: float, threads: int) -> float:
    """Return images/s in the middle of a long epoch.

    Worker processes hand over one batch each at about the same time: as many are counted of each.
    """
    images = 0
    started = took = 0.0
    for number, (batch, _) in enumerate(loader):
        if number < 4 * threads:
            started = time.perf_counter()
            continue
        images += len(batch)
        took = time.perf_counter() - started  # ending the workers after the loop takes time
        if (number + 1) % threads == 0 and took >= seconds:
            break
    return images / took


def one(kind: str, path: str, size: int, batch: int, threads: int, seconds: float) -> float:
    """Measure one row; this is what runs in a process of its own."""
    of_pack = kind == "pack"
    loader = pack_loader(path, batch, threads) if of_pack else folder_loader(kind, path, size, batch, threads)
    return loop(loader, seconds, threads)


def outside(kind: str, path: str, given: Any) -> float:
    """Measure one row in a process of its own."""
    (rate,) = in_new_process(
        ONE, kind, path, given.size, given.batch_size, given.threads, given.seconds,
        PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
    )  # fmt: skip
    return rate


def reported(source: str, name: str, given: Any) -> dict[str, float]:
    """Return the median images/s of each row, as `packer bench` reports them for one format and encoding."""
    container, encoding = name.split(", ")
    words = f"--images {given.images} --resize {given.size}x{given.size} --batch-size {given.batch_size}"
    words += f" --threads {given.threads} --seconds {given.seconds} --rounds 2 --json"
    words += f" --format {container} --encode {encoding}"
    command = [sys.executable, "-m", "packer", "bench", source, *words.split()]
    facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {row["name"]: statistics.median(r["images"] / r["seconds"] for r in row["rounds"]) for row in facts["rows"]}


def prepare(home: Path, given: Any) -> dict[str, tuple[str, str]]:
    """Make the images and packs; return (kind, path) of each row."""
    source = home / "images"
    draw_sample(str(source), "folder", given.images, given.drawn_size)
    places = {name: (kind, str(source)) for name, kind in FOLDERS.items()}
    for container in given.format or CONTAINERS:
        for encoding in given.encode or ENCODINGS:
            out, size = home / f"{container}-{encoding}", f"{given.size}x{given.size}"
            build(source, out, format=container, encode=encoding, resize=size, fit="stretch")
            places[f"{container}, {encoding}"] = "pack", str(out)
    return places


def options(parser: Any) -> None:
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--drawn-size", type=int, default=256, help="about so many pixels wide and high")
    parser.add_argument("--size", type=int, default=224, help="of the images in a batch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--format", action="append", choices=CONTAINERS)
    parser.add_argument("--encode", action="append", choices=ENCODINGS)


def run(given: Any) -> int:
    """Print the ratios; return 1 if a median is not within the goal."""
    places = prepare(given.home, given)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
    for number in range(given.rounds):
        for pack in (name for name in places if name not in FOLDERS):
            rows = {name: places[name] for name in (*FOLDERS, pack)}
            # before and after: what else the machine does comes and goes within seconds
            before = {name: outside(*row, given) for name, row in rows.items()}
            by_packer = reported(places["folder, PIL"][1], pack, given)
            for name, row in rows.items():
                rates[name].append((by_packer[name], (before[name] + outside(*row, given)) / 2))
        print(f"round {number + 1} of {given.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    table = Table("row", "`packer bench`, images/s", "own loop, images/s", "goal", "ratio")
    good = True
    for name in places:
        inside, own = (Figure(rounds) for rounds in zip(*rates[name], strict=True))
        ratio = inside / own
        reached = LOW <= ratio.median <= HIGH
        good &= reached
        text = ratio.text(2) if reached else f"**{ratio.text(2)}**"
        table.row(name, inside.text(0), own.text(0), f"{LOW} to {HIGH}", text)
    return 0 if good else 1
