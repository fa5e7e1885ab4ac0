"""Random numbers of a sample that depend on (seed, epoch, record) alone: no worker, thread or rank changes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.samplers.order import GOLDEN, mix
from packer.types import Int64

Float64 = NDArray[np.float64]

_STEP = np.uint64(GOLDEN)


def uniform(seed: int, epoch: int, records: Int64, count: int) -> Float64:
    """float64 (len(records), count) in [0, 1): row i depends on seed, epoch and records[i] alone."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        stream = mix(np.array([seed & (2**64 - 1)], np.uint64) + _STEP)
        stream = mix(stream + np.uint64(epoch & (2**64 - 1)) * _STEP)
        keys = mix(stream + records.astype(np.uint64) * _STEP)
        numbers = mix(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP)
    draws: Float64 = (numbers >> np.uint64(11)) * 2.0**-53
    return draws
