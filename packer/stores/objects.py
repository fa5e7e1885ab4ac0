"""The objects of a remote pack, each of which must stay what it was, and whole files of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from packer.errors import DamagedPack, printable
from packer.stores import join_url
from packer.stores.base import NoObject, NotReached, Object, ObjectChanged, Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


class Objects:
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
            data, found = self._tried(name, start, stop if start or stop < size else None, condition)
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

    def _tried(self, name: str, start: int, stop: int | None, etag: str | None) -> tuple[Buffer, Object]:
        return patiently(lambda: self.store.get(name, start, stop, etag))

    def _replaced(self, where: str) -> DamagedPack:
        return DamagedPack(where, "was replaced by another version since the pack was opened", OPEN_AGAIN)
