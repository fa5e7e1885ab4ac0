"""Random numbers of a sample that depend on (seed, epoch, record) alone: no worker, thread or rank changes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.sample import Int64

UInt64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mixed(values: UInt64) -> UInt64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    z = (values ^ (values >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed_values: UInt64 = z ^ (z >> np.uint64(31))
    return mixed_values


def uniform(seed: int, epoch: int, records: Int64, count: int) -> Float64:
    """float64 (len(records), count) in [0, 1): row i depends on seed, epoch and records[i] alone."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        stream = mixed(np.array([seed & (2**64 - 1)], np.uint64) + _GOLDEN)
        stream = mixed(stream + np.uint64(epoch & (2**64 - 1)) * _GOLDEN)
        keys = mixed(stream + records.astype(np.uint64) * _GOLDEN)
        numbers = mixed(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    draws: Float64 = (numbers >> np.uint64(11)) * 2.0**-53
    return draws
