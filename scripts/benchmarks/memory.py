"""How much memory `packer build` takes, by number of images and container, against workers x (shard size + 200 MB).

The whole process tree is looked at every 50 ms. RSS counts a page in each process that maps it; PSS divides shared
pages among their users.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

from benchmarks.common import Table, figures, images
from packer.bench.measure import PSS, RSS, peak_memory
from packer.containers import CONTAINERS
from packer.system import usable_cores

MB = 1 << 20


def peak_mb(command: list[str]) -> tuple[float, float]:
    """Return the peak PSS and RSS of a command and its processes, in MB."""
    process = subprocess.Popen(command)
    with peak_memory(process.pid, PSS) as pss, peak_memory(process.pid, RSS) as rss:
        process.wait()
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return pss.bytes / MB, rss.bytes / MB


def options(parser: Any) -> None:
    parser.set_defaults(rounds=2)
    parser.add_argument("--counts", type=int, nargs="+", default=[2000, 20000, 80000])
    parser.add_argument("--formats", nargs="+", default=list(CONTAINERS), choices=CONTAINERS)
    parser.add_argument("--resize", default="64", help="size of the packed images [%(default)s]")
    parser.add_argument("--shard-mb", type=int, default=64)
    parser.add_argument("--workers", type=int, default=usable_cores())


def run(given: Any) -> None:
    limit = given.workers * (given.shard_mb + 200)
    table = Table("images", "container", "PSS, MB", "RSS, MB", f"limit ({given.workers} workers), MB")
    for count in given.counts:
        images("cifar", given.data, given.home / "images", count)
        for name in given.formats:
            command = [
                sys.executable, "-m", "packer", "build", f"{given.home}/images", "--format", name, "--quiet",
                "--labels", "folder", "--workers", str(given.workers), "--shard-size", f"{given.shard_mb}MB",
                "--resize", given.resize, "--fit", "stretch", "-o", f"{given.home}/pack", "--overwrite",
            ]  # fmt: skip
            pss, rss = figures(peak_mb(command) for _ in range(given.rounds))
            table.row(f"{count:,}", name, pss.text(0), rss.text(0), str(limit))
        shutil.rmtree(given.home / "images")
