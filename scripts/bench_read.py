"""How fast packs are read and opened, as ratios: batches against numpy.take, and what opening 1 M records costs.

Batches: raw 32x32 images, shuffled, 512 at a time, through `PackedDataset.__getitems__` with a list of indices, as a
DataLoader asks; against `numpy.take(array, indices, axis=0)` of the same records from one array in memory. The two take
turns batch by batch, so that whatever else the machine does falls on both. A ratio of 1 is the speed of numpy.take.

Opening: a pack of 1 M records of 4x4 pixels, each time in a new process, timed after the imports. Its container files
are written directly, by the writers that `packer build` uses, since drawing 1 M image files would take far longer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from packer import BuildOptions, PackedDataset, build_pack
from packer.containers import CONTAINERS, open_container
from packer.containers.base import ShardSpec
from packer.format.index import INDEX_SUFFIX, IndexBuilder
from packer.format.manifest import Manifest, ShardEntry
from packer.packing.write_shard import file_entry, index_entry
from packer.types import Annotation, Record

IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "folder_cifar10"
BATCH = 512
TINY_SHARDS = 8

OPEN = """
import gc, os, sys, time
from packer import PackedDataset

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

gc.collect()
before, start = rss(), time.perf_counter()
data = PackedDataset(sys.argv[1])
opened, memory = time.perf_counter() - start, rss() - before
data[len(data) // 2]
data.__getitems__([0, len(data) - 1])
print(opened * 1e3, memory / 2**20, (time.perf_counter() - start) * 1e3, (rss() - before) / 2**20)
"""


def draw_or_copy(source: Path, target: Path, count: int) -> str:
    """Class folders of `count` images, copies of those in `source`; drawn ones where it is absent."""
    found = sorted(source.glob("*/*.jpg")) if source.is_dir() else []
    for number in range(count):
        folder = target / (found[number % len(found)].parent.name if found else f"class{number % 10}")
        folder.mkdir(parents=True, exist_ok=True)
        if found:
            shutil.copyfile(found[number % len(found)], folder / f"{number:06d}.jpg")
        else:
            (folder / f"{number:06d}.jpg").write_bytes(_drawn(number))
    return f"{len(found)} images of {source}, repeated" if found else f"{source} is absent: drawn images"


def _drawn(seed: int) -> bytes:
    import simplejpeg

    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels))


def epoch(data: PackedDataset, array: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Seconds for all batches of one shuffled epoch: of numpy.take, of the pack."""
    order = rng.permutation(len(data))
    spent = [0.0, 0.0]
    for start in range(0, len(order) - BATCH + 1, BATCH):
        records = order[start : start + BATCH]
        indices = records.tolist()
        for turn in (0, 1) if start // BATCH % 2 else (1, 0):
            began = time.perf_counter()
            if turn == 0:
                np.take(array, records, axis=0)
            else:
                data.__getitems__(indices)
            spent[turn] += time.perf_counter() - began
    return spent[0], spent[1]


def printable(values: Sequence[float]) -> str:
    return f"{statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})"


def bench_batches(packs: dict[str, Path], rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    steady: dict[str, list[float]] = {name: [] for name in packs}
    first: dict[str, list[float]] = {name: [] for name in packs}
    rates: dict[str, list[float]] = {name: [] for name in packs}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name, path in packs.items():
            data = PackedDataset(path)
            array = _in_memory(data.pack.path)
            take, ours = epoch(data, array, rng)  # with checksums, page faults and columns
            first[name].append(take / ours)
            epoch(data, array, rng)
            take, ours = epoch(data, array, rng)
            steady[name].append(take / ours)
            rates[name].append(len(data) // BATCH * BATCH / ours)
    print(f"\ntorch threads: {threads}; {rounds} rounds, median (min to max) of the ratio to numpy.take")
    print(f"{'container':<12}{'steady state':<26}{'first epoch, checked':<26}{'records/s':>10}")
    for name in packs:
        rate = statistics.median(rates[name])
        print(f"{name:<12}{printable(steady[name]):<26}{printable(first[name]):<26}{rate:>10,.0f}")
    medians = [statistics.median(values) for values in steady.values()]
    print(f"slowest container: {min(medians):.2f} of numpy.take (to reach: 0.80)")
    print(f"apart from one another: {(1 - min(medians) / max(medians)):.0%} (to reach: 10%)")


_arrays: dict[str, np.ndarray] = {}


def _in_memory(path: str) -> np.ndarray:
    """All records of the pack as one array (n, bytes), in memory of its own."""
    if path not in _arrays:
        data = PackedDataset(path)
        images = data.__getitems__(range(len(data))).images
        _arrays[path] = images.permute(0, 2, 3, 1).reshape(len(data), -1).numpy().copy()
    return _arrays[path]


def write_tiny_pack(folder: Path, container: str, records: int) -> None:
    """A pack of 4x4 images, made without image files."""
    folder.mkdir()
    home = open_container(container)
    shards = []
    bounds = np.linspace(0, records, TINY_SHARDS + 1).astype(int).tolist()
    for number, (start, stop) in enumerate(pairwise(bounds)):
        path = folder / f"shard-{number:05d}{home.suffix}"
        index = folder / f"shard-{number:05d}{INDEX_SUFFIX}"
        spec = ShardSpec(("a", "b"), "raw", (4, 4, 3), "uint8", stop - start, 48 * (stop - start))
        writer, builder = home.create(str(path), spec), IndexBuilder(stop - start)
        for i in range(start, stop):
            pixels = (i * 2654435761 % 2**32).to_bytes(4, "little") * 12
            annotation = Annotation(label=i % 2)
            record = Record(f"{i:08d}", pixels, "raw", 4, 4, 3, "uint8", annotation, b"a/%07d.png" % i)
            builder.add(record)
            writer.write(record)
        writer.close()
        builder.write(index, home.locate(str(path)))
        shards.append(ShardEntry(stop - start, file_entry(str(path), path.name), index_entry(str(index), index.name)))
    manifest = Manifest(
        container=container, encoding="raw", mode="rgb", dtype="uint8", shape=(4, 4, 3), classes=("a", "b"),
        fields=("label",), records=records, counts={}, class_counts={}, options={}, shards=tuple(shards),
    )  # fmt: skip
    (folder / "pack.json").write_bytes(manifest.to_json())


def bench_open(path: Path, container: str, records: int, rounds: int) -> None:
    began = time.perf_counter()
    write_tiny_pack(path, container, records)
    print(f"\nopening {records:,} records ({container}, {TINY_SHARDS} shards, ", end="")
    print(f"written directly in {time.perf_counter() - began:.0f} s), {rounds} new processes")
    runs = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", OPEN, str(path)], check=True, capture_output=True, text=True)
        runs.append([float(value) for value in done.stdout.split()])
    names = ("ms to open (to reach: 50)", "MB to open (to reach: 20)", "ms with three samples", "MB with three samples")
    for name, values in zip(names, zip(*runs, strict=True), strict=True):
        print(f"{printable(values)}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=IMAGES, help="class folders of JPEGs [default: %(default)s]")
    parser.add_argument("--count", type=int, default=8000, help="repeat them to so many [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiny", type=int, default=1_000_000, help="records of the pack that is opened; 0: none")
    parser.add_argument("--tiny-format", choices=CONTAINERS, default="tfrecord")
    given = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"numpy {np.__version__}, torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores,", end=" ")
    print(f"{threads} torch threads, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="bench-read-") as folder:
        source = Path(folder, "images")
        print(f"{given.count} records: {draw_or_copy(given.images, source, given.count)}")
        packs = {name: Path(folder, f"pack.{name}") for name in CONTAINERS}
        for name, path in packs.items():
            build_pack(BuildOptions(str(source), str(path), name, labels=("folder",), resize="32x32"))
        for number in sorted({threads, 1}, reverse=True):
            bench_batches(packs, given.rounds, number)
        if given.tiny:
            bench_open(Path(folder, "tiny"), given.tiny_format, given.tiny, given.rounds)


if __name__ == "__main__":
    main()
