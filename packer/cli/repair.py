"""`packer repair`: repair a damaged pack, or save what is left of it."""

from __future__ import annotations

import json
import sys

import click

from packer.cli.output import LocalPath, ProgressBar, echo, echo_error
from packer.cli.values import PackPath
from packer.errors import EXIT_BAD_DATA, plural, printable

SHOWN_LOST = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.option("-o", "--out", type=LocalPath(), help="Path of the new pack, if one is needed.  [default: PACK.repaired]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only what is lost.")
def repair(pack: str, out: str | None, as_json: bool, quiet: bool) -> None:
    """Repair PACK, or save what is left of it.

    Files that can be rebuilt byte for byte, as their digests prove, are restored in place. If that is not
    enough, or with --out, PACK is left unchanged and everything that can be saved goes into a new pack. Lost
    records are listed, and the exit code is then 1.

    \b
    Examples:
      packer repair imgs.lmdb
      packer repair imgs.lmdb --out /other/disk/imgs.lmdb --json
    """
    from dataclasses import asdict

    from packer.format.salvage import repair as repair_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = repair_pack(pack, out, progress)
    if as_json:
        echo(json.dumps({**asdict(report), "lost_records": report.lost_records}))
    else:
        name = printable(pack)
        for entry in report.lost[:SHOWN_LOST]:
            echo_error(f"{name}: lost: {printable(str(entry))}")
        if len(report.lost) > SHOWN_LOST:
            echo_error(f"... and {len(report.lost) - SHOWN_LOST} more (--json lists all)")
        if not quiet:
            for note in report.notes:
                echo(f"{name}: {printable(note)}")
            for restored in report.restored:
                echo(f"{name}: {printable(restored)}: restored byte for byte")
            if report.out is None:
                echo(f"{name}: whole: {plural(report.records, 'record')}")
            else:
                saved, lost = plural(report.records, "record"), plural(report.lost_records, "record is", "records are")
                echo(f"{printable(report.out)}: a new pack of {saved}; {lost} lost")
    if report.lost:
        sys.exit(EXIT_BAD_DATA)
