"""`packer pull`: copy a pack from a store to a folder."""

from __future__ import annotations

import json

import click

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo
from packer.errors import plural, printable, size_text, time_text


@click.command()
@click.argument("url")
@click.argument("out", metavar="PACK", type=LocalPath())
@click.option("--overwrite", is_flag=True, help="Replace an existing pack.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pull(url: str, out: str, overwrite: bool, quiet: bool, as_json: bool) -> None:
    """Copy the pack at URL to the new folder PACK.

    The digest of every file is verified before the pack gets its name. If it is interrupted, the same command
    resumes from PACK.partial.

    \b
    Examples:
      packer pull s3://bucket/imgs.lmdb imgs.lmdb
    """
    from dataclasses import asdict

    from packer.repack.pull import pull as pull_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = pull_pack(url, out, overwrite, progress)
        progress.close()
        where = as_typed(printable(report.path), [out])
        progress.note(
            f"{where}: {plural(report.records, 'record')} in {plural(report.files, 'file')}, "
            f"{size_text(report.bytes)} in {time_text(report.seconds)}; every digest is good"
        )
    if as_json:
        echo(json.dumps(asdict(report)))
