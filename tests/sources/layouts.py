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


def via() -> str:
    """VGG Image Annotator."""
    return json.dumps({
        f"{name}.jpg999": {"filename": f"{name}.jpg", "size": 999, "file_attributes": {}, "regions": [
            {"shape_attributes": {"name": "rect", "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1},
             "region_attributes": {"animal": cls}} for cls, x1, y1, x2, y2 in boxes]}
        for name, boxes in BOXES.items()
    })  # fmt: skip


def label_studio() -> str:
    return json.dumps([
        {"id": i, "file_upload": f"{name}.jpg", "data": {"image": f"/data/upload/1/{name}.jpg"}, "annotations": [
            {"result": [{"type": "rectanglelabels", "value": {"x": x1 / WIDTH * 100, "y": y1 / HEIGHT * 100,
             "width": 5, "height": 5, "rectanglelabels": [cls]}} for cls, x1, y1, x2, y2 in boxes]}]}
        for i, (name, boxes) in enumerate(BOXES.items())
    ])  # fmt: skip


def supervisely(name: str) -> str:
    return json.dumps({"size": {"height": HEIGHT, "width": WIDTH}, "tags": [], "objects": [
        {"classTitle": cls, "geometryType": "rectangle", "points": {"exterior": [[x1, y1], [x2, y2]], "interior": []}}
        for cls, x1, y1, x2, y2 in BOXES[name]
    ]})  # fmt: skip
