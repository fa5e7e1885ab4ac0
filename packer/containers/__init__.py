"""The table of containers: a new one is its file and one line here.

Nothing is imported before it is asked for: `packer --help` names the formats and loads no library of theirs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.containers.base import Container

_HOMES = {
    "lmdb": "packer.containers.lmdb",
    "hdf5": "packer.containers.hdf5",
    "tfrecord": "packer.containers.tfrecord",
    "webdataset": "packer.containers.webdataset",
}

CONTAINERS = tuple(_HOMES)
"""The words that ``--format`` takes."""

EXTENSIONS = {
    **{f".{name}": name for name in _HOMES},
    ".mdb": "lmdb",
    ".h5": "hdf5",
    ".tfrecords": "tfrecord",
    ".wds": "webdataset",
    ".tar": "webdataset",
}
"""Extension of a pack's name, in lower case -> its container."""


def open_container(name: str) -> Container:
    """The container called `name`; each module has it as CONTAINER. Raises UsageError for another name."""
    if name not in _HOMES:
        raise UsageError("--format", f"no container {name!r}", f"choose one of {', '.join(CONTAINERS)}")
    container: Container = importlib.import_module(_HOMES[name]).CONTAINER
    return container
