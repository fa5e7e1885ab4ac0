"""How much memory `packer build` takes, by number of images and container, against workers x (shard size + 200 MB).

The whole process tree is looked at every 50 ms. RSS counts a page in each process that maps it; PSS divides shared
pages among their users.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench_common import Table, images, parser

from packer.bench.measure import PSS, RSS, Figure, peak_memory
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


def main() -> None:
    arguments = parser(__doc__, rounds=2)
    arguments.add_argument("--counts", type=int, nargs="+", default=[2000, 20000, 80000])
    arguments.add_argument("--formats", nargs="+", default=list(CONTAINERS), choices=CONTAINERS)
    arguments.add_argument("--resize", default="64", help="size of the packed images [%(default)s]")
    arguments.add_argument("--shard-mb", type=int, default=64)
    arguments.add_argument("--workers", type=int, default=usable_cores())
    given = arguments.parse_args()
    limit = given.workers * (given.shard_mb + 200)
    table = Table("images", "container", "PSS, MB", "RSS, MB", f"limit ({given.workers} workers), MB")
    for count in given.counts:
        with tempfile.TemporaryDirectory(prefix="bench-memory-", dir=given.work_dir) as folder:
            images("cifar", given.data, Path(folder, "images"), count)
            for name in given.formats:
                command = [
                    sys.executable, "-m", "packer", "build", f"{folder}/images", "--format", name, "--quiet",
                    "--labels", "folder", "--workers", str(given.workers), "--shard-size", f"{given.shard_mb}MB",
                    "--resize", given.resize, "--fit", "stretch", "-o", f"{folder}/pack", "--overwrite",
                ]  # fmt: skip
                rounds = [peak_mb(command) for _ in range(given.rounds)]
                pss, rss = (Figure(values) for values in zip(*rounds, strict=True))
                table.row(f"{count:,}", name, pss.text(0), rss.text(0), str(limit))


if __name__ == "__main__":
    main()
