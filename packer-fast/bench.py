"""Measures images per second against simplejpeg + OpenCV, in interleaved rounds.

usage: python bench.py FOLDER [--size 224] [--threads 1 2] [--rounds 7] [--whole]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

import packer_fast

CHUNK = 64


def random_crops(sizes: NDArray[np.int32], seed: int = 0) -> NDArray[np.int32]:
    """Return regions as torchvision's RandomResizedCrop draws them."""
    random = np.random.default_rng(seed)
    regions = []
    for width, height in sizes.tolist():
        region = (0, 0, width, height)
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                region = (int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h)
                break
        regions.append(region)
    return np.array(regions, np.int32)


class Images:
    """JPEGs in memory, with regions and indexes."""

    def __init__(self, jpegs: list[bytes], whole: bool) -> None:
        self.jpegs = jpegs
        self.arrays = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
        self.sizes = np.array([simplejpeg.decode_jpeg_header(j)[1::-1] for j in jpegs], np.int32)
        self.regions = random_crops(self.sizes)
        if whole:
            self.regions = np.concatenate([np.zeros_like(self.sizes), self.sizes], axis=1)
        self.addresses = np.array([array.ctypes.data for array in self.arrays], np.uint64)
        self.bytes = np.array([len(jpeg) for jpeg in jpegs], np.uint64)
        self.indexes: dict[int, list[NDArray[np.uint8]]] = {}

    def make_indexes(self, interval: int) -> None:
        start = time.perf_counter()
        made = [packer_fast.make_index(jpeg, interval) for jpeg in self.jpegs]
        each = (time.perf_counter() - start) / len(made)
        share = sum(map(len, made)) / float(self.bytes.sum())
        print(f"index every {interval or 'row'}: {each * 1e3:.3f} ms/image, {share:.2%} of the bytes")
        self.indexes[interval] = [np.frombuffer(index, np.uint8) for index in made]

    def batch(self, part: slice, interval: int | None) -> packer_fast.Batch:
        index = None if interval is None else self.indexes[interval][part]
        return packer_fast.Batch(
            self.addresses[part],
            self.bytes[part],
            self.sizes[part],
            self.regions[part],
            indexes=None if index is None else np.array([i.ctypes.data for i in index], np.uint64),
            indexes_bytes=None if index is None else np.array([len(i) for i in index], np.uint64),
        )


def by_opencv(images: Images, part: slice, rows: NDArray[np.uint8]) -> None:
    size = rows.shape[2], rows.shape[1]
    for jpeg, (x, y, w, h), row in zip(images.jpegs[part], images.regions[part].tolist(), rows[part], strict=True):
        shrinks = w > size[0] or h > size[1]
        crop = simplejpeg.decode_jpeg(jpeg, "RGB")[y : y + h, x : x + w]
        cv2.resize(crop, size, dst=row, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def into_rows(images: Images, part: slice, rows: NDArray[np.uint8]) -> None:
    for jpeg, row in zip(images.jpegs[part], rows[part], strict=True):
        simplejpeg.decode_jpeg(jpeg, "RGB", False, False, 0, 0, 1, row)


def natively(interval: int | None, **options: Any) -> Callable[[Images, slice, NDArray[np.uint8]], None]:
    def call(images: Images, part: slice, rows: NDArray[np.uint8]) -> None:
        errors = packer_fast.decode_batch(images.batch(part, interval), rows[part], **options)
        assert not errors.any(), errors

    return call


def measure(images: Images, rows: NDArray[np.uint8], variants: dict[str, Any], threads: int, rounds: int) -> None:
    parts = [slice(i, min(i + CHUNK, len(rows))) for i in range(0, len(rows), CHUNK)]
    rates: dict[str, list[float]] = {name: [] for name in variants}
    with ThreadPoolExecutor(threads) as pool:
        for number in range(rounds + 1):
            for name, run in variants.items():
                start = time.perf_counter()
                list(pool.map(lambda part, run=run: run(images, part, rows), parts))
                if number:  # the first warms up
                    rates[name].append(len(rows) / (time.perf_counter() - start))
    base = np.array(next(iter(rates.values())))
    for name, values in rates.items():
        ratios = np.array(values) / base
        print(f"{threads} threads  {name:28} {np.median(values):8.0f} images/s  x{np.median(ratios):.2f}"
              f"  ({ratios.min():.2f} to {ratios.max():.2f})")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=600, help="images, repeated if there are fewer")
    parser.add_argument("--whole", action="store_true", help="whole images of one size, without resizing")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    print(packer_fast.version())
    paths = [path for path in sorted(args.folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    found = [path.read_bytes() for path in paths[: args.count]]
    images = Images([found[i % len(found)] for i in range(args.count)], args.whole)
    if args.whole:
        width, height = images.sizes[0].tolist()
        rows = np.ones((args.count, height, width, 3), np.uint8)
        variants = {"simplejpeg, buffer=row": into_rows, "packer-fast": natively(None)}
    else:
        images.make_indexes(0)
        images.make_indexes(4)
        rows = np.ones((args.count, args.size, args.size, 3), np.uint8)
        variants = {
            "simplejpeg + cv2": by_opencv,
            "no index": natively(None),
            "index of rows": natively(0),
            "index every 4": natively(4),
            "no index, fast": natively(None, filter="fast"),
            "no index, headroom 1": natively(None, headroom=1),
            "index every 4, headroom 1": natively(4, headroom=1),
            "no index, verify": natively(None, verify=True),
        }
    for threads in args.threads:
        measure(images, rows, variants, threads, args.rounds)


if __name__ == "__main__":
    main()
