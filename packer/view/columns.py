"""The columns of a pack's index that filters, sorting and charts need."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.flat_columns import NO_CLASS, FlatColumns

Records = NDArray[np.int64]


class Columns(FlatColumns):
    """The columns of all images and all boxes of a pack, each read when it is first needed."""

    @cached_property
    def box_counts(self) -> NDArray[Any]:
        """Number of boxes of each image, (n,)."""
        return self.ragged("boxes").lengths

    @cached_property
    def box_areas(self) -> NDArray[np.float32]:
        """Areas of the boxes of all images in pixels, (m,)."""
        boxes = np.asarray(self.boxes, np.float64)
        sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        return np.asarray(np.minimum(sides[:, 0] * sides[:, 1], np.finfo(np.float32).max), np.float32)

    @cached_property
    def widths(self) -> NDArray[Any]:
        """In pixels, (n,)."""
        return np.asarray(self.pack.column("width"))

    @cached_property
    def heights(self) -> NDArray[Any]:
        """In pixels, (n,)."""
        return np.asarray(self.pack.column("height"))

    @property
    def image_areas(self) -> NDArray[np.int64]:
        """Width x height of each image, (n,)."""
        return np.asarray(self.widths.astype(np.int64) * self.heights)

    @property
    def image_aspects(self) -> NDArray[np.float64]:
        """Width / height of each image, (n,)."""
        return np.asarray(self.widths / np.maximum(self.heights, 1))

    def of_class(self, class_id: int) -> NDArray[np.bool_]:
        """Return which records are of that class or have a box of it, bool (n,)."""
        if class_id == NO_CLASS:
            return np.asarray((self.labels < 0) & (self.ragged("box_labels").lengths == 0))
        mask = np.asarray(self.labels == class_id)
        mask[self.records_of(np.flatnonzero(self.box_labels == class_id))] = True
        return mask

    def containing(self, name: str, text: bytes) -> NDArray[np.bool_]:
        """Return which rows of a text column contain `text`, bool (n,); one search covers all rows."""
        column = self.ragged(name)
        flat = np.asarray(column.flat()).tobytes().lower()
        offsets = column.offsets - column.offsets[0]
        mask = np.zeros(len(column), np.bool_)
        at = flat.find(text)
        while at >= 0:
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            end = int(offsets[row + 1])
            if at + len(text) <= end:
                mask[row] = True
                at = flat.find(text, end)  # this row is found
            else:
                at = flat.find(text, at + 1)  # spans two rows
        return mask

    def box_number(self, record: int, row: int) -> int:
        """Return which box of its record the one in a row of `boxes` is."""
        return row - int(self.firsts[record])

    def row_of(self, record: int, box: int) -> int:
        """Return the row in `boxes` of a box of a record."""
        return box + int(self.firsts[record])

    def box_values(self, name: str) -> NDArray[np.float64]:
        """Return what boxes are sorted by, (m,); NaN for an aspect ratio of a box without area."""
        if name == "box":
            return self.box_areas.astype(np.float64)
        sides = np.maximum(self.boxes[:, 2:] - self.boxes[:, :2], 0).astype(np.float64)
        aspects: NDArray[np.float64] = np.full(len(sides), np.nan)
        np.divide(sides[:, 0], sides[:, 1], out=aspects, where=(sides > 0).all(axis=1))
        return aspects
