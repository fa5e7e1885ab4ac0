"""The mapped pack as a tensor of which one call copies many records: the fast path of raw images of one shape."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray


def as_tensor(region: NDArray[np.uint8]) -> torch.Tensor:
    """The mapped bytes as a uint8 tensor (n,), without a copy. It must never be written to."""
    with warnings.catch_warnings():
        # torch has no read-only tensors and says so; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(region)


def overlapping_rows(region: torch.Tensor, record_bytes: int) -> torch.Tensor:
    """The region viewed as one row of `record_bytes` bytes for each byte offset: (offsets, record_bytes), no copy.

    ``torch.index_select(rows, 0, offsets)`` copies records out of it in one call: any offset will do,
    aligned or not, in any shard, and the GIL is released meanwhile.
    """
    return torch.as_strided(region, (region.numel() - record_bytes + 1, record_bytes), (1, 1))
