"""Lets processes of the tests wait for no disk: what they show is the same, and a disk takes longer than they do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import forking


class Unsynced:
    """An environment of LMDB, which syncs without `os.fsync`: this one does not."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def sync(self, force: bool) -> None:
        """Leave the pages to the system."""


def unsynced() -> tuple[Any, Any]:
    """Let this process sync nothing: two patches, to be started or entered."""
    from packer.containers import lmdb
    from packer.files.lmdb_values import open_lmdb

    def opened(path: str, **options: Any) -> Unsynced:
        return Unsynced(open_lmdb(path, **options))

    return mock.patch.object(os, "fsync", lambda file: None), mock.patch.object(lmdb, "open_lmdb", opened)


@contextmanager
def no_syncs() -> Iterator[None]:
    """Meanwhile nothing syncs that this process does, or a fork that it starts (forking.py)."""
    calls, environments = unsynced()
    with calls, environments, mock.patch.object(forking.STARTER, "syncs", False):
        yield
