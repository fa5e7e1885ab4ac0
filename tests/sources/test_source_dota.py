"""Oriented boxes: the lines of DOTA against a second reading, YOLO's rows of four points, rotated boxes of CVAT."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import BadLabel
from packer.sources import open_source, recognize
from packer.sources.dota import parse_dota
from packer.sources.source import SourceOptions

NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
LINE = re.compile(rf"\s*((?:{NUMBER}\s+){{8}})(\S+)(?:\s+([0-9]+))?\s*", re.ASCII)
HEAD = re.compile(r"'?(acquisition dates|imagesource|gsd)'?:(.*)")
PLANE = "10 20 30.5 18 32 40 11 41.5 plane 0\n"


def oracle(text: str) -> list[tuple[list[float], str, int]] | None:
    """Numbers, class and flag of each line; None for a file with a bad one."""
    found = []
    for line in text.split("\n"):
        if not line.strip() or HEAD.fullmatch(line.strip()):
            continue
        match = LINE.fullmatch(line)
        if match is None or (match[3] is None and re.fullmatch(NUMBER, match[2])):
            return None
        values = list(map(float, match[1].split()))
        if max(map(abs, values)) > 1e9 or int(match[3] or 0) > 65535:
            return None
        found.append((values, match[2], int(match[3] or 0)))
    return found


numbers = st.floats(-50, 4000).map(lambda value: f"{value:.3f}")
good = st.tuples(st.lists(numbers, min_size=8, max_size=8), st.sampled_from(["plane 0", "large-vehicle 1", "é", "7 2"]))
heads = ["imagesource:GF2", "gsd:0.5", "gsd:null", "'gsd':1", "acquisition dates:None"]
odd = st.sampled_from(["", " ", *heads, "a b", PLANE + "1 2 3", "x" * 99])
short = st.lists(numbers, max_size=10).map(" ".join)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(good.map(lambda one: f"{' '.join(one[0])} {one[1]}") | odd | short, max_size=4))
def test_lines_agree_with_a_second_reading(lines):
    text = "\n".join(lines)
    expected = oracle(text)
    try:
        found = parse_dota(text.encode(), b"a.txt")
    except BadLabel:
        assert expected is None
        return
    assert expected is not None and len(found.boxes) == len(expected)
    for corners, box, name, (values, wanted, _) in zip(found.obb, found.boxes, found.box_labels, expected, strict=True):
        assert [value for point in corners for value in point] == values and name == wanted
        assert box == (min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2]))
    assert list(found.box_fields.get("difficult", [0] * len(expected))) == [flag for *_, flag in expected]


def test_the_lines_before_the_objects():
    found = parse_dota(b"imagesource:GoogleEarth\ngsd:0.146\n" + PLANE.encode(), b"a.txt")
    assert found.extras == {"imagesource": "GoogleEarth", "gsd": 0.146} and found.box_lines == (3,)
    assert parse_dota(b"'imagesource':GF2\r\n'gsd':null\r\n", b"a.txt").extras == {"imagesource": "GF2", "gsd": "null"}


@pytest.mark.parametrize(("line", "message"), [
    ("1 2 3 4 5 6 7 8", "has 8 columns, not 10: x1 y1"),
    ("1 2 3 4 5 6 7 8 plane 0 9", "has 11 columns"),
    ("1 2 3 4 5 6 7 x plane 0", '"x" is not a number'),
    ("1 2 3 4 5 6 7 8 plane yes", 'difficult: "yes" is not a whole number'),
    ("0 .1 .1 .2 .1 .2 .2 .1 .2", "has 9 numbers, as YOLO's rows"),
])  # fmt: skip
def test_errors_name_file_line_and_value(make_tree, line, message):
    tree = make_tree({"images/a.jpg": "", "labelTxt/a.txt": f"gsd:1\n{PLANE}{line}\n"})
    with pytest.raises(BadLabel, match=message) as caught:
        open_source("dota", tree, SourceOptions()).annotate(b"images/a.jpg")
    assert str(caught.value).startswith("labelTxt/a.txt:3: ")


def test_labels_of_a_download(make_tree):
    """Below train/ and val/, and with the same objects as upright boxes in a folder beside."""
    upright = "10 18 32 18 32 41.5 10 41.5 plane 0\n"
    tree = make_tree({
        "train/images/P0.png": "", "train/labelTxt-v1.5/DOTA-v1.5_train/P0.txt": PLANE,
        "train/labelTxt-v1.5/DOTA-v1.5_train_hbb/P0.txt": upright, "val/images/P1.png": "",
        "val/labelTxt-v1.5/DOTA-v1.5_val/P1.txt": "", "val/labelTxt-v1.5/DOTA-v1.5_val_hbb/P1.txt": "",
        "val/labelTxt-v1.5/DOTA-v1.5_val/P7.txt": PLANE, "README.txt": "about DOTA",
    })  # fmt: skip
    assert recognize(tree, SourceOptions()).spec == "dota"
    source = open_source("dota", tree, SourceOptions())
    assert source.annotate(b"train/images/P0.png").obb == (((10, 20), (30.5, 18), (32, 40), (11, 41.5)),)
    assert source.annotate(b"val/images/P1.png").obb == ()
    assert source.notes == ["left out: 2 files with the same objects as upright boxes"]
    assert [problem.where for problem in source.unmatched_labels()] == [b"val/labelTxt-v1.5/DOTA-v1.5_val/P7.txt"]


YOLO = {"images/a.jpg": "", "labels/a.txt": "1 .1 .1 .2 .1 .2 .3 .1 .3\n"}


@pytest.mark.parametrize(("labels", "task", "oriented", "said"), [
    ("auto", "", False, "rows of four points are polygons; oriented boxes with --labels yolo-obb, or with task: obb"),
    ("auto", "task: obb\n", True, "rows of four points are oriented boxes, as task: obb says"),
    ("yolo", "task: obb\n", True, ""),
    ("yolo", "task: segment\n", False, ""),
    ("yolo-obb", "", True, ""),
    ("yolo-obb", "kpt_shape: [2, 2]\n", True, ""),
])  # fmt: skip
def test_rows_of_four_points(make_tree, labels, task, oriented, said):
    tree = make_tree({**YOLO, "data.yaml": task + "names: [a, b]\n"})
    source = open_source(labels, tree, SourceOptions())
    found = source.annotate(b"images/a.jpg")
    corners = (((0.1, 0.1), (0.2, 0.1), (0.2, 0.3), (0.1, 0.3)),)
    assert (found.obb, found.polygons) == ((corners, None) if oriented else (None, corners))
    assert found.boxes == ((0.1, 0.1, 0.2, 0.3),) and found.box_labels == ("b",) and found.relative
    assert found.keypoints is None and (not said or said in source.notes[0])


@pytest.mark.parametrize(("rows", "said"), [("0 .5 .5 1 1", False), ("0 .1 .1 .2 .1 .2 .3", False), ("", False)])
def test_other_rows_are_not_called_oriented(make_tree, rows, said):
    tree = make_tree({**YOLO, "images/b.jpg": "", "labels/b.txt": rows, "labels/a.txt": rows})
    assert ("four points" in open_source("auto", tree, SourceOptions()).notes[0]) == said


def test_a_box_among_oriented_ones_has_its_corners(make_tree):
    tree = make_tree({**YOLO, "labels/a.txt": "0 .5 .5 .5 .25\n", "data.yaml": "task: obb\nnames: [a]\n"})
    found = open_source("auto", tree, SourceOptions()).annotate(b"images/a.jpg")
    assert found.obb == (((0.25, 0.375), (0.75, 0.375), (0.75, 0.625), (0.25, 0.625)),)
    for row in ("0 .1 .1 .2 .1 .2 .3", "0 .1 .1 .2 .1 .2 .3 .1 .3 .9"):
        tree = make_tree({**YOLO, "labels/a.txt": row})
        with pytest.raises(BadLabel, match="but an oriented box has 9: class x1 y1"):
            open_source("yolo-obb", tree, SourceOptions()).annotate(b"images/a.jpg")


def cvat(rotation: str) -> str:
    box = '<box label="dog" occluded="0" xtl="10" ytl="20" xbr="30" ybr="26"'
    image = f'<image name="a.jpg" width="40" height="60">{box} rotation="{rotation}"/>{box}/></image>'
    return f"<annotations><version>1.1</version>{image}</annotations>"


def test_a_rotated_box_of_cvat(make_tree):
    """Clockwise by degrees around its center; a box that is not rotated has its corners."""
    found = open_source("cvat", make_tree({"a.jpg": "", "a.xml": cvat("30")}), SourceOptions()).annotate(b"a.jpg")
    turn = complex(math.cos(math.pi / 6), math.sin(math.pi / 6))
    wanted = [complex(20, 23) + turn * complex(x, y) for x, y in ((-10, -3), (10, -3), (10, 3), (-10, 3))]
    assert [value for point in found.obb[0] for value in point] == pytest.approx(
        [value for point in wanted for value in (point.real, point.imag)]
    )
    assert found.obb[1] == ((10, 20), (30, 20), (30, 26), (10, 26)) and found.polygons is None
    (xs, ys) = zip(*found.obb[0], strict=True)
    assert found.boxes == ((min(xs), min(ys), max(xs), max(ys)), (10, 20, 30, 26))
    assert open_source("cvat", make_tree({"a.xml": cvat("0.0")}), SourceOptions()).annotate(b"a.jpg").obb is None


VOC = """<annotation><size><width>40</width><height>30</height></size>{}</annotation>"""
THING = """<object><name>dog</name><bndbox><xmin>11</xmin><ymin>11</ymin><xmax>30</xmax><ymax>20</ymax></bndbox>
<attributes><attribute><name>rotation</name><value>{}</value></attribute></attributes></object>"""


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_turned_boxes_that_cvat_exports_as_other_kinds(make_tree, kind):
    """Their bbox is the one before the turn: it was packed as if it were the object's."""
    degrees = (90.0, 0.0)
    objects = [
        {"id": i, "image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 10], "area": 200, "iscrowd": 0,
         "segmentation": [], "attributes": {"occluded": False, "rotation": angle}}
        for i, angle in enumerate(degrees, 1)
    ]  # fmt: skip
    coco = {"images": [{"id": 1, "file_name": "a.jpg", "width": 40, "height": 30}], "annotations": objects,
            "categories": [{"id": 1, "name": "dog"}]}  # fmt: skip
    files = {"coco": {"all.json": json.dumps(coco)}, "voc": {"a.xml": VOC.format("".join(map(THING.format, degrees)))}}
    tree = make_tree({"a.jpg": "", **files[kind]})
    found = open_source(kind, tree, SourceOptions()).annotate(b"a.jpg")
    np.testing.assert_allclose(found.boxes, [(15, 5, 25, 25), (10, 10, 30, 20)], atol=1e-9)
    np.testing.assert_allclose(found.obb[0], [(25, 5), (25, 25), (15, 25), (15, 5)], atol=1e-9)
    np.testing.assert_allclose(found.obb[1], [(10, 10), (30, 10), (30, 20), (10, 20)], atol=1e-9)
