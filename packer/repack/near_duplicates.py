"""Near duplicates: groups of records whose fingerprints say that their images show the same.

Two images are near duplicates if their hashes differ in few bits, and what else a fingerprint knows of them agrees.
Whoever is a near duplicate of a member is of its group, so that a group may be a chain, such as the frames of a video.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import combinations
from math import comb
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, plural, printable
from packer.images.fingerprint import mirrored_bits
from packer.model.annotation import Int64, Progress
from packer.packing.write_shard import ahead
from packer.repack.index_columns import RecordGroups, groups_of
from packer.system import usable_cores

BITS, MOST_BITS = 8, 16
"""Bits of 64 in which the hashes of near duplicates differ at most: by default, and the most that can be asked for."""
NEARNESS = "near", "mirrored"
MOST_PAIRS = 10_000_000_000
"""Pairs of hashes that are compared at most: about a minute of two cores."""
BLOCK = 1 << 15
"""Records whose pairs are compared at once: they stay in the cache of a core."""
NEIGHBORS = 16
MIX = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Nearness:
    """What counts as a near duplicate."""

    bits: int = BITS
    mirrored: bool = False
    """Whether an image that is mirrored, left to right, is one."""

    @classmethod
    def of(cls, name: str, text: str) -> Nearness:
        """Return what a text means: ``near``, or ``mirrored``, and the bits, if any: ``near=6``.

        Args:
            name: The option, for the error.
            text: What was given.

        Raises:
            UsageError: It means nothing.
        """
        kind, given, bits = text.partition("=")
        if kind not in NEARNESS or (given and not (bits.isascii() and bits.isdigit() and int(bits[:4]) <= MOST_BITS)):
            problem = f"must be near or mirrored, or near=BITS with 0 to {MOST_BITS} bits; got {printable(text)}"
            raise UsageError(name, problem, f"write near={BITS}, which is what near means")
        return cls(int(bits) if given else BITS, kind == "mirrored")


@dataclass(frozen=True)
class NearGroups:
    """The near duplicates of some records."""

    groups: RecordGroups
    notes: tuple[str, ...]
    """What could not be compared."""


def near_groups(rows: NDArray[np.void], near: Nearness, progress: Progress | None = None) -> NearGroups:
    """Return the groups of near duplicates of some records.

    Args:
        rows: The fingerprint of each record.
        near: What counts as one.
        progress: Receives the number of times that all hashes are sorted.
    """
    order = np.lexsort((rows["brightness"], rows["strong"][:, 0], rows["hash"]))
    words = np.ascontiguousarray(rows).view("<u8").reshape(len(rows), rows.itemsize // 8)[order]
    is_first = np.append(True, (words[1:] != words[:-1]).any(axis=1))[: len(order)]
    firsts, number = order[is_first], np.cumsum(is_first) - 1  # of equal rows, one is compared
    facts, sets = NearFacts(rows[firsts], near), JoinedSets(len(firsts))
    masks = _masks(len(facts.hashes), near.bits)
    by_record = np.argsort(firsts)
    for places in (np.arange(len(facts.hashes)), by_record):  # frames of a video are often neighbors in a pack
        for apart in range(1, NEIGHBORS + 1):  # what there is a lot of, such as blank images, is a set from here on
            one, other = places[:-apart], places[apart:]
            near_by = bit_count(facts.hashes[one] ^ facts.hashes[other]) <= near.bits
            sets.join(*facts.alike(one[near_by], other[near_by]))

    def work(mask: np.uint64) -> int:
        table = _SortedHashes(facts, mask, MOST_PAIRS // len(masks), sets)
        table.join(near.bits)
        return table.left_out

    progress = progress or Progress()
    progress.stage("comparing fingerprints", len(masks), "rounds")
    left_out = 0
    with closing(ahead(work, masks, usable_cores())) as done:
        for found in done:
            left_out = max(left_out, found)
            progress.advance(1)
    roots = np.empty(len(order), np.int64)
    roots[order] = firsts[sets.roots[number]]
    some = np.argsort(roots, kind="stable")
    groups = groups_of(some, np.diff(roots[some]) != 0)
    alike = plural(left_out, "fingerprint is", "fingerprints are")
    note = f"near duplicates: {alike} like so many others that not all of them were compared with each other"
    return NearGroups(groups, (note,) if left_out else ())


def surplus(
    rows: NDArray[np.void], near: Nearness, pixels: NDArray[Any], progress: Progress | None = None
) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the records that can be removed, each with the one that stays for it, and notes.

    Of a group, the image with the most pixels stays, the first of equal ones; then, of a chain, the best of those that
    are not near it, and so on: whatever is removed is near one that stays.

    Args:
        rows: The fingerprint of each record.
        near: What counts as a near duplicate.
        pixels: The size of each image.
        progress: As of `near_groups`.
    """
    found, facts = near_groups(rows, near, progress), NearFacts(rows, near)
    removed: dict[int, int] = {}
    for group in range(found.groups.groups):
        rest = np.array(found.groups.listed(group))
        size = len(rest)
        rest = rest[np.argsort(-pixels[rest].astype(np.int64), kind="stable")]
        while len(rest):
            best, rest = rest[:1], rest[1:]
            gone = facts.near(best, rest) if size > 2 else np.ones(len(rest), np.bool_)  # which takes most groups long
            removed.update(dict.fromkeys(rest[gone].tolist(), int(best[0])))
            rest = rest[~gone]
    return removed, found.notes


def _masks(count: int, bits: int) -> list[np.uint64]:
    """Return the parts of a hash by which to sort all, so that a near pair has equal parts in one of them.

    Of more bands than bits may differ, some are equal: all choices of these are taken. With more of them there are more
    rounds, each with fewer pairs; which number takes the least time depends on the number of hashes.
    """

    def seconds(equal: int) -> float:
        share = 2.0 ** (-SPREAD * 64 * equal / (bits + equal)) if equal else 1.0
        return comb(bits + equal, equal) * (count * 1e-7 + count**2 / 2 * share * 1e-8)

    equal = min(range(5), key=seconds)
    bands = bits + equal
    of_band = [sum(1 << bit for bit in range(band, 64, bands)) for band in range(bands)]
    return [np.uint64(sum(chosen)) for chosen in combinations(of_band, equal)]


SPREAD = 0.8
"""Bits of information in a bit of a hash of a photo, roughly: neighboring frequencies go together."""


class NearFacts:
    """What fingerprints say of near duplicates."""

    def __init__(self, rows: NDArray[np.void], near: Nearness) -> None:
        self.hashes = np.ascontiguousarray(rows["hash"])
        self.record_of = np.arange(len(rows))
        """The record that each hash is of: after all records come their mirrored images, if they are wanted."""
        if near.mirrored:
            self.hashes = np.concatenate([self.hashes, self.hashes ^ np.uint64(mirrored_bits())])
            self.record_of = np.tile(self.record_of, 2)
        strong = np.zeros((len(rows), 8), np.uint8)
        strong[:, : rows["strong"].shape[1]] = rows["strong"]
        self._strong = strong.view("<u8")[:, 0]
        self._color = np.stack([rows[name].astype(np.float32) for name in ("red", "green", "blue")])
        self._gray = rows["brightness"].astype(np.float32)
        self._contrast = rows["contrast"].astype(np.float32)
        tint = (self._color[::2] - self._gray) / (self._gray + TINT)
        self._tint = np.where(rows["colorfulness"] > GRAY, tint, np.nan)
        self._bits, self._most = near.bits, 2 * max(near.bits, BITS) + 3

    def differing(self, one: Int64, others: Int64) -> NDArray[np.uint8]:
        """Return in how many bits the hash of one differs from those of others, or of their mirrored images."""
        firsts = range(0, len(self.hashes), max(1, len(self._strong)))
        counts = [bit_count(self.hashes[one] ^ self.hashes[first + others]) for first in firsts]
        return np.asarray(np.min(counts, axis=0), np.uint8)

    def near(self, one: Int64, others: Int64) -> NDArray[np.bool_]:
        """Return which of some records are near duplicates of one."""
        found = np.zeros(len(others), np.bool_)
        for first in range(0, len(self.hashes), max(1, len(self._strong))):
            close = np.flatnonzero(bit_count(self.hashes[one] ^ self.hashes[first + others]) <= self._bits)
            _, fine = self.alike(np.repeat(one, len(close)), first + others[close])
            found |= np.isin(others, fine)
        return found

    def alike(self, one: Int64, other: Int64) -> tuple[Int64, Int64]:
        """Return the records of those pairs of near hashes of which the rest of the fingerprints agrees, too."""
        differ = self.hashes[one] ^ self.hashes[other]
        one, other = self.record_of[one], self.record_of[other]
        strong = self._strong[one], self._strong[other]
        # what differs should be weak in both, and the same frequencies strong
        away = bit_count(differ) + bit_count(differ & (strong[0] | strong[1])) + bit_count(strong[0] ^ strong[1])
        contrast = np.sort(np.stack([self._contrast[one], self._contrast[other]]), axis=0)
        with np.errstate(invalid="ignore"):
            tint = np.abs(self._tint[:, one] - self._tint[:, other]).max(axis=0) <= MOST_TINT
        tint |= np.isnan(self._tint[0, one] + self._tint[0, other])
        fine = (away <= self._most) & tint & (contrast[1] + 2 <= MOST_CONTRAST * (contrast[0] + 2))
        fine &= np.abs(self._gray[one] - self._gray[other]) <= MOST_BRIGHTNESS
        # signs of what is blank are chance, or all zero: it must be equal
        blank = np.abs(self._color[:, one] - self._color[:, other]).max(axis=0) <= BLANK_DIFFERENCE
        fine &= blank | (contrast[0] >= BLANK)
        return one[fine], other[fine]


GRAY, TINT, MOST_TINT = 4.0, 16.0, 0.25
"""Colors are compared if both images have more colorfulness: red and blue relative to the brightness, and TINT."""
MOST_BRIGHTNESS, MOST_CONTRAST = 64.0, 2.0
BLANK, BLANK_DIFFERENCE = 4.0, 4.0


def bit_count(numbers: Hashes) -> NDArray[np.uint8]:
    """Return the number of bits of each number that are set."""
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.asarray(np.bitwise_count(numbers))
    numbers = numbers - ((numbers >> np.uint64(1)) & np.uint64(0x5555555555555555))
    numbers = (numbers & np.uint64(0x3333333333333333)) + ((numbers >> np.uint64(2)) & np.uint64(0x3333333333333333))
    numbers = (numbers + (numbers >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.asarray((numbers * np.uint64(0x0101010101010101)) >> np.uint64(56), np.uint8)


class _SortedHashes:
    """All hashes, sorted by a part of them, and those with an equal part by the set that they are in."""

    def __init__(self, facts: NearFacts, mask: np.uint64, most_pairs: int, sets: JoinedSets) -> None:
        """Sort. Of more pairs with equal parts, those are compared that are next to each other."""
        self._facts, self._sets = facts, sets
        roots = sets.roots[facts.record_of]
        by_set = np.argsort(roots, kind="stable")  # most are in order
        low = np.uint64(len(roots).bit_length())
        keys = (((facts.hashes[by_set] & mask) * MIX) >> low << low) | np.arange(len(roots), dtype=np.uint64)
        keys.sort()  # several times as fast as an order
        self._index = by_set[(keys & np.uint64((1 << int(low)) - 1)).astype(np.int64)]
        keys >>= low
        self._roots = roots[self._index].astype(np.int32)
        self._hashes = facts.hashes[self._index]
        equal = keys[1:] == keys[:-1]
        self._first = _ends(equal & (self._roots[1:] == self._roots[:-1]))
        """Each is compared with those from here on: the first of another set, if its part is equal."""
        stops = _ends(equal)
        longer = len(keys) - np.cumsum(np.bincount(stops - self._first))  # [i]: those with more than i to compare with
        most = int(np.searchsorted(np.cumsum(longer), most_pairs, side="right"))
        self.left_out = int(longer[most]) if most < len(longer) else 0
        self._stops = np.minimum(stops, self._first + most)

    def join(self, bits: int) -> None:
        """Make one set of the sets of near duplicates, whose hashes differ in no more bits."""
        some, found = np.flatnonzero(self._first < self._stops), list[tuple[Int64, Int64]]()
        for first in range(0, len(some), BLOCK):
            places = some[first : first + BLOCK]
            others = self._first[places]
            while len(places):
                near = bit_count(self._hashes[places] ^ self._hashes[others]) <= bits
                near &= self._roots[places] != self._roots[others]
                if near.any():
                    found.append((self._index[places[near]], self._index[others[near]]))
                    if sum(len(one) for one, _ in found) > BLOCK:
                        found = self._join(found)
                others = others + 1
                more = others < self._stops[places]
                places, others = places[more], others[more]
        self._join(found)

    def _join(self, found: list[tuple[Int64, Int64]]) -> list[tuple[Int64, Int64]]:
        """Join pairs, and return none that are left."""
        if found:
            one, other = (np.concatenate(part) for part in zip(*found, strict=True))
            self._sets.join(*self._facts.alike(one, other))
            if len(one) > BLOCK:  # many are alike: each further pair of one set would be one, too
                self._roots = self._sets.roots[self._facts.record_of[self._index]].astype(np.int32)
        return []


def _ends(same: NDArray[np.bool_]) -> Int64:
    """Return where the run of each ends; `same` says of all but the first whether it is in that of the one before."""
    ends = np.append(np.flatnonzero(~same) + 1, len(same) + 1)
    return np.repeat(ends, np.diff(ends, prepend=0))


class JoinedSets:
    """Sets of numbers, which several threads join."""

    def __init__(self, count: int) -> None:
        self.roots = np.arange(count)
        """The smallest number of the set of each; another array after sets were joined."""
        self._lock = Lock()

    def join(self, one: Int64, other: Int64) -> None:
        """Make one set of the sets of the two numbers of each pair."""
        with self._lock:
            while len(one := one[(apart := self.roots[one] != self.roots[other])]):
                other = other[apart]
                ends = self.roots[one], self.roots[other]
                roots = self.roots.copy()
                roots[np.maximum(*ends)] = np.minimum(*ends)
                while ((further := roots[roots]) != roots).any():
                    roots = further
                self.roots = roots
