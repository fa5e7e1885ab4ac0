"""The records in packing order, or in the order of `indices`.

Use it for evaluation and prediction, where every record is needed once and results are matched to keys. It is the
fastest order on any disk. Do not train with it, because neighbors in a folder are similar (one class, one video). With
more than one rank, use drop_last=False, the default, and drop the `padded` last results before you compute a metric.
"""

from __future__ import annotations

import numpy as np

from packer.samplers.base import Sampler
from packer.samplers.order import Records, compact


class SequentialSampler(Sampler):
    """All records in order, the same in every epoch.

    The order ignores the seed, but a state holds it because crops depend on it. See `Sampler` for the arguments.
    """

    kind = "sequential"

    def _order(self, epoch: int) -> Records:
        return np.arange(self.num_indices, dtype=compact(self.num_indices))
