"""What a cluster needs for a pack of 100 million images: time, requests, memory, money, and what limits each phase.

Nothing of it runs here: it is a simulation (`scripts/simulation/`) with rates that are measured on one machine and with
limits and prices that are stated.

    python scripts/simulate.py                                    # the defaults, with their sources
    python scripts/simulate.py --set nodes=16 --set prefixes=10
    python scripts/simulate.py --file mine.json                   # the same names
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace
from pathlib import Path

from benchmarks.common import Table
from simulation.cluster import Phase, building, listing, planning
from simulation.setting import Setting, parsed
from simulation.training import BLOCK, Stretch, epoch, opening

STEPS, STEPS_OF_PARTS = 60, 240
"""Simulated of an epoch; the second half of them stands for the others. If each node reads its own part, a step takes
few requests, and more of them are needed for a mean."""
IN_MEMORY = 0.8
"""Share of a node's memory that may be page cache of the pack."""
POINTS = 4
"""Parts of an epoch whose need for blocks changes while it goes on; each is simulated as in its middle."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a number of the setting")
    arguments.add_argument("--file", type=Path, help="JSON with numbers of the setting")
    given = arguments.parse_args()
    try:
        named = json.loads(given.file.read_text("utf-8")) if given.file else {}
        setting = Setting(**{**named, **parsed(given.set)})
    except (ValueError, TypeError, OSError) as error:
        arguments.error(str(error))
    print_setting(setting)
    print_build(setting)
    print_training(setting)


def print_setting(setting: Setting) -> None:
    """Print all numbers with their sources."""
    table = Table("number", "value", "source")
    for one in fields(Setting):
        value, unit = getattr(setting, one.name), one.metadata["unit"]
        source = one.metadata["source"] if value == one.default else "given"
        value = setting.bytes_of_shard if one.name == "shard_bytes" else value
        text = f"{value:g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
        table.row(f"`{one.name}`{', ' if unit else ''}{unit}", text, source)
    print()


def phase_table() -> Table:
    """Return the table of phases."""
    return Table("phase", "time", "requests", "from the store", "USD machines", "USD requests", "memory", "busiest")


def print_phase(table: Table, phase: Phase, setting: Setting, usd_hour: float) -> None:
    """Print one phase."""
    gets, puts = phase.requests["GET"], phase.requests["PUT"] + phase.requests["LIST"]
    asked = gets / 1000 * setting.usd_1000_gets + puts / 1000 * setting.usd_1000_puts
    asked += phase.bytes_read / 1e9 * setting.usd_gb_out
    memory = ", ".join(f"{size / 1e9:.1f} GB {whose}" for whose, size in phase.memory.items())
    machines = phase.seconds / 3600 * usd_hour
    table.row(
        phase.name, time_text(phase.seconds), f"{gets + puts:,.0f}", f"{phase.bytes_read / 1e12:.2f} TB",
        f"{machines:,.0f}", f"{asked:,.0f}", memory, phase.bottleneck,
    )  # fmt: skip


def time_text(seconds: float) -> str:
    """Return a duration with the unit that fits."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_build(setting: Setting) -> None:
    """Print what a build costs, as it is set, and with headers and raw images."""
    table = phase_table()
    hour = setting.build_nodes * setting.build_usd_hour
    print_phase(table, listing(setting), setting, setting.build_usd_hour)
    print_phase(table, planning(setting), setting, hour)
    if not setting.headers:
        late = replace(planning(replace(setting, headers=True)), name="plan, if headers are needed")
        print_phase(table, late, setting, hour)
    print_phase(table, building(setting), setting, hour)
    if setting.output_in_store:
        print_phase(
            table,
            replace(building(replace(setting, output_in_store=False)), name="build to a shared file system"),
            setting,
            hour,
        )
    print()


def print_training(setting: Setting) -> None:
    """Print what opening and epochs cost, with and without canonical nodes and caches."""
    table = phase_table()
    hour = setting.nodes * setting.usd_hour
    print_phase(table, opening(setting), setting, hour)
    kinds = (
        ("BlockShuffleSampler(nodes=)", {"block_shuffle": True, "canonical": True}),
        ("BlockShuffleSampler", {"block_shuffle": True, "canonical": False}),
        ("ShuffleSampler", {"block_shuffle": False, "canonical": False}),
    )
    for name, changes in kinds:
        kind = replace(setting, **changes)
        firsts = [
            first_epoch(replace(kind, prefixes=prefixes), f"{name}: first epoch, prefixes: {prefixes}")
            for prefixes in sorted({setting.prefixes, 10 * setting.prefixes})
        ]
        for first in firsts:
            print_phase(table, first, setting, hour)
        fetched = firsts[0].bytes_read / setting.nodes
        share = held_share(kind, fetched)
        if fetched < IN_MEMORY * setting.memory_bytes:
            kind = replace(kind, disk_bytes_s=0.0)
        second = epoch(
            kind,
            f"{name}: second epoch, {share:.0%} is in the cache",
            Stretch(cached=share, has_indexes=True),
            steps_of(kind),
        )
        print_phase(table, second, setting, hour)


def held_share(setting: Setting, fetched: float) -> float:
    """Return how much of what a node needs in the second epoch is in its cache after it has fetched so many bytes.

    With canonical nodes it needs the same blocks again, else any.
    """
    needed = fetched if setting.canonical else setting.pack_bytes
    return min(1.0, min(setting.cache_bytes, fetched) / needed)


def first_epoch(setting: Setting, name: str) -> Phase:
    """Return an epoch that begins with an empty cache.

    What it needs becomes less while it goes on. Of a block shuffle that are the blocks in which two runs meet, and its
    middle stands for all of it; of a shuffle of all records, the sum of some parts does.
    """
    if setting.block_shuffle:
        steps, whole = steps_of(setting), setting.images / (setting.nodes * setting.ranks * setting.batch)
        middle = Stretch(0.5 - 0.75 * steps / whole)  # of the steps that stand for the others
        return epoch(setting, name, middle, steps) if whole > 2 * steps else epoch(setting, name)
    parts = [epoch(setting, name, part_of(setting, number), STEPS // POINTS) for number in range(POINTS)]
    phase = parts[0]
    phase.busy = {
        kind: sum(part.busy.get(kind, 0.0) * part.seconds for part in parts) / sum(part.seconds for part in parts)
        for kind in {kind for part in parts for kind in part.busy}
    }
    phase.seconds = sum(part.seconds for part in parts)
    phase.bytes_read = sum(part.bytes_read for part in parts)
    phase.requests = {kind: sum(part.requests[kind] for part in parts) for kind in phase.requests}
    return phase


def steps_of(setting: Setting) -> int:
    """Return how many steps of an epoch to simulate."""
    return STEPS_OF_PARTS if setting.block_shuffle and setting.canonical else STEPS


def part_of(setting: Setting, number: int) -> Stretch:
    """Return one of the parts of an epoch in random order, with as many blocks in the cache as in the middle of it."""
    middle = (number + 0.5) / POINTS
    images_of_block = 1 + BLOCK / setting.image_bytes  # that have bytes in it
    cached = 1 - (1 - middle / setting.nodes) ** images_of_block
    return Stretch(middle, 1 / POINTS, cached, has_indexes=number > 0)


if __name__ == "__main__":
    main()
