"""The chunks of the arrays of a Zarr file: version 3, in a zip file.

https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from crc32c import crc32c

from packer.files.array_files import ArrayFile, Chunks, StoredEntries, dtype_of, open_zip

FILLED_BYTES = 1 << 20
"""Of an array, chunks of which are not stored, beyond the size of its file."""
METADATA = "zarr.json"
INDEX_CRC = struct.Struct("<I")


def open_arrays(path: str) -> AbstractContextManager[ArrayFile]:
    """Open a Zarr file. Raise DamagedPack if it is not one."""
    return open_zip(path, METADATA, "a Zarr file", _arrays)


def _arrays(entries: StoredEntries, data: memoryview, nodes: dict[str, Any]) -> ArrayFile:
    arrays = {name: node for name, node in nodes.items() if node["node_type"] == "array"}
    axes = {name: len(node["shape"]) for name, node in arrays.items()}
    attributes = nodes.get("", {}).get("attributes", {})
    return ArrayFile(axes, lambda name: _chunks(entries, data, name, arrays[name]), data, attributes)


def _chunks(entries: StoredEntries, data: memoryview, folder: str, node: dict[str, Any]) -> Chunks:
    """Return where an array is. Raise ValueError if it is not stored as it is, in chunks of whole items."""
    shape, outer = tuple(node["shape"]), tuple(node["chunk_grid"]["configuration"]["chunk_shape"])
    codec = _only(folder, node["codecs"])
    inner, index_codecs = outer, None
    if codec["name"] == "sharding_indexed":
        sharding = codec["configuration"]
        inner, index_codecs = tuple(sharding["chunk_shape"]), [one["name"] for one in sharding["index_codecs"]]
        codec = _only(folder, sharding["codecs"])
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
    dtype, fill = dtype_of(node["data_type"]).newbyteorder("<"), node.get("fill_value", 0)
    made = Chunks(shape, dtype, np.zeros(0, np.int64), inner[0], fill if isinstance(fill, int | float) else 0)
    size, parts, names = inner[0] * made.item_bytes, [made.starts], {*entries.names}
    for number in range(-(-shape[0] // outer[0])):
        key = folder + _key(node["chunk_key_encoding"], number, len(shape))
        if key not in names:  # all of it is the fill value
            if made.item_bytes * shape[0] > len(data) + FILLED_BYTES:
                raise ValueError(f"{folder} has no chunk {key}")
            left = min(outer[0], shape[0] - number * outer[0])
            parts.append(np.full(-(-left // inner[0]), -1))
            continue
        start, stop = entries.place(key)
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


def _only(folder: str, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the codec of an array. Raise ValueError if there are several, of which one compresses."""
    if len(codecs) != 1:
        names = " and ".join(str(codec["name"]) for codec in codecs)
        raise ValueError(f"{folder} is stored with the codecs {names}, not as it is")
    return codecs[0]


def _index(shard: memoryview, count: int, codecs: list[str], location: str) -> Any:
    """Return offset and size of each chunk of a shard, int64 (count, 2)."""
    if codecs not in (["bytes"], ["bytes", "crc32c"]):
        raise ValueError(f"the index of a shard has the codecs {codecs}")
    size = 16 * count
    whole = size + (INDEX_CRC.size if len(codecs) > 1 else 0)
    if whole > len(shard):
        raise ValueError("a shard that is shorter than its index")
    at = len(shard) - whole if location == "end" else 0
    index = shard[at : at + size]
    if len(codecs) > 1 and INDEX_CRC.unpack_from(shard, at + size)[0] != crc32c(index):
        raise ValueError("the index of a shard fails its checksum")
    return np.frombuffer(index, "<i8").reshape(count, 2)


def _key(encoding: dict[str, Any], number: int, axes: int) -> str:
    """Return the name of a chunk, the `number`-th along the first axis."""
    default = encoding["name"] == "default"
    separator = str(encoding.get("configuration", {}).get("separator", "/" if default else "."))
    return separator.join([*(["c"] if default else []), str(number), *["0"] * (axes - 1)])
