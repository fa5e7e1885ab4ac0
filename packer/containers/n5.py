"""N5 shards: one array per field, in a zip file; choose it for tools of Java (Fiji, Paintera, BigDataViewer) and z5py.

Format: https://github.com/saalfeldlab/n5#file-system-specification. Numbers are big-endian, and an array's dimensions
are listed from the fastest: an image of shape (height, width, channels) has the dimensions channels, width, height.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from packer.containers.annotation_columns import BytesColumn
from packer.containers.arrays import ArrayFile, ArraysWriter, Chunks, dtype_of, open_zip, scanned
from packer.containers.base import Entry, ShardSpec
from packer.containers.stored_zip import StoredEntries
from packer.errors import UsageError, size_text

_METADATA = "attributes.json"
_VERSION = "2.5.1"
_BLOCK_BYTES = 4 << 20
_LARGEST_BLOCK = (1 << 31) - 1
"""Elements; Java's arrays hold no more."""
SMALLER = "make the shards smaller"
_RAW = 0
"""Mode of a block: its numbers as they are."""
_HEAD = struct.Struct(">HH")
_COPY_BYTES = 4 << 20
_DTYPES = {"uint8": "u1", "int64": ">i8", "float32": ">f4"}


class N5Writer(ArraysWriter):
    """Writes images of one shape in blocks of some megabytes; others when it is closed, as one block of bytes.

    uint16 pixels are little-endian in a pack, which no array of N5 is: they are bytes too.
    """

    def __init__(self, path: str, spec: ShardSpec) -> None:
        super().__init__(path, spec)
        if spec.dtype != "uint8":
            self._item_shape = None
        self._bytes = BytesColumn(path)
        self._block = bytearray()
        self._blocks: list[int] = []
        self._items = 1
        if self._item_shape is not None:
            self._items = max(1, _BLOCK_BYTES // int(np.prod(self._item_shape, dtype=np.int64)))

    def _append_image(self, data: bytes) -> None:
        if self._item_shape is None:
            if self._bytes.total + len(data) > _LARGEST_BLOCK:
                problem = f"a shard of images of different sizes holds at most {size_text(_LARGEST_BLOCK)} in N5"
                raise UsageError("--shard-size", problem, SMALLER)
            self._bytes.append(data)
            return
        self._block += data
        if len(self._block) >= self._items * len(data):
            self._end_block()

    def _end_block(self) -> None:
        assert self._item_shape is not None
        shape = (len(self._block) // int(np.prod(self._item_shape, dtype=np.int64)), *self._item_shape)
        head = _head(shape)
        self._blocks.append(len(head) + self._zip.add(f"images/0/0/0/{len(self._blocks)}", head, self._block))
        self._block = bytearray()

    def _write_images(self) -> Any:
        starts = self._starts()
        if self._item_shape is not None:
            if self._block:
                self._end_block()
            self._add_metadata("images/", (len(starts) - 1, *self._item_shape), "uint8", self._items)
            numbers = np.arange(len(starts) - 1)
            first = np.array(self._blocks, np.int64)[numbers // self._items]
            return first + starts[:-1] - starts[numbers - numbers % self._items]
        total = self._bytes.total
        base = self._begin_bytes("images", total)
        if total:
            for start in range(0, total, _COPY_BYTES):
                self._zip.append(self._bytes.read(start, min(start + _COPY_BYTES, total)))
            self._zip.end()
        self._bytes.close()
        self._end_bytes("images", total)
        return base + starts[:-1]

    def _write_array(self, name: str, array: Any) -> None:
        if array.size:
            data = array.astype(_DTYPES[array.dtype.name]).tobytes()
            self._zip.add(f"{name}{'/0' * array.ndim}", _head(array.shape), data)
        self._add_metadata(f"{name}/", array.shape, array.dtype.name, len(array))

    def _begin_bytes(self, name: str, total: int) -> int:
        if total > _LARGEST_BLOCK:
            problem = f"a shard holds at most {size_text(_LARGEST_BLOCK)} of {name} in N5"
            raise UsageError("--shard-size", problem, SMALLER)
        base = self._zip.begin(f"{name}/0") + len(_head((total,))) if total else 0
        if total:
            self._zip.append(_head((total,)))
        return base

    def _end_bytes(self, name: str, total: int) -> None:
        self._add_metadata(f"{name}/", (total,), "uint8", total)

    def _write_root(self, attributes: dict[str, Any]) -> None:
        self._zip.add(_METADATA, json.dumps({"n5": _VERSION, **attributes}).encode("ascii"))

    def _add_metadata(self, folder: str, shape: tuple[int, ...], dtype: str, items: int) -> None:
        block = [max(1, side) for side in (items, *shape[1:])]
        metadata = {
            "dimensions": shape[::-1],
            "blockSize": block[::-1],
            "dataType": dtype,
            "compression": {"type": "raw"},
        }
        self._zip.add(folder + _METADATA, json.dumps(metadata).encode("ascii"))


def _head(shape: tuple[int, ...]) -> bytes:
    """Return the header of a block."""
    return _HEAD.pack(_RAW, len(shape)) + struct.pack(f">{len(shape)}I", *shape[::-1])


class N5Container:
    """``--format n5``."""

    name = "n5"
    suffix = ".n5.zip"
    block_bytes = 1
    overhead_bytes = 128

    def create(self, path: str, spec: ShardSpec) -> N5Writer:
        return N5Writer(path, spec)

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the items of the array ``images`` of a zip file, else of the first array of three or more dimensions.

        Its blocks must be raw, whole images each. Images of different sizes need ``image_offsets`` (docs/formats.md).
        The names come from ``keys``, or are numbers.
        """
        with open_arrays(path) as arrays:
            yield from scanned(arrays)


def open_arrays(path: str) -> AbstractContextManager[ArrayFile]:
    """Open an N5 file. Raise DamagedPack if it is none."""
    return open_zip(path, _METADATA, "an N5 file", _arrays)


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
        head = _head((items, *shape[1:]))
        whole = _head((block[0], *shape[1:]))  # some writers fill the last block
        if bytes(data[start : start + len(head)]) not in (head, whole):
            raise ValueError(f"{folder} has a block of another mode or shape at byte {start}")
        if stop - start < len(head) + items * made.item_bytes:
            raise ValueError(f"{folder} has a truncated block at byte {start}")
        starts.append(start + len(head))
    return made._replace(starts=np.array(starts, np.int64))


CONTAINER = N5Container()
