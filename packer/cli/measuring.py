"""Commands that measure: `packer bench`, `demo` and `doctor`."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from packer import __version__
from packer.cli.output import LocalPath, ProgressBar, echo, table_text
from packer.cli.storing import cache_dir_option
from packer.cli.values import OneOf, PackPath
from packer.containers import CONTAINERS
from packer.errors import EXIT_BAD_DATA, UsageError, plural, printable, size_text
from packer.system.machine import install_command

if TYPE_CHECKING:
    from packer.bench import Figure, Report, Row


@click.command()
@click.argument("path", metavar="[SRC|PACK]", type=PackPath(), required=False)
@click.option("--images", type=int, help="Number of images to sample.  [default: 1000; from PACK up to 1 GiB]")
@click.option("--rounds", default=3, show_default=True, help="Number of measurements of each row; rows take turns.")
@click.option("--batch-size", default=64, show_default=True, help="Images per batch.")
@click.option(
    "--threads", type=int, help="Threads of PackedLoader and workers of a DataLoader.  [default: the usable cores]"
)
@click.option("--seconds", default=0.7, show_default=True, help="Minimum duration of a measurement.")
@click.option("--resize", metavar="WxH", help="Image size in batches.  [default: the median size, at most 224x224]")
@click.option(
    "--format",
    "formats",
    type=OneOf(CONTAINERS),
    metavar="NAME",
    multiple=True,
    help="Measure this container instead of lmdb, hdf5, tfrecord and webdataset. May be repeated.",
)
@click.option(
    "--encode",
    "encodings",
    type=OneOf(("raw", "jpeg")),
    metavar="NAME",
    multiple=True,
    help="Measure only raw or jpeg. May be repeated.",
)
@click.option("--cold", is_flag=True, help="Drop the files from memory before each measurement, as in a first epoch.")
@click.option(
    "--tune", is_flag=True, help="Find the best threads (num_workers), prefetch and window; print the line to paste."
)
@click.option("--step-ms", type=float, help="Duration of a training step; shows how long it waits for data.")
@click.option(
    "--loader",
    metavar="MODULE:FUNCTION",
    help="Also measure the DataLoader (any iterable of batches) that this function returns.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="cuda includes the copy to the device and the normalization there.",
)
@click.option("--seed", default=0, show_default=True, help="Random seed of the sample and of the orders.")
@click.option("--work-dir", type=LocalPath(), help="Folder to build packs in.  [default: the temporary folder]")
@cache_dir_option
@click.option(
    "--report",
    "report_dir",
    type=LocalPath(),
    help="Write a page with the answer and charts to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with every round.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def bench(path: str | None, tune: bool, report_dir: str | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Measure how fast images are read on this machine.

    Compares a plain folder with packs of it, and both with the limits of the machine. Without an argument,
    drawn images are measured (one to two minutes). SRC measures a sample of your own images, PACK (a folder, or
    a URL, which is fetched into the cache before) the loader with different threads and batches. --loader measures
    your own loader, alone or beside SRC or PACK. Every figure is the median of all rounds, with their spread. If the
    machine is too busy, the first line says UNRELIABLE.

    \b
    Examples:
      packer bench
      packer bench ./imgs --report ./bench
      packer bench imgs.lmdb --tune --step-ms 45
      packer bench imgs.lmdb --loader my_module:make_loader --step-ms 45
    """
    from packer.bench import BenchOptions, beside, compare, sweep
    from packer.bench import tune as find_best
    from packer.errors import UsageError
    from packer.format.pack_paths import names_a_pack
    from packer.stores import is_url

    if importlib.util.find_spec("torch") is None:  # the measuring processes import it
        raise ModuleNotFoundError("torch", name="torch")
    options = BenchOptions(**{name: value for name, value in given.items() if value not in (None, ())})
    if options.loader is not None and tune:
        raise UsageError("--tune", "cannot be combined with --loader", "leave one of them out")
    if tune and path is None:
        raise UsageError("--tune", "needs a pack or a folder", "name one")
    if report_dir is not None:
        from packer.bench.report_page import prepare_report

        prepare_report(report_dir)
    command = shlex.join(["packer", *map(os.fsdecode, sys.argv[1:])]) if sys.argv[1:2] == ["bench"] else "packer bench"
    is_pack = path is not None and (is_url(path) or names_a_pack(path))
    if options.step_ms is not None and is_pack and not tune and options.loader is None:
        raise UsageError("--step-ms", "needs a folder, --tune or --loader", "add --tune")
    with ProgressBar(hidden=quiet or as_json) as progress:
        if tune:
            report = find_best(path or "", options, command, progress)
        elif options.loader is not None and (is_pack or path is None):
            report = beside(path, options, command, progress)
        elif is_pack:
            report = sweep(path or "", options, command, progress)
        else:
            report = compare(path, options, command, progress)
    if as_json:
        echo(json.dumps(report.facts()))
    else:
        for line in lines(report):
            echo(line)
    if report_dir is not None:
        from packer.bench.report_page import write_report

        page = write_report(report, report_dir)
        if not as_json:
            echo(f"report: {printable(page)}")


def lines(report: Report) -> Iterator[str]:
    """Return the lines of the report."""
    from packer.bench.report import settings_text

    machine, settings = report.machine, report.settings
    yield from _wrap_line(printable(report.answer))
    yield ""
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, {machine['date']}; "
        f"JPEG decoder: {machine['decoder']}"
    )
    yield from _wrap_line(", ".join(f"{name} {version}" for name, version in machine["versions"].items()))
    yield from _wrap_line(settings_text(settings))
    yield ""
    cells = [_cells(report, row) for row in report.rows]
    hidden = "waiting" if report.what == "compare" else ""  # the conclusion has it, and 100 columns are full
    used = [i for i, name in enumerate(HEAD) if i < 2 or (name != hidden and any(row[i] for row in cells))]
    head = ("cold" if settings["cold"] else "warm", *HEAD[1:])
    yield from table_text([[row[i] for i in used] for row in (head, *cells)], right=range(1, len(used)))
    meanings = [f"{HEAD[i]}: {MEANINGS[HEAD[i]]}" for i in used if HEAD[i] in MEANINGS]
    yield from _wrap_line("; ".join([f"median of {settings['rounds']} rounds ±half their range", *meanings]))
    for note in [*(f"{row.name} is left out: {row.left_out}" for row in report.rows if row.left_out), *report.notes]:
        yield from _wrap_line(f"note: {printable(note)}")
    if report.conclusion:
        yield ""
    for line in report.conclusion:
        yield from [printable(line)] if line.startswith("paste: ") else _wrap_line(printable(line))


def _wrap_line(line: str) -> list[str]:
    return textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False)


HEAD = ("", "images/s", "of limit", "MB/s", "CPU s/1k", "first s", "waiting", "peak MB", "cached", "disk MB", "build s")
MEANINGS = {
    "of limit": "by its best round",
    "MB/s": "stored bytes, spread as images/s",
    "first s": "until the first batch",
    "peak MB": "memory of its own, without the page cache",
}
"""Column -> what its name does not say."""


def _cells(report: Report, row: Row) -> tuple[str, ...]:
    if row.left_out:
        return row.name, "left out", *[""] * (len(HEAD) - 2)
    share = report.share(row)
    limit = row.name.startswith("limit")
    return (
        row.name,
        _figure(row.figure("images_per_s"), 0),
        "" if share is None else f"{share.median:,.2f}",
        _plain(row.figure("megabytes_per_s").median) if row.stored_bytes else "",
        _figure(row.figure("cpu_s_per_1000"), 2),
        "" if limit or row.job.kind == "cached" else _figure(row.figure("first_batch_s"), 2),
        "" if row.rounds[0].waiting is None else _figure(row.figure("waiting"), 2),
        "" if limit else _figure(row.figure("peak_mb"), 0),
        "" if row.in_cache is None else f"{row.in_cache:.0%}",
        "" if limit or row.disk_bytes is None else f"{row.disk_bytes / 1e6:,.1f}",
        "" if row.build_s is None else _figure(row.build_s, 1),
    )


def _figure(figure: Figure, digits: int) -> str:
    half = (figure.highest - figure.lowest) / 2
    if not figure.median:
        return "0"
    number = f"{figure.median:,.{digits}f}"
    if figure.median >= 1e5:  # more digits would exceed the precision, and the width of 100 columns
        number = f"{figure.median / 1e3:,.0f} k" if figure.median < 1e6 else f"{figure.median / 1e6:,.2f} M"
    return f"{number} ±{half / figure.median:.0%}"


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


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
    from packer.bench.demo import before_and_after, break_pack, make_demo
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
    from packer.cli.looking import view

    context.invoke(view, packs=(summary.path,))


def _new_name() -> str:
    """Return the first of packer-demo, packer-demo-2, ... that does not exist."""
    return next(name for n in count(1) if not os.path.lexists(name := HOME if n == 1 else f"{HOME}-{n}"))


def has_screen() -> bool:
    """Return whether a browser can be shown, to somebody who sits at a terminal."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "lustre", "gpfs", "ceph", "glusterfs", "9p", "beegfs")
LEAST_SHM, LEAST_DISK, LEAST_MEMORY = 1 << 30, 5 << 30, 1 << 30


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Describe this machine, for a bug report or a slow one.

    Versions, cores, memory, disks, GPUs, extras, and the JPEG decoders with the images/s of one thread (500x375
    pixels); then what would be faster. Takes some seconds, needs no pack, and sends nothing anywhere.

    \b
    Examples:
      packer doctor
      packer doctor --json
    """
    from packer.images.decoders import decoder_rates
    from packer.system.machine import extra_facts, gpu_facts, machine_facts, version_facts

    facts: dict[str, Any] = {"packer": __version__, **machine_facts(), "libraries": version_facts()}
    facts |= {"gpu": gpu_facts(), "decoders": decoder_rates(), "extras": extra_facts()}
    facts["advice"] = list(advice(facts))
    if as_json:
        echo(json.dumps(facts))
        return
    for name, value in doctor_lines(facts):
        echo(f"{name:<11} {printable(value)}")
    echo("")
    for line in facts["advice"]:
        echo(f"note: {printable(line)}")


def doctor_lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each line of the report."""
    yield "packer", facts["packer"]
    yield "python", facts["python"]
    yield "system", facts["system"]
    load = "" if facts["load"] is None else f", load {facts['load']:g}"
    yield "cores", f"{facts['usable_cores']} usable of {facts['cores']}{load}; {facts['processor']}"
    if facts["memory_bytes"] is not None:
        yield "memory", f"{size_text(facts['available_bytes'])} available of {size_text(facts['memory_bytes'])}"
    for disk in facts["disks"]:
        free, total = size_text(disk["free_bytes"]), size_text(disk["total_bytes"])
        yield "disk", f"{disk['path']} ({disk['what']}): {free} free of {total}, {disk['file_system'] or 'unknown'}"
    found = [f"{name} {one['version']}" for name, one in facts["libraries"].items() if one["problem"] is None]
    yield "libraries", ", ".join(found)
    for name, one in facts["libraries"].items():
        if one["problem"] is not None:
            yield "", f"{name}: {one['problem']}"
    gpu = facts["gpu"]
    shown = [f"{one['name']}, {size_text(one['memory_bytes'])}" for one in gpu["devices"]]
    driver = "" if gpu["driver"] is None else f", driver {gpu['driver']}"
    yield "gpu", f"{'; '.join(shown) or 'none'}{driver}" + (f" ({gpu['problem']})" if gpu["problem"] else "")
    for number, (name, rate) in enumerate(facts["decoders"].items()):
        value = f"{rate:,.0f} images/s in one thread" if isinstance(rate, float) else f"does not work: {rate}"
        yield "" if number else "decoders", f"{name:<10} {value}"
    for number, (name, parts) in enumerate(facts["extras"].items()):
        versions = ", ".join(f"{part} {version}" for part, version in parts.items() if version is not None)
        yield "" if number else "extras", f"{name:<11} {versions or 'not installed'}"


def advice(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what to do, each with a command."""
    for name, one in facts["libraries"].items():
        if one["problem"] is not None:
            again = "--force-reinstall " if one["version"] else ""
            yield f"{name}: {one['problem']}; pip install {again}{DISTRIBUTIONS.get(name, name)}"
    rates = {name: rate for name, rate in facts["decoders"].items() if isinstance(rate, float)}
    if rates and facts["usable_cores"]:
        best = max(rates, key=lambda name: rates[name])
        total = rates[best] * facts["usable_cores"]
        yield (
            f"{plural(facts['usable_cores'], 'core')} can decode about {total:,.0f} photos/s of 500x375 ({best}); raw "
            "pixels of a smaller size need no decoding: packer build SRC --resize 224 (packer bench SRC measures it)"
        )
    if rates and "fast" not in rates:
        yield f"crops of JPEGs decode 1.8 times as fast with the native decoder: {install_command('fast')}"
    if facts["usable_cores"] < facts["cores"]:
        yield (
            f"this process may use {facts['usable_cores']} of {facts['cores']} cores; taskset -p $$ shows its "
            "affinity, and docker run --cpus, or the job's request, sets the limit of a container"
        )
    if facts["load"] is not None and facts["load"] > facts["usable_cores"]:
        yield f"other programs use the cores (load {facts['load']:g}), so figures are too low; top shows which"
    available = facts["available_bytes"]
    if available is not None and available < LEAST_MEMORY:
        yield f"only {size_text(available)} of memory are available; build with fewer workers: packer build --workers 1"
    for disk in facts["disks"]:
        free, kind = disk["free_bytes"], disk["file_system"] or ""
        if disk["what"] == "shm":
            if disk["total_bytes"] < LEAST_SHM:
                yield (
                    f"{disk['path']} has only {size_text(disk['total_bytes'])}: workers of a DataLoader may end with a "
                    "bus error; docker run --shm-size=8g makes it larger, and PackedLoader needs none"
                )
        elif free < LEAST_DISK:
            yield f"only {size_text(free)} are free in {disk['path']}; choose another disk: packer build SRC --out PACK"
        if disk["what"] == "current folder" and kind.startswith(NETWORK):
            yield f"this folder is on a network ({kind}); copy packs to a disk of this machine: cp -r PACK /local"
    gpu = facts["gpu"]
    if gpu["driver"] is not None and not gpu["devices"]:
        yield f"there is a GPU, but {gpu['problem']}; install torch for its driver: pip install --force-reinstall torch"


DISTRIBUTIONS = {"opencv": "opencv-python-headless"}
