"""What a pack of 100 million records costs a process that trains: opening it, its first batch, and memory of its own.

The pack takes 15 MB of disk: its shards are sparse, and one index has all names. Memory is what the process has
written, above what a pack of 2,000 records takes: pages of shards and indexes belong to the page cache.
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
