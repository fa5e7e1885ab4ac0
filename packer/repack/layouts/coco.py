"""COCO: the images, and instances.json."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from packer.format.manifest import Manifest
from packer.model.annotation import Annotation
from packer.repack.layouts.base import Item, Layout
from packer.sources.coco.objects import PIXEL_CENTER
from packer.sources.paths import as_text

FILE = "instances.json"
READ = ("iscrowd", "area", "rle", "category_id")


class CocoLayout(Layout):
    """One file of all images and objects. The rows of objects are kept in memory as JSON until the end."""

    name = "coco"
    needs = frozenset({"boxes"})
    holds = frozenset({
        "boxes", "polygons", "keypoints", "extras.image_id", "box_fields.voc_bndbox",
        *(f"box_fields.{name}" for name in READ),
    })  # fmt: skip

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.labels = f"coco:FOLDER/{FILE}"
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
        for number, label in enumerate(annotation.box_labels.tolist()):
            x1, y1, x2, y2 = annotation.boxes[number].tolist()
            made: dict[str, Any] = {"bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0, "area": (x2 - x1) * (y2 - y1)}
            made |= {n: fields[n][number] for n in ("iscrowd", "area") if n in fields and fields[n][number] is not None}
            polygon = () if annotation.polygons is None else annotation.polygons[number]
            if "rle" in fields and fields["rle"][number]:
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
        self.write(FILE, ("{" + ",\n".join(parts) + "}\n").encode("ascii"))

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
