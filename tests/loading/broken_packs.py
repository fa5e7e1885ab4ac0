"""Copies of packs whose records are damaged on purpose."""

from __future__ import annotations

import shutil
from pathlib import Path

from packer import open_pack


def broken(pack: Path, copy: Path, records: list[int]) -> Path:
    """A copy of a pack in which a byte in the middle of each of these records is another one."""
    shutil.copytree(pack, copy)
    good = open_pack(pack)
    for record in records:
        number, _ = good.reader.locate(record)
        offset = sum(good.reader.span(record)) // 2 - int(good.reader._starts[number])
        path = copy / good.reader.shards[number].container.name
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x10
        path.write_bytes(data)
    return copy
