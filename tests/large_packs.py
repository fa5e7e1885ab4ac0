"""Packs of any number of records that take hardly any disk: sparse shards of black images, and one index for all.

For the tests, and for scripts/bench.py large_pack.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from packer.format.index import DTYPES, ENCODINGS, FULL_SCHEMA, batch_of, dictionary_column, write_index
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.pack_paths import INDEX_SUFFIX
from packer.model.fields import FIELD_NAMES, label_arrays

CLASSES = 10


def large_pack(folder: Path, shards: int, records: int, side: int, pixels: bytes = b"") -> Path:
    """Make a pack of `shards` shards, each of `records` raw images of side x side x 3, of `CLASSES` classes.

    Every shard has the same index, and so the same keys; and the same `pixels`, or black images.
    """
    folder.mkdir()
    size = side * side * 3
    rows = [pixels[row * size : (row + 1) * size] or bytes(size) for row in range(records)]
    keys = [b"%08d" % row for row in range(records)]
    facts = [np.full(records, value, kind) for value, kind in ((side, np.int32), (side, np.int32), (3, np.int8))]
    columns = [
        pa.array(keys, pa.binary()).cast(pa.string()),
        pa.array(np.arange(records) * size),
        pa.array(np.full(records, size)),
        pa.array(np.array([crc32c(data, crc32c(key)) for data, key in zip(rows, keys, strict=True)], np.uint32)),
        *map(pa.array, facts),
        dictionary_column(np.zeros(records, np.int8), DTYPES),
        dictionary_column(np.zeros(records, np.int8), ENCODINGS),
        pa.array([b"class/%b.png" % key for key in keys], pa.binary()),
        pa.array([bytes(16)] * records, pa.binary(16)),
        *label_arrays(np.arange(records, dtype=np.int32) % CLASSES),
    ]
    first = folder / f"index{INDEX_SUFFIX}"
    index = write_index(first, batch_of(first, pa.table(columns, schema=FULL_SCHEMA)))
    entries = []
    for number in range(shards):
        container, its_index = f"shard-{number:05d}.tfrecord", f"shard-{number:05d}{INDEX_SUFFIX}"
        with open(folder / container, "wb") as file:
            file.write(pixels)
            file.truncate(records * size)
        os.link(first, folder / its_index)
        digest = "0" * 64
        its_entry = type(index)(its_index, index.bytes, index.sha256, index.crc32c)
        entries.append(ShardEntry(records, FileEntry(container, records * size, digest), its_entry))
    first.unlink()
    count, classes = shards * records, tuple(f"class{number}" for number in range(CLASSES))
    manifest = Manifest(
        container="tfrecord", encoding="raw", mode="rgb", dtype="uint8", shape=(side, side, 3), classes=classes,
        fields=("label",), records=count, counts={"found": count, "packed": count, "rejected": 0, "skipped": 0},
        class_counts={}, options={"labels": []}, shards=tuple(entries),
    )  # fmt: skip
    (folder / "pack.json").write_bytes(manifest.to_json())
    return folder


def labeled_pack(folder: Path, facts: dict[str, Any], classes: Sequence[str], shards: int = 1) -> Path:
    """Make a pack whose index has these annotations, and whose images cannot be decoded: one byte each.

    Args:
        folder: The pack to make.
        facts: Columns: ``width`` and ``height`` (n,), and any of ``source_xxh3`` uint8 (n, 16), ``label`` (n,),
            ``boxes`` and ``landmarks`` (a pair: rows of 4 or 2 numbers, and how many each image has), ``box_labels``
            (of all boxes).
        classes: Their names.
        shards: Number of shards.
    """
    folder.mkdir()
    count, entries = len(facts["width"]), []
    for number, (start, stop) in enumerate(pairwise(np.linspace(0, count, shards + 1).astype(int).tolist())):
        rows, name = stop - start, folder / f"shard-{number:05d}.tfrecord"
        keys = [b"%08d" % row for row in range(start, stop)]
        columns = {
            "key": pa.array(keys, pa.binary()).cast(pa.string()),
            "offset": pa.array(np.arange(rows)),
            "size": pa.array(np.ones(rows, np.int64)),
            "crc32c": pa.array(np.zeros(rows, np.uint32)),
            "height": pa.array(np.asarray(facts["height"][start:stop], np.int32)),
            "width": pa.array(np.asarray(facts["width"][start:stop], np.int32)),
            "channels": pa.array(np.full(rows, 3, np.int8)),
            "dtype": dictionary_column(np.zeros(rows, np.int8), DTYPES),
            "encoding": dictionary_column(np.full(rows, 1, np.int8), ENCODINGS),
            "path": pa.array([b"images/%b.jpg" % key for key in keys], pa.binary()),
        }
        digests = np.ascontiguousarray(facts.get("source_xxh3", np.zeros((count, 16), np.uint8))[start:stop])
        columns["source_xxh3"] = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), rows, [None, pa.py_buffer(digests.tobytes())]
        )
        labels = np.asarray(facts.get("label", np.full(count, -1))[start:stop], np.int32)
        for field, column in zip(FIELD_NAMES, label_arrays(labels), strict=True):
            columns[field] = column
        for field, width in (("boxes", 4), ("landmarks", 2)):
            if field in facts:
                values, lengths = facts[field]
                ends = np.concatenate([[0], np.cumsum(lengths)])
                part = np.asarray(values, np.float32)[ends[start] : ends[stop]]
                offsets = pa.array((ends[start : stop + 1] - ends[start]).astype(np.int32))
                items = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), width)
                columns[field] = pa.ListArray.from_arrays(offsets, items)
                if field == "boxes" and "box_labels" in facts:
                    ids = pa.array(np.asarray(facts["box_labels"], np.int64)[ends[start] : ends[stop]])
                    columns["box_labels"] = pa.ListArray.from_arrays(offsets, ids)
        table = pa.table([columns[field] for field in FULL_SCHEMA.names], schema=FULL_SCHEMA)
        index = write_index(name.with_suffix(INDEX_SUFFIX), batch_of(name, table))
        name.write_bytes(b"")
        os.truncate(name, rows)
        entries.append(ShardEntry(rows, FileEntry(name.name, rows, "0" * 64), index))
    fields = tuple(name for name in FIELD_NAMES if name in facts)
    manifest = Manifest(
        container="tfrecord", encoding="jpeg", mode="rgb", dtype="uint8", shape=None, classes=tuple(classes),
        fields=fields, records=count, counts={"found": count, "packed": count, "rejected": 0, "skipped": 0},
        class_counts={}, options={"labels": []}, shards=tuple(entries),
    )  # fmt: skip
    (folder / "pack.json").write_bytes(manifest.to_json())
    return folder


def random_labels(records: int, boxes: float, classes: int, seed: int = 0) -> dict[str, Any]:
    """Draw the facts of a `labeled_pack`: `boxes` per image on the average, of sizes that differ by class; one file in
    a hundred is there twice."""
    draw = np.random.default_rng(seed)
    lengths = draw.poisson(boxes, records)
    count = int(lengths.sum())
    ids = draw.integers(0, classes, count)
    wide = np.exp(draw.normal(3 + ids / classes, 0.5)).clip(1, 600)
    high = (wide * np.exp(draw.normal(0, 0.3, count))).clip(1, 440)
    x, y = draw.uniform(0, 640 - wide), draw.uniform(0, 480 - high)
    digests = draw.integers(0, 256, (records, 16), np.uint8)
    digests[1::100] = digests[::100][: len(digests[1::100])]
    return {
        "width": np.full(records, 640), "height": np.full(records, 480), "source_xxh3": digests,
        "boxes": (np.stack([x, y, x + wide, y + high], axis=1), lengths), "box_labels": ids,
    }  # fmt: skip
