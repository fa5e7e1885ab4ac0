"""The result of a bench: rows of figures with all their rounds, and conclusions in sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from packer.bench.measure import Figure
from packer.bench.options import Job

PACED = " + step"
"""Suffix of the name of a row whose consumer takes a step for each batch, to measure waiting."""
STILL_CACHED = 0.05
"""Share of pages in memory above which a read is not cold."""
FED, NEARLY_FED = 0.05, 0.15
"""Maximum share of waiting for a step that is fed; the second if the loader is much faster than the step."""


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
    """

    images: int
    seconds: float
    cpu_s: float
    first_batch_s: float
    peak_bytes: int
    waiting: float | None = None
    in_cache: float | None = None


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
        """Return the figure `name`: images_per_s, megabytes_per_s, cpu_s_per_1000, first_batch_s, peak_mb, waiting."""
        return Figure(tuple(self._value(name, one) for one in self.rounds))

    def _value(self, name: str, one: Measured) -> float:
        rate = one.images / one.seconds
        return {
            "images_per_s": rate,
            "megabytes_per_s": rate * self.stored_bytes / 1e6,
            "cpu_s_per_1000": 1000 * one.cpu_s / one.images,
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
        conclusion: Conclusions from the figures.
    """

    what: str
    path: str
    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
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
        return {**vars(self), "rows": rows}


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return the settings as text, without those that do not apply."""
    known = {name: value for name, value in settings.items() if value not in (None, False, "cpu")}
    shown = {name.replace("_", " "): value for name, value in known.items() if name not in ("best", "cold")}
    return ", ".join(f"{name} {_setting(value)}" for name, value in shown.items())


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def cold_notes(report: Report) -> list[str]:
    """Return notes about cold figures: files that were in memory nevertheless."""
    if not report.settings["cold"]:
        return []
    rows = [row for row in report.rows if row.rounds]
    warm = [row for row in rows if (row.in_cache or 0.0) > STILL_CACHED]
    unknown = [row for row in rows if row.in_cache is None and row.rounds[0].waiting is None]
    notes = ["cold: each measurement is one first epoch, with its files dropped from the page cache before"]
    if warm:
        most = max(row.in_cache or 0.0 for row in warm)
        names = ", ".join(row.name for row in warm)
        notes.append(
            f"NOT cold: up to {most:.0%} of the pages of {names} were in memory nevertheless: their file system "
            "ignores the request (one in memory, such as tmpfs, always does); choose a folder on a disk"
        )
    if unknown:
        names = ", ".join(row.name for row in unknown)
        notes.append(f"whether {names} are cold is unknown: the system tells only the owner of the files")
    return notes


def compared(report: Report) -> list[str]:
    """Return the conclusion of a comparison."""
    rows = [row for row in report.rows if row.rounds and not row.name.endswith(PACED)]
    folders = [row for row in rows if row.job.kind.startswith("folder")]
    packs = [row for row in rows if row.job.kind == "pack"]
    if not folders or not packs:
        return []
    folder = max(folders, key=lambda row: row.rate.median)
    lines = []
    for encoding in ("raw", "jpeg"):
        of_it = [row for row in packs if row.name.endswith(encoding)]
        if of_it:
            best = max(of_it, key=lambda row: row.rate.median)
            ratio = (best.rate / folder.rate).text()
            lines.append(f"{best.name} reads {ratio} times as many images/s as {folder.name}")
    share = report.share(folder)
    if share is not None:
        least = "reading the bytes" if "disk" in (folder.limit or "") else "bare decoding"
        lines.append(f"{folder.name} reaches {share.text(2)} of {least} of its own files: {_why(share, folder)}")
    for row in packs:
        share = report.share(row)
        if share is not None and share.highest < 0.5:
            disk = "disk" in (row.limit or "")
            rest = "the disk is not what it waits for" if disk else "small batches, or a busy machine"
            lines.append(f"{row.name} reaches {share.text(2)} of its limit: {rest}")
    for row in report.rows:
        if row.name.endswith(PACED) and row.rounds:
            step, waiting = f"with steps of {report.settings['step_ms']:g} ms", row.figure("waiting").text(2)
            lines.append(f"{step}, {row.name.removesuffix(PACED)} lets the consumer wait {waiting} of the time")
    return lines


def _why(share: Figure, row: Row) -> str:
    if share.lowest > 0.8:
        return "that is what it waits for"
    decoding = "decoding, " if "disk" in (row.limit or "") else ""
    return f"the rest is opening files, {decoding}resizing, and passing images between processes"


def swept(report: Report) -> list[str]:
    """Return the conclusion of a sweep."""
    best = max((row for row in report.rows if row.job.kind == "pack"), key=lambda row: row.rate.median)
    lines = [f"fastest: {best.name}: {best.rate.text(0)} images/s"]
    share = report.share(best)
    if share is not None:
        lines.append(f"that is {share.text(2)} of {best.limit}")
    return lines


def tuned(report: Report, best: Job) -> list[str]:
    """Return the conclusion of a search: the limit, whether it keeps up with the step, and the code to paste."""
    row = report.row(f"{'num_workers' if best.kind != 'pack' else 'threads'} {best.threads}")
    rate = row.rate
    ms = Figure(tuple(1000 * best.batch_size / one for one in rate.rounds)).text(2).replace(" (", " ms (")
    lines = [f"{row.name} is enough: {rate.text(0)} images/s, a batch of {best.batch_size} every {ms}"]
    share = report.share(row)
    if share is not None and row.limit is not None:
        resized = "x".join(map(str, report.settings.get("resized_to") or ()))
        why = _limit(share, row.limit, resized) if best.kind == "pack" else _why(share, row)
        lines.append(f"it reaches {share.text(2)} of {row.limit.removeprefix('limit: ')}: {why}")
    step = next((one for one in report.rows if one.name == "with the step"), None)
    if step is not None and step.rounds and step.rounds[0].waiting is not None:
        waiting, step_ms = step.figure("waiting"), report.settings["step_ms"]
        needed = 1000 * best.batch_size / step_ms
        keeps_up = waiting.median < FED or (waiting.median < NEARLY_FED and rate.lowest > 1.2 * needed)
        verdict = f"this machine {'can' if keeps_up else 'cannot'} feed it"
        lines.append(f"with steps of {step_ms:g} ms, {waiting.text(2)} of the time is spent waiting: {verdict}")
    return [*lines, f"paste: {paste(report, best)}"]


def _limit(share: Figure, limit: str, resized: str) -> str:
    if "disk" in limit:
        return "the disk is the limit" if share.median >= 0.7 else "the disk is not the limit; measure without --cold"
    if share.median < 0.7 and resized:
        return f"resizing is most of the rest; a pack built with --resize {resized} needs none"
    if share.median < 0.7:
        return "Python and passing batches between threads are the limit; larger batches help"
    return "memory is the limit" if "copy" in limit else "decoding is the limit; smaller images or --encode raw help"


def paste(report: Report, best: Job) -> str:
    """Return the line of Python with the best settings."""
    if best.kind != "pack":
        return f"DataLoader(dataset, batch_size={best.batch_size}, shuffle=True, num_workers={best.threads})"
    order = f"sampler=BlockShuffleSampler(pack, window={best.window})" if best.window else "shuffle=True"
    device = "" if best.device == "cpu" else f", device={best.device!r}"
    crop = report.settings.get("resized_to")
    crop = "" if crop is None else f", crop=Resize(({crop[1]}, {crop[0]}))"
    data = "pack" if best.window else repr(report.path)
    return (
        f"PackedLoader({data}, batch_size={best.batch_size}, {order}{crop}, threads={best.threads}, "
        f"prefetch={best.prefetch}{device})"
    )
