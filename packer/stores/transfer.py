"""Whole files from and to a store: uploads that can be cancelled, and the digest of an object."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

from packer.errors import StorageError
from packer.stores.base import NoObject, Object, Store

PIECE_BYTES = 8 << 20


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
    """Write a local file as an object.

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
        return Object(name, size, store.write(name, b"".join(pieces) if size <= PIECE_BYTES else pieces), 0.0)


def _pieces(file: object, report: Callable[[int], None], cancelled: Callable[[], bool]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):  # type: ignore[attr-defined]
        if cancelled():
            raise Cancelled
        yield piece
        report(len(piece))


def sha256_of_object(store: Store, found: Object, report: Callable[[int], None] = _nothing) -> str:
    """Read an object, and return its SHA-256 as hexadecimal digits.

    Raises:
        ObjectChanged: It was replaced meanwhile.
        StorageError: It cannot be read.
    """
    digest = hashlib.sha256()
    for start in range(0, found.size, PIECE_BYTES):
        piece = memoryview(store.read(found.name, start, min(found.size, start + PIECE_BYTES), found.etag))
        digest.update(piece)
        report(piece.nbytes)
    return digest.hexdigest()
