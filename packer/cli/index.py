"""`packer index`: make, replace or remove the index of a pack's JPEGs."""

from __future__ import annotations

import json
from typing import Any

import click

from packer.cli.output import ProgressBar, echo
from packer.cli.values import OneOf, PackPath
from packer.errors import UsageError, plural, printable, size_text, time_text


@click.command()
@click.argument("pack", type=PackPath())
@click.option(
    "--interval",
    default="row",
    show_default=True,
    type=OneOf(("row", "4")),
    help="An entry per row of blocks, or per four blocks: larger, faster for small crops of large images.",
)
@click.option("--remove", is_flag=True, help="Remove the index.")
@click.option(
    "--workers", type=int, metavar="N", help="Number of worker processes.  [default: the number of usable cores]"
)
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def index(context: click.Context, /, pack: str, remove: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Make an index of the JPEGs in PACK, for faster crops.

    With it, a crop is decoded without what comes before it in the JPEG. It is in
    files beside the shards; the pack itself stays as it is. An index that is
    there is replaced. If it is interrupted, the same command resumes. Needs
    packer-fast.

    \b
    Examples:
      packer index imgs.lmdb
      packer index imgs.lmdb --interval 4
      packer index imgs.lmdb --remove
    """
    from dataclasses import asdict

    from packer.repack.index_jpegs import index_jpegs, remove_jpeg_index

    if remove and context.get_parameter_source("interval") != click.core.ParameterSource.DEFAULT:
        raise UsageError("--interval", "is for an index that is made, not for --remove", "leave it out")
    with ProgressBar(hidden=quiet or as_json) as progress:
        report = remove_jpeg_index(pack) if remove else index_jpegs(pack, **given, progress=progress)
        facts = asdict(report)
        progress.close()
        for line in removed_lines(facts) if remove else made_lines(facts):
            progress.note(line)
    if as_json:
        echo(json.dumps(facts))


def removed_lines(facts: dict[str, Any]) -> list[str]:
    """Return what was removed."""
    if not facts["files"]:
        return [f"{printable(facts['path'])}: has no index of JPEGs"]
    return [f"{printable(facts['path'])}: {plural(facts['files'], 'file')} removed, {size_text(facts['bytes'])}"]


def made_lines(facts: dict[str, Any]) -> list[str]:
    """Return what was indexed, and why the rest was not."""
    records = plural(facts["records"], "record")
    lines = [
        f"{printable(facts['path'])}: {facts['indexed']:,} of {records} indexed: {size_text(facts['bytes'])}, "
        f"{100 * facts['share']:.2g} % of the pack, in {time_text(facts['seconds'])}"
    ]
    if facts["ms_per_image"]:
        lines[0] += f" ({facts['ms_per_image']:.2f} ms per image)"
    if facts["kept"]:
        lines.append(f"note: {plural(facts['kept'], 'shard was', 'shards were')} indexed before")
    if facts["without"]:
        reasons = ", ".join(f"{count:,} {printable(why)}" for why, count in facts["without"].items())
        lines.append(f"without an index: {reasons}")
    return lines
