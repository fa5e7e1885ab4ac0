"""Copies many records out of the mapped pack in one call: the fast path of raw images of one shape."""

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


def gather(region: torch.Tensor, offsets: torch.Tensor, record_bytes: int) -> torch.Tensor:
    """Rows of `record_bytes` bytes from int64 byte `offsets` of `region`: uint8 (len(offsets), record_bytes).

    The mapped bytes are viewed as overlapping rows, one for each byte offset, of which `index_select` copies
    the wanted ones: any offset will do, aligned or not, in any shard, and the GIL is released meanwhile.
    """
    rows = region.numel() - record_bytes + 1
    overlapping = torch.as_strided(region, (rows, record_bytes), (1, 1))
    return torch.index_select(overlapping, 0, offsets)
