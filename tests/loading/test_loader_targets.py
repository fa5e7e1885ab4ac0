"""Boxes, landmarks, polygons and keypoints move with the pixels, and are cut by crops."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from drawn import centers_inside, voc_xml
from loader_packs import alike, fresh
from PIL import Image
from running import good

from packer import BuildOptions, CenterCrop, PackedLoader, RandomResizedCrop, Resize, build_pack

COUNT = 24
CROPS = [
    RandomResizedCrop((40, 48), scale=(0.3, 1.0)),
    RandomResizedCrop(90, scale=(0.2, 1.0)),
    CenterCrop((50, 60)),
    CenterCrop((90, 140)),
    CenterCrop(40, resize=48),
    CenterCrop((90, 111), resize=61),
    CenterCrop((90, 80), resize=91),
    Resize((40, 70)),
    None,
]


def drawn_marks(root, suffix):
    """One bright rectangle an image, its box, and its corners and middle as landmarks."""
    (root / "Annotations").mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    lines = []
    rng = np.random.default_rng(4)
    for i in range(COUNT):
        width, height = (97, 83) if suffix == "png" else (97 + i % 5, 83 + i % 7)
        x1, y1 = rng.integers(2, 50), rng.integers(2, 40)
        x2, y2 = x1 + rng.integers(20, 40), y1 + rng.integers(20, 38)
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[y1:y2, x1:x2] = 255
        name = f"{i:03}.{suffix}"
        image = Image.fromarray(pixels)
        image.save(root / "JPEGImages" / name, **({"quality": 95} if suffix == "jpg" else {}))
        # VOC counts pixels from 1 and includes the last one
        box = (("dog", "bird")[i % 2], x1 + 1, y1 + 1, x2, y2)
        (root / "Annotations" / f"{i:03}.xml").write_text(voc_xml(name, [box], (width, height)))
        points = [x1, y1, x2, y1, x2, y2, x1, y2, (x1 + x2) / 2, (y1 + y2) / 2]
        lines.append(" ".join([f"JPEGImages/{name}", *map(str, points)]))
    (root / "marks.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module", params=["raw", "copy", "copy of one size"])
def marks(request, tmp_path_factory):
    """Packs of marked images: raw of one shape, JPEGs of differing size."""
    root = tmp_path_factory.mktemp("marks")
    encode, _, one_size = request.param.partition(" ")
    drawn_marks(root / "source", "jpg" if encode == "copy" and not one_size else "png")
    options = {"labels": ("voc", f"list:{root / 'source' / 'marks.txt'}"), "columns": ("path (x y)*5",)}
    build_pack(BuildOptions(str(root / "source"), str(root / "pack"), workers=1, encode=encode, **options))
    return root / "pack"


def _crossing(profile, first):
    """Where a profile, first above a half at pixel `first`, is a half; 0 if that is the first pixel."""
    if first == 0:
        return 0.0
    below, above = profile[first - 1], profile[first]
    return first - 0.5 + (0.5 - below) / (above - below)


def bright_extent(image):
    """The xyxy extent of the bright pixels of an image (3, height, width), edges to a fraction of a pixel."""
    light = image.float().mean(0).numpy() / 255
    columns, rows = light.max(axis=0), light.max(axis=1)
    ends = []
    for profile in (columns, rows):
        lit = np.flatnonzero(profile > 0.5)
        if not len(lit):
            return None
        ends.append((_crossing(profile, lit[0]), len(profile) - _crossing(profile[::-1], len(profile) - 1 - lit[-1])))
    return np.array([ends[0][0], ends[1][0], ends[0][1], ends[1][1]], float)


@pytest.mark.parametrize("flip", [0.0, 0.5])
@pytest.mark.parametrize("crop", CROPS, ids=str)
def test_a_mark_stays_under_its_box_and_its_landmarks(marks, crop, flip):
    try:
        loader = PackedLoader(marks, 5, crop=crop, flip=flip, seed=1, threads=2)
    except ValueError:
        assert crop is None
        return
    seen = 0
    for epoch in range(4):
        loader.set_epoch(epoch)
        for images, targets in loader:
            height, width = images.shape[2:]
            for image, target in zip(images, targets, strict=True):
                extent = bright_extent(image)
                corners = target["landmarks"].numpy()
                # landmarks are not clipped: the mark is what of their extent lies inside
                outline = np.concatenate([corners[:4].min(0), corners[:4].max(0)])
                inside = np.clip(outline, 0, [width, height, width, height])
                assert np.abs(corners[4] - (outline[:2] + outline[2:]) / 2).max() < 0.01
                if len(target["boxes"]):
                    assert target["boxes"].shape == (1, 4) and target["labels"].shape == (1,)
                    assert np.abs(target["boxes"][0].numpy() - inside).max() < 0.01
                if min(inside[2] - inside[0], inside[3] - inside[1]) > 3:
                    assert len(target["boxes"]) == 1
                    # test_loader_pixels.py says it to 0.05; here the blur of both edges and of JPEG counts, and less
                    # than half a pixel at the border of the image is not seen
                    ends = np.array([width, height, width, height])
                    limits = np.where((inside < 1) | (inside > ends - 1), 0.51, 0.25)
                    assert (np.abs(extent - inside) <= limits).all()
                    seen += 1
    assert seen > COUNT


def test_a_flip_alone_changes_no_number_of_boxes(pack):
    """min_area is for what a crop has cut."""
    plain = [target for _, target in fresh(pack("boxes"))]
    for flip in (0.0, 1.0):
        loader = PackedLoader(pack("boxes"), 4, flip=flip, min_area=1e9)
        targets = [target for _, targets in loader for target in targets]
        assert [len(t["boxes"]) for t in targets] == [len(t["boxes"]) for t in plain]
        for target, before in zip(targets, plain, strict=True):
            if flip:
                assert alike(target["boxes"], before["boxes"][:, [2, 1, 0, 3]] * torch.tensor([-1, 1, -1, 1]) +
                             torch.tensor([40.0, 0, 40, 0]))  # fmt: skip
                points = before["landmarks"] * torch.tensor([-1, 1]) + torch.tensor([40.0, 0.0])
                assert torch.equal(target["landmarks"], points)
            else:
                assert alike(target, before)


@pytest.fixture(scope="module")
def outlines(tmp_path_factory):
    """One image of 40x20 with three objects: outlines, boxes; and one with key points."""
    packs = {}
    for kind in ("outlines", "keypoints"):
        root = tmp_path_factory.mktemp(kind)
        source = root / "source"
        for folder in ("images/train", "labels/train"):
            (source / folder).mkdir(parents=True)
        Image.fromarray(np.zeros((20, 40, 3), np.uint8)).save(source / "images/train/a.png")
        if kind == "outlines":
            rows = ["0 0.1 0.1 0.9 0.1 0.9 0.9 0.1 0.9", "1 0 0 0.1 0 0.1 0.2", "0 0.5 0.5 0.75 0.5 0.75 0.75"]
            text = "names: [a, b]\ntrain: images/train\n"
        else:
            rows = ["0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.6 1", "0 0.05 0.05 0.1 0.1 0.05 0.05 2 0.1 0.1 0"]
            text = "names: [a]\nkpt_shape: [2, 3]\ntrain: images/train\n"
        (source / "labels/train/a.txt").write_text("\n".join(rows) + "\n")
        (source / "data.yaml").write_text(text)
        build_pack(BuildOptions(str(source), str(root / "pack"), workers=1, labels=("yolo",)))
        packs[kind] = root / "pack"
    return packs


def test_outlines_are_cut_and_dropped_with_their_boxes(outlines):
    ((_, (target,)),) = PackedLoader(outlines["outlines"], 1, crop=CenterCrop((10, 20)), flip=1.0)
    # the region is x 10..30, y 5..15; mirrored: x' = 30 - x, y' = y - 5
    assert torch.equal(target["boxes"], torch.tensor([[0.0, 0, 20, 10], [0, 5, 10, 10]]))
    assert target["labels"].tolist() == [0, 0]
    first, second = target["polygons"]
    assert sorted(map(tuple, first.tolist())) == [(0, 0), (0, 10), (20, 0), (20, 10)]
    assert sorted(map(tuple, second.tolist())) == [(0, 5), (0, 10), (10, 5)]
    ((_, (target,)),) = PackedLoader(outlines["outlines"], 1, crop=CenterCrop((10, 20)), min_area=51)
    assert len(target["boxes"]) == len(target["polygons"]) == len(target["labels"]) == 1


def test_key_points_move_and_keep_their_visibility(outlines):
    ((_, (target,)),) = PackedLoader(outlines["keypoints"], 1, crop=Resize((40, 40)), flip=1.0)
    expected = torch.tensor([[[24.0, 16, 2], [16, 24, 1]], [[38, 2, 2], [36, 4, 0]]])
    assert torch.allclose(target["keypoints"], expected, atol=1e-5)
    ((_, (target,)),) = PackedLoader(outlines["keypoints"], 1, crop=CenterCrop((10, 20)))
    assert torch.allclose(target["keypoints"], torch.tensor([[[6.0, 3, 2], [14, 7, 1]]]), atol=1e-5)
    assert target["labels"].tolist() == [0]


def posed(root, points, size=(20, 40)):
    """A pack of two images of `size` (height, width): one whose object has these key points (x, y, visibility)."""
    height, width = size
    for folder in ("images/train", "labels/train"):
        (root / "source" / folder).mkdir(parents=True)
    for name in "ab":
        Image.fromarray(np.zeros((*size, 3), np.uint8)).save(root / "source/images/train" / f"{name}.png")
    numbers = " ".join(f"{x / width!r} {y / height!r} {seen}" for x, y, seen in points)
    (root / "source/labels/train/a.txt").write_text(f"0 0.5 0.5 1 1 {numbers}\n")
    (root / "source/labels/train/b.txt").write_text("")
    order = list(range(len(points)))
    order[:2] = [1, 0]
    text = f"names: [a]\nkpt_shape: [{len(points)}, 3]\nflip_idx: {order}\ntrain: images/train\n"
    (root / "source/data.yaml").write_text(text)
    build_pack(BuildOptions(str(root / "source"), str(root / "pack"), workers=1, labels=("yolo",)))
    return root / "pack"


@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_key_points_outside_a_crop_are_not_visible(tmp_path, flip, batch_size):
    # the region is x 10..30, y 5..15: left of it, in it, above, below, right, not labelled, and two corners
    points = [(9, 10, 2), (12, 10, 1), (20, 4, 2), (20, 16, 1), (31, 10, 2), (15, 10, 0), (10, 5, 2), (30, 15, 1)]
    visible = [0, 1, 0, 0, 0, 0, 2, 1]
    pack = posed(tmp_path, points)
    targets = [t for _, batch in PackedLoader(pack, batch_size, crop=CenterCrop((10, 20)), flip=flip) for t in batch]
    left = torch.tensor([[x - 10.0, y - 5.0, seen] for (x, y, _), seen in zip(points, visible, strict=True)])
    if flip:
        left[:, 0] = 20 - left[:, 0]
        left = left[[1, 0, *range(2, len(points))]]
    assert torch.allclose(targets[0]["keypoints"], left[None], atol=1e-5)  # coordinates are kept, also outside
    assert targets[1]["keypoints"].shape == (0, len(points), 3)
    ((_, (target, _)),) = PackedLoader(pack, 2, flip=flip)
    kept = target["keypoints"][0, :, 2].tolist()
    assert sorted(kept) == sorted(seen for *_, seen in points)  # a flip alone hides nothing
    loader = PackedLoader(pack, 2, crop=CenterCrop((10, 20)), flip=flip, hide_outside=False)
    ((_, (target, _)),) = loader
    assert torch.equal(target["keypoints"][0, :, :2], targets[0]["keypoints"][0, :, :2])
    assert target["keypoints"][0, :, 2].tolist() == kept


@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("crop", [Resize((17, 224)), Resize((401, 799)), CenterCrop((60, 90))])
def test_key_points_on_the_border_of_an_image_stay_visible(tmp_path, crop, flip):
    corners = [(0, 0, 2), (43, 0, 2), (43, 29, 2), (0, 29, 2)]  # mirrored at 224/43, x is -3e-14
    ((_, (target, _)),) = PackedLoader(posed(tmp_path, corners, (29, 43)), 2, crop=crop, flip=flip)
    assert target["keypoints"][0, :, 2].tolist() == [2.0] * 4


RING = [(2, 2), (38, 2), (38, 18), (2, 18), (2, 16), (36, 16), (36, 4), (2, 4)]
"""A C of 2 pixels around the region x 10..30, y 5..15."""
CORNER = [(6, 2), (9, 2), (9, 16), (34, 16), (34, 19), (6, 19)]
"""An L left of that region and below it."""
TOUCHING = [(6, 2), (10, 2), (10, 15), (34, 15), (34, 19), (6, 19)]
"""The same, with its inner edges on those of the region."""
REACHING = [(6, 2), (9, 2), (9, 14), (34, 14), (34, 19), (6, 19)]
"""The same, with a row of pixels inside."""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """COCO images of 40x20: with the four polygons and a box without one, with a box only, and with nothing."""
    root = tmp_path_factory.mktemp("shapes")
    (root / "source").mkdir()
    images, entries = [], []
    for i in range(3):
        Image.fromarray(np.zeros((20, 40, 3), np.uint8)).save(root / "source" / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 40, "height": 20})
    for image, category, polygon in [(0, 1, RING), (0, 2, CORNER), (0, 3, REACHING), (0, 4, TOUCHING), (0, 5, None),
                                     (1, 5, None)]:  # fmt: skip
        low, high = (np.min(polygon, 0), np.max(polygon, 0)) if polygon else (np.array([5, 5]), np.array([35, 15]))
        entry = {"id": len(entries), "image_id": image, "category_id": category, "iscrowd": 0, "area": 1}
        entry["bbox"] = [*low.tolist(), *(high - low).tolist()]
        entry["segmentation"] = [np.ravel(polygon).tolist()] if polygon else []
        entry["keypoints"], entry["num_keypoints"] = [category + 20, 10, 2], 1
        entries.append(entry)
    categories = [{"id": i, "name": f"c{i}", "keypoints": ["tip"]} for i in range(1, 6)]
    content = {"images": images, "annotations": entries, "categories": categories}
    (root / "source/instances.json").write_text(json.dumps(content))
    build_pack(BuildOptions(str(root / "source"), str(root / "pack"), workers=1, labels=("coco",)))
    return root / "pack"


@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_object_goes_with_its_polygon(shapes, batch_size, flip):
    """The boxes of all of them overlap the crop, also where the polygon is outside of it."""
    options = {"flip": flip, "flip_index": (0,)}
    loader = PackedLoader(shapes, batch_size, crop=CenterCrop((10, 20)), min_area=0, **options)
    first, second, third = [target for _, batch in loader for target in batch]
    assert first["labels"].tolist() == [2, 4] and first["iscrowd"].tolist() == [0, 0]
    assert [len(polygon) > 0 for polygon in first["polygons"]] == [True, False]
    assert first["boxes"].tolist() == [[0, 0, 20, 10], [0, 0, 20, 10]]
    tips = [13.5, 15.5]  # COCO counts pixels
    assert first["keypoints"][:, 0, 0].tolist() == ([20 - x for x in tips] if flip else tips)
    assert second["labels"].tolist() == [4] and len(second["boxes"]) == 1
    assert [len(polygon) for polygon in second["polygons"]] == [0]
    assert len(third["boxes"]) == len(third["labels"]) == len(third["polygons"]) == 0
    whole = PackedLoader(shapes, batch_size, **options)
    assert [len(target["boxes"]) for _, batch in whole for target in batch] == [5, 1, 0]


def test_fields_of_boxes_go_with_them(tmp_path):
    source = tmp_path / "source"
    (source / "Annotations").mkdir(parents=True)
    (source / "JPEGImages").mkdir()
    Image.fromarray(np.zeros((20, 40, 3), np.uint8)).save(source / "JPEGImages" / "a.png")
    text = voc_xml("a.png", [("dog", 1, 1, 5, 5), ("bird", 15, 8, 25, 15), ("dog", 11, 1, 20, 6)], (40, 20))
    for value in ("1", "0", "1"):  # the first is outside of the crop
        text = text.replace("<difficult>0</difficult><bndbox>", f"<pose>p{value}</pose><difficult>{value}</difficult>"
                            "<bndbox >", 1)  # fmt: skip
    (source / "Annotations" / "a.xml").write_text(text.replace("<bndbox >", "<bndbox>"))
    build_pack(BuildOptions(str(source), str(tmp_path / "pack"), workers=1, labels=("voc",)))
    for min_area, left in ((1.0, 2), (10.5, 1)):
        ((_, (target,)),) = PackedLoader(tmp_path / "pack", 1, crop=CenterCrop((10, 20)), min_area=min_area)
        assert target["boxes"].tolist() == [[4, 2, 15, 10], [0, 0, 10, 1]][:left]
        assert target["difficult"].tolist() == [0, 1][:left] and target["pose"] == ["p0", "p1"][:left]
        assert len(target["labels"]) == left
    ((_, (target,)),) = PackedLoader(tmp_path / "pack", 1, crop=CenterCrop((2, 2)), min_area=100)
    assert target["boxes"].shape == (0, 4) and target["labels"].shape == (0,) and target["pose"] == []


@pytest.fixture(scope="module", params=["polygons", "obb"])
def oriented(request, tmp_path_factory):
    """DOTA as Ultralytics has it: a turned rectangle of a gray for each object, its four corners as fractions."""
    root = tmp_path_factory.mktemp("oriented")
    rng = np.random.default_rng(9)
    for split in ("train", "val"):
        (root / "DOTA/images" / split).mkdir(parents=True)
        (root / "DOTA/labels" / split).mkdir(parents=True)
        for i in range(8):
            pixels, rows = np.zeros((60, 80, 3), np.uint8), []
            for k, (x, y) in enumerate([(22.3, 28.6), (57.1, 31.9)][: 1 + i % 2]):
                turn, w, h = rng.uniform(0, np.pi), rng.uniform(8, 15), rng.uniform(5, 9)
                along, across = np.array([np.cos(turn), np.sin(turn)]), np.array([-np.sin(turn), np.cos(turn)])
                corners = [(x, y) + a * w * along + b * h * across for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
                pixels[centers_inside(corners, 60, 80)] = 100 + 60 * k
                rows.append(" ".join([str(k), *(f"{v:.9f}" for c in corners for v in c / (80, 60))]))
            Image.fromarray(pixels).save(root / "DOTA/images" / split / f"P{i:04}.png")
            (root / "DOTA/labels" / split / f"P{i:04}.txt").write_text("\n".join(rows) + "\n")
    (root / "DOTA/dota.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: {0: plane, 1: ship}\n")
    labels = {"polygons": "yolo", "obb": "yolo-obb"}[request.param]
    good("build", root / "DOTA", "--split", "train", "-o", root / "pack", "--workers", 1, "--labels", labels)
    return root / "pack", request.param


@pytest.mark.parametrize("flip", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("crop", [None, CenterCrop((60, 80)), CenterCrop((33, 47)), RandomResizedCrop((60, 80))])
def test_oriented_boxes_cover_their_pixels(oriented, crop, flip):
    seen, alike_inside, (pack, field) = 0, [np.ones(1, bool)], oriented
    for images, targets in PackedLoader(pack, 4, crop=crop, flip=flip, seed=3):
        for image, target in zip(images, targets, strict=True):
            gray = np.asarray(image)[0]
            for box, label, polygon in zip(target["boxes"], target["labels"], target[field], strict=True):
                corners, drawn = polygon.tolist(), gray == 100 + 60 * int(label)
                inside = centers_inside(corners, *gray.shape)
                if isinstance(crop, RandomResizedCrop):  # edges are interpolated
                    alike_inside.append(np.abs(gray.astype(int) - 100 - 60 * int(label))[inside] < 40)
                else:
                    assert (inside == drawn).sum() >= drawn.size - 1  # a center may be on an edge
                extent = np.clip([*polygon.amin(0), *polygon.amax(0)], 0, [*gray.shape[::-1]] * 2).tolist()
                if crop is None:
                    assert box.tolist() == pytest.approx(extent, abs=1e-4)
                else:  # a box is cut as a box
                    outer = box.tolist()
                    assert all(
                        a <= b + 1e-4 for a, b in zip(outer[:2] + extent[2:], extent[:2] + outer[2:], strict=True)
                    )
                seen += 1
    assert seen >= 8
    assert np.concatenate(alike_inside).mean() > 0.85
