"""VIA, Label Studio, Supervisely, LabelMe's web tool: every box, point, polygon and tag as another parser reads it."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from drawn_masks import picture

from packer import BuildOptions
from packer.errors import BadLabel, NoLabel, UsageError
from packer.packing.scan import read_inputs
from packer.sources import open_source
from packer.sources.source import BaseSource, SourceOptions, Tree

MakeTree = Callable[[Mapping[str, bytes | str]], Tree]


def opened(tree: Tree, spec: str = "auto", **options: Any) -> BaseSource:
    return open_source(spec, tree, SourceOptions(**options))


def near(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(np.array(found, float), np.array(wanted, float), atol=1e-9))


# -- VIA

RECT = {"name": "rect", "x": 3, "y": 4, "width": 10, "height": 6}
RING = {"name": "polygon", "all_points_x": [1, 9, 9.5, 1], "all_points_y": [2, 2, 8, 7]}
VIA = {
    "a.jpg": ([(RECT, {"id": "7", "Class": "dog", "parts": {"tail": True, "ear": False}}),
               (RING, {"id": "8", "Class": "", "parts": {"tail": True, "ear": True}}),
               ({"name": "circle", "cx": 9, "cy": 9, "r": 4}, {"Class": "cat"}),
               ({"name": "point", "cx": 5, "cy": 6.5}, {"Class": "p2"}),
               ({"name": "point", "cx": 1, "cy": 2}, {"Class": "p10"})],
              {"caption": "two", "label": "indoor"}),
    "b.jpg": ([], {"caption": "", "label": "outdoor"}),
}  # fmt: skip
"""Image -> its regions, each a shape with its attributes, and the attributes of the file."""


def via_json(version: int, project: bool) -> str:
    found = {}
    for name, (regions, of_file) in VIA.items():
        listed: Any = [{"shape_attributes": shape, "region_attributes": values} for shape, values in regions]
        if version == 1:
            listed = {str(i): one for i, one in enumerate(listed)}
        found[f"{name}99"] = {"filename": name, "size": 99, "regions": listed, "file_attributes": of_file}
    return json.dumps({"_via_settings": {}, "_via_img_metadata": found} if project else found)


def via_csv() -> str:
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(["#filename", "file_size", "file_attributes", "region_count", "region_id",
                   "region_shape_attributes", "region_attributes"])  # fmt: skip
    for name, (regions, of_file) in VIA.items():
        for i, (shape, values) in enumerate(regions or [({}, {})]):
            rows.writerow([name, 99, json.dumps(of_file), len(regions), i, json.dumps(shape), json.dumps(values)])
    return file.getvalue()


VIA_FILES = {
    "version 1": ("via_region_data.json", lambda: via_json(1, False)),
    "version 2": ("via_region_data.json", lambda: via_json(2, False)),
    "project": ("dogs.json", lambda: via_json(2, True)),
    "table": ("via_export_csv.csv", via_csv),
}


@pytest.mark.parametrize("kind", VIA_FILES)
def test_via(make_tree: MakeTree, kind: str) -> None:
    name, write = VIA_FILES[kind]
    source = opened(make_tree({"a.jpg": "", "b.jpg": "", name: write()}))
    assert "--labels via:" in source.notes[0] or source.notes[0].startswith("--labels via")
    found = source.annotate(b"a.jpg")
    assert found.boxes == ((3, 4, 13, 10), (1, 2, 9.5, 8)) and found.box_labels == ("dog", "object")
    assert found.polygons is not None and found.polygons[1] == ((1, 2), (9, 2), (9.5, 8), (1, 7))
    assert found.box_fields == {"id": ("7", "8"), "parts": ("tail", ["tail", "ear"])}
    assert found.landmarks == ((5, 6.5), (1, 2))  # p2, p10
    assert found.label == "indoor" and found.extras == {"caption": "two"}
    other = source.annotate(b"b.jpg")
    assert other.boxes == () and other.label == "outdoor" and not other.extras
    assert any("1 circle" in note for note in source.notes)


def via_3(regions: dict[str, Any], **more: Any) -> str:
    """A project of version 3: two images; attributes that are chosen, checked, written, and of the image."""
    attributes = {
        "1": {"aname": "class", "anchor_id": "FILE1_Z0_XY1", "type": 4, "options": {"0": "big dog", "1": "cat"}},
        "2": {"aname": "parts", "anchor_id": "FILE1_Z0_XY1", "type": 2, "options": {"0": "tail", "1": "ear"}},
        "3": {"aname": "caption", "anchor_id": "FILE1_Z0_XY0", "type": 1, "options": {}},
    }
    return json.dumps({
        "project": {"pid": "__VIA_PROJECT_ID__", "pname": "x", "vid_list": ["1", "2"]}, "config": {},
        "attribute": attributes,
        "file": {str(i): {"fid": i, "fname": f"{name}.jpg", "type": 2, "src": ""} for i, name in ((1, "a"), (2, "b"))},
        "view": {"1": {"fid_list": [1]}, "2": {"fid_list": ["2"]}}, "metadata": regions, **more,
    })  # fmt: skip


def test_via_3(make_tree: MakeTree) -> None:
    regions = {
        "1_a": {"vid": "1", "flg": 0, "z": [], "xy": [2, 3, 4, 10, 6], "av": {"1": "0", "2": "0,1"}},
        "1_b": {"vid": "1", "flg": 0, "z": [], "xy": [7, 1, 2, 9, 2, 9.5, 8, 1, 7], "av": {"1": "1", "2": ""}},
        "1_c": {"vid": "1", "flg": 0, "z": [], "xy": [4, 9, 9, 4, 5, 0], "av": {"1": "1"}},
        "1_d": {"vid": "1", "flg": 0, "z": [], "xy": [], "av": {"3": "two"}},
    }
    source = opened(make_tree({"a.jpg": "", "b.jpg": "", "project.json": via_3(regions)}))
    found = source.annotate(b"a.jpg")
    assert found.boxes == ((3, 4, 13, 10), (1, 2, 9.5, 8)) and found.box_labels == ("big dog", "cat")
    assert found.polygons is not None and found.polygons[1] == ((1, 2), (9, 2), (9.5, 8), (1, 7))
    assert found.box_fields == {"parts": (["tail", "ear"], None)} and found.extras == {"caption": "two"}
    assert source.annotate(b"b.jpg").boxes == () and any("1 ellipse" in note for note in source.notes)


@pytest.mark.parametrize(("change", "problem"), [
    ({"z": [1.5, 3]}, "1_a is of a video"), ({"vid": "7"}, "1_a is of a video"), ({"xy": [2, 3, 4]}, "is not as VIA 3"),
    ({"xy": [77, 3]}, "is not as VIA 3 writes images: 77"),
])  # fmt: skip
def test_bad_projects_of_via_3(make_tree: MakeTree, change: dict[str, Any], problem: str) -> None:
    region = {"vid": "1", "flg": 0, "z": [], "xy": [2, 3, 4, 10, 6], "av": {"1": "0"}, **change}
    with pytest.raises(UsageError, match=f"project.json: .*{problem}"):
        opened(make_tree({"a.jpg": "", "b.jpg": "", "project.json": via_3({"1_a": region})}))


def test_via_without_an_attribute_that_is_the_class(make_tree: MakeTree) -> None:
    regions = [{"shape_attributes": RECT, "region_attributes": {"color": "red", "size": "big"}}]
    content = {"a.jpg9": {"filename": "a.jpg", "size": 9, "regions": regions, "file_attributes": {}}}
    source = opened(make_tree({"a.jpg": "", "via.json": json.dumps(content)}))
    found = source.annotate(b"a.jpg")
    assert found.box_labels == ("object",) and found.box_fields == {"color": ("red",), "size": ("big",)}
    assert any('of the attributes "color", "size" none is called class' in note for note in source.notes)


@pytest.mark.parametrize(("shape", "values"), [
    ({"name": "rect", "x": "3", "y": 4, "width": 10, "height": 6}, {"a": "b"}),
    ({"name": "polygon", "all_points_x": [1, 2, 3], "all_points_y": [1, 2]}, {"a": "b"}),
    ({"name": "rect", "x": 3, "y": 4, "width": 10}, {"a": "b"}), ("rect", {"a": "b"}),
    (RECT, {"a": {"dog": True, "cat": True}}), (RECT, {"a": [1]}),
])  # fmt: skip
def test_bad_regions_of_via(make_tree: MakeTree, shape: Any, values: Any) -> None:
    regions = [{"shape_attributes": shape, "region_attributes": values}]
    content = {"a.jpg9": {"filename": "a.jpg", "size": 9, "regions": regions, "file_attributes": {}}}
    source = opened(make_tree({"a.jpg": "", "via.json": json.dumps(content)}), "via")
    with pytest.raises(BadLabel, match=r"via.json: a.jpg9: is not as VIA writes it"):
        source.annotate(b"a.jpg")


# -- Label Studio


def result(number: int, value: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": f"r{number}", "from_name": "label", "to_name": "image", "original_width": 200,
            "original_height": 100, "image_rotation": 0, "value": value, **more}  # fmt: skip


def task(results: list[Any], image: str = "/data/upload/3/0a1b2c3d-a.jpg", **more: Any) -> dict[str, Any]:
    note = {"completed_by": 1, "was_cancelled": False, "result": results, **more}
    return {"id": 1, "data": {"image": image}, "annotations": [note], "file_upload": "x"}


def studio(make_tree: MakeTree, *tasks: Any, names: tuple[str, ...] = ("a.jpg",), **options: Any) -> BaseSource:
    tree = make_tree({**dict.fromkeys(names, ""), "project-1.json": json.dumps(tasks)})
    return opened(tree, **options)


def test_regions_of_label_studio(make_tree: MakeTree) -> None:
    """Percents of 200x100; a turned rectangle; a box of two results; attributes of a region."""
    corner, angle = (25.0, 50.0), math.radians(30)
    results = [
        result(0, {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["dog"]}),
        result(1, {"x": 12.5, "y": 50, "width": 10, "height": 10, "rotation": 30, "rectanglelabels": ["cat"]}),
        result(2, {"points": [[0, 0], [50, 0], [50, 75]], "polygonlabels": ["cat"]}),
        result(3, {"x": 5, "y": 5, "width": 5, "height": 5, "rotation": 0}, type="rectangle", from_name="box"),
        result(3, {"x": 5, "y": 5, "width": 5, "height": 5, "rotation": 0, "labels": ["bird"]}, type="labels"),
        result(0, {"x": 10, "y": 20, "width": 30, "height": 40, "choices": ["wet"]}, from_name="fur", type="choices"),
        result(2, {"text": ["a", "b"]}, from_name="note", type="textarea"),
        result(4, {"x": 5, "y": 5, "radiusX": 5, "radiusY": 5, "ellipselabels": ["dog"]}),
        {"from_id": "r0", "to_id": "r1", "type": "relation", "direction": "right"},
        result(5, {"rating": 4}, from_name="quality", type="rating"),
    ]
    source = studio(make_tree, task(results))
    found = source.annotate(b"a.jpg")
    assert found.boxes is not None and found.polygons is not None
    assert found.box_labels == ("dog", "cat", "cat", "bird")
    assert near(found.boxes[0], (20, 20, 80, 60)) and near(found.boxes[3], (10, 5, 20, 10))
    along, down = np.array([math.cos(angle), math.sin(angle)]) * 20, np.array([-math.sin(angle), math.cos(angle)]) * 10
    turned = [np.array(corner) + step for step in (0 * along, along, along + down, down)]
    assert found.obb is not None and near(found.obb[1], turned)
    assert near(found.obb[0], [(20, 20), (80, 20), (80, 60), (20, 60)])
    assert near(found.boxes[1], [*np.min(turned, 0), *np.max(turned, 0)])
    assert near(found.polygons[2], [(0, 0), (100, 0), (100, 75)])
    assert found.box_fields == {"fur": ("wet", None, None, None), "note": (None, None, ["a", "b"], None)}
    assert found.extras == {"quality": 4} and found.image_size == (200, 100)
    assert any("1 ellipse, 1 relation" in note for note in source.notes)


def test_keypoints_of_label_studio(make_tree: MakeTree) -> None:
    """Those with a parent are of its box; others are landmarks."""

    def point(number: int, name: str, x: float, **more: Any) -> dict[str, Any]:
        return result(number, {"x": x, "y": 50, "width": 0.5, "keypointlabels": [name]}, **more)

    box = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["dog"]}
    results = [point(1, "right_eye", 20, parentID="r0"), result(0, box), point(2, "left_eye", 30, parentID="r0"),
               result(3, box), point(4, "left_eye", 40, parentID="r3"), point(5, "p2", 1),
               point(6, "p10", 2)]  # fmt: skip
    source = studio(make_tree, task(results))
    found = source.annotate(b"a.jpg")
    assert found.keypoints == (((60, 50, 2), (40, 50, 2)), ((80, 50, 2), (0, 0, 0)))
    assert source.flip_index == (1, 0) and found.landmarks == ((2, 50), (4, 50))
    ellipse = {"x": 5, "y": 5, "radiusX": 5, "radiusY": 5, "ellipselabels": ["dog"]}
    of_none = studio(make_tree, task([result(0, box), result(9, ellipse), point(1, "tip", 20, parentID="r9")]))
    assert of_none.annotate(b"a.jpg").keypoints is None and of_none.annotate(b"a.jpg").landmarks == ((40, 50),)


def test_classes_of_label_studio(make_tree: MakeTree) -> None:
    """One choice is the class of an image; several are tags."""

    def chosen(*names: str) -> list[Any]:
        return [{"id": "c", "from_name": "kind", "to_name": "image", "type": "choices", "value": {"choices": [*names]}}]

    names = ("a.jpg", "set/b c.jpg", "d.jpg")
    images = ("/data/upload/3/0a1b2c3d-a.jpg", "/data/local-files/?d=set%2Fb%20c.jpg", "s3://bucket/x/d.jpg")
    one = studio(make_tree, *(task(chosen("cat"), image) for image in images), names=names)
    assert [one.annotate(name.encode()).label for name in names] == ["cat"] * 3 and one.tags is None
    several = [chosen("cat", "dog"), chosen("bird"), []]
    many = studio(make_tree, *map(task, several, images), names=names)
    assert many.tags == ("bird", "cat", "dog")
    assert [many.annotate(name.encode()).tags for name in names] == [
        (False, True, True), (True, False, False), (False, False, False)]  # fmt: skip
    assert many.annotate(b"a.jpg").label is None


BOX = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0}


def test_which_annotation_of_label_studio_is_read(make_tree: MakeTree) -> None:
    def note(name: str, **more: Any) -> dict[str, Any]:
        return {"completed_by": 1, "result": [result(0, {**BOX, "rectanglelabels": [name]})], **more}

    def of(image: str, *notes: Any) -> dict[str, Any]:
        return {"id": 1, "data": {"image": image}, "annotations": [*notes]}

    source = studio(
        make_tree,
        of("a.jpg", note("new", updated_at="2024-02"), note("old", updated_at="2023-02")),
        of("b.jpg", note("truth", ground_truth=True, updated_at="2023"), note("other", updated_at="2024")),
        of("c.jpg", note("skipped", was_cancelled=True)), of("d.jpg"),
        {"id": 5, "data": {"image": "e.jpg"}, "predictions": [note("guess")]},
        names=tuple(f"{letter}.jpg" for letter in "abcde"),
    )  # fmt: skip
    assert source.annotate(b"a.jpg").box_labels == ("new",) and source.annotate(b"b.jpg").box_labels == ("truth",)
    for name in (b"c.jpg", b"d.jpg", b"e.jpg"):
        with pytest.raises(NoLabel, match="has no annotation"):
            source.annotate(name)
    assert any("1 image has several annotations" in text for text in source.notes)


def test_json_min_of_label_studio(make_tree: MakeTree) -> None:
    size = {"original_width": 200, "original_height": 100}
    row = {
        "image": "/data/upload/1/0a1b2c3d-a.jpg", "patient": "x7", "id": 1,
        "box": [{**BOX, "rectanglelabels": ["dog"], **size}], "kind": "indoor",
        "many": {"choices": ["p", "q"]}, "annotator": 1, "annotation_id": 1, "created_at": "2024",
    }  # fmt: skip
    source = studio(make_tree, row)
    found = source.annotate(b"a.jpg")
    assert found.boxes is not None and near(found.boxes[0], (20, 20, 80, 60)) and found.box_labels == ("dog",)
    assert source.tags == ("indoor", "p", "q") and found.tags == (True, True, True)


def studio_table(rows: list[dict[str, Any]]) -> str:
    """Columns are sorted, as Label Studio writes them; what is no text is JSON."""
    file = io.StringIO()
    writer = csv.DictWriter(file, sorted({name for row in rows for name in row}))
    writer.writeheader()
    writer.writerows({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()} for row in rows)
    return file.getvalue()


def test_the_table_of_label_studio(make_tree: MakeTree) -> None:
    """It was no list, because uploads have other names, and its images were packed without labels."""
    size = {"original_width": 200, "original_height": 100}
    rows = [
        {"image": f"/data/upload/1/0a1b2c3d-{name}.jpg", "id": i, "box": [{**BOX, "rectanglelabels": [kind], **size}],
         "choice": "indoor", "patient": f"p{i}", "many": {"choices": ["p", "q"]}, "annotator": 1, "annotation_id": i,
         "created_at": f"2024-0{i}", "updated_at": f"2024-0{i}", "lead_time": 1.5}
        for i, (name, kind) in enumerate([("a", "dog"), ("b", "cat")], 1)
    ]  # fmt: skip
    rows.append({**rows[0], "box": [{**BOX, "rectanglelabels": ["cow"], **size}], "updated_at": "2024-09"})
    tree = make_tree({"a.jpg": "", "b.jpg": "", "project-1.csv": studio_table(rows)})
    source = opened(tree)
    one, other = source.annotate(b"a.jpg"), source.annotate(b"b.jpg")
    assert one.boxes is not None and near(one.boxes, [(20, 20, 80, 60)])
    assert (one.box_labels, other.box_labels) == (("cow",), ("cat",))  # the newest of two annotators
    assert source.tags == ("indoor", "p", "q") and one.tags == other.tags == (True, True, True)
    notes = "; ".join(source.notes)
    assert "read as choices: choice" in notes and "may be no results: patient" in notes
    assert "1 image has several annotations" in notes


@pytest.mark.parametrize(("value", "problem"), [
    ({**BOX, "rectanglelabels": ["a", "b"]}, "several labels: a, b"), ({**BOX, "x": "1"}, "is not a coordinate"),
    ({"points": [[1, 2, 3]], "polygonlabels": ["a"]}, "too many values"), ([], "is not as Label Studio writes it"),
])  # fmt: skip
def test_bad_regions_of_label_studio(make_tree: MakeTree, value: Any, problem: str) -> None:
    with pytest.raises(BadLabel, match=f"project-1.json: task 1: .*{problem}"):
        studio(make_tree, task([result(0, value)])).annotate(b"a.jpg")


def test_a_point_far_beyond_any_image(make_tree: MakeTree) -> None:
    """Found by fuzzing in 194,991 inputs: percent of a size that no image has were landmarks beyond all others."""
    far = result(0, {"x": 1, "y": 2, "keypointlabels": ["a"]}, original_height=12222222222225)
    with pytest.raises(BadLabel, match=r"project-1.json: task 1: .* is not a coordinate"):
        studio(make_tree, task([far])).annotate(b"a.jpg")


def test_an_image_that_was_turned_in_label_studio(make_tree: MakeTree) -> None:
    with pytest.raises(BadLabel, match="turned in Label Studio"):
        studio(make_tree, task([result(0, BOX, image_rotation=90)])).annotate(b"a.jpg")


# -- Supervisely


def sly(make_tree: MakeTree, objects: list[Any], tags: list[Any] | None = None, name: str = "a.jpg.json") -> Any:
    content = {"description": "", "tags": tags or [], "size": {"width": 40, "height": 30}, "objects": objects}
    tree = make_tree({"ds/img/a.jpg": "", "ds/img/b.jpg": "", f"ds/ann/{name}": json.dumps(content), "meta.json": "{}"})
    return lambda **options: opened(tree, **options)


HOLED: dict[str, Any] = {
    "classTitle": "ring", "geometryType": "polygon",
    "tags": [{"name": "wet", "value": None}, {"name": "age", "value": 3}],
    "points": {"exterior": [[2, 2], [22, 2], [22, 20], [2, 20]], "interior": [[[6, 6], [10, 6], [10, 12], [6, 12]]]},
}  # fmt: skip


def test_objects_of_supervisely(make_tree: MakeTree) -> None:
    """Whole numbers are those of pixels: both corners of a rectangle are inside, points are centers."""
    objects = [
        {"classTitle": "dog", "geometryType": "rectangle", "points": {"exterior": [[9, 8], [3, 4]], "interior": []}},
        {"classTitle": "p2", "geometryType": "point", "points": {"exterior": [[1, 2]], "interior": []}},
        {"classTitle": "p10", "geometryType": "point", "points": {"exterior": [[5, 6]], "interior": []}},
        {"classTitle": "x", "geometryType": "line", "points": {"exterior": [[5, 6], [7, 8]], "interior": []}},
        HOLED,
    ]
    tags = [{"name": "night", "value": None}, {"name": "train"}, {"name": "city", "value": "Ulm"}]
    source = sly(make_tree, objects, tags)(split="train")
    found = source.annotate(b"ds/img/a.jpg")
    assert found.boxes == ((3, 4, 10, 9), (2.5, 2.5, 22.5, 20.5)) and found.box_labels == ("dog", "ring")
    assert found.landmarks == ((1.5, 2.5), (5.5, 6.5)) and found.label == "night" and found.extras == {"city": "Ulm"}
    assert found.box_fields == {"wet": (None, 1), "age": (None, 3.0)}
    assert source.in_split(b"ds/img/a.jpg") and not source.in_split(b"ds/img/b.jpg")
    assert any("1 line" in note for note in source.notes)


@pytest.mark.parametrize("name", ["a.jpg.json", "a.json"])
def test_fractions_of_supervisely_are_used_unchanged(make_tree: MakeTree, name: str) -> None:
    exact = {"classTitle": "dog", "points": {"exterior": [[3, 4.25], [9, 8]], "interior": []}}
    assert sly(make_tree, [exact], name=name)().annotate(b"ds/img/a.jpg").boxes == ((3, 4.25, 9, 8),)


def area(polygon: Any) -> float:
    x, y = np.array(polygon, float).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def test_holes_of_supervisely(make_tree: MakeTree) -> None:
    """The polygon has the area without the hole, and the mask its pixels."""
    found = sly(make_tree, [HOLED])().annotate(b"ds/img/a.jpg")
    assert area(found.polygons[0]) == 20 * 18 - 4 * 6
    coco = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    source = sly(make_tree, [HOLED])(instance_masks=True)
    (shape,) = source.annotate(b"ds/img/a.jpg").rles
    rings = [
        [v + 0.5 for point in ring for v in point]
        for ring in (HOLED["points"]["exterior"], *HOLED["points"]["interior"])
    ]
    outer, hole = (coco.decode(coco.frPyObjects([ring], 30, 40))[..., 0] for ring in rings)
    assert np.array_equal(coco.decode({**shape, "counts": shape["counts"].encode()}), outer & ~hole)


# -- LabelMe of the web


def web(things: str) -> str:
    return f"<annotation><filename>renamed.jpg</filename><folder>f</folder><imagesize/>{things}</annotation>"


def thing(name: str, points: Any, more: str = "") -> str:
    ring = "".join(f"<pt><x>\n{x}\n</x><y>{y}</y></pt>" for x, y in points)
    return f"<object><name>\n{name}\n</name><deleted>0</deleted>{more}<polygon>{ring}</polygon></object>"


def test_labelme_of_the_web(make_tree: MakeTree) -> None:
    xml = web(
        thing("car", [(1, 2), (9, 2), (9.5, 8)], "<occluded>yes</occluded><attributes>red, old</attributes>")
        + thing("van", [(1, 2), (9, 2), (9, 8), (1, 8)], "<type>bounding_box</type><occluded>no</occluded>")
        + thing("eye", [(5, 6)]) + thing("gone", [(1, 1)]).replace("<deleted>0", "<deleted>1")
        + thing("edge", [(1, 1), (2, 2)])
        + "<object><name>x</name><deleted>0</deleted><segm><mask>a_mask_0.png</mask></segm></object>"
    )  # fmt: skip
    source = opened(make_tree({"Images/f/a.jpg": "", "Annotations/f/a.xml": xml}))
    found = source.annotate(b"Images/f/a.jpg")
    assert found.boxes == ((1, 2, 9.5, 8), (1, 2, 9, 8)) and found.box_labels == ("car", "van")
    assert found.polygons == (((1, 2), (9, 2), (9.5, 8)), ()) and found.landmarks == ((5, 6),)
    assert found.box_fields == {"occluded": (1, 0), "attributes": ("red, old", "")}
    assert any("1 line, 1 mask; --instance-masks packs masks" in note for note in source.notes)


def test_masks_in_files_of_labelme_of_the_web(make_tree: MakeTree) -> None:
    """The pictures of masks and scribbles are no images."""
    pytest.importorskip("pycocotools", reason="needs pycocotools")
    mask = np.zeros((30, 40), np.uint8)
    mask[3:7, 10:20] = 255
    size = "<imagesize><nrows>30</nrows><ncols>40</ncols></imagesize>"
    segm = "<object><name>x</name><deleted>0</deleted><segm><mask>a_mask_0.png</mask></segm></object>"
    files = {"Images/f/a.jpg": "", "Annotations/f/a.xml": web(segm).replace("<imagesize/>", size)}
    files |= {"Scribbles/f/a_scribble_0.png": picture(mask), "Masks/f/a_mask_0.png": picture(mask)}
    tree = make_tree(files)
    source = open_source("labelme", tree, SourceOptions(instance_masks=True))
    found = source.annotate(b"Images/f/a.jpg")
    assert found.boxes == ((10, 3, 20, 7),) and found.box_labels == ("x",) and len(found.rles) == 1
    assert [image for image in tree.images if source.left_out(image) is None] == [b"Images/f/a.jpg"]
    (Path(os.fsdecode(tree.root)) / "Masks/f/a_mask_0.png").write_bytes(b"nothing")
    with pytest.raises(BadLabel, match=r"Masks/f/a_mask_0\.png"):
        open_source("labelme", tree, SourceOptions(instance_masks=True)).annotate(b"Images/f/a.jpg")


def test_points_that_are_objects_are_left_out(make_tree: MakeTree) -> None:
    things = thing("car", [(1, 2), (9, 2), (9, 8)]) + thing("cell", [(1, 2)]) + thing("cell", [(3, 4)])
    source = opened(make_tree({"a.jpg": "", "a.xml": web(things)}), "labelme")
    assert source.annotate(b"a.jpg").landmarks is None and any("2 points" in note for note in source.notes)


# -- kinds that find nothing, and files that are left over


@pytest.mark.parametrize(("spec", "files"), [
    ("via", {"via.json": '{"a.jpg9": {"filename": "a.jpg", "regions": [], "file_attributes": {}}}'}),
    ("labelme", {"a.json": '{"shapes": [], "imagePath": "a.jpg", "imageData": null}'}),
])  # fmt: skip
def test_a_kind_that_finds_no_label_of_any_image(
    make_tree: MakeTree, spec: str, files: dict[str, str], tmp_path: Any
) -> None:
    make_tree(files)
    (tmp_path / "src" / "a.jpg").write_bytes(image_file(1, 40, 30))
    with pytest.raises(UsageError, match=f"labels=.{spec}.: finds no label of any image; .*=.none"):
        read_inputs(BuildOptions(str(tmp_path / "src"), labels=(spec,)))
    assert read_inputs(BuildOptions(str(tmp_path / "src"), labels=("none",))).rows == 1


LEFT_OVER = {
    "V7": ("all.json", '{"schema_ref": "https://darwin-public", "item": {"name": "%s.jpg"}}\n'),
    "Labelbox": ("export.ndjson", '{"data_row": {"external_id": "%s.jpg"}}\n'),
}


@pytest.mark.parametrize("tool", LEFT_OVER)
def test_a_file_of_a_tool_that_is_not_read_is_named(make_tree: MakeTree, tool: str) -> None:
    name, line = LEFT_OVER[tool]
    text = "".join(line % f"img_{i}" for i in range(4))
    tree = make_tree({**{f"img_{i}.jpg": "" for i in range(4)}, name: text})
    with pytest.raises(UsageError, match=f"{name} names images, as {tool} writes it"):
        opened(tree)


def test_frames_of_a_part_of_a_video_of_cvat(make_tree: MakeTree) -> None:
    """A task of frames 10, 13, 16 and 19 numbers them as the video does; in the last two nothing is left."""
    meta = "<task><size>4</size><start_frame>10</start_frame><stop_frame>19</stop_frame></task>"
    boxes = "".join(
        f'<box frame="{frame}" outside="{outside}" occluded="0" keyframe="1" xtl="3" ytl="4" xbr="10" ybr="5"/>'
        for frame, outside in ((10, 0), (13, 0), (16, 1))
    )
    track = f'<track id="0" label="dog">{boxes}</track>'
    files = {f"images/frame_{frame:06d}.png": "" for frame in (10, 13, 16, 19, 22)}
    xml = f"<annotations><version>1.1</version><meta>{meta}</meta>{track}</annotations>"
    source = open_source("cvat", make_tree(files | {"annotations.xml": xml}), SourceOptions())
    found = {frame: source.annotate(f"images/frame_{frame:06d}.png".encode()).boxes for frame in (10, 13, 16, 19)}
    assert found == {10: ((3, 4, 10, 5),), 13: ((3, 4, 10, 5),), 16: (), 19: ()}
    with pytest.raises(NoLabel):
        source.annotate(b"images/frame_000022.png")


def test_a_region_of_vott_with_several_tags_is_an_object_of_each(make_tree: MakeTree) -> None:
    """As the exporters of VoTT write it; without a tag it has no class."""
    place = {"left": 1, "top": 2, "width": 3, "height": 4}
    regions = [{"type": "RECTANGLE", "tags": tags, "boundingBox": place} for tags in (["cat", "dog"], [])]
    content = {"assets": {"0": {"asset": {"name": "a.jpg"}, "regions": regions}}}
    found = opened(make_tree({"a.jpg": "", "a-export.json": json.dumps(content)}), "vott").annotate(b"a.jpg")
    assert found.boxes == ((1, 2, 4, 6),) * 3 and found.box_labels == ("cat", "dog", "object")


def test_equal_names_in_the_subsets_of_a_project_of_cvat(make_tree: MakeTree) -> None:
    """Each subset has its own frame_000000.jpg, in a folder of its name."""
    parts = {"Train": (1, 2, 9, 8), "Validation": (3, 4, 20, 21)}
    entries = "".join(
        f'<image id="{i}" name="frame_000000.jpg" subset="{name}" width="40" height="30"><box label="dog" occluded="0"'
        f' xtl="{box[0]}" ytl="{box[1]}" xbr="{box[2]}" ybr="{box[3]}"/></image>'
        for i, (name, box) in enumerate(parts.items())
    )
    files = {f"images/{name}/frame_000000.jpg": "" for name in parts}
    tree = make_tree(files | {"annotations.xml": f"<annotations><version>1.1</version>{entries}</annotations>"})
    source = open_source("cvat", tree, SourceOptions())
    for name, box in parts.items():
        assert source.annotate(f"images/{name}/frame_000000.jpg".encode()).boxes == (box,)
    assert list(source.unmatched_labels()) == []


# -- LabelMe, and attributes that are flags


def labelme_of(*shapes: dict[str, Any]) -> str:
    return json.dumps({"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": "a.jpg", "imageData": None})


def test_what_shapes_of_labelme_say_besides_their_place(make_tree: MakeTree) -> None:
    """Flags of version 5; what X-AnyLabeling adds: difficult, attributes, turned rectangles."""
    corners = [[6, 2], [10, 6], [6, 10], [2, 6]]
    shapes = [
        {"label": "dog", "points": [[1, 2], [9, 8]], "shape_type": "rectangle", "group_id": 3, "description": "old",
         "flags": {"wet": True, "crowd": False}, "difficult": True, "attributes": {"color": "red"}},
        {"label": "cat", "points": corners, "shape_type": "rotation", "group_id": None, "description": "",
         "flags": {}, "difficult": False, "attributes": {}},
    ]  # fmt: skip
    found = opened(make_tree({"a.jpg": "", "a.json": labelme_of(*shapes)}), "labelme").annotate(b"a.jpg")
    assert found.boxes == ((1, 2, 9, 8), (2, 2, 10, 10)) and found.obb is not None
    assert found.obb[1] == tuple(map(tuple, corners))
    assert found.box_fields == {
        "group": (3, None), "wet": (1, None), "crowd": (0, None), "color": ("red", None), "difficult": (1, 0),
        "description": ("old", None),
    }  # fmt: skip


def cvat_of(*boxes: str) -> str:
    drawn = "".join(
        f'<box label="dog" occluded="0" xtl="{i}" ytl="1" xbr="{i + 5}" ybr="9">{text}</box>'
        for i, text in enumerate(boxes)
    )
    tag = '<tag label="street"><attribute name="weather">rain</attribute><attribute name="points">7</attribute></tag>'
    image = f'<image id="0" name="a.jpg" width="40" height="30">{drawn}{tag}</image>'
    return f"<annotations><version>1.1</version>{image}</annotations>"


def attribute(name: str, value: str) -> str:
    return f'<attribute name="{name}">{value}</attribute>'


def test_attributes_of_tags_of_cvat(make_tree: MakeTree) -> None:
    found = opened(make_tree({"a.jpg": "", "a.xml": cvat_of("")}), "cvat").annotate(b"a.jpg")
    assert found.label == "street" and found.extras == {"weather": "rain", "points": "7"}


def test_attributes_that_are_called_like_flags(make_tree: MakeTree) -> None:
    """Text in them made each box an ignored region, and packs that no loader read."""
    texts = ["yes", "No", "true", "false", "1", ""]
    boxes = [attribute("difficult", text) + attribute("truncated", "25%") for text in texts]
    source = opened(make_tree({"a.jpg": "", "a.xml": cvat_of(*boxes, "")}), "cvat")
    fields = source.annotate(b"a.jpg").box_fields
    assert fields["difficult"] == (1, 0, 1, 0, 1, 0, 0)
    assert fields["truncated_value"] == ("25%",) * 6 + (None,) and "truncated" not in fields
    assert any('truncated has values such as "25%"' in note for note in source.notes)


def test_a_flag_that_is_no_number_is_a_bad_label(tmp_path: Any) -> None:
    from packer import PackWriter, open_pack

    image = np.zeros((20, 20, 3), np.uint8)
    with PackWriter(tmp_path / "p.lmdb", classes=["dog"]) as writer:
        with pytest.raises(BadLabel, match='difficult of box 1 is "no", not a whole number'):
            writer.write(image, boxes=[[1, 1, 9, 9]], box_labels=[0], box_fields={"difficult": ("no",)})
        writer.write(image, boxes=[[1, 1, 9, 9]] * 2, box_labels=[0, 0], box_fields={"ignore": (None, True)})
        others = {"is_crowd": (0, True), "is_difficult": ("a", "b")}
        writer.write(image, boxes=[[1, 1, 9, 9]] * 2, box_labels=[0, 0], box_fields=others)
    pack = open_pack(tmp_path / "p.lmdb")
    assert [pack.annotation(i).ignored.tolist() for i in range(2)] == [[False, True]] * 2
    assert pack.annotation(1).box_fields == {"iscrowd": (0, 1), "is_difficult": ("a", "b")}


def test_points_of_other_classes_in_each_image_are_left_out(make_tree: MakeTree) -> None:
    """Images with points of other classes were bad labels, which nobody could mend."""
    place = {"x": 50, "y": 50, "width": 1}
    tasks = [
        task([result(0, {**place, "keypointlabels": [name]}), result(1, {**BOX, "rectanglelabels": ["dog"]})],
             f"/data/upload/3/0a1b2c3d-{image}.jpg")
        for image, name in (("a", "ant"), ("b", "bee"), ("c", "cow"))
    ]  # fmt: skip
    source = studio(make_tree, *tasks, names=("a.jpg", "b.jpg", "c.jpg"))
    for image in (b"a.jpg", b"b.jpg", b"c.jpg"):
        found = source.annotate(image)
        assert found.landmarks is None and found.box_labels == ("dog",)
    assert any("left out, because packer has no field for them: 3 points" in note for note in source.notes)


def test_datasets_of_supervisely_are_no_classes(make_tree: MakeTree) -> None:
    label = {"size": {"width": 40, "height": 30}, "tags": [], "objects": [], "description": ""}
    box = {"classTitle": "dog", "geometryType": "rectangle", "points": {"exterior": [[3, 4], [9, 8]], "interior": []}}
    files = {"meta.json": '{"classes": [], "tags": []}'}
    for folder in ("one", "two"):
        for stem in "abc":
            text = json.dumps({**label, "objects": [box]})
            files |= {f"{folder}/img/{stem}.jpg": "", f"{folder}/ann/{stem}.jpg.json": text}
    found = opened(make_tree(files)).annotate(b"two/img/b.jpg")
    assert found.boxes == ((3, 4, 10, 9),) and found.label is None


# -- Datumaro's own JSON


def datumaro(items: dict[str, list[dict[str, Any]]], **more: Any) -> str:
    labels = [{"name": name, "parent": "", "attributes": []} for name in ("dog", "cat", "street")]
    listed = [
        {"id": stem, "annotations": notes, "attr": {"frame": 3}, "image": {"path": f"{stem}.jpg", "size": [30, 40]}}
        for stem, notes in items.items()
    ]
    return json.dumps(
        {"info": {}, "categories": {"label": {"labels": labels, "attributes": []}}, "items": listed, **more}
    )


def note(kind: str, label: int | None = 0, **more: Any) -> dict[str, Any]:
    return {"id": 0, "type": kind, "attributes": {}, "group": 0, "label_id": label, "z_order": 0, **more}


def test_json_of_datumaro(make_tree: MakeTree) -> None:
    """No library is needed, and none of what CVAT exports so is lost or moved."""
    mask = {"counts": [0, 2, 28, 2, 28 + 30 * 38], "size": [30, 40]}
    notes = [
        note("bbox", bbox=[3, 4, 10, 6], group=2, attributes={"occluded": True, "rotation": 0.0, "color": "red"}),
        note("bbox", 1, bbox=[10, 10, 20, 10], attributes={"occluded": False, "rotation": 90.0, "is_crowd": False}),
        note("polygon", points=[1, 2, 9, 2, 9.5, 8]), note("mask", 1, rle=mask), note("polyline", points=[1, 2, 3, 4]),
        note("label", 2), note("points", points=[5, 6, 7, 8.5]),
    ]  # fmt: skip
    files = {"images/train/a.jpg": "", "images/val/a.jpg": "", "annotations/train.json": datumaro({"a": notes}),
             "annotations/val.json": datumaro({"a": []})}  # fmt: skip
    source = opened(make_tree(files), instance_masks=True)
    found, other = source.annotate(b"images/train/a.jpg"), source.annotate(b"images/val/a.jpg")
    assert found.box_labels == ("dog", "cat", "dog", "cat") and found.label == "street" and found.image_size == (40, 30)
    assert near(found.boxes, [(3, 4, 13, 10), (15, 5, 25, 25), (1, 2, 9.5, 8), (0, 0, 2, 2)])
    assert found.obb is not None and near(found.obb[1], [(25, 5), (25, 25), (15, 25), (15, 5)])
    assert found.landmarks == ((5, 6), (7, 8.5)) and found.extras == {"frame": 3} and other.boxes == ()
    assert found.rles is not None and found.rles[3]["size"] == [30, 40]
    assert found.box_fields["color"] == ("red", None, None, None) and found.box_fields["occluded"] == (1, 0, 0, 0)
    assert found.box_fields["group"] == (2, None, None, None) and any("1 polyline" in text for text in source.notes)


@pytest.mark.parametrize("bad", [
    note("bbox", 7, bbox=[1, 2, 3, 4]), note("bbox", -1, bbox=[1, 2, 3, 4]), note("bbox", bbox=[1, 2, 3]),
    note("polygon", points=["x"]), {"type": "bbox"},
    note("mask", rle={"counts": [1], "size": [30, 40]}),
])  # fmt: skip
def test_bad_items_of_datumaro(make_tree: MakeTree, bad: dict[str, Any]) -> None:
    tree = make_tree({"a.jpg": "", "b.jpg": "", "default.json": datumaro({"a": [bad], "b": []})})
    source = opened(tree, "datumaro", instance_masks=True)
    with pytest.raises(BadLabel, match=r"default.json: item 1: is not as Datumaro writes it"):
        source.annotate(b"a.jpg")
    assert source.annotate(b"b.jpg").box_labels in ((), None)


def test_points_of_datumaro_without_a_point(make_tree: MakeTree) -> None:
    """Found by fuzzing in 780,476 inputs: an error that named no file, once another image had two sets of points."""
    some = [note("points", points=[1, 2]), note("points", points=[3, 4])]
    source = opened(
        make_tree({"a.jpg": "", "b.jpg": "", "default.json": datumaro({"a": [note("points", points=[])], "b": some})})
    )
    with pytest.raises(BadLabel, match=r"default.json: item 1: is not as Datumaro writes it"):
        source.annotate(b"a.jpg")
    assert len(source.annotate(b"b.jpg").boxes or ()) == 2


def test_keypoints_of_datumaro(make_tree: MakeTree) -> None:
    elements = [note("points", None, points=[4, 5, 0, 0], visibility=[2, 0]), note("points", None, points=[6, 7])]
    source = opened(make_tree({"a.jpg": "", "default.json": datumaro({"a": [note("skeleton", elements=elements)]})}))
    found = source.annotate(b"a.jpg")
    assert found.keypoints == (((4, 5, 2), (0, 0, 0), (6, 7, 2)),) and found.boxes == ((4, 5, 6, 7),)


@pytest.mark.parametrize(
    "text", ['{"categories": {"label": {"labels": [{}]}}, "items": []}', '{"dm_format_version": "1.0"}']
)
def test_files_that_are_not_as_datumaro_writes_them(make_tree: MakeTree, text: str) -> None:
    with pytest.raises(UsageError, match=r"default.json.* is not as Datumaro writes it"):
        opened(make_tree({"a.jpg": "", "default.json": text}), "datumaro")
