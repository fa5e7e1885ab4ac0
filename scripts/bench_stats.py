"""Measures the pixel pass of `packer stats` against a bare copy of the same bytes, one thread each.

    scripts/bench_stats.py --images 2000 --rounds 7

Raw packs of 224x224 and of 32x32 images in each container, in memory. Rounds are interleaved; median, lowest and
highest of the ratio of bytes a second.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from packer import BuildOptions, build_pack, open_pack
from packer.containers import CONTAINERS
from packer.format.pack import Pack
from packer.stats.pixels import channel_stats


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def copy_all(pack: Pack, out: np.ndarray) -> None:
    """Each record to its place in other memory."""
    size, region = pack.record_bytes or 0, pack.region.parts[0]
    for i, offset in enumerate(pack.offsets.tolist()):
        out[i * size : (i + 1) * size] = region[offset : offset + size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="of 224x224; 25 times as many of 32x32")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    print("| pack | copy, GB/s | stats / copy, no checksums | stats / copy, with checksums |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for side, count in ((224, given.images), (32, given.images * 25)):
            source = Path(folder, f"source{side}")
            source.mkdir()
            draw = np.random.default_rng(0)
            for i in range(200):
                cv2.imwrite(str(source / f"{i:03d}.png"), draw.integers(0, 256, (side, side, 3), np.uint8))
            for number in range(1, count // 200):
                part = source / f"{number:03d}"
                part.mkdir()
                for i in range(200):
                    (part / f"{i:03d}.png").hardlink_to(source / f"{i:03d}.png")
            for container in CONTAINERS:
                path = Path(folder, f"{side}.{container}")
                build_pack(BuildOptions(source, path, format=container, labels=("none",)))
                compare(f"raw {side}x{side}, {container}", open_pack(path), given.rounds)


def compare(name: str, pack: Pack, rounds: int) -> None:
    size = len(pack) * (pack.record_bytes or 0)
    out = np.zeros(size, np.uint8)
    copies, plain, checked = [], [], []
    for number in range(rounds + 1):
        copied = seconds(lambda: copy_all(pack, out))
        bare = seconds(lambda: channel_stats(pack, threads=1, verify=False))
        full = seconds(partial(channel_stats, open_pack(pack.path), threads=1))  # nothing was checked yet
        if number:
            copies.append(size / copied / 1e9)
            plain.append(copied / bare)
            checked.append(copied / full)

    def text(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    print(f"| {name} | {text(copies)} | {text(plain)} | {text(checked)} |", flush=True)


if __name__ == "__main__":
    main()
