"""Writes the files of sidecars (packer/format/sidecar_list.py), with the digests that the list has of them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np
from crc32c import crc32c

from packer.format.sidecar_list import (
    CHECKED_BYTES,
    FINGERPRINT_BYTES,
    FINGERPRINTS,
    SidecarFacts,
    SidecarFile,
    file_names,
)
from packer.system.atomic import remove
from packer.system.storage import storage_errors

READ_BYTES = 1 << 20


class NewSidecarFile:
    """A new file, and what the list says of it: another thread reads back and digests what this one has written."""

    def __init__(self, raw: io.FileIO, reader: io.FileIO, thread: ThreadPoolExecutor) -> None:
        self._raw, self._reader, self._thread = raw, reader, thread
        self._digest, self._checksums = hashlib.sha256(), bytearray()
        self._memory = memoryview(bytearray(READ_BYTES))  # a new one for each read would take as long as the reading

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._raw.write(rest) :]
        self._read_back(self._raw.tell() // READ_BYTES * READ_BYTES)

    def copy(self, source: int, offset: int, count: int) -> bool:
        """Append bytes of an open file within the kernel, if it can; return whether they are there."""
        begin = self._raw.tell()
        with suppress(OSError, AttributeError):
            while (left := begin + count - self._raw.tell()) and os.copy_file_range(
                source, self._raw.fileno(), left, offset + count - left
            ):
                pass
            self._read_back(self._raw.tell() // READ_BYTES * READ_BYTES)
            return not left
        self._raw.seek(begin)
        return False

    def _read_back(self, stop: int) -> Future[None]:
        """Let the thread read up to `stop` what it has not read: it may fall behind, and catches up in `sealed`."""
        return self._thread.submit(self._add, stop)

    def _add(self, stop: int) -> None:
        while (left := max(0, stop - self._reader.tell())) and (size := self._reader.readinto(self._memory[:left])):
            data = self._memory[:size]
            self._digest.update(data)
            for start in range(0, len(data), CHECKED_BYTES):
                self._checksums += crc32c(data[start : start + CHECKED_BYTES]).to_bytes(4, "big")

    def sealed(self) -> SidecarFile:
        """Return what the list says of the file, once it is on the disk."""
        last = self._read_back(self._raw.tell())
        os.fsync(self._raw.fileno())
        last.result()
        name = os.path.basename(str(self._raw.name))
        return SidecarFile(name, self._reader.tell(), self._digest.hexdigest(), self._checksums.hex())


@contextmanager
def new_sidecar_file(folder: str, name: str) -> Iterator[NewSidecarFile]:
    """Yield a new file of a sidecar, to be written and then sealed."""
    path = os.path.join(folder, name)
    with open(path, "xb", 0) as raw, open(path, "rb", 0) as reader, ThreadPoolExecutor(1) as thread:
        yield NewSidecarFile(raw, reader, thread)


def write_fingerprints(folder: str, rows: Iterable[bytes], version: int | None = None) -> SidecarFacts:
    """Write the sidecar of the fingerprints of a new pack into its folder.

    Args:
        folder: Where its new files are.
        rows: The fingerprints of its records, in any number of pieces.
        version: The number of its version, if it is that of a pack which has some.

    Raises:
        StorageError: It cannot be written.
    """
    pieces = [*rows]
    records = sum(map(len, pieces)) // FINGERPRINT_BYTES
    header = {"descr": "|u1", "fortran_order": False, "shape": (records, FINGERPRINT_BYTES)}
    (name,) = file_names(FINGERPRINTS, "array", version)
    path = os.path.join(folder, name)
    with storage_errors(path):
        remove(path)  # of a call that was interrupted before it could publish the pack
    with storage_errors(path), new_sidecar_file(folder, name) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(piece)
        return SidecarFacts(FINGERPRINTS, "array", "uint8", (FINGERPRINT_BYTES,), (file.sealed(),))
