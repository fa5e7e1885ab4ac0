"""COCO as pycocotools reads it: the packs have its boxes, classes, masks, crowds and keypoints."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from running import good

from packer.format.pack import open_pack
from packer.sources.coco_objects import rle_text

coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is optional, and not installed here")
masks = pytest.importorskip("pycocotools.mask", reason="pycocotools is optional, and not installed here")

CATEGORIES = [{"id": key, "name": f"c{key}", "supercategory": "s"} for key in (90, 1, 13)]
POINTS = {"keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2]]}
WIDTH, HEIGHT = 40, 30


def drawn_set(dice: random.Random, names: list[str], first: int, people: bool) -> dict[str, Any]:
    """Images with up to four objects: outlines of one or two parts, packed and plain run lengths, crowds."""
    images = [{"id": first + 7 * i, "file_name": n, "width": WIDTH, "height": HEIGHT} for i, n in enumerate(names)]
    things = []
    for image in images:
        for _ in range(dice.randrange(5)):
            x, y = dice.randrange(20), dice.randrange(15)
            w, h = dice.randrange(2, 20), dice.randrange(2, 15)
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            mask = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
            mask[y : y + h, x : x + w] = np.random.default_rng(x).random((h, w)) < 0.7
            counts = [0]
            for pixel in mask.T.ravel().tolist():
                if pixel != (len(counts) - 1) % 2:
                    counts.append(0)
                counts[-1] += 1
            kind = dice.randrange(4)
            shapes: list[Any] = [
                [corners], [corners[:6], [v + 0.25 for v in corners[2:]]],
                {"size": [HEIGHT, WIDTH], "counts": counts}, {"size": [HEIGHT, WIDTH], "counts": rle_text(counts)},
            ]  # fmt: skip
            thing = {
                "id": first * 1000 + len(things), "image_id": image["id"], "iscrowd": int(kind == 2), "area": w * h / 3,
                "category_id": dice.choice(CATEGORIES)["id"], "bbox": [x, y, w, h], "segmentation": shapes[kind],
            }  # fmt: skip
            if people:
                points = [[x, y, 2], [x + 1.5, y + 1, 1], [0, 0, 0]]
                thing |= {"category_id": 1, "keypoints": [v for point in points for v in point], "num_keypoints": 2}
            things.append(thing)
    categories = [{"id": 1, "name": "person", **POINTS}] if people else CATEGORIES
    dice.shuffle(things)
    return {"info": {}, "licenses": [], "images": images, "annotations": things, "categories": categories}


LAYOUTS = {
    "cocodataset.org": [("annotations/instances_train2017.json", "train2017/"),
                        ("annotations/instances_val2017.json", "val2017/")],
    "Roboflow": [("train/_annotations.coco.json", "train/"), ("valid/_annotations.coco.json", "valid/")],
    "keypoints": [("annotations/person_keypoints_val2017.json", "val2017/")],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pack_has_what_pycocotools_reads(tmp_path: Path, layout: str) -> None:
    dice = random.Random(layout)
    files = {}
    for part, (file, folder) in enumerate(LAYOUTS[layout]):
        names = [f"{i:012d}.jpg" for i in dice.sample(range(1000), 12)]
        content = drawn_set(dice, names, 1 + 500 * part, layout == "keypoints")
        (tmp_path / "set" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / file).write_text(json.dumps(content))
        (tmp_path / "set" / folder).mkdir(parents=True, exist_ok=True)
        for i, name in enumerate(names):
            (tmp_path / "set" / folder / name).write_bytes(image_file(i, WIDTH, HEIGHT))
        files[folder] = coco.COCO(str(tmp_path / "set" / file))
    good("build", tmp_path / "set", "--encode", "copy", "--split", "all", "--workers", 1, "-o", tmp_path / "pack")
    pack = open_pack(str(tmp_path / "pack"))
    assert len(pack) == 12 * len(files)
    for i, path in enumerate(pack.paths):
        folder, _, name = path.rpartition("/")
        read = files[folder + "/"]
        (image,) = [one for one in read.imgs.values() if one["file_name"] == name]
        theirs, ours = read.loadAnns(read.getAnnIds(image["id"])), pack.annotation(i)
        assert ours.extras["image_id"] == image["id"]
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (one["bbox"] for one in theirs)]
        assert ours.boxes.tolist() == boxes
        names = [read.cats[one["category_id"]]["name"] for one in theirs]
        assert [pack.classes[label] for label in ours.box_labels] == names
        for field in ("iscrowd", "area", "category_id"):
            assert list(ours.box_fields[field]) == [one[field] for one in theirs]
        for k, one in enumerate(theirs):
            rle = ours.box_fields["rle"][k]
            if isinstance(one["segmentation"], dict):
                assert rle is not None and (masks.decode(rle) == read.annToMask(one)).all()
            else:
                assert rle is None
                corners = {(x, y) for part in one["segmentation"] for x, y in zip(part[::2], part[1::2], strict=True)}
                assert set(map(tuple, ours.polygons[k].tolist())) == corners
            if layout == "keypoints":
                x, y, v = np.array(one["keypoints"], float).reshape(-1, 3).T
                expected = np.stack([x + 0.5 * (v > 0), y + 0.5 * (v > 0), v], axis=1)
                assert (ours.keypoints[k] == expected).all()
    if layout == "keypoints":
        assert pack.manifest.flip_index == (0, 2, 1)
