"""The command group `packer`. Commands import what they need when they run, so that help is fast."""

from __future__ import annotations

import click

from packer import __version__
from packer.cli.checking import diff, hash_command, info, verify
from packer.cli.help import CommandsInSections, completion
from packer.cli.looking import stats, view
from packer.cli.making import adopt, build, convert, sample
from packer.cli.measuring import bench, demo, doctor
from packer.cli.reshaping import extract, index, merge, repair, split
from packer.cli.storing import cache, clean, pull, push

EPILOG = """\b
Exit codes: 0 good, 1 bad data beyond --max-bad, 2 usage, 3 disk or
permission, 4 a damaged pack, 130 interrupted."""

SECTIONS = {
    "Make packs": (build, adopt, convert, merge, split),
    "Look": (info, view, stats, diff, extract),
    "Check": (verify, repair),
    "Move": (push, pull, cache),
    "Try and measure": (demo, bench, doctor),
}
"""Heading of the help -> the commands below it."""
SELDOM = (hash_command, clean, index, sample, completion)
ALIASES = {"export": extract, "link": adopt}
"""Names that other tools have for a command."""


@click.group(
    cls=CommandsInSections,
    sections=SECTIONS,
    seldom=SELDOM,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
@click.version_option(__version__, "-V", "--version", message="packer %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Pack folders of labelled images, and train from them at memory speed.

    \b
    packer build ./imgs     # packs the images and labels in ./imgs
    packer view imgs.lmdb   # shows the pack in the browser
    """
