"""Reads a new shard back in one pass, to compute its digest and verify the checksum of each record."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from crc32c import crc32c

from packer.errors import DamagedPack
from packer.format.columns import column
from packer.format.index import read_index
from packer.format.manifest import IndexEntry

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
