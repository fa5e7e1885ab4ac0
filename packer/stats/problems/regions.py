"""Problems of parts: masks with unknown ids, islands, nothing or what boxes deny; maps without content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural, printable
from packer.images.opencv import cv2
from packer.model.annotation import Mask, MaskFacts, PartSpec, Progress
from packer.model.geometry import is_known
from packer.stats.pixels import of_parts, records_with
from packer.stats.problems.problem import (
    CHECK,
    EXAMPLES,
    WRONG,
    DataProblem,
    Example,
    Place,
    ProblemColumns,
    distinct,
    list_text,
)

READ = ("mask", "map")
"""The kinds of parts that are read."""
ISLAND_PX = 9
"""Pixels of a connected region below which it is an island: 3 x 3."""
BOX_SHARE = 0.02
"""Share of the pixels of a box below which it has nearly none of its class."""
REGION_SHARE = 0.005
"""Share of the pixels of an image from which a region must be near a box of its class."""
KNOWN_SHARE = 0.001
"""Share of the values of a map that must be known."""
NEAR = 0.1
"""How far beyond a box is near it, in sides of the box."""


@dataclass(frozen=True)
class Finding:
    """One mask that has a problem, or one box."""

    kind: str
    worth: float
    """How bad it is: the highest are listed first."""
    record: int
    detail: str
    place: Place | None = None
    box: int | None = None
    """A number among the boxes of all records."""


_KINDS = {
    "mask-ids": (
        WRONG, "Masks with ids that no class has",
        "{masks} pixels whose id is of no class. A loss fails on such pixels, or counts them for a class that does not "
        "exist. Correct the masks, or name what the ids are: --classes, --ignore-id, --mask-values.",
    ),
    "box-without-mask": (
        CHECK, "Boxes without pixels of their class",
        f"{{boxes}} hardly a pixel of the class in the mask (below {BOX_SHARE:.0%}; classes of one name are compared). "
        "One of the two is wrong, or the object is hidden behind another one.",
    ),
    "mask-without-box": (
        CHECK, "Regions of masks without a box",
        f"{{masks}} a region of at least {REGION_SHARE:.1%} of the image that is near no box of its class. Most often, "
        "the box is missing.",
    ),
    "empty-mask": (
        CHECK, "Empty masks",
        "{masks} only background, or only ignored pixels. Good as background if there is nothing to see; from a mask "
        "that is all ignored, nothing is learned.",
    ),
    "flat-map": (
        CHECK, "Maps without content",
        f"{{maps}} one value everywhere, or none: fewer than {KNOWN_SHARE:.1%} of the values are known. Most often, "
        "the sensor or the file has failed.",
    ),
    "mask-islands": (
        CHECK, "Islands of a few pixels",
        f"{{masks}} connected regions of fewer than {ISLAND_PX} pixels that do not touch the border of the image: "
        "slips of the brush, holes that were not filled, or thin objects that a resize has cut to pieces.",
    ),
}  # fmt: skip
"""Kind -> its level, title and text."""


def missing_parts(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield the images without a part that others have; none is read."""
    pack = columns.pack
    missing = {name: np.flatnonzero(~records_with(pack, name)) for name in pack.manifest.parts}
    if any(map(len, missing.values())):
        lacking = [
            f"{plural(len(records), 'image has', 'images have')} no {name} ({len(records) / len(pack):.1%})"
            for name, records in missing.items() if len(records)
        ]  # fmt: skip
        yield columns.problem(
            ("no-part", CHECK, "Images without a part that others have"),
            f"{list_text(lacking)}. In training, missing pixels have the value to ignore, or 0; others are None.",
            np.unique(np.concatenate([*missing.values()])),
            detail=lambda record: ", ".join(f"no {name}" for name, records in missing.items() if record in records),
        )


def part_problems(columns: ProblemColumns, records: NDArray[np.int64], progress: Progress) -> Iterator[DataProblem]:
    """Yield the problems that the masks and maps of these records have."""
    found: list[Finding] = []
    for spec in columns.pack.manifest.part_specs:
        if spec.kind in READ:
            look = MaskLook(columns, spec.name).findings if spec.kind == "mask" else partial(_of_map, spec)
            for some in of_parts(columns.pack, spec.name, look, progress, records=records):
                found += chain.from_iterable(some)
    for kind, (level, title, text) in _KINDS.items():
        if of_kind := sorted((one for one in found if one.kind == kind), key=lambda one: -one.worth):
            count = len({one.record for one in of_kind})
            masks, maps = plural(count, "mask has", "masks have"), plural(count, "map has", "maps have")
            boxes = plural(len(of_kind), "box has", "boxes have")
            numbers = np.array([one.record for one in of_kind])
            firsts = {one.record: one for one in reversed(of_kind)}
            shown = [firsts[record] for record in distinct(numbers)[:EXAMPLES].tolist()]
            examples = tuple(_example(columns, one) for one in shown)
            text_of = text.format(masks=masks, maps=maps, boxes=boxes)
            yield DataProblem(kind, level, title, text_of, len(of_kind), distinct(numbers), examples)


def _of_map(spec: PartSpec, record: int, value: NDArray[Any]) -> list[Finding]:
    known = value[is_known(value, spec.ignore)]
    if len(known) < KNOWN_SHARE * value.size:
        return [Finding("flat-map", 2, record, f"{spec.name}: {plural(len(known), 'value')} of {value.size:,} known")]
    same = known.min() == known.max()
    return [Finding("flat-map", 1, record, f"{spec.name}: {known[0]:g} everywhere")] if same else []


def _example(columns: ProblemColumns, one: Finding) -> Example:
    return columns.example(one.record, one.detail, () if one.box is None else (one.box,), one.place)


class MaskLook:
    """Looks at the masks of one part. Threads may share it."""

    def __init__(self, columns: ProblemColumns, name: str) -> None:
        self._columns = columns
        self._facts: MaskFacts = columns.pack.manifest.masks[name]
        self._part = f"{name}: " if len(columns.pack.manifest.masks) > 1 else ""
        self._boxed: dict[int, int] = {}
        """Class id of boxes -> id in masks, of classes with one name that have a box."""
        if {"boxes", "box_labels"} <= columns.fields:
            ids = {printable(name): number for number, name in enumerate(self._facts.classes)}
            there = np.unique(columns.box_classes).tolist()
            self._boxed = {i: ids[columns.classes[i]] for i in there if i >= 0 and columns.classes[i] in ids}

    def findings(self, record: int, mask: Mask) -> list[Finding]:
        """Return what is wrong with a mask."""
        counts = np.bincount(mask.ravel())
        ids = [i for i in np.flatnonzero(counts).tolist() if i != self._facts.ignore]
        places = _places_of_ids(mask)
        regions = {i: Regions(mask, i, places[i]) for i in ids}
        found = []
        if set(ids) <= {self._facts.background}:
            found.append(self._finding("empty-mask", not ids, record, "only background" if ids else "all ignored"))
        if self._facts.classes and (unknown := [i for i in ids if i >= len(self._facts.classes)]):
            pixels = [f"{i} ({plural(int(counts[i]), 'pixel')})" for i in unknown]
            place = regions[unknown[0]].places[1]
            found.append(self._finding("mask-ids", counts[unknown].sum(), record, list_text(pixels, 3), place))
        found += self._islands(record, regions)
        return [*found, *self._boxes(record, mask, regions)] if self._boxed else found

    def _finding(self, kind: str, worth: float, record: int, detail: str, place: Place | None = None) -> Finding:
        return Finding(kind, float(worth), record, self._part + detail, place)

    def _name(self, number: int) -> str:
        return printable(self._facts.classes[number]) if number < len(self._facts.classes) else str(number)

    def _islands(self, record: int, regions: dict[int, Regions]) -> Iterator[Finding]:
        sizes = {i: one.areas[one.islands] for i, one in regions.items() if len(one.islands)}
        if sizes:
            most = sorted(sizes, key=lambda i: -len(sizes[i]))
            count, pixels = sum(map(len, sizes.values())), int(sum(one.sum() for one in sizes.values()))
            names = list_text([self._name(i) for i in most], 3)
            place = regions[most[0]].places[regions[most[0]].islands[0]]
            detail = f"{plural(count, 'island')} of {plural(pixels, 'pixel')}: {names}"
            yield self._finding("mask-islands", count, record, detail, place)

    def _boxes(self, record: int, mask: Mask, regions: dict[int, Regions]) -> Iterator[Finding]:
        first, stop = self._columns.firsts[record : record + 2].tolist()
        boxes, classes = self._columns.boxes[first:stop], self._columns.box_classes[first:stop]
        for number, (box, class_id) in enumerate(zip(boxes.tolist(), classes.tolist(), strict=True), first):
            if class_id in self._boxed and (share := self._share(mask, box, self._boxed[class_id])) < BOX_SHARE:
                name = self._columns.class_name(class_id)
                detail = f"{self._part}{name}: {share:.1%} of the box is {name} in the mask"
                yield Finding("box-without-mask", -share, record, detail, box=number)
        for class_id, i in self._boxed.items():
            for region, place in regions[i].places.items() if i in regions else ():
                pixels = int(regions[i].areas[region])
                if pixels >= REGION_SHARE * mask.size and not _is_near(place, boxes[classes == class_id]):
                    detail = f"{self._name(i)}: a region of {plural(pixels, 'pixel')}"
                    yield self._finding("mask-without-box", pixels / mask.size, record, detail, place)

    def _share(self, mask: Mask, box: list[float], number: int) -> float:
        """Return the share of the pixels of a box that have an id; 1 if it has few pixels, or most are ignored."""
        height, width = mask.shape
        x1, y1, x2, y2 = np.clip(np.nan_to_num(box), 0, [width, height, width, height])
        pixels = mask[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))]
        known = np.count_nonzero(pixels != self._facts.ignore) if self._facts.ignore is not None else pixels.size
        if pixels.size < ISLAND_PX or 2 * known < pixels.size:
            return 1.0
        return float(np.count_nonzero(pixels == number) / known)


class Regions:
    """The connected regions of an id in a mask; those that touch only at corners are connected, too."""

    def __init__(self, mask: Mask, number: int, inside: Place) -> None:
        x, y, right, bottom = inside  # most ids are in a part of the mask: less work
        # twice as fast as connectedComponentsWithStats, of which little is needed
        _, labels = cv2.connectedComponents((mask[y:bottom, x:right] == number).view(np.uint8), connectivity=8)
        self.areas = np.bincount(labels.ravel())
        """Pixels of each region. The first one is the rest of the mask, and counts 0."""
        self.areas[0] = 0
        edges = labels[0], labels[-1], labels[:, 0], labels[:, -1]
        at_border = y == 0, bottom == mask.shape[0], x == 0, right == mask.shape[1]
        cut = [edge for edge, is_at_border in zip(edges, at_border, strict=True) if is_at_border]
        small = (self.areas > 0) & (self.areas < ISLAND_PX)
        small[np.concatenate([*cut, [0]])] = False
        self.islands = np.flatnonzero(small)
        """The regions that are islands, the largest first."""
        self.islands = self.islands[np.argsort(-self.areas[self.islands], kind="stable")]
        large = np.flatnonzero(self.areas >= REGION_SHARE * mask.size)
        self.places = {
            region: _place((labels == region).view(np.uint8), x, y)
            for region in [1, *self.islands[:1].tolist(), *large.tolist()]
        }
        """Where the first region is, the largest island, and those that are large."""


def _places_of_ids(mask: Mask) -> dict[int, Place]:
    """Return where each id is, from the runs of equal pixels in rows."""
    begins = np.ones(mask.shape, np.bool_)
    np.not_equal(mask[:, 1:], mask[:, :-1], out=begins[:, 1:])
    rows, lefts = np.nonzero(begins)
    ids, rights = mask[rows, lefts], np.append(lefts[1:], 0)
    rights[rights == 0] = mask.shape[1]  # the next run begins a row
    order = np.argsort(ids, kind="stable")
    there, firsts = np.unique(ids[order], return_index=True)
    sides = (
        np.minimum.reduceat(lefts[order], firsts), rows[order[firsts]],
        np.maximum.reduceat(rights[order], firsts), rows[order[np.append(firsts[1:], len(order)) - 1]] + 1,
    )  # fmt: skip
    return dict(zip(there.tolist(), zip(*(side.tolist() for side in sides), strict=True), strict=True))


def _place(pixels: Mask, left: int, top: int) -> Place:
    x, y, width, height = cv2.boundingRect(pixels)
    return left + x, top + y, left + x + width, top + y + height


def _is_near(place: Place, boxes: NDArray[np.float32]) -> bool:
    """Return whether a place touches one of these boxes, or what is near it."""
    x1, y1, x2, y2 = boxes.T
    across, down = NEAR * (x2 - x1), NEAR * (y2 - y1)
    beside = (place[2] < x1 - across) | (place[0] > x2 + across) | (place[3] < y1 - down) | (place[1] > y2 + down)
    return not beside.all()
