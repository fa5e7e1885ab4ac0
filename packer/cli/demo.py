"""`packer demo`: pack a folder, show before and after, and break copies of the pack on purpose."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shlex
import sys
from dataclasses import asdict
from itertools import count
from typing import Any

import click

from packer.cli.output import LocalPath, ProgressBar, echo
from packer.errors import EXIT_BAD_DATA, UsageError, plural, printable, size_text

MOST_SEED = 1_000_000
HOME = "packer-demo"
SEEN = {True: "as expected", False: "NOT AS EXPECTED", None: "NOT TESTED"}


@click.command()
@click.argument("folder", required=False, type=LocalPath())
@click.option(
    "-o",
    "--out",
    type=LocalPath(),
    metavar="DIR",
    help="New folder for everything that it makes.  [default: packer-demo]",
)
@click.option(
    "--images", type=click.IntRange(8), default=1000, show_default=True, help="Maximum number of images to pack."
)
@click.option(
    "--labels",
    metavar="KIND",
    multiple=True,
    help="With FOLDER: labels to read, as in packer build.  [default: those that it has]",
)
@click.option("--break", "breaking", is_flag=True, help="Break copies of the pack, and check what packer says.")
@click.option("--seed", type=click.IntRange(0), help="Seed of what is drawn and broken.  [default: a random one]")
@click.option("--no-browser", is_flag=True, help="Only print the command that shows the pack.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def demo(context: click.Context, /, folder: str | None, as_json: bool, **given: Any) -> None:
    """Pack FOLDER, or drawn images, and show before and after.

    Reads the folder and its pack as a training script does, then opens the pack in the browser. --break flips a
    bit, kills a build and truncates a shard, all in copies, and checks whether packer keeps its promises; the exit
    code is 1 if it does not. FOLDER is only read. Everything else is in one new folder, which the demo names.

    \b
    Examples:
      packer demo
      packer demo ./imgs --break --seed 7
    """
    from packer.bench.breaking import break_pack
    from packer.bench.demo import before_and_after, make_demo
    from packer.system import load_average, usable_cores

    if given["labels"] and folder is None:
        raise UsageError("--labels", "needs FOLDER", "name the folder, or leave --labels out")
    seed = random.SystemRandom().randrange(MOST_SEED) if given["seed"] is None else given["seed"]
    home, load = given["out"] or _new_name(), load_average()
    facts: dict[str, Any] = {"load_before": load, "cores": usable_cores()}
    with ProgressBar(hidden=as_json) as progress:
        made = make_demo(folder, home, given["images"], seed, progress, given["labels"])
        summary = made.summary
        facts |= {"folder": home, "seed": seed, "pack": summary.path, "images": summary.manifest.records}
        facts |= {"files_bytes": made.files_bytes, "pack_bytes": summary.pack_bytes, "build_s": summary.seconds}
        progress.close()
        records = plural(summary.manifest.records, "image")
        progress.note(
            f"packed {records}: {size_text(made.files_bytes)} of files, {size_text(summary.pack_bytes)} of pixels"
        )
        if importlib.util.find_spec("torch") is None:
            progress.note("note: reading them in turns needs PyTorch; pip install torch")
        else:
            rows = before_and_after(made, progress)
            progress.close()
            facts["images_per_s"] = {row.name: list(row.rate.rounds) for row in rows if row.rounds}
            for row in rows:
                progress.note(f"{row.name:<28} {row.left_out or row.rate.text(0) + ' images/s'}")
            if all(row.rounds for row in rows):
                facts["times"] = rows[1].rate.median / rows[0].rate.median
                if load is not None and load > usable_cores():
                    progress.note(f"warning: UNRELIABLE, so no ratio: other programs use the cores (load {load:g})")
                else:
                    progress.note(f"the pack is read {facts['times']:.1f} times as fast")
        facts["steps"] = []
        if given["breaking"]:
            progress.note(f"\nbreaking copies in {printable(home)}, --seed {seed}:")
            broken = os.path.join(home, "broken")
            os.mkdir(broken)
            for step in break_pack(summary.path, made.build, broken, seed):
                facts["steps"].append(asdict(step))
                progress.note(f"\n{step.name}: {SEEN[step.good]}")
                for what in ("done", "expected", "seen"):
                    progress.note(f"  {what:<9} {printable(getattr(step, what))}")
    failed = [step["name"] for step in facts["steps"] if step["good"] is False]
    if as_json:
        echo(json.dumps(facts))
    else:
        echo(f"\neverything is in {printable(home)}; remove it with: rm -r {printable(shlex.quote(home))}")
    if failed:
        sys.exit(EXIT_BAD_DATA)
    if as_json or given["breaking"]:
        return
    show = printable(shlex.quote(os.path.relpath(summary.path)))
    if given["no_browser"] or not has_screen():
        echo(f"look at it: packer view {show}")
        return
    from packer.cli.view import view

    context.invoke(view, packs=(summary.path,))


def _new_name() -> str:
    """Return the first of packer-demo, packer-demo-2, ... that does not exist."""
    return next(name for n in count(1) if not os.path.lexists(name := HOME if n == 1 else f"{HOME}-{n}"))


def has_screen() -> bool:
    """Return whether a browser can be shown, to somebody who sits at a terminal."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
