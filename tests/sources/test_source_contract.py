"""What every source promises, whatever its layout."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from packer.errors import BadLabel, NoLabel
from packer.model.annotation import RawAnnotation
from packer.sources import SOURCES, open_source
from packer.sources.source import SourceOptions

BOX = "<object><name>n</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object>"
KITTI = "Car 0.00 0 -1.57 1.00 1.00 2.00 2.00 1.5 1.6 3.9 0.6 1.7 20.1 -1.59\n"
LABELME = (
    '{"shapes": [{"label": "c", "shape_type": "polygon", "points": [[1, 1], [2, 1], [2, 2]]}], "imagePath": "%s.jpg",'
    ' "imageData": null}'
)
# per source: a good image g.jpg, one without label u.jpg, one with a bad label b.jpg, one label too many
LAYOUTS = {
    "none": {"g.jpg": ""},
    "folder": {"c/g.jpg": "", "u.jpg": ""},
    "voc": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "g.xml": f"<annotation>{BOX}</annotation>", "b.xml": "<annotation>",
        "x.xml": "<annotation/>",
    },
    "yolo": {
        "images/g.jpg": "", "images/u.jpg": "", "images/b.jpg": "", "labels/g.txt": "0 .5 .5 1 1", "labels/b.txt": "?",
        "labels/x.txt": "",
    },
    "dota": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "g.txt": "1 1 2 1 2 2 1 2 n 0", "b.txt": "?",
        "x.txt": "1 1 2 1 2 2 1 2 n 0",
    },
    "coco": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "",
        "c.json": '{"images": [{"id": 1, "file_name": "g.jpg"}, {"id": 2, "file_name": "b.jpg"}], "categories": '
        '[{"id": 1, "name": "n"}], "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2]}, '
        '{"id": 2, "image_id": 2, "category_id": 9, "bbox": [1, 1, 2, 2]}, {"id": 3, "image_id": 7}]}',
    },
    "pts": {"g.jpg": "", "u.jpg": "", "b.jpg": "", "g.pts": "{\n1 1\n}", "b.pts": "{\n1\n}", "x.pts": "{\n}"},
    "dlib": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "",
        "d.xml": '<dataset><images><image file="g.jpg"><box left="1" top="1" width="2" height="2"/></image>'
        '<image file="b.jpg"><box left="1"/></image><image file="x.jpg"/></images></dataset>',
    },
    "list": {"g.jpg": "", "u.jpg": "", "b.jpg": "", "l.txt": "g.jpg 1 2\nb.jpg 1 ?\nx.jpg 1 2\n"},
    "name": {"1.5_g.jpg": "", "u.jpg": "", "x_b.jpg": ""},
    "cvat": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "a.xml": "<annotations><version>1.1</version>"
        + "".join(f'<image name="{name}.jpg"><box label="c" xtl="1" ytl="1" xbr="{edge}" ybr="2"/></image>'
                  for name, edge in (("g", 2), ("b", "?"), ("x", 2))) + "</annotations>",
    },
    "labelme": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "g.json": LABELME % "g", "b.json": '{"shapes": 7}',
        "x.json": LABELME % "x",
    },
    "via": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "via.json": "{" + ", ".join(
            f'"{name}.jpg9": {{"filename": "{name}.jpg", "size": 9, "file_attributes": {{}}, "regions": {regions}}}'
            for name, regions in (("g", "[]"), ("b", "7"), ("x", "[]"))) + "}",
    },
    "labelstudio": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "result.json": "[" + ", ".join(
            f'{{"id": 1, "annotations": [{{"completed_by": 1, "result": {results}}}], "file_upload": "{name}.jpg", '
            f'"data": {{"image": "/data/upload/1/{name}.jpg"}}}}'
            for name, results in (("g", "[]"), ("b", "7"), ("x", "[]"))) + "]",
    },
    "supervisely": {
        "img/g.jpg": "", "img/u.jpg": "", "img/b.jpg": "", **{
            f"ann/{name}.jpg.json": f'{{"tags": [], "size": {{"width": 4, "height": 3}}, "objects": {objects}}}'
            for name, objects in (("g", "[]"), ("b", "7"), ("x", "[]"))},
    },
    "createml": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "_annotations.createml.json": "[" + ", ".join(
            f'{{"image": "{name}.jpg", "annotations": [{{"label": "c", "coordinates": '
            f'{{"x": 2, "y": 2, "width": {width}, "height": 2}}}}]}}'
            for name, width in (("g", 1), ("b", '"?"'), ("x", 1))) + "]",
    },
    "vott": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "s-export.json": '{"assets": {' + ", ".join(
            f'"{name}": {{"asset": {{"name": "{name}.jpg"}}, "regions": {regions}}}'
            for name, regions in (("g", "[]"), ("b", "7"), ("x", "[]"))) + "}}",
    },
    "widerface": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "wider_face_train_bbx_gt.txt":
        "g.jpg\n1\n1 1 2 2 0 0 0 0 0 0\nb.jpg\n1\n1 1 2 ?\nx.jpg\n0\n0 0 0 0 0 0 0 0 0 0\n",
    },
    "kitti": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "g.txt": KITTI, "b.txt": KITTI + "Car 1 2\n", "x.txt": KITTI,
    },
    "visdrone": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "g.txt": "1,1,2,2,1,4,0,0\n", "b.txt": "1,1,2,2,1,12,0,0\n",
        "x.txt": "1,1,2,2,1,4,0,0\n",
    },
    "icdar": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "gt_g.txt": "1,1,2,1,2,2,1,2,a\n", "gt_b.txt": "1,1,2,1,2,2,?,2,a\n",
        "gt_x.txt": "1,1,2,1,2,2,1,2,a\n",
    },
    "bdd100k": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "train.json": "[" + ", ".join(
            f'{{"name": "{name}.jpg", "labels": [{{"category": "c", "box2d": {{"x1": 1, "y1": 1, "x2": {edge}, '
            f'"y2": 2}}}}]}}' for name, edge in (("g", 2), ("b", '"?"'), ("x", 2))) + "]",
    },
    "crowdhuman": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "train.odgt": "".join(
            f'{{"ID": "{name}", "gtboxes": [{{"tag": "person", "fbox": [1, 1, {width}, 2]}}]}}\n'
            for name, width in (("g", 2), ("b", '"?"'), ("x", 2))),
    },
    "openimages": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "train.csv":
        "ImageID,Source,LabelName,Confidence\ng,a,/m/0,1\nb,a,/m/0,?\nx,a,/m/0,1\n",
    },
    "sa1b": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", **{
            f"{name}.json": f'{{"image": {{"image_id": 1}}, "annotations": [{{"bbox": [1, 1, {width}, 1], '
            '"predicted_iou": 1, "stability_score": 1}]}' for name, width in (("g", 1), ("b", '"?"'), ("x", 1))},
    },
    "jsonl": {
        "g.jpg": "", "u.jpg": "", "b.jpg": "", "metadata.jsonl": "".join(
            f'{{"file_name": "{name}.jpg", "objects": {{"bbox": [[9, 9, 1, {height}]], "categories": ["c"]}}}}\n'
            for name, height in (("g", 1), ("b", '"?"'), ("x", 1))),
    },
}  # fmt: skip


LAYOUTS["yolo-obb"] = LAYOUTS["yolo"]


@pytest.fixture(params=sorted(SOURCES.keys() - {"datumaro", "parquet"}))  # test_datumaro.py, test_source_parquet.py
def opened(request, make_tree):
    tree = make_tree(LAYOUTS[request.param])
    spec = request.param
    if spec == "list":
        spec += f":{os.fsdecode(tree.root)}/l.txt"
    if spec == "name":
        spec += ":(?P<value>.+)_(?P<what>.)"
    columns = "path x y" if request.param == "list" else None
    return request.param, tree, open_source(spec, tree, SourceOptions(columns=columns))


def image_named(tree, name):
    return next((image for image in tree.images if image.endswith(name)), None)


def test_a_good_image_has_an_annotation(opened):
    _, tree, source = opened
    image = image_named(tree, b"g.jpg")
    annotation = source.annotate(image)
    assert isinstance(annotation, RawAnnotation) and annotation == source.annotate(image)
    assert source.in_split(image) is True
    lists = (annotation.boxes, annotation.box_labels, annotation.polygons, *annotation.box_fields.values())
    assert len({len(values) for values in lists if values is not None}) <= 1
    names = {annotation.label, *(annotation.box_labels or ())} - {None}
    assert source.classes is None or names <= set(source.classes)


def test_an_image_without_label_is_told_from_one_with_a_bad_one(opened):
    name, tree, source = opened
    unlabelled, bad = image_named(tree, b"u.jpg"), image_named(tree, b"b.jpg")
    assert (unlabelled is None) == (name == "none") and (bad is None) == (name in ("none", "folder"))
    if unlabelled:
        with pytest.raises(NoLabel):
            source.annotate(unlabelled)
    if bad:
        with pytest.raises(BadLabel) as caught:
            source.annotate(bad)
        assert not isinstance(caught.value, NoLabel)


def test_a_label_without_image_is_left_over(opened):
    name, _, source = opened
    assert len(list(source.unmatched_labels())) == (name not in ("none", "folder", "name"))


def test_notes_are_text_and_classes_are_unique(opened):
    _, _, source = opened
    assert all(isinstance(note, str) for note in source.notes)
    assert source.classes is None or len(set(source.classes)) == len(source.classes)


def test_a_source_can_be_pickled(opened):
    _, tree, source = opened
    image = image_named(tree, b"g.jpg")
    assert pickle.loads(pickle.dumps(source)).annotate(image) == source.annotate(image)


def test_the_folder_is_never_written_to(opened):
    _, tree, source = opened

    def state():
        found = sorted((folder, name) for folder, _, names in os.walk(tree.root) for name in names)
        return [(f, n, hashlib.sha256(Path(os.fsdecode(os.path.join(f, n))).read_bytes()).digest()) for f, n in found]

    before = state()
    for image in tree.images:
        with suppress(BadLabel):
            source.annotate(image)
    list(source.unmatched_labels())
    assert state() == before


def test_sources_import_nothing_heavy():
    code = "import sys, packer.sources.auto, packer.sources.list_source, packer.sources.folder\n"
    code += "names = {m.split('.')[0] for m in sys.modules} & {'cv2', 'torch', 'lmdb', 'h5py', 'pyarrow'}\n"
    code += "above = {m for m in sys.modules if m.startswith(('packer.format', 'packer.packing'))}\n"
    code += "print(names | above)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "set()"
