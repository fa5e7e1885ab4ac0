"""`packer convert`: write a pack to another container, encoding or size."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from packer.cli.options import build_option
from packer.cli.output import ProgressBar, as_typed, echo, echo_error
from packer.cli.values import PackPath
from packer.errors import EXIT_BAD_DATA, plural, printable, size_text, time_text

SHOWN_REJECTED = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("out", type=click.Path())
@build_option(
    "format", metavar="NAME", help="Container format of the shards.  [default: by the extension of OUT, else as PACK]"
)
@build_option(
    "encode",
    metavar="raw|jpeg|png|bmp",
    help="Decode every image and encode it like this.  [default: the bytes stay as they are]",
)
@build_option("quality", help="JPEG quality, 1 to 100.  [default: 90]")
@build_option("resize", help="Size of the new images in pixels.")
@build_option("fit", help="How to reach that size, as in packer build.  [default: short for N, stretch for WxH]")
@build_option("pad_value", help="Gray level of the border of --fit pad, 0 to 255.")
@build_option("interpolation", help="Filter of --resize.  [default: area]")
@build_option("include", help="Take only the records in FILE: one path, name, glob or key per line.")
@build_option("exclude", help="Leave out the records in FILE, in the same form.")
@build_option("overwrite")
@build_option("scratch", help="With a URL as OUT: folder for unfinished shards.  [default: that for temporary files]")
@build_option("workers")
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
