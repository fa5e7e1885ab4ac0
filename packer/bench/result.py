"""What a bench has found: rows of figures, each with all its rounds."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

PACED = " + step"
"""Behind the name of a row whose consumer takes a step for each batch: what it shows is the waiting."""


@dataclass(frozen=True)
class Measured:
    """One measurement: some epochs of one kind of reading, in one process."""

    images: int
    seconds: float
    cpu_s: float
    """Processor time of all processes that take part."""
    first_batch_s: float
    """From the making of the loader to its first batch."""
    peak_bytes: int
    """Memory of its own at most: anonymous and shared, not the page cache; those of worker processes are in it."""
    waiting: float | None = None
    """Share of the time that the consumer has waited, where it also did something else."""
    in_cache: float | None = None
    """Share of the files' pages that were in memory before a cold read; None: the read was warm, or nobody can say."""


@dataclass(frozen=True)
class Figure:
    """A number with its spread over the rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of all rounds."""
        return statistics.median(self.rounds)

    @property
    def lowest(self) -> float:
        """Of all rounds."""
        return min(self.rounds)

    @property
    def highest(self) -> float:
        """Of all rounds."""
        return max(self.rounds)


@dataclass
class Row:
    """One kind of reading, and its rounds."""

    name: str
    settings: dict[str, Any]
    """What makes it: kind, container, encoding, threads, workers, batch_size."""
    stored_bytes: float
    """Bytes that are read for an image: of its file, or of its record."""
    limit: str | None = None
    """The name of the row that is its limit."""
    disk_bytes: int | None = None
    """Of all its images on disk."""
    build_s: Figure | None = None
    rounds: list[Measured] = field(default_factory=list)
    left_out: str = ""
    """Why it was not measured."""

    @property
    def in_cache(self) -> float | None:
        """Median share of the files' pages that were in memory before a cold read; None: warm, or nobody can say."""
        known = [one.in_cache for one in self.rounds if one.in_cache is not None]
        return statistics.median(known) if known else None

    def figure(self, name: str) -> Figure:
        """images_per_s, megabytes_per_s, cpu_s_per_1000, first_batch_s, peak_mb or waiting."""
        return Figure(tuple(self._value(name, one) for one in self.rounds))

    def _value(self, name: str, one: Measured) -> float:
        rate = one.images / one.seconds
        values = {
            "images_per_s": rate,
            "megabytes_per_s": rate * self.stored_bytes / 1e6,
            "cpu_s_per_1000": 1000 * one.cpu_s / one.images,
            "first_batch_s": one.first_batch_s,
            "peak_mb": one.peak_bytes / 1e6,
            "waiting": one.waiting or 0.0,
        }
        return values[name]


@dataclass
class Report:
    """A whole bench."""

    what: str
    """compare, sweep or tune."""
    path: str
    command: str
    """The line that repeats it."""
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    conclusion: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)

    def share(self, row: Row) -> Figure | None:
        """A row's images/s in each round by the best round of its limit: other work on the machine lowers no limit."""
        if row.limit is None or not row.rounds:
            return None
        limit = self.row(row.limit)
        if not limit.rounds:
            return None
        most = limit.figure("images_per_s").highest
        return Figure(tuple(rate / most for rate in row.figure("images_per_s").rounds))

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values, every round with it."""
        rows = []
        for row in self.rows:
            share = self.share(row)
            rows.append({**asdict(row), "share_of_limit": None if share is None else list(share.rounds)})
        return {**asdict(self), "rows": rows}
