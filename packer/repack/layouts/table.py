"""The layout of a list that `packer extract` writes: a CSV file, and ``--columns`` to read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.errors import UsageError, option
from packer.format.manifest import Manifest
from packer.model.annotation import FLAGS
from packer.repack.layouts import Item, Layout, plain
from packer.repack.layouts.oriented import corners_in, is_extent
from packer.sources.list_columns import BOX_FORMS, FOUR_CORNERS
from packer.sources.paths import as_bytes

FILE = "labels.csv"


class ListLayout(Layout):
    """A CSV file whose columns are those that the pack has: label, landmarks, tags, value, text, boxes with flags."""

    name = "list"
    needs = frozenset({"label", "boxes", "landmarks", "tags", "value", "extras"})

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        fields = manifest.fields
        self._flags = [name for name in FLAGS if f"box_fields.{name}" in fields]
        self._oriented = "obb" in fields
        self.holds = frozenset({
            "label", "boxes", "obb", "landmarks", "tags", "value", "extras.text", "box_fields.voc_bndbox",
            *(f"box_fields.{name}" for name in FLAGS),
        })  # fmt: skip
        self.labels = f"list:FOLDER/{FILE}"
        self._lines: list[list[bytes]] = []
        self._points = self._values = 0
        self._text = False
        self._fraction = self._beyond = False

    def add(self, item: Item) -> None:
        """Keep the line of the image."""
        annotation, fields = item.annotation, self.manifest.fields
        for name, what in (("label", "class"), ("value", "value")):
            if name in fields and getattr(annotation, name) is None:
                self.lost[f"the {what}, which it does not have: it is not in the list"] += 1
                return
        cells = [item.name]
        cells += [] if annotation.label is None else [as_bytes(self.classes[annotation.label])]
        if "landmarks" in fields:
            points = [] if annotation.landmarks is None else annotation.landmarks.tolist()
            self._points = self._points or len(points)
            if len(points) != self._points:
                problem = f"list needs as many landmarks for each image, got {len(points)} and {self._points}"
                raise UsageError(option("layout"), problem, "choose another layout")
            cells += [self._number(value) for point in points for value in point]
        if "tags" in fields:
            tags = [0] * len(self.manifest.tags) if annotation.tags is None else annotation.tags.tolist()
            cells += [b"%d" % tag for tag in tags]
        if annotation.value is not None:
            self._values = len(annotation.value)
            cells += [plain(number).encode("ascii") for number in annotation.value]
        if "extras" in fields:
            text = annotation.extras.get("text", "")
            self._text |= bool(text)
            cells.append(as_bytes(" ".join(str(text).split("\n"))))
            self.lost["line breaks in a text"] += "\n" in str(text)
        names = item.class_names(self.classes)
        boxes = annotation.boxes if names and annotation.boxes is not None else np.zeros((0, 4))
        corners = corners_in(annotation) if self._oriented and len(boxes) else None
        places = boxes if corners is None else corners.reshape(-1, 8)
        for number, place in enumerate(places.tolist()):
            if corners is not None and not is_extent(boxes[number], corners[number]):
                self.lost["the box of an object, which is not the extent of its corners"] += 1
            cells += [*map(self._number, place), as_bytes(names[number])]
            cells += [b"%d" % _flag(annotation.box_fields.get(flag), number) for flag in self._flags]
        if annotation.boxes is None and "boxes" in fields:
            self.lost["the boxes, which are not known: it counts as without any"] += 1
        self._lines.append(cells)

    def _number(self, value: float) -> bytes:
        self._fraction |= value != int(value)
        self._beyond |= not 0 <= value <= 1
        return plain(value).encode("ascii")

    def close(self) -> None:
        """Write the list, and say what its columns are."""
        if self._fraction and not self._beyond:
            problem = "list cannot hold coordinates that are all from 0 to 1: they would be read as fractions"
            raise UsageError(option("layout"), problem, "choose another layout")
        fields = self.manifest.fields
        head = ["path", *(["label"] if "label" in fields else [])]
        columns = list(head)
        if self._points:
            columns.append(f"(x y)*{self._points}")
            head += [f"{axis}{number}" for number in range(self._points) for axis in "xy"]
        if "tags" in fields:
            columns.append(f"tag*{len(self.manifest.tags)}")
            head += self.manifest.tags
        if self._values:
            columns.append(f"value*{self._values}".removesuffix("*1"))
            head += [f"value{number}" for number in range(self._values)]
        if "extras" in fields:
            place = len(head)
            head.append("text")
            columns.append("text" if self._text else "_")
            if not self._text:  # extras of other names only
                head, columns = head[:-1], columns[:-1]
                self._lines = [line[:place] + line[place + 1 :] for line in self._lines]
        if "boxes" in fields:
            place_of = FOUR_CORNERS if self._oriented else BOX_FORMS[0]
            columns.append(f"({' '.join([*place_of, 'class', *self._flags])})*")
        lines = [b",".join(map(_cell, line)) + b"\n" for line in self._lines]
        if "tags" in fields:  # the names in the header are needed
            lines.insert(0, b",".join(map(_cell, map(as_bytes, head))) + b"\n")
        self.write(FILE, b"".join(lines))
        super().close()
        self.options["columns"] = " ".join(columns)


def _flag(values: Any, number: int) -> int:
    return 0 if values is None or values[number] is None else int(values[number])


def _cell(value: bytes) -> bytes:
    if any(c in value for c in b',";\t') or value != value.strip():
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value
