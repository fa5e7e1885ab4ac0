"""Draws one picture: shapes in bright colours on a soft background, with where they are."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.errors import StorageError

CLASSES = ("circle", "square", "star", "triangle")
SHARES = (0.4, 0.3, 0.1, 0.2)
"""How often each is drawn: real sets are not balanced either."""
COLORS = ((214, 69, 65), (44, 130, 201), (38, 166, 91), (244, 179, 80), (142, 68, 173), (52, 73, 94))
JPEG_QUALITY = 90
TRIES = 20
_SUBPIXEL_BITS = 4

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """A shape in a picture."""

    name: str
    box: tuple[int, int, int, int]
    """xmin, ymin, xmax, ymax in pixels; the last row and column are not in it."""

    @property
    def landmarks(self) -> tuple[tuple[float, float], ...]:
        """Its middle left, top, right and bottom: (x, y) in pixels."""
        xmin, ymin, xmax, ymax = self.box
        x, y = (xmin + xmax) / 2, (ymin + ymax) / 2
        return (xmin, y), (x, ymin), (xmax, y), (x, ymax)


@dataclass(frozen=True)
class Scene:
    """A picture and what it shows."""

    image: NDArray[np.uint8]
    """uint8 (height, width, 3), RGB."""
    shapes: tuple[Shape, ...]

    @property
    def jpeg(self) -> bytes:
        """The picture as a JPEG file."""
        good, data = cv2.imencode(".jpg", self.image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
        if not good:
            raise StorageError("a drawn image", "cannot be encoded")
        return bytes(data)


def scene(number: int, size: int, seed: int, most_shapes: int) -> Scene:
    """Picture `number` of a sample; it depends on its arguments alone."""
    draw = np.random.default_rng((seed, number))
    height, width = (int(side) for side in draw.integers(size - size // 8, size + size // 8 + 1, 2))
    image = _background(draw, height, width)
    shapes: list[Shape] = []
    for _ in range(draw.integers(1, most_shapes + 1)):
        _add_shape(draw, image, shapes)
    return Scene(image, tuple(shapes))


def _background(draw: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Soft clouds of one light colour."""
    base = draw.uniform(150, 235, 3)
    coarse = (base + draw.normal(0, 8, (5, 5, 3))).astype(np.float32)
    clouds = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    grain = draw.normal(0, 3, (height, width, 1))
    return np.asarray(np.clip(clouds + grain, 0, 255), np.uint8)


def _add_shape(draw: np.random.Generator, image: NDArray[np.uint8], shapes: list[Shape]) -> None:
    """Draw one more shape where it hides no other one; none where no such place is found."""
    height, width = image.shape[:2]
    name = CLASSES[draw.choice(len(CLASSES), p=SHARES)]
    colour = COLORS[draw.integers(len(COLORS))]
    for _ in range(TRIES):
        side = int(draw.integers(max(8, min(height, width) // 8), min(height, width) // 2))
        corner = draw.integers(0, (width - side + 1, height - side + 1))
        outline = _outline(name) * (side - 1) + corner
        xmin, ymin = np.floor(outline.min(axis=0)).astype(int).tolist()
        xmax, ymax = (np.ceil(outline.max(axis=0)) + 1).astype(int).tolist()
        shape = Shape(name, (xmin, ymin, min(xmax, width), min(ymax, height)))
        if not any(_meet(shape.box, other.box) for other in shapes):
            exact = np.round(outline * (1 << _SUBPIXEL_BITS)).astype(np.int32)
            cv2.fillPoly(image, [exact], colour, cv2.LINE_AA, _SUBPIXEL_BITS)
            shapes.append(shape)
            return


def _meet(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _outline(name: str) -> Points:
    """Corners, (n, 2) in 0..1."""
    if name == "square":
        return np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)
    if name == "triangle":
        return np.array([(0, 1), (1, 1), (0.5, 0)], np.float64)
    points = 64 if name == "circle" else 10
    angles = np.arange(points) * (2 * np.pi / points) - np.pi / 2
    radius = np.where(np.arange(points) % 2, 0.5, 0.22)[::-1] if name == "star" else 0.5
    return np.stack([0.5 + radius * np.cos(angles), 0.5 + radius * np.sin(angles)], axis=1)
