"""Which part of a pack `packer verify` looks at: what was verified longest ago, or what was changed lately.

What was verified when is kept in the user's state folder, in a file for each place of a pack: a copy of a pack is other
bytes. A shard is known by its digests, so that nothing is forgotten when a pack grows.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from packer.errors import PackerError, UsageError, option, printable
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.verify_records import Problem, Window, record_problems, text_of
from packer.model.annotation import Progress
from packer.model.annotation_columns import column
from packer.stores.cache import limit_of
from packer.system.state import StateFiles

MOST_RANGES = 1000
"""In how many ranges the records of a pack with one shard are verified, at most."""
AGE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*([hdw])", re.ASCII)
AGE_S = {"h": 3600, "d": 86400, "w": 7 * 86400}
Modified = Callable[[Sequence[FileEntry]], Mapping[str, float]]
"""When files were written, in seconds since the epoch, by name; a file of which that is not known is left out."""


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """Which part of a pack was verified, and when the rest was."""

    asked: str
    """``1/7``, or ``newer than 2026-11-20T00:00:00Z``."""
    shards: int
    """Number of shards that were verified as a whole."""
    of_shards: int
    records: int
    of_records: int
    bytes: int
    of_bytes: int
    other_files: int
    """Number of files besides shards and their indexes that were verified: lists, companions, sidecars."""
    left_shards: int
    """Number of shards that no call has yet verified."""
    left_records: int
    left_bytes: int
    since: str | None
    """Everything was verified at this time or later (UTC). None: something is left, or nothing is remembered."""
    unchecked: tuple[str, ...] = ()
    """What was left unchecked because it can only be checked as a whole."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is verified at once: a shard, some rows of it, or another file."""

    files: tuple[FileEntry, ...]
    shard: ShardEntry | None = None
    rows: range = range(0)
    """Empty: all."""

    @property
    def whole_key(self) -> str:
        """What its files are called in the memory."""
        return ":".join([self.files[0].name, *(file.sha256[:16] for file in self.files)])

    @property
    def key(self) -> str:
        """What it is called in the memory."""
        return self.whole_key if not self.rows else f"{self.whole_key}:{self.rows.start}-{self.rows.stop}"

    @property
    def records(self) -> int:
        """Number of its records."""
        if self.shard is None:
            return 0
        return len(self.rows) or self.shard.records

    @property
    def bytes(self) -> int:
        """How much is read, about."""
        if self.shard is None or not self.rows:
            return sum(file.bytes for file in self.files)
        total, records = self.shard.container.bytes, self.shard.records
        return total * self.rows.stop // records - total * self.rows.start // records


class Times:
    """When each unit of the pack at a place was last verified, in seconds since the epoch; negative if it was bad.

    Args:
        place: The real path of the pack, or where its store is.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._name = hashlib.sha256(os.fsencode(place)).hexdigest()[:32]
        self._files = StateFiles("verified", "the times of verifications")

    def read(self) -> dict[str, float]:
        """Return the time of each unit. Raise StorageError if they cannot be kept."""
        with self._files.changing():  # hours of reading must not end with a folder that cannot be written
            return self._read()

    def _read(self) -> dict[str, float]:
        def parse(content: Any) -> dict[str, float]:
            return {str(key): float(found) for key, found in content["verified"].items()}

        now = time.time()
        # a clock that was ahead must not keep a shard from being verified for years
        times: dict[str, float] = self._files.read(self._name, parse, {})
        return {key: found for key, found in times.items() if abs(found) <= now}

    def add(self, good: Collection[str], bad: Collection[str], known: Collection[str]) -> dict[str, float]:
        """Remember units as verified just now, and return the times of all.

        Args:
            good: The keys of those that were found good.
            bad: The keys of others.
            known: The keys of all units of the pack as it is; others are forgotten.

        Raises:
            StorageError: They cannot be kept.
        """
        with self._files.changing():
            now = int(time.time() * 1000) / 1000  # never ahead of the clock, as a rounded one can be
            times = self._read() | dict.fromkeys(good, now) | dict.fromkeys(bad, -now)
            times = {key: found for key, found in times.items() if key in known}
            self._files.write(self._name, {"pack": printable(self._place), "verified": times})
        return times


@dataclass
class Portion:
    """What of a pack is to be verified, and what was found good of it."""

    manifest: Manifest
    units: Sequence[Unit]
    """All of the pack."""
    chosen: Sequence[Unit]
    asked: str = ""
    """Empty: everything."""
    times: Times | None = None
    good: set[str] = field(default_factory=set)
    """The names of files, and the keys of rows, that were found good."""
    of_rows: set[Problem] = field(default_factory=set)
    """What is wrong with the bytes of single rows."""
    keys: Any = None
    """Those of the shard of which some rows are verified."""

    @cached_property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards of which something is verified."""
        return tuple({unit.shard.index.name: unit.shard for unit in self.chosen if unit.shard is not None}.values())

    @cached_property
    def rows(self) -> list[Unit]:
        """The rows to verify of the only shard; empty: all."""
        return [unit for unit in self.chosen if unit.rows]

    @cached_property
    def files(self) -> tuple[FileEntry, ...]:
        """The files to read."""
        return tuple({file.name: file for unit in self.chosen for file in unit.files}.values())

    @cached_property
    def others(self) -> tuple[FileEntry, ...]:
        """Those that are no shard and no index."""
        return tuple(file for unit in self.chosen if unit.shard is None for file in unit.files)

    @cached_property
    def left_out(self) -> tuple[FileEntry, ...]:
        """The files of which nothing is read."""
        names = {file.name for file in self.files}
        return tuple({f.name: f for unit in self.units for f in unit.files if f.name not in names}.values())

    @property
    def bytes(self) -> int:
        """How much is read."""
        return self._bytes(self.chosen)

    def _bytes(self, units: Sequence[Unit]) -> int:
        # the index of a shard is needed for any of its rows
        return sum(unit.bytes for unit in units) + sum(unit.files[1].bytes for unit in self.rows[:1])

    @property
    def records(self) -> int:
        """Number of records that are verified."""
        return sum(unit.records for unit in self.chosen)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Remember what was found good even if the rest is not reached."""
        try:
            yield
        except BaseException:
            if self.times is not None:
                with suppress(PackerError):
                    self._remember(self.times, is_whole=False)
            raise

    def found(self, keys: Sequence[str], problems: Iterable[Problem]) -> list[Problem]:
        """Take note of what was found good if there are no problems with it, and return the problems.

        Args:
            keys: The names of files, or the keys of rows.
            problems: What is wrong with them.
        """
        listed = list(problems)
        self.good.update(() if listed else keys)
        return listed

    def _runs(self) -> list[list[Unit]]:
        """Return the rows to check, those that follow each other together."""
        found: list[list[Unit]] = []
        for unit in self.rows:
            if found and found[-1][-1].rows.stop == unit.rows.start:
                found[-1].append(unit)
            else:
                found.append([unit])
        return found

    def record_problems(self, container: str | Window, table: Any, name: str, progress: Progress) -> Iterator[Problem]:
        """Compare the records to check of a shard with their checksums.

        Args:
            container: The path of its container, or what reads it.
            table: Its index.
            name: The name of its container.
            progress: Receives the bytes, if it is checked in part.
        """
        self.keys = keys = column(table, "key")

        def named(rows: range, checked: Iterator[str | None]) -> list[Problem]:
            found = zip(rows, checked, strict=False)  # the rows first: nothing is taken that is not theirs
            return [Problem(name, text_of(keys[row]), problem) for row, problem in found if problem is not None]

        if not self.rows:
            yield from named(range(len(table)), record_problems(container, table))
        for units in self._runs():
            checked = record_problems(container, table, range(units[0].rows.start, units[-1].rows.stop))
            for unit in units:
                bad = named(unit.rows, checked)
                self.of_rows.update(self.found([unit.key], bad))
                progress.advance(unit.bytes)
                yield from bad

    def finish(self, problems: Sequence[Problem]) -> VerifiedPart | None:
        """Remember what was verified, and return which part that was; None if it was everything.

        Args:
            problems: All that were found.

        Raises:
            StorageError: It cannot be kept.
        """
        if not self.asked:
            return None
        self.good -= {problem.file for problem in problems}
        names = {file.name for unit in self.rows for file in unit.files}
        bad = {one.record for one in problems if one.file in names and one not in self.of_rows}
        for unit in self.rows if bad else ():
            if None in bad or any(text_of(self.keys[row]) in bad for row in unit.rows):
                self.good.discard(unit.key)
        times = {} if self.times is None else self._remember(self.times)
        known = [abs(_last(unit, times)) for unit in self.units]
        left = [unit for unit, found in zip(self.units, known, strict=True) if self.times is not None and not found]
        whole = [unit for unit in self.chosen if unit.shard is not None and not unit.rows]
        first = self.manifest.shards[0].container.name
        return VerifiedPart(
            self.asked,
            len(whole), len(self.manifest.shards), self.records, self.manifest.records,
            self.bytes, self._bytes(self.units), len(self.others),
            sum(unit.shard is not None and not unit.rows for unit in left),
            sum(unit.records for unit in left), sum(unit.bytes for unit in left),
            None if left or self.times is None else utc_text(min(known)),
            (f"the digest of {first}, and what lies between its records",) if self.rows else (),
        )  # fmt: skip

    def _remember(self, times: Times, is_whole: bool = True) -> dict[str, float]:
        good = {u.key for u in self.chosen if u.key in self.good or {file.name for file in u.files} <= self.good}
        bad = {unit.key for unit in self.chosen} - good if is_whole else set[str]()
        return times.add(good, bad, {key for unit in self.units for key in (unit.key, unit.whole_key)})


def portion_of(
    manifest: Manifest, beside: Sequence[FileEntry], place: str, subset: str | None, newer_than: str | None,
    modified: Modified,
) -> Portion:  # fmt: skip
    """Return what of a pack is to be verified.

    Args:
        manifest: Its manifest.
        beside: Files beside those of the manifest.
        place: Where it is: its real path, or that of its store.
        subset: A part of it, ``1/7``, ``5%`` or ``10GB``: the shards that were verified longest ago.
        newer_than: An age, ``7d``, or a date: the files that were written since.
        modified: Says when files were written.

    Raises:
        UsageError: A value is wrong, or both are given.
        StorageError: What was verified when cannot be kept.
    """
    whole = whole_of(manifest, beside)
    units = whole.units
    if subset is not None and newer_than is not None:
        raise UsageError(option("subset"), f"excludes {option('newer_than')}", "leave out one of them")
    if newer_than is not None:
        since_s = time_of(newer_than, time.time())
        found = modified([file for unit in units for file in unit.files])
        # what cannot be dated may be new
        new = [unit for unit in units if any(found.get(file.name, since_s) >= since_s for file in unit.files)]
        return Portion(manifest, units, new, f"newer than {utc_text(since_s)}")
    if subset is None:
        return whole
    if len(manifest.shards) == 1 and wanted_of(subset, total := _weight(units)) < total:
        units = [*_ranges(units[0]), *units[1:]]
    wanted, times = wanted_of(subset, _weight(units)), Times(place)
    return Portion(manifest, units, _oldest(units, times.read(), wanted), subset.strip(), times)


def whole_of(manifest: Manifest, beside: Sequence[FileEntry] = ()) -> Portion:
    """Return all of a pack, and of the files `beside` it."""
    others = (*manifest.companions.values(), *manifest.lists.values(), *beside)
    shards = [Unit((shard.container, shard.index), shard) for shard in manifest.shards]
    units = [*shards, *(Unit((file,)) for file in others)]
    return Portion(manifest, units, units)


def _ranges(unit: Unit) -> list[Unit]:
    """Return the only shard of a pack in ranges of rows."""
    assert unit.shard is not None
    records = unit.shard.records
    count = min(MOST_RANGES, records)
    starts = [records * number // count for number in range(count + 1)]
    rows = (range(start, stop) for start, stop in pairwise(starts))
    return [Unit(unit.files, unit.shard, one) for one in rows]


def _weight(units: Sequence[Unit]) -> int:
    return sum(max(1, unit.bytes) for unit in units)  # an empty file needs its turn, too


def _last(unit: Unit, times: Mapping[str, float]) -> float:
    """Return when a unit was verified, as `Times` has it; 0 for never."""
    # a shard that was bad as a whole says nothing of a record
    return max(times.get(unit.key, 0.0), max(0.0, times.get(unit.whole_key, 0.0)) if unit.rows else 0.0, key=abs)


def _oldest(units: Sequence[Unit], times: Mapping[str, float], wanted: Fraction) -> list[Unit]:
    """Return the units that were verified longest ago, as many as are wanted, in the order of the pack.

    Those that were bad come along each time, so that every call says so, and the others still have their turn.
    """
    last = [_last(unit, times) for unit in units]
    taken, total = [number for number, found in enumerate(last) if found < 0], 0
    for number in sorted((number for number, found in enumerate(last) if found >= 0), key=last.__getitem__):
        if total >= wanted:
            break
        taken.append(number)
        total += _weight([units[number]])
    return [units[number] for number in sorted(taken)]


def wanted_of(subset: str, total: int) -> Fraction:
    """Return how many bytes of `total` a part is: ``1/7``, ``5%`` or ``10GB``. Raise UsageError if it is none."""
    text = subset.strip()
    if match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII):
        if match[1] == "1" and int(match[2]):
            return Fraction(total, int(match[2]))
        step = f"write 1/{match[2]}: each call takes the part that was verified longest ago"
        raise UsageError(option("subset"), f"must be one part, such as 1/7, got {printable(text)}", step)
    if (match := re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", text, re.ASCII)) and 0 < Fraction(match[1]) <= 100:
        return total * Fraction(match[1]) / 100
    with suppress(UsageError):
        if text[-1:].isalpha() and (size := limit_of(text)):
            return Fraction(size)
    problem = f"must be a part such as 1/7 or 5%, or a size such as 10GB, got {printable(text)}"
    raise UsageError(option("subset"), problem, "write 1/7 to verify all in seven calls")


def time_of(text: str, now_s: float) -> float:
    """Return an age, ``7d``, or a date as seconds since the epoch. Raise UsageError if it is neither."""
    if match := AGE.fullmatch(text.strip()):
        return max(0.0, now_s - float(match[1]) * AGE_S[match[2]])
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(re.sub("Z$", "+00:00", text.strip())).timestamp()
    problem = f"must be an age such as 12h, 7d or 2w, or a date such as 2026-11-20, got {printable(text)}"
    raise UsageError(option("newer_than"), problem, "write 7d for what was written in the last seven days")


def utc_text(time_s: float) -> str:
    """Return a time as text: ``2026-11-20T14:05:00Z``."""
    return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
