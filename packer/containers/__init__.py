"""The table of containers: a new one is its file and one line here, or an entry point of another package.

Nothing is imported before it is asked for: `packer --help` names the formats and loads no library of theirs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from packer.containers.plugins import load_named, plugins
from packer.errors import UsageError, printable

if TYPE_CHECKING:
    from packer.containers.base import Container

GROUP = "packer.containers"
"""Entry points of this group add containers: a name, and the `Container`."""

_HOMES = {
    "lmdb": "packer.containers.lmdb:CONTAINER",
    "hdf5": "packer.containers.hdf5:CONTAINER",
    "tfrecord": "packer.containers.tfrecord:CONTAINER",
    "webdataset": "packer.containers.webdataset:CONTAINER",
}

CONTAINERS = tuple(_HOMES)
"""The built-in words that ``--format`` takes."""

EXTENSIONS = {
    **{f".{name}": name for name in _HOMES},
    ".mdb": "lmdb",
    ".h5": "hdf5",
    ".tfrecords": "tfrecord",
    ".wds": "webdataset",
    ".tar": "webdataset",
}
"""Extension of a pack's name, in lower case -> its container."""


def container_names() -> tuple[str, ...]:
    """Return all words that ``--format`` takes, those that other packages add last.

    Raises:
        UsageError: Two packages use the same name.
    """
    return (*CONTAINERS, *plugins(GROUP, CONTAINERS))


def container_of(pack: str | None) -> str | None:
    """Return the container that the name of a pack means by its extension, None if it means none."""
    extension = os.path.splitext((pack or "").rstrip("/"))[1].lower()
    if not extension or extension in EXTENSIONS:
        return EXTENSIONS.get(extension)
    return extension[1:] if extension[1:] in container_names() else None


def open_container(name: str) -> Container:
    """Return the container called `name`.

    Raises:
        UsageError: There is none of that name, or the package that adds it cannot be imported.
    """
    try:
        container: Container = load_named(GROUP, _HOMES, name)
    except KeyError:
        step = f"choose one of {', '.join(container_names())}, or install the package that adds it"
        raise UsageError("--format", f"no container {printable(name)!r}", step) from None
    return container
