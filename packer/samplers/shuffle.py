"""A global shuffle: every record once per epoch, with all orders equally likely.

Use it for training if random reads are as fast as sequential ones: the pack is in memory (in the page cache) or on an
SSD. Do not use it for packs larger than memory on spinning disks or network storage, where each record needs a seek
(`BlockShuffleSampler`), or for classes so rare that most batches lack them (`BalancedSampler`).
"""

from __future__ import annotations

from collections.abc import Callable

from packer.model.annotation import Int64
from packer.samplers.base import Sampler
from packer.samplers.order import Records, derive, permutation, shuffled


class ShuffleSampler(Sampler):
    """All records in random order, a new one each epoch. Its numbers are computed as they are read.

    See `Sampler` for the arguments.
    """

    kind = "shuffle"

    def _order(self, epoch: int) -> Records:
        return permutation(self.num_indices, derive(self.seed, epoch))

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        return shuffled(self.num_indices, derive(self.seed, epoch))
