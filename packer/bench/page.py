"""Writes a bench report as one self-contained page: charts, table, machine, versions, and the command to repeat it."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from packer.bench.measure import Figure
from packer.bench.report import PACED, Report, Row, settings_text
from packer.errors import StorageError, printable
from packer.stats.page import one_file_page
from packer.stats.plots import figure_class, save_figure

COLORS = {"folder": "#d64541", "raw": "#2c82c9", "jpeg": "#26a65b"}
MARKERS = {
    "PIL": "P", "cv2": "X", "lmdb": "o", "hdf5": "s", "tfrecord": "^", "webdataset": "D",
    "parquet": "v", "zarr": "h", "n5": "p", "recordio": "<", "pth": "*",
}  # fmt: skip
"""Formats of one encoding are close together, so that their names would overlap."""
COLUMNS = (
    ("images/s", "images_per_s", 0),
    ("MB/s", "megabytes_per_s", 0),
    ("CPU s per 1,000", "cpu_s_per_1000", 2),
    ("first batch, s", "first_batch_s", 2),
    ("peak memory, MB", "peak_mb", 0),
)


def prepare_report(folder: str) -> None:
    """Check in advance that a report can be written to `folder`.

    Raises:
        UsageError: If matplotlib is not installed.
        StorageError: If nothing can be written there.
    """
    figure_class("--report")
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(folder, f"cannot write: {error.strerror or error}", "choose another folder") from error


def write_report(report: Report, folder: str) -> str:
    """Write index.html, the charts as PNG and report.json into `folder`.

    Returns:
        The path of the page.

    Raises:
        StorageError: If a file cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        charts = [os.path.join(folder, name) for name in _write_charts(report, folder)]
        page = os.path.join(folder, "index.html")
        with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
            json.dump(report.facts(), file, indent=1)
        with open(page, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(one_file_page("packer bench", _body(report, charts), "report"))
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.filename or folder, f"cannot write: {error.strerror or error}") from error
    return page


def _body(report: Report, charts: Sequence[str]) -> str:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    reads = "cold" if report.settings["cold"] else "warm"
    parts = [
        f"<h1>packer bench: {_safe(report.path)}</h1>",
        *(f"<p>{_safe(line)}</p>" for line in report.conclusion),
        *(f'<p><img alt="{os.path.basename(chart)}" src="{_inline(chart)}"></p>' for chart in charts),
        _table(report),
        f"<p><small>Median (lowest to highest) of {report.settings['rounds']} rounds. MB/s counts stored bytes; peak "
        "memory is anonymous and shared memory of all processes, without the page cache.</small></p>",
        *(f"<p>Note: {_safe(note)}</p>" for note in report.notes),
        "<h2>How it was measured</h2>",
        f"<p>{_safe(machine['processor'])}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{_safe(machine['system'])}, {machine['date']}, load before {machine['load_before']}</p>",
        f"<p>{_safe(versions)}</p>",
        f"<p>{reads}, {_safe(settings_text(report.settings))}</p>",
        f"<p>Again: <code>{_safe(report.command)}</code></p>",
    ]
    return "\n".join(parts)


def _table(report: Report) -> str:
    head = ["", *(title for title, _, _ in COLUMNS), "share of limit", "disk, MB", "build, s"]
    lines = [_line(head, "th")]
    for row in report.rows:
        if row.left_out:
            lines.append(_line([row.name, row.left_out, *[""] * (len(head) - 2)]))
            continue
        share = report.share(row)
        cells = [row.figure(name).text(digits) for _, name, digits in COLUMNS]
        cells += ["" if share is None else share.text(2)]
        cells += ["" if row.disk_bytes is None else f"{row.disk_bytes / 1e6:,.1f}"]
        cells += ["" if row.build_s is None else row.build_s.text()]
        lines.append(_line([row.name, *cells]))
    return f'<div class="figures"><table>{"".join(lines)}</table></div>'


def _line(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{_safe(cell)}</{tag}>' for cell in cells)}</tr>"


def _safe(text: object) -> str:
    return escape(printable(str(text)))


def _inline(path: str) -> str:
    with open(path, "rb") as file:
        return f"data:image/png;base64,{base64.b64encode(file.read()).decode()}"


def _write_charts(report: Report, folder: str) -> list[str]:
    """Write speed.png, and size.png if packs were built; return their names."""
    rows = [row for row in report.rows if row.rounds and not row.name.startswith("limit") and PACED not in row.name]
    charts = {"speed.png": _speed(report, rows)}
    sized = [row for row in rows if row.disk_bytes]
    if report.what == "compare" and len(sized) > 1:
        charts["size.png"] = _size(sized)
    for name, figure in charts.items():
        save_figure(figure, os.path.join(folder, name))
    return list(charts)


def _speed(report: Report, rows: list[Row]) -> Any:
    """Draw bars of images/s with the lowest and the highest round, and the limit of each."""
    figure = figure_class("--report")(figsize=(9, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for at, row in enumerate(reversed(rows)):
        rate = row.rate
        axes.barh(at, rate.median, color=_color(row), height=0.7)
        axes.errorbar(rate.median, at, xerr=_error(rate), color="#2c3e50", capsize=3, linewidth=1)
        label = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        axes.annotate(f" {rate.median:,.0f}", (rate.highest, at), va="center", fontsize=9, bbox=label)
        if row.limit is not None and report.row(row.limit).rounds:
            limit = report.row(row.limit).rate.highest
            axes.plot([limit, limit], [at - 0.4, at + 0.4], color="#7f8c8d", linewidth=2)
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    rates = [row.rate.median for row in rows]
    scale = "log" if max(rates) > 20 * min(rates) else "linear"
    axes.set_xscale(scale)
    axes.margins(x=0.12)
    rounds = report.settings["rounds"]
    axes.set_xlabel(f"images/s ({scale} scale): median of {rounds} rounds, lowest to highest; gray: best of its limit")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _size(rows: list[Row]) -> Any:
    """Draw size on disk against speed."""
    figure = figure_class("--report")(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    for row in rows:
        size = (row.disk_bytes or 0) / 1e6
        marker = next((MARKERS[word] for word in MARKERS if word in row.name), "o")
        style = {"fmt": marker, "color": _color(row), "capsize": 3, "label": row.name}
        axes.errorbar(size, row.rate.median, yerr=_error(row.rate), **style)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    axes.set_xlabel("size on disk, MB")
    axes.set_ylabel("images/s (log scale): median, lowest to highest")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _error(rate: Figure) -> list[list[float]]:
    return [[rate.median - rate.lowest], [rate.highest - rate.median]]


def _color(row: Row) -> str:
    return next((COLORS[kind] for kind in ("folder", "jpeg", "raw") if kind in row.name), COLORS["raw"])
