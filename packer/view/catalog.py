"""Filters and sorts the records of a pack by the columns of its index, without reading an image."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.content import NO_CLASS, FlatColumns
from packer.format.pack import Pack
from packer.repack.fingerprints import known_fingerprints
from packer.stats.columns import value_columns
from packer.view.image_figures import IMAGE_FIGURES, figure_values

Records = NDArray[np.int64]


class CatalogColumns(FlatColumns):
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
    def box_records(self) -> NDArray[np.int64]:
        """The record of each box, (m,)."""
        return np.repeat(np.arange(len(self.box_counts)), self.box_counts)

    @cached_property
    def boxes_without_area(self) -> NDArray[np.bool_]:
        """Which boxes are not wide or not high, (m,)."""
        boxes = self.boxes
        return ~((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))

    @cached_property
    def path_ranks(self) -> NDArray[np.int64]:
        """Where each record is in the order of the source's paths, (n,)."""
        column = self.ragged("path")
        flat, offsets = np.asarray(column.flat()).tobytes(), (column.offsets - column.offsets[0]).tolist()
        paths = [flat[begin:end] for begin, end in pairwise(offsets)]
        ranks = np.empty(len(paths), np.int64)
        ranks[sorted(range(len(paths)), key=paths.__getitem__)] = np.arange(len(paths))
        return ranks

    @cached_property
    def widths(self) -> NDArray[Any]:
        """In pixels, (n,)."""
        return np.asarray(self.pack.column("width"))

    @cached_property
    def heights(self) -> NDArray[Any]:
        """In pixels, (n,)."""
        return np.asarray(self.pack.column("height"))

    @cached_property
    def fingerprints(self) -> NDArray[np.void]:
        """Of each image, (n,); of version 0 if it is not known."""
        return known_fingerprints(self.pack)

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
        """Return what boxes are sorted and chosen by, (m,).

        Args:
            name: ``box`` or ``box_area``, the area in pixels; ``box_width`` and ``box_height`` in pixels;
                ``box_aspect``, width / height; ``box_x`` and ``box_y``, the center in percent of the width and height
                of the image. But for the area, it is NaN for a box without area.
        """
        if name in ("box", "box_area"):
            return self.box_areas.astype(np.float64)
        axis = int(name in ("box_height", "box_y"))
        values: NDArray[np.float64] = (self.boxes[:, axis + 2] - self.boxes[:, axis]).astype(np.float64)
        with np.errstate(all="ignore"):
            if name == "box_aspect":
                values /= self.boxes[:, 3] - self.boxes[:, 1]
            elif name in ("box_x", "box_y"):
                values = values / 2 + self.boxes[:, axis]
                values *= (100 / np.maximum((self.widths, self.heights)[axis], 1))[self.box_records]
        values[self.boxes_without_area] = np.nan
        return values


SORTS = {
    "packed": ("record", False), "last": ("record", True), "set": ("set", False),
    "path": ("path", False), "last-path": ("path", True),
    "largest-box": ("box", True), "smallest-box": ("box", False),
    "widest-box": ("box_aspect", True), "tallest-box": ("box_aspect", False),
    "most-boxes": ("boxes", True), "fewest-boxes": ("boxes", False),
    "largest-value": ("value", True), "smallest-value": ("value", False),
    "largest-image": ("image", True), "smallest-image": ("image", False),
    "widest-image": ("image_aspect", True), "tallest-image": ("image_aspect", False),
    **{f"least-{name}": (name, False) for name in IMAGE_FIGURES},
    **{f"most-{name}": (name, True) for name in IMAGE_FIGURES},
}  # fmt: skip
"""What comes first -> by what it is sorted, and whether that descends."""
RANGES = ("boxes", "box", "width", "height", "aspect", "square", "points", "value", *IMAGE_FIGURES)
BOX_RANGES = ("box_width", "box_height", "box_area", "box_aspect", "box_x", "box_y")
_NTH_VALUE = re.compile(r"value[0-9]{1,4}")
_OF_BOXES = ("box", "box_aspect")
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
        without: Records that have none of these classes.
        ranges: (name, lowest value, highest value). Names of RANGES: number of boxes, area of the largest box in
            percent of the image, width and height in pixels, width / height, side of a square of its area, number of
            landmarks, the first value (``value3``: the fourth), and figures of the image. A record without boxes has
            no largest box, and one without a fingerprint no figures. Names of BOX_RANGES (`CatalogColumns.box_values`):
            a record must have a box, of `classes` if there are any, in all these ranges.
        sets: Names of sets as `Catalog.add_sets` explains; a record must be in all of them.
        text: Part of the key or of the source's path, ignoring case.
        sort: What comes first, a name of SORTS. Boxes count if they are of `classes` and in the ranges; an image is
            where its first box would be. ``set`` is the order of the first of `sets`.
    """

    classes: tuple[int, ...] = ()
    all_classes: bool = False
    without: tuple[int, ...] = ()
    ranges: tuple[tuple[str, float, float], ...] = ()
    sets: tuple[str, ...] = ()
    text: str = ""
    sort: str = "packed"


class Catalog(CatalogColumns):
    """Finds records and boxes. Threads may share it."""

    def __init__(self, pack: Pack) -> None:
        super().__init__(pack)
        self._cached: OrderedDict[tuple[Query, bytes], Records] = OrderedDict()
        self._cached_crops: tuple[Query, Records, Records, Records] | None = None
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
        packs = self.pack.packs
        if not (name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(packs)):
            raise UsageError("set", f"must be pack:0 to pack:{len(packs) - 1}, got {f'pack:{name}'[:40]!r}")
        begin = sum(len(part) for part in packs[: int(name)])
        part = packs[int(name)]
        return RecordSet(self.pack_names[int(name)], np.arange(begin, begin + len(part), dtype=np.int64))

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
        mask = np.ones(len(self.pack), np.bool_)
        if query.classes:
            join = np.logical_and if query.all_classes else np.logical_or
            mask &= join.reduce([self.of_class(class_id) for class_id in query.classes])
        for class_id in query.without:
            mask &= ~self.of_class(class_id)
        for name, low, high in query.ranges:
            if name not in BOX_RANGES:
                values = self._values(name)
                mask &= (values >= low) & (values <= high)
        if any(name in BOX_RANGES for name, *_ in query.ranges):
            mask &= self._inside(self.records_of(self._rows_of(query)))
        for records in sets:
            mask &= self._inside(records)
        if query.text:
            text = query.text.lower().encode("utf-8", "surrogateescape")
            mask &= self.containing("key", text) | self.containing("path", text)
        if query.sort == "set" and query.sets:  # its own order: equal images side by side, the worst box first
            first = next(iter(sets))
            return np.asarray(first[mask[first]])
        return self._sorted(np.flatnonzero(mask).astype(np.int64), query)

    def _inside(self, records: Records) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.pack), np.bool_)
        mask[records] = True
        return mask

    def _sorted(self, found: Records, query: Query) -> Records:
        name, descending = SORTS[query.sort]
        if name in ("record", "set"):
            return found[::-1] if descending else found
        if name in _OF_BOXES:
            by = self._first_boxes(query)[found]
        else:
            by = np.asarray(self._values(name))[found].astype(np.float64)
        return np.asarray(found[_order(by, descending)])

    def crops(self, query: Query) -> tuple[Records, Records]:
        """Return the boxes to cut out: those of the matching records, and of the class of the query if it has one.

        Returns:
            The record of each box, and the row of each box in `boxes`. They follow the order of the records, but where
            that is by a property of boxes, each box has its own place.
        """
        # boxes have the order of the records, or one of their own
        found = self.find(replace(query, sort="packed") if SORTS[query.sort][0] in _OF_BOXES else query)
        cached = self._cached_crops
        if cached is None or cached[0] != query or cached[1] is not found:
            cached = self._cached_crops = (query, found, *self._crops(query, found))  # 16 MB for a million boxes
        return cached[2:]

    def _crops(self, query: Query, found: Records) -> tuple[Records, Records]:
        name, descending = SORTS[query.sort]
        rank = np.full(len(self.pack), -1, np.int64)
        rank[found] = np.arange(len(found))
        rows = self._rows_of(query)
        records = self.records_of(rows)
        matching = rank[records] >= 0
        rows, records = rows[matching], records[matching]
        order = np.arange(len(rows))
        if name in _OF_BOXES:
            order = _order(self.box_values(name)[rows], descending)
        elif query.sort != "packed":
            order = np.argsort(rank[records], kind="stable")
        return records[order], rows[order]

    def _rows_of(self, query: Query) -> Records:
        """Return the rows of the boxes that a query means."""
        mask = np.isin(self.box_labels, query.classes) if query.classes else np.ones(len(self.boxes), np.bool_)
        for name, low, high in query.ranges:
            if name in BOX_RANGES:
                values = self.box_values(name)
                mask &= (values >= low) & (values <= high)
        return np.flatnonzero(mask)

    def _first_boxes(self, query: Query) -> NDArray[np.float64]:
        """Return the value of the box of each record that would come first, (n,); NaN if it has none."""
        name, descending = SORTS[query.sort]
        values = self.box_values(name)
        rows = self._rows_of(query)
        rows = rows[~np.isnan(values[rows])]
        first = np.full(len(self.pack), np.nan)
        if len(rows):
            records = self.records_of(rows)
            starts = np.flatnonzero(np.diff(records, prepend=-1))
            reduce = np.maximum if descending else np.minimum
            first[records[starts]] = reduce.reduceat(values[rows], starts)
        return first

    @cached_property
    def _largest_boxes(self) -> NDArray[np.float64]:
        """Area of the largest box of each image, (n,); NaN if it has none."""
        return self._first_boxes(Query(sort="largest-box"))

    def _values(self, name: str) -> NDArray[Any]:
        """Return the values of a name of RANGES or SORTS, (n,); NaN, which is in no range, if a record has none."""
        if name == "boxes":
            return self.box_counts
        if name == "box":
            return np.asarray(self._largest_boxes / np.maximum(self.image_areas, 1) * 100.0)
        if name in ("aspect", "image_aspect"):
            return self.image_aspects
        if name.startswith("value"):
            return self.numbers_of(int(name.removeprefix("value") or 0))
        if name == "square":
            return np.asarray(np.sqrt(self.image_areas.astype(np.float64)))
        if name == "points":
            return self.ragged("landmarks").lengths
        if name == "path":
            return self.path_ranks
        if name == "image":
            return self.image_areas
        if name in IMAGE_FIGURES:
            return figure_values(self.fingerprints, name)
        return self.widths if name == "width" else self.heights

    @cached_property
    def _numbers(self) -> list[NDArray[np.float64]]:
        return list(value_columns(self.pack).values())

    def numbers_of(self, nth: int) -> NDArray[np.float64]:
        """Return the nth of the numbers that images have as their value, (n,); NaN where there is none."""
        return self._numbers[nth] if nth < len(self._numbers) else np.full(len(self.pack), np.nan)


def _order(by: NDArray[np.float64], descending: bool) -> NDArray[np.intp]:
    """Return the stable order of values; NaN is last in both directions."""
    return np.argsort(np.where(np.isnan(by), np.inf, -by if descending else by), kind="stable")


_MOST_PARTS = 100
"""Maximum number of classes or of sets in a filter."""


def query_of(given: Mapping[str, str]) -> Query:
    """Return the filter and order of a request; raise UsageError if they are invalid."""
    sort = given.get("sort", "packed")
    if sort not in SORTS:
        raise UsageError("sort", f"must be one of {', '.join(SORTS)}, got {sort!r}")
    if given.get("match", "any") not in ("any", "all"):
        raise UsageError("match", f"must be any or all, got {given['match'][:40]!r}")
    most = 1 << 40

    def ids(name: str) -> tuple[int, ...]:
        parts = [part for part in given.get(name, "").split(",") if part][:_MOST_PARTS]
        return tuple(number({name: part}, name, 0, -1, most) for part in parts)

    ranges = sorted(name for name in given if name in RANGES or name in BOX_RANGES or _NTH_VALUE.fullmatch(name))
    return Query(
        classes=ids("class"),
        all_classes=given.get("match") == "all",
        without=ids("not"),
        ranges=tuple((name, *range_of(given, name)) for name in ranges if given[name]),
        text=given.get("text", "")[:1000],
        sets=tuple(part for part in given.get("set", "").split(",") if part)[:_MOST_PARTS],
        sort=sort,
    )


def range_of(given: Mapping[str, str], name: str) -> tuple[float, float]:
    """Return the ends of a range such as ``2..5``, ``2..``, ``..5`` or ``2..<5``, without 5.

    Raises:
        UsageError: It is not one.
    """
    low, dots, high = given[name].partition("..")
    try:
        ends = float(low or "-inf"), float(high.removeprefix("<") or "inf")
    except ValueError:
        ends = math.nan, math.nan
    if high.startswith("<"):
        ends = ends[0], math.nextafter(ends[1], -math.inf)
    if not dots or not ends[0] <= ends[1]:
        raise UsageError(name, f"must be a range such as 2..5, 2.. or ..5, got {given[name][:40]!r}")
    return ends


def number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return an integer argument of a request.

    Raises:
        UsageError: If it is not an integer from `low` to `high`.
    """
    text = given.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or not low <= int(text) <= high:
        raise UsageError(name, f"must be {low} to {high}, got {text[:40]!r}")
    return int(text)
