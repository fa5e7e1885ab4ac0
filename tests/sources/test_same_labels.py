"""The same images and boxes in the formats of several tools give packs with equal labels; so do archives of each."""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layouts as draw
import numpy as np
import pytest
from drawn import image_file
from running import digests

from packer import BuildOptions, build_pack
from packer.format.pack import open_pack
from packer.model.annotation import Progress
from packer.sources import SOURCES

IMAGES = int(os.environ.get("PACKER_SAME_IMAGES", "100"))
"""Drawn in each format; 5,000 take minutes."""
FORMATS: dict[str, Any] = {
    "voc": lambda: draw.voc("images/", "Annotations/"),
    "yolo": lambda: draw.yolo("images/", "labels/") | {"classes.txt": "\n".join(draw.CLASSES)},
    "list": lambda: {"boxes.txt": "".join(
        " ".join(map(str, [f"images/{name}.jpg", *(v for c, *box in boxes for v in (*box, c))])) + "\n"
        for name, boxes in draw.BOXES.items())},
    "cvat": lambda: {"annotations.xml": draw.cvat()},
    "labelme": lambda: {f"{name}.json": draw.labelme(name, f"images/{name}.jpg") for name in draw.BOXES},
    "via": lambda: {"via.json": draw.via()},
    "labelstudio": lambda: {"labels.json": draw.label_studio()},
    "createml": lambda: {"_annotations.createml.json": draw.createml()},
    "jsonl": lambda: {"images/metadata.jsonl": draw.metadata()},
    "vott": lambda: {"animals-export.json": draw.vott()},
    "coco": lambda: draw.coco("annotations/instances_train.json", "images/"),
    "bdd100k": lambda: {"labels/det.json": draw.bdd100k()},
    "kitti": lambda: {f"label_2/{name}.txt": draw.kitti(name) for name in draw.BOXES},
    "dota": lambda: {f"labelTxt/{name}.txt": draw.dota(name) for name in draw.BOXES},
}  # fmt: skip


def draw_sets(root: Path, count: int) -> None:
    """One folder for each format, of `count` images with 0 to 4 boxes of whole pixels."""
    numbers = random.Random(7)
    draw.BOXES.clear()
    for i in range(count):
        boxes = []
        for _ in range(numbers.randrange(5)):
            x, y = numbers.randrange(20), numbers.randrange(15)
            size = numbers.randrange(2, 20), numbers.randrange(2, 15)
            boxes.append((numbers.choice(draw.CLASSES), x, y, x + size[0], y + size[1]))
        draw.BOXES[f"img_{i:05d}"] = boxes
    photo = image_file(1, draw.WIDTH, draw.HEIGHT)
    root.mkdir(exist_ok=True)
    (root / "classes").write_text("\n".join(draw.CLASSES))
    for name, make in FORMATS.items():
        files = {**draw.photos("images/"), **make()}
        draw.write(root / name, {path: photo if text == draw.PHOTO else text for path, text in files.items()})


@pytest.fixture
def sets(tmp_path: Path) -> Iterator[Path]:
    before = dict(draw.BOXES)
    draw_sets(tmp_path, IMAGES)
    yield tmp_path
    draw.BOXES.clear()
    draw.BOXES.update(before)


def labels_of(root: Path, name: str) -> list[Any]:
    """Path, boxes and classes of each image of the pack of one format."""
    spec = f"list:{root}/list/boxes.txt" if name == "list" else name
    columns = ("path (xmin ymin xmax ymax class)*",) if name == "list" else ()
    out = root / f"{name}.lmdb"
    options = {"labels": (spec,), "columns": columns, "classes": str(root / "classes"), "encode": "copy", "workers": 1}
    build_pack(BuildOptions(str(root / name), str(out), **options))
    pack = open_pack(str(out))
    found = []
    for i in range(len(pack)):
        annotation = pack.annotation(i)
        boxes = annotation.boxes
        if name == "yolo" and len(boxes):
            # its fractions have nine digits here: of 40 pixels, that is 4e-8; float32 has no more than 2e-6 at 20
            assert np.abs(boxes - np.rint(boxes)).max() < 1e-6
            boxes = np.rint(boxes)
        found.append((pack.paths[i], boxes.tolist(), annotation.box_labels.tolist()))
    return found


def test_packs_have_equal_labels(sets: Path) -> None:
    expected = [
        (f"images/{name}.jpg", [list(map(float, box)) for _, *box in boxes],
         [draw.CLASSES.index(cls) for cls, *_ in boxes])
        for name, boxes in draw.BOXES.items()
    ]  # fmt: skip
    for name in FORMATS:
        assert labels_of(sets, name) == expected, name


POINTS = {name: " ".join(f"{x} {y}" for x, y in points) for name, points in draw.FACES.items()}
SETS: dict[str, tuple[str, Any]] = {
    "none": ("none", lambda: draw.photos("x/")),
    "folder": ("folder", lambda: draw.classes("train/") | draw.classes("val/")),
    "voc": ("voc", lambda: draw.voc() | {"ImageSets/Main/train.txt": "img_0002\nimg_0003\n"}),
    "yolo": ("yolo", lambda: {
        **draw.yolo("train/images/", "train/labels/"), **draw.yolo("val/images/", "val/labels/"),
        "data.yaml": "train: lists/train.txt\nnames: [dog, bird]\n",
        "lists/train.txt": "train/images/img_0002.jpg\ntrain/images/img_0003.jpg\n"}),
    "yolo-obb": ("yolo-obb", lambda: draw.photos("images/") | {
        f"labels/{name}.txt": draw.yolo_corners(name) for name in draw.BOXES} | {"data.yaml": "names: [dog, bird]\n"}),
    "dota": ("dota", lambda: draw.photos("images/") | {
        f"labelTxt/{name}.txt": draw.dota(name) for name in draw.BOXES}),
    "coco": ("coco:annotations/instances_train2017.json", lambda: (
        draw.coco("annotations/instances_train2017.json", "train2017/", keypoints=True)
        | draw.coco("annotations/instances_val2017.json", "val2017/"))),
    "pts": ("pts", lambda: draw.photos("train/", draw.FACES) | {f"train/{n}.pts": draw.pts(n) for n in draw.FACES}),
    "dlib": ("dlib:lists/train.xml", lambda: draw.photos("train/", draw.FACES) | {"lists/train.xml": draw.dlib()}),
    "list": ("list:lists/points.csv", lambda: draw.photos("train/", draw.FACES) | {
        "lists/points.csv": "".join(f"{name}.jpg {points}\n" for name, points in POINTS.items())}),
    "name": (r"name:(?P<split>train|val)/(?P<class>[a-z]+)/", lambda: draw.classes("train/") | draw.classes("val/")),
    "cvat": ("cvat:lists/a.xml", lambda: draw.photos("images/") | {"lists/a.xml": draw.cvat()}),
    "labelme": ("labelme", lambda: draw.photos("images/") | {
        f"jsons/{name}.json": draw.labelme(name, f"..\\images\\{name}.jpg") for name in draw.BOXES}),
    "via": ("via:csv/via.csv", lambda: draw.photos("images/") | {"csv/via.csv": draw.via_csv()}),
    "labelstudio": ("labelstudio", lambda: draw.photos("set/") | {"result.json": draw.label_studio_min()}),
    "supervisely": ("supervisely", draw.supervisely_project),
    "createml": ("createml", lambda: draw.photos("train/") | {"train/_annotations.createml.json": draw.createml()}),
    "vott": ("vott", lambda: draw.photos() | {"json/animals-export.json": draw.vott()}),
    "widerface": ("widerface", lambda: draw.photos("WIDER_train/images/0--Parade/") | {
        "wider_face_split/wider_face_train_bbx_gt.txt": draw.wider()}),
    "kitti": ("kitti", lambda: draw.photos("training/image_2/") | {
        f"training/label_2/{name}.txt": draw.kitti(name) for name in draw.BOXES}),
    "visdrone": ("visdrone", lambda: draw.photos("images/") | {
        f"annotations/{name}.txt": draw.visdrone(name) for name in draw.BOXES}),
    "icdar": ("icdar", lambda: draw.photos("images/") | {f"gt/gt_{n}.txt": draw.icdar(n) for n in draw.BOXES}),
    "bdd100k": ("bdd100k", lambda: draw.photos("images/") | {"labels/det.json": draw.bdd100k()}),
    "crowdhuman": ("crowdhuman", lambda: draw.photos("Images/") | {"annotation_train.odgt": draw.crowdhuman()}),
    "openimages": ("openimages", lambda: draw.photos("train/") | draw.open_images()),
    "sa1b": ("sa1b", lambda: draw.photos() | {f"{name}.json": draw.sa1b(name) for name in draw.BOXES}),
    "jsonl": ("jsonl", lambda: draw.photos("train/") | {"train/metadata.jsonl": draw.metadata()}),
}  # fmt: skip
"""Source -> the value of its labels, with FILE relative to the source, and how to draw its set."""


@pytest.mark.parametrize("name", SETS)
def test_archives_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    """A zip, a deflated zip and a tar, with their labels."""
    spec, make = SETS[name]
    files = make()
    draw.write(tmp_path / "set", files)
    (tmp_path / "stored.zip").write_bytes(draw.zipped(files))
    (tmp_path / "deflated.zip").write_bytes(draw.zipped(files, zipfile.ZIP_DEFLATED))
    (tmp_path / "set.tar").write_bytes(draw.tarred(files))
    columns = ("path (x y)*3",) if name == "list" else ()
    split = "train" if name in ("folder", "voc", "yolo", "coco", "pts", "dlib", "widerface") else None
    packs = []
    for source in ("set", "stored.zip", "deflated.zip", "set.tar"):
        out = str(tmp_path / f"{source}.pack")
        options = BuildOptions(str(tmp_path / source), out, labels=(spec,), columns=columns, split=split, workers=1)
        build_pack(options)
        packs.append(digests(Path(out)))
        manifest = open_pack(out).manifest
        assert manifest.counts["packed"] >= 2 and manifest.counts["rejected"] == 0, source
    assert all(pack == packs[0] for pack in packs) and len(packs[0]) > 2


def test_a_large_deflated_file_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To NAME.partial, which the build removes."""
    monkeypatch.setattr("packer.sources.source.HELD_BYTES", 0)
    file = "annotations/instances_train2017.json"
    (tmp_path / "set.zip").write_bytes(draw.zipped(draw.coco(file, "train2017/"), zipfile.ZIP_DEFLATED))
    notes: list[str] = []
    monkeypatch.setattr(Progress, "note", lambda _, text: notes.append(text))
    build_pack(BuildOptions(str(tmp_path / "set.zip"), split="train", workers=1))
    assert len(open_pack(str(tmp_path / "set-train.lmdb"))) == len(draw.BOXES)
    assert [note for note in notes if file in note and note.startswith("note: decompressing")] == [
        f"note: decompressing {file} once, to {tmp_path}/set-train.lmdb.partial/source"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set-train.lmdb", "set.zip"]


def test_every_source_is_here() -> None:
    """But Datumaro and Parquet, which are not read from archives."""
    assert SETS.keys() == SOURCES.keys() - {"datumaro", "parquet"}
