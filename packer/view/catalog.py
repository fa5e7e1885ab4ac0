"""Filters and sorts the records of a pack by the columns of its index, without reading an image."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError, printable
from packer.format.pack import Pack
from packer.format.ragged import Ragged

Records = NDArray[np.int64]
SORTS = ("record", "box", "image", "boxes")
RANGES = ("boxes", "box", "width", "height", "aspect")
NO_CLASS = -1
_CACHED_ORDERS = 4


class RecordSet(NamedTuple):
    """Records that a name stands for, such as those of a problem or those that are marked; its title is shown."""

    title: str
    records: Records


@dataclass(frozen=True, slots=True)
class Query:
    """A filter and an order.

    Attributes:
        classes: Records of these classes, or with boxes of them; NO_CLASS: those without a class; empty: all records.
        all_classes: Whether a record must have all of `classes`; otherwise, one is enough.
        ranges: (name of RANGES, lowest value, highest value): number of boxes, area of the largest box in percent of
            the image, width and height in pixels, width / height. A record without boxes has no largest box.
        sets: Names of sets as `Catalog.add_sets` explains; a record must be in all of them.
        text: Part of the key or of the source's path, ignoring case.
        sort: By record number, area of the largest box, area of the image, or number of boxes: a name of SORTS.
        descending: Whether the largest comes first.
    """

    classes: tuple[int, ...] = ()
    all_classes: bool = False
    ranges: tuple[tuple[str, float, float], ...] = ()
    sets: tuple[str, ...] = ()
    text: str = ""
    sort: str = "record"
    descending: bool = False


class Catalog:
    """The columns of a pack that filters and sorting need. Threads may share it."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._cached: OrderedDict[tuple[Query, bytes], Records] = OrderedDict()
        self._lock = Lock()
        self._sets: dict[str, Callable[[str], RecordSet]] = {"pack": self._of_pack}

    def add_sets(self, kind: str, find: Callable[[str], RecordSet]) -> None:
        """Make sets of records known by the names ``KIND:NAME`` (``set=problem:3`` in the address).

        Args:
            kind: The first part of the names.
            find: Returns the set of a NAME, which has no comma. It is called for each request, so it should keep what
                takes long. What it returns may change. It raises UsageError for a name that it does not know.
        """
        self._sets[kind] = find

    def set_of(self, name: str) -> RecordSet:
        """Return the set of a name; raise UsageError if it is not known."""
        kind, _, rest = name.partition(":")
        if kind not in self._sets:
            raise UsageError("set", f"must begin with one of {', '.join(self._sets) or 'none'}, got {name[:40]!r}")
        return self._sets[kind](rest)

    def _of_pack(self, name: str) -> RecordSet:
        """Return the records of one of several packs that are shown together, by its number."""
        packs = self._pack.packs
        if not (name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(packs)):
            raise UsageError("set", f"must be pack:0 to pack:{len(packs) - 1}, got {f'pack:{name}'[:40]!r}")
        begin = sum(len(part) for part in packs[: int(name)])
        part = packs[int(name)]
        title = printable(os.path.basename(part.path.rstrip("/")) or part.path)
        return RecordSet(title, np.arange(begin, begin + len(part), dtype=np.int64))

    def titles(self, names: Iterable[str]) -> dict[str, str]:
        """Return the title of each set."""
        return {name: self.set_of(name).title for name in names}

    def find(self, query: Query) -> Records:
        """Return the numbers of the matching records, in order; raise DamagedPack if the index is damaged."""
        sets = [self.set_of(name).records for name in query.sets]
        key = query, b"".join(xxhash.xxh3_128_digest(np.ascontiguousarray(records).data) for records in sets)
        with self._lock:
            found = self._cached.get(key)
            if found is None:
                found = self._cached[key] = self._found(query, sets)
                while len(self._cached) > _CACHED_ORDERS:
                    self._cached.popitem(last=False)
            self._cached.move_to_end(key)
        return found

    def _found(self, query: Query, sets: Iterable[Records]) -> Records:
        mask = np.ones(len(self._pack), np.bool_)
        if query.classes:
            join = np.logical_and if query.all_classes else np.logical_or
            mask &= join.reduce([self.of_class(class_id) for class_id in query.classes])
        for name, low, high in query.ranges:
            values = self._values(name)
            mask &= (values >= low) & (values <= high)
        for records in sets:
            inside = np.zeros(len(self._pack), np.bool_)
            inside[records] = True
            mask &= inside
        if query.text:
            text = query.text.lower().encode("utf-8", "surrogateescape")
            mask &= self._containing("key", text) | self._containing("path", text)
        return self._sorted(np.flatnonzero(mask).astype(np.int64), query)

    def _sorted(self, found: Records, query: Query) -> Records:
        if query.sort == "record":
            return found[::-1] if query.descending else found
        values = {"box": self._largest_boxes, "image": self.image_areas, "boxes": self.box_counts}
        by = np.asarray(values[query.sort])[found].astype(np.float64)
        by = np.where(by < 0, np.inf, -by if query.descending else by)  # without a box: last in both directions
        return np.asarray(found[np.argsort(by, kind="stable")])

    def _values(self, name: str) -> NDArray[Any]:
        """Return the values of a name of RANGES, (n,); NaN, which is in no range, if a record has none."""
        if name == "boxes":
            return self.box_counts
        if name == "box":
            shares = self._largest_boxes / np.maximum(self.image_areas, 1) * 100.0
            return np.where(self._largest_boxes < 0, np.nan, shares)
        if name == "aspect":
            return np.asarray(self.widths / np.maximum(self.heights, 1))
        return self.widths if name == "width" else self.heights

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

    @cached_property
    def _largest_boxes(self) -> NDArray[np.float32]:
        """Area of the largest box of each image, (n,); -1 if it has none."""
        largest = np.full(len(self._pack), -1, np.float32)
        filled = np.flatnonzero(self.box_counts)
        if len(filled):
            offsets = self.ragged("boxes").offsets
            largest[filled] = np.maximum.reduceat(self.box_areas, (offsets[filled] - offsets[0]).astype(np.int64))
        return largest

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
