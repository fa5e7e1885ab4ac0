"""Reads a new shard back in one pass, to compute its digest and verify the checksum of each record."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from crc32c import crc32c

from packer.containers import open_container
from packer.errors import DamagedPack
from packer.format.index import read_index
from packer.format.manifest import FileEntry, IndexEntry, Manifest
from packer.model.columns import column
from packer.model.parts import IMAGE, column_of, key_of, names_in
from packer.system.atomic import replacing
from packer.system.storage import storage_errors

BLOCK_BYTES = 1 << 20


def digest_of_written(container: str, index: str, entry: IndexEntry) -> str:
    """Return the SHA-256 of a finished container, whose index must match `entry`.

    Raises:
        DamagedPack: The index was altered, or a record does not match its checksum.
        StorageError: A file cannot be read.
    """
    with open(index, "rb") as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise DamagedPack(index, "does not match its digest")
    table = read_index(index, np.frombuffer(data, np.uint8))
    offsets, sizes, crcs, names = _ranges(table)
    order = np.argsort(offsets, kind="stable")  # LMDB fills its pages from the end
    rows = zip(order.tolist(), *(numbers[order].tolist() for numbers in (offsets, sizes, crcs)), strict=True)
    digest = hashlib.sha256()
    # two blocks in turn: one is digested beside (that takes as long as the checksums, and releases the GIL) while the
    # other is filled; new ones for each read would be zeroed by the kernel
    blocks = [memoryview(bytearray(BLOCK_BYTES)) for _ in range(2)]
    start = 0
    row = next(rows, None)
    found = 0 if row is None else crc32c(names[row[0]])
    with open(container, "rb", buffering=0) as file, ThreadPoolExecutor(1) as beside:
        pending = None
        while size := file.readinto(blocks[0]):
            block, stop = blocks[0][:size], start + size
            if pending is not None:
                pending.result()
            pending = beside.submit(digest.update, block)
            while row is not None and row[1] < stop:
                number, offset, length, checksum = row
                end = offset + length
                found = crc32c(block[max(offset - start, 0) : min(end, stop) - start], found)
                if end > stop:
                    break
                if found != checksum:
                    raise DamagedPack(container, f"record {names[number].decode()} does not match its checksum")
                row = next(rows, None)
                found = 0 if row is None else crc32c(names[row[0]])
            start = stop
            blocks.reverse()
        if pending is not None:
            pending.result()
    if row is not None:
        raise DamagedPack(container, f"record {names[row[0]].decode()} is beyond the end of the file")
    return digest.hexdigest()


def _ranges(table: Any) -> tuple[Any, Any, Any, list[bytes]]:
    """Return offset, size and checksum of all images and parts of an index, and what each checksum begins with."""
    keys: Any = column(table, "key")
    text = keys.flat().tobytes()
    bounds = (keys.offsets - keys.offsets[0]).tolist()
    records: list[bytes] = [text[a:b] for a, b in pairwise(bounds)]
    numbers: list[list[Any]] = []
    names: list[bytes] = []
    for name in (IMAGE, *names_in(table.column_names)):
        found = [np.asarray(column(table, column_of(name, what))) for what in ("offset", "size", "crc32c")]
        if name == IMAGE:
            names += records
        else:
            there = np.flatnonzero(found[1] > 0)
            found = [values[there] for values in found]
            names += [key_of(records[row], name) for row in there.tolist()]
        numbers.append(found)
    offsets, sizes, crcs = (np.concatenate(values) for values in zip(*numbers, strict=True))
    return offsets, sizes, crcs, names


def write_companions(folder: str, manifest: Manifest) -> dict[str, FileEntry]:
    """Write the files that readers of a format want beside its shards; most formats have none.

    Args:
        folder: The pack's folder, with its shards.
        manifest: The manifest. Shards in other folders are left as their tools made them.

    Returns:
        `Manifest.companions`.

    Raises:
        StorageError: A file cannot be written.
    """
    names = [shard.container.name for shard in manifest.shards if not manifest.linked.get(shard.container.name)]
    if not names or not hasattr(open_container(manifest.container), "companion"):
        return {}
    return {name: write_companion(manifest.container, os.path.join(folder, name), folder) for name in names}


def write_companion(container: str, shard: str, folder: str) -> FileEntry:
    """Write the companion of the file `shard` into a folder, durably, and return its entry."""
    extension, content = open_container(container).companion(shard)  # type: ignore[attr-defined]
    name = os.path.splitext(os.path.basename(shard))[0] + extension
    path = os.path.join(folder, name)
    with storage_errors(path), replacing(path) as file:
        file.write(content)
    return FileEntry(name, len(content), hashlib.sha256(content).hexdigest())


def restore_companions(folder: str, work: str, manifest: Manifest, damaged: Collection[str]) -> bool:
    """Write the damaged companions of a pack again; return whether they are as they were.

    Args:
        folder: The pack.
        work: Where to write them; shards in this folder replace those of the pack.
        manifest: Its manifest.
        damaged: Names of damaged files.
    """
    for name, file in manifest.companions.items():
        if file.name in damaged:
            made = os.path.join(work, name)
            shard = made if os.path.isfile(made) else manifest.path_of(folder, name)
            if write_companion(manifest.container, shard, work) != file:
                return False
    return True
