"""Files of arrays, most of them zip files: where an array is, if it is stored as it is."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

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
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
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
