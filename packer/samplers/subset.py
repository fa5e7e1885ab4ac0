"""Selects the records to sample, by columns of the index or from an array."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError, plural
from packer.format.pack import Pack
from packer.format.schema import FULL_SCHEMA
from packer.model.annotation import Int64
from packer.model.ragged import Ragged
from packer.samplers.order import Records, compact

Column = NDArray[Any] | Ragged
"""Numbers: array (n,). Lists, text: `Ragged` of n rows."""


class PackColumns(Mapping[str, Any]):
    """The columns of a pack's index by name (docs/formats.md lists them), read on access."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._names: list[str] = FULL_SCHEMA.names

    def __getitem__(self, name: str) -> Column:
        """Return a column. Raise UsageError if it does not exist."""
        if name not in self._names:
            raise UsageError("columns", f"there is no column {name!r}", f"the columns are {', '.join(self._names)}")
        return self._pack.column(name)

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
        data: a Pack or PackedDataset.
        predicate: a function from the columns to bool (n,), called once, with whole columns.

    Returns:
        int64 (k,), ascending.

    Raises:
        UsageError: if `data` has no index, a column is unknown, or the result is not one bool per record.
    """
    pack = pack_of(data)
    if pack is None:
        raise UsageError("data", f"must be a Pack or a PackedDataset, got {type(data).__name__}")
    answer = np.asarray(predicate(PackColumns(pack)))
    if answer.dtype != np.bool_ or answer.shape != (len(pack),):
        given = f"{answer.dtype} of shape {answer.shape}"
        raise UsageError("predicate", f"must return bool of shape ({len(pack)},), one per record; got {given}")
    return np.flatnonzero(answer)


def pack_of(data: Any) -> Pack | None:
    """Return the pack of `data` (a Pack or PackedDataset), or None."""
    pack = getattr(data, "pack", data)
    return pack if isinstance(pack, Pack) else None


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
