"""The blocks of the arrays of an N5 file, in a zip file.

https://github.com/saalfeldlab/n5#file-system-specification
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from packer.files.array_files import ArrayFile, Chunks, StoredEntries, dtype_of, open_zip

METADATA = "attributes.json"
_RAW = 0
"""Mode of a block: its numbers as they are."""
_HEAD = struct.Struct(">HH")


def block_head(shape: tuple[int, ...]) -> bytes:
    """Return the header of a block."""
    return _HEAD.pack(_RAW, len(shape)) + struct.pack(f">{len(shape)}I", *shape[::-1])


def open_arrays(path: str) -> AbstractContextManager[ArrayFile]:
    """Open an N5 file. Raise DamagedPack if it is not one."""
    return open_zip(path, METADATA, "an N5 file", _arrays)


def _arrays(entries: StoredEntries, data: memoryview, nodes: dict[str, Any]) -> ArrayFile:
    axes = {name: len(node["dimensions"]) for name, node in nodes.items() if "dimensions" in node}
    return ArrayFile(axes, lambda name: _chunks(entries, data, name, nodes[name]), data, nodes.get("", {}))


def _chunks(entries: StoredEntries, data: memoryview, folder: str, node: dict[str, Any]) -> Chunks:
    """Return where an array is. Raise ValueError if it is not stored as it is, in blocks of whole items."""
    shape, block = tuple(node["dimensions"])[::-1], tuple(node["blockSize"])[::-1]
    compression = node["compression"] if "compression" in node else {"type": node["compressionType"]}
    if compression["type"] != "raw":
        raise ValueError(f"{folder} is compressed ({compression['type']})")
    if not all(type(side) is int and side >= 0 for side in shape + block) or len(shape) != len(block):
        raise ValueError(f"{folder} has the shape {shape}")
    if 0 in shape[1:] or 0 in block or any(a > b for a, b in zip(shape[1:], block[1:], strict=True)):
        raise ValueError(f"{folder} is not divided along its first axis only")
    made = Chunks(shape, dtype_of(node["dataType"]).newbyteorder(">"), np.zeros(0, np.int64), block[0])
    starts = []
    for number in range(-(-shape[0] // block[0])):
        start, stop = entries.place(f"{folder}{'0/' * (len(shape) - 1)}{number}")
        items = min(block[0], shape[0] - number * block[0])
        head = block_head((items, *shape[1:]))
        whole = block_head((block[0], *shape[1:]))  # some writers fill the last block
        if bytes(data[start : start + len(head)]) not in (head, whole):
            raise ValueError(f"{folder} has a block of another mode or shape at byte {start}")
        if stop - start < len(head) + items * made.item_bytes:
            raise ValueError(f"{folder} has a truncated block at byte {start}")
        starts.append(start + len(head))
    return made._replace(starts=np.array(starts, np.int64))
