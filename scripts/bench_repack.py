"""How fast packs are made from packs, against what a plain copy of the same bytes takes in the same rounds.

Convert: a pack of raw 224x224 images from each container to each other one, against `cp` of its files. Both read files
that are in memory; with --work-dir /dev/shm, the disk takes no part.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_common import Table, against_goal, direct_pack, parser

from packer.bench.measure import take_turns
from packer.containers import CONTAINERS
from packer.repack.convert import convert
from packer.system import usable_cores

SHAPE = (224, 224, 3)
GIB = 1 << 30


def converting(table: Table, folder: Path, given: Any) -> None:
    """Convert from each container to each of the others; print a row for each pair."""
    size = SHAPE[0] * SHAPE[1] * SHAPE[2]
    pixels = np.random.default_rng(0).integers(0, 256, size + 4096, np.uint8).tobytes()
    count = int(given.convert_gb * 1e9) // size
    datas = [pixels[number % 4096 :][:size] for number in range(min(count, 4096))]
    datas = [datas[number % len(datas)] for number in range(count)]
    for source in given.sources:
        pack = direct_pack(folder / f"from.{source}", source, datas, SHAPE, raw=True)
        copied, out = folder / "copied", folder / "out"

        def copy(pack: Path = pack, copied: Path = copied) -> None:
            shutil.rmtree(copied, ignore_errors=True)
            subprocess.run(["cp", "-r", pack, copied], check=True)

        def to(target: str, pack: Path = pack, out: Path = out) -> None:
            shutil.rmtree(out, ignore_errors=True)
            convert(pack, out, format=target, workers=given.workers)

        targets = [target for target in given.formats if target != source]
        seconds = take_turns({"cp": copy, **{name: partial(to, name) for name in targets}}, given.rounds)
        limit = seconds["cp"].per_second(count * size / 1e6)
        for target in targets:
            rate = seconds[target].per_second(count * size / 1e6)
            cells = against_goal(rate / limit, 0.5)
            what = f"convert {count * size / GIB:.2f} GiB of raw 224x224, {source} to {target}"
            table.row(what, *cells, f"{rate.median:,.0f}", f"{limit.median:,.0f}")
        for path in (pack, copied, out):
            shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--convert-gb", type=float, default=1.0, help="size to convert; 0: none [%(default)s]")
    arguments.add_argument("--workers", type=int, default=usable_cores())
    arguments.add_argument("--sources", nargs="*", default=["lmdb"], choices=CONTAINERS)
    arguments.add_argument("--formats", nargs="*", default=list(CONTAINERS), choices=CONTAINERS)
    given = arguments.parse_args()
    table = Table("repack", "goal", "ratio", "packer, MB/s", "cp, MB/s")
    with tempfile.TemporaryDirectory(prefix="bench-repack-", dir=given.work_dir) as folder:
        if given.convert_gb:
            converting(table, Path(folder), given)


if __name__ == "__main__":
    main()
