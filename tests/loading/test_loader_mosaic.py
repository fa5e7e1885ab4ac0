"""Mosaics: pixels, masks, boxes and points are within a pixel of where plain numpy puts them."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch
from loader_packs import waves
from mosaic_reference import box_around, moved, seen, shown

from packer import Mosaic, PackedDataset, PackedLoader, PackWriter, RandomAffine

SIZE, RECORDS, OBJECTS = 64, 10, 3
SIDES = [(60, 40), (64, 64), (13, 9), (150, 110), (30, 64), (6, 80), (200, 64), (12, 12), (65, 63), (64, 20)]
"""(width, height): tiny, large, as large as the output, narrow."""
NAMES = [str(i) for i in range(RECORDS * OBJECTS)]
"""A class for each object."""
UPRIGHT = RandomAffine(0, translate=(0.1, 0.1), scale=(0.5, 1.5))
TURNING = RandomAffine(40, translate=(0.2, 0.1), scale=(0.5, 1.4), shear=10, fill=3)
FACE = (1, 0, 2)
IGNORED = 255
AWAY = 1.0
"""Pixels of the output, from the ideal place."""


def smooth(width: int, height: int, seed: int) -> Any:
    return waves(height, width, seed) // 2 + np.uint8(11 * seed % 120)


@pytest.fixture(scope="module", params=["raw", "ragged", "png", "jpeg"])
def labelled(request, tmp_path_factory):
    """Images of many sizes ("raw": of one), with labels of all kinds."""
    encode = "raw" if request.param == "ragged" else request.param
    path, random = tmp_path_factory.mktemp("labelled") / "p.lmdb", np.random.default_rng(3)
    kinds = {"right": "image", "depth": "map", "flow": "map", "facts": "json"}
    with PackWriter(
        path, classes=NAMES, mask_classes=["x", "y", "z"], encode=encode, parts=kinds, quality=98
    ) as writer:
        for i in range(RECORDS):
            width, height = (48, 36) if request.param == "raw" else SIDES[i]
            sides = np.array([width, height])
            start, extent = random.uniform(0, 0.6, (OBJECTS, 2)), random.uniform(0.15, 0.4, (OBJECTS, 2))
            boxes = np.concatenate([start * sides, (start + extent) * sides], axis=1)
            points, visible = random.uniform(0, 1, (OBJECTS, 3, 2)) * sides, random.integers(1, 3, (OBJECTS, 3, 1))
            image, y = smooth(width, height, i), np.arange(height)[:, None]
            writer.write(
                image, i, boxes=boxes.tolist(), box_labels=list(range(OBJECTS * i, OBJECTS * (i + 1))),
                keypoints=np.concatenate([points, visible], axis=2).tolist(),
                landmarks=(random.uniform(0, 1, (3, 2)) * sides).tolist(),
                masks=[painted(box, width, height) for box in boxes],
                mask=(np.arange(width) // 7 + y // 7 + i).astype(np.uint8) % 3,
                extras={"number": i},
                parts={
                    "right": image[:, ::-1], "depth": (image[..., 0] / 9 + i).astype(np.float16),
                    "flow": (image[..., :2] / 50).astype(np.float32), "facts": {"of": i},
                },
            )  # fmt: skip
    return path


def painted(box: Any, width: int, height: int) -> Any:
    """The mask of a box: pixels whose centers are inside."""
    x, y, right, bottom = box
    across, down = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    return ((across >= x) & (across < right) & (down >= y) & (down < bottom)).astype(np.uint8)


def rows_of(path, mosaic, epochs=2, **options):
    """(image, target, what should be shown) of the rows of some epochs."""
    options = {"seed": 5, "shuffle": True, **options}
    loader = PackedLoader(path, 4, crop=mosaic, **options)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        batches = list(loader.sampler.rank_batches(4, epoch))
        for (images, targets), samples in zip(loader, batches, strict=True):
            yield from zip(images, targets, shown(loader, samples, epoch), strict=True)


def whole(path):
    """The images of a pack as they are, uint8 (height, width, 3), and their targets."""
    data = PackedDataset(path)
    pairs = [data[i] for i in range(len(data))]
    return [image.permute(1, 2, 0).numpy() for image, _ in pairs], [target for _, target in pairs]


def check_between(found, view, images, fill, levels):
    """Each pixel lies between the least and the largest of the ideal ones around it."""
    near = view.pixels(images, fill, True)
    inside = (found >= np.nanmin(near, axis=0) - levels) & (found <= np.nanmax(near, axis=0) + levels)
    inside |= np.isnan(found) & np.isnan(near).any(axis=0)
    assert inside.all(), np.argwhere(~inside)[:5]


def check_ids(found, near):
    """Each id is that of an ideal pixel around it."""
    right = (near == found.numpy()).any(axis=0)
    assert right.all(), np.argwhere(~right)[:5]


WAYS = {
    "plain": {},
    "flips": {"flip": True, "vflip": True},
    "turns": {"flip": True, "rotate90": True},
    "upright": {"affine": UPRIGHT, "flip": True},
    "turning": {"affine": TURNING, "vflip": True, "rotate90": True},
    "far": {"affine": RandomAffine(0, translate=(0.6, 0.6), scale=(0.3, 4.5))},
}
SHAPES = [Mosaic(SIZE), Mosaic(SIZE, tiles=9, fill=9), Mosaic(SIZE, chance=0.5)]


def a_mosaic(way, mosaic):
    return pytest.param(WAYS[way], mosaic, id=f"{way}-{mosaic.tiles}-{mosaic.chance}")


EACH = [a_mosaic(way, mosaic) for way in WAYS for mosaic in SHAPES if mosaic.chance == 1 or way in ("plain", "turning")]


@pytest.mark.filterwarnings("ignore:All-NaN")
@pytest.mark.parametrize(("options", "mosaic"), EACH)
def test_all_that_has_pixels(labelled, options, mosaic):
    (images, targets), several = whole(labelled), set()
    for image, target, one in rows_of(labelled, mosaic, 1, flip_index=FACE, **options):
        several.add(len(one.records))
        own, its = [images[record] for record in one.records], [targets[record] for record in one.records]
        view = seen(one, [each.shape[1::-1] for each in own], SIZE)
        check_between(image.permute(1, 2, 0).numpy(), view, own, mosaic.fill, 6)
        check_ids(target["mask"], view.pixels([each["mask"].numpy() for each in its], IGNORED, False))
        for name, fill, levels in (("right", 0, 6), ("depth", np.nan, 0.5), ("flow", np.nan, 0.1)):
            parts = [each[name].permute(1, 2, 0).numpy() for each in its]
            check_between(target[name].permute(1, 2, 0).numpy(), view, parts, fill, levels)
        for tile, number, _, _, place in objects(target, one, targets):
            if place is not None:
                mask = targets[one.records[tile]]["masks"][number].numpy()
                check_ids(target["masks"][place], view.of_one(tile, mask))
        assert len(target["masks"]) == len(target["labels"])
        first = targets[one.records[0]]
        assert target["facts"] == first["facts"] and target["extras"] == first["extras"]
        assert target["label"] == first["label"] and target["image_id"] == one.records[0]
        assert target["mask"].dtype == torch.int64 and target["depth"].dtype == torch.float16
    assert several == ({1, mosaic.tiles} if mosaic.chance < 1 else {mosaic.tiles})


def objects(target, one, targets):
    """(tile, number in its image, box on the canvas, map to the canvas, place in the target or None) of each object."""
    place = 0
    for tile, record in enumerate(one.records):
        before = targets[record]
        onto = one.to_canvas(tile, *before["mask"].shape[::-1])
        for number, name in enumerate(before["labels"].tolist()):
            box = np.clip(box_around(before["boxes"][number], onto), 0, one.canvas)
            found = None
            if place < len(target["labels"]) and int(target["labels"][place]) == name:
                wide = np.clip(box_around(box, one.to_output), 0, SIZE)
                # a record may be there twice
                found = place if np.abs(target["boxes"][place].numpy() - wide).max() <= AWAY else None
            place += found is not None
            yield tile, number, box, onto, found
    assert place == len(target["labels"]) == len(target["boxes"])


@pytest.mark.parametrize("min_visible", [0, 0.1, 0.5])
@pytest.mark.parametrize(("options", "mosaic"), EACH)
def test_boxes_and_points(labelled, options, mosaic, min_visible):
    _, targets = whole(labelled)
    decided_by_a_pixel = dropped = count = 0
    wanted = {"flip_index": FACE, "min_visible": min_visible, **options}
    for _, target, one in rows_of(labelled, mosaic, 1, **wanted):
        order = list(FACE) if one.reflected else [0, 1, 2]
        before = targets[one.records[0]]
        onto = one.to_canvas(0, *before["mask"].shape[::-1])
        there = moved(before["landmarks"], one.to_output @ onto)[order]
        inside = ((there >= 0) & (there <= SIZE)).all(axis=1)
        assert (np.abs(target["landmarks"].numpy() - there)[inside] <= AWAY).all()
        for tile, number, box, onto, place in objects(target, one, targets):
            kept = may_be_kept(box, one.to_output, min_visible)
            assert (place is not None) in kept, (box, target["boxes"])
            count, decided_by_a_pixel, dropped = (
                count + 1,
                decided_by_a_pixel + (len(kept) > 1),
                dropped + (place is None),
            )
            if place is not None:
                points = targets[one.records[tile]]["keypoints"][number].numpy()
                check_points(target["keypoints"][place].numpy(), points, one, onto)
    assert dropped and decided_by_a_pixel < 0.35 * count


def may_be_kept(box, to_output, min_visible):
    """Whether a box on the canvas is kept; both where a pixel decides it."""
    around = box_around(box, to_output)
    area, found = (around[2] - around[0]) * (around[3] - around[1]), set()
    for step in np.linspace(-AWAY, AWAY, 9):
        cut = np.clip(around + np.array([-step, -step, step, step]), 0, SIZE)
        across, down = np.maximum(cut[2:] - cut[:2], 0)
        found.add(bool(across * down >= max(1, min_visible * area) and across * down > 0))
    if (box[2:] - box[:2]).min() <= AWAY:  # on an edge of the canvas
        found |= {False}
    return found


def check_points(found, before, one, onto):
    """Keypoints, of which those outside the output or the canvas are hidden."""
    order = list(FACE) if one.reflected else [0, 1, 2]
    on_canvas = moved(before[:, :2], onto)[order]
    there, visible = moved(on_canvas, one.to_output), before[order, 2]
    for point, canvas, was, (*place, now) in zip(there, on_canvas, visible, found, strict=True):
        outside = max(*-point, *(point - SIZE), *-canvas, *(canvas - one.canvas))
        assert now == (0 if outside > 0 else was) or abs(outside) <= AWAY
        assert outside > 0 or np.abs(place - point).max() <= AWAY


ROOF = np.array([(0.1, 0.2), (0.5, 0.3), (0.4, 0.7), (0.2, 0.6)])


@pytest.fixture(scope="module", params=["obb", "polygons"])
def roofs(request, tmp_path_factory):
    """Images of many sizes with oriented boxes or polygons."""
    path, random = tmp_path_factory.mktemp("roofs") / "p.lmdb", np.random.default_rng(4)
    with PackWriter(path, classes=NAMES, encode="png") as writer:
        for i, sides in enumerate(SIDES):
            outlines = [((ROOF + random.uniform(0, 0.29, 2)) * sides).tolist() for _ in range(OBJECTS)]
            given = {} if request.param == "obb" else {"boxes": [bounds(one).tolist() for one in outlines]}
            ids = list(range(OBJECTS * i, OBJECTS * (i + 1)))
            writer.write(smooth(*sides, i), **{request.param: outlines}, **given, box_labels=ids)
    return request.param, path


def bounds(points: Any) -> Any:
    """The box around points."""
    return np.concatenate([np.min(points, axis=0), np.max(points, axis=0)])


@pytest.mark.parametrize("tiles", [4, 9])
@pytest.mark.parametrize("way", ["flips", "upright", "turning"])
def test_outlines(roofs, way, tiles):
    (name, path), compared = roofs, 0
    _, targets = whole(path)
    for _, target, one in rows_of(path, Mosaic(SIZE, tiles), **WAYS[way]):
        assert len(target[name]) == len(target["labels"])
        for outline, box, label in zip(target[name], target["boxes"].numpy(), target["labels"].tolist(), strict=True):
            record, number = divmod(label, OBJECTS)
            if one.records.count(record) > 1:
                continue
            onto = one.to_canvas(one.records.index(record), *SIDES[record])
            before = moved(targets[record][name][number].numpy(), onto)
            canvas_box = box_around(targets[record]["boxes"][number], onto)
            if canvas_box.min() < 0 or canvas_box.max() > one.canvas:
                continue  # cut at the edge of the canvas, too
            compared += 1
            assert np.abs(box - np.clip(box_around(canvas_box, one.to_output), 0, SIZE)).max() <= AWAY
            there = moved(before, one.to_output)
            inside = ((there >= 1) & (there <= SIZE - 1)).all(axis=1)
            if name == "obb" or inside.all():
                assert np.abs(outline.numpy() - there)[inside].max(initial=0) <= AWAY
            else:
                check_cut(outline.numpy(), there, inside)
    assert compared > 12


def check_cut(found, ideal, inside):
    """Corners of what is left of a polygon are at most a pixel outside it, and its corners inside are there."""
    for point in found.tolist():
        assert cv2.pointPolygonTest(ideal.astype(np.float32), point, True) >= -AWAY
    for point in ideal[inside].tolist():
        assert np.linalg.norm(found - point, axis=1).min() <= AWAY * 2**0.5


@pytest.mark.parametrize("tiles", [4, 9])
@pytest.mark.parametrize("way", ["turns", "upright", "turning"])
@pytest.mark.parametrize("encode", ["raw", "png"])
def test_masks_alone(tmp_path, encode, way, tiles):
    random, sides = np.random.default_rng(1), [(48, 36)] * RECORDS if encode == "raw" else SIDES
    with PackWriter(tmp_path / "p.lmdb", mask_classes=[str(i) for i in range(200)], encode=encode) as writer:
        for i, (width, height) in enumerate(sides):
            blocks = np.kron(random.integers(0, 200, (height // 8 + 1, width // 8 + 1)), np.ones((8, 8)))
            writer.write(smooth(width, height, i), mask=blocks[:height, :width].astype(np.uint8))
    _, masks = whole(tmp_path / "p.lmdb")
    for _, mask, one in rows_of(tmp_path / "p.lmdb", Mosaic(SIZE, tiles), **WAYS[way]):
        view = seen(one, [sides[record] for record in one.records], SIZE)
        check_ids(mask, view.pixels([masks[record].numpy() for record in one.records], IGNORED, False))
        assert mask.dtype == torch.int64


@pytest.mark.parametrize("way", ["turns", "upright", "far"])
def test_labels_move_as_pixels_do(tmp_path, way):
    """Painted objects are where their boxes are."""
    random, compared = np.random.default_rng(2), 0
    with PackWriter(tmp_path / "p.lmdb", classes=NAMES, encode="png") as writer:
        for i, (width, height) in enumerate(side for side in SIDES if min(side) > 16):
            box = [width // 4, height // 3, max(width // 4 + 2, width * 3 // 4), max(height // 3 + 2, height * 4 // 5)]
            image = np.zeros((height, width, 3), np.uint8)
            image[box[1] : box[3], box[0] : box[2]] = random.integers(90, 256, 3) * (1, 0, 0) + (0, 20 * i + 60, 255)
            writer.write(image, boxes=[box], box_labels=[i])
    colors = [int(image[len(image) // 2, image.shape[1] // 2, 1]) for image in whole(tmp_path / "p.lmdb")[0]]
    for image, target, one in rows_of(tmp_path / "p.lmdb", Mosaic(SIZE, fill=0), **{**WAYS[way], "min_area": 9}):
        for box, label in zip(target["boxes"].numpy(), target["labels"].tolist(), strict=True):
            if one.records.count(label) == 1:
                _, green, blue = image.numpy().astype(int)  # that blend into the black around them
                rows, columns = np.nonzero((np.abs(green - colors[label] * blue / 255) < 4) & (blue > 127))
                extent = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                assert np.abs(extent - box).max() <= AWAY + 0.5  # an edge is in a pixel
                compared += 1
    assert compared


@pytest.mark.parametrize("affine", [None, UPRIGHT])
def test_no_box_is_left_that_ends_at_an_edge(tmp_path, affine):
    """What float32 leaves of it is no object, whatever the least area is."""
    with PackWriter(tmp_path / "p.lmdb", classes=["a"]) as writer:
        for i in range(12):  # a box for each column
            columns = [(x, 0, x + 1, 30) for x in range(44)]
            writer.write(smooth(44, 30, i), boxes=columns, box_labels=[0] * len(columns))
    for _, target, _ in rows_of(tmp_path / "p.lmdb", Mosaic(32), affine=affine, flip=True, min_area=0):
        sides = target["boxes"][:, 2:] - target["boxes"][:, :2]
        assert sides.min() > 1e-3
