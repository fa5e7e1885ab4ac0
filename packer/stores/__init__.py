"""Object stores: packs and sources at ``s3://...`` and the like."""

from __future__ import annotations

import os
import posixpath
import re
from importlib.util import find_spec

from packer.errors import AnyPath, NotInstalled, UsageError
from packer.stores.store import Store, join_url
from packer.system.machine import install_command

__all__ = ["Store", "join_url"]
OBSTORE = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "http", "https", "file", "memory")
"""Schemes of obstore; fsspec serves all others that it knows."""
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(path: AnyPath) -> bool:
    """Return whether a path is the URL of an object store."""
    return _URL.match(os.fsdecode(path)) is not None


def clean_url(url: AnyPath) -> str:
    """Return a URL in one form, with single slashes and none at its end.

    Raises:
        UsageError: It holds credentials or a query, which would show in messages and manifests.
    """
    text = os.fsdecode(url)
    scheme, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    if "@" in host:
        shown = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
        raise UsageError(
            shown.partition("?")[0], "holds credentials", "give them in the environment: see docs/remote.md"
        )
    if "?" in rest or "#" in rest:
        shown = re.split("[?#]", text)[0]
        raise UsageError(shown, "must not have a query or a fragment", "give the URL of the folder")
    path = re.sub("/+", "/", path).strip("/")  # no client can ask for objects with empty parts
    return f"{scheme.lower()}://{host}{slash}{path}".rstrip("/")


def joined(folder: bytes, path: bytes) -> bytes:
    """Return `path` relative to `folder`, without . and ..; either may be a URL or an absolute path."""
    if not is_url(path):
        path = posixpath.join(folder, path)
    match = _URL.match(os.fsdecode(path))
    start = match.end() if match else 0
    return path[:start] + posixpath.normpath(path[start:])


def open_store(url: AnyPath) -> Store:
    """Return the store of the objects below `url`; nothing is asked of it yet.

    Raises:
        NotInstalled: obstore or fsspec is missing.
        UsageError: There is no such kind of store, or its settings are wrong.
    """
    url = clean_url(url)
    scheme = url.partition("://")[0]
    library = "obstore" if scheme in OBSTORE else "fsspec"
    if find_spec(library) is None:
        raise NotInstalled(url, f"needs {library}", install_command("remote"))
    if library == "obstore":
        from packer.stores.obstore import ObstoreStore

        return ObstoreStore(url)
    from packer.stores.fsspec import FsspecStore

    return FsspecStore(url)
