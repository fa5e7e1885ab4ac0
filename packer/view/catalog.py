"""Filters and sorts the records of a pack by the columns of its index, without reading an image."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.format.ragged import Ragged

Records = NDArray[np.int64]
SORTS = {
    "packed": ("record", False), "last": ("record", True),
    "largest-box": ("box", True), "smallest-box": ("box", False),
    "widest-box": ("box_aspect", True), "tallest-box": ("box_aspect", False),
    "most-boxes": ("boxes", True), "fewest-boxes": ("boxes", False),
    "largest-image": ("image", True), "smallest-image": ("image", False),
    "widest-image": ("image_aspect", True), "tallest-image": ("image_aspect", False),
}  # fmt: skip
"""What comes first -> by what it is sorted, and whether that descends."""
_OF_BOXES = ("box", "box_aspect")
NO_CLASS = -1
_CACHED_ORDERS = 4


@dataclass(frozen=True, slots=True)
class Query:
    """A filter and an order.

    Attributes:
        class_id: Records of this class, or with a box of it; NO_CLASS: those without a class; None: all.
        min_boxes: Fewest boxes.
        max_boxes: Most boxes.
        text: Part of the key or of the source's path, ignoring case.
        sort: What comes first, a name of SORTS. Boxes count if they are of the class of the filter; an image is where
            its first box would be.
    """

    class_id: int | None = None
    min_boxes: int | None = None
    max_boxes: int | None = None
    text: str = ""
    sort: str = "packed"


class Catalog:
    """The columns of a pack that filters and sorting need. Threads may share it."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._cached: OrderedDict[Query, Records] = OrderedDict()
        self._cached_crops: dict[Query, tuple[Records, NDArray[np.int64]]] = {}
        self._lock = Lock()

    def find(self, query: Query) -> Records:
        """Return the numbers of the matching records, in order; raise DamagedPack if the index is damaged."""
        with self._lock:
            found = self._cached.get(query)
            if found is None:
                found = self._cached[query] = self._found(query)
                while len(self._cached) > _CACHED_ORDERS:
                    self._cached.popitem(last=False)
            self._cached.move_to_end(query)
        return found

    def _found(self, query: Query) -> Records:
        mask = np.ones(len(self._pack), np.bool_)
        if query.class_id is not None:
            mask &= self.of_class(query.class_id)
        if query.min_boxes is not None:
            mask &= self.box_counts >= query.min_boxes
        if query.max_boxes is not None:
            mask &= self.box_counts <= query.max_boxes
        if query.text:
            text = query.text.lower().encode("utf-8", "surrogateescape")
            mask &= self._containing("key", text) | self._containing("path", text)
        return self._sorted(np.flatnonzero(mask).astype(np.int64), query)

    def _sorted(self, found: Records, query: Query) -> Records:
        name, descending = SORTS[query.sort]
        if name == "record":
            return found[::-1] if descending else found
        if name in _OF_BOXES:
            by = self._first_boxes(query)[found]
        else:
            values = {"image": self.image_areas, "boxes": self.box_counts, "image_aspect": self._image_aspects}
            by = np.asarray(values[name])[found].astype(np.float64)
        return np.asarray(found[_order(by, descending)])

    def crops(self, query: Query) -> tuple[Records, NDArray[np.int64]]:
        """Return the boxes to cut out: those of the matching records, and of the class of the query if it has one.

        Returns:
            The record of each box, and the row of each box in `boxes`. They follow the order of the records, but where
            that is by a property of boxes, each box has its own place.
        """
        with self._lock:
            crops = self._cached_crops.get(query)
        if crops is None:
            crops = self._crops(query)
            with self._lock:
                self._cached_crops = {query: crops}  # of a million boxes they take 16 MB
        return crops

    def box_number(self, record: int, row: int) -> int:
        """Return which box of its record the one in a row of `boxes` is."""
        offsets = self.ragged("boxes").offsets
        return row + int(offsets[0]) - int(offsets[record])

    def _crops(self, query: Query) -> tuple[Records, NDArray[np.int64]]:
        name, descending = SORTS[query.sort]
        # boxes have the order of the records, or one of their own
        found = self.find(replace(query, sort="packed") if name in _OF_BOXES else query)
        rank = np.full(len(self._pack), -1, np.int64)
        rank[found] = np.arange(len(found))
        rows = self._rows_of(query)
        records = self._records_of(rows)
        matching = rank[records] >= 0
        rows, records = rows[matching], records[matching]
        order = np.arange(len(rows))
        if name in _OF_BOXES:
            order = _order(self._box_values(name)[rows], descending)
        elif query.sort != "packed":
            order = np.argsort(rank[records], kind="stable")
        return records[order], rows[order]

    def _rows_of(self, query: Query) -> NDArray[np.int64]:
        """Return the rows of the boxes that a query means."""
        if query.class_id is None:
            return np.arange(len(self.boxes))
        # a record without a class may still have boxes without one
        return np.flatnonzero(self.box_labels == query.class_id) if len(self.box_labels) else np.arange(0)

    def _records_of(self, rows: NDArray[np.int64]) -> Records:
        offsets = self.ragged("boxes").offsets
        return np.asarray(np.searchsorted(offsets, rows + int(offsets[0]), side="right") - 1, np.int64)

    def _box_values(self, name: str) -> NDArray[np.float64]:
        """Return what boxes are sorted by, (m,); NaN for an aspect ratio of a box without area."""
        if name == "box":
            return self.box_areas.astype(np.float64)
        sides = np.maximum(self.boxes[:, 2:] - self.boxes[:, :2], 0).astype(np.float64)
        aspects: NDArray[np.float64] = np.full(len(sides), np.nan)
        np.divide(sides[:, 0], sides[:, 1], out=aspects, where=(sides > 0).all(axis=1))
        return aspects

    def _first_boxes(self, query: Query) -> NDArray[np.float64]:
        """Return the value of the box of each record that would come first, (n,); NaN if it has none."""
        name, descending = SORTS[query.sort]
        values = self._box_values(name)
        rows = self._rows_of(query)
        rows = rows[~np.isnan(values[rows])]
        first = np.full(len(self._pack), np.nan)
        if len(rows):
            records = self._records_of(rows)
            starts = np.flatnonzero(np.diff(records, prepend=-1))
            reduce = np.maximum if descending else np.minimum
            first[records[starts]] = reduce.reduceat(values[rows], starts)
        return first

    @cached_property
    def labels(self) -> NDArray[Any]:
        """Class id of each image, (n,); -1 for none."""
        return np.asarray(self._pack.column("label"))

    def ragged(self, name: str) -> Ragged:
        """Return a column of lists."""
        column = self._pack.column(name)
        assert isinstance(column, Ragged)
        return column

    @cached_property
    def box_counts(self) -> NDArray[Any]:
        """Number of boxes of each image, (n,)."""
        return self.ragged("boxes").lengths

    @cached_property
    def boxes(self) -> NDArray[np.float32]:
        """Boxes of all images, float32 (m, 4)."""
        return np.asarray(self.ragged("boxes").flat()).reshape(-1, 4)

    @cached_property
    def box_labels(self) -> NDArray[Any]:
        """Class ids of the boxes of all images, (m,)."""
        return np.asarray(self.ragged("box_labels").flat())

    @cached_property
    def box_areas(self) -> NDArray[np.float32]:
        """Areas of the boxes of all images in pixels, (m,)."""
        sides = np.maximum(self.boxes[:, 2:] - self.boxes[:, :2], 0)
        return np.asarray(sides[:, 0] * sides[:, 1], np.float32)

    @cached_property
    def widths(self) -> NDArray[Any]:
        """In pixels, (n,)."""
        return np.asarray(self._pack.column("width"))

    @cached_property
    def heights(self) -> NDArray[Any]:
        """In pixels, (n,)."""
        return np.asarray(self._pack.column("height"))

    @property
    def image_areas(self) -> NDArray[np.int64]:
        """Width x height of each image, (n,)."""
        return np.asarray(self.widths.astype(np.int64) * self.heights)

    @property
    def _image_aspects(self) -> NDArray[np.float64]:
        return np.asarray(self.widths / np.maximum(self.heights, 1))

    def of_class(self, class_id: int) -> NDArray[np.bool_]:
        """Return which records are of that class or have a box of it, bool (n,)."""
        if class_id == NO_CLASS:
            return np.asarray((self.labels < 0) & (self.ragged("box_labels").lengths == 0))
        mask = np.asarray(self.labels == class_id)
        rows = self.ragged("box_labels").offsets
        hits = np.flatnonzero(self.box_labels == class_id) + int(rows[0])
        mask[np.searchsorted(rows, hits, side="right") - 1] = True
        return mask

    def _containing(self, name: str, text: bytes) -> NDArray[np.bool_]:
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


def _order(by: NDArray[np.float64], descending: bool) -> NDArray[np.intp]:
    """Return the stable order of values; NaN is last in both directions."""
    return np.argsort(np.where(np.isnan(by), np.inf, -by if descending else by), kind="stable")
