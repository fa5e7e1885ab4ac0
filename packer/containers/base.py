"""The contract of a container: how a shard is written, and what a file of that format holds.

A container knows keys, bytes and annotations, never how an image is made or decoded. It writes the layout that its own
users expect (docs/formats.md), with the format's own library. Reading a pack needs nothing of it: the index holds the
places that the writer returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.types import Record


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a container may know before the first record comes."""

    classes: tuple[str, ...]
    """Class names in id order."""
    encoding: str
    """raw, jpeg, png, bmp, or copy (then each record has its own)."""
    shape: tuple[int, int, int] | None
    """(height, width, channels) of every record if all raw records share it, else None."""
    dtype: str
    """uint8 or uint16 of the pixels if `shape` is given."""
    planned_records: int
    """Maximum number of records that will come (bad inputs are left out)."""
    planned_bytes: int
    """Bytes of images: exact for raw images of one shape, else an estimate."""


class Places(NamedTuple):
    """Where the images of a shard's records lie, in the order of the records."""

    offsets: NDArray[np.int64]
    """First byte of each image in the file, past any header, (n,)."""
    sizes: NDArray[np.int64]
    """Bytes of each image, (n,)."""

    @staticmethod
    def of(offsets: list[int], sizes: list[int]) -> Places:
        """Return places as arrays."""
        return Places(np.array(offsets, np.int64), np.array(sizes, np.int64))


class Entry(NamedTuple):
    """One image that a file of the container's format holds."""

    key: str
    """The name of the image in the file."""
    offset: int
    """First byte of the image in the file, past a .npy header."""
    size: int
    """Bytes of the image."""
    annotation: bytes | None
    """The annotation as packer writes it (JSON), None in a file of another tool."""


class Writer(Protocol):
    """Writes one shard, in the order of the keys, and makes it durable.

    The same records give the same bytes, on any day and machine. A writer is used by one thread.
    """

    def write(self, record: Record) -> None:
        """Add one record; the caller may drop `record.data` afterwards."""

    def close(self) -> Places:
        """Finish the file, fsync it, and return where the images of the records lie.

        A file whose writer was not closed is worthless, and is left behind.
        """


class Container(Protocol):
    """One file format of a shard."""

    name: str
    """The word after ``--format``; also the module's name."""
    suffix: str
    """Of the shard's file name, with the dot."""
    block_bytes: int
    """Each image takes a multiple of this many bytes: pages of LMDB, blocks of tar."""
    overhead_bytes: int
    """About what a record takes beside its image and its annotation: keys, headers, framing."""

    def create(self, path: str, spec: ShardSpec) -> Writer:
        """Begin a new shard at `path`, which must not exist."""

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the images in a file of this format, in the order of the file (LMDB: of the keys).

        The file may be of another tool: then keys are what that tool calls an image, and there are no annotations.

        Raises:
            DamagedPack: The file cannot be read as this format, or a checksum of the format does not match.
        """
