"""What a pack of 100 million records costs a process that trains: opening it, its first batch, and memory of its own;
and what weights of as many records cost (`WeightedSampler`).

The pack takes 15 MB of disk: its shards are sparse, and one index has all names. Memory is what the process has
written, above what a pack of 2,000 records takes: pages of shards and indexes belong to the page cache.

Weights: updates of random records with random losses, UPDATED at a time, as 8 ranks with batches of 128 gather them;
then as many draws of an epoch as it takes DRAWS, by batches of 256; then another epoch after as many updates. Memory is
the peak of the process, less what it takes before it makes the sampler. Times are those of the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from large_packs import large_pack

from benchmarks.common import Table, figures, in_new_process
from packer.bench.measure import Figure

SIDE = 224
RECORDS_A_SHARD = (1 << 30) // (SIDE * SIDE * 3)
PROGRAM = """
import sys, time
from packer import PackedLoader, open_pack
from packer.samplers import ShuffleSampler
begun = time.perf_counter()
pack = open_pack(sys.argv[1])
opened = time.perf_counter()
batches = iter(PackedLoader(pack, 64, sampler=ShuffleSampler(pack), threads=2))
batch = next(batches)
first = time.perf_counter()
lines = open("/proc/self/smaps_rollup").read().splitlines()
dirty = sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
print(opened - begun, first - opened, dirty / 1024)
"""
UPDATED, DRAWS = 1024, 4_000_000
WEIGHTED = f"""
import sys, time
import numpy as np
from packer.samplers import WeightedSampler

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024

records, most = int(sys.argv[1]), min({DRAWS}, int(sys.argv[1]) // 2)
rng = np.random.default_rng(0)
chosen = rng.integers(0, records, (1000, {UPDATED}))
losses = rng.exponential(size=chosen.shape).astype(np.float32)
before = resident("VmRSS")
sampler = WeightedSampler(records)

def update():
    begun = time.process_time()
    for one, loss in zip(chosen, losses):
        sampler.update(one, loss)
    return time.process_time() - begun

updating = update()
begun = time.process_time()
batches = sampler.rank_samples(256, 0)
next(batches)
first = time.process_time()
drawn = 0
for batch in batches:
    drawn += len(batch)
    if drawn >= most:
        break
drawing = time.process_time() - first
update()
again = time.process_time()
next(sampler.rank_samples(256, 1))
ended = time.process_time()
peak = resident("VmHWM")
print(chosen.size / updating, drawn / drawing, (peak - before) / 1e9, first - begun, ended - again)
"""


def options(parser: Any) -> None:
    parser.add_argument("--records", type=int, default=100_000_000, help="records of the pack [%(default)s]")


def run(given: Any) -> None:
    def measured(pack: Path) -> list[Figure]:
        return figures(in_new_process(PROGRAM, pack) for _ in range(given.rounds))

    table = Table("records", "shards", "open, s", "first shuffled batch of 64, s", "own memory, MB")
    small = measured(large_pack(given.home / "small", 2, 1000, SIDE))[2]
    shards = -(-given.records // RECORDS_A_SHARD)
    seconds, first, memory = measured(large_pack(given.home / "large", shards, RECORDS_A_SHARD, SIDE))
    above = Figure(tuple(value - small.median for value in memory.rounds))
    table.row(f"{shards * RECORDS_A_SHARD:,}", f"{shards:,}", seconds.text(2), first.text(2), above.text(0))
    print()
    updates, draws, size, begin, again = figures(in_new_process(WEIGHTED, given.records) for _ in range(given.rounds))
    table = Table.of_figures(f"`WeightedSampler` of {given.records:,} records")
    table.figure("updates per CPU second, million", Figure(tuple(rate / 1e6 for rate in updates.rounds)), 1, most=False)
    table.figure("draws per CPU second, million", Figure(tuple(rate / 1e6 for rate in draws.rounds)), 1, most=False)
    table.figure("peak memory, GB", size, 1)
    table.figure("first batch of the first epoch, CPU s", begin)
    table.figure(f"first batch of an epoch after {1000 * UPDATED:,} updates, CPU s", again)
