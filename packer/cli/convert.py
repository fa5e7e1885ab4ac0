"""`packer convert`: write a pack to another container, encoding or size."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo, echo_error
from packer.cli.values import OneOf, PackPath
from packer.containers import CONTAINERS, container_names
from packer.errors import EXIT_BAD_DATA, plural, printable, size_text, time_text
from packer.packing.options import ENCODINGS, FITS

SHOWN_REJECTED = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("out", type=click.Path())
@click.option(
    "--format",
    type=OneOf(CONTAINERS, container_names),
    metavar="NAME",
    help="Container format of the shards.  [default: by the extension of OUT, else as PACK]",
)
@click.option(
    "--encode",
    type=OneOf(ENCODINGS),
    metavar="raw|jpeg|png|bmp",
    help="Decode every image and encode it like this.  [default: the bytes stay as they are]",
)
@click.option("--quality", type=int, help="JPEG quality, 1 to 100.  [default: 90]")
@click.option("--resize", metavar="N|WxH", help="Size of the new images in pixels.")
@click.option(
    "--fit",
    type=OneOf(FITS),
    help="How to reach that size, as in packer build.  [default: short for N, stretch for WxH]",
)
@click.option("--pad-value", type=int, metavar="N", help="Gray level of the border of --fit pad, 0 to 255.")
@click.option("--interpolation", type=OneOf(("area", "bilinear")), help="Filter of --resize.  [default: area]")
@click.option(
    "--include",
    type=LocalPath(),
    metavar="FILE",
    help="Take only the records in FILE: one path, name, glob or key per line.",
)
@click.option("--exclude", type=LocalPath(), metavar="FILE", help="Leave out the records in FILE, in the same form.")
@click.option("--overwrite", is_flag=True, help="Replace an existing pack.")
@click.option(
    "--scratch",
    type=LocalPath(),
    metavar="DIR",
    help="With a URL as OUT: folder for unfinished shards.  [default: that for temporary files]",
)
@click.option(
    "--workers", type=int, metavar="N", help="Number of worker processes.  [default: the number of usable cores]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, also after an error.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def convert(pack: str, out: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write the records of PACK to a new pack OUT.

    Without --encode and --resize, the bytes of the images are copied and nothing of the labels is lost: a pack
    converted there and back has the same files again, pack.json aside. A damaged record is an error, and nothing
    is written. If images cannot be encoded again, they are listed, and the exit code is 1.

    \b
    Examples:
      packer convert imgs.lmdb imgs.hdf5
      packer convert imgs.lmdb small.lmdb --resize 128 --encode jpeg
      packer convert imgs.lmdb part.tfrecord --include chosen.txt
    """
    from dataclasses import asdict

    from packer.repack.convert import convert as convert_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = convert_pack(pack, out, progress, **given)
    if as_json:
        echo(json.dumps(asdict(report)))
    else:
        for row in report.rejected[:SHOWN_REJECTED]:
            echo_error(f"rejected: {printable(row.path)}: {row.problem}")
        if len(report.rejected) > SHOWN_REJECTED:
            echo_error(f"... and {len(report.rejected) - SHOWN_REJECTED} more (packer info --rejected lists all)")
        if not quiet:
            left = f", {report.skipped:,} left out" if report.skipped else ""
            where = as_typed(printable(report.path), [out])
            echo(
                f"{where}: {plural(report.records, 'record')} in {plural(report.shards, 'shard')} "
                f"({report.container}, {report.encoding}{left}); "
                f"{size_text(report.bytes)} in {time_text(report.seconds)} "
                f"({size_text(report.bytes / max(report.seconds, 1e-3))}/s)"
            )
    if report.rejected:
        sys.exit(EXIT_BAD_DATA)
