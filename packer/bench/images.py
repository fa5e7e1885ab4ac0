"""Which images of a folder are measured: a sample drawn over the whole of it, and copied for the builds."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import numpy as np

from packer.bench.options import IMAGES, LEAST_IMAGES, BenchOptions
from packer.errors import BadImage, UsageError
from packer.images.header import decoded_shape, read_header
from packer.sources.tree import find_tree
from packer.system import available_bytes

MOST_SIDE = 224


@dataclass(frozen=True)
class Images:
    """The sample of a folder."""

    folder: str
    """Copies of the files, named by their number."""
    files: tuple[str, ...]
    """The user's own, in the order of the copies' names."""
    size: tuple[int, int]
    """(width, height) that batches have."""
    found: int
    """Images in the whole folder."""
    bytes: int

    def of(self, name: str) -> str:
        """The user's file whose copy has this name."""
        return self.files[int(os.path.splitext(name)[0])]


def draw_images(source: str, folder: str, options: BenchOptions) -> Images:
    """Draw the sample of `source` and copy it to `folder`. Raises UsageError where there are too few images."""
    tree = find_tree(source, lambda path: False)[0]
    found = list(tree.images)
    chosen = np.random.default_rng(options.seed).permutation(len(found))
    files, shapes, total, most = [], [], 0, available_bytes() // 4
    for i in chosen.tolist():
        path = os.path.join(tree.root, found[i])
        shape = _shape(path)
        if shape is None:
            continue
        total += os.path.getsize(path)
        if total > most:
            break
        files.append(os.fsdecode(path))
        shapes.append(shape)
        if len(files) == (options.images or IMAGES):
            break
    if len(files) < LEAST_IMAGES:
        problem = f"has {len(files)} images that can be read"
        raise UsageError(source, problem, f"name a folder with at least {LEAST_IMAGES}")
    # as a walk over the folder meets them: the sample lies on the disk as the whole does
    ordered = sorted(files)
    os.makedirs(folder)
    for number, file in enumerate(ordered):
        extension = os.path.splitext(file)[1].lower()
        with open(file, "rb") as own, open(os.path.join(folder, f"{number:06d}{extension}"), "wb") as copy:
            shutil.copyfileobj(own, copy)
    copied = sum(os.path.getsize(file) for file in ordered)
    return Images(folder, tuple(ordered), _size(shapes, options), len(found), copied)


def _shape(path: bytes) -> tuple[int, int] | None:
    """(width, height) of an image file, None where it is none."""
    try:
        with open(path, "rb") as file:
            height, width, *_ = decoded_shape(read_header(file.read()), "rgb")
    except (OSError, BadImage):
        return None
    return width, height


def _size(shapes: list[tuple[int, int]], options: BenchOptions) -> tuple[int, int]:
    if options.resize is not None:
        return options.size_of(options.resize)
    width, height = (int(side) for side in np.median(np.array(shapes), axis=0))
    return max(1, min(width, MOST_SIDE)), max(1, min(height, MOST_SIDE))
