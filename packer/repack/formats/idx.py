"""IDX files, the format of MNIST: images (n, height, width), and a file of labels (n,) beside them.

http://yann.lecun.com/exdb/mnist/: two zeros, the type (8: unsigned bytes), the number of dimensions, each dimension as
4 bytes with the highest first, then the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from packer.repack.formats.base import ForeignFile, FormatOptions, Row
from packer.repack.formats.npy import labels_in, rows_of


class Idx:
    """Reads the images; their labels are in the file of ``--labels``, or in the one that MNIST's names mean."""

    def __init__(self, options: FormatOptions) -> None:
        self._labels = options.labels
        self.classes: tuple[str, ...] | None = None
        self.notes: list[str] = []

    def __call__(self, file: ForeignFile) -> Iterator[Row]:
        dimensions = file.view[3] if file.size > 3 else 0
        if dimensions == 1:
            return  # labels, which are read with their images
        if dimensions not in (3, 4) or file.size < 4 + 4 * dimensions:
            raise file.damaged(f"is truncated, or has {dimensions} dimensions, which are not those of images")
        start = 4 + 4 * dimensions
        shape = tuple(int.from_bytes(file.view[at : at + 4], "big") for at in range(4, start, 4))
        labels = self._labels or self._beside(file)
        if labels is None:
            self.notes.append("no file of labels beside the images: --labels FILE names it")
        yield from rows_of(file, (shape, False, np.dtype(np.uint8), start), labels_in(labels, shape[0]))

    def _beside(self, file: ForeignFile) -> str | None:
        folder, name = os.path.split(file.path)
        found = os.path.join(folder, name.replace("images", "labels").replace("idx3", "idx1"))
        return found if "images" in name and os.path.isfile(found) else None
