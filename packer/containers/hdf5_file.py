"""The file under an HDF5 shard, which survives a full disk."""

from __future__ import annotations

import io
import os
from typing import Any

from packer.system.storage import storage_errors


class SafeFile(io.RawIOBase):
    """The file that HDF5 writes through, which defers a write error until finish().

    After a failed write HDF5 cannot close its file, and crashes the process with SIGSEGV at exit.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._error: OSError | None = None
        with storage_errors(path):
            # unbuffered: HDF5 has its own buffers, and a write must not fail in a later seek
            self._file = open(path, "x+b", buffering=0)  # noqa: SIM115

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        got = self._file.readinto(view) or 0
        view[got:] = bytes(len(view) - got)  # HDF5 may read back data whose write failed
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
        """Do nothing: finish() syncs the file."""

    def close(self) -> None:
        """Close the file unfinished; Python calls this for an abandoned writer."""
        if hasattr(self, "_file"):
            self._file.close()
        super().close()

    def finish(self) -> None:
        """Fsync and close the file. Raise StorageError if a write has failed."""
        with storage_errors(self._path), self:
            if self._error is not None:
                raise self._error
            os.fsync(self._file.fileno())
