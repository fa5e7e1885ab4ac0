"""Does `packer bench` report what a loop outside of the package measures? Prints the ratio for each row.

The loops here are what a user would write by hand: a Dataset in a DataLoader, and a `for` over `PackedLoader`. Each
runs in a process of its own, before and after a run of `packer bench` on the same images. They share no code with it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import Table
from packer.bench.measure import Figure
from packer.containers import CONTAINERS

FOLDERS = {"folder, PIL": "pil", "folder, cv2": "cv2"}
ENCODINGS = ("raw", "jpeg")
GOAL = (0.9, 1.1)
LONG = 1 << 20
"""Samples of an epoch that is longer than any measurement."""


def folder_loader(kind: str, files: list[str], size: int, batch: int, workers: int) -> Iterable[Any]:
    """Return a DataLoader of image files, decoded and stretched to size x size."""
    import cv2
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            if kind == "pil":
                with Image.open(files[i]) as image:
                    pixels = np.array(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
            else:
                data = np.fromfile(files[i], np.uint8)
                bgr = cv2.resize(cv2.imdecode(data, cv2.IMREAD_COLOR), (size, size), interpolation=cv2.INTER_LINEAR)
                pixels = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
            return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), 0

    cv2.setNumThreads(1)
    dataset = Files()
    for i in range(len(dataset)):  # into the page cache
        dataset[i]
    order = RandomSampler(dataset, replacement=True, num_samples=LONG)
    return DataLoader(dataset, batch, sampler=order, num_workers=workers)


def pack_loader(path: str, batch: int, threads: int) -> Iterable[Any]:
    """Return a PackedLoader of a pack."""
    from packer import PackedLoader, open_pack
    from packer.samplers import BalancedSampler

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


def one(kind: str, path: str, given: argparse.Namespace) -> float:
    """Measure one row; this is what runs in a process of its own."""
    if kind == "pack":
        return loop(pack_loader(path, given.batch_size, given.threads), given.seconds, given.threads)
    files = sorted(str(file) for file in Path(path).rglob("*.jpg"))
    return loop(folder_loader(kind, files, given.size, given.batch_size, given.threads), given.seconds, given.threads)


def outside(kind: str, path: str, given: argparse.Namespace) -> float:
    """Measure one row in a process of its own."""
    settings = [f"--{n}={getattr(given, n.replace('-', '_'))}" for n in ("batch-size", "threads", "seconds", "size")]
    command = [sys.executable, sys.argv[0], "check", *settings, "--one", kind, path]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def reported(source: str, name: str, given: argparse.Namespace) -> dict[str, float]:
    """Return the median images/s of each row, as `packer bench` reports them for one format and encoding."""
    size = f"{given.size}x{given.size}"
    container, encoding = name.split(", ")
    command = [sys.executable, "-m", "packer", "bench", source, "--images", str(given.images), "--resize", size]
    command += ["--batch-size", str(given.batch_size), "--threads", str(given.threads)]
    command += ["--seconds", str(given.seconds), "--rounds", "2", "--json"]
    command += ["--format", container, "--encode", encoding]
    facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {row["name"]: statistics.median(r["images"] / r["seconds"] for r in row["rounds"]) for row in facts["rows"]}


def prepare(home: Path, given: argparse.Namespace) -> tuple[str, dict[str, tuple[str, str]]]:
    """Make the images and packs; return the folder, and (kind, path) of each row."""
    from packer import BuildOptions, build_pack
    from packer.sources.synthetic import draw_sample

    source = str(home / "images")
    draw_sample(source, "folder", given.images, given.drawn_size)
    places = {name: (kind, source) for name, kind in FOLDERS.items()}
    for container in given.format or CONTAINERS:
        for encoding in given.encode or ENCODINGS:
            out = str(home / f"{container}-{encoding}")
            resize = f"{given.size}x{given.size}"
            build_pack(BuildOptions(source, out, format=container, encode=encoding, resize=resize, fit="stretch"))
            places[f"{container}, {encoding}"] = "pack", out
    return source, places


def check(home: Path, given: argparse.Namespace) -> bool:
    """Print the ratios; return whether all medians are within the goal."""
    source, places = prepare(home, given)
    inside: dict[str, list[float]] = {name: [] for name in places}
    outside_: dict[str, list[float]] = {name: [] for name in places}
    for number in range(given.rounds):
        for pack in (name for name in places if name not in FOLDERS):
            rows = {name: places[name] for name in (*FOLDERS, pack)}
            # before and after: what else the machine does comes and goes within seconds
            own = {name: [outside(kind, path, given)] for name, (kind, path) in rows.items()}
            by_packer = reported(source, pack, given)
            for name, (kind, path) in rows.items():
                own[name].append(outside(kind, path, given))
                inside[name].append(by_packer[name])
                outside_[name].append(statistics.mean(own[name]))
        print(f"round {number + 1} of {given.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    low, high = GOAL
    table = Table("row", "`packer bench`, images/s", "own loop, images/s", "goal", "ratio")
    good = True
    for name in places:
        reported_, own_ = Figure(tuple(inside[name])), Figure(tuple(outside_[name]))
        ratio = reported_ / own_
        reached = low <= ratio.median <= high
        good &= reached
        text = ratio.text(2) if reached else f"**{ratio.text(2)}**"
        table.row(name, reported_.text(0), own_.text(0), f"{low} to {high}", text)
    return good


def options(parser: Any) -> None:
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--drawn-size", type=int, default=256, help="about so many pixels wide and high")
    parser.add_argument("--size", type=int, default=224, help="of the images in a batch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--format", action="append", choices=CONTAINERS)
    parser.add_argument("--encode", action="append", choices=ENCODINGS)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)


def run(given: Any) -> int:
    if given.one:
        print(one(*given.one, given))
        return 0
    return 0 if check(given.home, given) else 1
