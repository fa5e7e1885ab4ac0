"""Ignored regions (iscrowd, difficult, ignore) are kept, dropped or flagged, with all that belongs to their boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packs import noise

from packer import CenterCrop, PackedDataset, PackedLoader, PackWriter, open_pack
from packer.errors import UsageError
from packer.stats import pack_stats
from packer.view.export import sheet_page
from packer.view.facts import tile_facts

BOXES = [[1, 1, 9, 9], [2, 2, 14, 12], [10, 4, 20, 16]]
FLAGS: list[dict[str, tuple[int, ...]]] = [
    {"iscrowd": (0, 1, 0)}, {"difficult": (1, 0, 0), "ignore": (0, 0, 1)}, {}, {"ignore": (1, 1, 1)},
]  # fmt: skip
IGNORED = [[False, True, False], [True, False, True], [False] * 3, [True] * 3]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ignored") / "a.lmdb"
    with PackWriter(path, classes=["cat", "dog"]) as writer:
        for i, flags in enumerate(FLAGS):
            polygons = [[[x1, y1], [x2, y1], [x2, y2]] for x1, y1, x2, y2 in BOXES]
            fields = {**flags, "number": (0, 1, 2)}
            writer.write(
                noise(i, 18, 22), boxes=BOXES, box_labels=[0, 1, 0], polygons=polygons, box_fields=fields
            )  # fmt: skip
    return path


def check(targets: list[dict[str, Any]], how: str, crop: bool = False) -> None:
    plain = dict(zip(range(4), IGNORED, strict=True))
    for target in targets:
        numbers = [n for n in range(3) if how != "drop" or not plain[target["image_id"]][n]]
        assert target["number"] == numbers and target["labels"].tolist() == [(0, 1, 0)[n] for n in numbers]
        assert len(target["boxes"]) == len(target["polygons"]) == len(numbers)
        if not crop:
            assert target["boxes"].tolist() == [BOXES[n] for n in numbers]
        assert ("ignored" in target) == (how == "flag")
        if how == "flag":
            assert target["ignored"].dtype == torch.bool and target["ignored"].tolist() == plain[target["image_id"]]


@pytest.mark.parametrize("how", ["keep", "drop", "flag"])
def test_of_samples_and_batches(pack: Path, how: str) -> None:
    data = PackedDataset(pack, ignored=how)
    check([data[i][1] for i in range(4)], how)
    check([target for _, target in data.__getitems__([3, 0, 1, 2])], how)
    check(list(data.targets), how)
    for given, options in ((pack, {"ignored": how}), (data, {}), (PackedDataset(pack), {"ignored": how})):
        for crop in (None, CenterCrop(18)):
            loader = PackedLoader(given, 3, crop=crop, shuffle=True, seed=1, **options)
            check([target for _, targets in loader for target in targets], how, crop is not None)
    padded = [targets for _, targets in PackedLoader(pack, 4, ignored=how, collate="padded")]
    assert int(padded[0]["mask"].sum()) == (12 - 6 if how == "drop" else 12)


def test_of_annotations(pack: Path) -> None:
    assert [open_pack(pack).annotation(i).ignored.tolist() for i in range(4)] == IGNORED


def test_what_cannot_be_meant(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='ignored: must be "keep" or "drop" or "flag", got True'):
        PackedDataset(pack, ignored=True)  # type: ignore[arg-type]
    with PackWriter(tmp_path / "b.lmdb", classes=["cat"]) as writer:
        writer.write(np.zeros((4, 4, 3), np.uint8), label=0)
    for make in (PackedDataset, lambda path, **options: PackedLoader(path, 1, **options)):
        with pytest.raises(UsageError, match="ignored: is for boxes, but"):
            make(tmp_path / "b.lmdb", ignored="drop")


@pytest.mark.parametrize("how", ["keep", "drop"])
def test_masks_go_with_their_boxes(tmp_path: Path, how: str) -> None:
    pytest.importorskip("pycocotools.mask", reason="needs pycocotools (packer[coco])")
    masks = np.zeros((3, 18, 22), np.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, BOXES, strict=True):
        mask[y1:y2, x1:x2] = 1
    with PackWriter(tmp_path / "a.lmdb", classes=["cat", "dog"]) as writer:
        for i, flags in enumerate(FLAGS):
            writer.write(noise(i, 18, 22), boxes=BOXES, box_labels=[0, 1, 0], masks=masks, box_fields=flags)
    for ignored, (_, target) in zip(IGNORED, PackedDataset(tmp_path / "a.lmdb", ignored=how), strict=True):
        left = masks if how == "keep" else masks[~np.array(ignored)]
        np.testing.assert_array_equal(target["masks"].numpy(), left)


def test_stats_count_them_and_view_draws_them_dashed(pack: Path) -> None:
    boxes = pack_stats(pack, pixels=False).boxes
    assert boxes is not None and (boxes.boxes, boxes.ignored) == (12, 6)
    opened = open_pack(pack)
    assert [tile_facts(opened, i).get("ignored", [False] * 3) for i in range(4)] == IGNORED
    assert "".join(sheet_page(opened, 4)).count("stroke-dasharray") == 6


def test_each_box_has_a_place_in_every_field(tmp_path: Path) -> None:
    """An image that lacks a field of others gets what stands for nothing: targets can be read box by box."""
    keypoints = [[[1, 2, 2], [3, 4, 1]]] * 3
    polygons = [[[x1, y1], [x2, y1], [x2, y2]] for x1, y1, x2, y2 in BOXES]
    fields = {"difficult": (0, 1, 0), "text": ("a", "b", "c"), "labels": ("x", "y", "z"), "image_id": (7, 8, 9)}
    with PackWriter(tmp_path / "a.lmdb", classes=["cat", "dog"]) as writer:
        for i in range(4):
            more = {"keypoints": keypoints, "polygons": polygons, "box_fields": fields} if i in (1, 3) else {}
            writer.write(noise(i, 18, 22), boxes=BOXES[: i + 1], box_labels=[0, 1, 0][: i + 1], **{
                name: {k: v[: i + 1] for k, v in value.items()} if isinstance(value, dict) else value[: i + 1]
                for name, value in more.items()
            })  # fmt: skip
    for crop in (None, CenterCrop(18)):
        loader = PackedLoader(tmp_path / "a.lmdb", 4, crop=crop)
        for i, target in enumerate(target for _, targets in loader for target in targets):
            count, full = len(target["boxes"]), i in (1, 3)
            assert target["image_id"] == i and target["labels"].tolist() == [0, 1, 0][:count]
            assert target["difficult"].tolist() == ([0, 1, 0] if full else [0, 0, 0])[:count]
            assert target["text"] == (["a", "b", "c"] if full else [None] * 3)[:count]
            assert target["keypoints"].shape == (count, 2, 3) and bool(target["keypoints"][..., 2].any()) == full
            assert [len(polygon) > 0 for polygon in target["polygons"]] == [full] * count
