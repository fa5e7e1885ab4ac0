"""Reads one annotation file: a regular file of a limited size, whole, or a BadLabel that says why not."""

from __future__ import annotations

import os
import stat

from packer.errors import BadLabel
from packer.system import READ_FLAGS

MIB = 1024 * 1024


def read_file(root: bytes, path: bytes, most_bytes: int) -> bytes:
    """The bytes of ``root/path``. Raises BadLabel where it is unreadable, no file, or over `most_bytes`."""
    data = read_head(root, path, most_bytes + 1)
    if len(data) > most_bytes:
        raise BadLabel(path, f"is larger than the {most_bytes} bytes allowed", "split it, or remove it")
    return data


def read_head(root: bytes, path: bytes, num_bytes: int, tail_bytes: int = 0) -> bytes:
    """The first bytes of ``root/path``, and the last `tail_bytes` of the rest.

    Raises BadLabel if it is unreadable or not a regular file.
    """
    try:
        with open(os.open(os.path.join(root, path), READ_FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadLabel(path, "is no regular file", "replace it by one")
            head = file.read(num_bytes)
            if tail_bytes:
                file.seek(max(len(head), file.seek(0, os.SEEK_END) - tail_bytes))
            return head + file.read(tail_bytes)
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
