"""Tiles and merged predictions against SAHI, whose windows, boxes and merging they are to equal."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer
from packer import BuildOptions, build_pack
from packer.model.tiles import Tiling

slicing = pytest.importorskip("sahi.slicing")
combine = pytest.importorskip("sahi.postprocess.combine")

SIZES = ((320, 240), (200, 310), (90, 70), (256, 256))
STAR = ((0, 0), (10, 4), (20, 0), (16, 10), (20, 20), (10, 16), (0, 20), (4, 10))


def draw_coco(root: Path, outlines: bool) -> dict[str, Any]:
    """Images, and boxes or stars and pairs of stars, as COCO."""
    import cv2

    rng, images, objects = np.random.default_rng(3), [], []
    (root / "images").mkdir(parents=True)
    for i, (width, height) in enumerate(SIZES):
        cv2.imwrite(str(root / "images" / f"{i}.png"), rng.integers(0, 256, (height, width, 3), np.uint8))
        images.append({"id": i, "file_name": f"{i}.png", "width": width, "height": height})
        for _ in range(30):
            side, star = rng.uniform(4, 60), np.array(STAR) / 20
            x, y = rng.uniform(0, (width - side, height - side))
            rings = [(star * side + (x, y)).round(2)] if outlines else []
            if outlines and x + 2 * side + 5 < width and rng.random() < 0.5:
                rings.append(rings[0] + (side + 5, 0))
            points = np.concatenate(rings) if rings else np.array([(x, y), (x + side, y + side)]).round(2)
            low, high = points.min(axis=0), points.max(axis=0)
            box = [*low.tolist(), *(high - low).tolist()]
            one = {"id": len(objects) + 1, "image_id": i, "category_id": int(rng.integers(1, 3)), "bbox": box}
            objects.append({**one, "iscrowd": 0, "area": 1, "segmentation": [ring.ravel().tolist() for ring in rings]})
    categories = [{"id": number, "name": name} for number, name in ((1, "ant"), (2, "bee"))]
    content = {"images": images, "annotations": objects, "categories": categories}
    (root / "coco.json").write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("outlines", [False, True], ids=["boxes", "polygons"])
@pytest.mark.parametrize(
    ("size", "overlap", "visible"), [((64, 64), 0.2, 0.1), ((100, 50), 0.5, 0.4), ((400, 80), 0, 0)]
)
def test_boxes_are_those_of_slice_coco(
    size: tuple[int, int], overlap: float, visible: float, outlines: bool, tmp_path: Path
) -> None:
    draw_coco(tmp_path / "src", outlines)
    (width, height), file = size, str(tmp_path / "src" / "coco.json")
    options = {"tile": f"{width}x{height}", "overlap": overlap, "min_visible": visible, "workers": 1}
    build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p"), labels=(f"coco:{file}",), **options))
    pack = packer.open_pack(tmp_path / "p")
    sliced, _ = slicing.slice_coco(
        file, str(tmp_path / "src" / "images"), "", None, False, height, width, overlap, overlap, visible
    )
    theirs: dict[int, list[list[float]]] = {image["id"]: [] for image in sliced["images"]}
    for one in sliced["annotations"]:
        x, y, w, h = one["bbox"]
        theirs[one["image_id"]].append([one["category_id"] - 1, x, y, x + w, y + h])
    assert len(pack) == len(sliced["images"])
    for i, image in enumerate(sliced["images"]):
        corners = [int(number) for number in Path(image["file_name"]).stem.split("_")[-4:]]
        x, y, w, h = pack.window(i)[:4].tolist()
        assert corners == [x, y, x + w, y + h]
        annotation = pack.annotation(i)
        mine = np.column_stack([annotation.box_labels, annotation.boxes]).reshape(-1, 5).tolist()
        assert np.allclose(sorted(mine), sorted(theirs[image["id"]]), atol=1e-3)


def predictions(windows: Any) -> list[dict[str, Any]]:
    """Objects found on each tile, some of them twice, a little beside one another."""
    rng = np.random.default_rng(1)
    corners, sides, labels = rng.uniform(0, 450, (150, 2)), rng.uniform(10, 120, (150, 2)), rng.integers(0, 3, 150)
    found = []
    for x, y, width, height, *_ in windows.tolist():
        boxes = np.concatenate([corners, corners + sides], axis=1) - [x, y, x, y] + rng.normal(0, 0.5, (150, 4))
        boxes = np.clip(boxes, 0, [width, height, width, height]).astype(np.float32)
        there = ((boxes[:, 2:] - boxes[:, :2]) > 3).all(axis=1)
        scores = rng.uniform(0.1, 1, there.sum()).round(2).astype(np.float32)
        found.append({"boxes": boxes[there], "scores": scores, "labels": labels[there]})
    return found


@pytest.mark.parametrize("class_agnostic", [False, True])
@pytest.mark.parametrize(("method", "theirs"), [("merge", "GreedyNMMPostprocess"), ("nms", "NMSPostprocess")])
def test_merging_is_that_of_sahi(method: str, theirs: str, class_agnostic: bool) -> None:
    from sahi.postprocess.backends import set_postprocess_backend
    from sahi.prediction import ObjectPrediction

    set_postprocess_backend("numpy")
    windows = np.array([[*one, 500, 400] for one in Tiling(256, 200, 0.3).windows(500, 400).tolist()])
    found = predictions(windows)
    moved = [
        ObjectPrediction(
            bbox=box.tolist(),
            score=float(score),
            category_id=int(label),
            shift_amount=window[:2],
            full_shape=[400, 500],
        ).get_shifted_object_prediction()
        for window, tile in zip(windows.tolist(), found, strict=True)
        for box, score, label in zip(tile["boxes"], tile["scores"], tile["labels"], strict=True)
    ]
    for metric, threshold in itertools.product(("ios", "iou"), (0.3, 0.5, 0.8)):
        merging = getattr(combine, theirs)(threshold, metric.upper(), class_agnostic)
        expected = [(one.score.value, one.category.id, *one.bbox.to_xyxy()) for one in merging(list(moved))]
        how = {"method": method, "metric": metric, "threshold": threshold, "class_agnostic": class_agnostic}
        mine = packer.merge_tiles(found, windows, images=["a"] * len(windows), **how)["a"]
        rows = np.column_stack([mine["scores"], mine["labels"], mine["boxes"]])
        assert len(rows) == len(expected) < len(moved)
        assert np.allclose(sorted(rows.tolist()), sorted(expected), atol=1e-3)
