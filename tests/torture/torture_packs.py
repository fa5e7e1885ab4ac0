"""Small packs for the harnesses of the read side: 97 drawn images of three classes, of several shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from packer import BuildOptions, build_pack

RECORDS = 97
CLASSES = ("ant", "bee", "cat")
SIDE = 16


def draw_source(root: Path, records: int = RECORDS) -> Path:
    """A folder of classes with `records` images of noise, no two alike."""
    random = np.random.default_rng(0)
    for number in range(records):
        folder = root / CLASSES[number % len(CLASSES)]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    return root


def build(home: Path, container: str = "lmdb", encode: str = "raw") -> Path:
    """A pack of that source in the folder `home`, built once."""
    out = home / f"{encode}.{container}"
    if not (home / "source").is_dir():
        draw_source(home / "source")
    if not out.exists():
        options = BuildOptions(str(home / "source"), str(out), container, workers=1, encode=encode, shard_bytes=20_000)
        build_pack(options)
    return out
