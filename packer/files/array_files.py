"""Files of arrays, most of them zip files: where an array is, if it is stored as it is. Zarr version 3, and N5."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from packer.errors import DamagedPack, PackerError
from packer.system.storage import mapped

LOCAL_MAGIC, LOCAL_BYTES = b"PK\x03\x04", 30
LENGTHS, LENGTHS_AT = struct.Struct("<HH"), 26
"""Where a local header has the lengths of the name and of the extra field after it."""


class StoredEntries:
    """The entries of any zip file, and where they are in it."""

    def __init__(self, path: str, data: memoryview) -> None:
        """Read the directory of the file at `path`, mapped to `data`. Raise ValueError if it is not a zip file."""
        self._data = data
        try:
            with zipfile.ZipFile(path) as file:
                self._infos = {info.filename: info for info in file.infolist()}
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"not a zip file: {error}") from error

    @property
    def names(self) -> list[str]:
        """The names of the entries, in the order of the directory."""
        return list(self._infos)

    def place(self, name: str) -> tuple[int, int]:
        """Return the first byte of an entry in the file, and the byte after its last.

        Raises:
            KeyError: There is no such entry.
            ValueError: It is compressed or damaged.
        """
        info = self._infos[name]
        head = info.header_offset
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ValueError(f"{name} is compressed or encrypted")
        if self._data[head : head + len(LOCAL_MAGIC)] != LOCAL_MAGIC:
            raise ValueError(f"{name} has no header at byte {head}")
        start = head + LOCAL_BYTES + sum(LENGTHS.unpack_from(self._data, head + LENGTHS_AT))
        if start + info.file_size > len(self._data):
            raise ValueError(f"{name} is truncated")
        return start, start + info.file_size

    def read(self, name: str) -> bytes:
        """Return the content of an entry."""
        start, stop = self.place(name)
        return bytes(self._data[start:stop])


_NUMBERS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
}  # fmt: skip


class Chunks(NamedTuple):
    """Where an array is in the file."""

    shape: tuple[int, ...]
    dtype: Any
    starts: Any
    """First byte of each chunk, int64."""
    items: int
    """Items of a chunk along the first axis; the last chunk may have fewer."""
    fill: Any = 0
    """What a chunk holds that is not stored: its start is -1."""

    @property
    def item_bytes(self) -> int:
        return prod(self.shape[1:]) * int(self.dtype.itemsize)

    def offsets(self) -> Any:
        """Where each item begins, int64 (n,). Raise ValueError if a chunk is not stored."""
        if (self.starts < 0).any():
            raise ValueError(f"a chunk is not stored, as all of it is {self.fill}: write empty chunks, too")
        numbers = np.arange(self.shape[0])
        return self.starts[numbers // self.items] + numbers % self.items * self.item_bytes

    def base(self) -> int:
        """Where the array begins. Raise ValueError if it is not in one piece."""
        if (self.starts < 0).any() or (np.diff(self.starts) != self.items * self.item_bytes).any():
            raise ValueError("the chunks of an array of bytes do not follow one another")
        return int(self.starts[0]) if len(self.starts) else 0

    def read(self, data: memoryview) -> Any:
        """Return the array."""
        each, parts = prod(self.shape[1:]), [np.zeros(0, self.dtype)]
        for number, start in enumerate(self.starts.tolist()):
            count = each * min(self.items, self.shape[0] - number * self.items)
            if start >= 0:
                parts.append(np.frombuffer(data, self.dtype, count, start))
            else:
                parts.append(np.full(count, self.fill, self.dtype))
        return np.concatenate(parts).reshape(self.shape).astype(self.dtype.newbyteorder("="))


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A mapped file of arrays."""

    axes: Mapping[str, int]
    """The number of axes of each array by its folder, ``labels/``."""
    open: Callable[[str], Chunks]
    """Returns where the array in a folder is. Raises ValueError or LookupError if it is not stored as it is."""
    data: memoryview
    attributes: Mapping[str, Any]
    """What the file says of all arrays."""

    def read(self, folder: str) -> Any:
        """Return a small array."""
        return self.open(folder).read(self.data)


@contextmanager
def open_zip(
    path: str, metadata: str, what: str, arrays_of: Callable[[StoredEntries, memoryview, dict[str, Any]], ArrayFile]
) -> Iterator[ArrayFile]:
    """Open a zip file of arrays.

    Args:
        path: The file.
        metadata: Name of the JSON file in the folder of each array.
        what: The kind of file, for messages.
        arrays_of: Returns the arrays, given the members of the file, its bytes, and the metadata by folder.

    Raises:
        DamagedPack: It is not a file of that kind.
    """
    with array_errors(path, what), mapped(path) as view, memoryview(view) as data:
        entries = StoredEntries(path, data)
        files = [name for name in entries.names if name == metadata or name.endswith("/" + metadata)]
        yield arrays_of(entries, data, {name[: -len(metadata)]: json.loads(entries.read(name)) for name in files})


@contextmanager
def array_errors(path: str, what: str) -> Iterator[None]:
    """Turn what a file of arrays that is none raises into a DamagedPack."""
    try:
        yield
    except PackerError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError, OSError, struct.error) as error:
        raise DamagedPack(path, f"not {what} of images: {error}") from error


def dtype_of(name: str) -> Any:
    """Return the dtype of an array of numbers. Raise ValueError if it is of something else."""
    if name not in _NUMBERS:
        raise ValueError(f"an array of {name}")
    return np.dtype(name)


# Zarr: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html

FILLED_BYTES = 1 << 20
"""Of an array, chunks of which are not stored, beyond the size of its file."""
ZARR_METADATA = "zarr.json"
INDEX_CRC = struct.Struct("<I")


def open_zarr(path: str) -> AbstractContextManager[ArrayFile]:
    """Open a Zarr file. Raise DamagedPack if it is not one."""
    return open_zip(path, ZARR_METADATA, "a Zarr file", _zarr_arrays)


def _zarr_arrays(entries: StoredEntries, data: memoryview, nodes: dict[str, Any]) -> ArrayFile:
    arrays = {name: node for name, node in nodes.items() if node["node_type"] == "array"}
    axes = {name: len(node["shape"]) for name, node in arrays.items()}
    attributes = nodes.get("", {}).get("attributes", {})
    return ArrayFile(axes, lambda name: _zarr_chunks(entries, data, name, arrays[name]), data, attributes)


def _zarr_chunks(entries: StoredEntries, data: memoryview, folder: str, node: dict[str, Any]) -> Chunks:
    """Return where an array is. Raise ValueError if it is not stored as it is, in chunks of whole items."""
    shape, outer = tuple(node["shape"]), tuple(node["chunk_grid"]["configuration"]["chunk_shape"])
    codec = _only_codec(folder, node["codecs"])
    inner, index_codecs = outer, None
    if codec["name"] == "sharding_indexed":
        sharding = codec["configuration"]
        inner, index_codecs = tuple(sharding["chunk_shape"]), [one["name"] for one in sharding["index_codecs"]]
        codec = _only_codec(folder, sharding["codecs"])
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
        key = folder + _chunk_key(node["chunk_key_encoding"], number, len(shape))
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
            chunks = _shard_index(
                data[start:stop], outer[0] // inner[0], index_codecs, sharding.get("index_location", "end")
            )
        left = shape[0] - number * outer[0]
        chunks = chunks[: -(-left // inner[0])]
        if (chunks[:, 1] != size).any() or (chunks[:, 0] < 0).any() or (chunks[:, 0] > stop - start - size).any():
            raise ValueError(f"{folder} has a chunk that is empty, or not of {size} bytes")
        parts.append(start + chunks[:, 0])
    return made._replace(starts=np.concatenate(parts))


def _only_codec(folder: str, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the codec of an array. Raise ValueError if there are several, of which one compresses."""
    if len(codecs) != 1:
        names = " and ".join(str(codec["name"]) for codec in codecs)
        raise ValueError(f"{folder} is stored with the codecs {names}, not as it is")
    return codecs[0]


def _shard_index(shard: memoryview, count: int, codecs: list[str], location: str) -> Any:
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


def _chunk_key(encoding: dict[str, Any], number: int, axes: int) -> str:
    """Return the name of a chunk, the `number`-th along the first axis."""
    default = encoding["name"] == "default"
    separator = str(encoding.get("configuration", {}).get("separator", "/" if default else "."))
    return separator.join([*(["c"] if default else []), str(number), *["0"] * (axes - 1)])


# N5: https://github.com/saalfeldlab/n5#file-system-specification

N5_METADATA = "attributes.json"
_RAW_MODE = 0
"""Mode of a block: its numbers as they are."""
_BLOCK_HEAD = struct.Struct(">HH")


def block_head(shape: tuple[int, ...]) -> bytes:
    """Return the header of a block."""
    return _BLOCK_HEAD.pack(_RAW_MODE, len(shape)) + struct.pack(f">{len(shape)}I", *shape[::-1])


def open_n5(path: str) -> AbstractContextManager[ArrayFile]:
    """Open an N5 file. Raise DamagedPack if it is not one."""
    return open_zip(path, N5_METADATA, "an N5 file", _n5_arrays)


def _n5_arrays(entries: StoredEntries, data: memoryview, nodes: dict[str, Any]) -> ArrayFile:
    axes = {name: len(node["dimensions"]) for name, node in nodes.items() if "dimensions" in node}
    return ArrayFile(axes, lambda name: _n5_chunks(entries, data, name, nodes[name]), data, nodes.get("", {}))


def _n5_chunks(entries: StoredEntries, data: memoryview, folder: str, node: dict[str, Any]) -> Chunks:
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
