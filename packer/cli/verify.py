"""`packer verify`: check every byte of a pack."""

from __future__ import annotations

import json
import sys

import click

from packer.cli.say import say
from packer.errors import EXIT_DAMAGED_PACK, printable

SHOWN_PROBLEMS = 20


@click.command()
@click.argument("pack", type=click.Path())
@click.option("--deep", is_flag=True, help="Decode every image too, and compare annotations with the index's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
def verify(pack: str, deep: bool, as_json: bool, quiet: bool) -> None:
    """Check PACK: every file's digest, every record's checksum, container and index against each other.

    Ends with exit code 4 where anything is wrong, and says which records. packer repair saves what
    can be saved.

    \b
    Example: packer verify imgs.lmdb
             packer verify imgs.lmdb --deep --json
    """
    from dataclasses import asdict

    from packer.cli.progress import bar
    from packer.format import verify as checks
    from packer.types import Progress

    class Bars(Progress):
        def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
            self.bar = read if unit == "B" else decoded

        def advance(self, done: int, bad: int = 0) -> None:
            self.bar.update(done)

    hidden = quiet or as_json
    with bar("verifying", unit="B", hidden=hidden) as read, bar("decoding", hidden=hidden or not deep) as decoded:
        report = checks.verify(pack, Bars(), deep)
    if as_json:
        say(json.dumps({**asdict(report), "good": not report.problems}))
    else:
        for problem in report.problems[:SHOWN_PROBLEMS]:
            click.echo(f"packer: {printable(pack)}: {printable(str(problem))}", err=True)
        if len(report.problems) > SHOWN_PROBLEMS:
            click.echo(f"packer: ... and {len(report.problems) - SHOWN_PROBLEMS} more (--json lists all)", err=True)
        for name in () if quiet else report.unknown_files:
            click.echo(
                f"packer: {printable(pack)}: {printable(name)}: is not part of the pack, and does no harm", err=True
            )
        if not report.problems and not quiet:
            say(f"{printable(pack)}: good: {report.records:,} records in {report.files} files")
    if report.problems:
        sys.exit(EXIT_DAMAGED_PACK)
