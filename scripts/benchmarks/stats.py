"""How fast the pixel pass of `packer stats` is, against a bare copy of the same bytes; one thread each.

Raw packs of 224x224 and of 32x32 images in each container, in memory. And the time of `packer stats --problems` for a
pack of 1,000,000 records with 5 boxes each, of 80 classes: only its index is read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from large_packs import labeled_pack, random_labels

from benchmarks.common import Table, against_goal, direct_pack, figures, in_new_process
from packer import open_pack
from packer.bench.measure import take_turns
from packer.containers import CONTAINERS
from packer.format.pack import Pack
from packer.stats.pixels import channel_stats

PROBLEMS = """
import sys, time, resource
from packer.format.pack import open_pack
from packer.stats.problems import find_problems
begun = time.perf_counter()
find_problems(open_pack(sys.argv[1]))
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def copy_all(pack: Pack, out: np.ndarray) -> None:
    """Copy each record to other memory."""
    size, region = pack.reader.record_bytes or 0, pack.reader.region.parts[0]
    for i, offset in enumerate(pack.reader.places(np.arange(len(pack)))[0].tolist()):
        out[i * size : (i + 1) * size] = region[offset : offset + size]


def compare(table: Table, name: str, path: Path, rounds: int) -> None:
    """Measure one pack, and print its row."""
    pack = open_pack(path)
    out = np.zeros(len(pack) * (pack.reader.record_bytes or 0), np.uint8)
    works = {
        "copy": lambda: copy_all(pack, out),
        "plain": lambda: channel_stats(pack, threads=1, verify=False),
        "checked": lambda: channel_stats(open_pack(path), threads=1),  # opened anew: nothing is verified yet
    }
    seconds = take_turns(works, rounds)
    plain, checked = (seconds["copy"] / seconds[work] for work in ("plain", "checked"))
    speed = seconds["copy"].per_second(len(out) / 1e9)
    table.row(name, *against_goal(plain, 0.8), checked.text(2), speed.text(1))


def problems(home: Path, records: int, rounds: int) -> None:
    """Measure `stats --problems` in new processes, and print a table."""
    path = labeled_pack(home / "labeled", random_labels(records, 5, 80), [f"class{i}" for i in range(80)], 8)
    seconds, peak = figures(in_new_process(PROBLEMS, path) for _ in range(rounds))
    table = Table.of_figures(f"problems of {records:,} records")
    table.figure("seconds", seconds, 5)
    table.figure("memory at its peak, with mapped pages, MB", peak, digits=0)
    shutil.rmtree(path)


def options(parser: Any) -> None:
    parser.add_argument("--records", type=int, default=1_000_000, help="of the pack whose problems are looked for")
    parser.add_argument("--images", type=int, default=2000, help="of 224x224; 25 times as many of 32x32")


def run(given: Any) -> None:
    problems(given.home, given.records, given.rounds)
    table = Table("pack", "goal", "without checksums", "with, as the first time", "copy, GB/s")
    random = np.random.default_rng(0)
    for side, count in ((32, given.images * 25), (224, given.images)):
        some = [random.bytes(side * side * 3) for _ in range(min(count, 500))]
        datas = [some[i % len(some)] for i in range(count)]
        for container in CONTAINERS:
            path = direct_pack(given.home / "pack", container, datas, (side, side, 3), True)
            compare(table, f"raw {side}x{side}, {container}", path, given.rounds)
            shutil.rmtree(path)
