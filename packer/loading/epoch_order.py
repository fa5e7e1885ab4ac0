"""The records of an epoch by position: for stand-ins, and for other images of mosaics and pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Int64
from packer.samplers import Sampler
from packer.samplers.order import Float64, Records, records_in
from packer.system.locks import Locked

STRIDE, STEPS = 8, 8
"""Others are drawn from those 8, 16, ..., 64 positions before."""
LONGEST = 1 << 26
"""Epochs of more samples have no table of positions, which would take 256 MB: others are drawn from all of them."""


class EpochOrder(Locked):
    """The records of an epoch by position, of all ranks, for all threads.

    Args:
        sampler: has the order.
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self._sampler = sampler
        self._numbers: tuple[int, Callable[[Int64], Records]] | None = None
        self._places: tuple[int, NDArray[np.int32]] | None = None

    def records(self, epoch: int, positions: Int64) -> Int64:
        """Return the records at positions of an epoch, int64 (n,)."""
        with self.lock:
            if self._numbers is None or self._numbers[0] != epoch:
                self._numbers = epoch, self._sampler.samples_at(epoch)
            return records_in(self._numbers[1](positions)).astype(np.int64)

    def near(self, epoch: int, records: Int64, random: Float64) -> Int64:
        """Return records of an epoch that come shortly before others, from its start on those at its end.

        They are read by the same rank, if ranks are 1, 2, 4 or 8, so that what was decoded can be used again.

        Args:
            epoch: number of the epoch.
            records: the others, (n,); of those that come several times the first.
            random: random numbers in [0, 1), (n, k).

        Returns:
            int64 (n, k).
        """
        count, own = self._sampler.num_samples, self._places_of(epoch, records)
        back = STRIDE * (1 + (random * STEPS).astype(np.int64))
        positions = random * count if own is None else (own[:, None] - back) % count
        return self.records(epoch, positions.astype(np.int64).ravel()).reshape(random.shape)

    def _places_of(self, epoch: int, records: Int64) -> Int64 | None:
        """Return the positions of records in an epoch; None if it is too long for a table of them."""
        count = self._sampler.num_samples
        if max(count, self._sampler.num_records) > LONGEST:
            return None
        if self._places is None or self._places[0] != epoch:
            places = np.zeros(self._sampler.num_records, np.int32)
            positions = np.arange(count - 1, -1, -1)
            places[self.records(epoch, positions)] = positions  # the last one that is written is the first one
            self._places = epoch, places
        return self._places[1][records].astype(np.int64)
