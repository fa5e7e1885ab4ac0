"""Which records are sampled: how many there are, of which pack, and which of them are chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError, plural
from packer.format.pack import Pack
from packer.samplers.order import Records, compact
from packer.samplers.ranks import whole


def pack_of(data: Any) -> Pack | None:
    """The pack that `data` is, or that it reads (a PackedDataset), or None."""
    pack = getattr(data, "pack", data)
    return pack if isinstance(pack, Pack) else None


def manifest_digest(data: Any) -> str | None:
    """The digest of the pack of `data`, which says whether a pack is the same one; None without a pack."""
    pack = pack_of(data)
    return None if pack is None else pack.manifest.digest


def length_of(data: int | Sized) -> int:
    """Number of records of `data`. Raises UsageError where it is no number and has no length."""
    return len(data) if isinstance(data, Sized) else whole("data", data, 0)


def chosen(records: ArrayLike, num_records: int) -> Records:
    """Record numbers, in the order given, each checked to be of the pack and there once."""
    given = np.asarray(records)
    if not given.size:
        raise UsageError("records", "holds none: there is nothing to sample")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        problem = f"must be a list of record numbers, got {given.dtype} of shape {given.shape}"
        raise UsageError("records", problem, "numpy.flatnonzero makes numbers of a mask")
    if given.min() < 0 or given.max() >= num_records:
        raise UsageError("records", f"must be from 0 to {num_records - 1}, got {given.min()} to {given.max()}")
    seen = np.zeros(num_records, np.bool_)
    seen[given] = True
    if (distinct := np.count_nonzero(seen)) < len(given):
        twice = plural(len(given) - distinct, "record")
        raise UsageError("records", f"names {twice} twice", "numpy.unique leaves one of each")
    return given.astype(compact(num_records))  # a copy: the caller's array may change


def numbers_digest(numbers: NDArray[Any]) -> str:
    """A short digest of an array of whole numbers."""
    return hashlib.sha256(np.ascontiguousarray(numbers).data).hexdigest()[:16]
