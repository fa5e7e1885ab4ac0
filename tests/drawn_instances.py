"""Draws images with instances as COCO has them: several parts, holes, crowds, tiny ones, and one without a mask.

pycocotools, with which packer never reads masks, says what the pixels of each are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw
from numpy.typing import NDArray

coco_mask = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
coco_api = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")

NAMES = ("cell", "dot", "heap")
LABELS = "annotations/instances.json"
Masks = NDArray[np.uint8]


def _blob(random: np.random.Generator, x: float, y: float, radius: float) -> list[float]:
    """A polygon with dents around a point, x, y, x, y, ..."""
    angles = np.sort(random.uniform(0, 2 * np.pi, 9))
    radii = radius * random.uniform(0.4, 1, 9)
    points = np.stack([x + radii * np.cos(angles), y + radii * np.sin(angles)], axis=1)
    return [round(float(value), 2) for value in points.ravel()]


def _ring(width: int, height: int, x: float, y: float, radius: float) -> Masks:
    """A disk with a hole."""
    rows, columns = np.mgrid[:height, :width]
    distance = np.hypot(columns - x, rows - y)
    return ((distance < radius) & (distance > radius / 2)).astype(np.uint8)


def segmentations(seed: int, width: int, height: int) -> list[Any]:
    """What the objects of an image look like, as COCO writes it; None for one of which only the box is known."""
    random = np.random.default_rng(seed)
    x, y = random.uniform(12, width - 12, 9), random.uniform(10, height - 10, 9)
    ring = _ring(width, height, x[0], y[0], 9)
    crowd = (random.random((height, width)) < 0.1).astype(np.uint8)
    point = np.zeros((height, width), np.uint8)
    point[int(y[1]), int(x[1])] = 1
    compressed = [coco_mask.encode(np.asfortranarray(mask)) for mask in (ring, point)]
    runs = np.diff(np.flatnonzero(np.diff(crowd.T.ravel(), prepend=1 - crowd[0, 0], append=2)))
    counts = [*([0] if crowd[0, 0] else []), *runs.tolist()]
    return [
        [_blob(random, x[2], y[2], 9)],
        [_blob(random, x[3], y[3], 6), _blob(random, x[3] + 3, y[3], 6), _blob(random, x[4], y[4], 4)],
        *({"size": [height, width], "counts": one["counts"].decode("ascii")} for one in compressed),
        {"size": [height, width], "counts": counts},
        [_blob(random, x[5], y[5], 1.5)],
        None,
    ]


def draw_instances(root: Path, count: int = 5, equal: bool = False, **options: Any) -> Path:
    """JPEGs and a COCO file; `options` are Pillow's. `equal`: the images have one size."""
    images, objects = [], []
    for i in range(count):
        width, height = (60, 48) if equal else (60 + 7 * i, 48 + 3 * (i % 3))
        draw(root / f"images/{i:03d}.jpg", i, width, height, **options)
        images.append({"id": 10 + i, "file_name": f"{i:03d}.jpg", "width": width, "height": height})
        for place, shape in enumerate(segmentations(i, width, height)):
            mask = np.zeros((height, width), np.uint8) if shape is None else decoded(shape, height, width)
            box = coco_mask.toBbox(coco_mask.encode(np.asfortranarray(mask))).tolist()
            objects.append(
                {
                    "id": len(objects) + 1, "image_id": 10 + i, "category_id": 1 + place % 3, "area": int(mask.sum()),
                    "iscrowd": int(isinstance(shape, dict) and isinstance(shape["counts"], list)),
                    "bbox": box if box[2] and box[3] else [3.0, 4.0, 5.0, 6.0],
                    **({} if shape is None else {"segmentation": shape}),
                }
            )  # fmt: skip
    categories = [{"id": 1 + place, "name": name} for place, name in enumerate(NAMES)]
    (root / "annotations").mkdir(exist_ok=True)
    (root / LABELS).write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return root


def decoded(shape: Any, height: int, width: int) -> Masks:
    """The pixels of a segmentation, uint8 (height, width), by pycocotools: what `COCO.annToMask` does."""
    coco = coco_api.COCO()
    coco.imgs = {0: {"height": height, "width": width}}
    found: Masks = coco.annToMask({"image_id": 0, "segmentation": shape})
    return found


def drawn_masks(root: Path) -> dict[str, Masks]:
    """The masks of each image by its name, uint8 (k, height, width), by pycocotools."""
    content = json.loads((root / LABELS).read_text())
    found = {}
    for image in content["images"]:
        height, width = image["height"], image["width"]
        own = [one.get("segmentation") for one in content["annotations"] if one["image_id"] == image["id"]]
        blank = np.zeros((height, width), np.uint8)
        found[image["file_name"]] = np.stack([blank if one is None else decoded(one, height, width) for one in own])
    return found


def read_masks(pack: Any, i: int) -> Masks:
    """The masks in the index of a pack, uint8 (k, height, width), by pycocotools."""
    height, width, _ = pack.reader.shape_of(i)
    rles = [{"size": [height, width], "counts": one.tobytes() or b"0"} for one in pack.annotation(i).rles]
    blank = np.zeros((height, width), np.uint8)
    return np.stack([coco_mask.decode(one) if one["counts"] != b"0" else blank for one in rles])
