"""Zarr shards: one array per field, in a zip file; choose it for zarr-python, tensorstore and other tools of arrays.

Format: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, with the sharding codec: an image is a chunk.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
from crc32c import crc32c

from packer.containers.arrays import ArraysWriter, array_format
from packer.containers.container import ShardSpec
from packer.files.array_files import INDEX_CRC, ZARR_METADATA, open_zarr

_CHUNK_BYTES = 1 << 16
"""Of images that are one array of bytes: what a reader reads at least. The last one is filled up."""
_INDEX_ROW = np.dtype([("offset", "<u8"), ("size", "<u8")])
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_DTYPES = {"uint8": "u1", "uint16": "<u2", "int32": "<i4", "int64": "<i8", "float32": "<f4"}


class ZarrWriter(ArraysWriter):
    """Writes the images at once, as the chunks of one shard of Zarr, and the other arrays when it is closed."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        super().__init__(path, spec)
        self._base: int | None = None

    def _append_image(self, data: bytes) -> None:
        if self._base is None:
            self._base = self._zip.begin("images/c/0" + "/0/0/0" * (self._item_shape is not None))
        self._zip.append(data)

    def _write_images(self) -> Any:
        starts = self._starts()
        count, total = len(starts) - 1, int(starts[-1])
        item, dtype, size = self._item_shape or (), self._spec.dtype, max(1, min(total, _CHUNK_BYTES))
        if item:
            size = total // max(count, 1)
        else:
            count, dtype = total, "uint8"
        chunks = -(-total // size) if total else 0
        chunk = (1, *item) if item else (size,)
        if self._base is not None:
            self._zip.append(bytes(chunks * size - total))
            self._append_chunks(chunks, size)
            self._zip.end()
        codec = _sharding(chunk)
        self._add_metadata("images/", _array((count, *item), dtype, (max(chunks, 1) * chunk[0], *item), codec))
        return (self._base or 0) + starts[:-1]

    def _write_array(self, name: str, array: Any) -> None:
        if array.size:
            self._zip.add(f"{name}/c{'/0' * array.ndim}", array.astype(_DTYPES[array.dtype.name]).tobytes())
        chunk = tuple(max(1, side) for side in array.shape)
        self._add_metadata(f"{name}/", _array(array.shape, array.dtype.name, chunk, _BYTES))

    def _begin_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> int:
        return self._zip.begin(f"{name}/c{'/0' * len(shape)}") if prod(shape) else 0

    def _end_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        chunk, codec = (max(1, shape[0]), *shape[1:]), _BYTES
        if len(shape) > 1:  # as images: each item is a chunk
            self._append_chunks(shape[0], prod(shape[1:]) * dtype.itemsize)
            codec = _sharding((1, *shape[1:]))
        if prod(shape):
            self._zip.end()
        self._add_metadata(f"{name}/", _array(shape, dtype.name, chunk, codec))

    def _append_chunks(self, count: int, size: int) -> None:
        """Write the index of a shard of Zarr with so many chunks of this size, which follow one another."""
        index = np.zeros(count, _INDEX_ROW)
        index["offset"], index["size"] = np.arange(count) * size, size
        self._zip.append(index.tobytes())
        self._zip.append(INDEX_CRC.pack(crc32c(index.tobytes())))

    def _write_root(self, attributes: dict[str, Any]) -> None:
        self._add_metadata("", {"zarr_format": 3, "node_type": "group", "attributes": attributes})

    def _add_metadata(self, folder: str, metadata: dict[str, Any]) -> None:
        self._zip.add(folder + ZARR_METADATA, json.dumps(metadata).encode("ascii"))


def _sharding(chunk: tuple[int, ...]) -> dict[str, Any]:
    """Return the codec of a shard of chunks of this shape."""
    configuration = {
        "chunk_shape": chunk,
        "codecs": [_BYTES],
        "index_codecs": [_BYTES, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def _array(shape: tuple[int, ...], dtype: str, chunk: tuple[int, ...], codec: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array of little-endian numbers."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [codec],
        "attributes": {},
    }


CONTAINER = array_format("zarr", ".zarr.zip", overhead_bytes=128, create=ZarrWriter, open_arrays=open_zarr)
