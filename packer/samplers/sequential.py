"""The records in the order in which they were packed, or in which `records` names them.

Serves: evaluation and prediction, where every record is wanted once and results are matched to keys; the fastest
order on any disk. Hurts: training, where neighbours in a folder are alike (one class, one video). With more than one
rank give drop_last=False, the default, and leave out the `padded` last results before you compute a metric.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from packer.samplers.base import Data, Sampler
from packer.samplers.order import Records, compact


class SequentialSampler(Sampler):
    """All records in order, the same in every epoch."""

    kind = "sequential"

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
        """Args: the number of records, or the pack or dataset; a seed, which the order does not heed, but a state holds
        it, for what else depends on it (crops); the record numbers to take (all); see `Sampler`.
        """
        super().__init__(data, seed, records=records, drop_last=drop_last, rank=rank, world_size=world_size)

    def _order(self, epoch: int) -> Records:
        return np.arange(self.num_chosen, dtype=compact(self.num_chosen))
