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
