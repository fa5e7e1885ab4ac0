"""Mosaics are those of Ultralytics' Mosaic and RandomPerspective on the same images, centers and affine maps."""

from __future__ import annotations

import atexit
import math
import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from packer import Mosaic, PackedDataset, PackedLoader, PackWriter, RandomAffine
from packer.loading.mosaic import MOSAIC_STREAM
from packer.samplers.order import uniform

_home = tempfile.mkdtemp(prefix="tmp-mosaics-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ.update(YOLO_OFFLINE="true", YOLO_CONFIG_DIR=_home, YOLO_AUTOINSTALL="false", YOLO_VERBOSE="false")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("ultralytics", reason="needs Ultralytics: pip install ultralytics")
    from ultralytics.data import augment
    from ultralytics.utils.instance import Instances

SIZE, COUNT, OBJECTS = 160, 14, 6
UPRIGHT = RandomAffine(0, translate=(0.1, 0.1), scale=(0.5, 1.5))
TURNING = RandomAffine(10, translate=(0.1, 0.1), scale=(0.7, 1.3), shear=4)
CORNERS, SHARE, LEAST_SIDE = 5, 0.1, 2
"""Of an outline; the share of a box that must be seen; Ultralytics drops boxes with a side of so many pixels."""


def smooth(width: int, height: int, seed: int) -> Any:
    """uint8 (height, width, 3): waves of several image lengths, with a level of its own."""
    y, x = np.mgrid[:height, :width]
    planes = [60 * np.sin(x / width * 3 + c + seed) * np.cos(y / height * 2 + seed) for c in range(3)]
    return (np.stack(planes, axis=2) + 65 + 9 * seed).astype(np.uint8)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many sizes, the class of each object its own."""
    path, numbers = tmp_path_factory.mktemp("mosaics") / "p.lmdb", np.random.default_rng(0)
    names = [str(i) for i in range(COUNT * OBJECTS)]
    with PackWriter(path, classes=names, mask_classes=list("abcd"), encode="png") as writer:
        for i in range(COUNT):
            sides = np.array([150 + 17 * i, 330 - 14 * i])
            angles = np.arange(CORNERS) * 2 * math.pi / CORNERS
            outlines, points = [], []
            for _ in range(OBJECTS):
                center, radius = numbers.uniform(0.15, 0.85, 2), numbers.uniform(0.02, 0.14)
                shape = np.stack([np.cos(angles), np.sin(angles)], axis=1)
                outlines.append(((center + radius * shape) * sides).tolist())
                points.append([(*(center * sides), 2), (*((center + radius * shape[1]) * sides), 1)])
            boxes = [[*np.min(one, axis=0), *np.max(one, axis=0)] for one in outlines]
            mask = (np.arange(sides[0]) // 40 + np.arange(sides[1])[:, None] // 40 + i) % 4
            writer.write(
                smooth(*sides, i), boxes=boxes, box_labels=list(range(OBJECTS * i, OBJECTS * (i + 1))),
                polygons=outlines, keypoints=points, mask=mask.astype(np.uint8),
            )  # fmt: skip
    return path


def labels_of(data: PackedDataset, record: int) -> dict[str, Any]:
    """What Ultralytics' dataset has of an image, resized as by its load_image."""
    image, target = data[record]
    pixels, mask = np.ascontiguousarray(image.permute(1, 2, 0)), target["mask"].numpy().astype(np.uint8)
    height, width = mask.shape
    ratio = SIZE / max(height, width)
    size = min(math.ceil(width * ratio), SIZE), min(math.ceil(height * ratio), SIZE)
    scale = np.array(size) / (width, height)
    points = target["keypoints"].numpy().copy()
    points[..., :2] *= scale
    segments = np.stack([one.numpy() * scale for one in target["polygons"]]).astype(np.float32)
    boxes = (target["boxes"].numpy() * np.tile(scale, 2)).astype(np.float32)
    return {
        "img": cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), "im_file": str(record),
        "ori_shape": (height, width), "resized_shape": size[::-1], "cls": target["labels"].numpy()[:, None],
        "instances": Instances(boxes, segments, points.astype(np.float32), bbox_format="xyxy", normalized=False),
        "semantic_mask": cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST),
    }  # fmt: skip


class Theirs:
    """Ultralytics' mosaics of the same images, with what packer has drawn."""

    def __init__(self, path: Path, tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data, self.tiles, self.monkeypatch = PackedDataset(path), tiles, monkeypatch
        dataset = SimpleNamespace(cache="ram", get_image_and_label=lambda i: labels_of(self.data, i))
        self.mosaic = augment.Mosaic(dataset, imgsz=SIZE, p=1.0, n=tiles)
        self.perspective = augment.RandomPerspective(size=(SIZE, SIZE))

    def shown(self, records: list[int], center: Any, its_map: Any, segments: bool) -> Any:
        """What is shown: image, boxes before the last filter among it."""
        drawn = iter([center[1] + SIZE // 2, center[0] + SIZE // 2])  # down, across
        self.mosaic.get_indexes = lambda: records[1:]
        self.monkeypatch.setattr(augment.random, "uniform", lambda low, high: next(drawn))
        labels = labels_of(self.data, records[0])
        if not segments:
            labels = without_segments(labels)
        params = self.mosaic.get_params(labels)
        if not segments:
            for one in labels["mix_labels"]:
                without_segments(one)
        self.monkeypatch.undo()
        for apply in (self.mosaic.apply_image, self.mosaic.apply_instances, self.mosaic.apply_semantic):
            labels = apply(labels, params)
        cut = np.array([[1, 0, -(SIZE // 2)], [0, 1, -(SIZE // 2)], [0, 0, 1.0]])
        matrix = np.vstack([its_map, [0, 0, 1]]) @ cut
        scale = math.sqrt(abs(np.linalg.det(matrix[:2, :2])))
        params = {"M": matrix, "scale": scale, "orig_shape": (2 * SIZE, 2 * SIZE), "size": (SIZE, SIZE)}
        for apply in (self.perspective.apply_image, self.perspective.apply_instances, self.perspective.apply_semantic):
            labels = apply(labels, params)
        return labels


def without_segments(labels: dict[str, Any]) -> dict[str, Any]:
    """The same, with boxes and keypoints alone: with segments, boxes would be around those."""
    one = labels["instances"]
    nothing = np.zeros((0, 1000, 2), np.float32)
    labels["instances"] = Instances(one.bboxes, nothing, one.keypoints, bbox_format="xyxy", normalized=False)
    return labels


def pairs(
    path: Path, tiles: int, affine: RandomAffine, monkeypatch: Any, segments: bool = False, epochs: int = 3
) -> Any:
    """(image, target) of packer and the labels of Ultralytics, of all records."""
    loader = PackedLoader(path, COUNT, crop=Mosaic(SIZE, tiles), affine=affine, min_visible=SHARE, seed=1)
    theirs = Theirs(path, tiles, monkeypatch)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        samples = np.arange(COUNT)
        maps = loader._augmentation.with_crop(None).params(samples, epoch, (SIZE, SIZE), None).affine  # type: ignore[arg-type]
        records = loader._host.filler.params(samples, epoch).tiles.records.reshape(COUNT, tiles)
        centers = np.floor(uniform(1 ^ MOSAIC_STREAM, epoch, samples, 2 + tiles)[:, 1:3] * SIZE)
        ((images, targets),) = loader
        for i in range(COUNT):
            labels = theirs.shown(records[i].tolist(), centers[i], maps[i], segments)
            yield images[i].permute(1, 2, 0).numpy(), targets[i], labels


ALL = pytest.mark.parametrize("affine", [UPRIGHT, TURNING], ids=["upright", "turning"])
GRIDS = pytest.mark.parametrize("tiles", [4, 9])


def matched(target: Any, labels: Any) -> tuple[list[tuple[int, int]], list[Any], list[Any]]:
    """Objects of the same class whose boxes differ by at most a pixel, (ours, theirs); boxes of the others."""
    both, theirs_alone = [], []
    left = list(enumerate(zip(target["labels"].tolist(), target["boxes"].numpy(), strict=True)))
    for place, (label, box) in enumerate(zip(labels["cls"][:, 0].tolist(), labels["instances"].bboxes, strict=True)):
        alike = [one for one in left if one[1][0] == label and np.abs(one[1][1] - box).max() <= 1]
        if alike:
            nearest = min(alike, key=lambda one: np.abs(one[1][1] - box).max())
            left.remove(nearest)
            both.append((nearest[0], place))
        else:
            theirs_alone.append(box)
    return both, [box for _, (_, box) in left], theirs_alone


@GRIDS
@ALL
def test_boxes_and_keypoints(pack, tiles, affine, monkeypatch):
    farthest, count, points_seen, ours_alone, theirs_alone = [0.0], 0, 0, [], []
    for _, target, labels in pairs(pack, tiles, affine, monkeypatch):
        both, mine, others = matched(target, labels)
        count, ours_alone, theirs_alone = count + len(both), ours_alone + mine, theirs_alone + others
        for ours, theirs in both:
            farthest.append(np.abs(target["boxes"][ours].numpy() - labels["instances"].bboxes[theirs]).max())
            points = zip(target["keypoints"][ours].numpy(), labels["instances"].keypoints[theirs], strict=True)
            for (*point, seen), (*other, visible) in points:
                if seen and visible:
                    assert np.abs(np.subtract(point, other)).max() <= 1 and seen == visible
                    points_seen += 1
                else:  # on an edge, it may be hidden in one of them
                    assert seen == visible or min(*np.abs(other), *np.abs(np.subtract(SIZE, other))) <= 1
    assert count > 400 and points_seen > 600
    assert max(farthest) < (0.25 if affine is TURNING else 0.75)
    for box in ours_alone:  # which Ultralytics drops by rules of its own, or which is nearly all hidden
        across, down = box[2:] - box[:2]
        assert min(across, down) <= LEAST_SIDE + 1 or max(across / down, down / across) >= 99, box
    assert len(theirs_alone) <= 0.01 * count  # those whose share is at the limit


@GRIDS
@ALL
def test_outlines(pack, tiles, affine, monkeypatch):
    """Of objects that are not cut: Ultralytics' outlines end at a box around the points inside."""
    compared = 0
    for _, target, labels in pairs(pack, tiles, affine, monkeypatch, segments=True):
        for label, outline in zip(labels["cls"][:, 0].tolist(), labels["instances"].segments, strict=True):
            if outline.min() > 1 and outline.max() < SIZE - 1:
                places = np.flatnonzero(target["labels"].numpy() == label)
                ours = [target["polygons"][place].numpy() for place in places]
                assert min(np.abs(one - outline).max() for one in ours if one.shape == outline.shape) <= 1
                compared += 1
    assert compared > 250


@GRIDS
@ALL
def test_pixels_and_masks(pack, tiles, affine, monkeypatch):
    """Each pixel is between those of theirs around it: seams are within a pixel."""
    means, same, near = [], [], []
    for image, target, labels in pairs(pack, tiles, affine, monkeypatch):
        ours, theirs = image.astype(int), labels["img"].astype(int)
        means.append(np.abs(ours - theirs).mean())
        square = np.ones((3, 3), np.uint8)
        least, most = cv2.erode(labels["img"], square), cv2.dilate(labels["img"], square)
        inside = (ours >= least.astype(int) - 3) & (ours <= most.astype(int) + 3)
        assert inside[1:-1, 1:-1].all()
        mask, other = target["mask"].numpy(), labels["semantic_mask"]
        same.append((mask == other).mean())
        around = np.lib.stride_tricks.sliding_window_view(other, (3, 3))
        near.append((around == mask[1:-1, 1:-1, None, None]).any(axis=(2, 3)).mean())
    assert np.mean(means) < 0.6 and max(means) < 1.5
    assert np.mean(same) > 0.94 and min(near) > 0.985  # strips of a pixel may be lost when theirs are resized


def test_centers_are_as_likely():
    """Kolmogorov and Smirnov's test of two samples at a level of 0.001, for each axis; the axes are independent."""
    count, size = 20_000, 640
    ours = np.floor(uniform(7 ^ MOSAIC_STREAM, 0, np.arange(count), 6)[:, 1:3] * size) + size // 2
    draw = random.Random(0)
    theirs = np.array([[int(draw.uniform(size // 2, 2 * size - size // 2)) for _ in "xy"] for _ in range(count)])
    for one, other in zip(ours.T, theirs.T, strict=True):
        values = np.sort(np.concatenate([one, other]))
        shares = [np.searchsorted(np.sort(each), values, side="right") / count for each in (one, other)]
        assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(2 / count)
        assert (one.min(), one.max()) == (320, 959)
    assert abs(np.corrcoef(ours.T)[0, 1]) < 0.03
