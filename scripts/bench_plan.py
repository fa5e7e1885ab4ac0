"""What it costs to plan a build of many tiny files, to read a long list, and to start.

Plan: `plan_pack` of class folders of JPEG files of 32x32 (up to LINKS links to one file), which are in memory; each
round in a new process. Memory: peak PSS of the process and its workers, less its PSS after a plan of 100 files.

Lists: a list of classes (a line per image) and one of boxes (five lines per image), from the file to the lines of each
image, in lines per CPU second; then the annotations of all images. Memory is the peak RSS of a process that also holds
the paths of all images.
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
LIST = """
import resource, sys, time
from packer.sources.base import SourceOptions, Tree
from packer.sources.list import ListSource

folder, file, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
images = [b"images/%04d/%08d.jpg" % (i // 10_000, i) for i in range(count)]
tree = Tree(folder.encode(), images, [], [])
start = time.process_time()
source = ListSource(tree, SourceOptions(file=file))
read = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start = time.process_time()
for image in images:
    source.annotate(image)
assert not list(source.unmatched_labels())
print(read, peak, time.process_time() - start)
"""
LINES_OF_BOXES = 5


def write_list(folder: Path, kind: str, lines: int) -> tuple[str, int]:
    """Write a list of classes or boxes; return its path and the number of its images."""
    path = folder / f"{kind}.csv"
    each = 1 if kind == "classes" else LINES_OF_BOXES
    with path.open("w") as file:
        file.write("filename,label\n" if each == 1 else "filename,width,height,class,xmin,ymin,xmax,ymax\n")
        for i in range(lines // each):
            image = f"images/{i // 10_000:04d}/{i:08d}.jpg"
            if each == 1:
                file.write(f"{image},{i % 1000}\n")
            else:
                file.writelines(f"{image},640,480,dog,{i % 97},{k},{i % 97 + 40},{k + 30}\n" for k in range(each))
    return str(path), lines // each


def read_list(path: str, count: int) -> tuple[float, float, float]:
    """Return CPU seconds to read a list, peak bytes, and CPU seconds of all annotations, in a new process."""
    command = [sys.executable, "-c", LIST, os.path.dirname(path), path, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    read, peak, annotations = map(float, done.stdout.split())
    return read, peak, annotations


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
    arguments.add_argument("--lines", type=int, default=10_000_000, help="lines of the lists [%(default)s]")
    given = arguments.parse_args()
    table = Table("what", "goal", "median (lowest to highest)")
    for name, figure in start_times(max(given.rounds, 5)).items():
        table.row(f"`{name}`, s", *against_goal(figure, 0.15 if "--help" in name else None, 3, most=True))
    with tempfile.TemporaryDirectory(prefix="bench-plan-", dir=given.work_dir) as folder:
        few, many = link_files(Path(folder, "few"), 100), link_files(Path(folder, "many"), given.count)
        rounds = [plan(few, many, given.count) for _ in range(given.rounds)]
        lists = {}
        for kind in ("classes", "boxes"):
            path, count = write_list(Path(folder), kind, given.lines)
            lists[kind] = count, [read_list(path, count) for _ in range(given.rounds)]
            os.unlink(path)
    seconds, size = (Figure(values) for values in zip(*rounds, strict=True))
    what = f"plan of {given.count:,} files"
    table.row(f"{what}, s", *against_goal(seconds, 30, 1, most=True))
    table.row(f"{what}, bytes of memory per image", *against_goal(size, 150, 0, most=True))
    for kind, (count, measured) in lists.items():
        read, peak, annotations = zip(*measured, strict=True)
        what = f"list of {kind}, {given.lines:,} lines, {count:,} images"
        table.row(f"{what}, lines/s", *against_goal(Figure([given.lines / s for s in read]), 500_000, 0))
        table.row(f"{what}, peak GB", *against_goal(Figure([size / 1e9 for size in peak]), 3, 2, most=True))
        table.row(f"{what}, annotations/s", *against_goal(Figure([count / s for s in annotations]), None, 0))


if __name__ == "__main__":
    main()
