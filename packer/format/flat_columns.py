"""The columns of all images and all boxes of a pack as flat arrays, each read when it is first needed."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import printable
from packer.format.pack import Pack
from packer.model.ragged import Ragged

NO_CLASS = -1


class FlatColumns:
    """Classes, boxes and sizes of a whole pack. Nothing is read but the index."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack

    @cached_property
    def pack_names(self) -> list[str]:
        """The names of the packs that this one is joined from, or its own."""
        return [printable(os.path.basename(pack.path.rstrip("/")) or pack.path) for pack in self.pack.packs]

    def ragged(self, name: str) -> Ragged:
        """Return a column of lists."""
        column = self.pack.column(name)
        assert isinstance(column, Ragged)
        return column

    @cached_property
    def labels(self) -> NDArray[Any]:
        """Class id of each image, (n,); -1 for none."""
        return np.asarray(self.pack.column("label"))

    @cached_property
    def sizes(self) -> NDArray[np.float32]:
        """Width and height of each image in pixels, (2, n)."""
        return np.stack([np.asarray(self.pack.column(name), np.float32) for name in ("width", "height")])

    @cached_property
    def boxes(self) -> NDArray[np.float32]:
        """Boxes of all images, float32 (m, 4)."""
        return np.asarray(self.ragged("boxes").flat(), np.float32).reshape(-1, 4)

    @cached_property
    def firsts(self) -> NDArray[Any]:
        """The row in `boxes` of the first box of each image, and the end: (n + 1,)."""
        offsets = self.ragged("boxes").offsets
        return np.asarray(offsets - offsets[0])

    @cached_property
    def box_labels(self) -> NDArray[Any]:
        """Class id of each of `boxes`, (m,); -1 for none."""
        column = self.ragged("box_labels")
        known = np.asarray(column.flat())
        if len(known) == len(self.boxes):
            return known
        ids = np.full(len(self.boxes), NO_CLASS, known.dtype)  # some images have boxes without classes
        ids[np.repeat(column.lengths > 0, np.diff(self.firsts))] = known
        return ids

    def records_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the record of each of these rows of `boxes`."""
        return np.asarray(np.searchsorted(self.firsts, rows, side="right") - 1, np.int64)
