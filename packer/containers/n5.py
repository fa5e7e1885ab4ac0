"""N5 shards: one array per field, in a zip file; choose it for tools of Java (Fiji, Paintera, BigDataViewer) and z5py.

Format: https://github.com/saalfeldlab/n5#file-system-specification. Numbers are big-endian, and an array's dimensions
are listed from the fastest: an image of shape (height, width, channels) has the dimensions channels, width, height.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np

from packer.containers.arrays import ArraysWriter, BytesColumn, array_format
from packer.containers.container import ShardSpec
from packer.errors import UsageError, option, size_text
from packer.files.array_files import N5_METADATA, block_head, open_n5

_VERSION = "2.5.1"
_BLOCK_BYTES = 4 << 20
_LARGEST_BLOCK = (1 << 31) - 1
"""Elements; Java's arrays hold no more."""
SMALLER = "make the shards smaller"
_DTYPES = {"uint8": "u1", "int32": ">i4", "int64": ">i8", "float32": ">f4"}


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
                raise UsageError(option("shard-size"), problem, SMALLER)
            self._bytes.append(data)
            return
        self._block += data
        if len(self._block) >= self._items * len(data):
            self._end_block()

    def _end_block(self) -> None:
        assert self._item_shape is not None
        shape = (len(self._block) // int(np.prod(self._item_shape, dtype=np.int64)), *self._item_shape)
        head = block_head(shape)
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
        base = self._write_bytes("images", self._bytes)
        self._bytes.close()
        return base + starts[:-1]

    def _write_array(self, name: str, array: Any) -> None:
        if array.size:
            data = array.astype(_DTYPES[array.dtype.name]).tobytes()
            self._zip.add(f"{name}{'/0' * array.ndim}", block_head(array.shape), data)
        self._add_metadata(f"{name}/", array.shape, array.dtype.name, len(array))

    def _begin_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> int:
        total = prod(shape) * dtype.itemsize
        if total > _LARGEST_BLOCK:
            problem = f"a shard holds at most {size_text(_LARGEST_BLOCK)} of {name} in N5"
            raise UsageError(option("shard-size"), problem, SMALLER)
        shape = _as_bytes(shape, dtype)
        base = self._zip.begin(f"{name}{'/0' * len(shape)}") + len(block_head(shape)) if total else 0
        if total:
            self._zip.append(block_head(shape))
        return base

    def _end_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        shape = _as_bytes(shape, dtype)
        if prod(shape):
            self._zip.end()
        self._add_metadata(f"{name}/", shape, "uint8", shape[0])

    def _write_root(self, attributes: dict[str, Any]) -> None:
        self._zip.add(N5_METADATA, json.dumps({"n5": _VERSION, **attributes}).encode("ascii"))

    def _add_metadata(self, folder: str, shape: tuple[int, ...], dtype: str, items: int) -> None:
        block = [max(1, side) for side in (items, *shape[1:])]
        metadata = {
            "dimensions": shape[::-1],
            "blockSize": block[::-1],
            "dataType": dtype,
            "compression": {"type": "raw"},
        }
        self._zip.add(folder + N5_METADATA, json.dumps(metadata).encode("ascii"))


def _as_bytes(shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
    """Return the shape of an array; as bytes if its numbers are little-endian, which those of N5 are not."""
    return shape if dtype == np.uint8 else (prod(shape) * dtype.itemsize,)


CONTAINER = array_format("n5", ".n5.zip", overhead_bytes=128, create=N5Writer, open_arrays=open_n5)
