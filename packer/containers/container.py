"""The contract of a container: how a shard is written, and how its records are found again.

A container stores keys, bytes and annotations, and does not encode or decode images. It writes the usual layout of its
format (docs/formats.md), with the format's own library. Reading a pack does not need it: the index holds the places
that the writer returned.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import MISSING, PartSpec, Record
from packer.system.storage import NewFile

Place = tuple[int, int]
"""First byte in the file, and number of bytes."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a container knows before the first record."""

    classes: tuple[str, ...]
    """Class names in id order."""
    encoding: str
    """raw, jpeg, png, bmp, or copy (then each record has its own)."""
    shape: tuple[int, int, int] | None
    """(height, width, channels) if all raw records have the same shape, else None."""
    dtype: str
    """uint8 or uint16 of the pixels if `shape` is given."""
    planned_records: int
    """Maximum number of records; bad inputs may be left out."""
    planned_bytes: int
    """Total size of the images: exact for raw images of one shape, else an estimate."""
    parts: tuple[PartSpec, ...] = ()
    """The parts that records may have besides their image."""


class Places(NamedTuple):
    """The positions of a shard's images in its file, in the order of the records."""

    offsets: NDArray[np.int64]
    """First byte of each image in the file, past any header, (n,)."""
    sizes: NDArray[np.int64]
    """Bytes of each image, (n,)."""
    parts: Mapping[str, Places] = MappingProxyType({})
    """The places of the parts by name; a size of -1 for a record without the part."""

    @staticmethod
    def of(offsets: list[int], sizes: list[int]) -> Places:
        """Return the places as arrays."""
        return Places(np.array(offsets, np.int64), np.array(sizes, np.int64))


class PlaceList:
    """Collects the places of a shard's records as they are written."""

    def __init__(self, parts: Sequence[PartSpec]) -> None:
        self._images: list[Place] = []
        self._parts: dict[str, list[Place]] = {part.name: [] for part in parts}

    def add(self, image: Place, parts: Mapping[str, Place]) -> None:
        """Add (offset, size) of the image of the next record, and of the parts that it has."""
        self._images.append(image)
        for name, places in self._parts.items():
            places.append(parts.get(name, MISSING))

    def places(self) -> Places:
        """Return all places."""
        return _arrays(self._images)._replace(parts={name: _arrays(places) for name, places in self._parts.items()})


def _arrays(places: list[Place]) -> Places:
    return Places(*np.array(places, np.int64).reshape(-1, 2).T.copy())


class Entry(NamedTuple):
    """A record in a shard."""

    key: str
    """Its key."""
    offset: int
    """First byte of the image in the file, past a .npy header."""
    size: int
    """Bytes of the image."""
    annotation: bytes | None
    """Its annotation (JSON); None if it has none."""
    parts: Mapping[str, Place] = MappingProxyType({})
    """Where each of its parts is: (offset, size)."""


class Writer(Protocol):
    """Writes one shard, in the order of the keys, and syncs it.

    The same records always give the same bytes, on any machine. A writer is used by one thread.
    """

    def write(self, record: Record) -> None:
        """Add one record; the caller may drop `record.data` afterwards."""

    def close(self) -> Places:
        """Finish the file, fsync it, and return the places of the images and of their parts.

        A file whose writer was not closed is incomplete; the caller removes it.
        """


class Container(Protocol):
    """One file format of a shard."""

    name: str
    """The value of ``--format``; also the module's name."""
    suffix: str
    """Extension of the shard's file name, with the dot."""
    block_bytes: int
    """Each image takes a multiple of this many bytes: pages of LMDB, blocks of tar."""
    overhead_bytes: int
    """Approximate bytes per record besides image and annotation: keys, headers, framing."""
    # stored_bytes(image_bytes, note_bytes) -> int, optional: the size of a file where small images share blocks
    # companion(path) -> (extension, content), optional: the file that readers of the format want beside a shard

    def create(self, path: str, spec: ShardSpec) -> Writer:
        """Begin a new shard at `path`, which must not exist."""

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the records of a shard that `create` wrote, in the order of the file (LMDB: of the keys).

        Files of other tools are read by `packer.repack.formats`.

        Raises:
            DamagedPack: The file cannot be read as this format, or a checksum of the format does not match.
        """


class StreamWriter:
    """What formats share that write each record when it comes: a subclass adds `write`."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._classes = spec.classes
        self._file = NewFile(path)
        self._end = 0
        """Where the next record begins."""
        self._parts = spec.parts
        self._places = PlaceList(spec.parts)

    def close(self) -> Places:
        """Finish the file, fsync it, and return the places of all records."""
        self._file.close()
        return self._places.places()


@dataclass
class FileFormat:
    """A container of packer's own: what `Container` says, given as values and functions."""

    name: str
    suffix: str
    block_bytes: int
    overhead_bytes: int
    create: Callable[[str, ShardSpec], Writer]
    scan: Callable[[str], Iterator[Entry]]


_NPY = b"\x93NUMPY"
_MAGIC = (_NPY, b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
_LITTLE_ENDIAN = {"uint8": "|u1", "uint16": "<u2"}


@lru_cache(maxsize=256)
def npy_header(shape: tuple[int, int, int], dtype: str) -> bytes:
    """Return the header of pixels (height, width, channels), uint8 or little-endian uint16, in C order."""
    header = io.BytesIO()
    facts = {"descr": _LITTLE_ENDIAN[dtype], "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def looks_like_image(start: bytes) -> bool:
    """Return whether data is an image or .npy file by its first bytes, for names without an extension."""
    if start.startswith(b"BM"):
        return start[6:10] == bytes(4)  # reserved, always zero: many texts begin with the same two letters
    return start.startswith(_MAGIC) or start[8:12] in (b"WEBP", b"avif", b"avis")


def npy_payload_offset(start: bytes) -> int:
    """Return where the image begins in a file: after the header of a .npy file, else 0.

    Args:
        start: The first HEADER_BYTES of the file, or all of it.

    Raises:
        ValueError: It is a .npy file with a version other than 1.0, or of Python objects.
    """
    if not start.startswith(_NPY):
        return 0
    # magic (6 bytes), version (2), length of the rest (2): only the header is cached
    return _parsed_header_bytes(start[: 10 + int.from_bytes(start[8:10], "little")])


@lru_cache(maxsize=256)
def _parsed_header_bytes(header: bytes) -> int:
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("a .npy header with a version other than 1.0")
    dtype = np.lib.format.read_array_header_1_0(stream)[2]
    if dtype.hasobject:
        raise ValueError("a .npy file of Python objects, which packer never reads")
    return stream.tell()


HEADER_BYTES = 512
"""Larger than the header of any record."""

EXTENSIONS = {
    "raw": "npy",
    "jpeg": "jpg",
    "png": "png",
    "bmp": "bmp",
    "gif": "gif",
    "webp": "webp",
    "tiff": "tiff",
    "avif": "avif",
    "jp2": "jp2",
    "pnm": "pnm",
}
"""File extension of a record's image by its encoding."""

IMAGE_EXTENSIONS = frozenset((*EXTENSIONS.values(), "jpeg", "tif", "j2k", "ppm", "pgm", "pbm"))
"""Including those of other tools, in lower case."""


def image_file(record: Record) -> tuple[bytes, bytes]:
    """Return (header, data) of the record's image as a file; the header is empty if it is encoded."""
    if record.encoding != "raw":
        return b"", record.data
    check_raw_size(record)
    return npy_header(record.shape, record.dtype), record.data


def check_raw_size(record: Record) -> None:
    """Raise ValueError if raw data is not as long as its shape says."""
    expected = record.height * record.width * record.channels * np.dtype(record.dtype).itemsize
    if len(record.data) != expected:
        at = f"{os.fsdecode(record.path)!r}: raw data of {len(record.data)} bytes"
        raise ValueError(f"{at}; {record.shape} {record.dtype} needs {expected}")
