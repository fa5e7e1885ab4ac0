"""Packs of any number of records that take hardly any disk: sparse shards of black images, and one index for all.

For the tests, and for scripts/bench_large_pack.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from packer.format.index import INDEX_SUFFIX, batch_of, write_index
from packer.format.index_rows import coded, label_arrays
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.schema import DTYPES, ENCODINGS, TAGGED_SCHEMA

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
        coded(np.zeros(records, np.int8), DTYPES),
        coded(np.zeros(records, np.int8), ENCODINGS),
        pa.array([b"class/%b.png" % key for key in keys], pa.binary()),
        pa.array([bytes(16)] * records, pa.binary(16)),
        *label_arrays(np.arange(records, dtype=np.int32) % CLASSES),
    ]
    first = folder / f"index{INDEX_SUFFIX}"
    index = write_index(first, batch_of(first, pa.table(columns, schema=TAGGED_SCHEMA)))
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
