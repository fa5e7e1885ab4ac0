"""Sets with formats of their own, compared with parsers of the standard library: every box, field and flag."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from PIL import Image

from packer.errors import BadLabel, UsageError
from packer.model.annotation import IGNORED, RawAnnotation
from packer.sources import open_source, recognize, with_masks
from packer.sources.source import SourceOptions
from packer.sources.text_rows import IcdarSource, KittiSource, VisDroneSource


@pytest.fixture
def read(make_tree):
    """Write these files, open them as auto does, and return the source and {image: annotation}."""

    def of(files: dict[str, str | bytes], kind: str, **options: Any) -> tuple[Any, dict[str, RawAnnotation]]:
        tree = make_tree(files)
        assert recognize(tree, SourceOptions()).spec == kind
        source = open_source(kind, tree, SourceOptions(**options))
        images = [image for image in tree.images if source.left_out(image) is None]
        return source, {os.fsdecode(image): source.annotate(image) for image in images}

    return of


KITTI = """\
Truck 0.00 0 -1.57 599.41 156.40 629.75 189.25 2.85 2.63 12.34 0.47 1.49 69.44 -1.56
Car 0.35 3 1.85 387.63 181.54 423.81 203.12 1.67 1.87 3.69 -16.53 2.39 58.49 1.57
DontCare -1 -1 -10 503.89 169.71 590.61 190.13 -1 -1 -1 -1000 -1000 -1000 -10
"""


def test_kitti(read):
    files = {f"training/image_2/00000{i}.png": "" for i in range(2)}
    _, found = read(files | {"training/label_2/000000.txt": KITTI, "training/label_2/000001.txt": ""}, "kitti")
    rows = [line.split() for line in KITTI.splitlines()]
    one = found["training/image_2/000000.png"]
    assert one.boxes == tuple(tuple(map(float, row[4:8])) for row in rows)
    assert one.box_labels == ("Truck", "Car", IGNORED)
    assert one.box_fields["occlusion"] == (0, 3, None)
    assert one.box_fields["truncation"] == (0.0, 0.35, None)
    assert one.box_fields["alpha"] == (-1.57, 1.85, None)
    assert one.box_fields["rotation_y"] == (-1.56, 1.57, None)
    assert one.box_fields["dimensions"] == ([2.85, 2.63, 12.34], [1.67, 1.87, 3.69], None)
    assert one.box_fields["location"] == ([0.47, 1.49, 69.44], [-16.53, 2.39, 58.49], None)
    assert one.box_fields["ignore"] == (0, 0, 1)
    assert found["training/image_2/000001.png"].boxes == ()


def test_labels_of_kitti_are_those_of_the_left_camera(make_tree):
    """Both cameras have images of the same names."""
    tree = make_tree({f"training/image_{i}/000000.png": "" for i in (2, 3)} | {"training/label_2/000000.txt": KITTI})
    source = open_source("kitti", tree, SourceOptions())
    assert len(source.annotate(b"training/image_2/000000.png").boxes) == 3
    with pytest.raises(BadLabel, match=r"has no label file 000000\.txt"):
        source.annotate(b"training/image_3/000000.png")


VISDRONE = "684,8,273,116,0,0,0,0\r\n406,119,265,70,1,4,0,1,\r\n255,22,119,128,0,11,1,2\r\n"


def test_visdrone(read):
    source, found = read({"images/0000001_d.jpg": "", "annotations/0000001_d.txt": VISDRONE}, "visdrone")
    rows = [[int(cell) for cell in line.split(",") if cell] for line in VISDRONE.split()]
    (one,) = found.values()
    assert one.boxes == tuple((x, y, x + w, y + h) for x, y, w, h, *_ in rows)
    assert one.box_labels == (IGNORED, "car", "others")
    assert source.classes is not None and source.classes[:4] == ("pedestrian", "people", "bicycle", "car")
    assert one.box_fields == {"truncation": (0, 0, 1), "occlusion": (0, 1, 2), "ignore": (1, 0, 1)}
    assert one.box_lines == (1, 2, 3)


ICDAR = {
    "2015": ("\ufeff377,117,463,117,465,130,378,130,Genaxis, Theatre\r\n374,155,409,155,409,170,374,170,###\r\n",
             [("Genaxis, Theatre", {}), ("###", {})]),
    "2017": ("\ufeff1,2,30,2,30,12,1,12,Latin,Hello\n5,5,9,5,9,9,5,9,None,###\n",
             [("Hello", {"script": "Latin"}), ("###", {"script": "None"})]),
    "2013": ('38, 43, 920, 215, "Tiredness"\n275, 264, 665, 450, "kills, ""A"""\n',
             [("Tiredness", {}), ('kills, ""A""', {})]),
    "2013 by blanks": ('158 128 411 181 "Footpath"\n443 128 501 169 "To"\n', [("Footpath", {}), ("To", {})]),
    "RCTW": ('390,902,1856,902,1856,1225,390,1225,0,"金氏"\n1,2,30,2,30,12,1,12,1,"###"\n',
             [("金氏", {"difficult": 0}), ("###", {"difficult": 1})]),
    "quotes": ('0,0,3,1,4,6,1,7,"FOOD"\n1,2,30,2,30,12,1,12,"\n', [("FOOD", {}), ('"', {})]),
    "numbers alone": ("1,2,30,2,31,12,1,12\n5.5,5,9,5,9,9,5,9\n", [("", {}), ("", {})]),
}  # fmt: skip


@pytest.mark.parametrize("name", ICDAR)
def test_icdar(read, name):
    text, expected = ICDAR[name]
    source, found = read({"images/img_1.jpg": "", "gt/gt_img_1.txt": text}, "icdar")
    (one,) = found.values()
    assert source.classes == ("text",) and one.box_labels == ("text", "text")
    for i, (line, (words, fields)) in enumerate(zip(text.lstrip("\ufeff").splitlines(), expected, strict=True)):
        quad = not name.startswith("2013")
        numbers = [float(cell.strip(", ")) for cell in line.replace(",", ", ").split(None, 8)[: 8 if quad else 4]]
        assert one.boxes[i] == (min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2]))
        assert one.polygons is None or one.polygons[i] == tuple(zip(numbers[::2], numbers[1::2], strict=True))
        assert (one.polygons is not None) == quad
        assert one.box_fields["text"][i] == words and one.box_fields["ignore"][i] == (words == "###")
        assert {key: one.box_fields[key][i] for key in fields} == fields


def test_texts_in_another_encoding_are_named(make_tree):
    tree = make_tree({"img_1.jpg": "", "gt_img_1.txt": "1,2,30,2,30,12,1,12,Caf\xe9\n".encode("latin-1")})
    with pytest.raises(BadLabel, match=r"gt_img_1.txt:1: .*is not UTF-8; convert the file"):
        open_source("icdar", tree, SourceOptions()).annotate(b"img_1.jpg")


BDD: list[dict[str, Any]] = [
    {"name": "a.jpg", "attributes": {"weather": "clear", "timeofday": "night"}, "timestamp": 10000, "labels": [
        {"id": "0", "category": "traffic light", "manualShape": True,
         "attributes": {"occluded": True, "truncated": False, "trafficLightColor": "green"},
         "box2d": {"x1": 5.5, "y1": 6.25, "x2": 17, "y2": 28}},
        {"id": "1", "category": "person", "attributes": {"Occluded": False, "Truncated": True, "crowd": True},
         "box2d": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}},
        {"id": "2", "category": "other vehicle", "attributes": {"ignored": True},
         "box2d": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}},
        {"id": "3", "category": "drivable", "poly2d": [
            {"vertices": [[0, 30], [10, 20], [20, 30]], "types": "LLL", "closed": False}]},
        {"id": "4", "category": "single white", "attributes": {"laneDirection": "parallel", "laneStyle": "solid"},
         "poly2d": [{"vertices": [[0, 9], [10, 20], [20, 30]], "types": "LLL", "closed": False}]},
        {"id": "5", "category": "car", "box3d": {"location": [1, 2, 3]}},
    ]},
    {"name": "b.jpg", "labels": None},
]  # fmt: skip


@pytest.mark.parametrize("as_scalabel", [False, True])
def test_bdd100k(read, as_scalabel):
    text = json.dumps({"frames": BDD, "config": {"categories": []}} if as_scalabel else BDD)
    source, found = read({"images/a.jpg": "", "images/b.jpg": "", "det.json": text}, "bdd100k")
    one = found["images/a.jpg"]
    assert one.boxes == ((5.5, 6.25, 17, 28), (1, 2, 3, 4), (1, 2, 3, 4), (0, 20, 20, 30))
    assert one.box_labels == ("traffic light", "person", "other vehicle", "drivable")
    assert one.polygons == ((), (), (), ((0, 30), (10, 20), (20, 30)))
    assert one.box_fields == {
        "occluded": (1, 0, 0, 0), "truncated": (0, 1, 0, 0), "trafficLightColor": ("green", None, None, None),
        "iscrowd": (0, 1, 0, 0), "ignore": (0, 0, 1, 0),
    }  # fmt: skip
    assert one.extras == {"weather": "clear", "timeofday": "night"}
    assert found["images/b.jpg"].boxes == ()
    assert source.notes == ["left out, because packer has no field for them: 1 cuboid, 1 line"]


def test_the_first_release_of_bdd100k(read):
    """A file for each image; outlines are lists of x, y and a letter, of which C is the point of a curve."""
    outline = [[0, 0, "L"], [0, 4, "C"], [4, 8, "C"], [8, 8, "L"], [8, 0, "L"]]
    curve = [[0, 0, "L"], [0, 8, "C"], [8, 8, "C"], [8, 0, "C"]]
    objects = [
        {"category": "area/drivable", "id": 0, "attributes": {}, "poly2d": outline},
        {"category": "area/alternative", "id": 1, "attributes": {}, "poly2d": curve},
        {"category": "lane/road curb", "id": 2, "attributes": {}, "poly2d": outline[:2]},
    ]
    files = {f"images/{n}.jpg": "" for n in "ab"}
    for name, there in (("a", objects), ("b", [])):
        frames = [{"timestamp": 10000, "objects": there}]
        files[f"labels/{name}.json"] = json.dumps({"name": name, "frames": frames, "attributes": {"scene": "street"}})
    _, found = read(files, "bdd100k")
    one = found["images/a.jpg"]
    assert one.polygons is not None and one.polygons[0] == ((0, 0), (0, 4), (4, 8), (8, 8), (8, 0))
    t = np.linspace(0, 1, 9)[:, None]
    points = [np.array(point[:2]) for point in curve]
    bezier = sum(c * (1 - t) ** (3 - i) * t**i * p for i, (c, p) in enumerate(zip((1, 3, 3, 1), points, strict=True)))
    np.testing.assert_allclose(one.polygons[1], bezier, atol=1e-12)
    assert one.extras == {"scene": "street"} and found["images/b.jpg"].boxes == ()


def test_a_file_of_bdd100k_that_is_cut_short(make_tree):
    text = json.dumps({"name": "b", "frames": [{"timestamp": 1, "objects": BDD[0]["labels"][:2]}]})
    files = {f"{n}.jpg": "" for n in "ab"} | {"a.json": json.dumps(BDD)[:600], "b.json": text}
    source = open_source("bdd100k", make_tree(files), SourceOptions())
    with pytest.raises(BadLabel, match=r"a\.json: is not JSON"):
        source.annotate(b"a.jpg")
    assert source.annotate(b"b.jpg").boxes == ((5.5, 6.25, 17, 28), (1, 2, 3, 4))
    with pytest.raises(UsageError, match=r"det\.json: is not JSON"):
        open_source("bdd100k", make_tree({"det.json": json.dumps(BDD)[:600]}), SourceOptions())


def test_masks_of_scalabel(read):
    coco = pytest.importorskip("pycocotools.mask", reason="needs pycocotools (packer[masks])")
    mask = np.zeros((20, 30), np.uint8)
    mask[3:9, 4:20] = 1
    rle = coco.encode(np.asfortranarray(mask))
    label = {"category": "car", "rle": {"size": [20, 30], "counts": rle["counts"].decode()},
             "box2d": {"x1": 4, "y1": 3, "x2": 20, "y2": 9}}  # fmt: skip
    files = {"a.jpg": "", "ins_seg.json": json.dumps([{"name": "a.jpg", "labels": [label]}])}
    _, found = read(files, "bdd100k", instance_masks=True)
    ((shape,), one) = found["a.jpg"].rles, found["a.jpg"]
    np.testing.assert_array_equal(coco.decode({**shape, "counts": shape["counts"].encode()}), mask)
    assert one.boxes == ((4, 3, 20, 9),)
    assert read(files, "bdd100k")[1]["a.jpg"].boxes == one.boxes


CROWDHUMAN = {"ID": "273271,c9db000d5146c15", "gtboxes": [
    {"fbox": [72, 202, 163, 503], "tag": "person", "hbox": [171, 208, 62, 83], "vbox": [72, 202, 163, 398],
     "extra": {"box_id": 0, "occ": 1}, "head_attr": {"ignore": 0, "occ": 0, "unsure": 0}},
    {"fbox": [-9, 199, 144, 499], "tag": "person", "hbox": [1, 1, 2, 2], "vbox": [0, 199, 135, 400],
     "extra": {"box_id": 1, "occ": 0, "ignore": 1}, "head_attr": {"ignore": 1}},
    {"fbox": [5, 6, 7, 8], "tag": "mask", "hbox": [5, 6, 7, 8], "vbox": [5, 6, 7, 8], "extra": {"ignore": 1}},
]}  # fmt: skip


def test_crowdhuman(read):
    files = {"Images/273271,c9db000d5146c15.jpg": "", "annotation_train.odgt": json.dumps(CROWDHUMAN) + "\n"}
    _, found = read(files, "crowdhuman")
    (one,) = found.values()
    items: Any = CROWDHUMAN["gtboxes"]
    assert one.boxes == tuple((x, y, x + w, y + h) for x, y, w, h in (item["fbox"] for item in items))
    assert one.box_labels == ("person", "person", IGNORED)
    assert one.box_fields["ignore"] == (0, 1, 1) and one.box_fields["occluded"] == (1, 0, 0)
    assert [*one.box_fields["vbox"]] == [item["vbox"] for item in items]
    assert [*one.box_fields["hbox"]] == [item["hbox"] for item in items]


OPEN_IMAGES = {
    "train-annotations-human-imagelabels.csv": "ImageID,Source,LabelName,Confidence\n"
    "00a,verification,/m/01,1\n00a,verification,/m/02,0\n00a,machine,/m/01,0.7\n00b,verification,/m/02,1\n",
    "train-annotations-bbox.csv": "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,"
    "IsGroupOf,IsDepiction,IsInside\n00a,xclick,/m/02,1,0.125,0.5,0.25,0.75,1,0,0,0,0\n"
    "00a,xclick,/m/01,1,0.0,0.5,0.0,1.0,-1,0,1,0,0\n",
    "train-annotations-object-segmentation.csv": "MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,"
    "PredictedIoU,Clicks\n00a_m02_x.png,00a,/m/02,x,0.125000,0.500000,0.250000,0.750000,0.9,0.1 0.2 1\n"
    "00a_m01_y.png,00a,/m/01,y,0.500000,0.750000,0.000000,0.500000,0.9,\n",
    "image_ids_and_rotation.csv": "ImageID,Subset,OriginalURL,License,Rotation\n00a,train,u,l,0\n00b,train,u,l,\n",
    "oidv7-class-descriptions.csv": 'LabelName,DisplayName\n/m/01,Cat\n/m/02,"Dog, big"\n',
}


def test_open_images(read, make_tree):
    coco = pytest.importorskip("pycocotools.mask", reason="needs pycocotools (packer[masks])")
    pixels = np.zeros((8, 16), bool)  # half the size of the image
    pixels[2:6, 2:8] = True
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    Image.fromarray(pixels.repeat(2, 0).repeat(2, 1)).save(whole := io.BytesIO(), "PNG")
    photos = {f"train/{name}.jpg": image_file(i, 32, 16) for i, name in enumerate(("00a", "00b"))}
    masks = {f"masks/{name}.png": file.getvalue() for name in ("00a_m02_x", "00a_m01_y")}
    source, found = read(photos | masks | OPEN_IMAGES, "openimages", instance_masks=True)
    rows = OPEN_IMAGES["train-annotations-object-segmentation.csv"].splitlines(keepends=True)[:2]
    one_mask = {"masks/00a_m02_x.png": whole.getvalue(), "train-annotations-object-segmentation.csv": "".join(rows)}
    tree = make_tree(one_mask)
    assert with_masks(("auto",), tree, SourceOptions()).masks is None  # they are of objects, not of classes
    assert source.tags == ("Cat", "Dog, big")
    one, other = found["train/00a.jpg"], found["train/00b.jpg"]
    assert (one.tags, other.tags) == ((True, False), (False, True))
    assert one.extras == {"confidence": {"Cat": 1.0, "Dog, big": 0.0}}
    assert one.boxes == ((0.125, 0.25, 0.5, 0.75), (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 0.75, 0.5)) and one.relative
    assert one.box_labels == ("Dog, big", "Cat", "Cat")
    assert one.box_fields == {"occluded": (1, 0, 0), "truncated": (0, 0, 0), "iscrowd": (0, 1, 0)}
    first, none, last = one.rles
    assert none == ()
    for shape in (first, last):
        decoded = coco.decode({**shape, "counts": shape["counts"].encode()})
        np.testing.assert_array_equal(decoded, np.kron(pixels, np.ones((2, 2))))
    assert other.boxes == ()


def test_open_images_without_boxes_has_no_objects(read):
    name = "train-annotations-human-imagelabels.csv"
    source, found = read({"00a.jpg": "", "00b.jpg": "", name: OPEN_IMAGES[name]}, "openimages")
    assert [one.boxes for one in found.values()] == [None, None] and source.tags == ("/m/01", "/m/02")
    assert source.notes == ["2 classes have no name, such as /m/01: put class-descriptions.csv into the source"]


def test_sa1b(read):
    """Boxes are x, y, width and height; masks are read as pycocotools reads them."""
    coco = pytest.importorskip("pycocotools.mask", reason="needs pycocotools (packer[masks])")
    mask = np.zeros((16, 32), np.uint8)
    mask[2:9, 3:20], mask[4, 5] = 1, 0
    runs = coco.encode(np.asfortranarray(mask))["counts"].decode()
    things = [
        {"bbox": [3.0, 2.0, 16.5, 6.0], "area": 118, "predicted_iou": 0.98, "stability_score": 0.96, "id": 5,
         "crop_box": [0, 0, 32, 16], "point_coords": [[4, 5]], "segmentation": {"size": [16, 32], "counts": runs}}
    ]  # fmt: skip
    about = {"image_id": 7, "width": 32, "height": 16, "file_name": "sa_7.jpg"}
    photos = {f"sa_{i}.jpg": image_file(i, 32, 16) for i in (7, 8)}
    files = photos | {"sa_7.json": json.dumps({"image": about, "annotations": things})}
    files["sa_8.json"] = json.dumps({"annotations": [], "image": about | {"image_id": 8}})
    source, found = read(files, "sa1b")
    one = found["sa_7.jpg"]
    assert one.boxes == ((3.0, 2.0, 19.5, 8.0),) and one.box_labels == ("object",) and one.rles is None
    assert one.box_fields == {"area": (118,), "predicted_iou": (0.98,), "stability_score": (0.96,)}
    assert one.extras == {"image_id": 7} and one.image_size == (32, 16) and found["sa_8.jpg"].boxes == ()
    assert "--instance-masks packs them" in source.notes[0]
    _, found = read(files, "sa1b", instance_masks=True)
    (shape,) = found["sa_7.jpg"].rles
    np.testing.assert_array_equal(coco.decode({**shape, "counts": shape["counts"].encode()}), mask)


def test_what_labelme_calls_ignored_is(read):
    shapes = [{"label": name, "points": [[1, 2], [9, 20]], "shape_type": "rectangle"} for name in ("dog", IGNORED)]
    _, found = read({"a.jpg": "", "a.json": json.dumps({"shapes": shapes, "imagePath": "a.jpg"})}, "labelme")
    assert found["a.jpg"].box_fields == {"ignore": (0, 1)}


def test_invalid_faces_of_wider_face_are_ignored(read):
    text = "a.jpg\n2\n1 2 3 4 0 0 0 0 0 0\n5 6 7 8 2 0 0 1 0 0\n"
    _, found = read({"a.jpg": "", "wider_face_val_bbx_gt.txt": text}, "widerface")
    assert found["a.jpg"].box_fields["invalid"] == found["a.jpg"].box_fields["ignore"] == (0, 1)


@pytest.mark.parametrize("kind", ["kitti", "visdrone", "icdar", "bdd100k", "crowdhuman", "openimages"])
def test_a_kind_that_is_not_there_stops(make_tree, kind):
    with pytest.raises(UsageError):
        open_source(kind, make_tree({"a.jpg": "", "readme.txt": "text", "b.json": "{}"}), SourceOptions())


def test_formats_that_packer_reads_itself_are_named(make_tree):
    with pytest.raises(UsageError, match=r"packer reads it itself: --labels[ =]kitti"):
        open_source("datumaro:kitti_detection", make_tree({"a.jpg": ""}), SourceOptions())


@pytest.mark.parametrize("line", ["1,2,3,4,5,6,7,8,9,10", ",".join(["7"] * 136), "0 0.5 0.5 0.2 0.2", "a.jpg 1 2 3 4"])
def test_landmarks_and_boxes_of_others_are_not_taken_for_texts(make_tree, line):
    tree = make_tree({f"{n}.jpg": "" for n in "ab"} | {f"{n}.txt": f"{line}\n" for n in "ab"})
    assert not any(source.recognize(tree) for source in (KittiSource, VisDroneSource, IcdarSource))
