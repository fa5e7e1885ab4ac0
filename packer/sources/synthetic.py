"""Draws folders of labelled images to try packer with: bright shapes on a soft background, in any built-in layout."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from xml.sax.saxutils import escape

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, PackerError, StorageError, UsageError, option
from packer.system.locks import PARTIAL, growing_folder

MOST_COUNT = 10_000_000
SMALLEST, LARGEST = 32, 4096
VAL_SHARE = 0.2
MOST_SHAPES = 4
CLASSES = ("circle", "square", "star", "triangle")
SHARES = (0.4, 0.3, 0.1, 0.2)
"""Relative frequency of each class: real datasets are not balanced either."""
COLORS = ((214, 69, 65), (44, 130, 201), (38, 166, 91), (244, 179, 80), (142, 68, 173), (52, 73, 94))
JPEG_QUALITY = 90
TRIES = 20
MARK, INSIDE = ".packer-sample", "sample"
"""The mark in OUT.partial, where a sample grows (`growing_folder`). In a folder that is there, OUT/sample.partial."""
_SUBPIXEL_BITS = 4

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """The result of `draw_sample`."""

    path: str
    layout: str
    images: int
    classes: tuple[str, ...]


def draw_sample(
    out: AnyPath,
    layout: str = "folder",
    count: int = 200,
    size: int = 160,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Drawn:
    """Draw `count` labelled images into the new or empty folder `out`; the same arguments give the same bytes.

    A new folder gets its name when all is drawn. After an interruption, the same call begins again.

    Args:
        out: The folder.
        layout: folder, voc, yolo or list.
        count: Number of images.
        size: Approximate width and height in pixels; images vary by a quarter.
        seed: Random seed.
        progress: Called after each image, with 1.

    Raises:
        UsageError: A value is out of range, or `out` is not empty.
        StorageError: `out` cannot be written.
    """
    if layout not in LAYOUTS:
        raise UsageError(option("layout"), f"there is no {layout!r}", f"choose one of {', '.join(LAYOUTS)}")
    if not 1 <= count <= MOST_COUNT:
        raise UsageError(option("count"), f"must be 1 to {MOST_COUNT:,}, got {count}")
    if not SMALLEST <= size <= LARGEST:
        raise UsageError(option("size"), f"must be {SMALLEST} to {LARGEST} pixels, got {size}")
    if seed < 0:
        raise UsageError(option("seed"), f"must not be negative, got {seed}")
    folder = os.path.abspath(os.fsdecode(out))
    is_new = not os.path.isdir(folder)
    growing = folder if is_new else os.path.join(folder, INSIDE)  # it may be another disk than that of the folder above
    try:
        if not is_new and {*os.listdir(folder)} - {INSIDE + PARTIAL}:
            raise UsageError(folder, "is not empty", "name a new folder")
        with growing_folder(growing, MARK, "sample") as unfinished:
            drawing = LAYOUTS[layout](unfinished, count, size, seed)
            for number in range(count):
                drawing.add(number)
                if progress is not None:
                    progress(1)
            drawing.finish()
            if is_new:
                os.rename(unfinished, folder)
            else:  # it stays the same folder: a shell may be in it
                for name in sorted(os.listdir(unfinished)):
                    os.rename(os.path.join(unfinished, name), os.path.join(folder, name))
    except PackerError:
        raise
    except OSError as error:
        step = "free some space, or name another folder" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StorageError(error.filename or folder, f"cannot write: {error.strerror or error}", step) from error
    return Drawn(folder, layout, count, CLASSES)


@dataclass(frozen=True)
class DrawnShape:
    """A shape in an image."""

    name: str
    box: tuple[int, int, int, int]
    """xmin, ymin, xmax, ymax in pixels; xmax and ymax are exclusive."""

    @property
    def landmarks(self) -> tuple[tuple[float, float], ...]:
        """Its middle left, top, right and bottom: (x, y) in pixels."""
        xmin, ymin, xmax, ymax = self.box
        x, y = (xmin + xmax) / 2, (ymin + ymax) / 2
        return (xmin, y), (x, ymin), (xmax, y), (x, ymax)


@dataclass(frozen=True)
class Scene:
    """An image and its shapes."""

    image: NDArray[np.uint8]
    """uint8 (height, width, 3), RGB."""
    shapes: tuple[DrawnShape, ...]

    @property
    def jpeg(self) -> bytes:
        """The image as a JPEG file."""
        good, data = cv2.imencode(".jpg", self.image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
        if not good:
            raise StorageError("a drawn image", "cannot be encoded")
        return bytes(data)


def scene(number: int, size: int, seed: int, most_shapes: int) -> Scene:
    """Return image `number` of a sample, which depends only on the arguments."""
    draw = np.random.default_rng((seed, number))
    height, width = (int(side) for side in draw.integers(size - size // 8, size + size // 8 + 1, 2))
    image = _background(draw, height, width)
    shapes: list[DrawnShape] = []
    for _ in range(draw.integers(1, most_shapes + 1)):
        _add_shape(draw, image, shapes)
    return Scene(image, tuple(shapes))


def _background(draw: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Return a background of soft clouds of one light color."""
    base = draw.uniform(150, 235, 3)
    coarse = (base + draw.normal(0, 8, (5, 5, 3))).astype(np.float32)
    clouds = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    grain = draw.normal(0, 3, (height, width, 1))
    return np.asarray(np.clip(clouds + grain, 0, 255), np.uint8)


def _add_shape(draw: np.random.Generator, image: NDArray[np.uint8], shapes: list[DrawnShape]) -> None:
    """Draw another shape that hides no other one; draw none if there is no space."""
    height, width = image.shape[:2]
    name = CLASSES[draw.choice(len(CLASSES), p=SHARES)]
    color = COLORS[draw.integers(len(COLORS))]
    for _ in range(TRIES):
        side = int(draw.integers(max(8, min(height, width) // 8), min(height, width) // 2))
        corner = draw.integers(0, (width - side + 1, height - side + 1))
        outline = _outline(name) * (side - 1) + corner
        xmin, ymin = np.floor(outline.min(axis=0)).astype(int).tolist()
        xmax, ymax = (np.ceil(outline.max(axis=0)) + 1).astype(int).tolist()
        shape = DrawnShape(name, (xmin, ymin, min(xmax, width), min(ymax, height)))
        if not any(_meet(shape.box, other.box) for other in shapes):
            exact = np.round(outline * (1 << _SUBPIXEL_BITS)).astype(np.int32)
            cv2.fillPoly(image, [exact], color, cv2.LINE_AA, _SUBPIXEL_BITS)
            shapes.append(shape)
            return


def _meet(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _outline(name: str) -> Points:
    """Return the corners, (n, 2) in 0..1."""
    if name == "square":
        return np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
    if name == "triangle":
        return np.array([(0, 1), (1, 1), (0.5, 0)], np.float64)
    points = 64 if name == "circle" else 10
    angles = np.arange(points) * (2 * np.pi / points) - np.pi / 2
    radius = np.where(np.arange(points) % 2, 0.5, 0.22)[::-1] if name == "star" else 0.5
    return np.stack([0.5 + radius * np.cos(angles), 0.5 + radius * np.sin(angles)], axis=1)


class _Drawing:
    """Writes images one by one, with their labels."""

    def __init__(self, folder: str, count: int, size: int, seed: int) -> None:
        self._folder = folder
        self._count = count
        self._size = size
        self._seed = seed

    def add(self, number: int) -> None:
        """Draw image `number` and write it with its labels."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write the files of the whole dataset: lists, names, splits."""

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
    """circle/000000.jpg: one shape per image, and a folder for each class."""

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
    """images, and landmarks.csv: path, four landmarks and the class of the one shape of each image."""

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
    """Return the annotation as VOC XML, with 1-based boxes that include the last pixel."""
    height, width = drawn.image.shape[:2]
    boxes = "".join(
        f"  <object>\n    <name>{escape(shape.name)}</name>\n    <difficult>0</difficult>\n"
        f"    <bndbox><xmin>{shape.box[0] + 1}</xmin><ymin>{shape.box[1] + 1}</ymin>"
        f"<xmax>{shape.box[2]}</xmax><ymax>{shape.box[3]}</ymax></bndbox>\n  </object>\n"
        for shape in drawn.shapes
    )
    size = f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n"
    return f"<annotation>\n  <filename>{stem}.jpg</filename>\n{size}{boxes}</annotation>\n"


def _yolo_row(shape: DrawnShape, width: int, height: int) -> str:
    xmin, ymin, xmax, ymax = shape.box
    numbers = (xmin + xmax) / 2 / width, (ymin + ymax) / 2 / height, (xmax - xmin) / width, (ymax - ymin) / height
    return f"{CLASSES.index(shape.name)} {' '.join(f'{number:.8f}' for number in numbers)}\n"


LAYOUTS: dict[str, Callable[[str, int, int, int], _Drawing]] = {
    "folder": ClassFolders,
    "voc": Voc,
    "yolo": Yolo,
    "list": List,
}
"""The value of ``--layout`` -> the writer, called with (folder, count, size, seed)."""
