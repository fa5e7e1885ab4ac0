"""Draws a small folder of images with Pascal VOC labels: circles, squares and triangles on noise."""

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import cv2
import numpy as np

CLASSES = ("circle", "square", "triangle")


def main(folder: str, count: int = 400) -> None:
    root = Path(folder)
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    random = np.random.default_rng(0)
    stems = [f"shape_{number:04d}" for number in range(count)]
    for stem in stems:
        height, width = random.integers(240, 480, 2).tolist()
        image = random.integers(150, 256, (height // 8, width // 8, 3), np.uint8)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        objects = [draw(image, random) for _ in range(random.integers(1, 5))]
        cv2.imwrite(str(root / "JPEGImages" / f"{stem}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
        (root / "Annotations" / f"{stem}.xml").write_text(annotation(stem, width, height, objects))
    for name, part in (("train", stems[: count * 4 // 5]), ("val", stems[count * 4 // 5 :])):
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(part) + "\n")


def draw(image: np.ndarray, random: np.random.Generator) -> tuple[str, tuple[int, int, int, int]]:
    """Draw one shape; its class, and its box as VOC has it: 1-based, the last pixel included."""
    height, width = image.shape[:2]
    size = int(random.integers(20, 120))
    x, y = int(random.integers(0, width - size)), int(random.integers(0, height - size))
    colour = random.integers(0, 120, 3).tolist()
    name = CLASSES[random.integers(len(CLASSES))]
    if name == "square":
        cv2.rectangle(image, (x, y), (x + size - 1, y + size - 1), colour, -1)
    elif name == "circle":
        cv2.circle(image, (x + size // 2, y + size // 2), size // 2, colour, -1)
    else:
        corners = np.array([[x, y + size - 1], [x + size - 1, y + size - 1], [x + size // 2, y]])
        cv2.fillPoly(image, [corners], colour)
    return name, (x + 1, y + 1, x + size, y + size)


def annotation(stem: str, width: int, height: int, objects: list[tuple[str, tuple[int, int, int, int]]]) -> str:
    boxes = "".join(
        f"<object><name>{escape(name)}</name><difficult>0</difficult><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>\n"
        for name, (x1, y1, x2, y2) in objects
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>{stem}.jpg</filename>{size}\n{boxes}</annotation>\n"


if __name__ == "__main__":
    main(*sys.argv[1:2])
