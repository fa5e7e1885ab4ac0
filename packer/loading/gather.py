"""Copies raw records out of a pack: one call for many, without the GIL."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.model.annotation import Int64


class Gather:
    """Copies records of one size from a pack's region: one call for each part of it, without the GIL.

    Args:
        region: the mapped pack.
        record_bytes: bytes of each record.
    """

    def __init__(self, region: Region, record_bytes: int) -> None:
        self._region, self._record_bytes = region, record_bytes
        parts = [(number, part) for number, part in enumerate(region.parts) if len(part) >= record_bytes]
        self._rows = {number: overlapping_rows(part, record_bytes) for number, part in parts}

    def __call__(self, offsets: Int64, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the records at these offsets, uint8 (n, record_bytes), in `out` if given."""
        if len(self._region.parts) == 1:
            return torch.index_select(self._rows[0], 0, torch.from_numpy(offsets), out=out)
        if out is None:
            out = torch.empty((len(offsets), self._record_bytes), dtype=torch.uint8)
        for number, rows, places in self._region.by_part(offsets):
            found = torch.index_select(self._rows[number], 0, torch.from_numpy(places))
            out.index_copy_(0, torch.from_numpy(rows), found)
        return out


def gather_of(pack: Pack) -> Gather:
    """Return the gather for a pack of raw images of one shape."""
    assert pack.record_bytes is not None
    return Gather(pack.region, pack.record_bytes)


def overlapping_rows(mapped: NDArray[np.uint8], record_bytes: int) -> torch.Tensor:
    """Return a view of mapped bytes with a row of `record_bytes` for each byte offset: (offsets, record_bytes).

    Offsets need not be aligned, and may be in any shard. The tensor must never be written to.
    """
    with warnings.catch_warnings():
        # torch warns because it has no read-only tensors; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(mapped)
    return torch.as_strided(tensor, (tensor.numel() - record_bytes + 1, record_bytes), (1, 1))
