"""YOLO: images/1.jpg, labels/1.txt and data.yaml."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.errors import UsageError, option
from packer.format.manifest import Manifest
from packer.model.annotation import Annotation
from packer.repack.layouts.base import Item, Layout, plain
from packer.sources.paths import stem_of
from packer.sources.yolo.source import IMAGES_TO_LABELS

IMAGES = b"images"
SAME_PX = 0.01


class YoloLayout(Layout):
    """A text file for each image that has boxes, with a row for each: a box, a polygon, or a box with keypoints."""

    name = "yolo"
    needs = frozenset({"boxes"})
    stems = True

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._posed = "keypoints" in manifest.fields
        self._points = 0
        self._below = True
        """Whether all images are in the folder images."""
        self.holds = frozenset({"boxes", "keypoints" if self._posed else "polygons"})

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below the folder images, wherever it is in the path."""
        return path if _mirrored(path) else IMAGES + b"/" + path

    def add(self, item: Item) -> None:
        """Write the rows of the image."""
        annotation = item.annotation
        if annotation.boxes is None or annotation.box_labels is None:
            return
        size = np.array([item.width, item.height], np.float64)
        lines = []
        for number, label in enumerate(annotation.box_labels.tolist()):
            box = annotation.boxes[number].astype(np.float64)
            center, extent = (box[:2] + box[2:]) / 2 / size, (box[2:] - box[:2]) / size
            values: list[float] = [*center.tolist(), *extent.tolist()]
            polygon = () if annotation.polygons is None else annotation.polygons[number]
            if self._posed:
                values += self._keypoints(annotation.keypoints, number, size)
            elif len(polygon):
                if np.abs(np.concatenate([np.min(polygon, axis=0), np.max(polygon, axis=0)]) - box).max() > SAME_PX:
                    self.lost["the box of an object, which is not the extent of its polygon"] += 1
                values = (np.asarray(polygon, np.float64) / size).ravel().tolist()
            lines.append(f"{label} {' '.join(map(plain, values))}\n")
        self._below &= item.name.startswith(IMAGES + b"/")
        self.write(_mirrored(item.name) + stem_of(item.name) + b".txt", "".join(lines).encode("ascii"))

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
        lines += [f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(self.classes)]
        if self._posed:
            lines.append(f"kpt_shape: [{self._points}, 3]\n")
            if self.manifest.flip_index is not None:
                lines.append(f"flip_idx: {list(self.manifest.flip_index)}\n")
        self.write("data.yaml", "".join(lines).encode("utf-8"))


def _mirrored(image: bytes) -> bytes:
    """Return the folder of an image's label, with a final slash; b"" if the image is in no folder of images."""
    parts = image.split(b"/")[:-1]
    for i in reversed(range(len(parts))):
        if parts[i] in IMAGES_TO_LABELS:
            parts[i] = IMAGES_TO_LABELS[parts[i]]
            return b"/".join(parts) + b"/"
    return b""
