"""Decompresses an archive once, as a stream with little memory: a compressed tar has no other way to a member."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from packer.errors import PackerError, UsageError, size_text
from packer.sources.archives.places import SourceFile
from packer.system.storage import storage_errors

if TYPE_CHECKING:
    from typing_extensions import Buffer

MARKS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}
"""The first bytes of compressed files."""
COPIED_BYTES = 1 << 20
MOST_RATIO = 100
"""An archive of labels becomes 10 to 40 times as large, one of images hardly larger; a bomb 1,000 times or more."""
ALLOWED_BYTES = 256 << 20
"""What a compressed file may become in any case."""


class Bytes(io.RawIOBase):
    """A file of the source as a file object."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer with the next bytes; return how many there were."""
        view = memoryview(buffer)
        data = self._file.read(len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset."""
        place = offset + (0, self._at, self._file.size)[whence]
        if place < 0:
            raise OSError(22, os.strerror(22))
        self._at = place
        return place

    def tell(self) -> int:
        """Return the offset."""
        return self._at


class _Parts(io.RawIOBase):
    """The pieces of a file as a file object."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
        view = memoryview(buffer)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def stream_of(file: SourceFile) -> IO[bytes]:
    """Return a file of the source as a file object to be read once, from its beginning, also if it is deflated."""
    return io.BufferedReader(_Parts(file.chunks()))


def compression_of(head: bytes) -> str | None:
    """Return how a file that begins with `head` is compressed; None if it is not."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), None)


def most_bytes(size: int) -> int:
    """Return how many bytes a compressed file of `size` bytes may become: a small one must not fill the disk."""
    return max(ALLOWED_BYTES, MOST_RATIO * size)


def decompress(file: SourceFile, compression: str | None, name: str, target: str, most: int) -> int:
    """Write the content of a compressed file to a new file, and return its size.

    Args:
        file: The file.
        compression: Its `compression_of`; None copies the content of a deflated member.
        name: Its name, for errors.
        target: Path of the new file.
        most: Its maximum size (`most_bytes`).

    Raises:
        UsageError: It is damaged or truncated, or would be larger; then there is no new file.
        StorageError: The new file cannot be written.
        OSError: The file cannot be read.
    """
    written = 0
    try:
        with open(target, "xb") as output:
            for data in file.chunks() if compression is None else _decompressed(file, compression):
                written += len(data)
                if written > most:
                    break
                with storage_errors(target):
                    output.write(data)
        if written <= most:
            return written
        os.unlink(target)
        step = "if it should be so large, decompress it and give the result"
        raise UsageError(name, f"becomes more than {size_text(most)}, too much for its size", step)
    except PackerError:
        raise
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise UsageError(name, f"cannot be decompressed: {error}", "get the archive again") from None


def _decompressed(file: SourceFile, compression: str) -> Iterator[bytes]:
    with _stream(Bytes(file), compression) as stream:
        while data := stream.read(COPIED_BYTES):
            yield data


def _stream(file: Bytes, compression: str) -> IO[bytes]:
    if compression == "zst":
        import pyarrow as pa

        found: IO[bytes] = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
        return found
    opened: IO[bytes] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[compression](file)  # type: ignore[operator]
    return opened
