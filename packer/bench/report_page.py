"""Writes a bench report as one self-contained page: the answer, charts, table, machine, versions, and the command."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from packer.bench.measure import Figure
from packer.bench.report import PACED, YOURS, Report, Row, settings_text
from packer.errors import StorageError, UsageError, option, printable
from packer.stats.html import one_file_page, read_static
from packer.system import open_regular
from packer.system.atomic import replacing

ROW_PX, AXIS_PX = 34, 22
LEFT, RIGHT = 1.5, 98.5
"""Where the scale begins and ends, in percent: dots at its ends are whole."""
WIDEST_LINEAR = 12
"""Ratio of the highest and the lowest value above which a scale is logarithmic."""


# Charts of a bench report as SVG: they follow the width and the colors of the page, without a library.
#
# Horizontal places are percentages, so that texts keep their size on a phone.


@dataclass(frozen=True)
class Group:
    """Rows that read the same bytes in the same way."""

    title: str
    color: str
    rows: list[Row]


def groups_of(report: Report) -> list[Group]:
    """Return the measured rows without a step, equal containers in one group."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        if row.rounds and not row.name.endswith(PACED) and row.name != "with the step":
            found.setdefault(_group_of(report, row), []).append(row)
    found = dict(sorted(found.items(), key=lambda one: one[0][1] == "limits"))  # the rest keeps its order
    return [Group(title, color, rows) for (title, color), rows in found.items()]


def _group_of(report: Report, row: Row) -> tuple[str, str]:
    kind, last = row.job.kind, row.name.rpartition(", ")[2]
    if row.name.startswith("limit"):
        return "Limits of this machine", "limits"
    if row.name == YOURS:
        return "Your loader", "own"
    if kind.startswith("folder"):
        return "Plain folder", "folder"
    if kind == "dataset":
        return f"Pack in a DataLoader, {last}", "other"
    if report.what == "loader":
        return "Pack", "jpeg"
    if report.what == "compare":
        return f"Packs, {last.upper() if last == 'jpeg' else last}", last
    return (f"{row.job.threads} threads" if row.job.threads > 1 else "1 thread", "other")


def speed_chart(report: Report) -> str:
    """Return dots with ranges of images/s, and the limit of each row."""
    groups = groups_of(report)
    values = [value for group in groups for row in group.rows for value in (row.rate.lowest, row.rate.highest)]
    if not values:
        return ""
    scale = Scale(min(values), max(values))
    parts = []
    for number, group in enumerate(groups):
        lines = [_dots(report, row, scale) for row in group.rows]
        is_last = number == len(groups) - 1
        parts += [f'<h3 class="{group.color}">{_escaped(group.title)}</h3>', _svg(lines, group.color, scale, is_last)]
    return "\n".join(parts)


def size_chart(report: Report) -> str:
    """Return bars of the size on disk, one for each group; empty if there is only one."""
    groups = [group for group in groups_of(report) if group.rows[0].disk_bytes and group.color != "limits"]
    if report.what != "compare" or len(groups) < 2:
        return ""
    sizes = [Figure(tuple((row.disk_bytes or 0) / 1e6 for row in group.rows)) for group in groups]
    scale = Scale(0.0, max(size.highest for size in sizes))
    lines = []
    for group, size in zip(groups, sizes, strict=True):
        same = size.lowest > 0.995 * size.highest
        text = f"{size.median:,.1f} MB" + ("" if same else f" ({size.lowest:,.1f} to {size.highest:,.1f})")
        end = scale.place(size.median)
        bar = f'<rect class="bar {group.color}" x="{LEFT}%" y="20" width="{end - LEFT:.2f}%" height="8" rx="2"/>'
        lines.append(_labels(group.title, text) + bar)
    return _svg(lines, "other", None, False)


def waiting_chart(report: Report) -> str:
    """Return dots with ranges of the time that a training step waits; empty if that was not measured."""
    rows = [row for row in report.rows if row.rounds and (row.name.endswith(PACED) or row.name == "with the step")]
    if not rows:
        return ""
    scale = Scale(0.0, 100.0, "%")
    lines = []
    for row in rows:
        waiting = Figure(tuple(100 * share for share in row.figure("waiting").rounds))
        text = f"{waiting.median:.0f}% ({waiting.lowest:.0f} to {waiting.highest:.0f})"
        color = _group_of(report, row)[1] if report.what == "compare" else "other"
        color = "own" if row.job.loader else color.removesuffix(PACED)
        lines.append(f'<g class="{color}">{_labels(row.name.removesuffix(PACED), text)}{_range(waiting, scale)}</g>')
    return _svg(lines, "other", scale, True)


class Scale:
    """Places of values from left to right: linear from 0, or logarithmic if they are far apart."""

    def __init__(self, lowest: float, highest: float, unit: str = "") -> None:
        self.is_log = lowest > 0 and highest > WIDEST_LINEAR * lowest
        self._low = math.log10(lowest) - 0.08 if self.is_log else 0.0
        self._high = math.log10(highest) + 0.02 if self.is_log else 1.02 * (highest or 1.0)
        self._unit = unit

    def place(self, value: float) -> float:
        """Return the place of a value in percent of the width."""
        at = math.log10(value) if self.is_log else value
        return LEFT + (RIGHT - LEFT) * (at - self._low) / (self._high - self._low)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield (place, text) of 3 to 7 round values."""
        if self.is_log:
            steps: Iterable[int] = (1, 2, 5) if self._high - self._low < 1.7 else (1,)
            powers = range(math.floor(self._low), math.ceil(self._high) + 1)
            values = [step * 10.0**power for power in powers for step in steps]
        else:
            unit = 10.0 ** math.floor(math.log10(self._high))
            each = next(unit * part for part in (0.2, 0.5, 1.0, 2.0) if self._high / (unit * part) <= 6)
            values = [each * n for n in range(7)]
        for value in values:
            if self._low <= (math.log10(value) if self.is_log else value) <= self._high:
                yield self.place(value), f"{value / 1000:,g} k" if value >= 10_000 else f"{value:,g}{self._unit}"


def _dots(report: Report, row: Row, scale: Scale) -> str:
    rate = row.rate
    text = f"{rate.median:,.0f} ({rate.lowest:,.0f} to {rate.highest:,.0f})"
    share = report.share(row)
    mark = ""
    if share is not None and row.limit is not None:
        place = scale.place(report.row(row.limit).rate.highest)
        mark = f'<line class="limit" x1="{place:.2f}%" x2="{place:.2f}%" y1="18" y2="31"/>'
    return _labels(row.name, text) + mark + _range(rate, scale)


def _labels(name: str, text: str) -> str:
    return (
        f'<text x="0" y="12">{_escaped(name)}</text><text class="faint" x="100%" y="12" text-anchor="end">{text}</text>'
    )


def _range(figure: Figure, scale: Scale) -> str:
    low, middle, high = (scale.place(value) for value in (figure.lowest, figure.median, figure.highest))
    track = f'<line class="track" x1="{LEFT}%" x2="{RIGHT}%" y1="24.5" y2="24.5"/>'
    span = f'<line class="range" x1="{low:.2f}%" x2="{high:.2f}%" y1="24.5" y2="24.5"/>'
    return f'{track}{span}<circle class="dot" cx="{middle:.2f}%" cy="24.5" r="6"/>'


def _svg(lines: list[str], color: str, scale: Scale | None, with_axis: bool) -> str:
    """Return an SVG with a row for each of `lines`, and with ticks below them."""
    height = ROW_PX * len(lines)
    ticks = list(scale.ticks()) if scale is not None else []
    grid = "".join(f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="18" y2="31"/>' for at, _ in ticks)
    parts = [f'<svg y="{ROW_PX * number}" overflow="visible">{grid}{line}</svg>' for number, line in enumerate(lines)]
    for place, text in ticks if with_axis else ():
        anchor = "start" if place < 4 else "end" if place > 96 else "middle"
        parts.append(f'<text class="tick" x="{place:.2f}%" y="{height + 15}" text-anchor="{anchor}">{text}</text>')
    total = height + AXIS_PX * with_axis
    return f'<svg class="chart {color}" role="img" height="{total}" aria-label="{_plain(lines)}">{"".join(parts)}</svg>'


def _plain(lines: list[str]) -> str:
    """Return the texts of the rows, for a screen reader."""
    return "; ".join(": ".join(re.findall(">([^<]+)</text>", line)) for line in lines)


def _escaped(text: str) -> str:
    return escape(printable(text))


COLUMNS = (
    ("images/s", "images_per_s", 0),
    ("MB/s", "megabytes_per_s", 0),
    ("CPU s per 1,000", "cpu_s_per_1000", 2),
    ("first batch, s", "first_batch_s", 2),
    ("peak memory, MB", "peak_mb", 0),
)
PAGE, FIGURES = "index.html", "report.json"
MARK = '<meta name="generator" content="packer bench">\n'
"""Is in the head of each page, by which a report is recognized: only a report is replaced by another one."""


def prepare_report(folder: str) -> None:
    """Check in advance that a report can be written to `folder`.

    Raises:
        UsageError: The folder has a page or figures that are not those of a report.
        StorageError: Nothing can be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        for name, ours in ((PAGE, _is_page), (FIGURES, _is_figures)):
            path = os.path.join(folder, name)
            if os.path.exists(path) and not ours(path):
                raise UsageError(
                    option("report"), f"{printable(path)} was not written by packer bench", "name another folder"
                )
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(folder, f"cannot write: {error.strerror or error}", "choose another folder") from error


def _is_page(path: str) -> bool:
    with open_regular(path) as file:
        return MARK.encode() in file.read(4096)


def _is_figures(path: str) -> bool:
    try:
        with open_regular(path) as file:
            facts = json.load(file)
    except (ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and {"answer", "rows", "machine"} <= facts.keys()


def write_report(report: Report, folder: str) -> str:
    """Write index.html and report.json into `folder`.

    Returns:
        The path of the page.

    Raises:
        StorageError: If a file cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        page = os.path.join(folder, PAGE)
        with replacing(os.path.join(folder, FIGURES)) as file:
            file.write(json.dumps(report.facts(), indent=1).encode())
        with replacing(page) as file:
            style = read_static(__file__, "report.css")
            text = one_file_page("packer bench", _body(report), "report", style, MARK)
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise StorageError(error.filename or folder, f"cannot write: {error.strerror or error}") from error
    return page


def _body(report: Report) -> str:
    machine, settings = report.machine, report.settings
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    reads = "cold" if settings["cold"] else "warm"
    trusted = "" if not report.reasons else ' class="unreliable"'
    waiting, sizes = waiting_chart(report), size_chart(report)
    step = f"Time that a step of {settings.get('step_ms') or 0:g} ms waits"
    parts = [
        "<main>",
        f"<h1{trusted}>{_safe(report.answer or 'Measurements')}</h1>",
        f'<p class="note">packer bench: {_safe(report.path)}, {_safe(machine["processor"])}, '
        f"{machine['cores']} cores, {machine['date']}</p>",
        "<h2>Images/s</h2>",
        f'<p class="note">Median of {settings["rounds"]} rounds, lowest to highest'
        f"{'; the vertical line is the best of the limit' if any(row.limit for row in report.rows) else ''}</p>",
        '<div id="speed">', speed_chart(report), "</div>",
        *([f"<h2>{step}</h2>", waiting] if waiting else ()),
        *(["<h2>Size on disk</h2>", sizes] if sizes else ()),
        *(["<h2>In words</h2>"] if report.conclusion else ()),
        *(f"<p>{_safe(line)}</p>" for line in report.conclusion),
        "<h2>All figures</h2>",
        _table(report),
        f'<p class="note">Median (lowest to highest) of {settings["rounds"]} rounds. MB/s counts stored bytes; peak '
        "memory is anonymous and shared memory of all processes, without the page cache.</p>",
        *(f"<p>Note: {_safe(note)}</p>" for note in report.notes),
        "<h2>How it was measured</h2>",
        f"<p>{_safe(machine['processor'])}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{_safe(machine['system'])}, {machine['date']}, load before {machine['load_before']}, "
        f"JPEG decoder {machine['decoder']}</p>",
        f"<p>{_safe(versions)}</p>",
        f"<p>{reads}, {_safe(settings_text(settings))}</p>",
        f"<p>Again: <code>{_safe(report.command)}</code></p>",
        "</main>",
    ]  # fmt: skip
    return "\n".join(parts)


def _table(report: Report) -> str:
    head = ["", *(title for title, _, _ in COLUMNS), "share of limit", "waiting", "disk, MB", "build, s"]
    lines = [_line(head, "th")]
    for row in report.rows:
        if row.left_out:
            lines.append(_line([row.name, row.left_out, *[""] * (len(head) - 2)]))
            continue
        share = report.share(row)
        cells = [row.figure(name).text(digits) for _, name, digits in COLUMNS]
        cells[1] = cells[1] if row.stored_bytes else ""
        cells += ["" if share is None else share.text(2)]
        cells += ["" if row.rounds[0].waiting is None else row.figure("waiting").text(2)]
        cells += ["" if row.disk_bytes is None else f"{row.disk_bytes / 1e6:,.1f}"]
        cells += ["" if row.build_s is None else row.build_s.text()]
        lines.append(_line([row.name, *cells]))
    scroller = '<div class="figures" tabindex="0" role="region" aria-label="All figures">'
    return f"{scroller}<table>{''.join(lines)}</table></div>"


def _line(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{_safe(cell)}</{tag}>' for cell in cells)}</tr>"


def _safe(text: object) -> str:
    return escape(printable(str(text)))
