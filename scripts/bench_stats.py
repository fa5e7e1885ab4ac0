"""How fast the pixel pass of `packer stats` is, against a bare copy of the same bytes; one thread each.

Raw packs of 224x224 and of 32x32 images in each container, in memory. And the time of `packer stats --problems` for a
pack of 1,000,000 records with 5 boxes each, of 80 classes: only its index is read.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_common import Table, against_goal, direct_pack, parser

from packer import open_pack
from packer.bench.measure import Figure, take_turns
from packer.containers import CONTAINERS
from packer.format.pack import Pack
from packer.stats.pixels import channel_stats

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from large_packs import labeled_pack, random_labels  # noqa: E402

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
    size, region = pack.record_bytes or 0, pack.region.parts[0]
    for i, offset in enumerate(pack.places(np.arange(len(pack)))[0].tolist()):
        out[i * size : (i + 1) * size] = region[offset : offset + size]


def compare(table: Table, name: str, path: Path, rounds: int) -> None:
    """Measure one pack, and print its row."""
    pack = open_pack(path)
    out = np.zeros(len(pack) * (pack.record_bytes or 0), np.uint8)
    works = {
        "copy": lambda: copy_all(pack, out),
        "plain": lambda: channel_stats(pack, threads=1, verify=False),
        "checked": lambda: channel_stats(open_pack(path), threads=1),  # opened anew: nothing is verified yet
    }
    seconds = take_turns(works, rounds)
    plain, checked = (seconds["copy"] / seconds[work] for work in ("plain", "checked"))
    speed = seconds["copy"].per_second(len(out) / 1e9)
    table.row(name, *against_goal(plain, 0.8), checked.text(2), speed.text(1))


def problems(home: str, records: int, rounds: int) -> None:
    """Measure `stats --problems` in new processes, and print a table."""
    path = labeled_pack(Path(home, "labeled"), random_labels(records, 5, 80), [f"class{i}" for i in range(80)], 8)
    command = [sys.executable, "-c", PROBLEMS, str(path)]
    lines = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(rounds)]
    seconds, peak = (
        Figure(tuple(values)) for values in zip(*(map(float, line.split()) for line in lines), strict=True)
    )
    table = Table(f"problems of {records:,} records", "goal", "median (lowest to highest)")
    table.row("seconds", *against_goal(seconds, 5, 2, most=True))
    table.row("memory at its peak, with mapped pages, MB", "", peak.text(0))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--records", type=int, default=1_000_000, help="of the pack whose problems are looked for")
    arguments.add_argument("--images", type=int, default=2000, help="of 224x224; 25 times as many of 32x32")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work_dir) as home:
        problems(home, given.records, given.rounds)
    table = Table("pack", "goal", "without checksums", "with, as the first time", "copy, GB/s")
    random = np.random.default_rng(0)
    for side, count in ((32, given.images * 25), (224, given.images)):
        some = [random.bytes(side * side * 3) for _ in range(min(count, 500))]
        datas = [some[i % len(some)] for i in range(count)]
        for container in CONTAINERS:
            with tempfile.TemporaryDirectory(dir=given.work_dir) as home:
                path = direct_pack(Path(home, "pack"), container, datas, (side, side, 3), True)
                compare(table, f"raw {side}x{side}, {container}", path, given.rounds)


if __name__ == "__main__":
    main()
