"""Says whether the figures of a bench can be trusted, from the figures themselves and from what else was running."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable

from packer.bench.report import PACED, Report, Row
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
    return [*_crowded(report, rows), *_above_limits(report, rows), *_unequal(report, rows), *_unsteady(rows)]


def _crowded(report: Report, rows: list[Row]) -> Iterable[str]:
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
