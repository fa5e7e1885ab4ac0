"""Draws the same small dataset as many tools write it: folders of files, for test_layouts.py.

The set has four images, 40x30, and four boxes of two classes. A file is its path below the source and its content;
`PHOTO` stands for a drawn image.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from drawn import Box, image_file, voc_xml

PHOTO = "a drawn image"
Files = dict[str, str | bytes]
WIDTH, HEIGHT = 40, 30
BOXES: dict[str, list[Box]] = {
    "img_0001": [],
    "img_0002": [("dog", 2, 3, 12, 20)],
    "img_0003": [("dog", 4, 5, 14, 25), ("bird", 20, 10, 30, 28)],
    "img_0004": [("bird", 1, 1, 39, 29)],
}
"""Name -> its boxes: class, xmin, ymin, xmax, ymax (continuous)."""
CLASSES = ("dog", "bird")
FACES = {f"face_{i:03d}": [(4.0 + i, 5.0), (30.5, 6.0), (20.0, 15.0 + i)] for i in range(4)}
"""Name -> three points."""


def write(root: Path, files: Files) -> None:
    """Write the files below a folder."""
    for name, content in drawn(files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def drawn(files: Files) -> dict[str, bytes]:
    """The bytes of each file."""
    found = {}
    for number, (name, content) in enumerate(files.items()):
        kind = {".png": "PNG", ".gif": "GIF", ".bmp": "BMP"}.get(Path(name).suffix.lower(), "JPEG")
        data = image_file(number, WIDTH, HEIGHT, kind) if content == PHOTO else content
        found[name] = data if isinstance(data, bytes) else data.encode()
    return found


def zipped(files: Files, method: int = zipfile.ZIP_STORED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as file:
        for name, data in drawn(files).items():
            file.writestr(name, data)
    return archive.getvalue()


def tarred(files: Files) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        for name, data in drawn(files).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def parquet() -> bytes:
    """Images and class ids, with the names in Hugging Face's metadata."""
    rows = [{"image": {"bytes": image_file(i, WIDTH, HEIGHT), "path": f"{i}.jpg"}, "label": i % 2} for i in range(4)]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["ant", "bee"]}}
    info = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(info), file)
    return file.getvalue()


def photos(folder: str = "", names: Any = BOXES, ending: str = ".jpg") -> Files:
    return {f"{folder}{name}{ending}": PHOTO for name in names}


def classes(folder: str = "", names: tuple[str, ...] = ("ant", "bee")) -> Files:
    return {f"{folder}{name}/{name}_{i}.jpg": PHOTO for name in names for i in range(2)}


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": content for name, content in files.items()}


def voc(images: str = "JPEGImages/", labels: str = "Annotations/", names: Any = BOXES) -> Files:
    """As LabelImg, Roboflow or the VOC development kit: pixels from 1, inclusive."""
    found = {}
    for name in names:
        inclusive = [(cls, x1 + 1, y1 + 1, x2, y2) for cls, x1, y1, x2, y2 in BOXES[name]]
        found[f"{labels}{name}.xml"] = voc_xml(f"{name}.jpg", inclusive)
    return photos(images, names) | found


def yolo(images: str, labels: str, names: Any = BOXES, kind: str = "boxes") -> Files:
    """One text per image: boxes, polygons of four corners, poses of two points, or oriented boxes."""
    found: Files = photos(images, names)
    for name in names:
        rows = []
        for cls, x1, y1, x2, y2 in BOXES[name]:
            corners = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
            numbers = [(x1 + x2) / 2 / WIDTH, (y1 + y2) / 2 / HEIGHT, (x2 - x1) / WIDTH, (y2 - y1) / HEIGHT]
            if kind in ("polygons", "obb"):
                numbers = [value for x, y in corners for value in (x / WIDTH, y / HEIGHT)]
            if kind == "poses":
                numbers += [value for x, y in corners[:2] for value in (x / WIDTH, y / HEIGHT, 2)]
            rows.append(f"{CLASSES.index(cls)} {' '.join(f'{value:.9g}' for value in numbers)}\n")
        found[f"{labels}{name}.txt"] = "".join(rows)
    return found


def coco(file: str, images: str, names: Any = BOXES, prefix: str = "", keypoints: bool = False) -> Files:
    """Instances with polygons, category ids with holes; `prefix` stands before the names of files."""
    found: dict[str, Any] = {"info": {}, "licenses": [], "images": [], "annotations": []}
    ids = {"dog": 18, "bird": 16}
    for i, name in enumerate(names):
        found["images"].append({"id": 100 + i, "file_name": f"{prefix}{name}.jpg", "width": WIDTH, "height": HEIGHT})
        for cls, x1, y1, x2, y2 in BOXES[name]:
            more = {"keypoints": [x1, y1, 2, x2, y2, 1], "num_keypoints": 2} if keypoints else {}
            found["annotations"].append({
                "id": len(found["annotations"]) + 1, "image_id": 100 + i, "category_id": ids[cls], "iscrowd": 0,
                "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1),
                "segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]], **more,
            })  # fmt: skip
    points = {"keypoints": ["left", "right"], "skeleton": [[1, 2]]} if keypoints else {}
    found["categories"] = [{"id": i, "name": name, "supercategory": "animal", **points} for name, i in ids.items()]
    return photos(images, names) | {file: json.dumps(found)}


def table(rows: list[list[Any]], header: str = "", delimiter: str = ",") -> str:
    """A CSV text."""
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return f"{header}\n{file.getvalue()}" if header else file.getvalue()


def each_box(*columns: str, prefix: str = "", ending: str = ".jpg") -> list[list[Any]]:
    """A row for each box, of these columns; floor numbers as tools of whole pixels write them."""
    rows = []
    for name, boxes in BOXES.items():
        for cls, x1, y1, x2, y2 in boxes:
            cells = {
                "path": f"{prefix}{name}{ending}", "id": name, "class": cls, "w": WIDTH, "h": HEIGHT,
                "x1": x1, "y1": y1, "x2": x2, "y2": y2,
                "fx1": x1 / WIDTH, "fx2": x2 / WIDTH, "fy1": y1 / HEIGHT, "fy2": y2 / HEIGHT,
                "0": 0, "1": 1, "source": "xclick",
            }  # fmt: skip
            rows.append([cells[column] for column in columns])
    return rows


CVAT = '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n'


def cvat(subset: bool = False) -> str:
    """CVAT for images 1.1; with `subset`, as a project is exported."""
    images = []
    for i, (name, boxes) in enumerate(BOXES.items()):
        part = ' subset="Train"' if subset else ""
        shapes = "".join(
            f'<box label="{cls}" source="manual" occluded="{j}" xtl="{x1}.00" ytl="{y1}.00" xbr="{x2}.00" ybr="{y2}.00"'
            f' z_order="0"><attribute name="age">{i}</attribute></box>'
            for j, (cls, x1, y1, x2, y2) in enumerate(boxes)
        )
        images.append(f'<image id="{i}" name="{name}.jpg"{part} width="{WIDTH}" height="{HEIGHT}">{shapes}</image>')
    labels = "".join(
        f"<label><name>{cls}</name><color>#fff</color><type>any</type><attributes><attribute><name>age</name>"
        "<mutable>False</mutable><input_type>number</input_type></attribute></attributes></label>"
        for cls in CLASSES
    )
    kind = "project" if subset else "task"
    meta = f"<meta><{kind}><id>7</id><name>animals</name><size>4</size><labels>{labels}</labels></{kind}></meta>"
    return f"{CVAT}{meta}{''.join(images)}</annotations>"


def cvat_video() -> str:
    """CVAT for video 1.1: one dog in frames 0 to 2, which leaves in frame 2."""
    boxes = "".join(
        f'<box frame="{i}" keyframe="1" outside="{int(i == 2)}" occluded="0" xtl="{i + 1}" ytl="2" xbr="{i + 9}"'
        ' ybr="9" z_order="0"></box>'
        for i in range(3)
    )
    meta = "<meta><task><size>4</size><labels><label><name>dog</name></label></labels></task></meta>"
    track = f'<track id="0" label="dog" source="manual">{boxes}</track>'
    return f"{CVAT}{meta}{track}</annotations>"


def labelme(name: str, image: str) -> str:
    """One rectangle or polygon for each box."""
    shapes = []
    for i, (cls, x1, y1, x2, y2) in enumerate(BOXES[name]):
        kind = ("rectangle", "polygon")[i % 2]
        points = [[x2, y2], [x1, y1]] if i % 2 == 0 else [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
        shapes.append({"label": cls, "points": points, "group_id": None, "shape_type": kind, "flags": {}})
    return json.dumps({
        "version": "5.4.1", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None,
        "imageHeight": HEIGHT, "imageWidth": WIDTH,
    }, indent=2)  # fmt: skip


def metadata() -> str:
    """The metadata.jsonl of Hugging Face's imagefolder."""
    lines = []
    for name, boxes in BOXES.items():
        members = {
            "bbox": [[x1, y1, x2 - x1, y2 - y1] for _, x1, y1, x2, y2 in boxes],
            "categories": [c for c, *_ in boxes],
        }
        lines.append(json.dumps({"file_name": f"{name}.jpg", "objects": members}) + "\n")
    return "".join(lines)


def createml(names: Any = BOXES) -> str:
    """x and y are those of the center."""
    return json.dumps([
        {"image": f"{name}.jpg", "annotations": [
            {"label": cls, "coordinates": {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1}}
            for cls, x1, y1, x2, y2 in BOXES[name]
        ]} for name in names
    ])  # fmt: skip


def vott() -> str:
    assets = {}
    for i, (name, boxes) in enumerate(BOXES.items()):
        regions = [
            {"id": f"r{j}", "type": "RECTANGLE", "tags": [cls],
             "boundingBox": {"height": y2 - y1, "width": x2 - x1, "left": x1, "top": y1},
             "points": [{"x": x1, "y": y1}, {"x": x2, "y": y1}, {"x": x2, "y": y2}, {"x": x1, "y": y2}]}
            for j, (cls, x1, y1, x2, y2) in enumerate(boxes)
        ]  # fmt: skip
        asset = {"format": "jpg", "id": f"a{i}", "name": f"{name}.jpg", "path": f"file:C:/set/{name}.jpg",
                 "size": {"width": WIDTH, "height": HEIGHT}, "state": 2, "type": 1}  # fmt: skip
        assets[f"a{i}"] = {"asset": asset, "regions": regions, "version": "2.2.0"}
    return json.dumps({"name": "animals", "tags": [{"name": c, "color": "#fff"} for c in CLASSES], "assets": assets})


def wider(folder: str = "0--Parade") -> str:
    lines = []
    for name, boxes in BOXES.items():
        lines += [f"{folder}/{name}.jpg", str(len(boxes))]
        faces = [f"{x1} {y1} {x2 - x1} {y2 - y1} 0 0 1 0 2 0 " for _, x1, y1, x2, y2 in boxes]
        lines += faces or ["0 0 0 0 0 0 0 0 0 0 "]
    return "\n".join(lines) + "\n"


def dota(name: str) -> str:
    """Boxes by their corners, in pixels."""
    lines = [f"{x1} {y1} {x2} {y1} {x2} {y2} {x1} {y2} {cls} 0\n" for cls, x1, y1, x2, y2 in BOXES[name]]
    return "".join(["imagesource:GoogleEarth\n", "gsd:0.146\n", *lines])


def yolo_corners(name: str) -> str:
    """The same as fractions."""
    w, h = WIDTH, HEIGHT
    return "".join(
        f"{CLASSES.index(cls)} {x1 / w} {y1 / h} {x2 / w} {y1 / h} {x2 / w} {y2 / h} {x1 / w} {y2 / h}\n"
        for cls, x1, y1, x2, y2 in BOXES[name]
    )


def kitti(name: str) -> str:
    return "".join(
        f"{cls} 0.00 0 -1.57 {x1}.00 {y1}.00 {x2}.00 {y2}.00 1.5 1.6 3.9 0.6 1.7 20.1 -1.59\n"
        for cls, x1, y1, x2, y2 in BOXES[name]
    )


def visdrone(name: str) -> str:
    rows = [(x1, y1, x2 - x1, y2 - y1, 1, 4 if cls == "dog" else 1, 0, 0) for cls, x1, y1, x2, y2 in BOXES[name]]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def icdar(name: str) -> str:
    rows = [(x1, y1, x2, y1, x2, y2, x1, y2, cls) for cls, x1, y1, x2, y2 in BOXES[name]]
    return "\ufeff" + "".join(",".join(map(str, row)) + "\r\n" for row in rows)


def _bdd_objects(name: str) -> list[dict[str, Any]]:
    return [
        {"id": str(i), "category": cls, "attributes": {"occluded": False, "truncated": bool(i)},
         "box2d": {"x1": x1, "y1": y1, "x2": x2, "y2": y2}}
        for i, (cls, x1, y1, x2, y2) in enumerate(BOXES[name])
    ]  # fmt: skip


def bdd100k() -> str:
    """As Scalabel writes a list: no labels are null."""
    frames = [{"name": f"{name}.jpg", "attributes": {"weather": "clear"}, "timestamp": 10000,
               "labels": _bdd_objects(name) or None} for name in BOXES]  # fmt: skip
    return json.dumps(frames)


def bdd100k_image(name: str) -> str:
    """As the first release has a file for each image."""
    frames = [{"timestamp": 10000, "objects": _bdd_objects(name)}]
    return json.dumps({"name": name, "frames": frames, "attributes": {"weather": "clear"}})


def crowdhuman() -> str:
    return "".join(
        json.dumps({"ID": name, "gtboxes": [
            {"tag": cls, "fbox": [x1, y1, x2 - x1, y2 - y1], "vbox": [x1, y1, 5, 5], "hbox": [x1, y1, 2, 2],
             "extra": {"box_id": i, "occ": 0}, "head_attr": {"ignore": 0, "occ": 0, "unsure": 0}}
            for i, (cls, x1, y1, x2, y2) in enumerate(boxes)]}) + "\n"
        for name, boxes in BOXES.items()
    )  # fmt: skip


def sa1b(name: str) -> str:
    """SA-1B, whose objects have no class."""
    things = [
        {"id": i, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": 9, "predicted_iou": 0.9, "stability_score": 0.97,
         "crop_box": [0, 0, WIDTH, HEIGHT], "point_coords": [[x1, y1]],
         "segmentation": {"size": [HEIGHT, WIDTH], "counts": "0d0n0"}}
        for i, (_, x1, y1, x2, y2) in enumerate(BOXES[name])
    ]  # fmt: skip
    image = {"image_id": int(name[-4:]), "width": WIDTH, "height": HEIGHT, "file_name": f"{name}.jpg"}
    return json.dumps({"image": image, "annotations": things})


def pts(name: str, offset: float = 1.0) -> str:
    """As 300-W: pixels from 1."""
    points = "\n".join(f"{x + offset:.6f} {y + offset:.6f}" for x, y in FACES[name])
    return f"version: 1\nn_points:  {len(FACES[name])}\n{{\n{points}\n}}\n"


def dlib() -> str:
    images = "".join(
        f"<image file='{name}.jpg'><box top='2' left='3' width='30' height='25'>"
        + "".join(f"<part name='{i:02d}' x='{int(x)}' y='{int(y)}'/>" for i, (x, y) in enumerate(points))
        + "</box></image>\n"
        for name, points in FACES.items()
    )
    return (
        "<?xml version='1.0' encoding='ISO-8859-1'?>\n"
        "<?xml-stylesheet type='text/xsl' href='image_metadata_stylesheet.xsl'?>"
        f"\n<dataset>\n<name>faces</name>\n<images>\n{images}</images>\n</dataset>"
    )


def labelme_web(name: str) -> str:
    """The XML of the web tool: a box or polygon for each box, and one that was deleted."""
    kinds = ("<type>bounding_box</type>", "")
    things = "".join(
        f"<object><name>{cls}</name><deleted>0</deleted><verified>0</verified><occluded>no</occluded><attributes/>"
        f"<parts><hasparts/><ispartof/></parts><date/><id>{i}</id>{kinds[i % 2]}<polygon><username>a</username>"
        + "".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2)))
        + "</polygon></object>"
        for i, (cls, x1, y1, x2, y2) in enumerate(BOXES[name])
    )
    gone = "<object><name>gone</name><deleted>1</deleted><polygon><pt><x>1</x><y>1</y></pt></polygon></object>"
    source = "<source><sourceImage>x</sourceImage><sourceAnnotation>LabelMe Webtool</sourceAnnotation></source>"
    size = f"<imagesize><nrows>{HEIGHT}</nrows><ncols>{WIDTH}</ncols></imagesize>"
    return (
        f"<annotation><filename>{name}.jpg</filename><folder>animals</folder>{source}{size}{things}{gone}</annotation>"
    )


def via_regions(name: str) -> list[Any]:
    """The regions of an image: rectangles, and polygons of four corners."""
    regions: list[Any] = []
    for i, (cls, x1, y1, x2, y2) in enumerate(BOXES[name]):
        rect = {"name": "rect", "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
        ring = {"name": "polygon", "all_points_x": [x1, x2, x2, x1], "all_points_y": [y1, y1, y2, y2]}
        regions.append({"shape_attributes": (rect, ring)[i % 2], "region_attributes": {"animal": cls}})
    return regions


def via(version: int = 2, project: bool = False) -> str:
    """VGG Image Annotator: annotations as JSON of version 1 or 2, or a project."""
    images = {}
    for name in BOXES:
        regions: Any = via_regions(name)
        entry = {"filename": f"{name}.jpg", "size": 999, "file_attributes": {}}
        if version == 1:
            regions = {str(i): region for i, region in enumerate(regions)}
            entry = {"fileref": "", "base64_img_data": "", **entry}
        images[f"{name}.jpg999"] = {**entry, "regions": regions}
    if not project:
        return json.dumps(images)
    attributes = {"region": {"animal": {"type": "dropdown", "options": dict.fromkeys(CLASSES, "")}}, "file": {}}
    return json.dumps({
        "_via_settings": {"ui": {}, "core": {"buffer_size": 18}, "project": {"name": "animals"}},
        "_via_img_metadata": images, "_via_attributes": attributes, "_via_data_format_version": "2.0.10",
        "_via_image_id_list": list(images),
    })  # fmt: skip


def via_csv() -> str:
    head = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes"
    rows: list[list[Any]] = []
    for name, boxes in BOXES.items():
        regions = via_regions(name) or [{"shape_attributes": {}, "region_attributes": {}}]
        rows += [[f"{name}.jpg", 999, "{}", len(boxes), i, json.dumps(region["shape_attributes"]),
                  json.dumps(region["region_attributes"])] for i, region in enumerate(regions)]  # fmt: skip
    return table(rows, head)


def via_coco() -> str:
    """As VIA 2.0.8 exports it: flat polygons, ids of images as text."""
    ids = {cls: i for i, cls in enumerate(CLASSES, 1)}
    objects = [
        {"id": f"{i}{j}", "image_id": str(i), "category_id": ids[cls], "bbox": [x1, y1, x2 - x1, y2 - y1],
         "segmentation": [x1, y1, x2, y1, x2, y2, x1, y2], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
        for i, boxes in enumerate(BOXES.values()) for j, (cls, x1, y1, x2, y2) in enumerate(boxes)
    ]  # fmt: skip
    images = [{"id": i, "width": WIDTH, "height": HEIGHT, "file_name": f"{name}.jpg", "license": 1, "date_captured": ""}
              for i, name in enumerate(BOXES)]  # fmt: skip
    categories = [{"supercategory": "animal", "id": i, "name": cls} for cls, i in ids.items()]
    return json.dumps({"info": {}, "images": images, "annotations": objects, "licenses": [], "categories": categories})


UPLOADED = "0a1b2c3d-"


def label_studio_regions(name: str) -> list[Any]:
    """Each box in percents, with its size and labels: a rectangle, or a polygon of four corners."""
    regions: list[Any] = []
    for i, (cls, x1, y1, x2, y2) in enumerate(BOXES[name]):
        (left, right), (top, bottom) = ([x * 100 / WIDTH for x in (x1, x2)], [y * 100 / HEIGHT for y in (y1, y2)])
        rect = {"x": left, "y": top, "width": right - left, "height": bottom - top, "rotation": 0}
        ring = {"points": [[left, top], [right, top], [right, bottom], [left, bottom]], "closed": True}
        regions.append([{**rect, "rectanglelabels": [cls]}, {**ring, "polygonlabels": [cls]}][i % 2])
    return regions


def label_studio() -> str:
    """Its JSON, of images that were uploaded."""
    tasks: list[Any] = []
    for i, name in enumerate(BOXES, 1):
        results = [
            {"original_width": WIDTH, "original_height": HEIGHT, "image_rotation": 0, "value": value, "id": f"r{j}",
             "from_name": "label", "to_name": "image", "type": list(value)[-1], "origin": "manual"}
            for j, value in enumerate(label_studio_regions(name))
        ]  # fmt: skip
        note = {"id": i, "completed_by": 1, "result": results, "was_cancelled": False, "ground_truth": False}
        file = f"{UPLOADED}{name}.jpg"
        tasks.append({"id": i, "annotations": [note], "file_upload": file, "drafts": [], "predictions": [],
                      "data": {"image": f"/data/upload/1/{file}"}, "meta": {}, "project": 1})  # fmt: skip
    return json.dumps(tasks)


def label_studio_min() -> str:
    size = {"original_width": WIDTH, "original_height": HEIGHT}
    return json.dumps([
        {"image": f"/data/local-files/?d=set%2F{name}.jpg", "id": i,
         "label": [value | size for value in label_studio_regions(name)],
         "annotator": 1, "annotation_id": i, "created_at": "2024-01-01T00:00:00Z", "lead_time": 7.5}
        for i, name in enumerate(BOXES, 1)
    ])  # fmt: skip


def supervisely(name: str) -> str:
    """As its SDK writes it: corners and points are numbers of pixels."""
    return json.dumps({"description": "", "tags": [], "size": {"height": HEIGHT, "width": WIDTH}, "objects": [
        {"id": i, "classTitle": cls, "geometryType": "rectangle", "tags": [],
         "points": {"exterior": [[x1, y1], [x2 - 1, y2 - 1]], "interior": []}}
        for i, (cls, x1, y1, x2, y2) in enumerate(BOXES[name])
    ]})  # fmt: skip


def supervisely_project(folder: str = "ds0/") -> Files:
    meta = {"classes": [{"title": cls, "shape": "rectangle", "color": "#fff"} for cls in CLASSES], "tags": []}
    return photos(f"{folder}img/") | {f"{folder}ann/{name}.jpg.json": supervisely(name) for name in BOXES} | {
        "meta.json": json.dumps(meta)}  # fmt: skip


def open_images() -> Files:
    corners, flags = "XMin,XMax,YMin,YMax", "IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
    head = f"ImageID,Source,LabelName,Confidence,{corners},{flags}\n"
    rows = [
        f"{name},xclick,/m/{cls},1,{x1 / WIDTH},{x2 / WIDTH},{y1 / HEIGHT},{y2 / HEIGHT},0,0,0,0,0\n"
        for name, boxes in BOXES.items() for cls, x1, y1, x2, y2 in boxes
    ]  # fmt: skip
    names = "LabelName,DisplayName\n" + "".join(f"/m/{cls},{cls}\n" for cls in CLASSES)
    tags = "ImageID,Source,LabelName,Confidence\n" + "".join(f"{name},verification,/m/dog,0\n" for name in BOXES)
    return {
        "train-annotations-bbox.csv": head + "".join(rows), "oidv7-class-descriptions.csv": names,
        "train-annotations-human-imagelabels.csv": tags,
    }  # fmt: skip
