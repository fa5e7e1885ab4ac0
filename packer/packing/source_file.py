"""Opens a file of the source: a regular one, without ever waiting, or a BadImage that says why not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from packer.errors import BadImage

# a pipe put in the file's place must not hang the build
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

VIEWED_BYTES = 512


@contextmanager
def open_source_file(path: bytes) -> Iterator[tuple[FileIO, int]]:
    """The open file and its size in bytes. What the operating system refuses, also later on, is a BadImage."""
    try:
        with FileIO(os.open(path, FLAGS)) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise BadImage("", "is no regular file any more", "build again when the source is at rest")
            yield file, facts.st_size
    except FileNotFoundError:
        problem = "vanished while the source was being read"
        raise BadImage("", problem, "build again when the source is at rest") from None
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise BadImage("", problem, "check the file's permissions and the disk") from None


class FileView:
    """The bytes of an open file by index and slice, as of `bytes`; only what is asked for is read from the disk.

    Not mapped: a mapped file that the disk does not give, or that is cut meanwhile, kills the process.
    """

    def __init__(self, file: FileIO, size: int) -> None:
        self._fd = file.fileno()
        self._size = size
        self._at, self._part = 0, b""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self._size)
            return self._read(start, max(start, stop))
        if not 0 <= key < self._size:
            raise IndexError(key)
        return self._read(key, key + 1)[0]

    def _read(self, start: int, stop: int) -> bytes:
        if start < self._at or stop > self._at + len(self._part):
            self._at, self._part = start, os.pread(self._fd, max(stop - start, VIEWED_BYTES), start)
        part = self._part[start - self._at : stop - self._at]
        if len(part) < stop - start:
            raise BadImage("", "changed while the source was being read", "build again when the source is at rest")
        return part


def read_source_file(path: bytes, expected_bytes: int) -> bytes:
    """The bytes of a source file, which must still have the size that was planned with."""
    with open_source_file(path) as (file, _):
        data = file.readall()
    if len(data) != expected_bytes:
        raise BadImage(
            "", f"changed while the source was being read ({expected_bytes} bytes, now {len(data)})",
            "build again when the source is at rest",
        )  # fmt: skip
    return data
