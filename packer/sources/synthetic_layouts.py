"""How the drawn pictures lie in a folder: one class for each layout, named as `packer build --labels` names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol
from xml.sax.saxutils import escape

from packer.sources.synthetic_scene import CLASSES, Scene, Shape, scene

VAL_SHARE = 0.2
MOST_SHAPES = 4


class Layout(Protocol):
    """Writes pictures one by one."""

    classes: tuple[str, ...]

    def add(self, number: int) -> None:
        """Draw picture `number` and write it with its labels."""

    def finish(self) -> None:
        """Write what stands once: lists, names, splits."""


class _Drawing:
    """What all layouts share."""

    classes: tuple[str, ...] = CLASSES

    def __init__(self, folder: str, count: int, size: int, seed: int) -> None:
        self._folder = folder
        self._count = count
        self._size = size
        self._seed = seed

    def finish(self) -> None:
        """Nothing more."""

    def _scene(self, number: int, most_shapes: int) -> Scene:
        return scene(number, self._size, self._seed, most_shapes)

    def _split(self, number: int) -> str:
        return "val" if number >= self._count - int(self._count * VAL_SHARE) else "train"

    def _write(self, data: bytes | str, *names: str) -> None:
        path = os.path.join(self._folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(data.encode("ascii") if isinstance(data, str) else data)


class ClassFolders(_Drawing):
    """circle/000000.jpg: one shape a picture, and a folder for each class."""

    def add(self, number: int) -> None:
        drawn = self._scene(number, 1)
        self._write(drawn.jpeg, drawn.shapes[0].name, f"{number:06d}.jpg")


class Voc(_Drawing):
    """JPEGImages, Annotations (XML) and ImageSets/Main/train.txt and val.txt."""

    def add(self, number: int) -> None:
        drawn, stem = self._scene(number, MOST_SHAPES), f"{number:06d}"
        self._write(drawn.jpeg, "JPEGImages", f"{stem}.jpg")
        self._write(_voc_xml(stem, drawn), "Annotations", f"{stem}.xml")

    def finish(self) -> None:
        for split in ("train", "val"):
            stems = [f"{number:06d}\n" for number in range(self._count) if self._split(number) == split]
            self._write("".join(stems), "ImageSets", "Main", f"{split}.txt")


class Yolo(_Drawing):
    """images/train, labels/train, images/val, labels/val and data.yaml."""

    def add(self, number: int) -> None:
        drawn, split = self._scene(number, MOST_SHAPES), self._split(number)
        height, width = drawn.image.shape[:2]
        rows = "".join(_yolo_row(shape, width, height) for shape in drawn.shapes)
        self._write(drawn.jpeg, "images", split, f"{number:06d}.jpg")
        self._write(rows, "labels", split, f"{number:06d}.txt")

    def finish(self) -> None:
        names = "".join(f"  {i}: {name}\n" for i, name in enumerate(CLASSES))
        val = "images/val" if self._count * VAL_SHARE >= 1 else "images/train"
        self._write(f"train: images/train\nval: {val}\nnames:\n{names}", "data.yaml")


class List(_Drawing):
    """images, and landmarks.csv: path, four landmarks and the class of the one shape of each picture."""

    def __init__(self, folder: str, count: int, size: int, seed: int) -> None:
        super().__init__(folder, count, size, seed)
        self._rows = ["path,x,y,x,y,x,y,x,y,label\n"]

    def add(self, number: int) -> None:
        drawn, name = self._scene(number, 1), f"images/{number:06d}.jpg"
        shape = drawn.shapes[0]
        points = ",".join(f"{x:g},{y:g}" for x, y in shape.landmarks)
        self._write(drawn.jpeg, *name.split("/"))
        self._rows.append(f"{name},{points},{shape.name}\n")

    def finish(self) -> None:
        self._write("".join(self._rows), "landmarks.csv")


def _voc_xml(stem: str, drawn: Scene) -> str:
    """Boxes as VOC has them: 1-based, the last pixel included."""
    height, width = drawn.image.shape[:2]
    boxes = "".join(
        f"  <object>\n    <name>{escape(shape.name)}</name>\n    <difficult>0</difficult>\n"
        f"    <bndbox><xmin>{shape.box[0] + 1}</xmin><ymin>{shape.box[1] + 1}</ymin>"
        f"<xmax>{shape.box[2]}</xmax><ymax>{shape.box[3]}</ymax></bndbox>\n  </object>\n"
        for shape in drawn.shapes
    )
    size = f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
    return f"<annotation>\n  <filename>{stem}.jpg</filename>\n{size}{boxes}</annotation>\n"


def _yolo_row(shape: Shape, width: int, height: int) -> str:
    xmin, ymin, xmax, ymax = shape.box
    numbers = (xmin + xmax) / 2 / width, (ymin + ymax) / 2 / height, (xmax - xmin) / width, (ymax - ymin) / height
    return f"{CLASSES.index(shape.name)} {' '.join(f'{number:.8f}' for number in numbers)}\n"


LAYOUTS: dict[str, Callable[[str, int, int, int], Layout]] = {
    "folder": ClassFolders,
    "voc": Voc,
    "yolo": Yolo,
    "list": List,
}
"""The word after ``--layout`` -> (folder, count, size, seed) -> what draws it."""
