"""`packer verify`: verify every byte of a pack."""

from __future__ import annotations

import json
import shlex
import sys

import click

from packer.cli.output import ProgressBar, echo, echo_error, echo_step
from packer.cli.values import PackPath
from packer.errors import EXIT_DAMAGED_PACK, plural, printable

SHOWN_PROBLEMS = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.option("--deep", is_flag=True, help="Also decode every image, and compare all records with the index.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only problems.")
def verify(pack: str, deep: bool, as_json: bool, quiet: bool) -> None:
    """Verify every byte of PACK.

    Checks the digests of files, the checksums of records, and containers against indexes. The exit code is 4 if
    anything is wrong; the affected records are listed. packer repair restores or saves what it can.

    \b
    Examples:
      packer verify imgs.lmdb
      packer verify imgs.lmdb --deep --json
    """
    from dataclasses import asdict

    from packer.format.verify import verify as verify_folder
    from packer.format.verify_url import verify_url
    from packer.stores import is_url

    verify_pack = verify_url if is_url(pack) else verify_folder
    with ProgressBar(hidden=quiet or as_json) as progress:
        report = verify_pack(pack, progress, deep)
    if as_json:
        echo(json.dumps({**asdict(report), "good": not report.problems}))
    else:
        name = printable(pack)
        for problem in report.problems[:SHOWN_PROBLEMS]:
            echo_error(f"{name}: {printable(str(problem))}")
        if len(report.problems) > SHOWN_PROBLEMS:
            echo_error(f"... and {len(report.problems) - SHOWN_PROBLEMS} more (--json lists all)")
        if not quiet:
            for unknown in report.unknown_files:
                echo_error(f"{name}: {printable(unknown)}: is not part of the pack, but harmless")
            if not report.problems:
                echo(f"{name}: good: {plural(report.records, 'record')} in {plural(report.files, 'file')}")
        if report.problems and not is_url(pack):
            echo_step(f"packer repair {printable(shlex.quote(pack))}")
    if report.problems:
        sys.exit(EXIT_DAMAGED_PACK)
