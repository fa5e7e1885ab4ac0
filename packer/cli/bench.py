"""`packer bench`: measure how fast images are read on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from packer.cli.cache import cache_dir_option
from packer.cli.output import LocalPath, ProgressBar, echo, table_text
from packer.cli.values import OneOf, PackPath
from packer.containers import CONTAINERS
from packer.errors import printable

if TYPE_CHECKING:
    from packer.bench import Figure, Report, Row


@click.command()
@click.argument("path", metavar="[SRC|PACK]", type=PackPath(), required=False)
@click.option("--images", type=int, help="Number of images to sample.  [default: 1000; from PACK up to 1 GiB]")
@click.option("--rounds", default=3, show_default=True, help="Number of measurements of each row; rows take turns.")
@click.option("--batch-size", default=64, show_default=True, help="Images per batch.")
@click.option(
    "--threads", type=int, help="Threads of PackedLoader and workers of a DataLoader.  [default: the usable cores]"
)
@click.option("--seconds", default=0.7, show_default=True, help="Minimum duration of a measurement.")
@click.option("--resize", metavar="WxH", help="Image size in batches.  [default: the median size, at most 224x224]")
@click.option(
    "--format",
    "formats",
    type=OneOf(CONTAINERS),
    metavar="NAME",
    multiple=True,
    help="Measure this container instead of lmdb, hdf5, tfrecord and webdataset. May be repeated.",
)
@click.option(
    "--encode",
    "encodings",
    type=OneOf(("raw", "jpeg")),
    metavar="NAME",
    multiple=True,
    help="Measure only raw or jpeg. May be repeated.",
)
@click.option("--cold", is_flag=True, help="Drop the files from memory before each measurement, as in a first epoch.")
@click.option(
    "--tune", is_flag=True, help="Find the best threads (num_workers), prefetch and window; print the line to paste."
)
@click.option("--step-ms", type=float, help="Duration of a training step; shows how long it waits for data.")
@click.option(
    "--loader",
    metavar="MODULE:FUNCTION",
    help="Also measure the DataLoader (any iterable of batches) that this function returns.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="cuda includes the copy to the device and the normalization there.",
)
@click.option("--seed", default=0, show_default=True, help="Random seed of the sample and of the orders.")
@click.option("--work-dir", type=LocalPath(), help="Folder to build packs in.  [default: the temporary folder]")
@cache_dir_option
@click.option(
    "--report",
    "report_dir",
    type=LocalPath(),
    help="Write a page with the answer and charts to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every round.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def bench(path: str | None, tune: bool, report_dir: str | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Measure how fast images are read on this machine.

    Compares a plain folder with packs of it, and both with the limits of the machine. Without an argument,
    drawn images are measured (one to two minutes). SRC measures a sample of your own images, PACK (a folder, or
    a URL, which is fetched into the cache before) the loader with different threads and batches. --loader measures
    your own loader, alone or beside SRC or PACK. Every figure is the median of all rounds, with their spread. If the
    machine is too busy, the first line says UNRELIABLE.

    \b
    Examples:
      packer bench
      packer bench ./imgs --report ./bench
      packer bench imgs.lmdb --tune --step-ms 45
      packer bench imgs.lmdb --loader my_module:make_loader --step-ms 45
    """
    from packer.bench import BenchOptions, beside, compare, sweep
    from packer.bench import tune as find_best
    from packer.errors import UsageError
    from packer.format.manifest import names_a_pack
    from packer.stores import is_url

    if importlib.util.find_spec("torch") is None:  # the measuring processes import it
        raise ModuleNotFoundError("torch", name="torch")
    options = BenchOptions(**{name: value for name, value in given.items() if value not in (None, ())})
    if options.loader is not None and tune:
        raise UsageError("--tune", "cannot be combined with --loader", "leave one of them out")
    if tune and path is None:
        raise UsageError("--tune", "needs a pack or a folder", "name one")
    if report_dir is not None:
        from packer.bench.page import prepare_report

        prepare_report(report_dir)
    command = shlex.join(["packer", *map(os.fsdecode, sys.argv[1:])]) if sys.argv[1:2] == ["bench"] else "packer bench"
    is_pack = path is not None and (is_url(path) or names_a_pack(path))
    if options.step_ms is not None and is_pack and not tune and options.loader is None:
        raise UsageError("--step-ms", "needs a folder, --tune or --loader", "add --tune")
    with ProgressBar(hidden=quiet or as_json) as progress:
        if tune:
            report = find_best(path or "", options, command, progress)
        elif options.loader is not None and (is_pack or path is None):
            report = beside(path, options, command, progress)
        elif is_pack:
            report = sweep(path or "", options, command, progress)
        else:
            report = compare(path, options, command, progress)
    if as_json:
        echo(json.dumps(report.facts()))
    else:
        for line in lines(report):
            echo(line)
    if report_dir is not None:
        from packer.bench.page import write_report

        page = write_report(report, report_dir)
        if not as_json:
            echo(f"report: {printable(page)}")


def lines(report: Report) -> Iterator[str]:
    """Return the lines of the report."""
    from packer.bench.report import settings_text

    machine, settings = report.machine, report.settings
    yield from _wrapped(printable(report.answer))
    yield ""
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, {machine['date']}; "
        f"JPEG decoder: {machine['decoder']}"
    )
    yield from _wrapped(", ".join(f"{name} {version}" for name, version in machine["versions"].items()))
    yield from _wrapped(settings_text(settings))
    yield ""
    cells = [_cells(report, row) for row in report.rows]
    hidden = "waiting" if report.what == "compare" else ""  # the conclusion has it, and 100 columns are full
    used = [i for i, name in enumerate(HEAD) if i < 2 or (name != hidden and any(row[i] for row in cells))]
    head = ("cold" if settings["cold"] else "warm", *HEAD[1:])
    yield from table_text([[row[i] for i in used] for row in (head, *cells)], right=range(1, len(used)))
    meanings = [f"{HEAD[i]}: {MEANINGS[HEAD[i]]}" for i in used if HEAD[i] in MEANINGS]
    yield from _wrapped("; ".join([f"median of {settings['rounds']} rounds ±half their range", *meanings]))
    for note in [*(f"{row.name} is left out: {row.left_out}" for row in report.rows if row.left_out), *report.notes]:
        yield from _wrapped(f"note: {printable(note)}")
    if report.conclusion:
        yield ""
    for line in report.conclusion:
        yield from [printable(line)] if line.startswith("paste: ") else _wrapped(printable(line))


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False)


HEAD = ("", "images/s", "of limit", "MB/s", "CPU s/1k", "first s", "waiting", "peak MB", "cached", "disk MB", "build s")
MEANINGS = {
    "of limit": "by its best round",
    "MB/s": "stored bytes, spread as images/s",
    "first s": "until the first batch",
    "peak MB": "memory of its own, without the page cache",
}
"""Column -> what its name does not say."""


def _cells(report: Report, row: Row) -> tuple[str, ...]:
    if row.left_out:
        return row.name, "left out", *[""] * (len(HEAD) - 2)
    share = report.share(row)
    limit = row.name.startswith("limit")
    return (
        row.name,
        _figure(row.figure("images_per_s"), 0),
        "" if share is None else f"{share.median:,.2f}",
        _plain(row.figure("megabytes_per_s").median) if row.stored_bytes else "",
        _figure(row.figure("cpu_s_per_1000"), 2),
        "" if limit or row.job.kind == "cached" else _figure(row.figure("first_batch_s"), 2),
        "" if row.rounds[0].waiting is None else _figure(row.figure("waiting"), 2),
        "" if limit else _figure(row.figure("peak_mb"), 0),
        "" if row.in_cache is None else f"{row.in_cache:.0%}",
        "" if limit or row.disk_bytes is None else f"{row.disk_bytes / 1e6:,.1f}",
        "" if row.build_s is None else _figure(row.build_s, 1),
    )


def _figure(figure: Figure, digits: int) -> str:
    half = (figure.highest - figure.lowest) / 2
    if not figure.median:
        return "0"
    number = f"{figure.median:,.{digits}f}"
    if figure.median >= 1e5:  # more digits would exceed the precision, and the width of 100 columns
        number = f"{figure.median / 1e3:,.0f} k" if figure.median < 1e6 else f"{figure.median / 1e6:,.2f} M"
    return f"{number} ±{half / figure.median:.0%}"


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"
