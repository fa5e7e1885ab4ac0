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
