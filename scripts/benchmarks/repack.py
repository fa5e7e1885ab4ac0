"""How fast packs are made from packs.

Convert: a pack of raw 224x224 images from each container to each other one, against `cp` of its files. Both read files
that are in memory; with --work-dir /dev/shm, the disk takes no part.

Adopt: a tar of JPEGs with their classes, as webdataset's users have; records per CPU second of one process, the
size of the pack against the tar, and a loader over it against one over the same images in a pack that was built.

Merge: packs of many records of one byte, so that what is measured is the indexes: once with the same classes in all,
once with other ids in each, whose indexes are then written anew.

Edit: a pack of many records of one byte with five boxes each: classes merged and dropped, records deleted, and the
labels of another pack. And labels of Pascal VOC that are read again, against a build of the same images.

Update: a folder of tiny JPEGs in class folders, of which a thousandth has changed since it was packed, against `find`
that prints the size and the times of each file. The build is of another minute, so that times are sure.

Attach: an array of 768 float16 for each record, against `cp` of its file; both end on the disk. And a gather of 256 of
its rows at random.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from large_packs import labeled_pack, random_labels

from benchmarks.common import Table, against_goal, build, direct_pack, drawn, linked
from benchmarks.loader import drain
from packer import PackedLoader, RandomResizedCrop, attach, detach, open_pack
from packer.bench.measure import Figure, take_turns
from packer.containers import CONTAINERS
from packer.packing.remembered import MARGIN_NS
from packer.repack.adopt import adopt
from packer.repack.convert import convert
from packer.repack.edit import edit
from packer.repack.merge import merge
from packer.system import usable_cores

SHAPE = (224, 224, 3)
SIDE = 64
GIB = 1 << 30
ROW = 768
PHOTO = 400
OBJECT = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
READS = 100


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

        title = f"convert {count * size / GIB:.2f} GiB of raw 224x224, {source} to"
        works = {f"{title} {target}": partial(to, target) for target in given.formats if target != source}
        table.against(0.5, count * size / 1e6, copy, works, given.rounds)
        for path in (pack, copied, out):
            shutil.rmtree(path, ignore_errors=True)


def adopting(folder: Path, given: Any) -> None:
    """Adopt a tar of --adopt-records JPEGs; print its rows."""
    encoded = list(islice(drawn(SIDE), 64))
    with tarfile.open(folder / "train.tar", "w") as tar:
        for number in range(given.adopt_records):
            for extension, data in (("jpg", encoded[number % 64]), ("cls", str(number % 10).encode())):
                member = tarfile.TarInfo(f"{number:08d}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    table = Table("adopt", "goal", "figure")
    seconds = []
    for _ in range(given.rounds):
        shutil.rmtree(folder / "adopted", ignore_errors=True)
        started = sum(os.times()[:4])
        adopt([str(folder / "train.tar")], str(folder / "adopted"), workers=1)
        seconds.append(sum(os.times()[:4]) - started)
    rate = Figure(tuple(given.adopt_records / second for second in seconds))
    what = f"adopt a tar of {given.adopt_records:,} JPEGs of {SIDE} px, records per CPU second"
    table.row(what, *against_goal(rate, 100_000, digits=0))
    pack = sum(file.stat().st_size for file in (folder / "adopted").iterdir())
    share = 100 * pack / (folder / "train.tar").stat().st_size
    table.row("size of the pack, % of the tar", "<= 4", f"{share:.2f}")

    convert(folder / "adopted", folder / "built", format="webdataset")

    def epoch(pack: Path) -> None:
        drain(PackedLoader(pack, 64, shuffle=True, seed=0, crop=RandomResizedCrop(SIDE)))

    taken = take_turns({name: partial(epoch, folder / name) for name in ("adopted", "built")}, given.rounds)
    table.row("PackedLoader, adopted against built", *against_goal(taken["built"] / taken["adopted"], 0.97))


def merging(table: Table, folder: Path, given: Any) -> None:
    """Merge packs of --merge-records records each; print a row for equal classes, and one for others."""
    count = given.merge_records
    for what in ("other classes in each", "the same classes"):
        packs = []
        for number in range(10):
            digests = np.random.default_rng(number).integers(0, 256, (count, 16), np.uint8)
            facts = {"width": np.ones(count), "height": np.ones(count), "label": np.arange(count) % 2}
            classes = ("b" if what.startswith("the same") else f"c{number}", "a")
            packs.append(labeled_pack(folder / f"{classes[0]}-{number}", {**facts, "source_xxh3": digests}, classes, 8))

        def once(packs: list[Path] = packs) -> None:
            shutil.rmtree(folder / "all", ignore_errors=True)
            merge(packs, folder / "all")

        seconds = take_turns({"merge": once}, given.rounds)["merge"]
        table.figure(f"merge 10 packs of {count:,} records, {what}", seconds, 10)


def editing(table: Table, folder: Path, given: Any) -> None:
    """Edit a pack of --edit-records records with five times as many boxes; print a row for each kind of edit."""
    count = given.edit_records
    pack = labeled_pack(folder / "boxes", random_labels(count, 5, 10), [f"c{number}" for number in range(10)], 8)
    deleted = range(0, count, max(1, count // 1000))
    (folder / "some.txt").write_text("".join(f"images/{row:08d}.jpg\n" for row in deleted))
    works: dict[str, dict[str, Any]] = {
        "two classes become one": {"map": ["c0,c1=x"]},
        "a class dropped": {"drop_class": ["c3"], "missing_labels": "empty"},
        "1,000 deleted": {"delete": folder / "some.txt"},
        "labels of another pack": {"labels_from": pack},
    }
    for what, asked in works.items():

        def once(asked: dict[str, Any] = asked) -> None:
            shutil.rmtree(folder / "edited", ignore_errors=True)
            edit(pack, folder / "edited", **asked)

        seconds = take_turns({"edit": once}, given.rounds)["edit"]
        goal = 2 if "labels_from" not in asked else 5
        table.figure(f"edit {count:,} records with {5 * count:,} boxes: {what}", seconds, goal)


def reading_again(table: Table, folder: Path, given: Any) -> None:
    """Build a pack of --label-images JPEGs with VOC labels, and read their labels again; print a row for each."""
    count, source = given.label_images, folder / "labelled"
    linked((source / f"JPEGImages/{row // 1000}/{row:06d}.jpg" for row in range(count)), [*drawn(PHOTO)])
    for row in range(count):
        corners = np.random.default_rng(row).integers(1, PHOTO // 2, (row % 10, 2)).tolist()
        objects = "".join(OBJECT.format(f"c{x % 5}", x, y, x + 20, y + 30) for x, y in corners)
        file = source / f"Annotations/{row // 1000}/{row:06d}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"<annotation>{objects}</annotation>")
    asked = {"labels": ("voc",), "resize": f"{PHOTO // 2}", "encode": "jpeg", "overwrite": True}

    works = {
        "build": lambda: build(source, folder / "first", **asked),
        "read again": lambda: edit(folder / "first", folder / "edited", source=source, overwrite=True),
    }
    for what, seconds in take_turns(works, given.rounds).items():
        table.figure(f"{what}: {count:,} JPEGs of {PHOTO} px with VOC labels", seconds)


def updating(table: Table, folder: Path, given: Any) -> None:
    """Update a pack of --update-files files, of which one in a thousand has changed; print a row against find."""
    count, source, pack = given.update_files, folder / "grown", folder / "grown.lmdb"
    files = [source / f"class{row // 1000:04d}/img{row % 1000:05d}.jpg" for row in range(count)]
    data = next(drawn(32))
    for row, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data + b"%d" % row)
    time.sleep(MARGIN_NS / 1e9)
    build(source, pack)
    ratios = []
    for turn in range(given.rounds):
        for file in files[turn::1000]:
            file.write_bytes(data + b"%d" % (count + turn))
        time.sleep(MARGIN_NS / 1e9)
        started = time.perf_counter()
        subprocess.run(["find", source, "-printf", "%s %T@ %C@ %p\n"], check=True, stdout=subprocess.DEVNULL)
        found = time.perf_counter() - started
        subprocess.run([sys.executable, "-m", "packer", "update", pack, source, "--quiet"], check=True)
        ratios.append((time.perf_counter() - started - found) / found)
    what = f"packer update of {count:,} files, one in a thousand changed, in times of find"
    table.figure(what, Figure(tuple(ratios)), 2)


def attaching(table: Table, folder: Path, given: Any) -> None:
    """Attach a row of ROW float16 to each of --attach-records records; print a row for it, and one for reading it."""
    count, array, copied = given.attach_records, folder / "rows.npy", folder / "copied.npy"
    facts = {"width": np.ones(count), "height": np.ones(count), "label": np.zeros(count, np.int64)}
    pack = labeled_pack(folder / "attached", facts, ("a",), 8)
    rows = np.lib.format.open_memmap(array, "w+", np.float16, (count, ROW))
    for start in range(0, count, 10_000):
        rows[start : start + 10_000] = np.random.default_rng(start).standard_normal((1, ROW))
    del rows

    def copy() -> None:
        copied.unlink(missing_ok=True)
        subprocess.run(["cp", array, copied], check=True)
        with open(copied, "rb+") as file:
            os.fsync(file.fileno())

    def once() -> None:
        if "rows" in open_pack(pack).sidecars:
            detach(pack, "rows")
        attach(pack, array, "rows")

    size = array.stat().st_size
    table.against(0.8, size / 1e6, copy, {f"attach {count:,} x {ROW} float16": once}, given.rounds)
    sidecar, random = open_pack(pack).sidecar("rows"), np.random.default_rng(0)
    sidecar.read(np.arange(count))  # verified, and in the page cache

    def read() -> None:
        for _ in range(READS):
            sidecar.read(random.integers(0, count, 256))

    rate = take_turns({"read": read}, given.rounds)["read"].per_second(256 * READS)
    what = f"256 rows of {ROW} float16 at random, rows per s"
    Table("gather", "goal", "figure").row(what, *against_goal(rate, 256_000, digits=0))


def options(parser: Any) -> None:
    parser.add_argument("--convert-gb", type=float, default=1.0, help="size to convert; 0: none [%(default)s]")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--sources", nargs="*", default=["lmdb"], choices=CONTAINERS)
    parser.add_argument("--formats", nargs="*", default=list(CONTAINERS), choices=CONTAINERS)
    parser.add_argument("--adopt-records", type=int, default=50_000, help="of a tar; 0: none [%(default)s]")
    parser.add_argument("--attach-records", type=int, default=1_000_000, help="rows; 0: none [%(default)s]")
    parser.add_argument("--merge-records", type=int, default=1_000_000, help="of each pack; 0: none [%(default)s]")
    parser.add_argument("--label-images", type=int, default=100_000, help="with labels; 0: none [%(default)s]")
    parser.add_argument("--update-files", type=int, default=1_000_000, help="of a folder; 0: none [%(default)s]")
    parser.add_argument("--edit-records", type=int, default=1_000_000, help="of a pack; 0: none [%(default)s]")


def run(given: Any) -> None:
    if given.convert_gb:
        converting(Table("convert", "goal", "ratio", "packer, MB/s", "cp, MB/s"), given.home, given)
    if given.adopt_records:
        adopting(given.home, given)
    if given.merge_records:
        merging(Table("merge", "goal", "seconds"), given.home, given)
    if given.edit_records:
        editing(Table("edit", "goal", "seconds"), given.home, given)
    if given.label_images:
        reading_again(Table("labels", "goal", "seconds"), given.home, given)
    if given.update_files:
        updating(Table("update", "goal", "times find"), given.home, given)
    if given.attach_records:
        attaching(Table("attach", "goal", "ratio", "packer, MB/s", "cp, MB/s"), given.home, given)
