"""The table of containers: a new one is its file and its name here, or an entry point of another package.

Containers are imported on first use: `packer --help` lists the formats without loading their libraries.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from packer.errors import UsageError, option, printable
from packer.system.registry import Registry

if TYPE_CHECKING:
    from packer.containers.container import Container

_NAMES = ("lmdb", "hdf5", "tfrecord", "webdataset", "parquet", "zarr", "n5", "recordio", "pth")
"""Each is also the name of its module, which has it as ``CONTAINER``."""

_REGISTRY = Registry({name: f"packer.containers.{name}:CONTAINER" for name in _NAMES}, "packer.containers")
"""Entry points of this group add containers: a name, and the `Container`."""
CONTAINERS = _REGISTRY.own
"""The built-in values of ``--format``."""

EXTENSIONS = {
    **{f".{name}": name for name in _NAMES},
    ".mdb": "lmdb",
    ".h5": "hdf5",
    ".tfrecords": "tfrecord",
    ".wds": "webdataset",
    ".tar": "webdataset",
    ".rec": "recordio",
    ".pt": "pth",
}
"""Extension of a pack's name, in lower case -> its container."""


def container_names() -> tuple[str, ...]:
    """Return all values of ``--format``, with those of other packages last.

    Raises:
        UsageError: Two packages use the same name.
    """
    return _REGISTRY.names


def container_of(pack: str | None) -> str | None:
    """Return the container for the extension of a pack's name; None if the extension is unknown."""
    extension = os.path.splitext((pack or "").rstrip("/"))[1].lower()
    if not extension or extension in EXTENSIONS:
        return EXTENSIONS.get(extension)
    return extension[1:] if extension[1:] in container_names() else None


def open_container(name: str) -> Container:
    """Return the container called `name`.

    Raises:
        UsageError: There is no such container, or the package that adds it cannot be imported.
    """
    try:
        container: Container = _REGISTRY.load(name)
    except KeyError:
        step = f"choose one of {', '.join(container_names())}, or install the package that adds it"
        raise UsageError(option("format"), f"no container {printable(name)!r}", step) from None
    return container
