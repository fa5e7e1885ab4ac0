"""Real folders of images: faces with landmarks, classes, photos, and odd ones; pixels by Pillow."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from running import good

from packer.format.pack import open_pack


def by_pillow(path: Path) -> np.ndarray:
    with Image.open(path) as image, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of palettes with alpha
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(np.int16)


def test_landmarks(real_data: Path, tmp_path: Path) -> None:
    root, out = real_data / "list_landmarks", tmp_path / "faces.tfrecord"
    good(
        "build", root, "--labels", f"list:{root}/landmarks.txt", "--columns", "path x*5 y*5",
        "--format", "tfrecord", "-o", out,
    )  # fmt: skip
    pack = open_pack(out)
    expected = {}
    for line in (root / "landmarks.txt").read_text().splitlines():
        path, *values = line.split()
        xs, ys = np.array(values[:5], np.float64), np.array(values[5:], np.float64)
        expected[path.replace("\\", "/")] = np.stack([xs, ys], axis=1).astype(np.float32)
    assert len(pack) == len(expected) == 900
    negative = 0
    for i, path in enumerate(pack.paths):
        landmarks = pack.annotation(i).landmarks
        assert landmarks is not None
        np.testing.assert_array_equal(landmarks, expected[path])
        negative += bool((landmarks < 0).any())
    assert negative >= 1
    assert pack.paths == sorted(pack.paths)
    assert [pack.annotation(i).label for i in (0, 899)] == [None, None]


def test_classes(real_data: Path, tmp_path: Path) -> None:
    root, out = real_data / "folder_cifar10", tmp_path / "cifar.lmdb"
    good("build", root, "-o", out)
    pack = open_pack(out)
    names = sorted(p.name for p in root.iterdir() if p.is_dir())
    assert pack.classes == names and len(names) == 10
    files = sorted(str(p.relative_to(root)) for p in root.rglob("*.jpg"))
    assert pack.paths == files and len(files) == 2000
    labels = np.asarray(pack.column("label")).tolist()
    assert labels == [names.index(f.partition("/")[0]) for f in files]
    assert pack.manifest.class_counts == {"label": [sum(label == c for label in labels) for c in range(10)]}
    for i in range(0, 2000, 97):
        assert np.abs(pack.image(i) - by_pillow(root / files[i])).max() <= 2


def test_photos(real_data: Path, tmp_path: Path) -> None:
    root, out = real_data / "photos", tmp_path / "photos.lmdb"
    good("build", root, "--labels", "none", "-o", out)
    pack = open_pack(out)
    files = sorted(p for p in root.iterdir() if p.suffix == ".JPEG")
    assert pack.paths == [p.name for p in files] and len(files) == 125
    shapes = set()
    gray = 0
    for i, file in enumerate(files):
        with Image.open(file) as image:
            gray += image.mode == "L"
        expected, image = by_pillow(file), pack.image(i)
        assert image.shape == expected.shape
        difference = np.abs(image - expected)
        assert difference.max() <= 24 and difference.mean() < 0.6, file.name
        shapes.add(image.shape)
    assert gray == 2 and len(shapes) > 10


def test_odd_images_are_packed_right_or_rejected_with_a_reason(real_data: Path, tmp_path: Path) -> None:
    root, out = real_data / "odd", tmp_path / "odd.webdataset"
    started = time.process_time()  # jobs run in this process
    good("build", root, "--labels", "none", "--max-bad", "40%", "--format", "webdataset", "-o", out)
    assert time.process_time() - started < 20  # the bombs alone would take as long, if they were decoded
    pack = open_pack(out)
    counts = pack.manifest.counts
    assert counts["found"] == counts["packed"] + counts["rejected"] + counts["skipped"]
    rejected = {r.path: r.problem for r in pack.manifest.rejected}
    assert all(rejected.values())
    for bomb in ("corrupt/giant-image.jpg", "corrupt/65536-uint32-limit.png"):
        assert "pixels are more than 64000000" in rejected[bomb]
    broken = {f"pngsuite/{p.name}" for p in (root / "pngsuite").glob("x*.png")}
    truncated = {f"corrupt/{n}" for n in ("truncated.jpg", "truncated.png", "truncated_jpeg.jpg")}
    assert broken | truncated <= set(rejected)
    packed = {path: i for i, path in enumerate(pack.paths)}
    assert {f"exif/{p.name}" for p in (root / "exif").iterdir()} <= set(packed)
    wrong = []
    for path, i in packed.items():
        if path.startswith(("exif", "pngsuite")) and "16" not in path:
            expected = by_pillow(root / path)
            if pack.image(i).shape != expected.shape or np.abs(pack.image(i) - expected).mean() > 3:
                wrong.append(path)
    assert not wrong


def test_every_orientation_shows_the_same_scene(real_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "exif.lmdb"
    good("build", real_data / "odd" / "exif", "--labels", "none", "--resize", "60", "-o", out)
    pack = open_pack(out)
    for name in ("Landscape", "Portrait"):
        images = [pack.image(i) for i, path in enumerate(pack.paths) if path.startswith(name)]
        assert len(images) == 9
        plain = images[0].astype(np.int16)
        for image in images[1:]:
            assert image.shape == plain.shape
            # the files carry different digits: most of the scene agrees
            assert np.median(np.abs(image - plain)) < 12


def test_dry_run_says_what_auto_decided(real_data: Path, tmp_path: Path) -> None:
    expected = {"voc_bccd": "voc", "yolo_coco128": "yolo", "folder_cifar10": "folder", "photos": "none"}
    for folder, labels in expected.items():
        options = ["--dry-run", "--json", "--max-bad", "4", "-o", tmp_path / folder]
        plan = json.loads(good("build", real_data / folder, *options).out)
        for one in plan.get("packs", [plan]):  # one, or one for each split
            assert one["labels"] == [labels]
            assert any(f"--labels {labels}: " in note for note in one["notes"])


@pytest.mark.parametrize("encode", ["raw", "png"])
def test_unchanged_keeps_sixteen_bits_and_alpha(real_data: Path, tmp_path: Path, encode: str) -> None:
    out = tmp_path / "suite.lmdb"
    options = ["--mode", "unchanged", "--encode", encode, "--labels", "none", "--max-bad", "30"]
    good("build", real_data / "odd" / "pngsuite", *options, "-o", out)
    pack = open_pack(out)
    at = {path: i for i, path in enumerate(pack.paths)}
    assert pack.image(at["basn0g16.png"]).dtype == np.uint16
    with Image.open(real_data / "odd" / "pngsuite" / "basn0g16.png") as file:
        gray = np.asarray(file).astype(np.uint16)
    np.testing.assert_array_equal(pack.image(at["basn0g16.png"])[:, :, 0], gray)
    with Image.open(real_data / "odd" / "pngsuite" / "basn6a08.png") as file:
        rgba = np.asarray(file)
    np.testing.assert_array_equal(pack.image(at["basn6a08.png"]), rgba)
