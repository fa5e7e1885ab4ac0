"""What a pack of 100 million records costs a process that trains: opening it, its first batch, and memory of its own.

The pack takes 15 MB of disk: its shards are sparse, and one index has all names. Memory is what the process has
written, above what a pack of 2,000 records takes: pages of shards and indexes belong to the page cache.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench_common import Table, parser

from packer.bench.measure import Figure

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from large_packs import large_pack  # noqa: E402

SIDE = 224
RECORDS_A_SHARD = (1 << 30) // (SIDE * SIDE * 3)
CHILD = """
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


def figures(pack: Path, rounds: int) -> list[Figure]:
    """Return seconds to open a pack, seconds until its first batch, and MB of memory, each round in a new process."""
    lines = [
        subprocess.run([sys.executable, "-c", CHILD, str(pack)], check=True, capture_output=True, text=True).stdout
        for _ in range(rounds)
    ]
    return [Figure(tuple(values)) for values in zip(*(map(float, line.split()) for line in lines), strict=True)]


def main() -> None:
    """Make the packs, measure, and print a table."""
    arguments = parser(__doc__)
    arguments.add_argument("--records", type=int, default=100_000_000, help="records of the pack [%(default)s]")
    given = arguments.parse_args()
    table = Table("records", "shards", "open, s", "first shuffled batch of 64, s", "own memory, MB")
    with tempfile.TemporaryDirectory(prefix="bench-large-", dir=given.work_dir) as folder:
        small = figures(large_pack(Path(folder, "small"), 2, 1000, SIDE), given.rounds)[2]
        shards = -(-given.records // RECORDS_A_SHARD)
        seconds, first, memory = figures(large_pack(Path(folder, "large"), shards, RECORDS_A_SHARD, SIDE), given.rounds)
        above = Figure(tuple(value - small.median for value in memory.rounds))
        count = f"{shards * RECORDS_A_SHARD:,}"
        table.row(count, f"{shards:,}", seconds.text(2), first.text(2), above.text(0))


if __name__ == "__main__":
    main()
