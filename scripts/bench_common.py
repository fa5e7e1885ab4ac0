"""What the benchmark scripts share: images, packs without images, tables. Timing is in packer.bench.measure."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

from packer.bench.measure import Figure
from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.format.index import INDEX_SUFFIX, IndexBuilder
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.written import digest_of_written
from packer.model.annotation import Annotation, Record

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DRAWN = 200


def parser(description: str, rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options of every script."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--rounds", type=int, default=rounds, help="rounds that count [%(default)s]")
    made.add_argument("--data", type=Path, default=DATA, help="has folder_cifar10/ and photos/; drawn if not there")
    made.add_argument("--work-dir", type=Path, help="where temporary files go")
    return made


class Table:
    """Prints a Markdown table, row by row."""

    def __init__(self, *head: str) -> None:
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)

    def row(self, *cells: str) -> None:
        """Print one row."""
        print(f"| {' | '.join(cells)} |", flush=True)


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
    files = [path.read_bytes() for path in found] or list(drawn(32 if kind == "cifar" else 400))
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
