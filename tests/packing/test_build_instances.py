"""Masks of objects: every kind of label that has them, moved with the pixels, equal to what pycocotools decodes."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from drawn_instances import LABELS, Masks, decoded, draw_instances, drawn_masks, read_masks
from drawn_masks import nearest_by_hand, picture, write_files
from running import good

import packer
from packer import BuildOptions, build_pack
from packer.containers import CONTAINERS
from packer.errors import NotInstalled, TooManyBad, UsageError
from packer.images.resize import TargetSize


def build(source: Path, **options: Any) -> packer.Pack:
    out = source.parent / f"{source.name}-{len(list(source.parent.iterdir()))}.{options.pop('format', 'lmdb')}"
    build_pack(BuildOptions(str(source), str(out), **{"workers": 1, "instance_masks": True, **options}))
    return packer.open_pack(out)


def masks_of(pack: packer.Pack) -> dict[str, Masks]:
    return {Path(path).name: read_masks(pack, i) for i, path in enumerate(pack.paths)}


def assert_same(found: dict[str, Masks], wanted: dict[str, Masks]) -> None:
    assert found.keys() == wanted.keys()
    for name, masks in wanted.items():
        assert np.array_equal(found[name], masks), name


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_instances(tmp_path_factory.mktemp("instances") / "cells")


@pytest.mark.parametrize("container", CONTAINERS)
def test_masks_are_those_of_pycocotools(container: str, source: Path) -> None:
    """0 different pixels; as numpy reads them, too."""
    pack, wanted = build(source, format=container), drawn_masks(source)
    assert_same(masks_of(pack), wanted)
    for i, path in enumerate(pack.paths):
        assert np.array_equal(pack.instance_masks(i), wanted[Path(path).name])
    assert {"rles", "box_fields.iscrowd"} <= set(pack.manifest.fields)
    assert not {"polygons", "box_fields.rle"} & set(pack.manifest.fields)
    assert [pack.annotation(0).box_fields["iscrowd"]] == [(0, 0, 0, 0, 1, 0, 0)]
    assert not packer.verify(pack.path).problems


FITS = [{"resize": "31x23"}, {"resize": "40", "fit": "long"}, {"resize": "30x30", "fit": "pad"},
        {"resize": "30x20", "fit": "crop"}, {"resize": "90", "encode": "jpeg"}]  # fmt: skip


@pytest.mark.parametrize("options", FITS, ids=str)
def test_resized_masks_are_the_nearest_pixels(options: dict[str, Any], source: Path) -> None:
    pack = build(source, **options, boxes="clip")
    target = TargetSize.of(options["resize"], options.get("fit"))
    for i, path in enumerate(pack.paths):
        masks = drawn_masks(source)[Path(path).name]
        plan = target._plan(masks.shape[2], masks.shape[1])
        (x, y, across, down), (left, top) = plan.region, plan.at
        wanted = np.zeros((len(masks), *plan.output[::-1]), np.uint8)
        for mask, out in zip(masks, wanted, strict=True):
            scaled = nearest_by_hand(mask[y : y + down, x : x + across], plan.scaled[1], plan.scaled[0])
            out[top : top + plan.scaled[1], left : left + plan.scaled[0]] = scaled
        kept = [bool(mask.any()) for mask in wanted] if options.get("fit") == "crop" else [True] * len(wanted)
        found = read_masks(pack, i)
        assert len(found) == len(pack.annotation(i).boxes) >= sum(kept)
        if len(found) == len(wanted):
            assert np.array_equal(found, wanted)
        else:  # boxes that the crop has left out
            assert all(any(np.array_equal(one, other) for other in wanted) for one in found)


@pytest.mark.parametrize("orientation", [3, 6, 8])
@pytest.mark.parametrize("stored", [False, True])
def test_masks_are_turned_with_their_image(orientation: int, stored: bool, tmp_path: Path) -> None:
    """The size in the label says whether it is of the image as stored, or upright."""
    plain = draw_instances(tmp_path / "plain", count=2)
    turned = draw_instances(tmp_path / "turned", count=2, exif=_exif(orientation))
    wanted = drawn_masks(plain)
    if not stored and orientation >= 5:
        for name in wanted:  # as large as the upright image
            width, height = wanted[name].shape[:0:-1]
            (turned / "images" / name).write_bytes(image_file(1, height, width, exif=_exif(orientation)))
    elif stored and orientation >= 5:
        turns = {6: 3, 8: 1}
        wanted = {name: np.rot90(masks, turns[orientation], (1, 2)) for name, masks in wanted.items()}
    pack = build(turned)
    assert_same(masks_of(pack), wanted)
    assert any("masks taken to be upright" in note for note in pack.manifest.notes) == (orientation < 5)


def _exif(orientation: int) -> bytes:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def test_without_the_option_a_note_names_it(source: Path) -> None:
    pack = build(source, instance_masks=False)
    assert "rles" not in pack.manifest.fields and "box_fields.rle" in pack.manifest.fields
    assert any("--instance-masks packs a mask of each object" in note for note in pack.manifest.notes)
    outlines = build(source, instance_masks=False, rle="polygons")
    assert not any("--instance-masks" in note for note in outlines.manifest.notes)
    with pytest.raises(UsageError, match="excludes instance_masks"):
        build(source, rle="polygons")


def test_without_pycocotools_nothing_begins(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"needs pycocotools.*pip install pycocotools"):
        build(source)


def test_yolo_polygons(tmp_path: Path) -> None:
    files = {"images/a.png": image_file(1, 40, 30, "PNG"), "images/b.png": image_file(2, 40, 30, "PNG")}
    files |= {"labels/a.txt": b"0 0.1 0.1 0.9 0.1 0.9 0.8 0.5 0.3\n1 0.5 0.5 0.6 0.5 0.6 0.7\n", "labels/b.txt": b""}
    files["data.yaml"] = b"names: [cell, dot]\ntrain: images\n"
    pack = build(write_files(tmp_path / "set", files))
    shapes = [[[4, 3, 36, 3, 36, 24, 20, 9]], [[20, 15, 24, 15, 24, 21]]]
    wanted = np.stack([decoded([[float(v) for v in ring] for ring in shape], 30, 40) for shape in shapes])
    assert np.array_equal(read_masks(pack, 0), wanted)
    assert pack.annotation(1).rles is None and pack.instance_masks(1).shape == (0, 30, 40)


def test_boxes_without_a_mask_are_counted(tmp_path: Path) -> None:
    polygon, box = "0 0.1 0.1 0.9 0.1 0.9 0.8 0.5 0.3\n", "1 0.5 0.5 0.2 0.2\n"
    for name, rows, count in (("a", polygon + box, 1), ("b", box + box, 2), ("c", polygon, 0)):
        files = {"images/a.png": image_file(1, 40, 30, "PNG"), "labels/a.txt": rows.encode()}
        files["data.yaml"] = b"names: [cell, dot]\ntrain: images\n"
        source = write_files(tmp_path / name, files)
        pack = build(source)
        assert pack.manifest.counts.get("boxes_without_mask", 0) == count
        said = good("build", source, "--instance-masks", "-o", tmp_path / f"{name}.lmdb").out
        assert (f"{count} without mask" in said) == bool(count)
        assert "boxes_without_mask" not in build(source, instance_masks=False).manifest.counts


HOSTILE = {
    "beyond the image": {"size": [48, 60], "counts": [0, 48 * 60 + 1]},
    "negative": {"size": [48, 60], "counts": [-1, 48 * 60 + 1]},
    "a lie": {"size": [9, 9], "counts": [0, 81]},
    "not run lengths": {"size": [48, 60], "counts": "\x7f\x7f"},
    "inside a number": {"size": [48, 60], "counts": "oooo"},
    "too many digits": {"size": [48, 60], "counts": "oooooooo0"},
    "text of another size": {"size": [48, 60], "counts": "01"},
    "far outside": [[0, 0, 1e8, 0, 1e8, 1e8]],
    "long": [[0, 0, 1e5, 0] * 2000],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_masks_are_bad_labels(what: str, tmp_path: Path) -> None:
    source = draw_instances(tmp_path / "set", count=2, equal=True)
    content = json.loads((source / LABELS).read_text())
    content["annotations"][0] |= {"segmentation": HOSTILE[what], "bbox": [1, 1, 4, 4]}
    (source / LABELS).write_text(json.dumps(content))
    with pytest.raises(TooManyBad) as caught:
        build(source)
    assert len(caught.value.rejected) == 1


def in_base64(mask: Masks) -> str:
    return base64.b64encode(picture(mask * 255)).decode("ascii")


def labelme_with_mask(mask: Masks, left: int, top: int) -> bytes:
    high, wide = mask.shape
    corners = [[left, top], [left + wide - 1, top + high - 1]]
    shapes = [
        {"label": "cell", "shape_type": "polygon", "points": [[2, 2], [12, 2], [7, 11]]},
        {"label": "dot", "shape_type": "mask", "points": corners, "mask": in_base64(mask)},
        {"label": "dot", "shape_type": "rectangle", "points": [[1, 2], [5, 9]]},
    ]
    content = {"shapes": shapes, "imagePath": "a.png", "imageData": None, "imageWidth": 40, "imageHeight": 30}
    return json.dumps(content).encode()


def cvat_with_mask(mask: Masks, left: int, top: int) -> bytes:
    flat = mask.ravel()
    runs = np.diff(np.flatnonzero(np.diff(flat, prepend=1 - flat[0], append=2))).tolist()
    rle, (high, wide) = ", ".join(map(str, [0] * int(flat[0]) + runs)), mask.shape
    return (
        '<?xml version="1.0"?><annotations><version>1.1</version><image id="0" name="a.png" width="40" height="30">'
        '<polygon label="cell" points="2,2;12,2;7,11"/>'
        f'<mask label="dot" rle="{rle}" left="{left}" top="{top}" width="{wide}" height="{high}"/>'
        '<box label="dot" xtl="1" ytl="2" xbr="5" ybr="9"/></image></annotations>'
    ).encode()


def brush_of(mask: Masks) -> list[int]:
    """A mask as Label Studio packs it, alpha after three colors: half of the runs as values, half as runs."""
    values = np.repeat(mask.ravel() * 255, 4).tolist()
    bits = f"{len(values):032b}{8 - 1:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16))
    at = 0
    while at < len(values):
        stop = next((i for i in range(at, len(values)) if values[i] != values[at]), len(values))
        count = stop - at
        if count <= 8 and at % 8:
            bits += "000" + f"{count - 1:03b}" + "".join(f"{value:08b}" for value in values[at:stop])
        else:
            bits += "111" + f"{count - 1:016b}{values[at]:08b}"
        at = stop
    return [int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8)]


def labelstudio_with_mask(mask: Masks, left: int, top: int) -> bytes:
    whole = np.zeros((30, 40), np.uint8)
    whole[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    polygon = {"points": [[x * 2.5, y / 0.3] for x, y in ((2, 2), (12, 2), (7, 11))], "polygonlabels": ["cell"]}
    values = [
        polygon, {"format": "rle", "rle": brush_of(whole), "brushlabels": ["dot"]},
        {"x": 2.5, "y": 2 / 0.3, "width": 10, "height": 7 / 0.3, "rotation": 0, "rectanglelabels": ["dot"]},
    ]  # fmt: skip
    results = [
        {"id": f"r{i}", "original_width": 40, "original_height": 30, "from_name": "x", "to_name": "y", "value": value}
        for i, value in enumerate(values)
    ]
    return json.dumps([{"annotations": [{"result": results}], "data": {"image": "/data/upload/a.png"}}]).encode()


def supervisely_with_mask(mask: Masks, left: int, top: int) -> bytes:
    data = base64.b64encode(zlib.compress(picture(mask * 255))).decode("ascii")
    things = [
        {"geometryType": "polygon", "classTitle": "cell", "points": {"exterior": [[2.0, 2], [12, 2], [7, 11]]}},
        {"geometryType": "bitmap", "classTitle": "dot", "bitmap": {"data": data, "origin": [left, top]}},
        {"geometryType": "rectangle", "classTitle": "dot", "points": {"exterior": [[1, 2.25], [5, 9]]}},
    ]
    return json.dumps({"tags": [], "size": {"width": 40, "height": 30}, "objects": things}).encode()


BITMAPS = {
    "labelme": ("a.json", labelme_with_mask),
    "cvat": ("annotations.xml", cvat_with_mask),
    "labelstudio": ("tasks.json", labelstudio_with_mask),
    "supervisely": ("ann/a.png.json", supervisely_with_mask),
}


@pytest.mark.parametrize("kind", BITMAPS)
def test_bitmaps(kind: str, tmp_path: Path) -> None:
    """A polygon, a bitmap at a place, and a box without a mask."""
    name, write = BITMAPS[kind]
    mask = (np.random.default_rng(1).random((9, 14)) < 0.6).astype(np.uint8)
    mask[0, 0] = mask[:, -1] = mask[-1] = 1
    files = {"a.png": image_file(1, 40, 30, "PNG"), name: write(mask, 20, 5)}
    source = write_files(tmp_path / "set", files)
    pack = build(source, labels=kind)
    found, annotation = read_masks(pack, 0), pack.annotation(0)
    wanted = np.zeros((30, 40), np.uint8)
    wanted[5:14, 20:34] = mask
    assert np.array_equal(found[1], wanted)
    filled = np.zeros((30, 40), np.uint8)  # as LabelMe fills rectangles; boxes of the others are no shapes
    filled[2:9, 1:5] = kind == "labelme"
    assert np.array_equal(found[2], filled)
    assert pack.manifest.counts.get("boxes_without_mask", 0) == (kind != "labelme")
    assert np.array_equal(found[0], decoded([[2.0, 2, 12, 2, 7, 11]], 30, 40))
    assert annotation.boxes[1].tolist() == [20, 5, 34, 14]
    without = build(source, labels=kind, instance_masks=False)
    assert "1 mask; --instance-masks packs masks" in without.manifest.notes[0] and len(without.annotation(0).boxes) == 2


LIES = [
    ("labelme", "40", "400000000"),
    ("labelme", "iVBOR", "iVBOX"),
    ("cvat", "40", "400000000"),
    ("cvat", "14", "15"),
    ("labelstudio", '"rle": [0, 0', '"rle": [0, 1'),
    ("labelstudio", '"original_width": 40', '"original_width": 41'),
    ("labelstudio", '"original_width": 40', '"original_width": 400000000'),
    ("supervisely", '"width": 40', '"width": 400000000'),
    ("supervisely", '"data": "e', '"data": "f'),
    ("supervisely", '"data": "eJ', '"data": "'),
]


@pytest.mark.parametrize(("kind", "old", "new"), LIES)
def test_bitmaps_that_lie(kind: str, old: str, new: str, tmp_path: Path) -> None:
    name, write = BITMAPS[kind]
    data = write(np.ones((9, 14), np.uint8), 20, 5)
    assert old.encode() in data
    files = {"a.png": image_file(1, 40, 30, "PNG"), name: data.replace(old.encode(), new.encode())}
    with pytest.raises(TooManyBad):
        build(write_files(tmp_path / "set", files), labels=kind)
