"""The contract of a container: how a shard is written, and where its images' bytes lie afterwards.

A container knows keys, bytes and annotations, never how an image is made or decoded. It writes the
layout that its own users expect (docs/formats.md), with the format's own library. The read side needs
nothing of it: the index holds what `locate` found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from packer.types import Record


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a container may know before the first record comes."""

    classes: tuple[str, ...]
    """Class names in id order."""
    encoding: str
    """raw, jpeg, png, bmp, or copy (then each record has its own)."""
    shape: tuple[int, int, int] | None
    """(height, width, channels) of every record where all raw records share it, else None."""
    dtype: str
    """uint8 or uint16 of the pixels where `shape` is given."""
    planned_records: int
    """At most this many records will come (inputs that prove bad are left out)."""
    planned_bytes: int
    """About this many bytes of images (exact for raw images of one shape, else an estimate)."""


class Location(NamedTuple):
    """Where one record's image lies: `size` bytes from `offset` of the shard file."""

    key: str
    offset: int
    size: int


class Writer(Protocol):
    """Writes one shard, in the order of the keys, and makes it durable.

    The same records give the same bytes, on any day and machine. A writer is used by one thread.
    """

    def write(self, record: Record) -> None:
        """Add one record; `record.data` may be dropped by the caller afterwards."""

    def close(self) -> None:
        """Finish the file and fsync it. Without a call of it the file is worthless, and left behind."""


class Container(Protocol):
    """One file format of a shard."""

    name: str
    """The word after ``--format``; also the module's name."""
    suffix: str
    """Of the shard's file name, with the dot."""
    block_bytes: int
    """Each image takes a multiple of these many bytes: pages of LMDB, blocks of tar."""
    overhead_bytes: int
    """What a record takes beside its image and its annotation, about: keys, headers, framing."""

    def create(self, path: str, spec: ShardSpec) -> Writer:
        """Begin a new shard at `path`, which must not exist."""

    def locate(self, path: str) -> Iterator[Location]:
        """Each record of the finished file, in key order: the bytes of the image, past any header.

        Raises DamagedPack where the file cannot be read. The caller holds the result against the
        records' checksums.
        """

    def annotations(self, path: str) -> Iterator[tuple[str, bytes]]:
        """(key, annotation as JSON) of each record of the finished file, in key order.

        Raises DamagedPack where the file cannot be read.
        """
