"""Conclusions from the figures of a bench, in sentences: the answer in the first line, or that there is none."""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Iterable

from packer.bench.measure import Figure
from packer.bench.report import CROPS, DATASET, INDEXED, PACED, PERFECT, YOURS, Job, Report, Row
from packer.errors import plural

MOST_SHARE = 1.15
"""Share of its limit above which a row is impossible: the limit was slowed down by something else."""
MOST_DIFFERENCE = 1.3
"""Ratio of the same work in several containers: 1.1 on an idle machine."""
MOST_SPREAD = 1.6
"""Ratio of the highest and the lowest round: 1.1 to 1.4 on an idle machine."""
TRIMMED_ROUNDS = 5
"""Rounds from which on the highest and the lowest do not count: one bad round does not move a median."""
MOST_TAKEN = 0.2
"""Share of the cores that a measurement needs, but that others used."""
MOST_CROWDED = 0.25
"""Share of measurements in which others may have used these cores."""
WHAT_TO_DO = "measure again while nothing else runs; more --rounds and --seconds help"


def reasons(report: Report) -> list[str]:
    """Return why the figures are unreliable; empty if they are not."""
    rows = [row for row in report.rows if row.rounds]
    return [*_crowded_notes(report, rows), *_above_limits(report, rows), *_unequal(report, rows), *_unsteady(rows)]


def _crowded_notes(report: Report, rows: list[Row]) -> Iterable[str]:
    """Yield a reason if other processes used cores that were needed."""
    cores, usable = os.cpu_count() or 1, report.machine["cores"]
    known = [(one.others, min(max(1, row.job.threads), usable)) for row in rows for one in row.rounds]
    others = [(used, needed) for used, needed in known if used is not None]
    if not others:  # the system does not say
        load = report.machine["load_before"]
        if load is not None and load > usable:
            yield f"the load average was {load:g} on {usable} cores before"
        return
    crowded = [used for used, needed in others if cores - used < (1 - MOST_TAKEN) * needed]
    if len(crowded) > MOST_CROWDED * len(others):
        yield f"other processes used {statistics.median(crowded):.1f} of {cores} cores"


def _above_limits(report: Report, rows: list[Row]) -> Iterable[str]:
    shares = [(row.name, share.median) for row in rows if (share := report.share(row)) is not None]
    return _worst([(share, f"{name} reaches {share:.2f} of its limit") for name, share in shares if share > MOST_SHARE])


def _unequal(report: Report, rows: list[Row]) -> Iterable[str]:
    """Yield the encodings whose containers differ, although the same bytes are read by the same code."""
    if report.what != "compare" or report.settings["cold"]:  # a disk may treat files differently
        return
    for encoding in ("raw", "jpeg"):
        rates = [
            (row.rate.median, row.name)
            for row in rows
            if row.job.kind == "pack" and row.name.endswith(f", {encoding}") and not row.name.endswith(PACED)
        ]
        if len(rates) > 1 and max(rates)[0] > MOST_DIFFERENCE * min(rates)[0]:
            (most, fastest), (least, slowest) = max(rates), min(rates)
            yield f"{fastest} reads {most / least:.1f} times as fast as {slowest}, with the same bytes and code"


def _unsteady(rows: list[Row]) -> Iterable[str]:
    found = []
    for row in rows:
        rounds = sorted(row.rate.rounds)
        if len(rounds) >= TRIMMED_ROUNDS:
            rounds = rounds[1:-1]
        if not row.name.startswith("limit") and rounds[-1] > MOST_SPREAD * rounds[0]:  # limits count by their best
            ratio = rounds[-1] / rounds[0]
            found.append((ratio, f"{row.name} differs by a factor of {ratio:.1f} between rounds"))
    return _worst(found)


def _worst(found: list[tuple[float, str]]) -> list[str]:
    """Return the worst of the same kind as one reason."""
    if not found:
        return []
    others = f" (and {plural(len(found) - 1, 'more row')})" if len(found) > 1 else ""
    return [max(found)[1] + others]


STILL_CACHED = 0.05
"""Share of pages in memory above which a read is not cold."""
FED, NEARLY_FED = 0.05, 0.15
PAYS = 1.05
"""Maximum share of waiting for a step that is fed; the second if the loader is much faster than the step."""
GAIN = 1.1
"""Least ratio that is worth a pack."""
SMALLER = 2.0
"""Least ratio of the sizes of raw and JPEG for which JPEG is recommended, although raw is faster."""
BUSY_CORES = 0.85
"""Share of the cores above which a loader waits for the processor."""


def conclude(report: Report, best: Job | None = None) -> None:
    """Add answer, conclusion, reasons and notes to a report; `best` is the result of a search."""
    report.notes += cold_notes(report)
    report.reasons = reasons(report)
    if best is not None:
        lines = tuned(report, best)
    else:
        lines = {"compare": compared, "sweep": swept, "loader": compared}[report.what](report)
    if report.reasons:
        report.answer = f"UNRELIABLE: {'; '.join(report.reasons)}; {WHAT_TO_DO}"
        report.conclusion = lines if best is not None else []  # a search has found settings nevertheless
    elif lines:
        report.answer, *report.conclusion = lines


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


def together(rows: list[Row]) -> Figure:
    """Return the images/s of containers that are read by the same code: round by round, their median."""
    return Figure(tuple(map(statistics.median, zip(*(row.rate.rounds for row in rows), strict=True))))


def packs_of(report: Report) -> dict[str, list[Row]]:
    """Return the rows of packs by encoding, without those with a step."""
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.rounds and row.job.kind == "pack" and not row.name.endswith(PACED):
            found.setdefault(row.name.rpartition(", ")[2], []).append(row)
    return found


def feeds(report: Report, name: str) -> bool | None:
    """Return whether the row `name` keeps up with the training step; None if that was not measured."""
    paced = next((row for row in report.rows if row.name == f"{name}{PACED}" and row.rounds), None)
    if paced is None:
        return None
    waiting = paced.figure("waiting").median
    alone = report.row(name)
    needed = 1000 * alone.job.batch_size / report.settings["step_ms"]
    return waiting < FED or (waiting < NEARLY_FED and alone.rate.lowest > 1.2 * needed)


def compared(report: Report) -> list[str]:
    """Return the answer of a comparison, and its details."""
    rows = [row for row in report.rows if row.rounds and not row.name.endswith(PACED)]
    own = next((row for row in rows if row.name == YOURS), None)
    folders = [row for row in rows if row.job.kind.startswith("folder")]
    base = own or max(folders, key=lambda row: row.rate.median, default=None)
    packs = packs_of(report)
    if base is None or (not packs and own is None):
        return []
    lines = ["; ".join([*(_own_answer(report, own) if own else ()), *_pack_answer(report, base, packs)])]
    lines[0] = lines[0][0].upper() + lines[0][1:]
    for encoding, of_it in packs.items():
        spread = f" ({', '.join(row.name.partition(', ')[0] for row in of_it)})" if len(of_it) > 1 else ""
        ratio = (together(of_it) / base.rate).text()
        lines.append(f"{encoding} pack{'s' * (len(of_it) > 1)}{spread}: {ratio} times the images/s of {base.name}")
    for row in rows:
        if row.job.kind == "dataset":
            packed = packs[row.name.removeprefix(DATASET)][0]
            workers = f"{row.job.threads or 'no'} worker{'s' * (row.job.threads != 1)}"
            ratio = (row.rate / packed.rate).text(2)
            lines.append(f"PackedDataset in a DataLoader with {workers}: {ratio} times the images/s of {packed.name}")
    if own is not None:
        lines += _own_details(report, own)
    for folder in folders if own is None else ():
        share = report.share(folder)
        if share is not None and folder is base:
            least = "reading the bytes" if "disk" in (folder.limit or "") else "bare decoding"
            lines.append(f"{folder.name} reaches {share.text(2)} of {least} of its own files: {_why(share, folder)}")
    for row in (row for of_it in packs.values() for row in of_it):
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


def _own_answer(report: Report, own: Row) -> list[str]:
    """Return whether the user's loader is fast enough, as far as that is known."""
    fed, step_ms = feeds(report, YOURS), report.settings["step_ms"]
    if fed is None:
        return [f"your loader: {own.rate.median:,.0f} images/s, enough for a step of {_step_ms(own)} or more"]
    if fed:
        return [f"your loader is enough for a step of {step_ms:g} ms"]
    waiting = report.row(f"{YOURS}{PACED}").figure("waiting").median
    gain = (report.row(f"{PERFECT}{PACED}").rate / report.row(f"{YOURS}{PACED}").rate).median
    return [
        f"your loader is too slow for a step of {step_ms:g} ms: training waits {waiting:.0%} of the time, and would "
        f"be {_times(gain)} as fast with a perfect loader"
    ]


def _pack_answer(report: Report, base: Row, packs: dict[str, list[Row]]) -> list[str]:
    """Return which encoding to pack, how much faster it is than `base`, how large, and whether it is enough."""
    if not packs:
        return []
    of = "your loader" if base.name == YOURS else "your folder"
    ratios = {encoding: (together(rows) / base.rate).median for encoding, rows in packs.items()}
    sizes = {encoding: statistics.median(row.disk_bytes or 0 for row in rows) for encoding, rows in packs.items()}
    chosen = max(ratios, key=lambda encoding: ratios[encoding])
    fed = {encoding: feeds(report, rows[0].name) for encoding, rows in packs.items()}
    smaller = sizes["raw"] / sizes["jpeg"] if len(sizes) > 1 and sizes["jpeg"] else 0.0
    if smaller >= SMALLER and ratios["jpeg"] >= GAIN and not (fed["raw"] and not fed["jpeg"]):
        chosen = "jpeg"
    if ratios[chosen] < GAIN:
        what = "the pack reads" if report.what == "loader" else "packs read"
        return [f"keep {of}: {what} {_times(ratios[chosen])} as many images/s"]
    about = {"jpeg": f", {_times(smaller)} smaller than raw", "raw": f", {_times(smaller)} as large as JPEG"}
    size = about[chosen] if smaller >= SMALLER else ""
    what = "the pack" if report.what == "loader" else f"pack as {'JPEG' if chosen == 'jpeg' else chosen}"
    line = f"{what}: {_times(ratios[chosen])} {of}{size}"
    step_ms, enough = report.settings["step_ms"], fed[chosen]
    if enough is None:
        step = f"enough for a step of {_step_ms(packs[chosen][0])} or more"
    else:
        step = f"{'enough' if enough else 'not enough'} for a step of {step_ms:g} ms"
    folder_fed = feeds(report, base.name) if base.name != YOURS else None
    if folder_fed:
        return [f"{of} is enough for a step of {step_ms:g} ms", line]
    return [f"{line} and {step}"] if base.name == YOURS else [line, step]


def _own_details(report: Report, own: Row) -> list[str]:
    """Return what the user's loader yields, and what it waits for."""
    batch, cores = own.rounds[-1].batch, own.figure("cores").median
    usable = report.machine["cores"]
    each = f"each batch is {batch.text}" if batch else f"batches of {own.job.batch_size}"
    lines = [f"your loader: {own.rate.text(0)} images/s, {each}"]
    if cores >= BUSY_CORES * usable:
        why = "the processor is what it waits for"
    elif 0.9 <= cores <= 1.1:
        why = "one process does all the work; more workers would use the others"
    else:
        why = "it waits for something else: the disk, the network, a lock, or more workers"
    lines.append(f"it uses {cores:.1f} of {usable} cores: {why}")
    epochs = max((one.epochs or 1) for one in own.rounds)
    if epochs > 2:
        lines.append("its epochs are so short that starting them again is part of the figures")
    return lines


def _step_ms(row: Row) -> str:
    ms = 1000 * row.job.batch_size / row.rate.median
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.2g} ms"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x"


def _why(share: Figure, row: Row) -> str:
    if share.lowest > 0.8:
        return "that is what it waits for"
    decoding = "decoding, " if "disk" in (row.limit or "") else ""
    return f"the rest is opening files, {decoding}resizing, and passing images between processes"


def swept(report: Report) -> list[str]:
    """Return the conclusion of a sweep."""
    best = max((row for row in report.rows if row.job.kind == "pack"), key=lambda row: row.rate.median)
    lines = [f"Fastest: {best.name}: {best.rate.text(0)} images/s"]
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
    return [*lines, *index_pays(report), f"paste: {paste(report, best)}"]


def index_pays(report: Report) -> list[str]:
    """Return whether an index of the JPEGs would make random crops faster, if that was measured."""
    rates = [row.rate for row in report.rows if row.name in (CROPS, INDEXED) and row.rounds]
    if len(rates) < 2:
        return []
    gain = rates[1] / rates[0]
    what = f"with an index of its JPEGs, random crops are read {gain.text(2)} times as fast"
    pays = gain.median >= PAYS and gain.lowest > 1
    return [f"{what}: {f'packer index {shlex.quote(report.path)}' if pays else 'it would not pay here'}"]


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
