"""Measures `packer verify` against reading the files once and hashing them with SHA-256, in one thread.

    scripts/bench_verify.py --records 80000 --rounds 5

Packs of 32x32 raw images and of 256-pixel JPEGs, in each container. Rounds are interleaved; the files are in memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from packer.containers import CONTAINERS, open_container
from packer.containers.base import ShardSpec
from packer.format.digests import sha256_of
from packer.format.index import IndexBuilder
from packer.format.manifest import Manifest, ShardEntry
from packer.format.verify import verify
from packer.packing.write_shard import file_entry, index_entry
from packer.system import sync_path
from packer.types import Annotation, Record

KINDS = {"raw 32x32": ("raw", 32, 3072), "jpeg 256": ("jpeg", 256, 22_000)}
SHARDS = 4


def make(folder: Path, container: str, kind: str, records: int) -> Path:
    """A pack of records of random bytes: nothing here decodes them."""
    encoding, side, size = KINDS[kind]
    shape = (side, side, 3)
    draw = np.random.default_rng(0)
    pack = folder / f"{encoding}.{container}"
    pack.mkdir()
    entries = []
    home = open_container(container)
    for shard in range(SHARDS):
        numbers = range(records * shard // SHARDS, records * (shard + 1) // SHARDS)
        path = pack / f"shard-{shard:05d}{home.suffix}"
        index = path.with_name(f"shard-{shard:05d}.index.arrow")
        spec = ShardSpec((), encoding, shape if encoding == "raw" else None, "uint8", len(numbers), size * len(numbers))
        writer, builder = home.create(str(path), spec), IndexBuilder(len(numbers))
        for number in numbers:
            length = size if encoding == "raw" else size + int(draw.integers(-4000, 4000))
            data = draw.bytes(length)
            annotation = Annotation(label=number % 10)
            record = Record(f"{number:08d}", data, encoding, *shape, "uint8", annotation, b"%d" % number)
            builder.add(record)
            writer.write(record)
        writer.close()
        builder.write(index, home.locate(str(path)))
        entry = index_entry(str(index), index.name)
        entries.append(ShardEntry(len(numbers), file_entry(str(path), path.name), entry))
    manifest = Manifest(
        container=container, encoding=encoding, mode="rgb", dtype="uint8", shape=shape, classes=(), fields=("label",),
        records=records, counts={"found": records, "packed": records, "rejected": 0, "skipped": 0}, class_counts={},
        options={"labels": []}, shards=tuple(entries),
    )  # fmt: skip
    (pack / "pack.json").write_bytes(manifest.to_json())
    sync_path(str(pack))
    return pack


def hash_all(pack: Path) -> None:
    """Read every file once and hash it."""
    for path in pack.iterdir():
        sha256_of(str(path))


def check(pack: Path) -> None:
    """What is measured."""
    assert not verify(pack).problems


def timed(action: Callable[[Path], None], pack: Path) -> float:
    started = time.perf_counter()
    action(pack)
    return time.perf_counter() - started


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=80_000, help="of 32x32; a fifth of them of 256 px")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print("| pack | hash, s | verify, s | verify / hash, median (min to max) |")
    print("|---|---|---|---|")
    for kind in KINDS:
        for container in CONTAINERS:
            with tempfile.TemporaryDirectory() as home:
                records = given.records if kind.startswith("raw") else given.records // 5
                pack = make(Path(home), container, kind, records)
                rounds = [(timed(hash_all, pack), timed(check, pack)) for _ in range(given.rounds + 1)][1:]
            ratios = sorted(b / a for a, b in rounds)
            hashing, checking = (statistics.median(times) for times in zip(*rounds, strict=True))
            median = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"| {kind}, {container} | {hashing:.3f} | {checking:.3f} | {median} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
