"""Ranges of a file: do they lie in it, and do any two share a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def lies_outside(offsets: NDArray[Any], sizes: NDArray[Any], limit: int) -> NDArray[np.bool_]:
    """bool (n,): which of the ranges do not lie in a file of `limit` bytes; int64 (n,) each, any values."""
    return (offsets < 0) | (sizes < 0) | (sizes > limit) | (offsets > limit - sizes)


def overlapping(offsets: NDArray[Any], sizes: NDArray[Any], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool (n,): which ranges begin before one that begins earlier has ended; only those `among` are looked at."""
    wrong = np.zeros(len(offsets), np.bool_)
    rows = np.flatnonzero(among)
    starts = offsets[rows]
    if np.any(starts[1:] < starts[:-1]):  # rare: every container writes its records in order
        rows = rows[np.argsort(starts, kind="stable")]
        starts = offsets[rows]
    ends = np.maximum.accumulate(starts + sizes[rows])
    wrong[rows[1:][starts[1:] < ends[:-1]]] = True
    return wrong
