"""Whole files from and to a store: uploads that can be cancelled, and the digest of an object."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from packer.errors import StorageError
from packer.stores import join_url
from packer.stores.base import NoObject, Object, ObjectChanged, Store

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
        return _sent(store, name, path, report, cancelled)
    except NoObject:  # parts were put together, the answer was lost, and obstore asked again for what is done
        return _sent(store, name, path, _nothing, cancelled)
    except (StorageError, Cancelled):
        raise
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None


def _sent(store: Store, name: str, path: str, report: Callable[[int], None], cancelled: Callable[[], bool]) -> Object:
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
