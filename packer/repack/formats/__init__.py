"""Formats of other tools, which `packer adopt` reads in place: a new one is its file and two lines here.

A format is known by the bytes of a file, not by its name.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from crc32c import crc32c

from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.repack.formats.base import Format, FormatOptions

_HOMES = {
    "webdataset": "packer.repack.formats.webdataset:WebDataset",
    "tfrecord": "packer.repack.formats.tfrecord:TFRecord",
}
FORMATS = tuple(_HOMES)
HEAD_BYTES = 4096
REFUSED = (
    (b"\x1f\x8b", "is compressed by gzip", "decompress it: gunzip"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", "decompress it: zstd -d"),
    (b"BZh", "is compressed by bzip2", "decompress it: bunzip2"),
    (b"\xfd7zXZ", "is compressed by xz", "decompress it: unxz"),
    (b"PK\x03\x04", "is a zip archive", "packer build reads it"),
)
"""First bytes, what they are, and what to do."""


def open_format(name: str, options: FormatOptions) -> Format:
    """Return a reader of this format."""
    module, _, attribute = _HOMES[name].partition(":")
    found: Format = getattr(import_module(module), attribute)(options)
    return found


def recognize(path: str) -> str | UsageError:
    """Return the format of a file, or why it is none of them. Raise OSError if it cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
    for name, is_it in _SIGNS:
        if is_it(head, size):
            return name
    for start, problem, step in REFUSED:
        if head.startswith(start):
            return UsageError(path, problem, step)
    what = "is empty" if not size else f"begins with {head[:8]!r}, which is none of {', '.join(FORMATS)}"
    return UsageError(path, what, "give files of these formats" if size else "get it again")


def _is_tar(head: bytes, size: int) -> bool:
    if head[257:262] == b"ustar":
        return True
    written = head[148:156].split(b"\0")[0].strip()  # v7 has only its checksum
    total = sum(head[:148]) + 8 * ord(" ") + sum(head[156:512])
    return (
        len(head) >= 512
        and len(written) < 8
        and written.strip(b"01234567") == b"" != written
        and int(written, 8) == total
    )


def _is_tfrecord(head: bytes, size: int) -> bool:
    crc = crc32c(head[:8])
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return len(head) >= 12 and int.from_bytes(head[8:12], "little") == masked


_SIGNS = (
    ("webdataset", _is_tar),
    ("tfrecord", _is_tfrecord),
)
"""Format -> whether a file with this head, of this size, is of it."""

__all__ = ["FORMATS", "open_format", "recognize"]
