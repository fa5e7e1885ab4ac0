"""Oriented boxes: corners in every container, moved as numpy moves them, kept where OpenCV sees them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from drawn import draw
from drawn_masks import write_files
from numpy.typing import NDArray
from running import good

import packer
from packer import BuildOptions, CenterCrop, PackedDataset, PackedLoader, PackWriter, build_pack, xywhr
from packer.containers import CONTAINERS
from packer.errors import BadLabel
from packer.images.resize import TargetSize
from packer.model.fields import with_boxes

SIZE = (80, 60)
NAMES = ("plane", "large-vehicle")
Quads = NDArray[np.float64]


def quads_of(number: int, count: int) -> Quads:
    """Turned rectangles, some of them half outside, (count, 4, 2)."""
    rng = np.random.default_rng(number)
    center, sides = rng.uniform((8, 8), (72, 52), (count, 2)), rng.uniform(6, 24, (count, 2)) / 2
    turn = rng.uniform(-math.pi, math.pi, count)
    unit = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * sides[:, None]
    spin = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).transpose(2, 0, 1)
    return np.round(center[:, None] + unit @ spin.transpose(0, 2, 1), 2)


def draw_dota(root: Path, count: int = 6) -> Path:
    """`count` images; image i has i objects, as `quads_of` draws them."""
    for i in range(count):
        draw(root / "images" / f"P{i}.png", i, *SIZE)
        lines = [f"{' '.join(map(str, quad.ravel()))} {NAMES[k % 2]} {k % 2}" for k, quad in enumerate(quads_of(i, i))]
        write_files(root, {f"labelTxt/P{i}.txt": "\n".join(["gsd:0.5", *lines, ""]).encode()})
    return root


def build(source: Path, **options: Any) -> packer.Pack:
    out = source.parent / f"{source.name}-{len(list(source.parent.iterdir()))}.{options.pop('format', 'lmdb')}"
    build_pack(BuildOptions(str(source), str(out), **{"workers": 1, "boxes": "clip", **options}))
    return packer.open_pack(out)


def visible(quad: Quads, width: float, height: float) -> float:
    """Area of a convex quad inside an image, by OpenCV."""
    image = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    return float(cv2.intersectConvexConvex(quad.astype(np.float32), image)[0])


def extents(quads: Quads, width: float, height: float) -> Quads:
    boxes = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
    return np.clip(boxes, 0, [width, height] * 2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_dota(tmp_path_factory.mktemp("oriented") / "dota")


@pytest.mark.parametrize("container", CONTAINERS)
def test_corners_are_those_of_the_files(container: str, source: Path, tmp_path: Path) -> None:
    pack = build(source, format=container)
    assert {"obb", "boxes", "box_fields.difficult", "extras"} <= {*pack.manifest.fields}
    assert "polygons" not in pack.manifest.fields and not packer.verify(pack.path).problems
    for i in range(len(pack)):
        found, quads = pack.annotation(i), quads_of(i, i)
        assert found.obb.dtype == np.float32 and np.array_equal(found.obb, quads.astype(np.float32))
        assert found.boxes == pytest.approx(extents(quads, *SIZE), abs=1e-4)
        assert found.box_labels.tolist() == [1 - k % 2 for k in range(i)] and found.extras == {"gsd": 0.5}
        assert found.box_fields.get("difficult", ()) == tuple(k % 2 for k in range(i))
        assert PackedDataset(pack)[i][1]["obb"].shape == (i, 4, 2)
    again = tmp_path / "again.lmdb"
    good("convert", pack.path, again, "--workers", 1)
    assert not packer.diff(pack.path, again).labels.count


@pytest.mark.parametrize("options", [
    {"resize": "31x23"}, {"resize": "40", "fit": "long"}, {"resize": "30x30", "fit": "pad"},
    {"resize": "30x20", "fit": "crop"}, {"resize": "20x60", "fit": "crop", "encode": "jpeg"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("converted", [False, True])
def test_resized_corners_are_those_of_numpy(options: dict[str, Any], converted: bool, source: Path) -> None:
    if converted:
        whole, out = build(source), source.parent / f"c{len(list(source.parent.iterdir()))}.lmdb"
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        good("convert", whole.path, out, "--workers", 1, *flags)
        pack = packer.open_pack(out)
    else:
        pack = build(source, **options)
    plan = TargetSize.of(options["resize"], options.get("fit"))._plan(*SIZE)
    (x, y, across, down), offset, size = plan.region, np.array(plan.at), plan.output
    scale, dropped = np.array(plan.scaled) / (across, down), 0
    for i in range(len(pack)):
        quads = (quads_of(i, i) - (x, y)) * scale + offset
        kept = [visible(quad, *size) > 0 for quad in quads]
        found, dropped = pack.annotation(i), dropped + kept.count(False)
        assert found.obb == pytest.approx(quads[kept], abs=1e-3)
        boxes = extents(quads_of(i, i), *SIZE).reshape(-1, 2, 2)  # cut by the image before
        boxes = np.clip(((boxes - (x, y)) * scale + offset).reshape(-1, 4), 0, size * 2)
        assert found.boxes == pytest.approx(boxes[kept], abs=1e-3)
    assert bool(dropped) == (options["resize"] == "20x60")


@pytest.mark.parametrize("orientation", [1, 5, 6, 7, 8])
def test_corners_are_turned_with_the_image_as_stored(orientation: int, tmp_path: Path) -> None:
    """The size in the label is that of the stored image, so that its corners turn with the pixels."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    draw(tmp_path / "src/a.jpg", 3, *SIZE, exif=exif.tobytes())
    box = 'xtl="20" ytl="10" xbr="50" ybr="22" rotation="25"'
    xml = f'<image name="a.jpg" width="80" height="60"><box label="x" {box}/></image>'
    xml = f"<annotations><version>1.1</version>{xml}</annotations>"
    write_files(tmp_path / "src", {"a.xml": xml.encode()})
    turn = np.exp(1j * math.radians(25)) * np.array([-15 - 6j, 15 - 6j, 15 + 6j, -15 + 6j]) + 35 + 16j
    x, y, (w, h) = turn.real, turn.imag, SIZE
    wanted = {1: (x, y), 5: (y, x), 6: (h - y, x), 7: (h - y, w - x), 8: (y, w - x)}[orientation]
    (found,) = build(tmp_path / "src", labels=("cvat",)).annotation(0).obb
    assert found == pytest.approx(np.stack(wanted, axis=1), abs=1e-4)


@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize("min_area", [0.0, 40.0])
@pytest.mark.parametrize("batch_size", [1, 6])
def test_a_crop_moves_corners_and_drops_what_is_outside(
    flip: float, min_area: float, batch_size: int, source: Path
) -> None:
    """Corners outside stay where they are; boxes are cut, and go if they are too small or nothing is inside."""
    pack, seen, ghosts = build(source), 0, 0
    size, start = np.array([30, 26]), (np.array(SIZE) - (30, 26)) / 2
    loader = PackedLoader(pack.path, batch_size, crop=CenterCrop((26, 30)), flip=flip, min_area=min_area)
    for number, target in enumerate(target for _, targets in loader for target in targets):
        quads = quads_of(number, number) - start
        quads[..., 0] = quads[..., 0] if flip == 0 else 30 - quads[..., 0]
        boxes = extents(quads, *size)
        sides = boxes[:, 2:] - boxes[:, :2]
        large = (sides > 0).all(axis=1) & (sides.prod(axis=1) >= min_area)
        inside = np.array([visible(quad, *size) > 0.01 for quad in quads], bool)
        ghosts += int((large & ~inside).sum())
        assert target["obb"].numpy() == pytest.approx(quads[large & inside], abs=1e-4)
        assert target["boxes"].numpy() == pytest.approx(boxes[large & inside], abs=1e-4)
        assert len(target["labels"]) == len(target["difficult"]) == len(target["obb"])
        assert target["obb"].dtype == torch.float32 and target["obb"].shape[1:] == (4, 2)
        seen += len(target["obb"])
    assert seen and (ghosts or min_area)  # of a box that is beside the crop, the extent may reach into it


def test_images_without_oriented_boxes_have_corners(source: Path, tmp_path: Path) -> None:
    """In a pack in which others have them: of a merge with plain boxes."""
    with PackWriter(tmp_path / "plain.lmdb", classes=NAMES) as writer:
        writer.write(np.zeros((60, 80, 3), np.uint8), boxes=[[1, 2, 30, 40], [5, 6, 7, 8]], box_labels=[0, 1])
        writer.write(np.zeros((60, 80, 3), np.uint8), boxes=[], box_labels=[])
    whole = build(source, encode="raw", classes=str(tmp_path / "plain.lmdb"))
    packer.merge([whole.path, str(tmp_path / "plain.lmdb")], str(tmp_path / "both.lmdb"))
    data = PackedDataset(tmp_path / "both.lmdb")
    corners = [[[1, 2], [30, 2], [30, 40], [1, 40]], [[5, 6], [7, 6], [7, 8], [5, 8]]]
    assert data[6][1]["obb"].tolist() == corners and data[7][1]["obb"].shape == (0, 4, 2)
    batch = data.__getitems__([5, 6, 7, 2])
    assert [len(target["obb"]) for _, target in batch] == [5, 2, 0, 2] and batch[1][1]["obb"].tolist() == corners
    assert np.array_equal(batch[3][1]["obb"], whole.annotation(2).obb)


@pytest.mark.parametrize("layout", ["yolo", "dota"])
def test_extracted_labels_give_the_same_corners(layout: str, source: Path, tmp_path: Path) -> None:
    pack = build(source, encode="copy")
    good("extract", pack.path, tmp_path / layout, "--layout", layout)
    again = build(tmp_path / layout, classes=str(pack.path) if layout == "dota" else None)
    for i in range(len(pack)):
        one, other = pack.annotation(i), again.annotation(i)
        one = with_boxes(one, ~one.ignored) if layout == "yolo" else one  # which leaves out ignored regions
        assert np.array_equal(one.obb, other.obb) and np.array_equal(one.box_labels, other.box_labels)
        assert other.boxes == pytest.approx(one.boxes, abs=1e-4)
        assert layout == "yolo" or (one.box_fields, one.extras) == (other.box_fields, other.extras)


def test_a_writer_takes_corners(tmp_path: Path) -> None:
    quads, image = quads_of(1, 3), np.zeros((60, 80, 3), np.uint8)
    with PackWriter(tmp_path / "new.lmdb") as writer:
        writer.write(image, obb=quads[1:2], box_labels=[2])
        with pytest.raises(BadLabel, match=r"has obb of shape \(1, 3, 2\), not \(n, 4, 2\)"):
            writer.write(image, obb=quads[:1, :3], box_labels=[2])
        with pytest.raises(BadLabel, match="has 2 obb for 1 box"):
            writer.write(image, obb=quads[:2], boxes=[[1, 1, 2, 2]], box_labels=[2])
    found = packer.open_pack(tmp_path / "new.lmdb").annotation(0)
    assert np.array_equal(found.obb, quads[1:2].astype(np.float32))
    assert found.boxes == pytest.approx(extents(quads[1:2], *SIZE), abs=1e-4)


def test_center_size_and_angle_are_the_rectangle_of_opencv() -> None:
    quads = np.concatenate([quads_of(n, 40) for n in range(5)]).astype(np.float32)
    quads[-20:] += np.random.default_rng(1).normal(0, 1, (20, 4, 2)).astype(np.float32)  # no rectangles
    rows = xywhr(quads)
    assert rows.shape == (200, 5) and rows.dtype == np.float32
    assert (rows[:, 2] >= rows[:, 3]).all()
    assert (rows[:, 4] >= -math.pi / 4).all() and (rows[:, 4] < 3 * math.pi / 4).all()
    for quad, (x, y, w, h, angle) in zip(quads, rows.tolist(), strict=True):
        ours, its = cv2.boxPoints(((x, y), (w, h), math.degrees(angle))), cv2.boxPoints(cv2.minAreaRect(quad))
        assert max(np.abs(its - one).sum(axis=1).min() for one in ours) < 1e-2
    angles = np.exp(2j * rows[:180, 4])  # of rectangles, the longer side is along the angle
    along = quads[:180, 1] - quads[:180, 0], quads[:180, 2] - quads[:180, 1]
    longer = np.where((np.hypot(*along[0].T) >= np.hypot(*along[1].T))[:, None], *along)
    assert np.abs(np.exp(2j * np.arctan2(longer[:, 1], longer[:, 0])) - angles).max() < 0.02
    assert torch.equal(xywhr(torch.from_numpy(quads)), torch.from_numpy(rows)) and xywhr(quads[:0]).shape == (0, 5)
