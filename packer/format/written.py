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
from packer.containers.storage import storage_errors
from packer.errors import DamagedPack
from packer.format.columns import column
from packer.format.index import read_index
from packer.format.manifest import FileEntry, IndexEntry, Manifest

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
    offsets, sizes, crcs = (np.asarray(column(table, name)) for name in ("offset", "size", "crc32c"))
    order = np.argsort(offsets, kind="stable")  # LMDB fills its pages from the end
    keys: Any = column(table, "key")
    text = keys.flat().tobytes()
    bounds = (keys.offsets - keys.offsets[0]).tolist()
    names: list[bytes] = [text[a:b] for a, b in pairwise(bounds)]
    digest = hashlib.sha256()
    held: bytes = b""  # the bytes from `start` on that a record still needs
    start = 0
    rows = zip(order.tolist(), *(numbers[order].tolist() for numbers in (offsets, sizes, crcs)), strict=True)
    row = next(rows, None)
    # the digest takes as long as the checksums, and releases the GIL
    with open(container, "rb", buffering=0) as file, ThreadPoolExecutor(1) as beside:
        pending = None
        while block := file.read(BLOCK_BYTES):
            if pending is not None:
                pending.result()
            pending = beside.submit(digest.update, block)
            view = memoryview(held + block if held else block)
            stop = start + len(view)
            while row is not None and row[1] + row[2] <= stop:
                number, offset, size, checksum = row
                record = view[offset - start : offset - start + size]
                if offset < start or crc32c(record, crc32c(names[number])) != checksum:
                    raise DamagedPack(container, f"record {names[number].decode()} does not match its checksum")
                row = next(rows, None)
            keep = stop if row is None else min(stop, max(start, row[1]))
            held, start = bytes(view[keep - start :]), keep
        if pending is not None:
            pending.result()
    if row is not None:
        raise DamagedPack(container, f"record {names[row[0]].decode()} is beyond the end of the file")
    return digest.hexdigest()


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
    with storage_errors(path), open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
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
