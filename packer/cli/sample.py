"""`packer sample`: draw a labelled folder to try things with."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from packer.cli.say import say
from packer.errors import printable

LAYOUTS = ("folder", "voc", "yolo", "list")


@click.command()
@click.argument("out", type=click.Path())
@click.option("--layout", type=click.Choice(LAYOUTS), default="folder", show_default=True, help="Which kind of labels.")
@click.option("--count", default=200, show_default=True, help="How many images.")
@click.option("--size", default=160, show_default=True, help="About how many pixels wide and high.")
@click.option("--seed", default=0, show_default=True, help="Other numbers, other images; the same one, the same bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def sample(out: str, as_json: bool, quiet: bool, **drawing: Any) -> None:
    """Draw a folder OUT of labelled images: shapes in colours, to try packer with.

    \b
    folder  a folder for each class
    voc     boxes as Pascal VOC XML, splits train and val
    yolo    boxes as YOLO text, data.yaml, splits train and val
    list    landmarks.csv: four landmarks and a class for each image

    \b
    Example: packer sample shapes --layout voc
             packer build shapes --resize 128x128 --fit pad
    """
    from dataclasses import asdict

    from packer.cli.progress import bar
    from packer.sources.synthetic import draw_sample

    with bar("drawing", total=drawing["count"], hidden=quiet or as_json) as drawn:
        done = draw_sample(out, **drawing, progress=drawn.update)
    if as_json:
        say(json.dumps(asdict(done)))
    elif not quiet:
        say(f"{printable(done.path)}: {done.images:,} images of {len(done.classes)} classes, layout {done.layout}")
        say(f"pack it: packer build {printable(shlex.quote(out))}")
