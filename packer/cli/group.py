"""The command group `packer`. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import click

from packer import __version__
from packer.cli.bench import bench
from packer.cli.build import build
from packer.cli.info import info
from packer.cli.repair import repair
from packer.cli.sample import sample
from packer.cli.stats import stats
from packer.cli.verify import verify
from packer.cli.view import view

EPILOG = """\b
Exit codes: 0 good, 1 bad data beyond --max-bad, 2 usage, 3 disk or permission,
4 a damaged pack, 130 interrupted."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=EPILOG)
@click.version_option(__version__, message="packer %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Pack folders of labelled images, and train from them at memory speed.

    \b
    packer build ./imgs            make ./imgs.lmdb of the images and labels in ./imgs
    packer info imgs.lmdb          say what a pack holds
    packer stats imgs.lmdb         classes, boxes, sizes, mean and std, duplicates
    packer view imgs.lmdb          look at it in the browser
    packer verify imgs.lmdb        check every byte of it
    packer repair imgs.lmdb        save what can be saved of it
    packer bench ./imgs            how fast your folder and packs of it are read here
    packer sample ./shapes         draw a labelled folder to try things with
    """


for command in (build, info, verify, repair, sample, stats, bench, view):
    cli.add_command(command)
