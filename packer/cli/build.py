"""`packer build`: pack a folder of labelled images."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from packer.cli.build_report import plan_facts, plan_lines, summary_facts, summary_lines
from packer.cli.help import OptionsInSections
from packer.cli.options import build_options
from packer.cli.output import LocalPath, ProgressBar, echo
from packer.errors import UsageError, option
from packer.packing import BuildOptions, build_packs, build_parts, plan_packs
from packer.packing.option_table import BAD_DATA, IMAGE, INPUT, LABELS, OPTIONS, OUTPUT, RUN

FIRST = (*(row.name for row in OPTIONS if row.first), "dry_run")
"""What most people need; --help-all shows the others, too."""
SECTIONS = {
    heading: tuple(row.name for row in OPTIONS if row.section == heading)
    for heading in (INPUT, LABELS, IMAGE, OUTPUT, BAD_DATA)
}
"""Heading -> the options below it; all others are below Run."""


@click.command(cls=OptionsInSections, sections=SECTIONS, rest=RUN, first=FIRST)
@click.argument("source", metavar="SRC", type=click.Path(), required=False)
@build_options
@click.option(
    "--config",
    type=LocalPath(),
    metavar="FILE",
    help="Take options that are not given from a YAML file with the same names: resize: 256.",
)
@click.option("--dry-run", is_flag=True, help="Read headers and labels, print options and plan, and stop.")
@click.option("--deep", is_flag=True, help="With --dry-run: decode every image too.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, also after an error.")
@click.pass_context
def build(context: click.Context, /, dry_run: bool, deep: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Pack the images and labels in SRC: a folder, a zip or a tar.

    SRC and the new pack may be in object stores: give their URLs. If SRC has splits, such as train/ and val/, a
    pack is made for each, with the same class ids.

    \b
    Examples:
      packer build ./imgs --resize 256 --encode jpeg
      packer build train.tar --labels folder -o train.lmdb
      packer build ./VOC --labels voc --resize 300x300 --fit pad -o voc.hdf5
      packer build ./imgs -o s3://bucket/imgs --resize 256 --encode jpeg
      packer build s3://bucket/imgs -o imgs.lmdb --engine ray:HEAD:6379
      packer build VOC --labels voc --labels list:a.txt --columns "path (x y)*5"
    """
    if deep and not dry_run:
        raise UsageError(option("deep"), "is for --dry-run: a build decodes every image anyway", "leave it out")
    options = _options(context, given)
    with ProgressBar(hidden=quiet or as_json) as progress:
        if dry_run:
            plans = plan_packs(options, progress, deep)
            found = [(plan_facts(plan), plan_lines(plan, deep)) for plan in plans]
        elif options.part is not None:
            parts = build_parts(options, progress)
            found = [({**asdict(part), "part": str(part.part)}, [part.line]) for part in parts]
        else:
            summaries = build_packs(options, progress)
            found = [(summary_facts(one), summary_lines(one, one.output or one.path)) for one in summaries]
        progress.close()
        for _, lines in found:
            for line in lines:
                progress.note(line)  # not `echo`: the build has succeeded even if nobody reads this
    if as_json:
        from packer.packing.quarantine import list_path

        every = [facts for facts, _ in found]
        facts = every[0] if len(every) == 1 else {"packs": every}
        echo(json.dumps({**facts, "quarantine": list_path(options) if len(every) == 1 else options.quarantine}))


def _options(context: click.Context, given: dict[str, Any]) -> BuildOptions:
    """Return the options: those of the command line, else of ``--config``, else of ``--like``, else the defaults."""
    from packer.packing.recorded import merged_options, read_config

    default = click.core.ParameterSource.DEFAULT
    chosen = {name: value for name, value in given.items() if context.get_parameter_source(name) != default}
    for row in OPTIONS:
        if row.read is not None and row.name in chosen:
            chosen[row.name] = row.read(chosen[row.name])
    config = chosen.pop("config", None)
    merged = {**({} if config is None else read_config(config)), **chosen}
    if "source" not in merged:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    return merged_options(merged)
