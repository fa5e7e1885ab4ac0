"""Draws folders of labelled images for trying packer out: shapes in colours, in any layout that packer reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from packer.errors import AnyPath, StorageError, UsageError
from packer.sources.synthetic_layouts import LAYOUTS

MOST_COUNT = 10_000_000
SMALLEST, LARGEST = 32, 4096

__all__ = ["LAYOUTS", "Drawn", "draw_sample"]


@dataclass(frozen=True)
class Drawn:
    """What was drawn."""

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

    Args: the layout (folder, voc, yolo, list); about how many pixels wide and high an image is (they differ by a
    quarter); `progress` is told of each image. Raises UsageError for a value out of range and where `out` holds
    anything, StorageError where it cannot be written.
    """
    if layout not in LAYOUTS:
        raise UsageError("--layout", f"there is no {layout!r}", f"choose one of {', '.join(LAYOUTS)}")
    if not 1 <= count <= MOST_COUNT:
        raise UsageError("--count", f"must be 1 to {MOST_COUNT:,}, got {count}")
    if not SMALLEST <= size <= LARGEST:
        raise UsageError("--size", f"must be {SMALLEST} to {LARGEST} pixels, got {size}")
    if seed < 0:
        raise UsageError("--seed", f"must not be negative, got {seed}")
    folder = os.path.abspath(os.fsdecode(out))
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise UsageError(folder, "is not empty", "name a folder that is not there yet")
        drawing = LAYOUTS[layout](folder, count, size, seed)
        for number in range(count):
            drawing.add(number)
            if progress is not None:
                progress(1)
        drawing.finish()
    except OSError as error:
        raise StorageError(error.filename or folder, f"cannot write: {error.strerror or error}") from error
    return Drawn(folder, layout, count, drawing.classes)
