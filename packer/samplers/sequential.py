"""The records in the order in which they were packed, or in which `indices` names them.

Serves: evaluation and prediction, where every record is wanted once and results are matched to keys; the fastest
order on any disk. Hurts: training, where neighbours in a folder are alike (one class, one video). With more than one
rank give drop_last=False, the default, and leave out the `padded` last results before you compute a metric.
"""

from __future__ import annotations

import numpy as np

from packer.samplers.base import Sampler
from packer.samplers.order import Records, compact


class SequentialSampler(Sampler):
    """All records in order, the same in every epoch.

    The order ignores the seed, but a state holds it, for what else depends on it (crops). See `Sampler` for the
    arguments.
    """

    kind = "sequential"

    def _order(self, epoch: int) -> Records:
        return np.arange(self.num_indices, dtype=compact(self.num_indices))
