"""Writes the shards of a repaired pack: good files byte for byte, damaged ones anew from the records that are left."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.containers.storage import storage_errors
from packer.errors import DamagedPack
from packer.format.columns import column
from packer.format.digests import BLOCK_BYTES
from packer.format.index import INDEX_SUFFIX, IndexBuilder, read_index
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.repair_report import Watcher
from packer.format.verify_records import require_intact
from packer.packing.write_shard import file_entry, index_entry
from packer.system import sync_path
from packer.types import Record

if TYPE_CHECKING:
    from packer.format.ragged import Ragged


def spec_of(manifest: Manifest, shard: ShardEntry) -> ShardSpec:
    """What a container must know of a shard of this pack, as the build told it."""
    raw, shape = manifest.encoding == "raw", manifest.shape
    size = shard.container.bytes
    if raw and shape is not None and manifest.dtype is not None:
        size = shard.records * math.prod(shape) * np.dtype(manifest.dtype).itemsize
    return ShardSpec(
        classes=manifest.classes,
        encoding=manifest.encoding,
        shape=shape if raw else None,
        dtype=manifest.dtype or "uint8",
        planned_records=shard.records,
        planned_bytes=size,
    )


def index_name(container: str) -> str:
    """The name of the index of a container file."""
    return f"{os.path.splitext(container)[0]}{INDEX_SUFFIX}"


def write_shard(folder: str, old: ShardEntry, manifest: Manifest, records: Iterable[Record]) -> ShardEntry | None:
    """Write the shard `old` anew, of these records; None, and no file, where there is none."""
    name = old.container.name
    path, index = os.path.join(folder, name), os.path.join(folder, index_name(name))
    container = open_container(manifest.container)
    builder, writer = IndexBuilder(1 << 62), None
    for record in records:
        writer = writer or container.create(path, spec_of(manifest, old))
        builder.add(record)
        writer.write(record)
    if writer is None:
        return None
    writer.close()
    builder.write(index, container.locate(path))
    require_intact(path, index)
    return ShardEntry(len(builder), file_entry(path, name), index_entry(index, os.path.basename(index)))


def write_index(folder: str, name: str, container: str, path: str, records: Iterable[Record]) -> ShardEntry:
    """Write an index for the intact container file at `path`; its entry has the container as it is."""
    index = os.path.join(folder, index_name(name))
    builder = IndexBuilder(1 << 62)
    for record in records:
        builder.add(record)
    builder.write(index, open_container(container).locate(path))
    require_intact(path, index)
    return ShardEntry(len(builder), file_entry(path, name), index_entry(index, os.path.basename(index)))


def copy_file(source: str, folder: str, file: FileEntry, watcher: Watcher) -> None:
    """Copy a file, durably; raises DamagedPack where it is not the one of `file` any more."""
    target = os.path.join(folder, file.name)
    digest = hashlib.sha256()
    memory = memoryview(bytearray(BLOCK_BYTES))
    with storage_errors(target), open(source, "rb", buffering=0) as old, open(target, "xb") as new:
        while size := old.readinto(memory):
            digest.update(memory[:size])
            new.write(memory[:size])
            watcher.reading(size)
        new.flush()
        os.fsync(new.fileno())
    if digest.hexdigest() != file.sha256:
        raise DamagedPack(source, "changed while it was copied", "look after the disk, and repair again")


def graft(damaged: str, remade: str, file: FileEntry) -> bool:
    """Make the file `remade` the original by taking back blocks of the damaged one; whether its digest says so.

    A file that is written anew may differ from the original in a few numbers that only its writer knew (LMDB keeps
    the size of its map). Those stand in the damaged file, beside what was altered.
    """
    with suppress(OSError):
        if os.path.getsize(damaged) != file.bytes or os.path.getsize(remade) != file.bytes:
            return False
        blocks = _differing(damaged, remade)
        if blocks is None:
            return False
        for choice in range(1, 1 << len(blocks)):
            taken = {block: data for bit, (block, data) in enumerate(blocks.items()) if choice >> bit & 1}
            if _sha256_with(remade, taken) == file.sha256:
                with open(remade, "r+b") as target:
                    for block, data in taken.items():
                        target.seek(block * GRAFT_BYTES)
                        target.write(data)
                sync_path(remade)
                return True
    return False


GRAFT_BYTES = 4096
MOST_GRAFTS = 5
MOST_GRAFTED_BYTES = 1 << 32
"""Of all files that are tried; about four seconds."""


def _differing(damaged: str, remade: str) -> dict[int, bytes] | None:
    """The blocks of `damaged` that are not as in `remade`; None where they are too many to try."""
    blocks: dict[int, bytes] = {}
    with open(damaged, "rb") as old, open(remade, "rb") as new:
        number = 0
        while (theirs := old.read(GRAFT_BYTES)) or number == 0:
            if theirs != new.read(GRAFT_BYTES):
                blocks[number] = theirs
            number += 1
            if len(blocks) > MOST_GRAFTS:
                return None
    return blocks if number * GRAFT_BYTES << len(blocks) <= MOST_GRAFTED_BYTES else None


def _sha256_with(path: str, taken: dict[int, bytes]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for number in range(os.path.getsize(path) // GRAFT_BYTES + 1):
            block = file.read(GRAFT_BYTES)
            digest.update(taken.get(number, block))
    return digest.hexdigest()


@dataclass(slots=True)
class Tally:
    """What a manifest counts, of the shards of a pack."""

    labels: Counter[int] = field(default_factory=Counter)
    box_labels: Counter[int] = field(default_factory=Counter)
    boxes: int = 0

    def add(self, index: str) -> None:
        """Count the records of an index."""
        table = read_index(index)
        boxes, box_labels = (cast("Ragged", column(table, name)) for name in ("boxes", "box_labels"))
        self.labels.update(label for label in np.asarray(column(table, "label")).tolist() if label >= 0)
        self.box_labels.update(box_labels.flat().tolist())
        self.boxes += len(boxes.flat())

    def class_counts(self, classes: int) -> dict[str, list[int]]:
        """As `Manifest.class_counts`."""
        pairs = (("label", self.labels), ("boxes", self.box_labels))
        return {name: [counter[i] for i in range(classes)] for name, counter in pairs if counter}


def remove(folder: str, *names: str) -> None:
    """Remove files that were made here."""
    for name in names:
        Path(folder, name).unlink(missing_ok=True)
