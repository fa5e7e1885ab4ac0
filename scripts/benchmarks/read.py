"""How fast packs are read and opened: batches against numpy.take, and what opening 1 M records costs.

Batches: raw images, 32x32 and 512 at a time unless --side and --batch say otherwise, shuffled, through
`PackedDataset.__getitems__` with a list of indices, as a DataLoader asks; against `numpy.take(array, indices, axis=0)`
of the same records from one array in memory. The two take turns batch by batch, so that whatever else the machine does
falls on both.

Opening: a pack of 1 M records of 4x4 pixels, each time in a new process, timed after the imports.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import Table, against_goal, direct_pack, figures, in_new_process, tiny_pack
from packer import PackedDataset
from packer.containers import CONTAINERS

OPEN = """
import gc, os, sys, time
from packer import PackedDataset

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

gc.collect()
before, start = rss(), time.perf_counter()
data = PackedDataset(sys.argv[1])
opened, memory = time.perf_counter() - start, rss() - before
data[len(data) // 2]
data.__getitems__([0, len(data) - 1])
print(opened * 1e3, memory / 2**20, (time.perf_counter() - start) * 1e3, (rss() - before) / 2**20)
"""


def epoch(data: PackedDataset, array: np.ndarray, random: np.random.Generator, size: int) -> tuple[float, float]:
    """Return the seconds of all batches of one shuffled epoch: of numpy.take, of the pack."""
    order = random.permutation(len(data))
    spent = [0.0, 0.0]
    for start in range(0, len(order) - size + 1, size):
        records = order[start : start + size]
        indices = records.tolist()
        for turn in (0, 1) if start // size % 2 else (1, 0):
            began = time.perf_counter()
            if turn == 0:
                np.take(array, records, axis=0)
            else:
                data.__getitems__(indices)
            spent[turn] += time.perf_counter() - began
    return spent[0], spent[1]


def batches(table: Table, packs: dict[str, Path], array: np.ndarray, rounds: int, size: int) -> None:
    """Print the rows of reading with the present number of torch threads."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in packs}
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for name, path in packs.items():
            data = PackedDataset(path)
            # the first with checksums, page faults and columns
            (first_take, first), _, (take, ours) = (epoch(data, array, random, size) for _ in range(3))
            found[name].append((take / ours, first_take / first, len(data) // size * size / ours))
    for name, values in found.items():
        steady, verified, rate = figures(values)
        what = f"{name}, torch threads: {torch.get_num_threads()}"
        table.row(what, *against_goal(steady, 0.8), verified.text(2), f"{rate.median:,.0f}")


def options(parser: Any) -> None:
    parser.add_argument("--count", type=int, default=8000, help="records [%(default)s]")
    parser.add_argument("--side", type=int, default=32, help="their height and width [%(default)s]")
    parser.add_argument("--batch", type=int, default=512, help="records of a batch [%(default)s]")
    parser.add_argument("--formats", nargs="+", default=list(CONTAINERS), choices=CONTAINERS)
    parser.add_argument("--tiny", type=int, default=1_000_000, help="records of the pack that is opened; 0: none")


def run(given: Any) -> None:
    array = np.random.default_rng(0).integers(0, 256, (given.count, given.side**2 * 3), np.uint8)
    datas, shape = [row.tobytes() for row in array], (given.side, given.side, 3)
    packs = {name: direct_pack(given.home / name, name, datas, shape, True) for name in given.formats}
    table = Table("read", "goal", "ratio to numpy.take", "first epoch, verified", "records/s")
    for threads in sorted({torch.get_num_threads(), 1}, reverse=True):
        torch.set_num_threads(threads)
        batches(table, packs, array, given.rounds, given.batch)
    if given.tiny:
        path = tiny_pack(given.home / "tiny", given.tiny)
        print()
        table = Table.of_figures(f"{given.tiny:,} records")
        found = figures(in_new_process(OPEN, path) for _ in range(given.rounds))
        names = ("open, ms", "open, MB", "open and read three samples, ms", "open and read three samples, MB")
        for name, figure, goal in zip(names, found, (50, 20, None, None), strict=True):
            table.figure(name, figure, goal, 1)
