"""A sampler whose weights may follow the loss, and weights from a column: a curriculum.

What is drawn is exact: weights become whole numbers, their *shares*, whose sums have no rounding, so the order is the
same on every machine. The shares of an epoch lie one after another on a line, which is cut into `num_samples` strata of
equal length; each stratum gives one sample, the record at a random point of it, and the samples change places at random
(stratified sampling, as Schaul et al. 2015, https://arxiv.org/abs/1511.05952, draw a batch). So a record with an
expected 2.3 samples gets about that many, with less noise than independent draws, and each position can be computed
alone. A record is found by the sums of blocks of BLOCK shares, then within its block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.model.annotation import Int64
from packer.samplers.clock import refuse
from packer.samplers.order import (
    MOST_VISITS,
    VISIT,
    PackColumns,
    Records,
    bits_at,
    derive,
    pack_of,
    permutation_function,
    records_of,
    whole_order,
)
from packer.samplers.ranks import as_number, check_int
from packer.samplers.sampler import Data, Sampler

BLOCK = 32
"""Shares that are looked at to find a record in its block: 12 bytes for each block, 4 for each share."""
BITS = 31
"""The largest share has so many bits; so the sum of 2**31 of them fits into int64."""
MOST_SAMPLES = 1 << 30
"""Samples of an epoch: their products with each other fit into int64, and a stratum is never empty."""
_PIECE = 1 << 12  # blocks whose shares are computed at once: they stay in the cache
_PLACES, _POINTS = 1, 2  # purpose of a key

Float32 = NDArray[np.float32]


class WeightedSampler(Sampler):
    """Records in random order, each as often as its weight says; the weights may change while it trains.

    Use it for hard examples (`update` with the losses), for a curriculum (`set_weights` with `curriculum_weights`), or
    for weights of your own, such as `class_weights`. Drawbacks: the model learns other frequencies than those of the
    data, unless the loss is multiplied by `importance`; records whose labels are wrong have the largest losses; and
    most records of small weights are not seen in an epoch. Reads are random, as with `ShuffleSampler`.

    A record is drawn with the probability p = w**(1 / temperature) / sum, for each of `num_samples` samples. A record
    with an expected 2.3 samples gets 1 to 4 of them, most often 2 or 3, and 2.3 on average; equal weights give each
    record once. A record that comes again in an epoch has another crop, flip and random numbers. A weight of 0 is never
    drawn; all others are at least 2**-31 of the largest.

    **New weights take effect with the next epoch**: its order is a function of seed, epoch, and the weights when its
    first sample is requested, so neither batches prepared in advance nor the number of ranks change it. For weights
    that follow faster, make epochs shorter with `num_samples`, and read them with `PackedLoader.forever`. Only one
    epoch can be read at a time.

    All ranks must have the same weights: each calls `update` with what all of them have gathered.

    A state holds the weights, as torch tensors (numpy arrays if torch is not loaded): save it with `torch.save`.

    Args:
        data: as for `Sampler`.
        weights: (n,) numbers from 0, one for each record of `data`, sampled or not. Default: 1 for each.
        seed: as in `Sampler`; `indices`, `drop_last`, `pad`, `rank` and `world_size` too.
        temperature: above 1 for weights closer to each other, below 1 for weights farther apart.
        num_samples: samples per epoch, at most 2**30. Default: the number of records.

    Raises:
        UsageError: if an argument is out of range.
    """

    kind = "weighted"
    held = ("weights", "shares")

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: Data, weights: ArrayLike | None = None, seed: int = 0, *, temperature: float = 1.0,
        num_samples: int | None = None, indices: ArrayLike | None = None, drop_last: bool = False, pad: bool = True,
        rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(data, seed, indices=indices, drop_last=drop_last, pad=pad, rank=rank, world_size=world_size)
        self.temperature = as_number(temperature)
        if not 0 < self.temperature < np.inf:
            raise UsageError("temperature", f"must be a number above 0, got {temperature!r}", "write 1.0 for none")
        count = self.num_samples if num_samples is None else num_samples
        self.num_samples = check_int("num_samples", count, 1, MOST_SAMPLES)
        self._ranks()
        self._table = _Table(self.num_indices)
        """Shared with the sampler of a loader (`of_pack`), which numbers records otherwise."""
        self._sorted: tuple[Records, Int64] | None = None
        if weights is not None:
            self.set_weights(weights)

    @property
    def weights(self) -> Float32:
        """A copy of the weights after temperature, (num_indices,), in the order of the records that are sampled."""
        weights: Float32 = self._table.weights.reshape(-1)[: self.num_indices].copy()
        return weights

    def set_weights(self, weights: ArrayLike) -> None:
        """Replace all weights, from the next epoch on.

        Args:
            weights: (n,) numbers from 0, or bool, one for each record of `data`, sampled or not; for `loader.sampler`
                one for each record of the pack.

        Raises:
            UsageError: if their number is another, one is not finite or below 0, or all are 0.
        """
        given = _numbers_of(weights)
        count = self.num_records if self._members is None else len(self._members)
        if given.shape != (count,):
            raise UsageError("weights", f"must be {count} numbers, one per record, got shape {given.shape}")
        mine = given if self._indices is None else given[self._indices]
        mine = mine.astype(np.uint8) if mine.dtype == np.bool_ else mine
        # all are looked at before the first is replaced
        if not sum(self._tempered("weights", mine[part]).any() for part in _pieces(len(mine))):
            raise UsageError("weights", "are all 0: there is nothing to draw")
        self._table.replace(lambda part: self._tempered("weights", mine[part]))

    def update(self, indices: ArrayLike, losses: ArrayLike) -> None:
        """Set the weights of some records, from the next epoch on: to their losses, or to any other numbers.

        Of a record that is named twice, the larger number counts, so the order within a call does not matter. A loss of
        exactly 0 means that the record is never drawn again: add a small constant, as prioritized replay does.

        Args:
            indices: (n,) record numbers, as the sampler and ``with_index=True`` give them; torch or numpy, any device.
            losses: (n,) numbers from 0.

        Raises:
            UsageError: if lengths differ, a record is not sampled, or a number is not finite or below 0. No weight is
                changed then.
        """
        places = self._places(indices)
        given = _numbers_of(losses)
        if given.shape != places.shape:
            problem = f"must be one number per record, {places.shape}, got shape {given.shape}"
            raise UsageError("losses", problem, 'compute them with reduction="none"')
        self._table.put(places, self._tempered("losses", given))

    def importance(self, indices: ArrayLike) -> Float32:
        """Return 1 / (N p) for records of the current epoch, drawn with probability p: their importance weights.

        A loss times these estimates that of all N records, whatever the weights are; over the samples of an epoch
        their mean is 1 (if no weight is 0). Prioritized replay uses ``weights ** beta``, beta rising from 0.4 to 1, and
        divides by their maximum. ``PackedLoader(..., with_weights=True)`` has them in each batch.

        Args:
            indices: (n,) record numbers.

        Returns:
            float32 (n,).

        Raises:
            UsageError: if no epoch has begun, or a record is not drawn in it.
        """
        shares = self._table.shares_at(self._places(indices))
        if not shares.all():
            raise UsageError("indices", "has a record whose weight is 0 in this epoch: it is not drawn")
        ratio: Float32 = (float(self._table.ends[-1]) / self.num_indices / shares).astype(np.float32)
        return ratio

    def _tempered(self, name: str, numbers: NDArray[Any]) -> Float32:
        """Return weights as they are drawn. Raise UsageError if one is not a number from 0."""
        if numbers.dtype.kind not in "iuf":
            raise UsageError(name, f"must be numbers, got {numbers.dtype}")
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < np.inf):
            raise UsageError(name, "must be finite numbers from 0", "look for NaN in the loss" * (name == "losses"))
        with np.errstate(over="ignore"):
            exact = numbers if self.temperature == 1 else numbers.astype(np.float64) ** (1 / self.temperature)
            found = exact.astype(np.float32)
        if len(found) and not found.max() < np.inf:
            raise UsageError(name, f"(1 / {self.temperature})-th powers are above 3e38", "use a larger temperature")
        tiny = np.finfo(np.float32).tiny
        lifted: Float32 = np.where((found < tiny) & (numbers > 0), tiny, found)
        return lifted

    def _places(self, indices: ArrayLike) -> Int64:
        """Return the places of records among those that are sampled. Raise UsageError if one is not."""
        numbers = _numbers_of(indices)
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
            problem = f"must be record numbers (n,), got {numbers.dtype} of shape {numbers.shape}"
            raise UsageError("indices", problem, "pass what with_index=True yields")
        places = numbers.astype(np.int64, copy=False)
        if not len(places):
            return places
        if self._indices is None:
            if places.min() < 0 or places.max() >= self.num_indices:
                problem = f"must be from 0 to {self.num_indices - 1}, got {places.min()} to {places.max()}"
                raise UsageError("indices", problem)
            return places
        if self._sorted is None or self._sorted[0] is not self._indices:
            self._sorted = self._indices, np.argsort(self._indices)
        order = self._sorted[1]
        found: Int64 = order[np.searchsorted(self._indices, places, sorter=order).clip(max=len(order) - 1)]
        if len(other := places[self._indices[found] != places]):
            raise UsageError("indices", f"has record {other[0]}, which this sampler does not read")
        return found

    def _options(self) -> dict[str, float]:
        return {"temperature": self.temperature}

    def _order(self, epoch: int) -> Records:
        table = self._table if self._table.epoch == epoch else self._table.copy()
        numbers = table.samples(epoch, self.seed, self.num_samples)
        return whole_order(numbers, self.num_samples, 1 << 62)

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        return self._table.samples(epoch, self.seed, self.num_samples)

    def _held(self, epoch: int, position: int) -> dict[str, Any]:
        table = self._table
        held = {"weights": _saved(self.weights)}
        if table.epoch == epoch and 0 < position < self.num_samples and table.changed.any():
            held["shares"] = _saved(table.shares.reshape(-1)[: self.num_indices].copy())
        return held

    def check_state(self, state: Any, global_batch: int | None = None) -> tuple[int, int]:
        """Do what `Sampler.check_state` does, and look at the weights.

        Args:
            state: the state.
            global_batch: samples of a batch of all ranks together; None: of any.
        """
        found = super().check_state(state, global_batch)
        for name, dtype in (("weights", np.float32), ("shares", np.int32)):
            if name == "weights" or name in state:
                numbers = _numbers_of(state.get(name))
                if numbers.shape != (self.num_indices,) or numbers.dtype != dtype:
                    refuse(f"has {name} {numbers.dtype} of shape {numbers.shape}, not {self.num_indices} numbers")
                if not (numbers.min() >= 0 and 0 < numbers.max() < np.inf):
                    refuse(f"has {name} that are not numbers from 0, some above")
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the weights of a state, and those that its epoch was drawn with.

        Args:
            state: with which `check_state` has found nothing wrong.
        """
        weights, shares = _numbers_of(state["weights"]), state.get("shares")
        self._table.replace(lambda part: weights[part])
        if 0 < state["position"] < self.num_samples:
            if shares is None:
                self._table.draw(state["epoch"])
            else:
                self._table.redraw(state["epoch"], _numbers_of(shares))


class _Table:
    """Weights of n records, and the shares of the epoch that was begun last, which they become when one begins."""

    def __init__(self, n: int) -> None:
        self.n = n
        blocks = -(-n // BLOCK)
        self.weights: Float32 = np.zeros((blocks, BLOCK), np.float32)
        self.weights.reshape(-1)[:n] = 1
        self.shares: NDArray[np.int32] = np.zeros((blocks, BLOCK), np.int32)
        self.ends: Int64 = np.zeros(blocks + 1, np.int64)
        """Where each block of shares begins, and the sum of all."""
        self.changed: NDArray[np.bool_] = np.ones(blocks, np.bool_)
        """Blocks whose shares are not those of their weights."""
        self.epoch: int | None = None
        """The epoch that the shares are those of."""
        self._shift: int | None = None

    def copy(self) -> _Table:
        """Return one with the same weights, and shares of its own."""
        other = _Table(self.n)
        other.weights = self.weights
        return other

    def put(self, places: Int64, weights: Float32) -> None:
        """Replace the weights at some places; the largest counts."""
        flat = self.weights.reshape(-1)
        flat[places] = 0
        np.maximum.at(flat, places, weights)
        self.changed[places // BLOCK] = True

    def replace(self, weights: Callable[[slice], Float32]) -> None:
        """Replace all weights, a piece of them at a time."""
        flat = self.weights.reshape(-1)
        for part in _pieces(self.n):
            flat[part] = weights(part)
        self.changed[:] = True

    def draw(self, epoch: int) -> None:
        """Turn the weights into the shares of an epoch. Raise UsageError if all are 0."""
        top = float(self.weights.max())
        if not top:
            problem = "are all 0: there is nothing to draw"
            raise UsageError("weights", problem, "add a small constant to the losses")
        shift = BITS - int(np.frexp(top)[1])
        if shift != self._shift:
            self._shift, self.changed[:] = shift, True
        blocks = np.flatnonzero(self.changed)
        self._fill(epoch, blocks, lambda some: _shares(self.weights[some], shift))
        self.changed[:] = False

    def redraw(self, epoch: int, shares: NDArray[np.int32]) -> None:
        """Take the shares of an epoch from a state; the weights may be others."""
        self.shares.reshape(-1)[: self.n] = shares
        self._fill(epoch, np.arange(len(self.shares)), lambda some: self.shares[some])
        self._shift, self.changed[:] = None, True

    def _fill(self, epoch: int, blocks: Int64, shares: Callable[[Int64], NDArray[np.int32]]) -> None:
        sums = np.diff(self.ends)
        for start in range(0, len(blocks), _PIECE):
            some = blocks[start : start + _PIECE]
            self.shares[some] = found = shares(some)
            sums[some] = found.sum(axis=1, dtype=np.int64)
        np.cumsum(sums, out=self.ends[1:])
        self.epoch = epoch

    def shares_at(self, places: Int64) -> NDArray[np.int32]:
        """Return the shares at some places. Raise UsageError if no epoch has begun."""
        if self.epoch is None:
            raise UsageError("importance", "is known when an epoch has begun", "ask for it after the first batch")
        found: NDArray[np.int32] = self.shares.reshape(-1)[places]
        return found

    def samples(self, epoch: int, seed: int, count: int) -> Callable[[Int64], Int64]:
        """Begin an epoch of `count` samples; return the function from positions to place + visit * VISIT."""
        if self.epoch != epoch:
            self.draw(epoch)
        strata = _Strata(int(self.ends[-1]), count, derive(seed, epoch, _POINTS))
        places = permutation_function(count, derive(seed, epoch, _PLACES))

        def samples(positions: Int64) -> Int64:
            if self.epoch != epoch:
                problem = f"{epoch} is still read, but epoch {self.epoch} has begun, whose weights may be others"
                raise UsageError("epoch", problem, "read one epoch of a WeightedSampler at a time")
            numbers = places(positions)
            order = np.argsort(numbers)  # a search for points in rising order is five times as fast
            out = np.empty(len(numbers), np.int64)
            out[order] = self._drawn(strata, numbers[order])
            return out

        return samples

    def _drawn(self, strata: _Strata, numbers: Int64) -> Int64:
        """Return the samples of some strata."""
        points = strata.points(numbers)
        block = np.searchsorted(self.ends, points, side="right") - 1
        shares, rest = self.shares[block], points - self.ends[block]
        ends = np.cumsum(shares, axis=1, dtype=np.int64)
        inside = np.count_nonzero(ends <= rest[:, None], axis=1)
        rows = np.arange(len(numbers))
        begins = self.ends[block] + ends[rows, inside] - shares[rows, inside]
        found: Int64 = block * BLOCK + inside + strata.earlier(numbers, begins) % MOST_VISITS * VISIT
        return found


def _shares(weights: Float32, shift: int) -> NDArray[np.int32]:
    """Return weights * 2**shift as whole numbers, exactly but for rounding; 0 only for 0."""
    whole: NDArray[np.int32] = np.rint(weights.astype(np.float64) * 2.0**shift).astype(np.int32)
    return np.maximum(whole, weights > 0)


class _Strata(NamedTuple):
    """`samples` strata of the whole numbers from 0 to `total` - 1, each with a random point."""

    total: int
    samples: int
    key: int

    def edges(self, numbers: Int64) -> Int64:
        """Return where strata begin: number * total / samples, rounded down."""
        whole, rest = divmod(self.total, self.samples)  # so that no product exceeds int64
        found: Int64 = numbers * whole + numbers * rest // self.samples
        return found

    def points(self, numbers: Int64) -> Int64:
        """Return the point in each stratum."""
        begins = self.edges(numbers)
        width = self.edges(numbers + 1) - begins
        random = (bits_at(self.key, numbers) >> np.uint64(11)) * 2.0**-53
        points: Int64 = begins + np.minimum((random * width).astype(np.int64), width - 1)
        return points

    def earlier(self, numbers: Int64, begins: Int64) -> Int64:
        """Return how many strata before each have their points in its record, which begins at `begins`."""
        out = np.zeros(len(numbers), np.int64)
        # where a record begins before the stratum; all strata between have their points in it
        several = np.flatnonzero(self.edges(numbers) > begins)
        start = begins[several]
        first = np.maximum((start * (self.samples / self.total)).astype(np.int64) - 1, 0)
        for _ in range(3):  # what floats may be wrong by
            first += self.edges(first + 1) <= start
        out[several] = numbers[several] - first - (self.points(first) < start)
        return out


def _pieces(n: int) -> list[slice]:
    """Return slices of n numbers, so short that little memory is needed for what is computed of one."""
    size = _PIECE * BLOCK
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _numbers_of(values: Any) -> NDArray[Any]:
    """Return numbers of torch, on any device and of any type, numpy or a list as an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values if values.element_size() == 8 else values.float()  # numpy has no bfloat16
    return np.asarray(values)


def _saved(numbers: NDArray[Any]) -> Any:
    """Return what `torch.load` takes with weights_only=True: a tensor, if torch is loaded."""
    from_numpy = getattr(sys.modules.get("torch"), "from_numpy", None)
    return numbers if from_numpy is None else from_numpy(numbers)


def curriculum_weights(data: Any, by: str | ArrayLike, share: float) -> NDArray[np.bool_]:
    """Return which records are among the easiest `share` of all: weights of an epoch of a curriculum.

    A curriculum (Bengio et al. 2009, https://doi.org/10.1145/1553374.1553380) begins with easy examples, and adds the
    harder ones step by step; how the share grows is its pacing function (Hacohen, Weinshall 2019,
    https://arxiv.org/abs/1904.03626)::

        for epoch in range(10):
            crowd = pack.column("boxes").lengths
            sampler.set_weights(curriculum_weights(pack, crowd, min(1, 0.3 + epoch / 10)))

    Args:
        data: the pack or dataset.
        by: the difficulty: a column of numbers, or (n,) numbers, such as the losses of a model; lower is easier. Where
            records are equal, those that come first in the pack are taken first; NaN is hardest.
        share: above 0, to 1.

    Returns:
        bool (n,).

    Raises:
        UsageError: if an argument is out of range.
    """
    if not 0 < as_number(share) <= 1:
        raise UsageError("share", f"must be a number above 0, and 1 at most, got {share!r}")
    pack = pack_of(data)
    if isinstance(by, str):
        if pack is None:
            raise UsageError("by", f"is the column {by!r}, but data is not a pack", "pass the numbers")
        scores: Any = PackColumns(pack, records_of(data))[by]
    else:
        scores = _numbers_of(by)
    if not isinstance(scores, np.ndarray) or scores.ndim != 1 or scores.dtype.kind not in "iufb":
        what = f"the column {by!r} has lists or text" if isinstance(by, str) else f"got shape {np.shape(scores)}"
        raise UsageError("by", f"must have one number per record, but {what}", "pass the numbers")
    count = check_int("data", len(scores) if pack is None else len(data), 1)
    if len(scores) != count:
        raise UsageError("by", f"has {len(scores)} numbers for {count} records")
    out = np.zeros(count, np.bool_)
    out[np.argsort(scores, kind="stable")[: max(1, round(share * count))]] = True
    return out
