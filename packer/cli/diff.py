"""`packer diff`: show how two packs differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from packer.cli.cache import cache_options
from packer.cli.output import ProgressBar, echo
from packer.cli.values import PackPath
from packer.errors import EXIT_DIFFERENT, plural, printable

if TYPE_CHECKING:
    from packer.repack.diff import Differing, DiffReport


@click.command()
@click.argument("a", type=PackPath())
@click.argument("b", type=PackPath())
@click.option("--limit", type=int, default=10, show_default=True, help="Number of records to list in each respect.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cache_options
@click.option("--quiet", is_flag=True, help="Print nothing; the exit code says whether they differ.")
def diff(a: str, b: str, limit: int, as_json: bool, quiet: bool, **cached: Any) -> None:
    """Show how the packs A and B differ.

    Either may be a URL. Compares classes, records (by path, else by the digest of the source file), labels and
    pixels. Images are decoded only where their bytes differ. Other containers, options, shards and encodings without
    loss make no difference. The exit code is 0 if the packs are equal, and 1 if they differ.

    \b
    Examples:
      packer diff imgs.lmdb imgs.hdf5
      packer diff old.lmdb new.lmdb --limit 100 --json
    """
    from dataclasses import asdict

    from packer.format.pack import open_pack
    from packer.repack.diff import diff as compare

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = compare(open_pack(a, **cached), open_pack(b, **cached), limit, progress)
    if as_json:
        echo(json.dumps({**asdict(report), "equal": report.equal}))
    elif not quiet:
        for line in lines(report):
            echo(printable(line))
    if not report.equal:
        sys.exit(EXIT_DIFFERENT)


def lines(report: DiffReport) -> Iterator[str]:
    """Return the lines of the report."""
    for name, (before, now) in report.options.items():
        if name in ("include", "exclude"):  # the value is the name of a file in the pack
            lists = ["none" if value is None else "a list" for value in (before, now)]
            yield f"option {name}: {lists[0]}, now {'another list' if lists[0] == lists[1] else lists[1]}"
        else:
            yield f"option {name}: {_option(before)}, now {_option(now)}"
    for name, names in report.classes.items():
        what = "tags" if name.startswith("tags_") else "classes"
        kind = {"only_a": "only in A", "only_b": "only in B", "order": "in another order in B"}
        yield f"{what} {kind[name.removeprefix('tags_')]}: {', '.join(names)}"
    yield from _records(report.only_a, "only in A", lambda row: "")
    yield from _records(report.only_b, "only in B", lambda row: "")
    yield from _records(report.moved, "with another path", lambda row: f" -> {row['now']}")
    yield from _records(report.labels, "with other labels", lambda row: f": {', '.join(row['fields'])}")
    psnr = "" if report.psnr is None else " (PSNR {:.1f} to {:.1f} dB)".format(*report.psnr)
    yield from _records(report.pixels, f"with other pixels{psnr}", _pixels)
    if report.other_bytes:
        yield f"{plural(report.other_bytes, 'image')} with the same pixels in other bytes"
    first, second = report.records
    if report.equal:
        yield f"equal: {plural(first, 'record')}"
    else:
        yield f"different: A has {plural(first, 'record')}, B {second:,}"


def _records(found: Differing, what: str, more: Any) -> Iterator[str]:
    if found.count:
        yield f"{plural(found.count, 'record')} {what}:"
        yield from (f"  {row['path']}{more(row)}" for row in found.first)
        if found.count > len(found.first):
            yield f"  ... and {found.count - len(found.first):,} more"


def _pixels(row: dict[str, Any]) -> str:
    return ": of another shape" if row["psnr"] is None else f": {row['psnr']:.1f} dB"


def _option(value: Any) -> str:
    return "none" if value is None else str(value)
