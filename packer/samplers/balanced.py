"""Draws rare classes more often, by the class counts in the index.

An image of a class with n_c images has the weight (1 / n_c) ** power: with power 1 every class is drawn equally often,
with 0 every record once, with 0.5 something in between (square-root sampling: Mahajan et al. 2018,
https://arxiv.org/abs/1805.00932). An image with boxes of several classes has the weight of its rarest class, as in
the repeat-factor sampling of LVIS (Gupta, Dollar, Girshick 2019, https://arxiv.org/abs/1908.03195, appendix B; with
power 0.5, without its threshold), so common classes that appear together with rare ones stay above an equal share. An
image without label or boxes has the smallest weight, that of the most common class.

Use it for long tails, where most batches would lack the rare classes. Drawbacks: the few images of a rare class are
repeated and memorized (use a power below 1, and augment); the model learns wrong class frequencies, so that its
probabilities are off for real data; and most records of the common classes are not seen in an epoch. Reads are random,
as with `ShuffleSampler`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.model.ragged import Ragged
from packer.samplers.base import Sampler
from packer.samplers.order import PIECE, Records, compact, derive, random_bits, shuffled
from packer.samplers.ranks import check_int
from packer.samplers.subset import digest_of, pack_of

By = Literal["label", "box_labels"]
_RECORDS, _OFFSET, _SAMPLES = 1, 2, 3  # purpose of a key


class BalancedSampler(Sampler):
    """Records in random order, with rare classes more often.

    A record with an expected 2.3 samples per epoch gets 2 or 3 at random, and 2.3 on average (systematic sampling,
    Madow 1949, over the shuffled records). This has less noise than independent draws.

    A record that comes twice in an epoch has the same crop, flip and random numbers each time.

    Args:
        data: the pack or dataset, or the class ids themselves: (n,), -1 for none, or a Ragged of n rows.
        power: from 0, no balancing, to 1, all classes equally often.
        seed: as in `Sampler`; `indices`, `drop_last`, `rank` and `world_size` too.
        by: the column to balance by. Default: label if there are any, else box_labels.
        num_samples: samples per epoch. Default: the number of records.

    Raises:
        UsageError: if an argument is out of range, or no image has a class.
    """

    kind = "balanced"

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: Any, power: float = 1.0, seed: int = 0, *, by: By | None = None, num_samples: int | None = None,
        indices: ArrayLike | None = None, drop_last: bool = False, rank: int | None = None,
        world_size: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(power, bool) or not isinstance(power, (int, float)) or not 0 <= power <= 1:
            raise UsageError("power", f"must be a number from 0 to 1, got {power!r}")
        self.power = float(power)
        ids = _class_ids(data, by)
        records = len(ids) if isinstance(data, (Ragged, list, tuple, np.ndarray)) else data
        super().__init__(records, seed, indices=indices, drop_last=drop_last, rank=rank, world_size=world_size)
        if num_samples is not None:
            self.num_samples = check_int("num_samples", num_samples, 1)
            self._ranks()
        found = _rarest(ids if self._indices is None else _rows(ids, self._indices))
        self._classes = found.classes
        weights = found.weights(self.power)
        expected = np.bincount(found.classes, minlength=len(weights)) * weights
        self._expected: NDArray[np.float64] = weights * (self.num_samples / float(expected.sum()))
        """Average number of samples per epoch of an image of each class."""

    def _options(self) -> dict[str, float | str]:
        # not the weights but what they are made of: whole numbers
        return {"power": self.power, "classes": digest_of(self._classes)}

    def _order(self, epoch: int) -> Records:
        n, size = self.num_indices, self.num_samples
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
    """Return the class ids of these records."""
    if not isinstance(ids, Ragged):
        return ids[records]
    lengths = ids.lengths[records].astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    starts = np.asarray(ids.offsets)[records].astype(np.int64)
    places = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)
    return Ragged(np.asarray(ids.values)[places], offsets)


def _class_ids(data: Any, by: By | None) -> NDArray[Any] | Ragged:
    """Return the class ids of each record: (n,), -1 for none, or a Ragged of n rows.

    For a pack or dataset, these are its column `by`, by default `label` if any image has one, else `box_labels`;
    anything else is taken as class ids.
    """
    if by not in (None, "label", "box_labels"):
        raise UsageError("by", f"must be label or box_labels, got {by!r}")
    pack = pack_of(data)
    if pack is not None:
        by = by or ("label" if (np.asarray(pack.column("label")) >= 0).any() else "box_labels")
        return pack.column(by)
    ids = data if isinstance(data, Ragged) else np.asarray(data)
    flat = np.asarray(ids.flat()) if isinstance(ids, Ragged) else ids
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        problem = f"must be a pack, a dataset, or class ids of shape (n,), got {flat.dtype} of shape {flat.shape}"
        raise UsageError("data", problem)
    return ids


@dataclass(frozen=True, slots=True, eq=False)
class _Rarest:
    """The rarest class of each image, and the number of images of each class."""

    classes: NDArray[np.int32]
    """(n,), a position in `images`; that of the most common class where an image has none."""
    images: NDArray[np.int64]
    """Images that show each class, those classes only that any image shows."""

    def weights(self, power: float) -> NDArray[np.float64]:
        """Return the weight of each class: (images of the rarest class / images of it) ** power, from 0 to 1."""
        least = int(self.images.min())
        # rounded: powers differ in the last bit from machine to machine, and the order must not
        return np.array([float(f"{(least / count) ** power:.12g}") for count in self.images.tolist()])


def _rarest(ids: NDArray[Any] | Ragged) -> _Rarest:
    """Count the classes by image, and find the rarest of each image. Raise UsageError if there are none."""
    rows, flat = _pairs(ids)
    known = flat >= 0
    rows, flat = rows[known], flat[known]
    if not len(flat):
        raise UsageError("data", "has no class labels: there is nothing to balance", "use ShuffleSampler")
    classes = _positions(flat)
    if not isinstance(ids, Ragged):
        images = np.bincount(classes)
        out = np.full(len(ids), images.argmax(), np.int32)
        out[rows] = classes
        return _Rarest(out, images)
    # a class counts once an image, however many of its boxes show it
    rows, classes = np.divmod(np.unique(rows * len(flat) + classes), len(flat))
    images = np.bincount(classes)
    out = np.full(len(ids), images.argmax(), np.int32)
    by_rarity = np.argsort(-images[classes], kind="stable")
    out[rows[by_rarity]] = classes[by_rarity]  # the rarest last, so that it overwrites the others
    return _Rarest(out, images)


def _pairs(ids: NDArray[Any] | Ragged) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (record, class id) of every label."""
    if isinstance(ids, Ragged):
        return np.repeat(np.arange(len(ids)), ids.lengths), np.asarray(ids.flat()).astype(np.int64)
    return np.arange(len(ids)), ids.astype(np.int64)


def _positions(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each id among those that occur, in rising order."""
    top = int(ids.max()) + 1
    if top > len(ids) + (1 << 16):  # ids that are hardly class ids: too large to count by
        return np.unique(ids, return_inverse=True)[1]
    occurs = np.bincount(ids, minlength=top) > 0
    return (np.cumsum(occurs) - 1)[ids]
