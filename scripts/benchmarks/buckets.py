"""What batches of one shape cost: the first one of 10 million records; what is border in them, and what they cut off.

First batch: from an open pack to the numbers of the first 64 records, each round in a new process; its index is in
memory. The sizes of its records are those of the photos, drawn again and again. Beside it, those of a bare shuffle.

Border: photos as large as possible with a longer side of 640 px, in batches of 64, over an epoch of EPOCH records. Bare
shuffles pad each batch to its own largest width and height, in multiples of 32, or to squares. Sizes are those of 256
images of COCO, of shared/data/yolo_coco128; if not there, the four that are most common in COCO.

Cut off: what is not in the part of each photo that covers its shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from large_packs import labeled_pack

from benchmarks.common import Table, figures, in_new_process
from packer.bench.measure import Figure
from packer.images.header import read_header
from packer.samplers import PatchBuckets, ShapeBuckets, ShuffleSampler

BATCH, SIZE, STRIDE, EPOCH = 64, 640, 32, 117_266
FIRST = """
import sys, time
from packer import open_pack
from packer.samplers import BucketSampler, PatchBuckets, ShapeBuckets, ShuffleSampler
pack = open_pack(sys.argv[1])
len(pack.column("width")) + len(pack.column("height"))
started = time.perf_counter()
made = {
    "near": lambda: BucketSampler(pack, ShapeBuckets.near(1024 * 1024), 64),
    "rect": lambda: BucketSampler(pack, ShapeBuckets.rect(640), 64),
    "patches": lambda: BucketSampler(pack, PatchBuckets(), 64),
    "bare": lambda: ShuffleSampler(pack),
}[sys.argv[2]]()
next(made.rank_batches(64))
print(time.perf_counter() - started)
"""


def options(parser: Any) -> None:
    parser.add_argument("--records", type=int, default=10_000_000, help="records of the pack [%(default)s]")


def sizes_of(data: Path) -> np.ndarray:
    """Return (n, 2): widths and heights of the photos."""
    files = sorted((data / "yolo_coco128" / "images").rglob("*.jpg"))
    headers = [read_header(path.read_bytes()) for path in files]
    return np.array([(one.width, one.height) for one in headers] or [(640, 480), (480, 640), (640, 427), (640, 640)])


def border_of_shuffled(seed: int, sizes: np.ndarray) -> float:
    """Return the share of the pixels of shuffled batches that is border, from 0 to 1."""
    scaled = sizes * (SIZE / sizes.max(axis=1, keepdims=True))
    canvas = used = 0.0
    for batch in ShuffleSampler(len(sizes), seed).rank_batches(BATCH):
        wide, high = np.ceil(scaled[batch].max(axis=0) / STRIDE) * STRIDE
        canvas, used = canvas + len(batch) * wide * high, used + scaled[batch].prod(axis=1).sum()
    return 1 - used / canvas


def run(given: Any) -> None:
    photos, random = sizes_of(given.data), np.random.default_rng(0)
    drawn = photos[random.integers(0, len(photos), given.records)]
    facts = {"width": drawn[:, 0], "height": drawn[:, 1]}
    path = labeled_pack(given.home / "sizes", facts, (), 8)
    table = Table.of_figures(f"first batch of 64 of {given.records:,} records, s")
    shapes = {
        "near": ("buckets of 1024 x 1024 px", 0.5),
        "rect": ("rectangles of 640 px", 0.5),
        "patches": ("patches to 128, 256, 512 or 1,024", 0.5),
        "bare": ("bare shuffle", None),
    }
    for name, (what, goal) in shapes.items():
        (figure,) = figures(in_new_process(FIRST, path, name) for _ in range(given.rounds))
        table.figure(what, figure, goal)
    print()
    table = Table.of_figures(f"{len(photos)} sizes of COCO, in batches of {BATCH}, % of pixels")
    epochs = [photos[np.random.default_rng(seed).integers(0, len(photos), EPOCH)] for seed in range(given.rounds)]
    square, near, rect = ShapeBuckets([(SIZE, SIZE)]), ShapeBuckets.near(1024 * 1024), ShapeBuckets.rect(SIZE, STRIDE)
    patches = PatchBuckets(16, (256, 512, 1024))
    bordered = ShapeBuckets(square.shapes, "pad")
    shares = {
        "border: rectangles": [rect.report(epoch, BATCH).padding for epoch in epochs],
        "border: bare shuffle, padded to the largest of each batch": [
            border_of_shuffled(seed, epoch) for seed, epoch in enumerate(epochs)
        ],
        "border: bare shuffle, squares": [bordered.report(epoch, BATCH).padding for epoch in epochs],
        "padding: 16 px patches to 256, 512 or 1,024": [patches.report(epoch, BATCH).padding for epoch in epochs],
        "padding: bare shuffle, patches to 1,024": [
            PatchBuckets(16, (1024,)).report(epoch, BATCH).padding for epoch in epochs
        ],
        "cut off: buckets of 1024 x 1024 px": [near.report(epoch, BATCH).cut for epoch in epochs],
        "cut off: bare shuffle, squares": [square.report(epoch, BATCH).cut for epoch in epochs],
    }
    for what, of_epochs in shares.items():
        table.figure(what, Figure(tuple(100 * share for share in of_epochs)))
