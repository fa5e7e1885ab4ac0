"""Draws images with masks: blocks of one color each, so that the pixels of an image say what its mask must be."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

COLORS = np.array([(20, 20, 20), (220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30)], np.uint8)
"""Of the ids 0 to 4 in a drawn image."""
Mask = NDArray[np.uint8]


def draw_mask(seed: int, width: int = 40, height: int = 30, ids: int = 4) -> Mask:
    """Rectangles of ids on 0, some pixels wide; no two are alike."""
    random = np.random.default_rng(seed)
    mask = np.zeros((height, width), np.uint8)
    for number in range(1, ids):
        x, y = int(random.integers(0, width - 12)), int(random.integers(0, height - 10))
        mask[y : y + 9, x : x + 11] = number
    return mask


def picture(pixels: NDArray[np.generic], kind: str = "PNG", palette: bool = False, **more: object) -> bytes:
    """Pixels as a file."""
    image = Image.fromarray(np.asarray(pixels))
    if palette:
        image.putpalette([value for i in range(256) for value in (i, 255 - i, (7 * i) % 256)])
    file = io.BytesIO()
    image.save(file, kind, **more)  # type: ignore[arg-type]  # Pillow's options
    return file.getvalue()


def image_of(mask: Mask, kind: str = "PNG", **more: object) -> bytes:
    """The image whose mask this is."""
    return picture(COLORS[mask % len(COLORS)], kind, **more)


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def pairs(
    images: str = "images/{}.png", masks: str = "masks/{}.png", count: int = 4, **more: object
) -> dict[str, bytes]:
    """Images and their masks, as files; `more` are options of `picture` for masks."""
    files: dict[str, bytes] = {}
    for seed in range(count):
        mask = draw_mask(seed)
        files[images.format(f"im{seed}")] = image_of(mask)
        files[masks.format(f"im{seed}")] = picture(mask, **more)  # type: ignore[arg-type]
    return files


def nearest_by_hand(mask: NDArray[np.generic], height: int, width: int) -> NDArray[np.generic]:
    """The mask resized, pixel by pixel, in whole numbers."""
    high, wide = mask.shape
    rows = [(2 * i + 1) * high // (2 * height) for i in range(height)]
    columns = [(2 * i + 1) * wide // (2 * width) for i in range(width)]
    return np.array([[mask[row, column] for column in columns] for row in rows], mask.dtype)


def cut_by_hand(
    mask: NDArray[np.generic], region: list[float], flipped: bool, output: tuple[int, int]
) -> NDArray[np.generic]:
    """What a crop of whole pixels shows, pixel by pixel, in whole numbers."""
    x, y, across, down = map(int, region)
    assert [x, y, across, down] == region
    height, width = output
    rows = [y + (2 * i + 1) * down // (2 * height) for i in range(height)]
    columns = [x + (2 * i + 1) * across // (2 * width) for i in range(width)]
    return np.array([[mask[row, column] for column in (columns[::-1] if flipped else columns)] for row in rows])
