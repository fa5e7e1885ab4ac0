"""Real sets of boxes, held against their label files as this test reads them itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from PIL import Image
from running import Ran, good, run

from packer.format.pack import Pack, open_pack

NO_AREA = ("BloodImage_00338", "BloodImage_00343")


@pytest.fixture(scope="module")
def bccd(real_data: Path) -> Path:
    return real_data / "voc_bccd"


@pytest.fixture(scope="module")
def coco(real_data: Path) -> Path:
    return real_data / "yolo_coco128"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("boxes")


def voc_boxes(file: Path) -> list[tuple[str, list[int]]]:
    """(class, [xmin, ymin, xmax, ymax]) of every object, as the file has them."""
    found = []
    for thing in ElementTree.parse(file).getroot().iter("object"):
        edges = [int(thing.findtext(f"bndbox/{e}", "")) for e in ("xmin", "ymin", "xmax", "ymax")]
        found.append((thing.findtext("name", ""), edges))
    return found


def stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def boxes_of(pack: Pack, i: int) -> list[tuple[str, list[float]]]:
    a = pack.annotation(i)
    assert a.boxes is not None and a.box_labels is not None
    names = [pack.classes[c] for c in a.box_labels.tolist()]
    return list(zip(names, a.boxes.tolist(), strict=True))


def in_our_frame(written: list[tuple[str, list[int]]], name: str) -> list[tuple[str, list[float]]]:
    """VOC counts pixels from 1 and takes both edges in; boxes without area are taken out."""
    drawn = [(c, e) for c, e in written if name not in NO_AREA or (e[0] != e[2] and e[1] != e[3])]
    return [(c, [x1 - 1, y1 - 1, x2, y2]) for c, (x1, y1, x2, y2) in drawn]


def test_bccd_as_it_is_fails_and_names_both_files(bccd: Path, folder: Path) -> None:
    ran = run("build", bccd, "--split", "all", "-o", folder / "no", "--json")
    assert ran.code == 1
    for name in NO_AREA:
        assert f"JPEGImages/{name}.jpg" in ran.err and f"Annotations/{name}.xml" in ran.err
    facts = json.loads(ran.out)
    assert facts["exit_code"] == 1
    assert [r["path"] for r in facts["rejected"]] == [f"JPEGImages/{n}.jpg" for n in NO_AREA]
    assert not (folder / "no").exists() and not (folder / "no.partial").exists()


def test_bccd_whole_has_every_box_but_the_two_without_area(bccd: Path, folder: Path) -> None:
    out = folder / "clip.lmdb"
    good("build", bccd, "--split", "all", "-o", out, "--boxes", "clip", "--encode", "copy", "--workers", 2)
    pack = open_pack(out)
    assert len(pack) == 364 and pack.classes == ["Platelets", "RBC", "WBC"]
    counts = {name: n for name, n in pack.manifest.counts.items() if n}
    assert counts == {"found": 364, "packed": 364, "boxes": 4886, "boxes_dropped": 2, "changed": 2}
    total = 0
    for i, path in enumerate(pack.paths):
        written = voc_boxes(bccd / "Annotations" / f"{stem(path)}.xml")
        total += len(written)
        assert boxes_of(pack, i) == in_our_frame(written, stem(path))
        assert bytes(pack.record(i)) == (bccd / path).read_bytes()
    assert total == 4888


@pytest.mark.parametrize(
    ("options", "images", "boxes"), [(["--boxes", "drop"], 364, 4886), (["--max-bad", "2"], 362, 4862)]
)
def test_bccd_drop_and_max_bad(bccd: Path, folder: Path, options: list[str], images: int, boxes: int) -> None:
    out = folder / f"{options[0][2:]}.webdataset"
    whole = ("--split", "all", "--encode", "copy", "--format", "webdataset")
    ran = good("build", bccd, "-o", out, *whole, "--json", *options)
    counts = json.loads(ran.out)["counts"]
    assert (counts["packed"], counts["boxes"]) == (images, boxes)
    assert counts["found"] == counts["packed"] + counts["rejected"] + counts["skipped"]
    pack = open_pack(out)
    skipped = {r.path for r in pack.manifest.rejected}
    assert skipped == (set() if images == 364 else {f"JPEGImages/{n}.jpg" for n in NO_AREA})
    expected = sum(len(in_our_frame(voc_boxes(bccd / "Annotations" / f"{stem(p)}.xml"), stem(p))) for p in pack.paths)
    assert expected == boxes


def test_bccd_padded_to_300_moves_boxes_and_pixels(bccd: Path, folder: Path) -> None:
    out = folder / "voc.hdf5"
    good(
        "build", bccd, "--labels", "voc", "--resize", "300x300", "--fit", "pad", "--format", "hdf5",
        "--boxes", "clip", "--split", "val", "-o", out,
    )  # fmt: skip
    pack = open_pack(out)
    listed = (bccd / "ImageSets/Main/val.txt").read_text().split()
    assert sorted(map(stem, pack.paths)) == sorted(listed) and len(listed) == 87
    for i, path in enumerate(pack.paths):
        # 640x480 becomes 300x225, 37 black rows above it
        expected = in_our_frame(voc_boxes(bccd / "Annotations" / f"{stem(path)}.xml"), stem(path))
        scale = 300 / 640
        moved = [[x1 * scale, y1 * scale + 37, x2 * scale, y2 * scale + 37] for _, (x1, y1, x2, y2) in expected]
        found = boxes_of(pack, i)
        assert [c for c, _ in found] == [c for c, _ in expected]
        np.testing.assert_allclose([b for _, b in found], moved, rtol=0, atol=1e-3)
    with Image.open(bccd / pack.paths[0]) as file:
        small = np.asarray(file.convert("RGB").resize((300, 225), Image.Resampling.BOX), np.int16)
    image = pack.image(0)
    assert image.shape == (300, 300, 3)
    assert not image[:37].any() and not image[262:].any()
    assert np.abs(image[37:262] - small).mean() < 2


@pytest.mark.parametrize(("split", "images"), [("train", 205), ("val", 87), ("test", 72), ("trainval", 292)])
def test_bccd_splits(bccd: Path, folder: Path, split: str, images: int) -> None:
    options = ["--split", split, "--boxes", "clip", "--encode", "copy", "--dry-run", "--json"]
    plan = json.loads(good("build", bccd, "-o", folder / split, *options).out)
    assert plan["images"] == images
    assert plan["found"] == 364 and len(plan["skipped"]) == 364 - images


def yolo_boxes(file: Path, size: tuple[int, int]) -> list[tuple[int, list[float]]]:
    width, height = size
    found = []
    for line in file.read_text().splitlines():
        c, *values = line.split()
        cx, cy, w, h = (float(v) for v in values)
        box = [(cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height]
        found.append((int(c), box))
    return found


@pytest.fixture(scope="module")
def packed_coco(coco: Path, folder: Path) -> tuple[Ran, Pack]:
    out = folder / "coco.tfrecord"
    whole = ("--split", "all", "--format", "tfrecord", "--encode", "copy")
    ran = good("build", coco, "-o", out, *whole, "--max-bad", 4, "--json")
    return ran, open_pack(out)


def test_coco_orphans_are_counted_and_listed(coco: Path, packed_coco: tuple[Ran, Pack], folder: Path) -> None:
    rejected = {(Path(r["path"]).stem, r["reason"]) for r in json.loads(packed_coco[0].out)["rejected"]}
    assert rejected == {
        ("000000000250", "no-label"), ("000000000508", "no-label"),
        ("000000000656", "no-image"), ("000000000659", "no-image"),
    }  # fmt: skip
    counts = packed_coco[1].manifest.counts
    assert (counts["found"], counts["packed"], counts["rejected"]) == (258, 254, 4)
    ran = run("build", coco, "--split", "all", "-o", folder / "no", "--max-bad", 3)
    assert ran.code == 1 and "4 of 258 inputs are bad, 3 allowed" in ran.err


def test_coco_names_and_boxes(coco: Path, packed_coco: tuple[Ran, Pack]) -> None:
    pack = packed_coco[1]
    names: dict[int, str] = yaml.safe_load((coco / "data.yaml").read_text())["names"]
    assert pack.classes == [names[i] for i in range(80)]
    boxes = 0
    for i, path in enumerate(pack.paths):
        with Image.open(coco / path) as image:
            size = image.size
        expected = yolo_boxes(coco / path.replace("images", "labels").replace(".jpg", ".txt"), size)
        annotation = pack.annotation(i)
        assert annotation.box_labels is not None and annotation.boxes is not None
        assert annotation.box_labels.tolist() == [c for c, _ in expected]
        clamped = np.clip(np.array([b for _, b in expected]).reshape(-1, 4), 0, [*size, *size])
        np.testing.assert_allclose(annotation.boxes, clamped, atol=1e-3)
        boxes += len(expected)
    assert pack.manifest.counts["boxes"] == boxes > 900


@pytest.mark.parametrize("split", ["train", "val"])
def test_coco_split(coco: Path, folder: Path, split: str) -> None:
    options: list[Any] = ["--split", split, "--max-bad", 4, "--encode", "copy", "--dry-run", "--json"]
    plan = json.loads(good("build", coco, "-o", folder / f"coco-{split}", *options).out)
    images = {p.stem for p in (coco / "images" / f"{split}2017").iterdir()}
    labels = {p.stem for p in (coco / "labels" / f"{split}2017").iterdir()}
    assert plan["images"] == len(images & labels)
    assert len(plan["rejected"]) == len(images ^ labels)
