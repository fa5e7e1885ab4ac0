"""A small set with labels of COCO, and predictions of it that are known: the labels themselves, or perturbed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from drawn_masks import picture, write_files

from packer import BuildOptions, build_pack

NAMES = {3: "cat", 7: "dog", 90: "bird"}
SIZES = ((64, 48), (40, 80), (50, 50), (96, 32), (30, 30), (60, 45))
Rows = list[dict[str, Any]]


def labels_of(crowds: bool = False, seed: int = 0) -> dict[str, Any]:
    """The labels of SIZES images, whose ids are not their order; the last one has no object."""
    rng, annotations = np.random.default_rng(seed), []
    for number, (width, height) in enumerate(SIZES[:-1]):
        for _ in range(3 + number):
            w, h = rng.uniform(6, width / 2), rng.uniform(6, height / 2)
            box = [round(float(v), 2) for v in (rng.uniform(0, width - w), rng.uniform(0, height - h), w, h)]
            annotations.append({
                "id": len(annotations) + 1, "image_id": 100 - number, "category_id": int(rng.choice([*NAMES])),
                "bbox": box, "area": box[2] * box[3], "iscrowd": int(crowds and rng.random() < 0.2),
            })  # fmt: skip
    images = [{"id": 100 - n, "file_name": f"{n:06d}.png", "width": w, "height": h} for n, (w, h) in enumerate(SIZES)]
    categories = [{"id": number, "name": name} for number, name in NAMES.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def build_set(folder: Path, labels: dict[str, Any] | None = None, **options: Any) -> Path:
    """The pack of these labels."""
    labels = labels or labels_of()
    rng = np.random.default_rng(1)
    files = {
        one["file_name"]: picture(rng.integers(0, 256, (one["height"], one["width"], 3), np.uint8))
        for one in labels["images"]
    }
    source = write_files(folder / "src", files)
    (folder / "instances.json").write_text(json.dumps(labels))
    given = {"labels": (f"coco:{folder / 'instances.json'}",), "workers": 1, **options}
    return Path(build_pack(BuildOptions(str(source), out=str(folder / "set.lmdb"), **given)).path)


def as_results(labels: dict[str, Any]) -> Rows:
    """The labels as results of COCO, each with its own score."""
    rng = np.random.default_rng(5)
    return [
        {name: one[name] for name in ("image_id", "category_id", "bbox")} | {"score": round(float(rng.random()), 4)}
        for one in labels["annotations"]
    ]


def perturbed(labels: dict[str, Any], seed: int = 0) -> Rows:
    """Results that miss some objects, move and confuse others, and invent some."""
    rng, found = np.random.default_rng(seed), list[dict[str, Any]]()
    sizes = {one["id"]: (one["width"], one["height"]) for one in labels["images"]}
    for one in labels["annotations"]:
        if rng.random() < 0.15:
            continue
        shift = float(rng.choice([0.03, 0.1, 0.3]))
        x, y, w, h = np.array(one["bbox"]) * (1 + rng.normal(0, shift, 4) * [0.3, 0.3, 1, 1])
        width, height = sizes[one["image_id"]]
        x, y = float(np.clip(x, 0, width - 4)), float(np.clip(y, 0, height - 4))
        box = [x, y, float(np.clip(w, 3, width - x)), float(np.clip(h, 3, height - y))]
        label = one["category_id"] if rng.random() < 0.8 else int(rng.choice([*NAMES]))
        found.append(_result(one["image_id"], label, box, rng.beta(4, 2)))
    for number, (width, height) in sizes.items():
        for _ in range(rng.poisson(1.5)):
            w, h = rng.uniform(4, width / 2), rng.uniform(4, height / 2)
            box = [rng.uniform(0, width - w), rng.uniform(0, height - h), w, h]
            found.append(_result(number, int(rng.choice([*NAMES])), box, rng.beta(2, 4)))
    return found


def _result(image: int, label: int, box: Any, score: float) -> dict[str, Any]:
    numbers = [round(float(value), 3) for value in box]
    return {"image_id": image, "category_id": label, "bbox": numbers, "score": round(float(score), 5)}


def write_results(path: Path, rows: Any) -> Path:
    """The file of results."""
    path.write_text(json.dumps(rows))
    return path
