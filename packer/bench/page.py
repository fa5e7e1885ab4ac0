"""Writes a bench report as one self-contained page: the answer, charts, table, machine, versions, and the command."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from html import escape

from packer.bench.charts import size_chart, speed_chart, waiting_chart
from packer.bench.report import Report, settings_text
from packer.errors import StorageError, UsageError, option, printable
from packer.stats.page import one_file_page, read_static
from packer.system import open_regular
from packer.system.atomic import replacing

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
