"""`packer doctor`: describe this machine for a bug report, and say what would be faster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from packer import __version__
from packer.cli.output import echo
from packer.errors import plural, printable, size_text
from packer.system.machine import install_command

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
    for name, value in lines(facts):
        echo(f"{name:<11} {printable(value)}")
    echo("")
    for line in facts["advice"]:
        echo(f"note: {printable(line)}")


def lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
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
