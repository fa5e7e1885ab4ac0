"""The contract of an object store, and what can go wrong with one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from packer.errors import StorageError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

ABSENT = ""
"""In place of an ETag: write only if there is no such object."""
Content = bytes | Iterable[bytes]


class Object(NamedTuple):
    """An object of a store."""

    name: str
    """Relative to the URL of the store, with slashes."""
    size: int
    etag: str | None
    """What identifies this version of it; None if the store does not say."""
    modified_s: float
    """When it was written, in seconds since the epoch; 0 if the store does not say."""


class NoObject(StorageError, FileNotFoundError):
    """There is no such object."""


class ObjectChanged(StorageError):
    """The object is not the version that was asked for, or there is one where there must be none."""


class CutAnswer(StorageError):
    """The store sent fewer bytes than it has, several times."""


class StoreFull(StorageError):
    """The disk of the store, a folder of this machine, is full."""


class NotReached(StorageError):
    """The store does not answer, or that it cannot now."""


class Store(Protocol):
    """The objects below one URL, by names relative to it. It can be used by many threads, and pickled.

    Every method raises NoObject, ObjectChanged, or StorageError for what a retry does not help, and UsageError in a
    process that was forked after its parent had used a store.
    """

    url: str
    """Without a slash at its end, and without credentials."""
    origin: str
    """The URL, and what settings say of the server that answers for it: the same text, the same objects."""

    def size(self, name: str) -> Object:
        """Return what the store says of an object."""

    def read(self, name: str, start: int = 0, stop: int | None = None, etag: str | None = None) -> Buffer:
        """Return the bytes from `start` to `stop` (None: to the end), exactly as many.

        Args:
            name: The object.
            start: The first byte.
            stop: The end, exclusive.
            etag: The version to read; None: any.
        """
        return b"" if stop is not None and stop <= start else self.get(name, start, stop, etag)[0]

    def get(self, name: str, start: int = 0, stop: int | None = None, etag: str | None = None) -> tuple[Buffer, Object]:
        """Return what `read` does, and what the store says of the whole object."""
        ...

    def write(self, name: str, content: Content, only_if: str | None = None) -> str | None:
        """Write an object and return its ETag; readers see it when it is whole.

        Args:
            name: The object.
            content: Its bytes; or, without `only_if`, pieces, which are sent in parts. If the next piece is an
                exception, nothing is written.
            only_if: ABSENT, or the ETag of the version to replace; None: in any case.
        """

    def names(self, prefix: str = "") -> Iterator[Object]:
        """Yield the objects whose names begin with `prefix`, in any order."""

    def folders(self, prefix: str = "") -> tuple[list[str], list[Object]]:
        """Return the folders directly in the folder `prefix`, as names without a slash at the end, and the objects."""

    def delete(self, names: list[str]) -> None:
        """Delete objects. A build deletes its own journal, and all else only `packer clean`."""


_used_by: int | None = None


def check_process() -> None:
    """Raise UsageError in a process that was forked after its parent had used a store: there the network would hang."""
    global _used_by  # noqa: PLW0603 - it is about the process
    if _used_by is None:
        _used_by = os.getpid()
    elif _used_by != os.getpid():
        raise UsageError(
            "store", "cannot be used in a process that was forked after its parent had read from a store",
            'use PackedLoader, or DataLoader(multiprocessing_context="forkserver")',
        )  # fmt: skip
