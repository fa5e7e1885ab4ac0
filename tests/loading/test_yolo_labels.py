"""Images and labels in the form in which Ultralytics reads those of a folder; its own reading is compared in
tests/integration/test_ultralytics.py."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from drawn import draw, draw_classes, image_file, pixels
from PIL import Image, ImageOps

import packer
from packer import BuildOptions, build_pack, open_pack
from packer.errors import NotInstalled
from packer.loading.yolo_labels import (
    ImageFiles,
    MaskLabels,
    YoloLabels,
    classes_of_objects,
    imread,
    outlines_of,
    read_mask,
)

ROWS = {
    "a": "1 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.1 0.2\n1 0.5 0.5 0.25 0.5\n",  # the third is the first again
    "b": "",
    "c": "0 0.75 0.5 0.5 1\n",
}
POLYGONS = {"a": "0 0.1 0.1 0.9 0.1 0.5 0.8\n1 0.2 0.2 0.4 0.2 0.4 0.6 0.2 0.6\n", "b": "", "c": "1 0 0 1 0 1 1\n"}
POINTS = {"a": "0 0.5 0.5 0.4 0.4 0.4 0.4 2 0.6 0.6 1\n", "b": "", "c": "0 0.5 0.5 0.4 0.4 0.5 0.25 2 0 0 0\n"}


def packed(root: Path, rows: dict[str, str], extra: str = "", **options: Any) -> packer.Pack:
    """A pack of a YOLO folder with images a, b, c of different sizes."""
    for i, (stem, text) in enumerate(rows.items()):
        draw(root / "set" / "images" / f"{stem}.jpg", i, 40 + 8 * i, 30)
        label = root / "set" / "labels" / f"{stem}.txt"
        label.parent.mkdir(exist_ok=True)
        label.write_text(text)
    (root / "set" / "data.yaml").write_text(f"names: [ant, bee]\n{extra}")
    out = root / "set.lmdb"
    build_pack(BuildOptions(str(root / "set"), str(out), labels=("yolo",), encode="copy", workers=1, **options))
    return open_pack(out)


def test_boxes_are_fractions_and_repeats_are_dropped(tmp_path: Path) -> None:
    labels = YoloLabels(packed(tmp_path, ROWS), range(3))
    assert len(labels) == 3
    a, b, c = (labels[i] for i in range(3))
    # sorted, as Ultralytics' np.unique leaves them
    assert a["cls"].tolist() == [[0], [1]] and a["cls"].dtype == np.float32
    np.testing.assert_allclose(a["bboxes"], [[0.25, 0.25, 0.1, 0.2], [0.5, 0.5, 0.25, 0.5]], atol=1e-6)
    assert b["cls"].shape == (0, 1) and b["bboxes"].shape == (0, 4)
    np.testing.assert_allclose(c["bboxes"], [[0.75, 0.5, 0.5, 1]], atol=1e-6)
    assert [x["shape"] for x in (a, b, c)] == [(30, 40), (30, 48), (30, 56)] == [tuple(s) for s in labels.shapes()]
    assert a["im_file"] == str(tmp_path / "set.lmdb" / "images" / "a.jpg")
    assert a["segments"] == [] and a["keypoints"] is None and a["normalized"] and a["bbox_format"] == "xywh"
    assert [len(label["cls"]) for label in labels] == [3, 0, 1]  # for statistics, repeats and all


def test_any_order_and_a_choice_of_classes(tmp_path: Path) -> None:
    pack = packed(tmp_path, POLYGONS, shard_bytes=1)
    assert len(pack.reader.shards) > 1
    whole = YoloLabels(pack, range(3))
    turned = YoloLabels(pack, np.array([2, 0]), classes=[1])
    assert [label["im_file"][-5:] for label in turned] == ["c.jpg", "a.jpg"]
    assert [label["cls"].tolist() for label in turned] == [[[1]], [[1]]]
    (kept,) = turned[1]["segments"]
    np.testing.assert_array_equal(kept, whole[0]["segments"][1])
    single = YoloLabels(pack, range(3), single_class=True)
    assert [label["cls"].tolist() for label in single] == [[[0], [0]], [], [[0]]]


def test_ignored_regions_are_left_out(tmp_path: Path) -> None:
    """Crowds have run lengths in place of a polygon, which is no reason to refuse the others."""
    boxes = [[1, 1, 9, 9], [2, 2, 14, 12], [10, 4, 20, 16]]
    rings = [[[x1, y1], [x2, y1], [x2, y2]] for x1, y1, x2, y2 in boxes]
    flags = [{"iscrowd": (0, 1, 0)}, {"difficult": (1, 0, 0), "ignore": (0, 0, 1)}, {}, {"ignore": (1, 1, 1)}]
    with packer.PackWriter(tmp_path / "p.lmdb", classes=["cat", "dog"]) as writer:
        for i, fields in enumerate(flags):
            polygons = [ring if i != 0 or n != 1 else [] for n, ring in enumerate(rings)] if i < 3 else None
            image = np.full((18, 22, 3), i, np.uint8)
            writer.write(image, boxes=boxes, box_labels=[0, 1, 0], polygons=polygons, box_fields=fields)
    pack = open_pack(tmp_path / "p.lmdb")
    assert outlines_of(pack) == "polygons"
    kept = [[0, 2], [1], [0, 1, 2], []]
    for labels in (YoloLabels(pack, range(4)), list(YoloLabels(pack, range(4)))):
        for label, numbers in zip(labels, kept, strict=True):
            assert label["cls"][:, 0].tolist() == [(0, 1, 0)[n] for n in numbers]
            wanted = np.array([boxes[n] for n in numbers]).reshape(-1, 4) / [22, 18, 22, 18]
            np.testing.assert_allclose(label["bboxes"][:, 2:], wanted[:, 2:] - wanted[:, :2], atol=1e-6)
            assert len(label["segments"]) == len(numbers)
            for n, segment in zip(numbers, label["segments"], strict=True):
                np.testing.assert_allclose(segment, np.array(rings[n]) / [22, 18], atol=1e-6)
    assert not len(YoloLabels(pack, range(4), classes=[1])[0]["cls"])


@pytest.mark.parametrize("flag", [0, 1])
def test_the_class_of_ignored_regions_is_none_of_objects(tmp_path: Path, flag: int) -> None:
    with packer.PackWriter(tmp_path / "p.lmdb", classes=["cat", "__ignore__"]) as writer:
        image = np.zeros((18, 22, 3), np.uint8)
        writer.write(image, boxes=[[1, 1, 9, 9]] * 2, box_labels=[0, 1], box_fields={"ignore": (0, flag)})
    assert classes_of_objects(open_pack(tmp_path / "p.lmdb")) == ["cat", "__ignore__"][: 2 - flag]


def test_polygons_are_fractions(tmp_path: Path) -> None:
    labels = YoloLabels(packed(tmp_path, POLYGONS), range(3))
    first, second = labels[0]["segments"]
    np.testing.assert_allclose(first, [[0.1, 0.1], [0.9, 0.1], [0.5, 0.8]], atol=1e-6)
    assert second.shape == (4, 2) and second.dtype == np.float32
    assert labels[1]["segments"] == []
    np.testing.assert_allclose(labels[0]["bboxes"][0], [0.5, 0.45, 0.8, 0.7], atol=1e-6)


@pytest.mark.parametrize(("dims", "seen"), [(3, [[2, 1], [2, 0]]), (2, [[1, 1], [1, 1]])])
def test_keypoints_are_fractions_with_visibility(tmp_path: Path, dims: int, seen: list[list[int]]) -> None:
    labels = YoloLabels(packed(tmp_path, POINTS, "kpt_shape: [2, 3]\n"), range(3), dims)
    a, b, c = (labels[i]["keypoints"] for i in range(3))
    np.testing.assert_allclose(a[..., :2], [[[0.4, 0.4], [0.6, 0.6]]], atol=1e-6)
    assert b.shape == (0, 2, 3)
    assert [a[0, :, 2].tolist(), c[0, :, 2].tolist()] == seen


def test_workers_get_few_bytes(tmp_path: Path) -> None:
    pack = packed(tmp_path, ROWS)
    labels, files = pickle.loads(pickle.dumps((YoloLabels(pack, range(3)), ImageFiles(pack, range(3)))))
    assert len(pickle.dumps((labels, files))) < 1000
    assert len(files) == 3 and files[2] == labels[2]["im_file"]


@pytest.mark.parametrize(("ignore", "missing"), [(255, 255), (2, 255), (None, 0)])
def test_masks_have_255_where_they_have_no_class(tmp_path: Path, ignore: int | None, missing: int) -> None:
    """Whatever the pack ignores; where an image has no mask, it has no class, or class 0 if none is ignored."""
    image, mask = np.zeros((2, 3, 3), np.uint8), np.array([[0, 1, 1], [1, 0, 1]], np.uint8)
    mask[0, 2] = 1 if ignore is None else ignore
    with packer.PackWriter(tmp_path / "p", mask_classes=["ant", "bee"], ignore_id=ignore) as writer:
        writer.write(image, mask=mask)
        writer.write(image)
    pack = open_pack(tmp_path / "p")
    expected = np.where(mask == ignore, 255, mask)
    assert np.array_equal(read_mask(pack, 0), expected) and read_mask(pack, 0).flags.writeable
    assert np.array_equal(read_mask(pack, 1), np.full((2, 3), missing)) and read_mask(pack, 1).dtype == np.uint8
    first, second = MaskLabels(pack, range(2))
    assert first["shape"] == second["shape"] == (2, 3) and not len(first["cls"]) and first["bboxes"].shape == (0, 4)


# -- images


def turned_jpeg(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    return image_file(3, 40, 30, exif=exif.tobytes())


def png(array: Any) -> bytes:
    done, data = cv2.imencode(".png", array)
    assert done
    return bytes(data)


def gray_and_alpha() -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(4)[..., :2], "LA").save(file, "PNG")
    return file.getvalue()


FILES = {
    "plain.jpg": image_file(1),
    "progressive.jpg": image_file(2, progressive=True, subsampling=2),
    **{f"turned{i}.jpg": turned_jpeg(i) for i in range(1, 9)},
    "color.png": png(pixels(5)),
    "gray.png": png(pixels(6)[..., 0]),
    "deep.png": png(pixels(7).astype(np.uint16) * 257),
    "alpha.png": png(np.dstack([pixels(8), pixels(9)[..., 0]])),
    "gray_alpha.png": gray_and_alpha(),
    "color.bmp": image_file(10, format="BMP"),
    "color.webp": image_file(11, format="WEBP", lossless=True),
    "color.tif": image_file(12, format="TIFF"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("flags", [cv2.IMREAD_COLOR, cv2.IMREAD_GRAYSCALE])
def test_files_are_read_as_opencv_reads_them(files: Path, tmp_path: Path, flags: int) -> None:
    build_pack(BuildOptions(str(files), str(tmp_path / "p"), encode="copy", labels=("none",), workers=1))
    pack = open_pack(tmp_path / "p")
    for name in ImageFiles(pack, range(len(pack))):
        expected = cv2.imdecode(np.fromfile(files / Path(name).name, np.uint8), flags)
        expected = expected.reshape(*expected.shape[:2], -1)
        found = imread(name, flags)
        assert found.dtype == np.uint8 and found.shape == expected.shape and (found == expected).all(), name


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_every_format_is_turned_upright(tmp_path: Path, format: str) -> None:
    """As the boxes of the pack are, in every version of OpenCV."""
    (tmp_path / "set").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        options = {"lossless": True} if format == "WEBP" else {}
        file = tmp_path / "set" / f"{orientation}.{format.lower()}"
        file.write_bytes(image_file(orientation, 40, 30, format=format, exif=exif, **options))
    build_pack(BuildOptions(tmp_path / "set", tmp_path / "p", encode="copy", labels=("none",), workers=1))
    for name in ImageFiles(open_pack(tmp_path / "p"), range(8)):
        with Image.open(tmp_path / "set" / Path(name).name) as stored:
            expected = np.asarray(ImageOps.exif_transpose(stored))
        assert np.array_equal(imread(name)[..., ::-1], expected), name


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("rgb", cv2.IMREAD_COLOR),
        ("rgb", cv2.IMREAD_GRAYSCALE),
        ("gray", cv2.IMREAD_COLOR),
        ("gray", cv2.IMREAD_GRAYSCALE),
        ("unchanged", cv2.IMREAD_COLOR),
        ("unchanged", cv2.IMREAD_UNCHANGED),
    ],
)
def test_pixels_of_raw_packs(files: Path, tmp_path: Path, mode: str, flags: int) -> None:
    """Within a level of the file where gray is computed; two levels where PNG's and OpenCV's gray differ."""
    options = {"mode": mode, "labels": ("none",), "decoder": "opencv", "encode": "raw", "workers": 1}
    build_pack(BuildOptions(str(files), str(tmp_path / "p"), **options))  # type: ignore[arg-type]
    pack = open_pack(tmp_path / "p")
    for i, name in enumerate(ImageFiles(pack, range(len(pack)))):
        found = imread(name, flags)
        assert found.dtype == np.uint8 and found.flags.writeable and found.flags.c_contiguous
        have = pack.reader.shape_of(i)[2]
        assert found.shape[2] == {cv2.IMREAD_COLOR: 3, cv2.IMREAD_GRAYSCALE: 1}.get(flags, 1 if have == 2 else have)
        expected = cv2.imdecode(np.fromfile(files / Path(name).name, np.uint8), cv2.IMREAD_COLOR)
        if mode == "gray" or flags == cv2.IMREAD_GRAYSCALE:
            expected = cv2.cvtColor(expected, cv2.COLOR_BGR2GRAY)[..., None]
        assert np.abs(found[..., :3].astype(int) - expected).max() <= 2, name


# -- without Ultralytics


def test_without_ultralytics_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "packer.ultralytics", raising=False)
    monkeypatch.delitem(vars(packer), "ultralytics", raising=False)
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(NotInstalled, match=r"needs Ultralytics.*pip install ultralytics"):
        packer.ultralytics  # noqa: B018


def test_a_pack_of_classes_has_names_all_the_same(tmp_path: Path) -> None:
    draw_classes(tmp_path / "imgs", each=1)
    build_pack(BuildOptions(str(tmp_path / "imgs"), workers=1))
    assert [Path(name).name for name in ImageFiles(open_pack(tmp_path / "imgs.lmdb"), range(3))] == ["000.jpg"] * 3
