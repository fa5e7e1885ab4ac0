"""The file under an HDF5 shard, which survives a full disk."""

from __future__ import annotations

import io
import os
from typing import Any

from packer.containers.storage import storage_errors


class SafeFile(io.RawIOBase):
    """The file that HDF5 writes through; it keeps a write error to itself until finish().

    After a failed write HDF5 cannot close its file, and ends the process with SIGSEGV at its exit.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._error: OSError | None = None
        with storage_errors(path):
            # unbuffered: HDF5 has buffers, and a seek must not be the place where a write fails
            self._file = open(path, "x+b", buffering=0)  # noqa: SIM115

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        got = self._file.readinto(view) or 0
        view[got:] = bytes(len(view) - got)  # what a failed write left out may be asked for again
        return len(view)

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        total = len(rest)
        try:
            while self._error is None and len(rest):
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._error = error
        return total

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def flush(self) -> None:
        """Nothing: finish() makes the file durable."""

    def close(self) -> None:
        """Close the file as it is; Python calls this for a writer that was given up."""
        if hasattr(self, "_file"):
            self._file.close()
        super().close()

    def finish(self) -> None:
        """Fsync and close the file. Raises StorageError if a write failed on the way."""
        with storage_errors(self._path), self:
            if self._error is not None:
                raise self._error
            os.fsync(self._file.fileno())
