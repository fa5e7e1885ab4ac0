"""Buckets: what batches of images of differing size look like, and what border or cropping that costs.

| buckets | batches |
|---|---|
| `ShapeBuckets` | images of one shape, of similar aspect ratio |
| `PatchBuckets` | patches of images of any aspect ratio, padded to one length |

Which bucket an image is in depends only on its width and height. `BucketSampler` makes the batches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, plural
from packer.model.annotation import Int64
from packer.samplers.order import Float64, Records, digest_of, pack_of, records_of
from packer.samplers.ranks import as_number, check_int

BucketFit = Literal["cover", "pad"]
Shape = tuple[int, int]
"""(height, width) in pixels."""
PIECE = 1 << 14
"""Sizes of images at a time: they stay in the cache."""
_COMPARED = 64
"""Up to so many shapes, comparing with each edge is faster than a search."""


class Buckets(ABC):
    """A division of images by their size; each batch has images of one bucket."""

    lost: str
    """What becomes larger where images fit their bucket less well."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """What each bucket is called in a report."""

    @property
    @abstractmethod
    def areas(self) -> Int64:
        """Pixels that an image of each bucket takes in a batch, (buckets,)."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What a state says of them."""

    @abstractmethod
    def of(self, widths: NDArray[Any], heights: NDArray[Any]) -> NDArray[Any]:
        """Return the number of the bucket of images of these sizes in pixels: uint8 or uint16 (n,)."""

    @abstractmethod
    def fill(
        self, widths: NDArray[Any], heights: NDArray[Any], numbers: NDArray[Any]
    ) -> tuple[Float64, NDArray[np.bool_]]:
        """Return the share of each image that is not lost, and whether it is enlarged, (n,) each.

        Args:
            widths: of images, in pixels.
            heights: of them.
            numbers: of their buckets.
        """

    def capacities(self, global_batch: int) -> Int64:
        """Return the images in a batch of each bucket, on all ranks together, (buckets,)."""
        return np.full(len(self.names), global_batch)

    def count(self, numbers: NDArray[Any]) -> Int64:
        """Return how many images each bucket has, (buckets,), of their `numbers`."""
        # in parts: the whole would first become int64
        parts = (numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE))
        found: Int64 = np.sum([np.bincount(part, minlength=len(self.names)) for part in parts], axis=0)
        return found

    def report(self, data: Any, global_batch: int, *, drop_last: bool = False) -> BucketReport:
        """Return how the images of a pack fill these buckets, to print before training.

        Args:
            data: the pack or dataset, or sizes (n, 2): width and height of each image in pixels.
            global_batch: as for `BucketSampler`; `drop_last` too.
            drop_last: whether images that do not fill a batch are left out.
        """
        widths, heights = sizes_of_records(data)
        numbers, names = self.of(widths, heights), self.names
        used, enlarged = np.zeros(len(names)), 0
        for start in range(0, len(widths), PIECE):
            part = slice(start, start + PIECE)
            share, larger = self.fill(widths[part], heights[part], numbers[part])
            used += np.bincount(numbers[part], share, len(names))
            enlarged += int(np.count_nonzero(larger))
        counts = self.count(numbers)
        facts = zip(names, self.areas, counts, self.capacities(global_batch), used / np.maximum(counts, 1), strict=True)
        rows = [
            BucketRow(name, int(area), int(images), int(capacity), drop_last, float(share))
            for name, area, images, capacity, share in facts
        ]
        return BucketReport(self.lost, drop_last, enlarged, tuple(row for row in rows if row.images))


CUT = "cut off"


def _checked(shapes: Any) -> tuple[Shape, ...]:
    """Return shapes by rising aspect ratio. Raise UsageError if they are not shapes."""
    step = "write [(512, 512), (448, 576)]"
    if isinstance(shapes, str) or not isinstance(shapes, Sequence) or not shapes:
        raise UsageError("shapes", f"must be a list of (height, width), got {shapes!r}", step)
    found: dict[Fraction, Shape] = {}
    for shape in shapes:
        if not isinstance(shape, Sequence) or len(shape) != 2:
            raise UsageError("shapes", f"must be a list of (height, width), got {shape!r}", step)
        height, width = (check_int("shapes", side, 1, 65535) for side in shape)
        other = found.setdefault(Fraction(width, height), (height, width))
        if other != (height, width):
            raise UsageError("shapes", f"has {other} and {(height, width)} of one aspect ratio", "leave out one")
    return tuple(found[ratio] for ratio in sorted(found))


@dataclass(frozen=True)
class ShapeBuckets(Buckets):
    """The shapes that batches may have.

    Args:
        shapes: (height, width) of each, in pixels; no two with the same aspect ratio.
        fit: what becomes of an image. "cover": it is resized to cover its shape, and cut (`CoverCrop`); its shape is
            that of the nearest aspect ratio on a logarithmic scale, as in NovelAI's buckets. "pad": it is resized to
            fit into its shape, with a border (`Letterbox`); its shape is the next one towards the square, so that an
            image whose shape has its own long side is not made smaller for its short side.

    Raises:
        UsageError: if they are not shapes.
    """

    shapes: Sequence[Shape]
    fit: BucketFit = "cover"

    def __post_init__(self) -> None:
        if self.fit not in ("cover", "pad"):
            raise UsageError("fit", f'must be "cover" or "pad", got {self.fit!r}')
        object.__setattr__(self, "shapes", _checked(self.shapes))

    @classmethod
    def near(cls, area: int, step: int = 64, max_aspect: float = 4.0) -> ShapeBuckets:
        """Return the shapes of at most `area` pixels whose sides are multiples of `step`, to be covered.

        For each side, the other one is as long as the area allows, as in kohya's trainers of SDXL
        (https://github.com/kohya-ss/sd-scripts, `make_bucket_resolutions`), after the multi-aspect training of SDXL
        (Podell et al. 2023, https://arxiv.org/abs/2307.01952, appendix I).

        Args:
            area: pixels, such as 1024 * 1024.
            step: what sides are multiples of, in pixels.
            max_aspect: the longer side is at most so many times as long as the other one.

        Raises:
            UsageError: if there is no such shape.
        """
        check_int("area", area, 1)
        check_int("step", step, 1)
        if not as_number(max_aspect) >= 1:
            raise UsageError("max_aspect", f"must be a number of at least 1, got {max_aspect!r}")
        found: dict[Fraction, Shape] = {}
        for side in range(step, area // step + 1, step):
            other = area // side // step * step
            if not other or max(side, other) > max_aspect * min(side, other):
                continue
            for shape in ((side, other), (other, side)):
                ratio = Fraction(*shape)
                found[ratio] = max(found.get(ratio, shape), shape)
        if not found:
            raise UsageError("area", f"of {area} pixels has no shape of sides that are multiples of {step}")
        return cls(tuple(found.values()))

    @classmethod
    def rect(cls, size: int, stride: int = 32) -> ShapeBuckets:
        """Return the shapes whose longer side is `size`, the other one a multiple of `stride`, to be letterboxed.

        Those of rect=True in Ultralytics (YOLO), where a batch has the least such shape that its images fit into.

        Args:
            size: the longer side, a multiple of `stride`, in pixels.
            stride: of the detector, in pixels.

        Raises:
            UsageError: if the size is not a multiple of the stride.
        """
        check_int("stride", stride, 1)
        if check_int("size", size, 1) % stride:
            raise UsageError("size", f"must be a multiple of the stride, {stride}, got {size}")
        sides = range(stride, size + 1, stride)
        return cls(tuple((side, size) for side in sides) + tuple((size, side) for side in sides), "pad")

    @cached_property
    def _ratios(self) -> Float64:
        """Width / height of each shape, rising."""
        return np.array([width / height for height, width in self.shapes])

    @cached_property
    def _edges(self) -> Float64:
        """Aspect ratio at which each shape but the first begins; quotients and roots are the same on any machine."""

        def edge(low: float, high: float) -> float:
            if self.fit == "cover" or low < 1 < high:
                return math.sqrt(low * high)
            return high if low >= 1 else math.nextafter(low, math.inf)

        return np.array([edge(low, high) for low, high in pairwise(self._ratios.tolist())])

    def of(self, widths: NDArray[Any], heights: NDArray[Any]) -> NDArray[Any]:
        """Return the number of the shape, in `shapes`, of images of these sizes in pixels: uint8 or uint16 (n,).

        Args:
            widths: of images, in pixels.
            heights: of them.
        """
        out = np.zeros(len(widths), np.uint8 if len(self.shapes) <= 256 else np.uint16)
        for start in range(0, len(widths), PIECE):
            part = slice(start, start + PIECE)
            ratios = widths[part] / heights[part]
            if len(self._edges) > _COMPARED:
                out[part] = self._edges.searchsorted(ratios, "right")
                continue
            numbers = out[part]
            for edge in self._edges:
                numbers += (ratios >= edge).view(np.uint8)  # which adds a bool in half the time
        return out

    @property
    def lost(self) -> str:  # type: ignore[override]
        """What becomes larger where images fit their shape less well."""
        return CUT if self.fit == "cover" else "border"

    @property
    def names(self) -> list[str]:
        """Height x width."""
        return [f"{height} x {width}" for height, width in self.shapes]

    @property
    def areas(self) -> Int64:
        """Pixels of each shape, (shapes,)."""
        return np.array([height * width for height, width in self.shapes])

    @property
    def identity(self) -> str:
        """What a state says of them."""
        return f"{self.fit} {digest_of(np.array(self.shapes))}"

    def fill(
        self, widths: NDArray[Any], heights: NDArray[Any], numbers: NDArray[Any]
    ) -> tuple[Float64, NDArray[np.bool_]]:
        """Return the share of each image, or of its shape, that is not lost, and whether it is enlarged, (n,) each.

        Args:
            widths: of images, in pixels.
            heights: of them.
            numbers: of their shapes.
        """
        height, width = np.array(self.shapes)[numbers].T
        across, down = width / widths, height / heights
        least, most = np.minimum(across, down), np.maximum(across, down)
        return least / most, (most if self.fit == "cover" else least) > 1


@dataclass(frozen=True)
class BucketRow:
    """What one bucket has."""

    name: str
    area: int
    """Pixels that an image takes in a batch."""
    images: int
    capacity: int
    """Images in a batch, on all ranks together."""
    drop_last: bool
    used: float
    """The mean share of an image that is not cut off, or of the pixels of a batch that images fill."""

    @property
    def batches(self) -> int:
        """Batches of an epoch, of all ranks together."""
        whole, rest = divmod(self.images, self.capacity)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def over(self) -> int:
        """Images that do not fill a batch."""
        return self.images % self.capacity


@dataclass(frozen=True)
class BucketReport:
    """How images fill batches; `str` gives a table."""

    lost: str
    """What of images, or of batches, is lost."""
    drop_last: bool
    enlarged: int
    """Images that are smaller than they become."""
    rows: tuple[BucketRow, ...]
    """Of each bucket that has any image."""

    @property
    def images(self) -> int:
        """All of them."""
        return sum(row.images for row in self.rows)

    @property
    def batches(self) -> int:
        """Batches of an epoch, of all ranks together."""
        return sum(row.batches for row in self.rows)

    @property
    def over(self) -> int:
        """Images that do not fill a batch: they come in smaller ones, or are left out."""
        return sum(row.over for row in self.rows)

    @property
    def padding(self) -> float:
        """The share of the pixels of all batches that are border, from 0 to 1; of covered images none."""
        if self.lost == CUT:
            return 0.0
        pixels = [row.images * row.area for row in self.rows]
        return 1 - sum(row.used * each for row, each in zip(self.rows, pixels, strict=True)) / sum(pixels)

    @property
    def cut(self) -> float:
        """The mean share of an image that is cut off, from 0 to 1; of padded images none."""
        if self.lost != CUT:
            return 0.0
        return 1 - sum(row.used * row.images for row in self.rows) / self.images

    def __str__(self) -> str:
        lines = [f"{'':>15} {'images':>12} {'batches':>10} {'over':>6} {self.lost:>8}"]
        for row in self.rows:
            lines.append(f"{row.name:>15} {row.images:>12,} {row.batches:>10,} {row.over:>6,} {1 - row.used:>8.1%}")
        of_all = f"{self.cut if self.lost == CUT else self.padding:.1%}"
        lines.append(f"{'all':>15} {self.images:>12,} {self.batches:>10,} {self.over:>6,} {of_all:>8}")
        over = "are left out" if self.drop_last else "come in smaller batches"
        lines.append(f"{plural(self.over, 'image')} {over}; {self.enlarged:,} are enlarged")
        return "\n".join(lines)


def sizes_of_records(data: Any, records: Records | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return widths and heights, (n,) each; those of `records`, numbers in the pack, if they are given."""
    pack = pack_of(data)
    if pack is None:
        sizes = np.asarray(data)
        if sizes.ndim != 2 or sizes.shape[1] != 2 or sizes.dtype.kind not in "iu":
            problem = f"must be a pack, a dataset, or widths and heights (n, 2), got {type(data).__name__}"
            raise UsageError("data", problem)
        widths, heights = sizes.T
    else:
        records = records_of(data) if records is None else records
        widths, heights = (np.asarray(pack.column(name)) for name in ("width", "height"))
    return (widths, heights) if records is None else (widths[records], heights[records])
