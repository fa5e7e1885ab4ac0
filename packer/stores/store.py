"""The contract of an object store, and what can go wrong with one."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from packer.errors import DamagedPack, StorageError, UsageError, printable

if TYPE_CHECKING:
    from typing_extensions import Buffer

ABSENT = ""
"""In place of an ETag: write only if there is no such object."""
Content = bytes | Iterable[bytes]


def join_url(url: str, name: str) -> str:
    """Return the URL of an object."""
    return f"{url.rstrip('/')}/{name}" if name else url


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


AWAY_S = 60.0
"""How long the store may be away, when a pack is opened and when it is read."""
AWAY_PAUSE_S = 2.0
OPEN_AGAIN = "open it again"
T = TypeVar("T")


def patiently(call: Callable[[], T], warn: bool = False) -> T:
    """Return what a call to a store returns, made again as long as the store is away for a moment.

    A training takes days, and one rank that gives up ends all; so does one that starts while the server does.

    Args:
        call: Asks the store.
        warn: Whether to say that it is waited for: it may be one that was never there.

    Raises:
        NotReached: It was away for too long.
    """
    until = time.monotonic() + AWAY_S
    while True:
        try:
            return call()
        except NotReached as error:
            if time.monotonic() > until:
                raise
            if warn:
                text = f"{printable(error.where)} {error.problem}; it is waited for, for up to a minute"
                warnings.warn(text, stacklevel=2)
            warn = False
            time.sleep(AWAY_PAUSE_S)


class PackObjects:
    """The objects of a pack. Each must stay what it was when this process first read it.

    Args:
        store: where they are.
        files: (name, bytes) of each.
    """

    def __init__(self, store: Store, files: Sequence[tuple[str, int]]) -> None:
        self.store = store
        self.files = list(files)
        self._etags: list[str | None] = [None] * len(files)

    def read(self, file: int, start: int, stop: int) -> Buffer:
        """Return bytes of a file.

        Raises:
            DamagedPack: if the object is missing, was replaced, or is of another size.
            StorageError: if the store cannot be reached.
        """
        name, size = self.files[file]
        known, where = self._etags[file], join_url(self.store.url, name)
        condition = known if known and not known.startswith("W/") else None
        try:
            # some servers answer a range of all bytes as if there were none
            end = stop if start or stop < size else None
            data, found = patiently(lambda: self.store.get(name, start, end, condition))
        except NoObject:
            raise DamagedPack(where, "is missing", "restore it or build the pack again") from None
        except ObjectChanged:
            raise self._replaced(where) from None
        if found.size != size:
            problem = f"has {found.size:,} bytes, but the pack says {size:,}"
            raise DamagedPack(where, problem, "restore it or build the pack again")
        if known is None:
            known = self._etags[file] = self._etags[file] or found.etag
        if known is not None and found.etag != known:
            raise self._replaced(where)
        return data

    def _replaced(self, where: str) -> DamagedPack:
        return DamagedPack(where, "was replaced by another version since the pack was opened", OPEN_AGAIN)


PIECE_BYTES = 8 << 20
AGAIN = "run the same command again"


class Cancelled(Exception):
    """The upload was given up, and nothing is in the store."""


def _nothing(size: int) -> None:
    pass


def upload(
    store: Store,
    name: str,
    path: str,
    report: Callable[[int], None] = _nothing,
    cancelled: Callable[[], bool] = lambda: False,
) -> Object:
    """Write a local file as an object, and return what the store says of it.

    Args:
        store: Where to write it.
        name: The object.
        path: The file.
        report: Called with the bytes that were read, from time to time.
        cancelled: Whether to stop.

    Raises:
        StorageError: The file cannot be read, or the object cannot be written.
        Cancelled: `cancelled` has returned True.
    """
    try:
        return _send_file(store, name, path, report, cancelled)
    except NoObject:  # parts were put together, the answer was lost, and obstore asked again for what is done
        return _send_file(store, name, path, _nothing, cancelled)
    except (StorageError, Cancelled):
        raise
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None


def _send_file(
    store: Store, name: str, path: str, report: Callable[[int], None], cancelled: Callable[[], bool]
) -> Object:
    size = os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        pieces = _pieces(file, report, cancelled)
        store.write(name, b"".join(pieces) if size <= PIECE_BYTES else pieces)
    found = store.size(name)  # some servers answer a write with another ETag than they know the object by
    if found.size != size:
        raise StorageError(
            join_url(store.url, name), f"has {found.size} bytes, not the {size} that were written", AGAIN
        )
    return found


def _pieces(file: object, report: Callable[[int], None], cancelled: Callable[[], bool]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):  # type: ignore[attr-defined]
        if cancelled():
            raise Cancelled
        yield piece
        report(len(piece))


def read_range(store: Store, found: Object, start: int, stop: int) -> memoryview:
    """Return the bytes of an object from `start` to `stop`. No range is asked for that has all bytes: some servers
    answer it as if there were none.

    Raises:
        ObjectChanged: It has another size or version.
        StorageError: It cannot be read.
    """
    etag = None if (found.etag or "").startswith("W/") else found.etag  # weak ones are for no condition
    if stop - start < found.size:
        return memoryview(store.read(found.name, start, stop, etag))
    whole = memoryview(store.read(found.name, etag=etag))
    if whole.nbytes != found.size:
        problem = f"has {whole.nbytes} bytes, not {found.size}"
        raise ObjectChanged(join_url(store.url, found.name), problem, "it was replaced: read it again")
    return whole


def sha256_of_object(store: Store, found: Object, report: Callable[[int], None] = _nothing) -> str:
    """Read an object, and return its SHA-256 as hexadecimal digits.

    Raises:
        ObjectChanged: It was replaced meanwhile.
        StorageError: It cannot be read.
    """
    digest = hashlib.sha256()
    for start in range(0, found.size, PIECE_BYTES):
        piece = read_range(store, found, start, min(found.size, start + PIECE_BYTES))
        digest.update(piece)
        report(piece.nbytes)
    return digest.hexdigest()
