"""The same images and boxes in the formats of several tools give packs with equal labels."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layouts as draw
import numpy as np
import pytest
from drawn import image_file

from packer import BuildOptions, build_pack
from packer.format.pack import open_pack

IMAGES = int(os.environ.get("PACKER_SAME_IMAGES", "100"))
"""Drawn in each format; 5,000 take minutes."""
FORMATS: dict[str, Any] = {
    "voc": lambda: draw.voc("images/", "Annotations/"),
    "yolo": lambda: draw.yolo("images/", "labels/") | {"classes.txt": "\n".join(draw.CLASSES)},
    "list": lambda: {"boxes.txt": "".join(
        " ".join(map(str, [f"images/{name}.jpg", *(v for c, *box in boxes for v in (*box, c))])) + "\n"
        for name, boxes in draw.BOXES.items())},
    "cvat": lambda: {"annotations.xml": draw.cvat()},
    "labelme": lambda: {f"{name}.json": draw.labelme(name, f"images/{name}.jpg") for name in draw.BOXES},
    "createml": lambda: {"_annotations.createml.json": draw.createml()},
    "vott": lambda: {"animals-export.json": draw.vott()},
    "coco": lambda: draw.coco("annotations/instances_train.json", "images/"),
}  # fmt: skip


def draw_sets(root: Path, count: int) -> None:
    """One folder for each format, of `count` images with 0 to 4 boxes of whole pixels."""
    numbers = random.Random(7)
    draw.BOXES.clear()
    for i in range(count):
        boxes = []
        for _ in range(numbers.randrange(5)):
            x, y = numbers.randrange(20), numbers.randrange(15)
            size = numbers.randrange(2, 20), numbers.randrange(2, 15)
            boxes.append((numbers.choice(draw.CLASSES), x, y, x + size[0], y + size[1]))
        draw.BOXES[f"img_{i:05d}"] = boxes
    photo = image_file(1, draw.WIDTH, draw.HEIGHT)
    root.mkdir(exist_ok=True)
    (root / "classes").write_text("\n".join(draw.CLASSES))
    for name, make in FORMATS.items():
        files = {**draw.photos("images/"), **make()}
        draw.write(root / name, {path: photo if text == draw.PHOTO else text for path, text in files.items()})


@pytest.fixture
def sets(tmp_path: Path) -> Iterator[Path]:
    before = dict(draw.BOXES)
    draw_sets(tmp_path, IMAGES)
    yield tmp_path
    draw.BOXES.clear()
    draw.BOXES.update(before)


def labels_of(root: Path, name: str) -> list[Any]:
    """Path, boxes and classes of each image of the pack of one format."""
    spec = f"list:{root}/list/boxes.txt" if name == "list" else name
    columns = ("path (xmin ymin xmax ymax class)*",) if name == "list" else ()
    out = root / f"{name}.lmdb"
    options = {"labels": (spec,), "columns": columns, "classes": str(root / "classes"), "encode": "copy", "workers": 1}
    build_pack(BuildOptions(str(root / name), str(out), **options))
    pack = open_pack(str(out))
    found = []
    for i in range(len(pack)):
        annotation = pack.annotation(i)
        boxes = annotation.boxes
        if name == "yolo" and len(boxes):
            # its fractions have nine digits here: of 40 pixels, that is 4e-8; float32 has no more than 2e-6 at 20
            assert np.abs(boxes - np.rint(boxes)).max() < 1e-6
            boxes = np.rint(boxes)
        found.append((pack.paths[i], boxes.tolist(), annotation.box_labels.tolist()))
    return found


def test_packs_have_equal_labels(sets: Path) -> None:
    expected = [
        (f"images/{name}.jpg".encode(), [list(map(float, box)) for _, *box in boxes],
         [draw.CLASSES.index(cls) for cls, *_ in boxes])
        for name, boxes in draw.BOXES.items()
    ]  # fmt: skip
    for name in FORMATS:
        assert labels_of(sets, name) == expected, name
