"""How fast the pixel pass of `packer stats` is, against a bare copy of the same bytes; one thread each.

Raw packs of 224x224 and of 32x32 images in each container, in memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from bench_common import Table, against_goal, direct_pack, parser

from packer import open_pack
from packer.bench.measure import take_turns
from packer.containers import CONTAINERS
from packer.format.pack import Pack
from packer.stats.pixels import channel_stats


def copy_all(pack: Pack, out: np.ndarray) -> None:
    """Copy each record to other memory."""
    size, region = pack.record_bytes or 0, pack.region.parts[0]
    for i, offset in enumerate(pack.where(np.arange(len(pack)))[0].tolist()):
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


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--images", type=int, default=2000, help="of 224x224; 25 times as many of 32x32")
    given = arguments.parse_args()
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
