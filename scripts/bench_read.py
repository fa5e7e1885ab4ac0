"""How fast packs are read and opened: batches against numpy.take, containers against one another, opening 1 M records.

Batches: raw 32x32 images, shuffled, 512 at a time, through `PackedDataset.__getitems__` with a list of indices, as a
DataLoader asks; against `numpy.take(array, indices, axis=0)` of the same records from one array in memory. The two take
turns batch by batch, so that whatever else the machine does falls on both.

Containers: random raw 224x224 images, 64 at a time, in memory; the containers take turns, in random order.

Opening: a pack of 1 M records of 4x4 pixels, each time in a new process, timed after the imports.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from bench_common import Table, against_goal, direct_pack, parser

from packer import PackedDataset
from packer.bench.measure import Figure
from packer.containers import CONTAINERS

BATCH = 512
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


def epoch(data: PackedDataset, array: np.ndarray, random: np.random.Generator) -> tuple[float, float]:
    """Return the seconds of all batches of one shuffled epoch: of numpy.take, of the pack."""
    order = random.permutation(len(data))
    spent = [0.0, 0.0]
    for start in range(0, len(order) - BATCH + 1, BATCH):
        records = order[start : start + BATCH]
        indices = records.tolist()
        for turn in (0, 1) if start // BATCH % 2 else (1, 0):
            began = time.perf_counter()
            if turn == 0:
                np.take(array, records, axis=0)
            else:
                data.__getitems__(indices)
            spent[turn] += time.perf_counter() - began
    return spent[0], spent[1]


def batches(table: Table, packs: dict[str, Path], array: np.ndarray, rounds: int) -> None:
    """Print the rows of reading with the present number of torch threads."""
    steady: dict[str, list[float]] = {name: [] for name in packs}
    first: dict[str, list[float]] = {name: [] for name in packs}
    rates: dict[str, list[float]] = {name: [] for name in packs}
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for name, path in packs.items():
            data = PackedDataset(path)
            take, ours = epoch(data, array, random)  # with checksums, page faults and columns
            first[name].append(take / ours)
            epoch(data, array, random)
            take, ours = epoch(data, array, random)
            steady[name].append(take / ours)
            rates[name].append(len(data) // BATCH * BATCH / ours)
    threads = torch.get_num_threads()
    for name in packs:
        cells = against_goal(Figure(tuple(steady[name])), 0.8)
        rate = f"{Figure(tuple(rates[name])).median:,.0f}"
        table.row(f"{name}, torch threads: {threads}", *cells, Figure(tuple(first[name])).text(2), rate)


def containers(table: Table, packs: dict[str, Path], rounds: int) -> None:
    """Print the rate of random batches of each container, against that of the fastest."""
    random = np.random.default_rng(0)
    sets = {name: PackedDataset(path) for name, path in packs.items()}
    spent: dict[str, list[float]] = {name: [] for name in packs}
    for data in sets.values():
        data.__getitems__(list(range(len(data))))  # with checksums and page faults
    for _ in range(rounds * 4):
        for records in random.permutation(len(data))[: len(data) // 64 * 64].reshape(-1, 64).tolist():
            for name in random.permutation(list(sets)).tolist():
                began = time.perf_counter()
                sets[name].__getitems__(records)
                spent[name].append(time.perf_counter() - began)
    fastest = min(np.median(times) for times in spent.values())
    for name, times in spent.items():
        ratio = Figure(tuple(fastest / np.median(part) for part in np.array_split(times, 4)))
        table.row(name, *against_goal(ratio, 0.9), f"{64 / np.median(times):,.0f}")


def opening(path: Path, rounds: int) -> list[tuple[str, Figure, float | None]]:
    """Return (what, figure, goal) of opening a pack in new processes."""
    runs = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", OPEN, str(path)], check=True, capture_output=True, text=True)
        runs.append([float(value) for value in done.stdout.split()])
    names = ("open, ms", "open, MB", "open and read three samples, ms", "open and read three samples, MB")
    figures = [Figure(values) for values in zip(*runs, strict=True)]
    return list(zip(names, figures, (50, 20, None, None), strict=True))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--count", type=int, default=8000, help="records of 32x32 [%(default)s]")
    arguments.add_argument("--large", type=int, default=1024, help="records of 224x224; 0: none [%(default)s]")
    arguments.add_argument("--tiny", type=int, default=1_000_000, help="records of the pack that is opened; 0: none")
    given = arguments.parse_args()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="bench-read-", dir=given.work_dir) as folder:
        array = random.integers(0, 256, (given.count, 3072), np.uint8)
        datas = [row.tobytes() for row in array]
        packs = {name: direct_pack(Path(folder, name), name, datas, (32, 32, 3), True) for name in CONTAINERS}
        table = Table("read", "goal", "ratio to numpy.take", "first epoch, verified", "records/s")
        for threads in sorted({torch.get_num_threads(), 1}, reverse=True):
            torch.set_num_threads(threads)
            batches(table, packs, array, given.rounds)
        if given.large:
            datas = [row.tobytes() for row in random.integers(0, 256, (given.large, 224 * 224 * 3), np.uint8)]
            names = [(name, Path(folder, f"large {name}")) for name in CONTAINERS]
            packs = {name: direct_pack(path, name, datas, (224, 224, 3), True) for name, path in names}
            print()
            table = Table("random raw 224x224", "goal", "ratio to the fastest", "records/s")
            containers(table, packs, given.rounds)
        if given.tiny:
            pixels = [(i * 2654435761 % 2**32).to_bytes(4, "little") * 12 for i in range(given.tiny)]
            path = direct_pack(Path(folder, "tiny"), "tfrecord", pixels, (4, 4, 3), True)
            print()
            table = Table(f"{given.tiny:,} records", "goal", "median (lowest to highest)")
            for name, figure, goal in opening(path, given.rounds):
                table.row(name, *against_goal(figure, goal, 1, most=True))


if __name__ == "__main__":
    main()
