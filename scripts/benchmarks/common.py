"""What the benchmarks share: images, packs without images, new processes, tables. Timing is in packer.bench.measure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from packer import BuildOptions, Pack, build_pack, open_pack
from packer.bench.measure import Figure, take_turns
from packer.containers import open_container
from packer.containers.container import ShardSpec
from packer.format.index import IndexBuilder
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.pack_paths import INDEX_SUFFIX
from packer.format.verify_records import digest_of_written
from packer.model.annotation import Annotation, Record

DRAWN = 200
Work = Callable[[], object]
LINKS = 1000
"""So many files may be links to one: more are refused by some file systems."""


class Table:
    """Prints a Markdown table, row by row."""

    def __init__(self, *head: str) -> None:
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)

    @classmethod
    def of_figures(cls, what: str) -> Table:
        """Begin a table of rows by `figure`."""
        return cls(what, "goal", "median (lowest to highest)")

    def row(self, *cells: str) -> None:
        """Print one row."""
        print(f"| {' | '.join(cells)} |", flush=True)

    def figure(self, what: str, figure: Figure, goal: float | None = None, digits: int = 2, most: bool = True) -> None:
        """Print a figure, and the most that it may be, or the least."""
        self.row(what, *against_goal(figure, goal, digits, most))

    def against(self, goal: float | None, count: float, bare: Work, works: Mapping[str, Work], rounds: int) -> None:
        """Let works take turns with a bare one; print a row for each: its rate of `count` per second, and the ratio."""
        seconds = take_turns({"": bare, **works}, rounds)
        for what in works:
            self.rates(what, goal, seconds[what].per_second(count), seconds[""].per_second(count))

    def rates(self, what: str, goal: float | None, ours: Figure, bare: Figure) -> None:
        """Print two rates, how many times as large the first is, and the least that this must be."""
        self.row(what, *against_goal(ours / bare, goal), f"{ours.median:,.0f}", f"{bare.median:,.0f}")


def against_goal(figure: Figure, goal: float | None, digits: int = 2, most: bool = False) -> tuple[str, str]:
    """Return the cells for a goal and a figure, which is bold if its median misses the goal."""
    text = figure.text(digits)
    if goal is None:
        return "", text
    missed = figure.median > goal if most else figure.median < goal
    if missed:
        text = text.replace(" (", "** (", 1)
        text = f"**{text}"
    return f"{'<=' if most else '>='} {goal:g}", text


def figures(rounds: Iterable[Sequence[float]]) -> list[Figure]:
    """Return what was measured as figures: each round has one number of each."""
    return [Figure(tuple(values)) for values in zip(*rounds, strict=True)]


def in_new_process(program: str, *words: object, **environment: str) -> list[float]:
    """Run a program of Python in a new process; return the numbers in the last line that it prints."""
    command = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def build(source: Path, out: Path, **options: Any) -> Pack:
    """Build a pack of class folders, and open it."""
    build_pack(BuildOptions(source=str(source), out=str(out), **{"labels": ("folder",), **options}))
    return open_pack(out)


def images(kind: str, data: Path, target: Path, count: int) -> list[str]:
    """Fill the folder `target` with JPEG files in ten class folders.

    Args:
        kind: ``cifar``: of 32x32; ``photos``: of photo size.
        data: Has the folders folder_cifar10 and photos, whose files are repeated; if not there, files are drawn.
        target: The folder to make.
        count: Number of files.

    Returns:
        Their paths.
    """
    source = data / {"cifar": "folder_cifar10", "photos": "photos"}[kind]
    found = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")) if source.is_dir() else []
    return repeated([path.read_bytes() for path in found] or list(drawn(32 if kind == "cifar" else 400)), target, count)


def repeated(files: Sequence[bytes], target: Path, count: int) -> list[str]:
    """Write these files again and again into ten class folders of `target`, `count` in all; return their paths."""
    for name in range(10):
        (target / f"class{name}").mkdir(parents=True)
    paths = [target / f"class{number % 10}" / f"{number:07d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(files[number % len(files)])
    return [os.fspath(path) for path in paths]


def drawn(side: int) -> Iterator[bytes]:
    """Draw DRAWN smooth JPEGs of side x side."""
    random = np.random.default_rng(0)
    for _ in range(DRAWN):
        small = random.integers(0, 256, (max(4, side // 8), max(4, side // 8), 3), np.uint8)
        yield simplejpeg.encode_jpeg(cv2.resize(small, (side, side), interpolation=cv2.INTER_CUBIC), quality=90)


def linked(paths: Iterable[Path], files: Sequence[bytes]) -> None:
    """Write these files again and again to `paths`, with links instead of LINKS - 1 of LINKS."""
    origin = Path()
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % LINKS:
            os.link(origin, path)
        else:
            path.write_bytes(files[number // LINKS % len(files)])
            origin = path


def direct_pack(
    folder: Path, container: str, datas: Sequence[bytes], shape: tuple[int, int, int], raw: bool, parts: int = 8
) -> Path:
    """Write a pack of these bytes, without image files and without decoding, with two classes.

    Args:
        folder: The pack to make.
        container: Its format.
        datas: The bytes of each record.
        shape: Of the images.
        raw: Whether the bytes are pixels; otherwise they count as JPEG.
        parts: Number of shards.
    """
    folder.mkdir()
    home, encoding, shards = open_container(container), "raw" if raw else "jpeg", []
    for number, (start, stop) in enumerate(pairwise(np.linspace(0, len(datas), parts + 1).astype(int).tolist())):
        path = folder / f"shard-{number:05d}{home.suffix}"
        index = path.with_name(f"shard-{number:05d}{INDEX_SUFFIX}")
        size = sum(map(len, datas[start:stop]))
        spec = ShardSpec(("a", "b"), encoding, shape if raw else None, "uint8", stop - start, size)
        writer, builder = home.create(str(path), spec), IndexBuilder()
        for i in range(start, stop):
            label = Annotation(label=i % 2)
            record = Record(f"{i:08d}", datas[i], encoding, *shape, "uint8", label, b"a/%07d.png" % i)
            builder.add(record)
            writer.write(record)
        entry = builder.write(str(index), writer.close())
        digest = digest_of_written(str(path), str(index), entry)
        shards.append(ShardEntry(stop - start, FileEntry(path.name, path.stat().st_size, digest), entry))
    counts = {"found": len(datas), "packed": len(datas), "rejected": 0, "skipped": 0}
    manifest = Manifest(
        container=container, encoding=encoding, mode="rgb", dtype="uint8", shape=shape, classes=("a", "b"),
        fields=("label",), records=len(datas), counts=counts, class_counts={}, options={"labels": []},
        shards=tuple(shards),
    )  # fmt: skip
    (folder / "pack.json").write_bytes(manifest.to_json())
    return folder


def tiny_pack(folder: Path, records: int, parts: int = 8) -> Path:
    """Write a pack of so many images of 4x4 pixels."""
    pixels = [(i * 2654435761 % 2**32).to_bytes(4, "little") * 12 for i in range(records)]
    return direct_pack(folder, "tfrecord", pixels, (4, 4, 3), True, parts)
