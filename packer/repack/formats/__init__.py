"""Formats of other tools, which `packer adopt` reads in place: a new one is its file and three lines here.

A format is known by the bytes of a file, not by its name. Other packages add formats by entry points.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from packer.errors import UsageError, option
from packer.files.array_files import StoredEntries
from packer.files.record_frames import masked_crc32c
from packer.system.registry import Registry
from packer.system.storage import mapped

if TYPE_CHECKING:
    from packer.repack.formats.format_base import Format, FormatOptions

_HOMES = {
    "webdataset": "packer.repack.formats.keyed_formats:WebDataset",
    "tfrecord": "packer.repack.formats.tfrecord_format:TFRecord",
    "parquet": "packer.repack.formats.arrow_formats:Parquet",
    "arrow": "packer.repack.formats.arrow_formats:Arrow",
    "lmdb": "packer.repack.formats.keyed_formats:Lmdb",
    "hdf5": "packer.repack.formats.hdf5_format:Hdf5",
    "mds": "packer.repack.formats.chunk_formats:Mds",
    "litdata": "packer.repack.formats.chunk_formats:LitData",
    "npy": "packer.repack.formats.array_formats:Npy",
    "idx": "packer.repack.formats.array_formats:Idx",
    "zarr": "packer.repack.formats.array_formats:Zarr",
    "n5": "packer.repack.formats.array_formats:N5",
    "pth": "packer.repack.formats.array_formats:Pth",
    "recordio": "packer.repack.formats.keyed_formats:RecordIO",
}
_REGISTRY = Registry(_HOMES, "packer.formats")
"""Entry points of this group add formats: a name, and the `FormatType`."""
FORMATS = _REGISTRY.own
READS = {
    "webdataset": ("image", "label"), "tfrecord": ("image", "label", "text"), "parquet": ("image", "label", "boxes"),
    "arrow": ("image", "label", "boxes"), "lmdb": ("label",), "hdf5": ("image", "label"), "mds": ("image", "label"),
    "litdata": ("image", "label"), "npy": (), "idx": (), "zarr": ("image", "label"), "n5": ("image", "label"),
    "pth": ("image", "label"), "recordio": (),
}  # fmt: skip
"""Format -> the roles of ``--columns`` that it has."""
UNLABELED = ("npy", "idx")
"""Formats whose labels are in files of their own: ``--labels``."""
HEAD_BYTES = 4096
PICKLE = ("is a pickle, which packer never reads: it may run code", "write its images to files first")
REFUSED = (
    *((b"\x80" + bytes([protocol]), *PICKLE) for protocol in range(2, 6)),
    (b"\x1f\x8b", "is compressed by gzip", "decompress it: gunzip"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", "decompress it: zstd -d"),
    (b"BZh", "is compressed by bzip2", "decompress it: bunzip2"),
    (b"\xfd7zXZ", "is compressed by xz", "decompress it: unxz"),
    (b"PK\x03\x04", "is a zip archive", "packer build reads it"),
)
"""First bytes, what they are, and what to do."""
CIFAR = ((3073, 10), (3074, 20))
"""Bytes of a record of CIFAR-10 and CIFAR-100, and the number of classes in its first byte."""


def open_format(name: str, options: FormatOptions) -> Format:
    """Return a reader of this format."""
    found: Format = _REGISTRY.load(name)(options)
    return found


def check_roles(name: str, roles: Sequence[str], labels: bool) -> None:
    """Raise UsageError if the format has no such fields, or labels of its own: they would be passed over."""
    known = READS[name] if name in READS else _REGISTRY.load(name).roles
    for role in roles:
        if role not in known:
            step = f"its roles are {', '.join(known)}" if known else "leave it out"
            raise UsageError(option("columns"), f"{name} has no role {role}", step)
    if labels and name not in UNLABELED:
        raise UsageError(option("labels"), f"{name} holds its own labels", "say which they are: --columns=label=FIELD")


def recognize(path: str) -> str | UsageError:
    """Return the format of a file, or why it is none of them. Raise OSError if it cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
    for name, is_it in _SIGNS:
        if is_it(head, size):
            return name
    if head.startswith(b"PK\x03\x04") and (of_zip := _zip_of(path)) is not None:
        return of_zip
    for name in _REGISTRY.added:
        if _REGISTRY.load(name).recognizes(head, size):
            return name
    for start, problem, step in REFUSED:
        if head.startswith(start):
            return UsageError(path, problem, step)
    if size and any(size % record == 0 and head[0] < classes for record, classes in CIFAR):
        problem = "is CIFAR's binary: the colors of an image lie in three planes, not pixel by pixel"
        step = "save its images as .npy: rows[:, -3072:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)"
        return UsageError(path, problem, step)
    what = "is empty" if not size else f"begins with {head[:8]!r}, which is none of {', '.join(_REGISTRY.names)}"
    return UsageError(path, what, "give files of these formats" if size else "get it again")


def _zip_of(path: str) -> str | UsageError | None:
    """Return the format of a zip file of arrays; why it cannot be read; None for another zip file."""
    try:
        with mapped(path) as view, memoryview(view) as data:
            names = {name.rpartition("/")[2] for name in StoredEntries(path, data).names}
    except ValueError:
        return None
    if names & {".zarray", ".zgroup"}:
        return UsageError(path, "is Zarr of version 2", "write it again with zarr 3: zarr_format=3, compressors=None")
    return next((name for name, has in _ZIPS.items() if has in names), None)


_ZIPS = {"zarr": "zarr.json", "n5": "attributes.json", "pth": "data.pkl"}
"""Format of a zip file -> the name of a file that is in each of them."""


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


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _is_chunk(head: bytes, size: int) -> bool:
    """Return whether a file begins with a number of samples, and where each of them begins."""
    count, first = _number(head[:4]), _number(head[4:8])
    if not (len(head) >= 12 and 0 < count < size // 4 and 8 + 4 * count <= first < size):
        return False
    bounds = [_number(head[at : at + 4]) for at in range(4, min(len(head) - 3, 8 + 4 * count), 4)]
    return all(a <= b for a, b in pairwise(bounds)) and bounds[-1] <= size


def _is_tfrecord(head: bytes, size: int) -> bool:
    return len(head) >= 12 and _number(head[8:12]) == masked_crc32c(head[:8])


_SIGNS = (
    ("webdataset", _is_tar),
    ("parquet", lambda head, size: head[:4] == b"PAR1"),
    ("arrow", lambda head, size: head[:6] == b"ARROW1" or (head[:4] == b"\xff" * 4 and 0 < _number(head[4:8]) < size)),
    ("lmdb", lambda head, size: head[16:20] == b"\xde\xc0\xef\xbe"),
    ("hdf5", lambda head, size: any(head[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, 512, 1024, 2048))),
    ("npy", lambda head, size: head[:6] == b"\x93NUMPY"),
    ("idx", lambda head, size: head[:3] == b"\0\0\x08" and head[3:4] in b"\1\3\4" and size > 8),
    ("litdata", lambda head, size: _is_chunk(head, size) and _number(head[4:8]) == 8 + 4 * _number(head[:4])),
    ("mds", _is_chunk),
    ("recordio", lambda head, size: head[:4] == b"\x0a\x23\xd7\xce"),
    ("tfrecord", _is_tfrecord),
)
"""Format -> whether a file with this head, of this size, is of it."""

__all__ = ["FORMATS", "READS", "UNLABELED", "check_roles", "open_format", "recognize"]
