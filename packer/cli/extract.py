"""`packer extract`: a pack as files again."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo
from packer.cli.values import OneOf, PackPath
from packer.errors import plural, printable, time_text


def _layout_names() -> tuple[str, ...]:
    from packer.repack.layouts import layout_names

    return layout_names()


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("out", type=LocalPath())
@click.option(
    "--layout",
    type=OneOf(("folder", "voc", "yolo", "coco", "list"), _layout_names),
    default="folder",
    show_default=True,
    help="Kind of labels.",
)
@click.option(
    "--include",
    type=LocalPath(),
    metavar="FILE",
    help="Extract only the images in FILE: one path, name, glob or key per line.",
)
@click.option("--exclude", type=LocalPath(), metavar="FILE", help="Leave out the images in FILE, in the same form.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that was extracted.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def extract(pack: str, out: str, overwrite: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Write the images and labels of PACK to the new folder OUT.

    Encoded images are written byte for byte, raw ones as PNG. packer build reads the folder to an equal pack again;
    the command is printed. What a layout cannot hold is counted. packer export is another name of this command.

    \b
    Examples:
      packer extract imgs.lmdb ./imgs
      packer extract voc.hdf5 ./yolo --layout yolo
    """
    from dataclasses import asdict

    from packer.repack.extract import ExtractOptions
    from packer.repack.extract import extract as extract_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = extract_pack(pack, out, ExtractOptions(**given), overwrite, progress)
        progress.close()
        for note in report.notes:
            progress.note(f"note: {note}")
        for what, count in report.lost.items():
            progress.note(f"not in {report.layout}: {printable(what)} ({count:,})")
        renamed = f", {report.renamed:,} of them renamed" if report.renamed else ""
        where, again = (as_typed(printable(text), [out]) for text in (report.path, shlex.join(report.build)))
        progress.note(f"{where}: {plural(report.images, 'image')}{renamed}; {time_text(report.seconds)}")
        progress.note(f"pack it again: {again}")
    if as_json:
        echo(json.dumps(asdict(report)))
