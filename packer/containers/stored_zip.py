"""Writes zip files of stored entries, which have the same bytes wherever they are written."""

from __future__ import annotations

import os
import struct
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

from packer.files.array_files import LOCAL_MAGIC
from packer.system.storage import storage_errors

_BUFFER_BYTES = 1 << 20
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_CENTRAL = struct.Struct("<4s4B4HL2L5H2L")
_END, _END_64, _END_64_AT = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
"""The headers of APPNOTE.TXT 6.3, 4.3.7 to 4.3.16: of an entry, of the directory, of the end."""
_SIZES = struct.Struct("<2H2Q")
"""The extra field with the sizes in 64 bits."""
_IN_64_BITS, _LARGE, _MOST_ENTRIES = 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFF
"""What stands for a number that is in 64 bits elsewhere; the largest that is not; the most entries without those."""
_VERSION, _UNIX, _MODE, _UTF8 = 45, 3, 0o644 << 16, 0x800
_DATE = (0, 1 << 5 | 1)
"""1 January 1980, the first that a zip file can say."""
_FILL = struct.Struct("<2sH")
"""Head of the extra field with which torch.save fills up."""


@dataclass(slots=True)
class _Written:
    """An entry of a file that is being written."""

    name: bytes
    flags: int
    offset: int
    """Where its local header begins."""
    extra: bytes
    size: int = 0
    crc: int = 0

    def local(self) -> bytes:
        """Return the header before its bytes. Its sizes are in 64 bits: they are not known before."""
        extra = self.extra + _SIZES.pack(1, _SIZES.size - 4, self.size, self.size)
        facts = (_VERSION, 0, self.flags, zipfile.ZIP_STORED, *_DATE, self.crc, _IN_64_BITS, _IN_64_BITS)
        return _LOCAL.pack(LOCAL_MAGIC, *facts, len(self.name), len(extra)) + self.name + extra

    def central(self) -> bytes:
        """Return its entry of the directory."""
        size, offset, extra = self.size, self.offset, self.extra
        large = [self.size, self.size] if self.size > _LARGE else []
        large += [self.offset] if self.offset > _LARGE else []
        if large:
            extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) + extra
            size = _IN_64_BITS if self.size > _LARGE else size
            offset = _IN_64_BITS if self.offset > _LARGE else offset
        facts = (_VERSION, _UNIX, _VERSION, 0, self.flags, zipfile.ZIP_STORED, *_DATE, self.crc, size, size)
        lengths = (len(self.name), len(extra), 0)
        return _CENTRAL.pack(b"PK\x01\x02", *facts, *lengths, 0, 0, _MODE, offset) + self.name + extra


class StoredZip:
    """Writes a zip file, entry by entry; the same entries always give the same bytes. `path` must not exist.

    Python's zipfile writes other headers from one patch version to the next.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with storage_errors(path):
            self._file = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._entries: list[_Written] = []

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # an abandoned writer: only its descriptor must be closed
            with suppress(OSError):
                self._file.close()

    def begin(self, name: str, alignment: int = 1) -> int:
        """Begin an entry, and return where its bytes begin in the file: at a multiple of `alignment`.

        `append` adds to it until `end`.
        """
        encoded = name.encode("utf-8")
        with storage_errors(self._path):
            offset, extra = self._file.tell(), b""
            if alignment > 1:
                start = offset + _LOCAL.size + len(encoded) + _SIZES.size + _FILL.size
                extra = _FILL.pack(b"FB", -start % alignment) + bytes(-start % alignment)
            self._entries.append(_Written(encoded, 0 if name.isascii() else _UTF8, offset, extra))
            self._file.write(self._entries[-1].local())
            return self._file.tell()

    def append(self, data: bytes | bytearray) -> None:
        """Write some bytes of the entry."""
        entry = self._entries[-1]
        entry.size += len(data)
        entry.crc = crc32(data, entry.crc)
        with storage_errors(self._path):
            self._file.write(data)

    def end(self) -> None:
        """Finish the entry."""
        entry = self._entries[-1]
        with storage_errors(self._path):
            stop = self._file.tell()
            self._file.seek(entry.offset)
            self._file.write(entry.local())
            self._file.seek(stop)

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
            self._write_directory()
            self._file.flush()
            os.fsync(self._file.fileno())

    def _write_directory(self) -> None:
        start, count = self._file.tell(), len(self._entries)
        self._file.writelines(entry.central() for entry in self._entries)
        stop = self._file.tell()
        size = stop - start
        if count > _MOST_ENTRIES or start > _LARGE or size > _LARGE:
            self._file.write(_END_64.pack(b"PK\x06\x06", 44, _VERSION, _VERSION, 0, 0, count, count, size, start))
            self._file.write(_END_64_AT.pack(b"PK\x06\x07", 0, stop, 1))
        counts = (min(count, _MOST_ENTRIES),) * 2
        self._file.write(_END.pack(b"PK\x05\x06", 0, 0, *counts, min(size, _IN_64_BITS), min(start, _IN_64_BITS), 0))
