"""Near duplicates of a pack, and those that it shares with another: what `packer stats --duplicates near` lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.repack.fingerprints import fingerprints_of
from packer.repack.near_duplicates import NearFacts, Nearness, near_groups
from packer.stats.columns import MOST_GROUPS, RecordFile, record_file


@dataclass(frozen=True)
class NearRecord(RecordFile):
    """A record of a group of near duplicates."""

    pack: str
    """The path of its pack."""
    differ: int
    """Bits in which its hash differs from that of the first of the group; of a chain, that may be many."""


@dataclass(frozen=True)
class NearDuplicates:
    """Groups of near duplicates of one pack or several."""

    bits: int
    """In which the hashes of two near duplicates differ at most."""
    mirrored: bool
    groups: int
    records: int
    """Those in the groups."""
    leaks: int
    """Groups with records of several packs."""
    listed: tuple[tuple[NearRecord, ...], ...]
    """The first `MOST_GROUPS` groups, those of several packs first."""
    notes: tuple[str, ...]

    def paths(self, leaks: bool = False) -> list[list[str]]:
        """Return the paths of each group that is listed; those of one pack, or of several."""
        return [[one.path for one in group] for group in self.listed if (len({r.pack for r in group}) > 1) == leaks]


def near_duplicates(packs: Sequence[Pack], near: Nearness, progress: Progress | None = None) -> NearDuplicates:
    """Return the near duplicates among all records of these packs.

    Args:
        packs: The packs.
        near: What counts as one.
        progress: Receives the images that are read, where fingerprints are missing, and the rounds of the comparison.

    Raises:
        DamagedPack: An image or a file beside a pack is damaged.
    """
    rows = np.concatenate([fingerprints_of(pack, progress) for pack in packs])
    found, facts = near_groups(rows, near, progress), NearFacts(rows, near)
    bounds = np.cumsum([0, *map(len, packs)])
    pack_of = np.searchsorted(bounds, found.groups.records, side="right") - 1
    starts = found.groups.starts[:-1]
    leaks = np.zeros(0, np.bool_)
    if len(starts):
        leaks = np.minimum.reduceat(pack_of, starts) != np.maximum.reduceat(pack_of, starts)
    listed = []
    for group in np.argsort(~leaks, kind="stable")[:MOST_GROUPS].tolist():
        members = np.array(found.groups.listed(group))
        differ = facts.differing(members[:1], members).tolist()
        numbers = (np.searchsorted(bounds, members, side="right") - 1).tolist()
        places = zip(members.tolist(), numbers, differ, strict=True)
        listed.append(tuple(_near_record(packs[of], int(i - bounds[of]), bits) for i, of, bits in places))
    of_groups = found.groups.groups, len(found.groups.records), int(leaks.sum())
    return NearDuplicates(near.bits, near.mirrored, *of_groups, tuple(listed), found.notes)


def _near_record(pack: Pack, record: int, differ: int) -> NearRecord:
    place = record_file(pack, record)
    return NearRecord(place.record, place.key, place.path, pack.path, differ)
