"""Long sequences of bytes or numbers that are written once and then read: mapped from a file, not held in memory."""

from __future__ import annotations

import mmap
import tempfile
from typing import IO, TYPE_CHECKING

from packer.errors import StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MEMORY_BYTES = 1 << 20


class Spill:
    """Bytes that are appended, then read. From MEMORY_BYTES on they are in a temporary file without a name."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None

    def append(self, data: Buffer) -> None:
        """Append bytes. Raise StorageError if the disk does not take them."""
        self._buffer += data
        if len(self._buffer) >= MEMORY_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="packer-spill-")  # noqa: SIM115
            self._file.write(self._buffer)
            self._file.flush()
        except OSError as error:
            step = "make room in the folder for temporary files, or choose another one with TMPDIR"
            raise StorageError(tempfile.gettempdir(), f"cannot be written: {error.strerror}", step) from None
        self._buffer = bytearray()

    def finish(self) -> bytes | mmap.mmap:
        """Return all bytes; nothing may be appended any more."""
        if self._file is None:
            return bytes(self._buffer)
        self._flush()
        with self._file as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
