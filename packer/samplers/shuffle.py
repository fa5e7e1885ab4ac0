"""A global shuffle: every record once an epoch, any order as likely as any other.

Serves: training wherever records are read at random as fast as in a row: the pack is in memory (in the page cache),
or on an SSD. Hurts: on spinning disks and network storage with packs larger than memory, where each record is a
seek of its own (`BlockShuffleSampler`), and with classes so rare that most batches lack them (`BalancedSampler`).
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from packer.samplers.base import Data, Sampler
from packer.samplers.order import Records, derive, permutation


class ShuffleSampler(Sampler):
    """All records in a random order, another one each epoch; 10 million take about 0.1 s and 40 MB."""

    kind = "shuffle"

    def __init__(
        self,
        data: Data,
        seed: int = 0,
        *,
        records: ArrayLike | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Args: the number of records, or the pack or dataset; the record numbers to take (all); see `Sampler`."""
        super().__init__(data, seed, records=records, drop_last=drop_last, rank=rank, world_size=world_size)

    def _order(self, epoch: int) -> Records:
        return permutation(self.num_chosen, derive(self.seed, epoch))
