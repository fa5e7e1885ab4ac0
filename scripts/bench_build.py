"""How fast `packer build` packs, held against a bare loop of the same work in the same run.

The bare loop decodes, resizes and encodes in as many processes and writes nothing, checks nothing, and knows
no labels: what packer adds is all that lies between the two. Rounds are interleaved; median and spread.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

from packer import BuildOptions, build_pack

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "photos"


def bare(paths: list[str]) -> int:
    """Decode, resize by area, encode; as fast as the libraries allow, to the same pixels as packer.

    Scaled decode by the rule of packer.images: at 1/2, 1/4 or 1/8 where that is still twice the wanted size.
    """
    cv2.setNumThreads(0)
    total = 0
    for path in paths:
        data = Path(path).read_bytes()
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        scale = 256 / min(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        factor = next((f for f in (8, 4, 2) if width >= 2 * f * size[0] and height >= 2 * f * size[1]), 1)
        least = (-(-height // factor), -(-width // factor)) if factor > 1 else (0, 0)
        image = simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1], min_factor=factor)
        interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        image = cv2.resize(image, size, interpolation=interpolation)
        total += len(simplejpeg.encode_jpeg(image, quality=90, colorsubsampling="420"))
    return total


def bare_loop(paths: list[str], processes: int) -> None:
    """All paths, spread over processes."""
    # twenty parts a process, so that none waits long for the other at the end
    parts = [paths[i :: processes * 20] for i in range(processes * 20)]
    # forked: ready at once, and the server that packer forks its workers from stays packer's own
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        sum(pool.map(bare, parts))


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def repeat(source: Path, target: Path, images: int) -> list[str]:
    """Copies of the images in `source` until there are `images`."""
    found = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        sys.exit(f"{source}: no JPEGs found; give a folder of photos with --images")
    target.mkdir()
    for number in range(images):
        shutil.copyfile(found[number % len(found)], target / f"{number:06d}.jpg")
    return sorted(str(p) for p in target.iterdir())


def draw(target: Path, images: int = 64) -> Path:
    """Photo-like JPEGs of 500x375, where there are no real ones."""
    target.mkdir()
    random = np.random.default_rng(0)
    for number in range(images):
        small = random.integers(0, 256, (47, 63, 3), np.uint8)
        image = cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC)
        (target / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(image, quality=92))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=SHARED, help="folder of photos [default: %(default)s]")
    parser.add_argument("--count", type=int, default=4000, help="images to pack, repeated [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--format", default="lmdb")
    parser.add_argument("--shard-mb", type=int, default=128)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-build-") as folder:
        source = given.images if given.images.is_dir() else draw(Path(folder, "drawn"))
        paths = repeat(source, Path(folder, "photos"), given.count)
        options = BuildOptions(
            source=str(Path(folder, "photos")),
            out=str(Path(folder, "pack")),
            format=given.format,
            labels=("none",),
            resize="256",
            encode="jpeg",
            workers=given.workers,
            overwrite=True,
            shard_bytes=given.shard_mb << 20,
        )
        ratios, loops, builds = [], [], []
        for number in range(given.rounds + 1):
            loop = timed(lambda: bare_loop(paths, given.workers))
            build = timed(lambda: build_pack(options))
            if number:  # the first round warms the page cache up
                ratios.append(loop / build)
                loops.append(len(paths) / loop)
                builds.append(len(paths) / build)
        print(f"{len(paths)} photos of {source} to 256 px JPEG, {given.workers} workers, {given.rounds} rounds")
        for name, values in (("bare loop", loops), (f"packer build ({given.format})", builds)):
            print(f"{name:<22} {statistics.median(values):8.0f} images/s ({min(values):.0f} to {max(values):.0f})")
        print(f"{'ratio':<22} {statistics.median(ratios):8.3f}          ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
