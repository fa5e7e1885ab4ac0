"""Does `packer bench` say what a loop outside of the package measures? Prints the ratio for each row.

The goal is 0.9 to 1.1. The loops here are what a user would write by hand: a Dataset in a DataLoader, and a `for` over
`PackedLoader`. Each runs in a process of its own, before and behind a run of `packer bench` on the same images.
Nothing of `packer.bench` is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDERS = {"folder, PIL": "pil", "folder, cv2": "cv2"}
FORMATS = ("lmdb", "hdf5", "tfrecord", "webdataset")
ENCODINGS = ("raw", "jpeg")
GOAL = (0.9, 1.1)
LONG = 1 << 20
"""Samples of an epoch that no measurement comes to the end of."""


def folder_loader(kind: str, files: list[str], size: int, batch: int, workers: int) -> Iterable[Any]:
    """Image files through a plain DataLoader, decoded and stretched to size x size."""
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
    """A pack through PackedLoader."""
    from packer import PackedLoader, open_pack
    from packer.samplers import BalancedSampler

    for _ in PackedLoader(path, batch, threads=threads):  # into the page cache
        pass
    return PackedLoader(path, batch, sampler=BalancedSampler(open_pack(path), num_samples=LONG), threads=threads)


def loop(loader: Iterable[Any], seconds: float, threads: int) -> float:
    """Images/s in the middle of a long epoch: worker processes hand over one batch each at about the same time, so
    that as many are counted of each."""
    images = 0
    started = took = 0.0
    for number, (batch, _) in enumerate(loader):
        if number < 4 * threads:
            started = time.perf_counter()
            continue
        images += len(batch)
        took = time.perf_counter() - started  # behind the loop workers are ended, which takes its time
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
    command = [sys.executable, __file__, *settings, "--one", kind, path]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def bench(source: str, name: str, given: argparse.Namespace) -> dict[str, float]:
    """Median images/s of each row, as `packer bench` says it of one format and encoding."""
    size = f"{given.size}x{given.size}"
    container, encoding = name.split(", ")
    command = [sys.executable, "-m", "packer", "bench", source, "--images", str(given.images), "--resize", size]
    command += ["--batch-size", str(given.batch_size), "--threads", str(given.threads)]
    command += ["--seconds", str(given.seconds), "--rounds", "2", "--json"]
    command += ["--format", container, "--encode", encoding]
    facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {row["name"]: statistics.median(r["images"] / r["seconds"] for r in row["rounds"]) for row in facts["rows"]}


def prepare(home: Path, given: argparse.Namespace) -> tuple[str, dict[str, tuple[str, str]]]:
    """The images, and (kind, path) of each row: packs are built here as a user would."""
    from packer import BuildOptions, build_pack
    from packer.sources.synthetic import draw_sample

    source = str(home / "images")
    draw_sample(source, "folder", given.images, given.drawn_size)
    places = {name: (kind, source) for name, kind in FOLDERS.items()}
    for container in given.format or FORMATS:
        for encoding in given.encode or ENCODINGS:
            out = str(home / f"{container}-{encoding}")
            resize = f"{given.size}x{given.size}"
            build_pack(BuildOptions(source, out, format=container, encode=encoding, resize=resize, fit="stretch"))
            places[f"{container}, {encoding}"] = "pack", out
    return source, places


def check(home: Path, given: argparse.Namespace) -> bool:
    """Print the ratios; whether all medians are within the goal."""
    source, places = prepare(home, given)
    inside: dict[str, list[float]] = {name: [] for name in places}
    beside: dict[str, list[float]] = {name: [] for name in places}
    for number in range(given.rounds):
        for pack in (name for name in places if name not in FOLDERS):
            rows = {name: places[name] for name in (*FOLDERS, pack)}
            # before and behind: what else the machine does comes and goes within seconds
            own = {name: [outside(kind, path, given)] for name, (kind, path) in rows.items()}
            said = bench(source, pack, given)
            for name, (kind, path) in rows.items():
                own[name].append(outside(kind, path, given))
                inside[name].append(said[name])
                beside[name].append(statistics.mean(own[name]))
        print(f"round {number + 1} of {given.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    low, high = GOAL
    print(f"{given.images} images, {given.size}x{given.size}, batches of {given.batch_size}, {given.threads} threads")
    print(f"{'row':<17} {'packer bench, images/s':>28} {'own loop, images/s':>28} {'ratio':>19} goal {low} to {high}")
    good = True
    for name in places:
        ratios = [one / two for one, two in zip(inside[name], beside[name], strict=True)]
        reached = low <= statistics.median(ratios) <= high
        good &= reached
        verdict = "" if reached else "missed"
        rates = f"{spread(inside[name], 0):>28} {spread(beside[name], 0):>28}"
        print(f"{name:<17} {rates} {spread(ratios, 2):>19} {verdict}".rstrip())
    return good


def spread(numbers: list[float], digits: int) -> str:
    """Median (lowest to highest)."""
    low, middle, high = (f"{f(numbers):,.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--drawn-size", type=int, default=256, help="about so many pixels wide and high")
    parser.add_argument("--size", type=int, default=224, help="of the images in a batch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=4, help="each compares every pack once")
    parser.add_argument("--format", action="append", choices=FORMATS)
    parser.add_argument("--encode", action="append", choices=ENCODINGS)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(one(*given.one, given))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-check-") as home:
        return 0 if check(Path(home), given) else 1


if __name__ == "__main__":
    sys.exit(main())
