"""Writes a bench as one page that needs nothing else: charts, table, machine, versions, the line that repeats it."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from html import escape

from packer.bench.charts import write_charts
from packer.bench.result import Report
from packer.bench.words import settings_text, spread
from packer.errors import StorageError, printable
from packer.stats.plots import figure_class

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
.wide { overflow-x: auto; font-size: 13px }
td, th { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
td:first-child, th:first-child { text-align: left }
img { max-width: min(100%, 60rem) }
code { background: #f3f3f3; padding: .1rem .3rem; overflow-wrap: anywhere }
small { color: #666 }
"""
COLUMNS = (
    ("images/s", "images_per_s", 0),
    ("MB/s", "megabytes_per_s", 0),
    ("CPU s per 1,000", "cpu_s_per_1000", 2),
    ("first batch, s", "first_batch_s", 2),
    ("peak memory, MB", "peak_mb", 0),
)


def prepare_report(folder: str) -> None:
    """Raise where no report can be made: UsageError without matplotlib, StorageError where nothing can be written.
    Better before the work than behind it."""
    figure_class("--report")
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(folder, f"cannot write: {error.strerror or error}", "name another folder") from error


def write_report(report: Report, folder: str) -> str:
    """Write index.html, the charts as PNG and report.json into `folder`; the page's path. Raises StorageError."""
    try:
        os.makedirs(folder, exist_ok=True)
        charts = write_charts(report, folder)
        page = os.path.join(folder, "index.html")
        with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
            json.dump(report.facts(), file, indent=1)
        with open(page, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_html(report, [os.path.join(folder, name) for name in charts]))
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.filename or folder, f"cannot write: {error.strerror or error}") from error
    return page


def _html(report: Report, charts: Sequence[str]) -> str:
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
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>packer bench</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _table(report: Report) -> str:
    head = ["", *(title for title, _, _ in COLUMNS), "share of limit", "disk, MB", "build, s"]
    lines = [_line(head, "th")]
    for row in report.rows:
        if row.left_out:
            lines.append(_line([row.name, row.left_out, *[""] * (len(head) - 2)]))
            continue
        share = report.share(row)
        figures = [(row.figure(name), digits) for _, name, digits in COLUMNS]
        cells = [spread(figure, digits) for figure, digits in figures]
        cells += ["" if share is None else spread(share, 2)]
        cells += ["" if row.disk_bytes is None else f"{row.disk_bytes / 1e6:,.1f}"]
        cells += ["" if row.build_s is None else spread(row.build_s, 1)]
        lines.append(_line([row.name, *cells]))
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _line(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{_safe(cell)}</{tag}>' for cell in cells)}</tr>"


def _safe(text: object) -> str:
    return escape(printable(str(text)))


def _inline(path: str) -> str:
    with open(path, "rb") as file:
        return f"data:image/png;base64,{base64.b64encode(file.read()).decode()}"
