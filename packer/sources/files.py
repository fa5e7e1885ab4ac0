"""Reads one annotation file: a regular file of a limited size, whole, or a BadLabel that says why not."""

from __future__ import annotations

import os
import stat

from packer.errors import BadLabel

MIB = 1024 * 1024


def read_file(root: bytes, path: bytes, most_bytes: int) -> bytes:
    """The bytes of ``root/path``. Raises BadLabel where it is unreadable, no file, or over `most_bytes`."""
    # O_NONBLOCK: a pipe put in the file's place must not hang the build
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        with open(os.open(os.path.join(root, path), flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadLabel(path, "is no regular file", "replace it by one")
            if status.st_size > most_bytes:
                raise BadLabel(path, f"has {status.st_size} bytes, more than the {most_bytes} allowed", "split it")
            return file.read(most_bytes)
    except PermissionError:
        raise BadLabel(path, "cannot be read: permission denied", "make it readable") from None
    except FileNotFoundError:
        raise BadLabel(path, "vanished during the build", "start again") from None
    except OSError as error:
        raise BadLabel(path, f"cannot be read: {error.strerror}", "check the disk") from None


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a text file: LF, CRLF or CR, with or without BOM, and at no other character."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines
