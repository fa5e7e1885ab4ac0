"""What pixels hold: mean and std of each channel, classes in masks, masks of objects, maps; and lengths of texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.format.content import NO_CLASS, FlatColumns
from packer.format.pack import Pack
from packer.images.opencv import cv2, quiet_opencv
from packer.model.annotation import Mask, PartSpec, Progress, column_of
from packer.model.fields import INSTANCES
from packer.model.geometry import is_known
from packer.model.rle import run_lengths
from packer.packing.write_shard import ahead
from packer.system import usable_cores

BLOCK_BYTES = 256 << 10
"""Small raw images are collected into blocks of this size, which fit a cache: an OpenCV call takes as long as 4 KiB."""
TASK_BYTES = 8 << 20
ROUND_IMAGES = 512
MOST_PIXELS = 1 << 24
"""8-bit pixels per call: sums of squares stay far below 2**53, up to which doubles are exact."""

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of the share that a class has of an image, and of other numbers."""
PARTS_TOGETHER, RECORDS_TOGETHER = 64, 4096
SAMPLE, MAP_NUMBERS = 1000, 4096
"""Maps and texts that are read, and about how many numbers of each map are."""

Made = TypeVar("Made")
Kind = tuple[int, str]
"""Channels and dtype of an image."""


@dataclass(frozen=True)
class ChannelStats:
    """Mean and std over all pixels of the images of one kind, scaled to 0..1."""

    channels: int
    dtype: str
    images: int
    pixels: int
    mean: tuple[float, ...]
    """Mean of each channel, divided by the highest value of the dtype (255 or 65535)."""
    std: tuple[float, ...]
    """Standard deviation of the population (divided by n), on the same scale."""


@dataclass(frozen=True)
class MaskClass:
    """A class in the masks of a pack."""

    id: int
    name: str
    """Empty if the pack has no names."""
    pixels: int
    """Of all masks."""
    images: int
    """Whose mask has the class."""
    shares: tuple[float, ...]
    """Shares of the pixels of such a mask that are of the class, 0 to 1: the quantiles `SHARES`; () without masks."""


@dataclass(frozen=True)
class MaskStats:
    """What the masks of a pack hold."""

    part: str
    """Their name: mask."""
    masks: int
    """Number of images that have one."""
    pixels: int
    """Of all masks, with those that are ignored."""
    ignored: int
    """Pixels of no class."""
    classes: tuple[MaskClass, ...]
    """Those that have a name or a pixel, in the order of their ids."""


@dataclass(frozen=True)
class InstanceClass:
    """The masks of the objects of a class."""

    id: int
    """-1 for those without a class."""
    name: str
    masks: int
    """Number of objects with a mask."""
    areas: tuple[float, ...]
    """Pixels of a mask: the quantiles `SHARES`."""


@dataclass(frozen=True)
class PartStats:
    """What the maps or the texts of a pack hold."""

    part: str
    """Their name: depth."""
    kind: str
    """map or text."""
    count: int
    """Number of images that have one."""
    read: int
    """Number of those that were read, spread evenly over the pack."""
    unknown: float
    """Share of the values of maps that are unknown, 0 to 1."""
    quantiles: tuple[float, ...]
    """Lowest, quantiles `SHARES` and highest of the known values of maps, or of the lengths of texts in characters;
    () if there are none."""


class Sums:
    """Sum and sum of squares of each channel, as Python integers."""

    def __init__(self, channels: int) -> None:
        self.images = self.pixels = 0
        self.sums = [0] * channels
        self.squares = [0] * channels
        self._planes: list[NDArray[np.uint8]] = []

    def planes_for(self, image: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return memory for the channels of an image, reused for the next one of the same size."""
        if not self._planes or self._planes[0].shape != image.shape[:2]:
            self._planes = [np.empty(image.shape[:2], np.uint8) for _ in range(image.shape[2])]
        return self._planes

    def add(self, other: Sums) -> None:
        """Add the images of `other`."""
        self.images += other.images
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]

    def stats(self, kind: Kind) -> ChannelStats:
        """Return mean and std, rounded once."""
        n, highest = self.pixels, int(np.iinfo(kind[1]).max)
        pairs = list(zip(self.sums, self.squares, strict=True))
        mean = tuple(float(Fraction(total, n * highest)) for total, _ in pairs)
        variance = (Fraction(n * squares - total * total, (n * highest) ** 2) for total, squares in pairs)
        return ChannelStats(*kind, self.images, n, mean, tuple(math.sqrt(v) for v in variance))


@quiet_opencv()
def channel_stats(
    pack: Pack, progress: Progress | None = None, threads: int | None = None, verify: bool = True
) -> tuple[ChannelStats, ...]:
    """Return mean and std of each kind of image in the pack, gray first.

    Args:
        pack: The pack.
        progress: Receives the number of images read.
        threads: Number of threads; one per core by default.
        verify: Whether records are verified against their checksums.

    Raises:
        DamagedPack: If a record does not match its checksum, or cannot be decoded.
    """
    size = _one_size(pack)
    images = ROUND_IMAGES if size is None else max(1, TASK_BYTES // size)
    parts = (np.arange(start, min(start + images, len(pack))) for start in range(0, len(pack), images))

    def work(records: NDArray[np.int64]) -> tuple[int, dict[Kind, Sums]]:
        with pack.reader.held(records):
            if verify:
                pack.reader.check(records)
            return len(records), _of_images(pack, records) if size is None else _of_raw_images(pack, records, size)

    progress = progress or Progress()
    progress.stage("reading", len(pack))
    totals: dict[Kind, Sums] = {}
    with closing(ahead(work, parts, threads or usable_cores())) as done:
        for count, found in done:
            for kind, sums in found.items():
                totals.setdefault(kind, Sums(kind[0])).add(sums)
            progress.advance(count)
    return tuple(totals[kind].stats(kind) for kind in sorted(totals))


def mask_stats(pack: Pack, progress: Progress | None = None, threads: int | None = None) -> tuple[MaskStats, ...]:
    """Return what the masks of the pack hold, pixel by pixel; empty for a pack without masks.

    Args:
        pack: The pack.
        progress: Receives the number of masks read.
        threads: Number of threads; one per core by default.

    Raises:
        DamagedPack: If a mask does not match its checksum, or cannot be decoded.
    """
    progress = progress or Progress()
    return tuple(_mask_stats(pack, name, progress, threads or usable_cores()) for name in pack.manifest.masks)


def _mask_stats(pack: Pack, name: str, progress: Progress, threads: int) -> MaskStats:
    facts, masks, none = pack.manifest.masks[name], 0, np.zeros((0, 3), np.int32)
    parts = [none]
    for found in of_parts(pack, name, _count_ids, progress, threads):
        masks += len(found)
        parts.append(np.concatenate([none, *found]))
    ids, counts, sizes = np.concatenate(parts).T
    named, order = dict(enumerate(facts.classes)), np.argsort(ids, kind="stable")
    there, firsts = np.unique(ids[order], return_index=True)
    rows = dict.fromkeys(named, order[:0]) | dict(zip(there.tolist(), np.split(order, firsts)[1:], strict=True))
    ignored = 0 if facts.ignore is None else int(counts[rows.pop(facts.ignore, order[:0])].sum())
    classes = tuple(
        MaskClass(
            i, named.get(i, ""), int(counts[of].sum()), len(of),
            tuple(np.quantile(counts[of] / sizes[of], SHARES).tolist()) if len(of) else (),
        )
        for i, of in sorted(rows.items())
    )  # fmt: skip
    return MaskStats(name, masks, int(counts.sum()), ignored, classes)


def _count_ids(record: int, mask: Mask) -> NDArray[np.int32]:
    """Return the ids in a mask, how many pixels have each, and how many it has."""
    counts = np.bincount(mask.ravel())
    ids = np.flatnonzero(counts)
    return np.stack([ids, counts[ids], np.full(len(ids), mask.size)], axis=1).astype(np.int32)


def instance_stats(pack: Pack) -> tuple[InstanceClass, ...]:
    """Return how large the masks of objects are, of each class that has some. Raise DamagedPack if one is damaged."""
    if INSTANCES.name not in pack.manifest.fields:
        return ()
    columns = FlatColumns(pack)
    masks, sizes = columns.ragged(INSTANCES.name), columns.sizes.astype(np.int64)
    areas: list[int] = []
    for first in range(0, len(pack), RECORDS_TOGETHER):
        some = masks[first : first + RECORDS_TOGETHER]
        pixels = np.repeat(sizes.prod(axis=0)[first : first + len(some)], some.lengths)
        try:
            lengths = run_lengths(np.asarray(some.flat().flat()), np.asarray(some.flat().lengths), pixels)
        except ValueError:
            for record in range(first, first + len(some)):
                pack.instance_masks(record)  # raises the error of the one that is damaged
            raise
        areas += [int(one[1::2].sum()) for one in lengths]
    found = np.array(areas, np.int64)
    ids = np.where(
        found > 0, columns.box_labels[np.repeat(masks.lengths > 0, np.diff(columns.firsts))], len(pack.classes)
    )
    return tuple(
        InstanceClass(i, name, int((ids == i).sum()), tuple(np.quantile(found[ids == i], SHARES).tolist()))
        for i, name in [(NO_CLASS, ""), *enumerate(pack.classes)] if (ids == i).any()
    )  # fmt: skip


def part_stats(pack: Pack, progress: Progress | None = None) -> tuple[PartStats, ...]:
    """Return what the maps and the texts of the pack hold, of `SAMPLE` records."""
    found = []
    for spec in pack.manifest.part_specs:
        if spec.kind in ("map", "text"):
            there = np.flatnonzero(records_with(pack, spec.name))
            records = there[np.linspace(0, len(there) - 1, min(len(there), SAMPLE)).astype(np.int64)]
            some = of_parts(pack, spec.name, partial(_numbers_of, spec), progress or Progress(), records=records)
            known, unknown = zip((np.zeros(0), np.zeros(2)), *chain.from_iterable(some), strict=True)
            (many, of), numbers = np.sum(unknown, axis=0), np.concatenate(known)
            quantiles = tuple(np.quantile(numbers, (0, *SHARES, 1)).tolist()) if numbers.size else ()
            found.append(PartStats(spec.name, spec.kind, len(there), len(records), many / max(1, of), quantiles))
    return tuple(found)


def records_with(pack: Pack, name: str) -> NDArray[np.bool_]:
    """Return which records have a part; none is read."""
    return np.asarray(pack.reader.values(column_of(name, "size"), np.arange(len(pack))) >= 0)


def _numbers_of(spec: PartSpec, record: int, value: Any) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Return the lowest, the highest and some of the known numbers of a map; how many are unknown, and how many it has.

    Of a text, its length.
    """
    if spec.kind == "text":
        return np.array([len(value)], np.float64), (0, 1)
    known = value[is_known(value, spec.ignore)]
    step = known.size // MAP_NUMBERS | 1  # odd: not always the same columns
    some = [known[::step], known.min(keepdims=True), known.max(keepdims=True)] if known.size else [known]
    return np.concatenate(some, dtype=np.float64), (value.size - known.size, value.size)


def of_parts(
    pack: Pack, name: str, make: Callable[[int, Any], Made], progress: Progress, threads: int | None = None,
    records: NDArray[np.int64] | None = None,
) -> Iterator[list[Made]]:  # fmt: skip
    """Yield what `make` makes of each part, some at a time, in the order of the records; threads read ahead.

    Args:
        pack: The pack.
        name: The part.
        make: Gets the number of a record and its part.
        progress: Receives the number of records.
        threads: Number of threads; one per core by default.
        records: Those to look at; all by default.
    """

    def work(some: NDArray[np.int64]) -> tuple[int, list[Made]]:
        values = ((record, pack.part(record, name)) for record in some.tolist())
        return len(some), [make(record, value) for record, value in values if value is not None]

    records = np.arange(len(pack)) if records is None else records
    parts = (records[start : start + PARTS_TOGETHER] for start in range(0, len(records), PARTS_TOGETHER))
    progress.stage(f"reading {name}", len(records))
    with closing(ahead(work, parts, threads or usable_cores())) as done:
        for count, made in done:
            yield made
            progress.advance(count)


def _one_size(pack: Pack) -> int | None:
    """Return the bytes per record if all are raw 8-bit images of one shape."""
    return pack.reader.record_bytes if pack.manifest.dtype == "uint8" else None


def _of_raw_images(pack: Pack, records: NDArray[np.int64], size: int) -> dict[Kind, Sums]:
    """Sum raw images of one shape; small ones are copied into blocks, as rows of one image."""
    shape = pack.manifest.shape
    assert shape is not None
    sums, offsets = Sums(shape[2]), pack.reader.places(records)[0]
    together = BLOCK_BYTES // size
    if together < 2:
        for offset in offsets.tolist():
            _add_pixels(sums, np.frombuffer(pack.reader.region.data[offset : offset + size], np.uint8).reshape(shape))
    else:
        for start in range(0, len(offsets), together):
            block = pack.reader.region.gather(offsets[start : start + together], size)
            _add_pixels(sums, block.reshape(-1, shape[0] * shape[1], shape[2]))
    sums.images = len(records)
    return {(shape[2], "uint8"): sums}


def _of_images(pack: Pack, records: NDArray[np.int64]) -> dict[Kind, Sums]:
    found: dict[Kind, Sums] = {}
    for i in records.tolist():
        image = pack.image(i)
        kind = image.shape[2], image.dtype.name
        sums = found.get(kind) or found.setdefault(kind, Sums(image.shape[2]))
        _add_pixels(sums, image)
        sums.images += 1
    return found


def _add_pixels(sums: Sums, image: NDArray[Any]) -> None:
    """Add the pixels of (rows, columns, channels)."""
    sums.pixels += image.shape[0] * image.shape[1]
    if image.dtype != np.uint8:
        for c in range(image.shape[2]):
            plane = image[:, :, c].astype(np.uint64)
            sums.sums[c] += int(plane.sum())
            sums.squares[c] += int((plane * plane).sum())
        return
    rows = max(1, MOST_PIXELS // image.shape[1])
    for start in range(0, len(image), rows):
        part = image[start : start + rows]
        totals = cv2.sumElems(part)
        planes = cv2.split(part, sums.planes_for(part)) if part.shape[2] > 1 else [part]
        for c, plane in enumerate(planes):
            sums.sums[c] += round(totals[c])
            # the norm is a root that OpenCV squares again: the nearest integer is the sum
            sums.squares[c] += round(cv2.norm(plane, cv2.NORM_L2SQR))
