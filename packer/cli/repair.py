"""`packer repair`: save what can be saved of a damaged pack."""

from __future__ import annotations

import json
import sys

import click

from packer.cli.say import say
from packer.errors import EXIT_BAD_DATA, printable

SHOWN_LOST = 20


@click.command()
@click.argument("pack", type=click.Path())
@click.option("-o", "--out", type=click.Path(), help="The new pack, where one is needed.  [default: PACK.repaired]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing but what is lost.")
def repair(pack: str, out: str | None, as_json: bool, quiet: bool) -> None:
    """Make PACK whole again, or a new pack of all that can be saved of it.

    Files that can be made again byte for byte, as their digests say, are put back in their place. Where
    that is not enough, PACK stays as it is, and a new pack is made beside it; with --out always. What is
    lost is listed, and the exit code is then 1.

    \b
    Example: packer repair imgs.lmdb
             packer repair imgs.lmdb --out /other/disk/imgs.lmdb --json
    """
    from dataclasses import asdict

    from packer.cli.progress import bar
    from packer.format import salvage
    from packer.types import Progress

    class Bar(Progress):
        def advance(self, done: int, bad: int = 0) -> None:
            progress.update(done)

    with bar("repairing", unit="B", hidden=quiet or as_json) as progress:
        report = salvage.repair(pack, out, Bar())
    if as_json:
        say(json.dumps({**asdict(report), "lost_records": report.lost_records}))
    else:
        for entry in report.lost[:SHOWN_LOST]:
            click.echo(f"packer: {printable(pack)}: lost: {printable(str(entry))}", err=True)
        if len(report.lost) > SHOWN_LOST:
            click.echo(f"packer: ... and {len(report.lost) - SHOWN_LOST} more (--json lists all)", err=True)
        if not quiet:
            for note in report.notes:
                say(f"{printable(pack)}: {printable(note)}")
            for name in report.restored:
                say(f"{printable(pack)}: {printable(name)}: made again, byte for byte, and put back")
            if report.out is not None:
                say(
                    f"{printable(report.out)}: a new pack of {report.records:,} records; {report.lost_records:,} are lost"
                )
            else:
                say(f"{printable(pack)}: whole: {report.records:,} records")
    if report.lost:
        sys.exit(EXIT_BAD_DATA)
