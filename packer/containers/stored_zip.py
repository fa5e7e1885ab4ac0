"""A zip file of entries that are not compressed: a folder of files in one file, each a run of bytes in it."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from contextlib import suppress
from typing import Any

from packer.containers.storage import storage_errors

_BUFFER_BYTES = 1 << 20
_LOCAL_MAGIC, _LOCAL_BYTES = b"PK\x03\x04", 30
_SIZES_BYTES = 20
"""Of the extra field with the sizes in 64 bits."""
_FILL = struct.Struct("<2sH")
"""Head of the extra field with which torch.save fills up."""
_LENGTHS = struct.Struct("<HH")
_LENGTHS_AT = 26
"""Where a local header has the lengths of the name and of the extra field after it."""


class StoredZip:
    """Writes a zip file, entry by entry; the same entries always give the same bytes. `path` must not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        with storage_errors(path):
            self._file = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115
            self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)
        self._entry: Any = None

    def __del__(self) -> None:
        if hasattr(self, "_zip"):  # an abandoned writer: only its descriptor must be closed
            if self._entry is not None:
                io.BufferedIOBase.close(self._entry)  # its own close() would write the entry's size
            self._zip.fp = None  # else its finalizer writes a directory
            with suppress(OSError):
                self._file.close()

    def begin(self, name: str, alignment: int = 1) -> int:
        """Begin an entry, and return where its bytes begin in the file: at a multiple of `alignment`.

        `append` adds to it until `end`.
        """
        info = zipfile.ZipInfo(name)  # of 1980
        info.create_system = 3
        info.external_attr = 0o644 << 16
        with storage_errors(self._path):
            if alignment > 1:
                start = self._file.tell() + _LOCAL_BYTES + len(name) + _SIZES_BYTES + _FILL.size
                info.extra = _FILL.pack(b"FB", -start % alignment) + bytes(-start % alignment)
            self._entry = self._zip.open(info, "w", force_zip64=True)
            return self._file.tell()

    def append(self, data: bytes | bytearray) -> None:
        """Write some bytes of the entry."""
        with storage_errors(self._path):
            self._entry.write(data)

    def end(self) -> None:
        """Finish the entry."""
        with storage_errors(self._path):
            self._entry.close()
        self._entry = None

    def add(self, name: str, *parts: bytes | bytearray) -> int:
        """Write a whole entry, and return where its bytes begin."""
        start = self.begin(name)
        for part in parts:
            self.append(part)
        self.end()
        return start

    def close(self) -> None:
        """Write the directory, fsync and close the file."""
        with storage_errors(self._path), self._file:
            self._zip.close()
            self._file.flush()
            os.fsync(self._file.fileno())


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
        if self._data[head : head + len(_LOCAL_MAGIC)] != _LOCAL_MAGIC:
            raise ValueError(f"{name} has no header at byte {head}")
        start = head + _LOCAL_BYTES + sum(_LENGTHS.unpack_from(self._data, head + _LENGTHS_AT))
        if start + info.file_size > len(self._data):
            raise ValueError(f"{name} is truncated")
        return start, start + info.file_size

    def read(self, name: str) -> bytes:
        """Return the content of an entry."""
        start, stop = self.place(name)
        return bytes(self._data[start:stop])
