"""The layouts that `packer extract` writes: class folders, masks, Pascal VOC, YOLO and COCO."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from packer.errors import UsageError, option
from packer.format.manifest import Manifest
from packer.model.annotation import IGNORED, NOT_OBJECTS, Annotation
from packer.model.fields import with_boxes
from packer.model.rle import decode
from packer.repack.layouts import Item, Layout, below_images, plain
from packer.repack.layouts.oriented import corners_in, is_extent
from packer.sources.coco_objects import PIXEL_CENTER, join_rings, outline
from packer.sources.paths import IMAGE_FOLDERS, SPLIT_FOLDER, as_bytes, as_text, quoted_value, stem_of
from packer.sources.yolo_source import IMAGES_TO_LABELS


class FolderLayout(Layout):
    """Images in the folders of their classes, and beside them those without a class, or of a pack without labels."""

    name = "folder"
    holds = needs = frozenset({"label"})

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._plain = not manifest.fields
        if self._plain:
            self.needs, self.labels = frozenset(), "none"

    def check(self) -> None:
        """Raise UsageError if a class cannot be a folder, or would not be read as a class."""
        super().check()
        for name in self.classes:
            folder = as_bytes(name)
            if b"/" in folder or folder.startswith(b".") or len(folder) > 255:
                raise UsageError(option("layout"), f"the class {quoted_value(name)} cannot be a folder", "choose list")
            if SPLIT_FOLDER.fullmatch(folder) or folder.lower() in IMAGE_FOLDERS:
                problem = f"the class {quoted_value(name)} would not be read as a class, as a folder"
                raise UsageError(option("layout"), problem, "choose list")

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below the folder of its class, which is not repeated."""
        if self._plain:
            return path
        if annotation.label is None:
            self.lost["the class, which it does not have: it lies beside the class folders"] += 1
            return path.replace(b"/", b"_")
        folder = as_bytes(self.classes[annotation.label])
        parts = path.split(b"/")
        if folder in parts[:-1]:
            parts = parts[parts.index(folder) + 1 :]
        return b"/".join([folder, *parts])

    def close(self) -> None:
        """Create the folders of classes without images, too."""
        for name in () if self._plain else self.classes:
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        super().close()


class MasksLayout(Layout):
    """Images and their masks in two folders, the names of the classes beside the masks."""

    name = "masks"
    needs = frozenset({"masks"})
    stems = True

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below images."""
        return b"images/" + below_images(path)


VOC_FLAGS = ("difficult", "truncated", "occluded")
IMAGES, LABELS = b"JPEGImages/", b"Annotations/"


class VocLayout(Layout):
    """An XML file for each image that has boxes, even if they are none."""

    name = "voc"
    needs = frozenset({"boxes", "masks"})
    mask_folder = b"SegmentationClass"
    has_palette = True
    holds = frozenset(
        {"boxes", "box_fields.pose", "box_fields.voc_bndbox", *(f"box_fields.{name}" for name in VOC_FLAGS)}
    )
    ignored_as = "difficult"
    stems = True

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        if self.is_of_masks:
            self.labels = "none"

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below JPEGImages."""
        return IMAGES + path.removeprefix(IMAGES)

    def add(self, item: Item) -> None:
        """Write the XML file."""
        annotation = item.annotation
        if annotation.boxes is None or annotation.box_labels is None:
            return
        below = item.name.removeprefix(IMAGES)
        folder = below[: below.rfind(b"/") + 1]
        name = escape(_xml_file_name(as_text(item.name.rpartition(b"/")[2])))
        lines = [
            "<annotation>", f"  <filename>{name}</filename>",
            f"  <size><width>{item.width}</width><height>{item.height}</height><depth>3</depth></size>",
        ]  # fmt: skip
        written = annotation.box_fields.get("voc_bndbox", ())
        for number, (box, label) in enumerate(
            zip(annotation.boxes.tolist(), item.class_names(self.classes), strict=True)
        ):
            edges = _edges(box, written[number] if number < len(written) else None)
            if edges[2] <= edges[0] or edges[3] <= edges[1]:
                self.lost["the area of a box of at most one pixel, which VOC cannot hold"] += 1
            lines += ["  <object>", f"    <name>{escape(label)}</name>"]
            for field in ("pose", *VOC_FLAGS):
                values = annotation.box_fields.get(field)
                value = None if values is None else values[number]
                if field == self.ignored_as and annotation.ignored[number]:
                    value = value or 1
                if value is not None:
                    lines.append(f"    <{field}>{escape(str(value))}</{field}>")
            corners = "".join(
                f"<{tag}>{plain(edge)}</{tag}>"
                for tag, edge in zip(("xmin", "ymin", "xmax", "ymax"), edges, strict=True)
            )
            lines += [f"    <bndbox>{corners}</bndbox>", "  </object>"]
        text = "\n".join([*lines, "</annotation>", ""])
        self.write(LABELS + folder + stem_of(item.name) + b".xml", text.encode())


def _xml_file_name(name: str) -> str:
    """Return a file name as XML can hold it; it is only for people, never followed."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _edges(box: Sequence[float], written: Any) -> Sequence[float]:
    """Return the pixels of a box, counted from 1 and inclusive: those of its file, if they still hold."""
    edges = (box[0] + 1, box[1] + 1, box[2], box[3])
    are_numbers = isinstance(written, list) and all(isinstance(edge, int | float) for edge in written)
    if are_numbers and [w - (i < 2) for i, w in enumerate(written)] == list(box):
        return list(written)
    return edges


YOLO_IMAGES = b"images"


class YoloLayout(Layout):
    """A text file for each image that has boxes, with a row for each: a box, its corners, a polygon, or keypoints."""

    name = "yolo"
    holds = frozenset({"boxes", "polygons", "rles"})
    needs = frozenset({"boxes"})
    stems = True

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._posed = "keypoints" in manifest.fields
        self._points = 0
        self._below = True
        """Whether all images are in the folder images."""
        self._ids = 0
        """One more than the largest id of a class that is written."""
        self._oriented = "obb" in manifest.fields and not self._posed
        if self._posed or self._oriented:
            self.holds = frozenset({"boxes", "keypoints" if self._posed else "obb"})
        self.holds |= {f"box_fields.{name}" for name in NOT_OBJECTS}  # of what is left, none is set

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below the folder images, wherever it is in the path."""
        return path if _label_folder(path) else YOLO_IMAGES + b"/" + path

    def add(self, item: Item) -> None:
        """Write the rows of the image. A trainer would learn ignored regions, so they are left out."""
        if item.annotation.boxes is None or item.annotation.box_labels is None:
            return
        if (ignored := item.annotation.ignored).any():
            self.lost["ignored regions, which are left out"] += int(ignored.sum())
            item = replace(item, annotation=with_boxes(item.annotation, ~ignored))
        annotation = item.annotation
        assert annotation.boxes is not None and annotation.box_labels is not None
        size = np.array([item.width, item.height], np.float64)
        lines = []
        for number, label in enumerate(annotation.box_labels.tolist()):
            box = annotation.boxes[number].astype(np.float64)
            center, extent = (box[:2] + box[2:]) / 2 / size, (box[2:] - box[:2]) / size
            values: list[float] = [*center.tolist(), *extent.tolist()]
            polygon = self._polygon(item, number)
            if self._posed:
                values += self._keypoints(annotation.keypoints, number, size)
            elif len(polygon):
                if not is_extent(box, polygon):
                    of = "corners" if self._oriented else "polygon"
                    self.lost[f"the box of an object, which is not the extent of its {of}"] += 1
                values = (np.asarray(polygon, np.float64) / size).ravel().tolist()
            self._ids = max(self._ids, label + 1)
            lines.append(f"{label} {' '.join(map(plain, values))}\n")
        self._below &= item.name.startswith(YOLO_IMAGES + b"/")
        self.write(_label_folder(item.name) + stem_of(item.name) + b".txt", "".join(lines).encode("ascii"))

    def _polygon(self, item: Item, number: int) -> Any:
        """Return the corners of an oriented box; else the polygon of an object, or that along its mask; else ()."""
        annotation = item.annotation
        if self._oriented:
            return corners_in(annotation)[number]
        if annotation.rles is None or not len(counts := annotation.rles[number]):
            return () if annotation.polygons is None else annotation.polygons[number]
        (mask,) = decode([counts], item.height, item.width)
        try:
            rings = outline(mask.astype(np.bool_))
        except ValueError as error:
            self.lost[f"the mask of an object: {error}"] += 1
            return ()
        return join_rings(rings) if rings else ()

    def _keypoints(self, keypoints: Any, number: int, size: Any) -> Sequence[float]:
        points = np.zeros((self._points, 3)) if keypoints is None else keypoints[number].astype(np.float64)
        self._points = self._points or len(points)
        if len(points) != self._points:
            problem = f"yolo needs the same number of keypoints for all objects, got {len(points)} and {self._points}"
            raise UsageError(option("layout"), problem, "choose coco")
        flat: list[float] = (points / [*size, 1]).ravel().tolist()
        return flat

    def close(self) -> None:
        """Write data.yaml, whose text is JSON where it could be anything."""
        images = "images" if self._below else "."
        lines = ["path: .\n", f"train: {images}\n", f"val: {images}\n", "names:\n"]
        of_ignored = self.classes[-1:] == (IGNORED,) and self._ids < len(self.classes)
        classes = self.classes[:-1] if of_ignored else self.classes
        lines += [f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(classes)]
        if self._oriented:
            lines.append("task: obb\n")
        if self._posed:
            lines.append(f"kpt_shape: [{self._points}, 3]\n")
            if self.manifest.flip_index is not None:
                lines.append(f"flip_idx: {list(self.manifest.flip_index)}\n")
        self.write("data.yaml", "".join(lines).encode("utf-8"))


def _label_folder(image: bytes) -> bytes:
    """Return the folder of an image's label, with a final slash; b"" if the image is in no folder of images."""
    parts = image.split(b"/")[:-1]
    for i in reversed(range(len(parts))):
        if parts[i] in IMAGES_TO_LABELS:
            parts[i] = IMAGES_TO_LABELS[parts[i]]
            return b"/".join(parts) + b"/"
    return b""


COCO_FILE = "instances.json"
READ = ("iscrowd", "ignore", "area", "rle", "category_id")


class CocoLayout(Layout):
    """One file of all images and objects. The rows of objects are kept in memory as JSON until the end."""

    name = "coco"
    ignored_as = "ignore"
    needs = frozenset({"boxes"})
    holds = frozenset({
        "boxes", "polygons", "keypoints", "rles", "extras.image_id", "box_fields.voc_bndbox",
        *(f"box_fields.{name}" for name in READ),
    })  # fmt: skip

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.labels = f"coco:FOLDER/{COCO_FILE}"
        self._images: list[tuple[Any, dict[str, Any]]] = []
        self._objects: list[tuple[int, int, str]] = []
        """Number of the image, class, and the rest of the object as JSON."""
        self._ids: dict[int, set[Any]] = {}
        """Class -> the ids of its category in the source."""
        self._points: dict[int, int] = {}

    def check(self) -> None:
        """Raise UsageError if the pack has no boxes; any name can be a class."""
        classes, self.classes = self.classes, ()
        super().check()
        self.classes = classes

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path in UTF-8, as JSON needs it: other bytes become ``%FF``."""
        text = path.decode("utf-8", "surrogateescape")
        return "".join(f"%{ord(c) - 0xDC00:02X}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text).encode("utf-8")

    def add(self, item: Item) -> None:
        """Keep the objects of the image."""
        annotation = item.annotation
        if annotation.boxes is None or annotation.box_labels is None:
            self.lost["the objects, which are not known: it counts as without any"] += 1
        image = {"file_name": as_text(item.name), "width": item.width, "height": item.height}
        self._images.append((annotation.extras.get("image_id"), image))
        if annotation.boxes is None or annotation.box_labels is None:
            return
        fields = annotation.box_fields
        others = {name: values for name, values in fields.items() if name != "iscrowd"}
        ignored = replace(annotation, box_fields=others).ignored.tolist()
        for number, label in enumerate(annotation.box_labels.tolist()):
            x1, y1, x2, y2 = annotation.boxes[number].tolist()
            made: dict[str, Any] = {"bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0, "area": (x2 - x1) * (y2 - y1)}
            made |= {n: fields[n][number] for n in ("iscrowd", "area") if n in fields and fields[n][number] is not None}
            if ignored[number] or "ignore" in fields:
                made["ignore"] = int(ignored[number])
            polygon = () if annotation.polygons is None else annotation.polygons[number]
            if annotation.rles is not None and len(counts := annotation.rles[number]):
                made["segmentation"] = {"size": [item.height, item.width], "counts": counts.tobytes().decode("ascii")}
            elif "rle" in fields and fields["rle"][number]:
                made["segmentation"] = fields["rle"][number]
                self.lost["the polygon of a mask of run lengths"] += bool(len(polygon))
            elif len(polygon):
                made["segmentation"] = [np.asarray(polygon, np.float64).ravel().tolist()]
            if annotation.keypoints is not None:
                made |= _keypoints(annotation.keypoints[number])
                self._points[label] = max(self._points.get(label, 0), len(annotation.keypoints[number]))
            if "category_id" in fields:
                self._ids.setdefault(label, set()).add(json.dumps(fields["category_id"][number]))
            self._objects.append((len(self._images) - 1, label, json.dumps(made)[1:]))

    def close(self) -> None:
        """Write the file."""
        categories = self._category_ids()
        images = self._image_ids()
        if "keypoints" in self.manifest.fields and self.manifest.flip_index is not None:
            self.lost["the flip index, which follows from names of keypoints"] += 1
        rows = []
        for number, (image, label, rest) in enumerate(self._objects, 1):
            head = json.dumps({"id": number, "image_id": images[image], "category_id": categories[label]})
            rows.append(f"{head[:-1]}, {rest}")
        heads = [json.dumps({"id": key, **head}) for key, (_, head) in zip(images, self._images, strict=True)]
        names = [
            json.dumps({
                "id": categories[number], "name": name,
                **({"keypoints": [str(i) for i in range(self._points[number])]} if number in self._points else {}),
            })
            for number, name in enumerate(self.classes)
        ]  # fmt: skip
        members = (("images", heads), ("annotations", rows), ("categories", names))
        parts = [json.dumps(name) + ": [\n" + ",\n".join(lines) + "\n]" for name, lines in members]
        self.write(COCO_FILE, ("{" + ",\n".join(parts) + "}\n").encode("ascii"))

    def _category_ids(self) -> list[Any]:
        """Return the ids of the source if each class has one of its own; else 1, 2, ..."""
        known = {label: json.loads(next(iter(ids))) for label, ids in self._ids.items() if len(ids) == 1}
        numbers = [value for value in known.values() if type(value) is int]
        if len(known) == len(self._ids) == len(set(numbers)) and len(known) == len(numbers):
            free = iter(range(max(numbers, default=0) + 1, max(numbers, default=0) + 1 + len(self.classes)))
            return [known[label] if label in known else next(free) for label in range(len(self.classes))]
        self.lost["category ids that several classes have: new ones are written"] += 1
        return list(range(1, len(self.classes) + 1))

    def _image_ids(self) -> list[Any]:
        """Return the ids of the source if all images have one of their own; else 1, 2, ..."""
        ids = [key for key, _ in self._images]
        if all(type(key) in (int, str) for key in ids) and len(set(ids)) == len(ids):
            return ids
        if any(key is not None for key in ids):
            self.lost["image ids that several images have, or only some: new ones are written"] += 1
        return list(range(1, len(ids) + 1))


def _keypoints(points: Any) -> dict[str, Any]:
    values: list[float] = []
    for x, y, v in np.asarray(points, np.float64).tolist():
        values += [x - PIXEL_CENTER, y - PIXEL_CENTER, int(v) if v == int(v) else v] if v or x or y else [0, 0, 0]
    return {"keypoints": values, "num_keypoints": sum(1 for v in values[2::3] if v)}
