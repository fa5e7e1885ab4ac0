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
class RecordFile:
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
    listed: tuple[tuple[RecordFile, ...], ...]
    """The records of the first groups."""


@dataclass(frozen=True)
class Leaks:
    """Source files whose bytes are in both packs."""

    path: str
    """The other pack."""
    records: int
    """Records of this pack that are also in the other."""
    listed: tuple[tuple[tuple[RecordFile, ...], tuple[RecordFile, ...]], ...]
    """The records of each file: those in this pack and those in the other."""


@dataclass(frozen=True)
class EqualFiles:
    """Groups of records whose source files have the same bytes, in the order of their first records."""

    records: NDArray[np.int64]
    """The records of all groups, one group after another, ascending in each."""
    starts: NDArray[np.int64]
    """Where each group begins in `records`, and the end: (groups + 1,)."""
    unknown: int
    """Records whose source file has no known digest."""

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.starts) - 1

    @property
    def group_of(self) -> NDArray[np.int64]:
        """The number of the group of each of `records`."""
        return np.repeat(np.arange(self.groups), np.diff(self.starts))

    def listed(self, group: int) -> list[int]:
        """Return the records of a group."""
        return list(self.records[self.starts[group] : self.starts[group + 1]].tolist())


def duplicates(pack: Pack) -> Duplicates:
    """Return groups of records with equal source files, according to their XXH3-128 (1 in 10^38 to be wrong)."""
    equal = equal_files(digests(pack))
    listed = tuple(
        tuple(_place(pack, i) for i in equal.listed(group)) for group in range(min(equal.groups, MOST_GROUPS))
    )
    return Duplicates(equal.groups, len(equal.records) - equal.groups, listed)


def leaks(pack: Pack, other: Pack) -> Leaks:
    """Return the records of `pack` whose source files are also in `other`."""
    equal, ours = equal_files(np.concatenate([digests(pack), digests(other)])), len(pack)
    mine = np.add.reduceat(equal.records < ours, equal.starts[:-1]) if equal.groups else np.zeros(0, np.int64)
    both = np.flatnonzero((mine > 0) & (mine < np.diff(equal.starts)))
    listed = []
    for group in both[:MOST_GROUPS].tolist():
        records = equal.listed(group)
        here, there = (tuple(i for i in records if i < ours), tuple(i - ours for i in records if i >= ours))
        listed.append((tuple(_place(pack, i) for i in here), tuple(_place(other, i) for i in there)))
    return Leaks(other.path, int(mine[both].sum()), tuple(listed))


def digests(pack: Pack) -> NDArray[np.uint64]:
    """Return the digest of the source file of each record, (n, 2); zeros if it is not known."""
    rows = np.ascontiguousarray(np.asarray(pack.column("source_xxh3"), np.uint8))
    return rows.reshape(-1, 16).view(np.uint64)


def equal_files(digests: NDArray[np.uint64]) -> EqualFiles:
    """Return the groups of equal digests, (n, 2); zeros are equal to nothing."""
    known = np.flatnonzero(digests.any(axis=1))
    half = digests[known, 0]
    order = np.argsort(half)
    equal = half[order[1:]] == half[order[:-1]]
    # few of a large pack are left: only those are sorted by the whole digest
    some = known[order[np.append(equal, False) | np.insert(equal, 0, False)]] if len(known) else known
    some = some[np.lexsort((some, digests[some, 1], digests[some, 0]))]
    begins = np.append(True, (digests[some[1:]] != digests[some[:-1]]).any(axis=1))[: len(some)]
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(some)))
    starts, lengths = starts[lengths > 1], lengths[lengths > 1]
    first = np.argsort(some[starts], kind="stable")
    starts, lengths = starts[first], lengths[first]
    ends = np.cumsum(lengths)
    records = some[np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)]
    return EqualFiles(records.astype(np.int64), np.insert(ends, 0, 0), len(digests) - len(known))


def _place(pack: Pack, record: int) -> RecordFile:
    path: Any = pack.column("path")
    return RecordFile(record, pack.key(record), os.fsdecode(bytes(path[record])))
