"""Samplers that draw some images more often: rare classes, or several packs in given shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError, plural, printable
from packer.model.annotation import Int64
from packer.model.annotation_columns import Ragged
from packer.samplers.order import (
    MOST_VISITS,
    PIECE,
    VISIT,
    Records,
    bits_at,
    derive,
    digest_of,
    pack_of,
    permutation,
    permutation_function,
    random_bits,
    records_of,
    whole_order,
)
from packer.samplers.ranks import as_number, check_int
from packer.samplers.sampler import Sampler

By = Literal["label", "box_labels"]
_RECORDS, _OFFSET, _SAMPLES = 1, 2, 3  # purpose of a key


class BalancedSampler(Sampler):
    """Records in random order, with rare classes more often.

    An image of a class with n_c images has the weight (1 / n_c) ** power: with power 1 every class is drawn equally
    often, with 0 every record once, with 0.5 something in between (square-root sampling: Mahajan et al. 2018,
    https://arxiv.org/abs/1805.00932). An image with boxes of several classes has the weight of its rarest class, as in
    the repeat-factor sampling of LVIS (Gupta, Dollar, Girshick 2019, https://arxiv.org/abs/1908.03195, appendix B; with
    power 0.5, without its threshold), so common classes that appear together with rare ones stay above an equal share.
    An image without label or boxes has the smallest weight, that of the most common class.

    Use it for long tails, where most batches would lack the rare classes. Drawbacks: the few images of a rare class are
    repeated and memorized (use a power below 1, and augment); the model learns wrong class frequencies, so that its
    probabilities are off for real data; and most records of the common classes are not seen in an epoch. Reads are
    random, as with `ShuffleSampler`.

    A record with an expected 2.3 samples per epoch gets 2 or 3 at random, and 2.3 on average (systematic sampling,
    Madow 1949, over the shuffled records). This has less noise than independent draws.

    A record that comes twice in an epoch has another crop, flip and random numbers each time.

    Args:
        data: the pack or dataset, or the class ids themselves: (n,), -1 for none, or a Ragged of n rows.
        power: from 0, no balancing, to 1, all classes equally often.
        seed: as in `Sampler`; `indices`, `drop_last`, `pad`, `rank` and `world_size` too.
        by: the column to balance by. Default: label if there are any, else box_labels.
        num_samples: samples per epoch. Default: the number of records.

    Raises:
        UsageError: if an argument is out of range, or no image has a class.
    """

    kind = "balanced"

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: Any, power: float = 1.0, seed: int = 0, *, by: By | None = None, num_samples: int | None = None,
        indices: ArrayLike | None = None, drop_last: bool = False, pad: bool = True,
        rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(power, bool) or not isinstance(power, (int, float)) or not 0 <= power <= 1:
            raise UsageError("power", f"must be a number from 0 to 1, got {power!r}")
        self.power = float(power)
        ids = _class_ids(data, by)
        records = len(ids) if isinstance(data, (Ragged, list, tuple, np.ndarray)) else data
        super().__init__(records, seed, indices=indices, drop_last=drop_last, pad=pad, rank=rank, world_size=world_size)
        if num_samples is not None:
            self.num_samples = check_int("num_samples", num_samples, 1)
            self._ranks()
        found = _rarest(ids if self.records is None else ids[self.records])
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
        record = permutation_function(n, derive(self.seed, epoch, _RECORDS))
        place = permutation_function(size, derive(self.seed, epoch, _SAMPLES))
        # the samples stand at offset, offset + 1, ...; each record covers a stretch as long as its expected samples
        offset = float(random_bits(derive(self.seed, epoch, _OFFSET), 1)[0] >> np.uint64(11)) / (1 << 53)
        out = np.empty(size, np.int64)
        done, covered = 0, 0.0
        for start in range(0, n, PIECE):
            records = record(np.arange(start, min(start + PIECE, n)))
            ends = covered + np.cumsum(self._expected[self._classes[records]])
            covered = float(ends[-1])
            samples_by = np.minimum(np.ceil(ends - offset).astype(np.int64), size)
            if start + len(records) == n:
                samples_by[-1] = size  # whatever the sum's last bit says
            counts = np.diff(samples_by, prepend=done)
            drawn = np.repeat(records, counts)
            places = np.arange(done, done + len(drawn))
            visits = (places - np.repeat(samples_by - counts, counts)) % MOST_VISITS
            out[place(places)] = drawn + visits * VISIT
            done += len(drawn)
        return out


def _class_ids(data: Any, by: By | None) -> NDArray[Any] | Ragged:
    """Return the class ids of each record: (n,), -1 for none, or a Ragged of n rows.

    For a pack, or the whole pack of a dataset, these are its column `by`, by default `label` if any image has one,
    else `box_labels`; anything else is taken as class ids.
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


def class_weights(
    data: Any, power: float = 1.0, *, beta: float | None = None, by: By | None = None
) -> NDArray[np.float64]:
    """Return the weight of each record by the number of images of its class, for a `WeightedSampler`.

    Classes of records are found as `BalancedSampler` does. The weight is (1 / n_c) ** power, or with `beta` one over
    the effective number of images, (1 - beta) / (1 - beta ** n_c) (Cui et al. 2019, https://arxiv.org/abs/1901.05555);
    that of the rarest class is 1.

    Args:
        data: the pack or dataset, or the class ids themselves: (n,), -1 for none, or a Ragged of n rows.
        power: from 0, no balancing, to 1, all classes equally often.
        beta: from 0, no balancing, to below 1, as 0.99, 0.999 or 0.9999; in place of `power`.
        by: the column of the classes. Default: label if there are any, else box_labels.

    Returns:
        float64 (n,), from 0 to 1.

    Raises:
        UsageError: if an argument is out of range, or no image has a class.
    """
    if not 0 <= as_number(power) <= 1:
        raise UsageError("power", f"must be a number from 0 to 1, got {power!r}")
    if beta is not None and not 0 <= as_number(beta) < 1:
        raise UsageError("beta", f"must be a number from 0 to below 1, got {beta!r}", "write 0.999")
    ids, records = _class_ids(data, by), records_of(data)
    found = _rarest(ids if records is None else ids[records])
    if beta is None:
        return found.weights(float(power))[found.classes]
    # 1 - beta ** n, exact also for beta close to 1
    effective = np.array([-math.expm1(count * math.log(beta)) if beta else 1.0 for count in found.images.tolist()])
    weights: NDArray[np.float64] = (effective.min() / effective)[found.classes]
    return weights


class RepeatedSampler(Sampler):
    """Records in random order, each several times in a row: repeated augmentation.

    Each time a record has another crop and flip. With several ranks its repetitions are on as many of them, as in DeiT
    (Touvron et al. 2021, https://arxiv.org/abs/2012.12877) and timm's RepeatAugSampler, whose epochs also have as many
    samples as there are records: with three repetitions, those of a third of them. For all repetitions in one batch,
    out of one decode, pass `repeats` to a PackedLoader.

    Args:
        data: as in `Sampler`; `seed`, `indices`, `drop_last`, `pad`, `rank` and `world_size` too.
        repeats: how often each record comes, 1 or more.
        num_samples: samples per epoch, at most records * repeats. Default: the number of records.

    Raises:
        UsageError: if an argument is out of range.
    """

    kind = "repeated"

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: Any, repeats: int = 3, seed: int = 0, *, num_samples: int | None = None,
        indices: ArrayLike | None = None, drop_last: bool = False, pad: bool = True,
        rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        self.repeats = check_int("repeats", repeats, 1, MOST_VISITS)
        super().__init__(data, seed, indices=indices, drop_last=drop_last, pad=pad, rank=rank, world_size=world_size)
        if num_samples is not None:
            self.num_samples = check_int("num_samples", num_samples, 1, self.num_indices * self.repeats)
            self._ranks()

    def _options(self) -> dict[str, int]:
        return {"repeats": self.repeats}

    def _order(self, epoch: int) -> Records:
        return whole_order(self._numbers(epoch), self.num_samples, 1 << 62)

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        order, repeats = permutation_function(self.num_indices, derive(self.seed, epoch)), self.repeats

        def numbers(positions: Int64) -> Records:
            items, visits = np.divmod(positions, repeats)
            samples: Records = order(items) + visits * VISIT
            return samples

        return numbers


WINDOW = 512
"""Positions within which the packs have their shares exactly, and the samples change places."""
MOST = 1 << 30
"""Largest sum of the weights as integers: their products with each other fit into int64."""
_PLACES, _TURNS, _MIXED = 1, 2, 3  # purpose of a key


class MixtureSampler(Sampler):
    """Records of several packs in random order, each pack with its share of the samples.

    Use it to train on several packs at once, if each must have its share of the samples whatever its size: a small set
    of your own beside a large public one, real images beside synthetic ones. Do not use it to read each record of all
    packs once per epoch: a `ShuffleSampler` of the joined pack does that.

    Positions are counted over all epochs: P = epoch * num_samples + position. Before P, a pack with share w has given
    w * P samples, rounded; so its next sample is known from P alone, and a state is a position, as for all samplers. A
    pack of n records gives them in rounds: its sample i is record i % n of round i // n, and each round has a random
    order. Thus every record of a pack is read once before any is read twice, whatever the epochs, and no pack is ever
    exhausted.

    If packs took turns in a fixed pattern, each of two ranks would read only one of two packs with equal shares. So the
    samples within a window of positions change places at random; those of one pack keep their order.

    At the end of every 512 samples of an epoch, and at its end, each pack has given its share to within one or two
    samples. In between, the packs follow one another at random.

    Args:
        data: a pack made by `packer.join_packs`, a dataset of it, or the number of records of each pack.
        weights: the share of each pack, in the same order: positive numbers with any sum.
        seed: as in `Sampler`; `drop_last`, `pad`, `rank` and `world_size` too.
        num_samples: samples per epoch. Default: the number of records. If it exceeds n / share for a pack of n records,
            its records are read more than once per epoch, each time with another crop and flip.
        indices: numbers of the records to sample (default: all), in the numbering of the joined pack; at least one of
            each pack. Their order does not matter.

    Raises:
        UsageError: if an argument is out of range.
    """

    kind = "mixture"

    def __init__(  # noqa: PLR0913 - all but the first two have a default, and each stands alone
        self, data: Any, weights: Sequence[float], seed: int = 0, *, num_samples: int | None = None,
        indices: ArrayLike | None = None, drop_last: bool = False, pad: bool = True,
        rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        pack = pack_of(data)
        counts = [len(one) for one in pack.packs] if pack else _counts(data)
        records = data if pack else sum(counts)
        super().__init__(records, seed, indices=indices, drop_last=drop_last, pad=pad, rank=rank, world_size=world_size)
        if num_samples is not None:
            self.num_samples = check_int("num_samples", num_samples, 1)
            self._ranks()
        self.weights = whole_weights(weights, len(counts))
        """The shares as integers without a common divisor."""
        firsts = self._sort_records(np.cumsum([0, *counts]))
        self._firsts: Int64 = firsts.astype(np.int64)
        """Where the sampled records of each pack begin among all, and the end."""
        if empty := np.flatnonzero(np.diff(firsts) == 0).tolist():
            example = printable(pack.packs[empty[0]].path) if pack else f"number {empty[0]}"
            problem = f"has no record of {plural(len(empty), 'pack')}, such as {example}"
            raise UsageError("indices", problem, "leave those packs out, or select some of their records")

    def _options(self) -> dict[str, str]:
        return {"weights": _text(self.weights), "packs": _text(np.diff(self._firsts).tolist())}

    def _order(self, epoch: int) -> Records:
        return whole_order(self._numbers(epoch), self.num_samples, 1 << 62)

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        rounds: dict[int, tuple[int, Callable[[Int64], Int64]]] = {}  # the last one of each pack

        def numbers(positions: Int64) -> Records:
            pack, turn = self.turns(epoch, positions)
            begun = samples_before(self.weights, np.array([epoch * self.num_samples]))[:, 0] // np.diff(self._firsts)
            out = np.empty(len(positions), np.int64)
            # 16-bit numbers are sorted without comparing them
            by_pack = np.argsort(pack.astype(np.int16), kind="stable")
            turn = turn[by_pack]
            cuts = np.searchsorted(pack[by_pack], np.arange(len(self.weights) + 1)).tolist()
            for number, (start, stop) in enumerate(pairwise(cuts)):
                first = self._firsts[number]
                its_rounds, items = np.divmod(turn[start:stop], self._firsts[number + 1] - first)
                begins, _ = _runs(its_rounds)
                for begin, end in pairwise([*begins.tolist(), stop - start]):
                    one = int(its_rounds[begin])
                    if rounds.get(number, (None,))[0] != one:
                        rounds[number] = one, self._shuffled(number, one)
                    visit = (one - int(begun[number])) % MOST_VISITS  # each round has each record once
                    found = first + rounds[number][1](items[begin:end]) + visit * VISIT
                    out[by_pack[start + begin : start + end]] = found
            return out

        return numbers

    def _shuffled(self, pack: int, its_round: int) -> Callable[[Int64], Int64]:
        """Return the order of a pack's records in one of its rounds."""
        records = int(self._firsts[pack + 1] - self._firsts[pack])
        return permutation_function(records, derive(self.seed, _MIXED, pack, its_round))

    def turns(self, epoch: int, positions: Int64) -> tuple[Int64, Int64]:
        """Return which pack the sample at each position of an epoch is from, and how many that pack gave before it.

        Args:
            epoch: the epoch.
            positions: from 0 to num_samples - 1, int64 (n,).

        Returns:
            The number of the pack, and the samples that it gave before in this and all earlier epochs: int64 (n,) each.
        """
        pack, turn = np.empty_like(positions), np.empty_like(positions)
        last = self.num_samples // WINDOW * WINDOW  # where a smaller window begins
        for size, rows in ((WINDOW, positions < last), (self.num_samples - last, positions >= last)):
            if rows.any():
                pack[rows], turn[rows] = self._dealt(epoch, positions[rows], size)
        return pack, turn

    def _dealt(self, epoch: int, positions: Int64, size: int) -> tuple[Int64, Int64]:
        """Do what `turns` does, for positions in windows of one size."""
        begins, window = _runs(positions // WINDOW)
        windows = positions[begins] // WINDOW
        begin = epoch * self.num_samples + windows * WINDOW
        before = samples_before(self.weights, begin)
        edges = np.zeros((len(before) + 1, len(begin)), np.int64)
        np.cumsum(samples_before(self.weights, begin + size) - before, axis=0, out=edges[1:])
        # the samples of a window stand in one order, that of the places, and each window begins it elsewhere
        places = _places(derive(self.seed, _PLACES), size)
        turned = (bits_at(derive(self.seed, epoch, _TURNS), windows) % np.uint64(size)).astype(np.int64)[window]
        stop = turned + positions % WINDOW
        pack = (edges[1:, window] <= places.order[stop]).sum(axis=0)
        lower, upper = edges[pack, window], edges[pack + 1, window]
        earlier = places.counted(stop, lower, upper) - places.counted(turned, lower, upper)
        return pack, before[pack, window] + earlier


def _counts(data: Any) -> list[int]:
    """Return the numbers of records of packs. Raise UsageError if `data` is something else."""
    counts = list(data) if isinstance(data, Iterable) else [None]
    if not all(hasattr(count, "__index__") for count in counts):
        problem = f"must be a pack made by packer.join_packs, or the number of records of each pack, got {data!r}"
        raise UsageError("data", problem, "join the packs first")
    return [check_int("data", count, 1) for count in counts]


def _runs(numbers: Int64) -> tuple[Int64, Int64]:
    """Return where each run of equal numbers begins, and the run of each number."""
    new = np.diff(numbers, prepend=-1) != 0
    return np.flatnonzero(new), np.cumsum(new) - 1


class _Places(NamedTuple):
    """An order of the numbers 0 to n - 1, twice over."""

    order: NDArray[np.int16]
    below: NDArray[np.int16]
    """(2 n + 1, n + 1): how many of the first i are below k."""

    def counted(self, stop: Int64, lower: Int64, upper: Int64) -> Int64:
        """Return how many of the first `stop` numbers are from `lower` to `upper` - 1."""
        return self.below[stop, upper].astype(np.int64) - self.below[stop, lower]


@lru_cache(8)
def _places(key: int, size: int) -> _Places:
    order = np.tile(permutation(size, key), 2).astype(np.int16)
    below = np.zeros((2 * size + 1, size + 1), np.int16)
    np.cumsum(order[:, None] < np.arange(size + 1), axis=0, out=below[1:])
    return _Places(order, below)


def samples_before(weights: Sequence[int], positions: Int64) -> Int64:
    """Return how many samples each pack gives before these positions, (packs, n); they add up to the positions.

    The number of a pack with share w is w * position within 1 + ln(packs). It never falls as positions rise: the pack
    with the largest weight gets its share rounded down, the next one its share of the rest, and so on.
    """
    out = np.empty((len(weights), len(positions)), np.int64)
    rest, left = positions, sum(weights)
    for pack in sorted(range(len(weights)), key=lambda pack: -weights[pack]):
        whole, part = np.divmod(rest, left)  # so that no product exceeds int64
        out[pack] = whole * weights[pack] + part * weights[pack] // left
        rest, left = rest - out[pack], left - weights[pack]
    return out


def whole_weights(weights: Iterable[float], packs: int) -> tuple[int, ...]:
    """Return integers in the proportions of `weights`, with a sum of 2**30 at most; decimal fractions are exact.

    Raise UsageError unless they are positive numbers, one for each pack.
    """
    if not isinstance(weights, Iterable) or isinstance(weights, Mapping):
        raise UsageError("weights", f"must be a list of numbers, got {weights!r}", "pass one for each pack")
    weights = list(weights)
    if len(weights) != packs:
        problem = f"has {plural(len(weights), 'number')} for {plural(packs, 'pack')}"
        raise UsageError("weights", problem, "pass one for each pack")
    for weight in weights:
        if not 0 < as_number(weight) < math.inf:
            problem = f"must be positive numbers, got {weight!r}"
            raise UsageError("weights", problem, "leave out a pack that has no share")
    exact = [Fraction(repr(as_number(weight))) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    if (total := sum(whole)) > MOST * math.gcd(*whole):
        whole = [weight * MOST // total for weight in whole]
    if not all(whole):
        raise UsageError("weights", f"are too far apart: {min(weights)!r} of {sum(weights)!r}", "leave out that pack")
    divisor = math.gcd(*whole)
    return tuple(weight // divisor for weight in whole)


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
