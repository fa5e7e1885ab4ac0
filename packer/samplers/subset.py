"""Records chosen by what the index says of them, no image read: for the `records=` of any sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.format.ragged import Ragged
from packer.samplers.records import pack_of

Column = Any
"""Numbers: array (n,). Lists, text: `Ragged` of n rows."""


class Columns(Mapping[str, Column]):
    """The columns of a pack's index by name (docs/formats.md lists them), each read when it is asked for."""

    def __init__(self, pack: Pack) -> None:
        from packer.format.schema import SCHEMA

        self._pack = pack
        self._names: list[str] = SCHEMA.names

    def __getitem__(self, name: str) -> NDArray[Any] | Ragged:
        """Raises UsageError where there is no such column."""
        if name not in self._names:
            raise UsageError("columns", f"there is no column {name!r}", f"the columns are {', '.join(self._names)}")
        return self._pack.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def subset(data: Any, predicate: Callable[[Columns], Any]) -> NDArray[np.int64]:
    """The numbers of the records for which `predicate` is true, rising, int64 (k,).

    Args: a Pack or PackedDataset; a function from the columns to bool (n,), called once, with whole columns:

        large = subset(dataset, lambda columns: columns["width"] > 100)
        cats = subset(dataset, lambda columns: columns["label"] == dataset.class_to_idx["cat"])
        crowded = subset(dataset, lambda columns: columns["boxes"].lengths >= 10)
        sampler = ShuffleSampler(dataset, records=large)

    Raises UsageError where `data` has no index, a column is unknown, or the answer is not one bool a record.
    """
    pack = pack_of(data)
    if pack is None:
        raise UsageError("data", f"must be a Pack or a PackedDataset, got {type(data).__name__}")
    answer = np.asarray(predicate(Columns(pack)))
    if answer.dtype != np.bool_ or answer.shape != (len(pack),):
        given = f"{answer.dtype} of shape {answer.shape}"
        raise UsageError("predicate", f"must give bool of shape ({len(pack)},), one a record; got {given}")
    return np.flatnonzero(answer)
