"""`packer split`: a pack as several."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from packer.cli.output import ProgressBar, as_typed, echo
from packer.cli.values import PackPath
from packer.errors import plural, printable


@click.command()
@click.argument("pack", type=PackPath())
@click.option("--parts", required=True, metavar="NAME=SHARE,...", help="Names and shares: train=0.8,val=0.2.")
@click.option("--stratify", is_flag=True, help="Give each part its share of each class.")
@click.option(
    "--group",
    metavar="COLUMN",
    help="Keep records with an equal value in one part: folder (of the path), source (equal files), or a field of "
    "extras.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random order.")
@click.option("-o", "--out", type=click.Path(), metavar="DIR", help="Folder for the parts.  [default: that of PACK]")
@click.option("--lists", is_flag=True, help="Write lists of paths for packer build --include instead of packs.")
@click.option("--overwrite", is_flag=True, help="Replace existing parts.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def split(pack: str, out: str | None, overwrite: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Split PACK into parts without copying its images.

    The parts are called PACK-train and so on. Each record is in one of them. The same options give the same parts, on
    any machine.

    \b
    Examples:
      packer split imgs.lmdb --parts train=0.8,val=0.1,test=0.1 --stratify
      packer split faces.lmdb --parts train=0.9,val=0.1 --group person
    """
    from dataclasses import asdict

    from packer.repack.links import shards_text
    from packer.repack.split import SplitOptions
    from packer.repack.split import split as split_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = split_pack(pack, SplitOptions(**given), out, overwrite, progress)
        progress.close()
        for note in report.notes:
            progress.note(f"note: {note}")
        for part in report.parts:
            shards = f", {shards_text(part.shards)}" if part.shards else ""
            where = as_typed(printable(part.path), [out or os.path.dirname(pack)])
            progress.note(f"{printable(part.name)}: {plural(part.records, 'record')}{shards}: {where}")
    if as_json:
        echo(json.dumps(asdict(report)))
