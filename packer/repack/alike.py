"""Finds records from equal files among those of many packs: sorted numbers, no Python object per record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import printable
from packer.model.annotation import Int64
from packer.model.columns import column, present
from packer.model.fields import CLASS_IDS, NUMERIC
from packer.model.ragged import Ragged
from packer.repack.links import Taken
from packer.repack.rows import map_ids, rows_of

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Records whose source file has the same bytes as that of an earlier record."""

    records: int = 0
    """How many there are: all but the first of each file."""
    across: int = 0
    """Those whose first record is in another pack."""
    contradicting: int = 0
    """Those that are labelled differently than the first, in any field but the texts."""
    examples: tuple[str, ...] = ()
    """Some of them as text, the contradicting ones first."""


def find_duplicates(taken: Sequence[Taken]) -> tuple[Duplicates, Int64, Int64]:
    """Return the duplicates among the records of these shards, their numbers, and the first record of each one's file.

    Files are equal if their XXH3-128 are; records whose digest is not known are no duplicates.
    """
    tables = [item.source.tables[item.number] for item in taken]
    digests = np.concatenate([np.asarray(column(table, "source_xxh3")) for table in tables])
    halves = np.ascontiguousarray(digests).view(np.uint64)
    later, first = _pairs(halves)
    if not len(later):
        return Duplicates(), later, first
    starts = np.cumsum([0, *map(len, tables)])
    shards = np.searchsorted(starts, np.stack([first, later]), side="right") - 1
    packs = np.array([list(dict.fromkeys(t.source.path for t in taken)).index(t.source.path) for t in taken])
    across = packs[shards[0]] != packs[shards[1]]
    contradicting = _differ(taken, tables, first, later)
    order = np.argsort(~contradicting, kind="stable")[:SHOWN].tolist()
    paths = [column(table, "path") for table in tables]

    def name(record: int, shard: int) -> str:
        path = bytes(paths[shard][record - int(starts[shard])])
        return f"{printable(os.fsdecode(path))} in {printable(taken[shard].source.name)}"

    examples = [
        f"{name(int(later[i]), int(shards[1, i]))} is {name(int(first[i]), int(shards[0, i]))}"
        + (", labelled differently" if contradicting[i] else "")
        for i in order
    ]
    found = Duplicates(len(later), int(across.sum()), int(contradicting.sum()), tuple(examples))
    return found, later, first


def _pairs(halves: NDArray[np.uint64]) -> tuple[Int64, Int64]:
    """Return the records whose digest an earlier one has, ascending, and that earlier one."""
    ordered = np.sort(halves[:, 0])  # several times as fast as an order of the whole digests
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(again):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.minimum(np.searchsorted(again, halves[:, 0]), len(again) - 1)
    records = np.flatnonzero((again[places] == halves[:, 0]) & halves.any(axis=1))
    order = records[np.lexsort((records, halves[records, 1], halves[records, 0]))]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (halves[order[1:]] != halves[order[:-1]]).any(axis=1)
    firsts = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))] if len(order) else order
    later, first = order[~begins], firsts[~begins]
    by_number = np.argsort(later, kind="stable")
    return later[by_number], first[by_number]


def _differ(taken: Sequence[Taken], tables: Sequence[Any], first: Int64, later: Int64) -> NDArray[np.bool_]:
    """Return which pairs of records are labelled differently, bool (n,)."""
    found = np.zeros(len(first), np.bool_)
    for field in NUMERIC:
        there = np.concatenate([present(table, field.name) for table in tables])
        found |= there[first] != there[later]
        parts = [_mapped(item, table, field.name) for item, table in zip(taken, tables, strict=True)]
        if isinstance(parts[0], Ragged):
            found |= _lists_differ(Ragged.concat(parts), first, later)
        else:
            values = np.concatenate(parts)
            found |= values[first] != values[later]
    return found


def _lists_differ(lists: Ragged, first: Int64, later: Int64) -> NDArray[np.bool_]:
    """Return which pairs of rows differ, bool (n,)."""
    if isinstance(lists.values, Ragged):  # of lists: in how long these are, or in what they hold
        inner, bounds = lists.values, np.asarray(lists.offsets)
        lengths = Ragged(np.asarray(inner.lengths), bounds)
        items = Ragged(inner.values, np.asarray(inner.offsets)[bounds])
        return _lists_differ(lengths, first, later) | _lists_differ(items, first, later)
    counts = np.asarray(lists.lengths)
    same = counts[first] == counts[later]
    found = ~same
    a, b = rows_of(lists, first[same]), rows_of(lists, later[same])
    differ = np.asarray(a.values != b.values)
    unequal = np.asarray(differ.any(axis=tuple(range(1, differ.ndim))))
    before = np.concatenate([[0], np.cumsum(unequal)])
    found[np.flatnonzero(same)[before[a.offsets[1:]] > before[a.offsets[:-1]]]] = True
    return np.asarray(found)


def _mapped(item: Taken, table: Any, name: str) -> Any:
    values: Any = column(table, name)
    if item.mapping is None or name not in CLASS_IDS:
        return values
    if not isinstance(values, Ragged):
        return map_ids(np.asarray(values), item.mapping)
    return Ragged(map_ids(np.asarray(values.flat()), item.mapping), np.asarray(values.offsets) - values.offsets[0])
