"""What it costs to plan a build of many tiny files, and to start.

Plan: `plan_pack` of class folders of JPEG files of 32x32 (up to LINKS links to one file), which are in memory; each
round in a new process. Memory: peak PSS of the process and its workers, less its PSS after a plan of 100 files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_common import Table, against_goal, drawn, parser

from packer.bench.measure import PSS, Figure, memory_bytes, peak_memory, take_turns

LINKS = 1000
PLAN = """
import sys, time
from packer import BuildOptions
from packer.packing import plan_pack

def plan(folder):
    started = time.perf_counter()
    plan_pack(BuildOptions(folder, folder + ".pack", labels=("folder",)))
    return time.perf_counter() - started

plan(sys.argv[1])
print(flush=True)
sys.stdin.readline()
print(plan(sys.argv[2]), flush=True)
sys.stdin.readline()
"""


def link_files(target: Path, count: int) -> str:
    """Make `count` files in class folders, LINKS links to each of those that are written."""
    data = list(drawn(32))
    origin = target / "origin.jpg"
    for number in range(count):
        folder = target / f"class{number % 10}" / f"{number // 10_000:04d}"
        if number < 10 or number % 10_000 < 10:
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:07d}.jpg"
        if number % LINKS == 0:
            path.write_bytes(data[number // LINKS % len(data)])
            origin = path
        else:
            os.link(origin, path)
    return str(target)


def plan(few: str, many: str, count: int) -> tuple[float, float]:
    """Return seconds and bytes per image of one plan."""
    with subprocess.Popen(
        [sys.executable, "-c", PLAN, few, many], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        before = memory_bytes(process.pid, PSS)
        with peak_memory(process.pid, PSS, interval_s=0.1) as peak:
            process.stdin.write("\n")
            process.stdin.flush()
            seconds = process.stdout.readline()
        process.stdin.write("\n")
    if not seconds:
        sys.exit("the plan has failed")
    return float(seconds), (peak.bytes - before) / count


def start_times(rounds: int) -> dict[str, Figure]:
    """Return seconds of starting Python, and packer in it."""
    commands = {"python -c pass": ["-c", "pass"], "import packer": ["-c", "import packer"]}
    commands["packer --help"] = ["-m", "packer", "--help"]

    def run(command: list[str]) -> None:
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)

    return take_turns({name: (lambda command=command: run(command)) for name, command in commands.items()}, rounds)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--count", type=int, default=1_000_000, help="files [%(default)s]")
    given = arguments.parse_args()
    table = Table("what", "goal", "median (lowest to highest)")
    for name, figure in start_times(max(given.rounds, 5)).items():
        table.row(f"`{name}`, s", *against_goal(figure, 0.15 if "--help" in name else None, 3, most=True))
    with tempfile.TemporaryDirectory(prefix="bench-plan-", dir=given.work_dir) as folder:
        few, many = link_files(Path(folder, "few"), 100), link_files(Path(folder, "many"), given.count)
        rounds = [plan(few, many, given.count) for _ in range(given.rounds)]
    seconds, size = (Figure(values) for values in zip(*rounds, strict=True))
    what = f"plan of {given.count:,} files"
    table.row(f"{what}, s", *against_goal(seconds, 30, 1, most=True))
    table.row(f"{what}, bytes of memory per image", *against_goal(size, 150, 0, most=True))


if __name__ == "__main__":
    main()
