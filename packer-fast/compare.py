"""Compares regions of JPEGs, and whole ones, with those of simplejpeg and OpenCV, with and without an index.

usage: PYTHONPATH=tests PACKER_FAST_LIBRARY=... python compare.py FOLDER... [--pairs 10000] [--seed 0]

For a library that was built with AddressSanitizer, preload its runtime.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import numpy as np
from helpers import decode, decode_whole, index_of, psnr, resize

from packer_fast import Error

FILTERS = ("area", "bilinear", "fast")


class Comparison:
    """Counts what became of the images, and collects how near the regions are."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.near: list[float] = []
        self.differences: list[float] = []

    def whole(self, path: Path, jpeg: bytes) -> np.ndarray | None:
        """Compare a whole image; return its pixels if both decode it."""
        try:
            expected = decode_whole(jpeg)
        except (ValueError, OSError, SyntaxError):
            expected = None
        size = (1, 1) if expected is None else expected.shape[1::-1]
        rows, errors = decode([jpeg], [(0, 0, *size)], size[::-1], sizes=[size])
        if errors != [Error.OK]:
            self.counts[f"whole images left to others: {Error(errors[0]).name}"] += 1
            return None
        if expected is None:
            raise AssertionError(f"{path} is decoded, but simplejpeg refuses it")
        if not np.array_equal(rows[0], expected):
            raise AssertionError(f"{path} has other pixels than simplejpeg gives")
        self.counts["whole images, bit by bit the same"] += 1
        return expected

    def region(self, path: Path, jpeg: bytes, expected: np.ndarray) -> None:
        """Compare a random region, resized to a random size by a random filter."""
        height, width = expected.shape[:2]
        w, h = self.random.randint(1, width), self.random.randint(1, height)
        x, y = self.random.randint(0, width - w), self.random.randint(0, height - h)
        region = x, y, w, h
        out = tuple(self.random.randint(-(-side // 30), 256 + side // 30) for side in (h, w))
        how = {"filter": self.random.choice(FILTERS), "headroom": 0}
        rows, errors = decode([jpeg], [region], out, sizes=[(width, height)], **how)
        if errors != [Error.OK]:
            raise AssertionError(f"{path}: {region} to {out} by {how} is refused: {Error(errors[0]).name}")
        part = resize(np.ascontiguousarray(expected[y : y + h, x : x + w]), out, str(how["filter"]))
        self.near.append(psnr(rows[0], part))
        self.differences.append(float(np.abs(rows[0].astype(float) - part).mean()))
        indexes = [index_of(jpeg, self.random.choice((0, 1, 4, 9)))]
        for more in ({"indexes": indexes}, {"verify": True}):
            again, errors = decode([jpeg], [region], out, sizes=[(width, height)], **how, **more)
            if errors != [Error.OK] or not np.array_equal(again, rows):
                raise AssertionError(f"{path}: {region} to {out} by {how} is another with {list(more)}")
        self.counts["regions, the same with an index and with verify"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=10_000, help="of an image and a region [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    paths = [p for f in given.folders for p in sorted(f.rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg")]
    comparison = Comparison(given.seed)
    comparison.random.shuffle(paths)
    each = -(-given.pairs // len(paths))
    for path in paths:
        jpeg = path.read_bytes()
        if len(jpeg) > 1 << 22:
            comparison.counts["files of more than 4 MiB, left out"] += 1
            continue
        expected = comparison.whole(path, jpeg)
        for _ in range(each if expected is not None else 0):
            comparison.region(path, jpeg, expected)
    for text, count in sorted(comparison.counts.items()):
        print(f"{count:7,} {text}")
    near, differences = np.array(comparison.near), np.array(comparison.differences)
    print(f"regions: median {np.median(near):.1f} dB, {np.mean(near >= 52):.1%} at 52 dB or more, 1 % below "
          f"{np.percentile(near, 1):.1f}; mean difference {differences.mean():.3f} of 255")  # fmt: skip


if __name__ == "__main__":
    main()
