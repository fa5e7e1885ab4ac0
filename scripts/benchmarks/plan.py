"""What it costs to plan a build of many tiny files, to read a long list or a large COCO file, and to start.

Plan: `plan_pack` of class folders of JPEG files of 32x32 (up to LINKS links to one file), which are in memory; each
round in a new process. Memory: peak PSS of the process and its workers, less its PSS after a plan of 100 files.

Workers: `plan_pack` of FOLDERS class folders of such files, by one worker process and by two, in turns. Memory: peak
anonymous memory of the process that plans (RssAnon) less that after a plan of 100 files; pages of mapped files, such as
the table of inputs, are page cache and do not count.

Lists: a list of classes, from the file to the line of each image, in lines per CPU second; then the annotations of all
images. Memory is the peak RSS of a process that also holds the paths of all images.

COCO: `plan_pack` of a file of 163 MB with 45,000 images and 315,000 objects with polygons; the images are links to one
file. Memory as for the plan; the mapped pages of the file count.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.common import Table, drawn, figures, in_new_process, linked
from packer.bench.measure import Figure, take_turns
from packer.system import usable_cores

FOLDERS = 1000
PLAN = """
import gc, os, sys, threading, time
from packer import BuildOptions
from packer.bench.measure import PSS, memory_bytes
from packer.packing import plan_pack

def used():
    if whose == "all":
        return memory_bytes(os.getpid(), PSS)
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

def plan(folder):
    started = time.perf_counter()
    options = BuildOptions(folder, folder + ".pack", labels=(labels,), encode="copy", workers=int(workers))
    found = plan_pack(options).inputs
    assert len(found.table) == found.found
    return found.rows, time.perf_counter() - started

def watch():
    global peak
    while True:
        peak = max(peak, used())
        time.sleep(0.1 if whose == "all" else 0.02)

few, many, labels, workers, whose = sys.argv[1:]
plan(few)
gc.collect()
before = peak = used()
threading.Thread(target=watch, daemon=True).start()
rows, seconds = plan(many)
print(seconds, (peak - before) / rows)
"""
LIST = """
import resource, sys, time
from packer.sources.source import SourceOptions, Tree
from packer.sources.list_source import ListSource

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
print(read, peak / 1e9, time.process_time() - start)
"""
WIDTH, HEIGHT = 640, 427
OBJECTS, CORNERS, CATEGORIES = 7, 22, 90


def write_list(folder: Path, lines: int) -> str:
    """Write a list of classes; return its path."""
    path = folder / "classes.csv"
    with path.open("w") as file:
        file.write("filename,label\n")
        file.writelines(f"images/{i // 10_000:04d}/{i:08d}.jpg,{i % 1000}\n" for i in range(lines))
    return str(path)


def link_files(target: Path, count: int, folders: int = 0) -> str:
    """Make `count` files in class folders, most of them links."""

    def folder_of(number: int) -> str:
        return f"class{number * folders // count:04d}" if folders else f"class{number % 10}/{number // 10_000:04d}"

    linked((target / folder_of(number) / f"{number:07d}.jpg" for number in range(count)), list(drawn(32)))
    return str(target)


def write_coco(target: Path, count: int) -> str:
    """Make a COCO set of `count` images, as its own files are: one line, two decimals, with links nobody reads."""
    dice = random.Random(0)
    gray = simplejpeg.encode_jpeg(np.full((HEIGHT, WIDTH, 3), 128, np.uint8))
    linked((target / "train2017" / f"{number:012d}.jpg" for number in range(count)), [gray])
    (target / "annotations").mkdir()

    def image(number: int) -> str:
        host = "http://images.cocodataset.org/train2017"
        return json.dumps({
            "license": 3, "file_name": f"{number:012d}.jpg", "coco_url": f"{host}/{number:012d}.jpg", "height": HEIGHT,
            "width": WIDTH, "date_captured": "2013-11-14 11:18:45", "flickr_url": f"http://flickr.com/{number}_z.jpg",
            "id": number,
        })  # fmt: skip

    def thing(number: int) -> str:
        outline = [round(dice.random() * 420, 2) for _ in range(2 * CORNERS)]
        return json.dumps({
            "segmentation": [outline], "area": 702.1, "iscrowd": 0, "image_id": number // OBJECTS,
            "bbox": [473.07, 295.93, 38.65, 28.67], "category_id": dice.randint(1, CATEGORIES), "id": number,
        })  # fmt: skip

    with (target / "annotations" / "instances_train2017.json").open("w") as file:
        file.write('{"info":{"year":2017},"images":[')
        file.writelines("," * (number > 0) + image(number) for number in range(count))
        file.write('],"annotations":[')
        file.writelines("," * (number > 0) + thing(number) for number in range(count * OBJECTS))
        names = [{"supercategory": "s", "id": number + 1, "name": f"c{number}"} for number in range(CATEGORIES)]
        file.write(f'],"categories":{json.dumps(names)}}}')
    return str(target)


def plan(few: str, many: str, labels: str = "folder", workers: int = 0, whose: str = "all") -> list[float]:
    """Return seconds, and bytes per image of all processes or of the "own" one, of one plan."""
    return in_new_process(PLAN, few, many, labels, workers or usable_cores(), whose)


def start_times(table: Table, rounds: int) -> None:
    """Print seconds of starting Python, and packer in it."""
    commands = {"python -c pass": ["-c", "pass"], "import packer": ["-c", "import packer"]}
    commands["packer --help"] = ["-m", "packer", "--help"]

    def run(command: list[str]) -> None:
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)

    seconds = take_turns({name: partial(run, command) for name, command in commands.items()}, rounds)
    for name, figure in seconds.items():
        table.figure(f"`{name}`, s", figure, 0.15 if "--help" in name else None, 3)


def plan_files(table: Table, folder: Path, count: int, rounds: int) -> None:
    """Print what plans of `count` files cost."""
    few, many = link_files(folder / "few", 100), link_files(folder / "many", count)
    seconds, size = figures(plan(few, many) for _ in range(rounds))
    what = f"plan of {count:,} files"
    table.figure(f"{what}, s", seconds, 30, 1)
    table.figure(f"{what}, bytes of memory per image", size, 150, 0)


def plan_with_workers(table: Table, folder: Path, count: int, rounds: int) -> None:
    """Print how much faster two workers are than one, and the memory of the process that plans."""
    few, many = link_files(folder / "few-classes", 100), link_files(folder / "classes", count, FOLDERS)
    found: dict[int, list[list[float]]] = {1: [], 2: []}
    for number in range(rounds + 1):  # the first round, which fills the page cache, does not count
        for workers in (1, 2) if number % 2 else (2, 1):
            measured = plan(few, many, "folder", workers, "own")
            found[workers] += [measured] if number else []
    (one, _), (two, memory) = figures(found[1]), figures(found[2])
    what = f"plan of {count:,} files in {FOLDERS:,} class folders"
    table.figure(f"{what}, two workers, s", two, digits=1)
    table.figure(f"{what}, one worker: two workers", one / two, 1.8, most=False)
    table.figure(f"{what}, bytes of memory per image where it is planned", memory, 60, 0)


def read_list(table: Table, folder: Path, lines: int, rounds: int) -> None:
    """Print what a list of `lines` lines costs."""
    path = write_list(folder, lines)
    read, peak, annotations = figures(in_new_process(LIST, folder, path, lines) for _ in range(rounds))
    os.unlink(path)
    what = f"list of classes, {lines:,} lines, {lines:,} images"
    table.figure(f"{what}, lines/s", read.per_second(lines), 500_000, 0, most=False)
    table.figure(f"{what}, peak GB", peak, 3)
    table.figure(f"{what}, annotations/s", annotations.per_second(lines), digits=0)


def plan_coco(table: Table, folder: Path, count: int, rounds: int) -> None:
    """Print what plans of a COCO file of `count` images cost."""
    few, many = write_coco(folder / "coco-few", 100), write_coco(folder / "coco", count)
    size = os.path.getsize(f"{many}/annotations/instances_train2017.json")
    seconds, memory = figures(plan(few, many, "coco") for _ in range(rounds))
    what = f"plan of COCO, {size / 1e6:.0f} MB, {count:,} images, {count * OBJECTS:,} objects"
    table.figure(f"{what}, s", seconds, 6)
    table.figure(f"{what}, MB of memory", Figure(tuple(size * count / 1e6 for size in memory.rounds)), 350, 0)


PARTS: dict[str, Callable[[Table, Any], None]] = {
    "start": lambda table, given: start_times(table, max(given.rounds, 5)),
    "plan": lambda table, given: plan_files(table, given.home, given.count, given.rounds),
    "workers": lambda table, given: plan_with_workers(table, given.home, given.count, given.rounds),
    "lists": lambda table, given: read_list(table, given.home, given.lines, given.rounds),
    "coco": lambda table, given: plan_coco(table, given.home, given.images, given.rounds),
}


def options(parser: Any) -> None:
    parser.add_argument("--count", type=int, default=1_000_000, help="files [%(default)s]")
    parser.add_argument("--lines", type=int, default=10_000_000, help="lines of the list [%(default)s]")
    parser.add_argument("--images", type=int, default=45_000, help="images of the COCO file [%(default)s]")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [all]")


def run(given: Any) -> None:
    if unknown := set(given.parts) - set(PARTS):
        sys.exit(f"no such part: {', '.join(sorted(unknown))}")
    table = Table.of_figures("what")
    for name, part in PARTS.items():
        if not given.parts or name in given.parts:
            part(table, given)
