"""The entries of a zip file that are not compressed, and where they are in it."""

from __future__ import annotations

import struct
import zipfile

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
