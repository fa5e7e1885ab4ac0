"""Small source folders, drawn by the tests: images, and labels of every kind for them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Box = tuple[str, float, float, float, float]
"""Class name, then xmin, ymin, xmax, ymax."""


def pixels(seed: int, width: int = 40, height: int = 30) -> Any:
    """uint8 (height, width, 3): a smooth picture of its own for each seed, which survives JPEG."""
    y, x = np.mgrid[0:height, 0:width]
    phase = seed * 1.7
    planes = [np.sin(x / 7 + phase), np.cos(y / 5 + 2 * phase), np.sin((x + y) / 9 - phase)]
    return ((np.stack(planes, axis=2) + 1) * 120 + seed % 13).astype(np.uint8)


def image_file(seed: int, width: int = 40, height: int = 30, format: str = "JPEG", **options: Any) -> bytes:
    """The bytes of an image file; `options` are Pillow's."""
    file = io.BytesIO()
    if format == "JPEG":
        options = {"quality": 92, "subsampling": 0, **options}
    Image.fromarray(pixels(seed, width, height)).save(file, format, **options)
    return file.getvalue()


def draw(path: Path, seed: int, width: int = 40, height: int = 30, **options: Any) -> None:
    """Write one image file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_file(seed, width, height, **options))


def draw_plain(root: Path, count: int = 12, **options: Any) -> Path:
    """`count` images without labels: 000.jpg, 001.jpg, ..."""
    for i in range(count):
        draw(root / f"{i:03d}.jpg", i, **options)
    return root


def draw_classes(root: Path, classes: Sequence[str] = ("ant", "bee", "cat"), each: int = 5) -> Path:
    """Class folders whose basenames repeat, images of different sizes."""
    for c, name in enumerate(classes):
        for i in range(each):
            draw(root / name / f"{i:03d}.jpg", 10 * c + i, 40 + 2 * i, 30 + c)
    return root


def voc_xml(filename: str, boxes: Sequence[Box], size: tuple[int, int] | None = (40, 30)) -> str:
    """The text of a Pascal VOC file."""
    width, height = size or (0, 0)
    of_size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>" if size else ""
    objects = "".join(
        f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for name, x1, y1, x2, y2 in boxes
    )
    return f"<annotation><filename>{filename}</filename>{of_size}{objects}</annotation>"


def draw_voc(root: Path, count: int = 8) -> Path:
    """JPEGImages/ and Annotations/, 40x30 images, i % 3 boxes in image i."""
    (root / "Annotations").mkdir(parents=True)
    for i in range(count):
        draw(root / "JPEGImages" / f"{i:03d}.jpg", i)
        boxes = [(("dog", "bird")[b], 2.0 + i, 3.0 + b, 12.0 + i, 20.0) for b in range(i % 3)]
        (root / "Annotations" / f"{i:03d}.xml").write_text(voc_xml(f"{i:03d}.jpg", boxes))
    return root


def draw_landmarks(root: Path, count: int = 8) -> Path:
    """faces/*.jpg and landmarks.txt: path, x1..x5, y1..y5; the first x is negative."""
    lines = []
    for i in range(count):
        draw(root / "faces" / f"{i:03d}.jpg", i)
        xs = [-1.5, 10.0 + i, 20.0, 30.0, 35.0]
        ys = [1.0, 2.0 + i, 3.0, 4.0, 5.5]
        lines.append(" ".join([f"faces/{i:03d}.jpg", *map(str, xs + ys)]))
    (root / "landmarks.txt").write_text("\n".join(lines) + "\n")
    return root


def draw_shots(root: Path, count: int = 6) -> Path:
    """A VOC set with a list beside it: five points and a class for each image."""
    draw_voc(root, count)
    lines = []
    for i in range(count):
        points = " ".join(f"{x} {y}" for x, y in [(1 + i, 2), (3, 4 + i), (5, 6), (7, 8), (9.5, 10)])
        lines.append(f"JPEGImages/{i:03d}.jpg {points} {('day', 'night')[i % 2]}")
    (root / "landmarks.txt").write_text("\n".join(lines) + "\n")
    return root


def draw_dota(root: Path, count: int = 3) -> Path:
    """images/*.jpg and labelTxt/*.txt; image i has i + 1 times the same oriented box."""
    (root / "labelTxt").mkdir(parents=True)
    for i in range(count):
        draw(root / "images" / f"{i}.jpg", i)
        (root / "labelTxt" / f"{i}.txt").write_text("9 2 16 9 9 16 2 9 ant 0\n" * (i + 1))
    return root


def draw_objects(root: Path, elsewhere: str = "") -> Path:
    """Two images with an object each in coco.json: a box, its outline, two keypoints.

    `elsewhere` names what is in another place in the second one: polygons or keypoints."""
    objects = []
    for i in range(2):
        draw(root / f"{i}.jpg", i)
        outline, point = [5 * i if elsewhere == name else 0 for name in ("polygons", "keypoints")]
        objects.append({
            "id": i, "image_id": i, "category_id": 1, "bbox": [2, 2, 20, 16], "area": 320, "iscrowd": 0,
            "segmentation": [[2, 2, 22 - outline, 2, 22, 18, 2, 18]],
            "keypoints": [4, 4, 1, 10 + point, 10, 2], "num_keypoints": 2,
        })  # fmt: skip
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in range(2)]
    category = {"id": 1, "name": "bee", "keypoints": ["head", "tail"], "skeleton": []}
    (root / "coco.json").write_text(json.dumps({"images": images, "annotations": objects, "categories": [category]}))
    return root


def tree_state(root: Path | str) -> dict[bytes, Any]:
    """Everything below a folder: kind, mode, time of change and content of each name."""
    state: dict[bytes, Any] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            content = None
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    content = file.read()
            state[path] = (facts.st_mode, facts.st_mtime_ns, content)
    return state


def resized(image: Any, part: Sequence[float], size: tuple[int, int]) -> Any:
    """float64: the part (x, y, width, height) of an image at size (width, height), each axis for itself.

    An axis that shrinks is averaged, exactly; one that grows is interpolated linearly. Written without OpenCV.
    """
    x, y, width, height = part
    across = _filter(image.shape[1], x, width, size[0])
    down = _filter(image.shape[0], y, height, size[1])
    return np.einsum("ij,jkc,lk->ilc", down, image.astype(np.float64), across, optimize=True)


def _filter(pixels: int, start: float, length: float, outputs: int) -> Any:
    """float64 (outputs, pixels): the share of each pixel in each output."""
    step = length / outputs
    left = start + step * np.arange(outputs)[:, None]
    k = np.arange(pixels)
    if step > 1:
        return np.clip(np.minimum(left + step, k + 1) - np.maximum(left, k), 0, None) / step
    centre = np.clip(left + step / 2, start + 0.5, start + length - 0.5)
    return np.clip(1 - np.abs(centre - 0.5 - k), 0, None)


def packed_of(tree, source):
    """Return the images of a tree that a build would take from this source."""
    left_out = getattr(source, "left_out", lambda image: None)
    return [image for image in tree.images if source.in_split(image) and left_out(image) is None]


def centers_inside(polygon, height, width):
    """The pixels whose centers are inside, by crossing numbers."""
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    crossed = np.zeros((height, width), int)
    for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        if y1 != y2:
            crossed += ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return crossed % 2 == 1
