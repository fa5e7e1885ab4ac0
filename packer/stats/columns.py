"""Statistics from the columns of the index (sizes, classes, boxes, points), without reading images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.model.fields import BY_NAME, CLASS_IDS
from packer.repack.index_columns import count_ignored, equal_files
from packer.stats.pixels import SHARES

SMALL, MEDIUM = 32**2, 96**2
"""Areas in pixels below which a box is small, or medium: https://cocodataset.org/#detection-eval"""
MOST_COMMON, BINS = 5, 30


@dataclass(frozen=True)
class Spread:
    """A summary of some numbers; all 0 if there are none."""

    count: int
    lowest: float
    median: float
    mean: float
    highest: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> Spread:
        """Return the summary of `values`."""
        if not values.size:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        mean = float(np.mean(values, dtype=np.float64))
        return cls(int(values.size), float(values.min()), float(np.median(values)), mean, float(values.max()))


@dataclass(frozen=True)
class SizeStats:
    """Sizes of the packed images."""

    width: Spread
    height: Spread
    aspect: Spread
    """Width divided by height."""
    record_bytes: Spread
    distinct: int
    """Number of different sizes."""
    common: tuple[tuple[int, int, int], ...]
    """(width, height, images) of the most common sizes, the most common first."""


@dataclass(frozen=True)
class ClassCounts:
    """The number of images or boxes of each class."""

    of: str
    """images, boxes or tags (an image may have several, or none)."""
    names: tuple[str, ...]
    counts: tuple[int, ...]
    unlabelled: int
    """Images (or boxes) without a class."""

    @property
    def per_image(self) -> bool:
        """Whether an image counts once for each name that it has: those of the pack's flags."""
        return self.of == "tags"

    @property
    def imbalance(self) -> float | None:
        """Largest count divided by the smallest, of classes that occur; None if none does."""
        present = [count for count in self.counts if count]
        return max(present) / min(present) if present else None

    @property
    def empty(self) -> tuple[str, ...]:
        """Classes that do not occur."""
        return tuple(name for name, count in zip(self.names, self.counts, strict=True) if not count)


@dataclass(frozen=True)
class BoxStats:
    """Statistics of all boxes, in pixels of the packed images."""

    boxes: int
    images_without: int
    """Images that have no box."""
    per_image: Spread
    width: Spread
    height: Spread
    aspect: Spread
    """Width divided by height."""
    area_share: Spread
    """Area of a box divided by that of its image, 0 to 1."""
    small: int
    medium: int
    large: int
    """COCO's sizes: areas below 32x32, below 96x96, and above."""
    empty: int
    """Boxes without area."""
    ignored: int
    """Ignored regions among them: iscrowd, difficult or ignore."""


@dataclass(frozen=True)
class KeypointStats:
    """Statistics of the keypoints of boxes."""

    per_box: Spread
    """Keypoints of a box, of boxes that have any."""
    visibility: tuple[tuple[float, int], ...]
    """(value, number of keypoints), with the values of the source; COCO: 0 not labelled, 1 hidden, 2 visible."""


@dataclass(frozen=True)
class ValueStats:
    """Statistics of one of the numbers that images have as their value."""

    name: str
    """value, or value 0, value 1, ... if an image has several."""
    without: int
    """Images that have none."""
    spread: Spread
    quantiles: Mapping[str, float]
    """p10, p25, p50, p75 and p90; {} if there are none."""
    edges: tuple[float, ...]
    """Of a histogram."""
    counts: tuple[int, ...]
    """Its bars, one less than its edges."""


def value_columns(pack: Pack) -> dict[str, NDArray[np.float64]]:
    """Return the numbers that images have as their value, each (n,) with NaN for an image without; {} if none has."""
    if "value" not in pack.manifest.fields:
        return {}
    rows: Any = pack.column("value")
    most = int(rows.lengths.max(initial=0))
    found = np.full((len(rows), most), np.nan)
    found[np.arange(most) < rows.lengths[:, None]] = rows.flat()
    return {"value" if most == 1 else f"value {number}": values for number, values in enumerate(found.T)}


def value_stats(pack: Pack) -> tuple[ValueStats, ...]:
    """Return the statistics of the values of images, one for each number."""
    found = []
    for name, column in value_columns(pack).items():
        values = column[~np.isnan(column)]
        counts, edges = np.histogram(values, BINS)
        quantiles = {f"p{100 * s:g}": float(np.quantile(values, s)) for s in SHARES if len(values)}
        without, bars = len(column) - len(values), tuple(counts.tolist())
        found.append(ValueStats(name, without, Spread.of(values), quantiles, tuple(edges.tolist()), bars))
    return tuple(found)


def size_stats(pack: Pack) -> SizeStats:
    """Return the sizes of all images of a pack."""
    width = np.asarray(pack.column("width")).astype(np.int64)
    height = np.asarray(pack.column("height")).astype(np.int64)
    codes, counts = np.unique(width << 32 | height, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_COMMON]
    common = ((int(codes[i] >> 32), int(codes[i] & 0xFFFFFFFF), int(counts[i])) for i in order)
    return SizeStats(
        width=Spread.of(width),
        height=Spread.of(height),
        aspect=Spread.of(width / np.maximum(height, 1)),
        record_bytes=Spread.of(np.asarray(pack.column("size"))),
        distinct=len(codes),
        common=tuple(common),
    )


def class_counts(pack: Pack) -> tuple[ClassCounts, ...]:
    """Return the class counts of the images, of the boxes and of the tags, if they have them."""
    fields, names = pack.manifest.fields, tuple(pack.manifest.classes)
    found = []
    for name in CLASS_IDS:
        if name in fields:
            ids: Any = pack.column(name)
            of_boxes = BY_NAME[name].per_box
            found.append(_counts("boxes" if of_boxes else "images", np.asarray(ids.flat() if of_boxes else ids), names))
    if "tags" in fields:
        tags: Any = pack.column("tags")
        flags = np.asarray(tags.flat()).reshape(-1, len(pack.manifest.tags))
        without = len(pack) - int((flags.any(axis=1)).sum())
        found.append(
            ClassCounts("tags", pack.manifest.tags, tuple(flags.sum(axis=0, dtype=np.int64).tolist()), without)
        )
    return tuple(found)


def _counts(of: str, labels: NDArray[Any], names: tuple[str, ...]) -> ClassCounts:
    known = labels[(labels >= 0) & (labels < len(names))]
    counts = np.bincount(known, minlength=len(names)).tolist()
    return ClassCounts(of, names, tuple(counts), int(labels.size - known.size))


def box_stats(pack: Pack) -> BoxStats | None:
    """Return the statistics of all boxes; None if the pack has no boxes."""
    if "boxes" not in pack.manifest.fields:
        return None
    rows: Any = pack.column("boxes")
    lengths = np.asarray(rows.lengths)
    boxes = np.asarray(rows.flat(), np.float64).reshape(-1, 4)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = width * height
    image_area = np.asarray(pack.column("width"), np.float64) * np.asarray(pack.column("height"), np.float64)
    real = (width > 0) & (height > 0)
    return BoxStats(
        boxes=len(boxes),
        images_without=int((lengths == 0).sum()),
        per_image=Spread.of(lengths),
        width=Spread.of(width),
        height=Spread.of(height),
        aspect=Spread.of(width[real] / height[real]),
        area_share=Spread.of(area / np.repeat(image_area, lengths)),
        small=int((area < SMALL).sum()),
        medium=int(((area >= SMALL) & (area < MEDIUM)).sum()),
        large=int((area >= MEDIUM).sum()),
        empty=int((~real).sum()),
        ignored=count_ignored(pack),
    )


def points_stats(pack: Pack, name: str) -> Spread | None:
    """Return the points of an image, or of a box, in this field, of those that have any; None if the pack has none."""
    if name not in pack.manifest.fields:
        return None
    rows: Any = pack.column(name)
    lengths = np.asarray((rows.flat() if BY_NAME[name].per_box else rows).lengths)
    return Spread.of(lengths[lengths > 0])


def keypoint_stats(pack: Pack) -> KeypointStats | None:
    """Return the statistics of the boxes' keypoints; None if the pack has none."""
    if (per_box := points_stats(pack, "keypoints")) is None:
        return None
    rows: Any = pack.column("keypoints")
    values, counts = np.unique(np.asarray(rows.flat().flat()).reshape(-1, 3)[:, 2], return_counts=True)
    return KeypointStats(per_box, tuple(zip(values.tolist(), counts.tolist(), strict=True)))


def other_ids(classes: Sequence[Sequence[str]]) -> dict[str, tuple[int | None, ...]]:
    """Return the names that do not have the same id in all packs that have them, with the id in each pack.

    Args:
        classes: The class names of each pack, in id order.
    """
    ids = [{name: number for number, name in enumerate(names)} for names in classes]
    every = {name: tuple(of_pack.get(name) for of_pack in ids) for of_pack in ids for name in of_pack}
    return {name: numbers for name, numbers in every.items() if len({*numbers} - {None}) > 1}


MOST_GROUPS = 1000
"""Maximum number of groups listed; all are counted."""


@dataclass(frozen=True)
class RecordFile:
    """A record and its source file."""

    record: int
    key: str
    path: str


@dataclass(frozen=True)
class Duplicates:
    """Records whose source files have the same bytes."""

    groups: int
    surplus: int
    """Records that could be removed: all but one of each group."""
    listed: tuple[tuple[RecordFile, ...], ...]
    """The records of the first groups."""


@dataclass(frozen=True)
class Leaks:
    """Source files whose bytes are in both packs."""

    path: str
    """The other pack."""
    records: int
    """Records of this pack that are also in the other."""
    listed: tuple[tuple[tuple[RecordFile, ...], tuple[RecordFile, ...]], ...]
    """The records of each file: those in this pack and those in the other."""


def duplicates(pack: Pack) -> Duplicates:
    """Return groups of records with equal source files, according to their XXH3-128 (1 in 10^38 to be wrong)."""
    equal = equal_files(digests(pack))
    listed = tuple(
        tuple(record_file(pack, i) for i in equal.listed(group)) for group in range(min(equal.groups, MOST_GROUPS))
    )
    return Duplicates(equal.groups, len(equal.records) - equal.groups, listed)


def leaks(pack: Pack, other: Pack) -> Leaks:
    """Return the records of `pack` whose source files are also in `other`."""
    equal, ours = equal_files(np.concatenate([digests(pack), digests(other)])), len(pack)
    mine = np.add.reduceat(equal.records < ours, equal.starts[:-1]) if equal.groups else np.zeros(0, np.int64)
    both = np.flatnonzero((mine > 0) & (mine < np.diff(equal.starts)))
    listed = []
    for group in both[:MOST_GROUPS].tolist():
        records = equal.listed(group)
        here, there = (tuple(i for i in records if i < ours), tuple(i - ours for i in records if i >= ours))
        listed.append((tuple(record_file(pack, i) for i in here), tuple(record_file(other, i) for i in there)))
    return Leaks(other.path, int(mine[both].sum()), tuple(listed))


def digests(pack: Pack) -> NDArray[np.uint64]:
    """Return the digest of the source file of each record, (n, 2); zeros if it is not known."""
    rows = np.ascontiguousarray(np.asarray(pack.column("source_xxh3"), np.uint8))
    return rows.reshape(-1, 16).view(np.uint64)


def record_file(pack: Pack, record: int) -> RecordFile:
    """Return the key and the path of a record."""
    path: Any = pack.column("path")
    return RecordFile(record, pack.key(record), os.fsdecode(bytes(path[record])))
