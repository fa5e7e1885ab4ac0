"""The result of a bench: rows of figures with all their rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from packer.bench.measure import Figure
from packer.bench.options import Job

DATASET = "PackedDataset, "
"""Prefix of the name of a row: a pack in a torch DataLoader; its encoding follows."""
PACED = " + step"
"""Suffix of the name of a row whose consumer takes a step for each batch, to measure waiting."""
YOURS, PERFECT = "your loader", "perfect loader"
"""Names of rows: a loader of the user's, and one that has its batches in memory."""
CROPS, INDEXED = "random crops", "random crops, indexed"
"""Names of rows: crops of the JPEGs of a sample, without and with an index of them."""


@dataclass(frozen=True)
class Batch:
    """A batch of a loader of the user's.

    Attributes:
        images: Number of images.
        size: Their (width, height); None if it is unknown.
        text: Its kind and shape.
    """

    images: int
    size: tuple[int, int] | None
    text: str


@dataclass(frozen=True)
class Measured:
    """One measurement: some epochs of one kind of reading, in one process.

    Attributes:
        images: Number of images read.
        seconds: Duration.
        cpu_s: Processor time of all processes.
        first_batch_s: From creating the loader to its first batch.
        peak_bytes: Peak of anonymous and shared memory, of worker processes too, without the page cache.
        waiting: Share of the time that the consumer waited, if it also did something else.
        in_cache: Share of the files' pages in memory before a cold read; None if warm or unknown.
        others: Cores that other processes used meanwhile; None if the system does not say.
        epochs: Times that a loader of the user's was iterated from its beginning.
        batch: Its first batch.
    """

    images: int
    seconds: float
    cpu_s: float
    first_batch_s: float
    peak_bytes: int
    waiting: float | None = None
    in_cache: float | None = None
    others: float | None = None
    epochs: int | None = None
    batch: Batch | None = None


@dataclass
class Row:
    """One kind of reading.

    Attributes:
        name: Name in the report.
        job: The measurement.
        stored_bytes: Bytes read per image: of its file, or of its record.
        limit: Name of the row that is its limit.
        disk_bytes: Size of all its images on disk.
        build_s: Duration of the builds.
        rounds: All measurements.
        left_out: Why it was not measured.
    """

    name: str
    job: Job
    stored_bytes: float
    limit: str | None = None
    disk_bytes: int | None = None
    build_s: Figure | None = None
    rounds: list[Measured] = field(default_factory=list)
    left_out: str = ""

    @property
    def in_cache(self) -> float | None:
        """Median share of the files' pages in memory before a cold read; None if warm or unknown."""
        known = [one.in_cache for one in self.rounds if one.in_cache is not None]
        return statistics.median(known) if known else None

    @property
    def rate(self) -> Figure:
        """Images/s."""
        return self.figure("images_per_s")

    def figure(self, name: str) -> Figure:
        """Return a figure over all rounds.

        Args:
            name: images_per_s, megabytes_per_s, cpu_s_per_1000, cores, first_batch_s, peak_mb or waiting.
        """
        return Figure(tuple(self._value(name, one) for one in self.rounds))

    def _value(self, name: str, one: Measured) -> float:
        rate = one.images / one.seconds
        return {
            "images_per_s": rate,
            "megabytes_per_s": rate * self.stored_bytes / 1e6,
            "cpu_s_per_1000": 1000 * one.cpu_s / one.images,
            "cores": one.cpu_s / one.seconds,
            "first_batch_s": one.first_batch_s,
            "peak_mb": one.peak_bytes / 1e6,
            "waiting": one.waiting or 0.0,
        }[name]

    def facts(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        settings = {name: getattr(self.job, name) for name in ("kind", "threads", "batch_size", "prefetch", "window")}
        facts = {**vars(self), "settings": settings, "rounds": [asdict(one) for one in self.rounds]}
        del facts["job"]
        return {**facts, "build_s": None if self.build_s is None else asdict(self.build_s)}


@dataclass
class Report:
    """A whole bench.

    Attributes:
        what: ``compare``, ``sweep`` or ``tune``.
        path: The folder or pack.
        command: The command that repeats it.
        machine: See `options.machine`.
        settings: Settings of all rows.
        rows: The rows, in order.
        notes: Limitations of the figures.
        reasons: Why the figures are unreliable.
        answer: The first line: what to do, or that the figures are unreliable.
        conclusion: More conclusions from the figures.
    """

    what: str
    path: str
    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    answer: str = ""
    conclusion: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        """Return the row `name`."""
        return next(row for row in self.rows if row.name == name)

    def share(self, row: Row) -> Figure | None:
        """Return the images/s of `row` divided by the best round of its limit, which other work affects least."""
        if row.limit is None or not row.rounds or not self.row(row.limit).rounds:
            return None
        most = self.row(row.limit).rate.highest
        return Figure(tuple(rate / most for rate in row.rate.rounds))

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON values, with every round."""
        rows = []
        for row in self.rows:
            share = self.share(row)
            rows.append({**row.facts(), "share_of_limit": None if share is None else list(share.rounds)})
        return {**vars(self), "reliable": not self.reasons, "rows": rows}


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return the settings as text, without those that do not apply."""
    known = {name: value for name, value in settings.items() if value not in (None, False, "cpu")}
    shown = {name.replace("_", " "): value for name, value in known.items() if name not in ("best", "cold")}
    return ", ".join(f"{name} {_setting(value)}" for name, value in shown.items())


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
