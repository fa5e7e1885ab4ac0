"""The mapped pack as a tensor of which one call copies many records: the fast path of raw images of one shape."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.mmap import Region
from packer.types import Int64


def as_tensor(region: NDArray[np.uint8]) -> torch.Tensor:
    """The mapped bytes as a uint8 tensor (n,), without a copy. It must never be written to."""
    with warnings.catch_warnings():
        # torch has no read-only tensors and says so; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(region)


class Gather:
    """Copies records of one size out of a pack's region: one call for each part of it, without the GIL."""

    def __init__(self, region: Region, record_bytes: int) -> None:
        self._region, self._record_bytes = region, record_bytes
        holding = [(number, part) for number, part in enumerate(region.parts) if len(part) >= record_bytes]
        self._rows = {number: overlapping_rows(as_tensor(part), record_bytes) for number, part in holding}

    def __call__(self, offsets: Int64, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the records that begin at these offsets.

        Args:
            offsets: Where, int64 (n,).
            out: What to fill; by default a new tensor.

        Returns:
            uint8 (n, record_bytes).
        """
        if len(self._region.parts) == 1:
            return torch.index_select(self._rows[0], 0, torch.from_numpy(offsets), out=out)
        if out is None:
            out = torch.empty((len(offsets), self._record_bytes), dtype=torch.uint8)
        for number, chosen, places in self._region.by_part(offsets):
            found = torch.index_select(self._rows[number], 0, torch.from_numpy(places))
            out.index_copy_(0, torch.from_numpy(chosen), found)
        return out


def overlapping_rows(region: torch.Tensor, record_bytes: int) -> torch.Tensor:
    """The region viewed as one row of `record_bytes` bytes for each byte offset: (offsets, record_bytes), no copy.

    ``torch.index_select(rows, 0, offsets)`` copies records out of it in one call: any offset will do,
    aligned or not, in any shard, and the GIL is released meanwhile.
    """
    return torch.as_strided(region, (region.numel() - record_bytes + 1, record_bytes), (1, 1))
