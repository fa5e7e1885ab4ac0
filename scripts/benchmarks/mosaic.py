"""How fast mosaics of four photos are made: `PackedLoader` against Ultralytics' own dataset, transforms and loader.

Both turn 640x480 JPEGs with seven boxes each into batches of 16 mosaics of 640 px, uint8, moved, scaled and flipped by
Ultralytics' defaults, without changes of color; by two threads, and by two worker processes. Ultralytics reads files,
and draws the other images of a mosaic from those that a worker has decoded last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Table, build, images
from benchmarks.loader import THREADS, drain, records
from packer import BuildOptions, Mosaic, PackedLoader, RandomAffine, build_pack
from packer.images import decoders

SIZE, BATCH, BOXES = 640, 16, 7
GOAL = 4


def write_set(files: list[bytes], root: Path) -> None:
    """Write a YOLO folder of these JPEGs."""
    numbers = np.random.default_rng(0)
    for number, data in enumerate(files):
        image, label = root / "images" / f"{number:05d}.jpg", root / "labels" / f"{number:05d}.txt"
        for path in (image, label):
            path.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(data)
        boxes = np.concatenate([numbers.uniform(0.3, 0.7, (BOXES, 2)), numbers.uniform(0.05, 0.5, (BOXES, 2))], axis=1)
        label.write_text(
            "".join(f"{i % 3} {' '.join(f'{value:.6f}' for value in box)}\n" for i, box in enumerate(boxes))
        )
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images\nval: images\nnames: [ant, bee, cat]\n")


def theirs(root: Path) -> Callable[[], None]:
    """Return an epoch of Ultralytics' loader: YOLODataset and v8_transforms."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data.build import build_dataloader, build_yolo_dataset
    from ultralytics.data.utils import check_det_dataset

    colors: dict[str, Any] = {"hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "augmentations": []}
    given = get_cfg(overrides={"imgsz": SIZE, "mosaic": 1.0, "task": "detect", **colors})
    data = check_det_dataset(str(root / "data.yaml"))
    dataset = build_yolo_dataset(given, data["train"], BATCH, data)
    loader = build_dataloader(dataset, BATCH, THREADS, pin_memory=False, device="cpu")

    def epoch() -> Iterator[Any]:
        for batch in loader:
            assert batch["img"].shape[1:] == (3, SIZE, SIZE)
            yield batch

    return lambda: drain(epoch())


def options(parser: Any) -> None:
    parser.add_argument("--photos", type=int, default=200, help="different photos among the images [%(default)s]")
    parser.add_argument("--images", type=int, default=800, help="of an epoch [%(default)s]")


def run(given: Any) -> None:
    if find_spec("ultralytics") is None:
        sys.exit("ultralytics is not installed: pip install ultralytics")
    os.environ.update(
        YOLO_OFFLINE="true", YOLO_CONFIG_DIR=str(given.home), YOLO_VERBOSE="false", YOLO_AUTOINSTALL="false"
    )
    photos, root = given.home / "photos", given.home / "set"
    images("photos", given.data, photos, given.photos)
    files = records(build(photos, given.home / "pack", resize=f"{SIZE}x{SIZE * 3 // 4}", fit="crop", encode="jpeg"))
    write_set([files[i % len(files)] for i in range(given.images)], root)
    affine = RandomAffine(0, translate=(0.1, 0.1), scale=(0.5, 1.5))
    shown: dict[str, Any] = {"crop": Mosaic(SIZE), "affine": affine, "min_visible": 0.1, "flip": True}
    native = ("JPEGs, native decoder",) if decoders.native_for_auto() else ()
    works = {}
    for name in ("raw images", "JPEGs, simplejpeg", *native):
        out = given.home / f"{name}.lmdb"
        encode = "raw" if name == "raw images" else "copy"
        build_pack(BuildOptions(str(root), str(out), labels=("yolo",), encode=encode))
        decoder = "fast" if name in native else "simplejpeg"
        loader = PackedLoader(out, BATCH, shuffle=True, threads=THREADS, decoder=decoder, **shown)
        works[f"mosaics of 4 images of 640x480: {name}"] = partial(drain, loader)
    table = Table("work", "goal", "ratio", "packer, images/s", "Ultralytics, images/s")
    table.against(GOAL, given.images, theirs(root), works, given.rounds)
