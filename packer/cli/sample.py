"""`packer sample`: draw a labelled folder to try packer with."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo
from packer.cli.values import OneOf
from packer.errors import plural, printable

LAYOUTS = ("folder", "voc", "yolo", "list")


@click.command()
@click.argument("out", type=LocalPath())
@click.option("--layout", type=OneOf(LAYOUTS), default="folder", show_default=True, help="Kind of labels.")
@click.option("--count", default=200, show_default=True, help="Number of images.")
@click.option("--size", default=160, show_default=True, help="Approximate width and height in pixels.")
@click.option("--seed", default=0, show_default=True, help="Random seed; the same seed gives the same bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def sample(out: str, as_json: bool, quiet: bool, **drawing: Any) -> None:
    """Draw a folder OUT of labelled images to try packer with.

    \b
    folder  one folder per class
    voc     boxes as Pascal VOC XML, splits train and val
    yolo    boxes as YOLO text, data.yaml, splits train and val
    list    landmarks.csv: four landmarks and a class per image

    \b
    Examples:
      packer sample shapes --layout voc
      packer build shapes --resize 128x128 --fit pad
    """
    from dataclasses import asdict

    from packer.sources.synthetic import draw_sample

    with ProgressBar(hidden=quiet or as_json) as progress:
        progress.stage("drawing", drawing["count"])
        done = draw_sample(out, **drawing, progress=progress.advance)
    if as_json:
        echo(json.dumps(asdict(done)))
    elif not quiet:
        images, classes = plural(done.images, "image"), plural(len(done.classes), "class")
        echo(f"{as_typed(printable(done.path), [out])}: {images} of {classes}, layout {done.layout}")
        echo(f"pack it: packer build {printable(shlex.quote(out))}")
