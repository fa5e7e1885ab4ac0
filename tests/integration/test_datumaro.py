"""Sets of formats that Datumaro reads: labels, boxes, points and groups arrive, in every format that packer offers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given_labels import CLASSES, HEIGHT, MILLI, WIDTH, Thing, blob_in, each, packed, things_of, write_images

sys.path.append(str(Path(__file__).parents[1] / "sources"))
import layouts as draw

from packer.errors import UsageError
from packer.sources import open_source
from packer.sources.small_formats import FORMATS
from packer.sources.source import BaseSource, SourceOptions
from packer.sources.tree import find_tree

datumaro = pytest.importorskip("datumaro", reason="datumaro is optional, and not installed here")
pytestmark = pytest.mark.filterwarnings("ignore")
PHOTO = draw.PHOTO


def opened(root: Path, files: draw.Files, spec: str = "auto", split: str | None = None) -> BaseSource:
    draw.write(root, files)
    return open_source(spec, find_tree(os.fsencode(root))[0], SourceOptions(split))


def test_datumaro_has_the_formats() -> None:
    assert datumaro.components.environment.Environment().importers
    there = set(datumaro.components.environment.DEFAULT_ENVIRONMENT.importers)
    assert set(FORMATS) <= there


def each_name(write: Any, pattern: str) -> draw.Files:
    return {pattern.format(name): write(name) for name in draw.BOXES}


READ: dict[str, tuple[str, Any]] = {
    "kitti_detection": ("kitti", lambda: (
        draw.photos("training/image_2/") | each_name(draw.kitti, "training/label_2/{}.txt"))),
    "vott_json": ("vott", lambda: draw.photos() | {"animals-export.json": draw.vott()}),
    "wider_face": ("widerface", lambda: draw.photos("WIDER_train/images/0--Parade/") | {
        "wider_face_split/wider_face_train_bbx_gt.txt": draw.wider()}),
    "cvat": ("cvat", lambda: draw.photos("images/") | {"annotations.xml": draw.cvat()}),
    "dota": ("dota", lambda: draw.photos("train/images/") | each_name(draw.dota, "train/labelTxt/{}.txt")),
    "open_images": ("openimages", lambda: (
        draw.photos("images/train/") | draw.below("annotations", draw.open_images()))),
    "coco_instances": ("coco", lambda: draw.coco("annotations/instances_train.json", "images/train/")),
    "yolo": ("yolo", lambda: draw.yolo("obj_train_data/", "obj_train_data/") | {
        "obj.names": "dog\nbird\n", "obj.data": "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n",
        "train.txt": "".join(f"data/obj_train_data/{name}.jpg\n" for name in draw.BOXES)}),
}  # fmt: skip
"""Its name of a format -> packer's, and the files of `layouts` in the folders where it looks for them.

It does not read the names in oidv7-class-descriptions.csv, so classes of Open Images are ids."""


@pytest.mark.parametrize("form", READ)
def test_drawn_files_have_the_boxes_that_datumaro_reads(form: str, tmp_path: Path) -> None:
    spec, make = READ[form]
    draw.write(tmp_path / "set", make())
    dataset = datumaro.Dataset.import_from(str(tmp_path / "set"), form)
    names = [label.name for label in dataset.categories()[datumaro.AnnotationType.label]]
    pack = packed(tmp_path / "set", spec, split="all")
    found = {}
    for i, path in enumerate(pack.paths):
        annotation = pack.annotation(i)
        labels = [pack.classes[label] for label in annotation.box_labels]
        found[Path(path).stem] = sorted(zip(labels, annotation.boxes.round(4).tolist(), strict=True))
    read = {}
    for item in dataset:
        things = [one for one in item.annotations if one.type.name in ("bbox", "rotated_bbox")]
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (one.get_bbox() for one in things)]
        read[item.id] = sorted(zip((names[one.label].removeprefix("/m/") for one in things), boxes, strict=True))
    assert found == read and read.keys() == draw.BOXES.keys() and sum(map(len, read.values())) == 4


def test_a_failure_names_its_cause(tmp_path: Path) -> None:
    files: draw.Files = {"train/n000001/0001_01.jpg": PHOTO, "bb_landmark/loose_bb_train.csv": "NAME_ID,X,Y,W,H\n1,x\n"}
    with pytest.raises(UsageError, match=r"as vgg_face2: DatasetImportError: .*, because of \w+Error"):
        opened(tmp_path, files, "datumaro:vgg_face2")


def test_vgg_face2_has_classes_boxes_and_landmarks(tmp_path: Path) -> None:
    points = [f"{c}{i}{a}" for i in range(1, 6) for c, a in (("P", "X"), ("P", "Y"))]
    files: draw.Files = {f"train/n00000{i}/000{i}_01.jpg": PHOTO for i in range(2)} | {
        "bb_landmark/loose_bb_train.csv": draw.table(
            [[f"n00000{i}/000{i}_01", 2, 3, 20, 21] for i in range(2)], "NAME_ID,X,Y,W,H"),
        "bb_landmark/loose_landmark_train.csv": draw.table(
            [[f"n00000{i}/000{i}_01", *range(10)] for i in range(2)], ",".join(["NAME_ID", *points])),
    }  # fmt: skip
    annotation = opened(tmp_path, files, "datumaro:vgg_face2").annotate(b"train/n000001/0001_01.jpg")
    assert annotation.boxes == ((2, 3, 22, 24),) and annotation.box_labels == ("n000001",)
    assert annotation.landmarks == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def test_a_list_of_imagenet_has_splits(tmp_path: Path) -> None:
    files: draw.Files = draw.photos("images/") | {
        "synsets.txt": "n01\nn02\n", "train.txt": "img_0001.jpg 0\nimg_0002.jpg 1\n",
        "val.txt": "img_0003.jpg 0\nimg_0004.jpg 1\n",
    }  # fmt: skip
    source = opened(tmp_path, files, "datumaro:imagenet_txt", "val")
    assert source.annotate(b"images/img_0004.jpg").label == "n02"
    assert source.in_split(b"images/img_0004.jpg") and not source.in_split(b"images/img_0001.jpg")


def test_joints_of_mpii_are_visible_or_hidden(tmp_path: Path) -> None:
    """MPII has 1 for a visible joint and 0 for a hidden one; one without a place is not labelled."""
    joints = [[620 + i, 394.5, i % 2] for i in range(15)] + [[0, 0, 0]]
    content = [{"img_paths": f"{i}.jpg", "joint_self": joints, "objpos": [1, 2], "scale_provided": 3} for i in range(2)]
    files: draw.Files = {"mpii_annotations.json": json.dumps(content), "0.jpg": PHOTO, "1.jpg": PHOTO}
    found = opened(tmp_path, files).annotate(b"1.jpg").keypoints
    assert found is not None and [v for *_, v in found[0]] == [1.0 + i % 2 for i in range(15)] + [0.0]
    assert found[0][3][:2] == (623, 394.5)


def test_datumaro_reads_its_own_format(tmp_path: Path) -> None:
    items = [
        {"id": name, "annotations": [{"id": 0, "type": "bbox", "label_id": 1, "bbox": [1, 2, 3, 4], "group": 0}],
         "image": {"path": f"{name}.jpg"}}
        for name in draw.BOXES
    ]  # fmt: skip
    content = {
        "info": {},
        "categories": {"label": {"labels": [{"name": name, "parent": ""} for name in "ab"]}},
        "items": items,
    }
    files = {**draw.photos("images/train/"), "annotations/train.json": json.dumps(content)}
    found = opened(tmp_path, files).annotate(b"images/train/img_0001.jpg")
    assert found.boxes == ((1, 2, 4, 6),) and found.box_labels == ("b",)


def test_what_it_cannot_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Datumaro cannot read it as celeba"):
        opened(tmp_path, draw.photos(), "datumaro:celeba")
    with pytest.raises(UsageError, match=r"cifar.* is not a format for Datumaro"):
        opened(tmp_path, draw.photos(), "datumaro:cifar")  # its importer unpickles
    with pytest.raises(UsageError, match=r"is not a format for Datumaro.*labelme"):
        opened(tmp_path, draw.photos(), "datumaro:label_me")


# -- what Datumaro writes, in its own code

FACE = {"blur": 1, **dict.fromkeys(("expression", "illumination", "pose", "invalid", "occluded"), 0)}
"""It writes those after illumination in another order than the set has."""
WRITTEN: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "cvat": ("cvat", ("box", "ring", "turned"), {"occluded": 1}),
    "label_me": ("labelme", ("box", "ring"), {"occluded": True}),
    "wider_face": ("widerface", ("box",), FACE),
    "kitti_detection": ("kitti", ("box",), {"occluded": 1, "truncated": 0}),
    "icdar_text_localization": ("icdar", ("ring",), {"text": "to let"}),
    "open_images": ("openimages", ("box",), {"occluded": 1, "truncated": 0, "is_group_of": 0}),
    "coco_instances": ("coco", ("box", "ring"), {}),
    "yolo": ("yolo", ("box",), {}),
    "dota": ("dota", ("turned",), {}),
}
"""Its name of a format -> packer's, the kinds of objects in the file, and their attributes."""
OF_ONE_CLASS = {"wider_face": "face", "icdar_text_localization": "text"}


def given(kind: str, thing: Thing, number: int, label: int | None, attributes: dict[str, Any]) -> Any:
    """An object as Datumaro has it."""
    x1, y1, x2, y2 = thing.box
    about: dict[str, Any] = {"label": label, "id": number, "group": number, "attributes": attributes}
    if kind == "turned":
        center = (x1 + x2) / 2, (y1 + y2) / 2
        return datumaro.components.annotation.RotatedBbox(*center, x2 - x1, y2 - y1, thing.angle, **about)
    if kind == "ring":
        return datumaro.Polygon([value for point in thing.ring for value in point], **about)
    return datumaro.Bbox(x1, y1, x2 - x1, y2 - y1, **about)


@pytest.mark.parametrize("form", WRITTEN)
def test_what_datumaro_writes(form: str, tmp_path: Path) -> None:
    """Each box, polygon and turned box as it was given; images without objects are not in the files of some formats."""
    spec, kinds, attributes = WRITTEN[form]
    drawn = {name: things for name, things in things_of(form, step=1).items() if things}
    if only := OF_ONE_CLASS.get(form):
        drawn = {name: [replace(thing, name=only) for thing in things] for name, things in drawn.items()}
    classes = ["face"] if only else CLASSES
    paths, items = write_images(tmp_path / "drawn", drawn), []
    numbers = count(1)
    for name, things in drawn.items():
        annotations = []
        for k, thing in enumerate(things):
            label = None if only == "text" else classes.index(thing.name)
            annotations.append(given(kinds[k % len(kinds)], thing, next(numbers), label, attributes))
        image = datumaro.Image.from_file(path=str(paths[name]))
        items.append(datumaro.DatasetItem(id=name, subset="train", media=image, annotations=annotations))
    datumaro.Dataset.from_iterable(items, categories=classes).export(str(tmp_path / "set"), form, save_media=True)
    pack = packed(tmp_path / "set", spec, split="all")
    for i, things in each(pack, drawn):
        found = pack.annotation(i)
        for name, value in [*attributes.items()][:1]:
            assert [*found.box_fields["occlusion" if spec == "kitti" else name]] == [value] * len(things)
        for k, thing in enumerate(things):
            kind = kinds[k % len(kinds)]
            if kind == "box":
                np.testing.assert_allclose(found.boxes[k], thing.box, atol=MILLI)
            elif kind == "ring":
                np.testing.assert_allclose(found.polygons[k], thing.ring, atol=MILLI)
            else:
                np.testing.assert_allclose(found.obb[k], thing.corners, atol=0.006)  # of two digits


def test_masks_of_cvat_that_datumaro_writes(tmp_path: Path) -> None:
    """Runs of pixels, row by row."""
    drawn = things_of("masks")
    paths, items = write_images(tmp_path / "drawn", drawn), []
    for name, things in drawn.items():
        masks = [datumaro.Mask(blob_in(thing), label=CLASSES.index(thing.name), z_order=0) for thing in things]
        image = datumaro.Image.from_file(path=str(paths[name]))
        items.append(datumaro.DatasetItem(id=name, media=image, annotations=masks))
    datumaro.Dataset.from_iterable(items, categories=CLASSES).export(str(tmp_path / "set"), "cvat", save_media=True)
    pack = packed(tmp_path / "set", "cvat", instance_masks=True)
    for i, things in each(pack, drawn):
        wanted = np.array([blob_in(thing) for thing in things], np.uint8).reshape(-1, HEIGHT, WIDTH)
        assert np.array_equal(pack.instance_masks(i), wanted)
