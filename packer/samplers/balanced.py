"""Rare classes more often: each record as often as the rarity of its class asks, by the index alone.

An image of a class that n_c images show has the weight (1 / n_c) ** power: with power 1 every class is drawn equally
often, with 0 every record once (as is), with 0.5 in between (square-root sampling: Mahajan et al. 2018,
https://arxiv.org/abs/1805.00932). An image with boxes of several classes has the weight of its rarest class, as in
the repeat-factor sampling of LVIS (Gupta, Dollar, Girshick 2019, https://arxiv.org/abs/1908.03195, appendix B; with
power 0.5, without its threshold): images cannot be cut into classes, so common classes that accompany rare ones stay
above their equal share. An image without label or boxes has the smallest weight of any, that of the most common class.

Serves: long tails, where most batches would lack the rare classes. Hurts: a class of a few images is shown these few
again and again, and memorised (use a power below 1, and augment); the model learns the classes' frequencies wrong,
so that its probabilities are off for data as it is; and most records of the common classes are not seen in an epoch.
Reads at random, as `ShuffleSampler` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.format.ragged import Ragged
from packer.samplers.base import Sampler
from packer.samplers.class_weights import By, class_ids, rarest
from packer.samplers.order import PIECE, Records, compact, derive, random_bits, shuffled
from packer.samplers.records import numbers_digest

_RECORDS, _OFFSET, _SAMPLES = 1, 2, 3  # what a key is for


class BalancedSampler(Sampler):
    """Records in a random order, rare classes more often; rounded as evenly as can be.

    A record whose weight asks for 2.3 samples an epoch gets 2 or 3, by chance, 2.3 on average over the epochs
    (systematic sampling, Madow 1949, over the shuffled records): less noise than drawing each sample by itself.
    """

    kind = "balanced"

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self,
        data: Any,
        power: float = 1.0,
        seed: int = 0,
        *,
        by: By | None = None,
        num_samples: int | None = None,
        records: ArrayLike | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Args: the pack or dataset, or the class ids themselves ((n,), -1 for none, or a Ragged of n rows); from
        0, as is, to 1, all classes alike; the column to balance by (label if there are any, else box_labels);
        samples of an epoch (as many as records); the record numbers to take (all); see `Sampler` for the rest.

        Raises UsageError where no image has a class.
        """
        if isinstance(power, bool) or not isinstance(power, (int, float)) or not 0 <= power <= 1:
            raise UsageError("power", f"must be a number from 0 to 1, got {power!r}")
        self.power = float(power)
        ids = class_ids(data, by)
        super().__init__(
            data if not isinstance(data, (Ragged, list, tuple, np.ndarray)) else len(ids),
            seed,
            records=records,
            num_samples=num_samples,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        found = rarest(ids if self._chosen is None else _rows(ids, self._chosen))
        self._classes = found.classes
        weights = found.weights(self.power)
        expected = np.bincount(found.classes, minlength=len(weights)) * weights
        self._expected: NDArray[np.float64] = weights * (self.num_samples / float(expected.sum()))
        """Samples of an epoch that an image of each class gets on average."""

    def _options(self) -> dict[str, float | str]:
        # not the weights but what they are made of: whole numbers
        return {"power": self.power, "classes": numbers_digest(self._classes)}

    def _order(self, epoch: int) -> Records:
        n, size = self.num_chosen, self.num_samples
        record = shuffled(n, derive(self.seed, epoch, _RECORDS))
        place = shuffled(size, derive(self.seed, epoch, _SAMPLES))
        # the samples stand at offset, offset + 1, ...; each record covers a stretch as long as its expected samples
        offset = float(random_bits(derive(self.seed, epoch, _OFFSET), 1)[0] >> np.uint64(11)) / (1 << 53)
        out = np.empty(size, compact(n))
        done, covered = 0, 0.0
        for start in range(0, n, PIECE):
            records = record(np.arange(start, min(start + PIECE, n)))
            ends = covered + np.cumsum(self._expected[self._classes[records]])
            covered = float(ends[-1])
            samples_by = np.minimum(np.ceil(ends - offset).astype(np.int64), size)
            if start + len(records) == n:
                samples_by[-1] = size  # whatever the sum's last bit says
            drawn = np.repeat(records, np.diff(samples_by, prepend=done))
            out[place(np.arange(done, done + len(drawn)))] = drawn
            done += len(drawn)
        return out


def _rows(ids: NDArray[Any] | Ragged, records: Records) -> NDArray[Any] | Ragged:
    """The class ids of these records."""
    if not isinstance(ids, Ragged):
        return ids[records]
    lengths = ids.lengths[records].astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    starts = np.asarray(ids.offsets)[records].astype(np.int64)
    places = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)
    return Ragged(np.asarray(ids.values)[places], offsets)
