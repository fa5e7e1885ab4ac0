"""Finds records from files with the same bytes, in one pack and across two (an image of val that is also in train)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack

MOST_GROUPS = 1000
"""Maximum number of groups listed; all are counted."""


@dataclass(frozen=True)
class Place:
    """A record and its source file."""

    record: int
    key: str
    path: str


@dataclass(frozen=True)
class Duplicates:
    """Records whose source files have the same bytes."""

    groups: int
    surplus: int
    """Records that could be removed: all but one of each group."""
    listed: tuple[tuple[Place, ...], ...]
    """The records of the first groups."""


@dataclass(frozen=True)
class Leaks:
    """Source files whose bytes are in both packs."""

    path: str
    """The other pack."""
    records: int
    """Records of this pack that are also in the other."""
    listed: tuple[tuple[tuple[Place, ...], tuple[Place, ...]], ...]
    """The records of each file: those in this pack and those in the other."""


def duplicates(pack: Pack) -> Duplicates:
    """Return groups of records with equal source files, according to their XXH3-128 (1 in 10^38 to be wrong)."""
    digests, records = _digests(pack)
    groups = sorted(group for group in _groups(digests, records) if len(group) > 1)
    listed = tuple(tuple(_place(pack, i) for i in group) for group in groups[:MOST_GROUPS])
    return Duplicates(len(groups), sum(map(len, groups)) - len(groups), listed)


def leaks(pack: Pack, other: Pack) -> Leaks:
    """Return the records of `pack` whose source files are also in `other`."""
    (ours, our_records), (theirs, their_records) = _digests(pack), _digests(other)
    shared = np.intersect1d(ours, theirs)
    ours_in, theirs_in = np.isin(ours, shared), np.isin(theirs, shared)
    mine, others = _groups(ours[ours_in], our_records[ours_in]), _groups(theirs[theirs_in], their_records[theirs_in])
    pairs = sorted(zip(mine, others, strict=True))  # both are in the order of the digests
    listed = [
        (tuple(_place(pack, i) for i in here), tuple(_place(other, i) for i in there))
        for here, there in pairs[:MOST_GROUPS]
    ]
    return Leaks(other.path, int(ours_in.sum()), tuple(listed))


def _digests(pack: Pack) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the known digests as void (n,), and their records."""
    rows = np.ascontiguousarray(np.asarray(pack.column("source_xxh3"), np.uint8))
    known = np.flatnonzero(rows.any(axis=1))
    return rows[known].view("V16").reshape(-1), known


def _groups(digests: NDArray[Any], records: NDArray[np.int64]) -> list[list[int]]:
    """Return the records of each digest, in the order of the digests; those of a group ascend."""
    _, inverse, counts = np.unique(digests, return_inverse=True, return_counts=True)
    ordered = records[np.argsort(inverse, kind="stable")]
    return [part.tolist() for part in np.split(ordered, np.cumsum(counts)[:-1])] if len(counts) else []


def _place(pack: Pack, record: int) -> Place:
    path: Any = pack.column("path")
    return Place(record, pack.key(record), os.fsdecode(bytes(path[record])))
