"""The command group `packer`. Commands import what they need when they run, so that help is fast."""

from __future__ import annotations

import click

from packer import __version__
from packer.cli.adopt import adopt
from packer.cli.bench import bench
from packer.cli.build import build
from packer.cli.cache import cache
from packer.cli.clean import clean
from packer.cli.completion import completion
from packer.cli.convert import convert
from packer.cli.demo import demo
from packer.cli.diff import diff
from packer.cli.doctor import doctor
from packer.cli.extract import extract
from packer.cli.hash import hash_command
from packer.cli.help import CommandsInSections
from packer.cli.index import index
from packer.cli.info import info
from packer.cli.merge import merge
from packer.cli.pull import pull
from packer.cli.push import push
from packer.cli.repair import repair
from packer.cli.sample import sample
from packer.cli.split import split
from packer.cli.stats import stats
from packer.cli.verify import verify
from packer.cli.view import view

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
