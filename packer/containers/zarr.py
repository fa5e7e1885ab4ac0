"""Zarr shards: one array per field, in a zip file; choose it for zarr-python, tensorstore and other tools of arrays.

Format: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, with the sharding codec: an image is a chunk.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from crc32c import crc32c

from packer.containers.arrays import ArrayFile, ArraysWriter, Chunks, dtype_of, open_zip, scanned
from packer.containers.base import Entry, ShardSpec
from packer.containers.stored_zip import StoredEntries

_METADATA = "zarr.json"
_CHUNK_BYTES = 1 << 16
"""Of images that are one array of bytes: what a reader reads at least. The last one is filled up."""
_INDEX_ROW = np.dtype([("offset", "<u8"), ("size", "<u8")])
_CRC = struct.Struct("<I")
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_DTYPES = {"uint8": "u1", "uint16": "<u2", "int64": "<i8", "float32": "<f4"}


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
            index = np.zeros(chunks, _INDEX_ROW)
            index["offset"], index["size"] = np.arange(chunks) * size, size
            self._zip.append(index.tobytes())
            self._zip.append(_CRC.pack(crc32c(index.tobytes())))
            self._zip.end()
        sharding = {
            "chunk_shape": chunk,
            "codecs": [_BYTES],
            "index_codecs": [_BYTES, {"name": "crc32c"}],
            "index_location": "end",
        }
        codec = {"name": "sharding_indexed", "configuration": sharding}
        self._add_metadata("images/", _array((count, *item), dtype, (max(chunks, 1) * chunk[0], *item), codec))
        return (self._base or 0) + starts[:-1]

    def _write_array(self, name: str, array: Any) -> None:
        if array.size:
            self._zip.add(f"{name}/c{'/0' * array.ndim}", array.astype(_DTYPES[array.dtype.name]).tobytes())
        chunk = tuple(max(1, side) for side in array.shape)
        self._add_metadata(f"{name}/", _array(array.shape, array.dtype.name, chunk, _BYTES))

    def _begin_bytes(self, name: str, total: int) -> int:
        return self._zip.begin(f"{name}/c/0") if total else 0

    def _end_bytes(self, name: str, total: int) -> None:
        self._add_metadata(f"{name}/", _array((total,), "uint8", (max(1, total),), _BYTES))

    def _write_root(self, attributes: dict[str, Any]) -> None:
        self._add_metadata("", {"zarr_format": 3, "node_type": "group", "attributes": attributes})

    def _add_metadata(self, folder: str, metadata: dict[str, Any]) -> None:
        self._zip.add(folder + _METADATA, json.dumps(metadata).encode("ascii"))


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


class ZarrContainer:
    """``--format zarr``."""

    name = "zarr"
    suffix = ".zarr.zip"
    block_bytes = 1
    overhead_bytes = 128

    def create(self, path: str, spec: ShardSpec) -> ZarrWriter:
        return ZarrWriter(path, spec)

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the items of the array ``images`` of a zip file, else of the first array of three or more dimensions.

        Its chunks must be stored as they are, whole images each. Images of different sizes need ``image_offsets``
        (docs/formats.md). The names come from ``keys``, or are numbers.
        """
        with open_arrays(path) as arrays:
            yield from scanned(arrays)


def open_arrays(path: str) -> AbstractContextManager[ArrayFile]:
    """Open a Zarr file. Raise DamagedPack if it is none."""
    return open_zip(path, _METADATA, "a Zarr file", _arrays)


def _arrays(entries: StoredEntries, data: memoryview, nodes: dict[str, Any]) -> ArrayFile:
    arrays = {name: node for name, node in nodes.items() if node["node_type"] == "array"}
    axes = {name: len(node["shape"]) for name, node in arrays.items()}
    attributes = nodes.get("", {}).get("attributes", {})
    return ArrayFile(axes, lambda name: _chunks(entries, data, name, arrays[name]), data, attributes)


def _chunks(entries: StoredEntries, data: memoryview, folder: str, node: dict[str, Any]) -> Chunks:
    """Return where an array is. Raise ValueError if it is not stored as it is, in chunks of whole items."""
    shape, outer = tuple(node["shape"]), tuple(node["chunk_grid"]["configuration"]["chunk_shape"])
    (codec,) = node["codecs"]
    inner, index_codecs = outer, None
    if codec["name"] == "sharding_indexed":
        sharding = codec["configuration"]
        inner, index_codecs = tuple(sharding["chunk_shape"]), [one["name"] for one in sharding["index_codecs"]]
        (codec,) = sharding["codecs"]
    if codec["name"] != "bytes" or codec.get("configuration", {}).get("endian", "little") != "little":
        raise ValueError(f"{folder} is stored with the codec {codec['name']}, not as it is")
    if not all(type(side) is int and side >= 0 for side in shape) or not all(
        type(side) is int for side in inner + outer
    ):
        raise ValueError(f"{folder} has the shape {shape}")
    if (
        0 in shape[1:]
        or inner[1:] != shape[1:]
        or outer[1:] != shape[1:]
        or min((*inner, *outer)) < 1
        or outer[0] % inner[0]
    ):
        raise ValueError(f"{folder} is not divided along its first axis only")
    made = Chunks(shape, dtype_of(node["data_type"]).newbyteorder("<"), np.zeros(0, np.int64), inner[0])
    size, parts = inner[0] * made.item_bytes, [made.starts]
    for number in range(-(-shape[0] // outer[0])):
        start, stop = entries.place(folder + _key(node["chunk_key_encoding"], number, len(shape)))
        if index_codecs is None:
            chunks = np.array([[0, stop - start]])
        else:
            chunks = _index(data[start:stop], outer[0] // inner[0], index_codecs, sharding.get("index_location", "end"))
        left = shape[0] - number * outer[0]
        chunks = chunks[: -(-left // inner[0])]
        if (chunks[:, 1] != size).any() or (chunks[:, 0] < 0).any() or (chunks[:, 0] > stop - start - size).any():
            raise ValueError(f"{folder} has a chunk that is empty, or not of {size} bytes")
        parts.append(start + chunks[:, 0])
    return made._replace(starts=np.concatenate(parts))


def _index(shard: memoryview, count: int, codecs: list[str], location: str) -> Any:
    """Return offset and size of each chunk of a shard, int64 (count, 2)."""
    if codecs not in (["bytes"], ["bytes", "crc32c"]):
        raise ValueError(f"the index of a shard has the codecs {codecs}")
    size = 16 * count
    whole = size + (_CRC.size if len(codecs) > 1 else 0)
    if whole > len(shard):
        raise ValueError("a shard that is shorter than its index")
    at = len(shard) - whole if location == "end" else 0
    index = shard[at : at + size]
    if len(codecs) > 1 and _CRC.unpack_from(shard, at + size)[0] != crc32c(index):
        raise ValueError("the index of a shard fails its checksum")
    return np.frombuffer(index, "<i8").reshape(count, 2)


def _key(encoding: dict[str, Any], number: int, axes: int) -> str:
    """Return the name of a chunk, the `number`-th along the first axis."""
    default = encoding["name"] == "default"
    separator = str(encoding.get("configuration", {}).get("separator", "/" if default else "."))
    return separator.join([*(["c"] if default else []), str(number), *["0"] * (axes - 1)])


CONTAINER = ZarrContainer()
