"""Permutations and random numbers as pure functions of a key: the same with any numpy, on any machine.

numpy's own shuffles may change from one version to the next (NEP 19), and a resumed run must not. Two ways,
both keyed by SplitMix64 (Steele, Lea, Flood 2014, https://doi.org/10.1145/2714064.2660195):

- up to 4,096 items: the items sorted by one random 64-bit number each; every order is as likely as any other.
- more: a Feistel network (Luby, Rackoff 1988) of 8 rounds over a grid of a x b >= n cells, whose round functions
  are tables of random numbers; a cell beyond n is permuted again (cycle walking: Black, Rogaway 2002,
  https://doi.org/10.1007/3-540-45760-7_9), which is rare because the grid has fewer than a = sqrt(n) extra cells.
  It works in pieces that stay in the cache: 10 million items take about 0.1 s, and no memory but the result.

`uniform` returns random numbers for each record, and `is_sorted_by_class` detects a pack that is not shuffled.
`PackColumns`, `pack_of`, `records_of` and `check_indices` are what samplers ask of a pack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError, plural
from packer.format.index import FULL_SCHEMA
from packer.format.pack import Pack
from packer.model.annotation import Int64
from packer.model.annotation_columns import Ragged

Float64 = NDArray[np.float64]
Records = NDArray[np.signedinteger[Any]]
"""Record numbers or positions: int32 if they fit, else int64."""

SORTED_BELOW = 0.1
"""A pack with less than this share of the label changes of a shuffled one counts as sorted."""

SAMPLED_RUNS, RUN = 64, 1024
"""Runs of neighbors that are looked at in a large pack, and records in each."""

SORTED_UP_TO = 4096
VISIT = 1 << 40
"""Makes a sample of a record: record + visit * VISIT. The visit says how often the record came before in the epoch;
random numbers depend on both."""
MOST_VISITS = 1 << 20
"""Visits of a record in an epoch that differ: after these it has the crops of the first ones again."""
PIECE = 1 << 14  # three arrays of 128 KiB: they stay in the second-level cache

_ROUNDS = 4  # each of both halves: 8 of Luby and Rackoff's
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def derive(*numbers: int) -> int:
    """Return a 64-bit key of integers, in this order; other numbers give an unrelated key."""
    key = 0
    for number in numbers:
        key = _mix(((key ^ (number & _MASK)) + _GOLDEN) & _MASK)
    return key


def random_bits(key: int, n: int) -> NDArray[np.uint64]:
    """Return n distinct random 64-bit numbers."""
    return bits_at(key, np.arange(n))


def bits_at(key: int, places: Int64) -> NDArray[np.uint64]:
    """Return the random 64-bit numbers that `random_bits` has at these places."""
    return _mix_array((places.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key))


def _mix_array(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer in place, which turns similar numbers into unrelated ones."""
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def uniform(seed: int, epoch: int, records: Int64, count: int) -> Float64:
    """Return `count` random numbers for each record, independent of workers, threads and ranks.

    Args:
        seed: any integer.
        epoch: any integer.
        records: record numbers (n,), or samples, whose visits count too.
        count: random numbers per record.

    Returns:
        float64 (n, count) in [0, 1): row i depends only on seed, epoch and records[i].
    """
    step = np.uint64(_GOLDEN)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        stream = _mix_array(np.array([seed & _MASK], np.uint64) + step)
        stream = _mix_array(stream + np.uint64(epoch & _MASK) * step)
        keys = _mix_array(stream + records.astype(np.uint64) * step)
        numbers = _mix_array(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * step)
    random: Float64 = (numbers >> np.uint64(11)) * 2.0**-53
    return random


def records_in(samples: Records) -> Records:
    """Return the record numbers of samples, record + visit * VISIT, in their type."""
    return samples if samples.dtype.itemsize < 8 else samples & (VISIT - 1)


def compact(n: int) -> type[np.int32] | type[np.int64]:
    """Return the smallest type that holds the numbers 0 to n - 1."""
    return np.int32 if n <= 1 << 31 else np.int64


def permutation(n: int, key: int) -> Records:
    """Return the numbers 0 to n - 1 in an order that depends only on `key`, a 64-bit number such as from `derive`."""
    return whole_order(permutation_function(n, key), n, n)


def whole_order(numbers: Callable[[Int64], Records], count: int, n: int, piece: int = PIECE) -> Records:
    """Return `numbers`, below n, of the positions 0 to count - 1, computed `piece` of them at a time."""
    out = np.empty(count, compact(n))
    for start in range(0, count, piece):
        out[start : start + piece] = numbers(np.arange(start, min(start + piece, count)))
    return out


def permutation_function(n: int, key: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function from positions to numbers that gives the same order as `permutation`."""
    return random_bits(key, n).argsort().take if n <= SORTED_UP_TO else Feistel(n, key)


def in_pieces(numbers: Callable[[NDArray[np.int64]], Records], positions: range, share: int) -> Iterator[Records]:
    """Yield `numbers` of these positions, `share` of them at a time.

    They are computed for many shares at once, but the first ones soon.
    """
    size = share
    while positions:
        here, positions = positions[:size], positions[size:]
        found = numbers(np.arange(here.start, here.stop, here.step))
        yield from (found[start : start + share] for start in range(0, len(found), share))
        size = min(2 * size, max(1, PIECE // share) * share)


class Feistel:
    """A keyed permutation of the numbers 0 to n - 1, for 1 <= n < 2**62."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._bits = (n - 1).bit_length() // 2
        self._columns = 1 << self._bits
        self._rows = -(-n // self._columns)
        self._to_column = [_table(derive(key, 2 * i), self._rows, self._columns) for i in range(_ROUNDS)]
        self._to_row = [_table(derive(key, 2 * i + 1), self._columns, self._rows) for i in range(_ROUNDS)]

    def __call__(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the image of each number, int64, same shape (n,)."""
        images = self._pass(numbers)
        while len(beyond := np.flatnonzero(images >= self.n)):
            images[beyond] = self._pass(images[beyond])
        return images

    def _pass(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        column, row = cells & (self._columns - 1), cells >> self._bits
        step = np.empty_like(cells)
        for to_column, to_row in zip(self._to_column, self._to_row, strict=True):
            # mode: numpy's checked one copies `out`
            to_column.take(row, out=step, mode="clip")
            column ^= step
            to_row.take(column, out=step, mode="clip")
            row += step
            np.subtract(row, self._rows, out=step)
            # modulo without a division: as unsigned numbers, negative ones are larger
            np.minimum(row.view(np.uint64), step.view(np.uint64), out=row.view(np.uint64))
        row <<= self._bits
        row |= column
        return row


def _table(key: int, n: int, top: int) -> NDArray[np.int64]:
    """Return n random numbers from 0 to top - 1, top < 2**32."""
    high = random_bits(key, n) >> np.uint64(32)
    table: NDArray[np.int64] = (high * np.uint64(top) >> np.uint64(32)).astype(np.int64)
    return table


def _mix(number: int) -> int:
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


class SortedPackWarning(UserWarning):
    """A pack is sorted by class, but the training order relies on it being shuffled."""


def label_changes(labels: NDArray[Any]) -> tuple[int, float]:
    """Return how often the label changes in (n,) or (runs, n) labels, and how often it would in a random order.

    In a random order, two neighbors have the same class with the probability
    sum(n_c * (n_c - 1)) / (n * (n - 1)), where n_c is the number of records of class c.
    """
    n, pairs = labels.size, labels.size - labels.size // max(1, labels.shape[-1])
    if n < 2:
        return 0, 0.0
    _, counts = np.unique(labels, return_counts=True)
    same = float((counts * (counts - 1.0)).sum()) / (n * (n - 1.0))
    return int(np.count_nonzero(labels[..., 1:] != labels[..., :-1])), pairs * (1 - same)


def is_sorted_by_class(labels: NDArray[Any]) -> bool:
    """Return whether labels, (n,) or (runs, n), come in long runs, as if sorted. False if there is only one class."""
    changes, shuffled = label_changes(labels)
    return changes < SORTED_BELOW * shuffled


def runs_of_neighbors(n: int) -> Int64:
    """Return positions among n records whose labels tell whether all are sorted: all, or runs of a sample (runs, n)."""
    if n <= SAMPLED_RUNS * RUN:
        return np.arange(n)
    starts = np.linspace(0, n - RUN, SAMPLED_RUNS).astype(np.int64)
    return starts[:, None] + np.arange(RUN)


Column = NDArray[Any] | Ragged
"""Numbers: array (n,). Lists, text: `Ragged` of n rows."""


class PackColumns(Mapping[str, Any]):
    """The columns of a pack's index by name (docs/formats.md lists them), read on access.

    Args:
        pack: the pack.
        records: the numbers of the records whose rows are meant; None: all.
    """

    def __init__(self, pack: Pack, records: Records | None = None) -> None:
        self._pack = pack
        self._records = records
        self._names: list[str] = FULL_SCHEMA.names

    def __getitem__(self, name: str) -> Column:
        """Return a column. Raise UsageError if it does not exist."""
        if name not in self._names:
            raise UsageError("columns", f"there is no column {name!r}", f"the columns are {', '.join(self._names)}")
        column = self._pack.column(name)
        return column if self._records is None else column[self._records]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def subset(data: Any, predicate: Callable[[PackColumns], Any]) -> Int64:
    """Return the numbers of the records for which `predicate` is true, for the `indices=` of any sampler.

        large = subset(dataset, lambda columns: columns["width"] > 100)
        cats = subset(dataset, lambda columns: columns["label"] == dataset.class_to_idx["cat"])
        crowded = subset(dataset, lambda columns: columns["boxes"].lengths >= 10)
        sampler = ShuffleSampler(dataset, indices=large)

    Args:
        data: a Pack or PackedDataset; the records of a dataset of some are numbered in it, as its samples are.
        predicate: a function from the columns to bool (n,), called once, with whole columns.

    Returns:
        int64 (k,), ascending.

    Raises:
        UsageError: if `data` has no index, a column is unknown, or the result is not one bool per record.
    """
    pack = pack_of(data)
    if pack is None:
        raise UsageError("data", f"must be a Pack or a PackedDataset, got {type(data).__name__}")
    answer = np.asarray(predicate(PackColumns(pack, records_of(data))))
    if answer.dtype != np.bool_ or answer.shape != (len(data),):
        given = f"{answer.dtype} of shape {answer.shape}"
        raise UsageError("predicate", f"must return bool of shape ({len(data)},), one per record; got {given}")
    return np.flatnonzero(answer)


def pack_of(data: Any) -> Pack | None:
    """Return the pack of `data` (a Pack or PackedDataset), or None."""
    pack = getattr(data, "pack", data)
    return pack if isinstance(pack, Pack) else None


def records_of(data: Any) -> Records | None:
    """Return the numbers in the pack of the records of a PackedDataset, None if it has all, or `data` is another."""
    return None if pack_of(data) is None else getattr(data, "indices", None)


def check_indices(indices: ArrayLike, num_records: int) -> Records:
    """Return record numbers in the order given. Raise UsageError unless all are in the pack and unique."""
    given = np.asarray(indices)
    if not given.size:
        raise UsageError("indices", "is empty: there is nothing to sample")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        problem = f"must be a list of record numbers, got {given.dtype} of shape {given.shape}"
        step = "convert a mask with numpy.flatnonzero" if given.dtype == np.bool_ else "write a list of integers"
        raise UsageError("indices", problem, step)
    if given.min() < 0 or given.max() >= num_records:
        raise UsageError("indices", f"must be from 0 to {num_records - 1}, got {given.min()} to {given.max()}")
    seen = np.zeros(num_records, np.bool_)
    seen[given] = True
    if (distinct := np.count_nonzero(seen)) < len(given):
        repeated = plural(len(given) - distinct, "record")
        raise UsageError("indices", f"repeats {repeated}", "remove duplicates with numpy.unique")
    return given.astype(compact(num_records))  # a copy: the caller's array may change


def digest_of(numbers: NDArray[Any]) -> str:
    """Return a short digest of an array of integers."""
    return hashlib.sha256(np.ascontiguousarray(numbers).data).hexdigest()[:16]
