"""Batches of patches, padded to a length: for transformers that read images of any size and aspect ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.model.annotation import Int64
from packer.samplers.bucket_shapes import PIECE, Buckets
from packer.samplers.order import Float64
from packer.samplers.ranks import check_int


@dataclass(frozen=True)
class PatchBuckets(Buckets):
    """Whole images at their own aspect ratio, in patches, padded to one of a few lengths: NaFlex, as in timm.

    An image is in the bucket of the least length that holds all of its patches, or of the largest one, for which it is
    made smaller: NaViT (Dehghani et al. 2023, https://arxiv.org/abs/2307.06304), and SigLIP 2 NaFlex (Tschannen et al.
    2025, https://arxiv.org/abs/2502.14786). Sides become multiples of a patch, rounded up, as by timm's
    `ResizeToSequence`. A batch of a shorter length has more images: at most as many patches as one of the largest.

    Args:
        patch: side of a patch in pixels.
        lengths: patches that an image takes in a batch. Best is a largest one that the others divide.
        enlarge: make an image larger where its length leaves room, for less padding.

    Raises:
        UsageError: if an argument is out of range.
    """

    patch: int = 16
    lengths: Sequence[int] = (128, 256, 512, 1024)
    enlarge: bool = False

    def __post_init__(self) -> None:
        check_int("patch", self.patch, 1)
        given: Any = self.lengths
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise UsageError("lengths", f"must be a list of numbers of patches, got {given!r}", "write (256, 1024)")
        object.__setattr__(self, "lengths", tuple(sorted({check_int("lengths", one, 1, 1 << 20) for one in given})))

    lost = "padding"

    @property
    def names(self) -> list[str]:
        """Their lengths."""
        return [f"{length} patches" for length in self.lengths]

    @property
    def areas(self) -> Int64:
        """Pixels of each length, (lengths,)."""
        return np.array(self.lengths) * self.patch**2

    @property
    def identity(self) -> str:
        """What a state says of them."""
        return repr(self)

    def capacities(self, global_batch: int) -> Int64:
        """Return the images in a batch of each length, on all ranks together; `global_batch` of the largest."""
        return global_batch * (self.lengths[-1] // np.array(self.lengths))

    def of(self, widths: NDArray[Any], heights: NDArray[Any]) -> NDArray[Any]:
        """Return the number of the length, in `lengths`, of images of these sizes in pixels: uint8 or uint16 (n,).

        Args:
            widths: of images, in pixels.
            heights: of them.
        """
        out = np.zeros(len(widths), np.uint8 if len(self.lengths) <= 256 else np.uint16)
        for start in range(0, len(widths), PIECE):
            part = slice(start, start + PIECE)
            patches = np.ceil(widths[part] / self.patch) * np.ceil(heights[part] / self.patch)
            numbers = out[part]
            for length in self.lengths[:-1]:
                numbers += (patches > length).view(np.uint8)
        return out

    def _own(self, widths: NDArray[Any], heights: NDArray[Any]) -> tuple[Int64, Int64]:
        """Return the rows and columns of patches of images as large as they are."""
        high, wide = heights.astype(np.int64), widths.astype(np.int64)
        return -(-high // self.patch), -(-wide // self.patch)

    def grids(self, widths: NDArray[Any], heights: NDArray[Any], lengths: Any) -> tuple[Int64, Int64]:
        """Return the rows and columns of patches of images in these lengths, int64 (n,) each.

        Args:
            widths: of images, in pixels.
            heights: of them.
            lengths: the most patches of each, or of all.
        """
        high, wide = heights.astype(np.int64), widths.astype(np.int64)
        lengths = np.broadcast_to(lengths, high.shape)
        own = self._own(widths, heights)
        # the scale at which one more row or column no longer fits: the side that has it then has whole patches
        rows, columns = _most(high, wide, lengths), _most(wide, high, lengths)
        by_rows = rows * wide >= columns * high
        found = (
            np.where(by_rows, rows, -(-high * columns // wide)),
            np.where(by_rows, -(-wide * rows // high), columns),
        )
        if self.enlarge:
            return found
        fits = own[0] * own[1] <= lengths
        return np.where(fits, own[0], found[0]), np.where(fits, own[1], found[1])

    def fill(
        self, widths: NDArray[Any], heights: NDArray[Any], numbers: NDArray[Any]
    ) -> tuple[Float64, NDArray[np.bool_]]:
        """Return the share of its length that each image fills, and whether it is enlarged, (n,) each.

        Args:
            widths: of images, in pixels.
            heights: of them.
            numbers: of their lengths.
        """
        lengths = np.array(self.lengths)[numbers]
        rows, columns = self.grids(widths, heights, lengths)
        own = self._own(widths, heights)
        return rows * columns / lengths, rows * columns > own[0] * own[1]


def _most(sides: Int64, others: Int64, lengths: Int64) -> Int64:
    """Return the most patches k along `sides` so that k times those along `others`, rounded up, are within lengths."""
    found = np.minimum(np.sqrt(lengths * (sides / others)).astype(np.int64) + 1, lengths)
    while (over := found * -(-others * found // sides) > lengths).any():
        found -= over
    return found
