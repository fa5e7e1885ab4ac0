"""What a bench has shown, in plain words; every number with its spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer.bench.job import Job
from packer.bench.result import PACED, Figure, Report, Row

FED, NEARLY_FED = 0.05, 0.15
"""Shares of waiting up to which a step counts as fed: the second where the loader is faster than the step by far."""


def spread(figure: Figure, digits: int = 1) -> str:
    """4.2 (4.0 to 4.4)."""
    return f"{figure.median:,.{digits}f} ({figure.lowest:,.{digits}f} to {figure.highest:,.{digits}f})"


def ratio(row: Row, other: Row) -> Figure:
    """Images/s of a row by those of another, round by round."""
    pairs = zip(row.figure("images_per_s").rounds, other.figure("images_per_s").rounds, strict=True)
    return Figure(tuple(one / two for one, two in pairs))


STILL_CACHED = 0.05
"""Share of pages in memory from which a read is not cold."""


def cold_notes(report: Report) -> list[str]:
    """What there is to say about files that should not have been in memory."""
    if not report.settings["cold"]:
        return []
    rows = [row for row in report.rows if row.rounds]
    warm = [row for row in rows if (row.in_cache or 0.0) > STILL_CACHED]
    unknown = [row for row in rows if row.in_cache is None and row.rounds[0].waiting is None]
    notes = ["cold: each measurement is one first epoch, its files dropped from the page cache before"]
    if warm:
        most = max(row.in_cache or 0.0 for row in warm)
        names = ", ".join(row.name for row in warm)
        notes.append(
            f"NOT cold: up to {most:.0%} of the pages of {names} were in memory all the same: their file system "
            "ignores the request (one in memory, such as tmpfs, has no other place); name a folder on a disk"
        )
    if unknown:
        names = ", ".join(row.name for row in unknown)
        notes.append(f"whether {names} are cold is unknown: the system tells only the owner of the files")
    return notes


def compared(report: Report) -> list[str]:
    """The conclusion of a comparison."""
    rows = [row for row in report.rows if row.rounds and not row.name.endswith(PACED)]
    folders = [row for row in rows if row.settings["kind"].startswith("folder")]
    packs = [row for row in rows if row.settings["kind"] == "pack"]
    if not folders or not packs:
        return []
    folder = max(folders, key=lambda row: row.figure("images_per_s").median)
    lines = []
    for encoding in ("raw", "jpeg"):
        of_it = [row for row in packs if row.name.endswith(encoding)]
        if of_it:
            best = max(of_it, key=lambda row: row.figure("images_per_s").median)
            lines.append(f"{best.name} reads {spread(ratio(best, folder))} times as many images/s as {folder.name}")
    share = report.share(folder)
    if share is not None:
        held = f"{folder.name} reaches {spread(share, 2)} of {_least(folder)} of its own files"
        lines.append(f"{held}: {_why(share, folder)}")
    for row in packs:
        share = report.share(row)
        if share is not None and share.highest < 0.5:
            lines.append(f"{row.name} reaches {spread(share, 2)} of its limit: {_else(row)}")
    for row in report.rows:
        if row.name.endswith(PACED) and row.rounds:
            step = f"with steps of {report.settings['step_ms']:g} ms"
            waiting = spread(row.figure("waiting"), 2)
            lines.append(f"{step}, {row.name.removesuffix(PACED)} lets the consumer wait {waiting} of the time")
    return lines


def _least(row: Row) -> str:
    return "reading the bytes" if "disk" in (row.limit or "") else "bare decoding"


def _else(row: Row) -> str:
    if "disk" not in (row.limit or ""):
        return "small batches, or a busy machine"
    return "the disk is not what it waits for"


def _why(share: Figure, row: Row) -> str:
    if share.lowest > 0.8:
        return "that is what it waits for"
    decoding = "decoding, " if "disk" in (row.limit or "") else ""
    return f"the rest is opening files, {decoding}resizing, and handing images from process to process"


def settings_text(settings: Mapping[str, Any]) -> str:
    """What was measured, for people: settings that say nothing are left out."""
    known = {name: value for name, value in settings.items() if value not in (None, False, "cpu")}
    printable = {name.replace("_", " "): value for name, value in known.items() if name not in ("best", "cold")}
    return ", ".join(f"{name} {_setting(value)}" for name, value in printable.items())


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def swept(report: Report) -> list[str]:
    """The conclusion of a sweep."""
    rows = [row for row in report.rows if row.settings["kind"] == "pack"]
    best = max(rows, key=lambda row: row.figure("images_per_s").median)
    lines = [f"fastest: {best.name}: {spread(best.figure('images_per_s'), 0)} images/s"]
    share = report.share(best)
    if share is not None:
        lines.append(f"that is {spread(share, 2)} of {best.limit}")
    return lines


def tuned(report: Report, best: Job) -> list[str]:
    """The conclusion of a search: the limit, whether it keeps up, and the line to paste."""
    lines = []
    kind = "num_workers" if best.kind != "pack" else "threads"
    row = report.row(f"{kind} {best.threads}")
    rate = row.figure("images_per_s")
    every = f"a batch of {best.batch_size} every {_ms(rate, best)}"
    lines.append(f"{row.name} is enough: {spread(rate, 0)} images/s, {every}")
    share = report.share(row)
    if share is not None and row.limit is not None:
        limit = row.limit.removeprefix("limit: ")
        held = f"it reaches {spread(share, 2)} of {limit}"
        resized = "x".join(map(str, report.settings.get("resized_to") or ()))
        lines.append(f"{held}: {_limit(share, row.limit, resized) if best.kind == 'pack' else _why(share, row)}")
    step = [one for one in report.rows if one.name == "with the step"]
    if step and step[0].rounds and step[0].rounds[0].waiting is not None:
        waiting = step[0].figure("waiting")
        needed = 1000 * best.batch_size / report.settings["step_ms"]
        keeps_up = waiting.median < FED or (waiting.median < NEARLY_FED and rate.lowest > 1.2 * needed)
        verdict = "this machine can feed it" if keeps_up else "this machine cannot feed it"
        step_ms = report.settings["step_ms"]
        lines.append(f"with steps of {step_ms:g} ms, {spread(waiting, 2)} of the time is spent waiting: {verdict}")
    lines.append(f"paste: {paste(report, best)}")
    return lines


def _ms(rate: Figure, best: Job) -> str:
    return f"{1000 * best.batch_size / rate.median:.2f} ms ({_at(rate.highest, best)} to {_at(rate.lowest, best)})"


def _at(rate: float, best: Job) -> str:
    return f"{1000 * best.batch_size / rate:.2f}"


def _limit(share: Figure, limit: str, resized: str) -> str:
    if "disk" in limit:
        return "the disk is the limit" if share.median >= 0.7 else "the disk is not the limit; measure without --cold"
    if share.median < 0.7 and resized:
        return f"resizing is most of the rest; a pack built with --resize {resized} has done it"
    if share.median < 0.7:
        return "Python and the handing over of batches are the limit; larger batches help"
    return "memory is the limit" if "copy" in limit else "decoding is the limit; smaller images or --encode raw help"


def paste(report: Report, best: Job) -> str:
    """The line of Python with the best settings."""
    if best.kind != "pack":
        return f"DataLoader(dataset, batch_size={best.batch_size}, shuffle=True, num_workers={best.threads})"
    order = "shuffle=True"
    if best.window:
        order = f"sampler=BlockShuffleSampler(pack, window={best.window})"
    device = "" if best.device == "cpu" else f", device={best.device!r}"
    crop = report.settings.get("resized_to")
    crop = "" if crop is None else f", crop=Resize(({crop[1]}, {crop[0]}))"
    data = "pack" if best.window else repr(report.path)
    return (
        f"PackedLoader({data}, batch_size={best.batch_size}, {order}{crop}, threads={best.threads}, "
        f"prefetch={best.prefetch}{device})"
    )
