"""jpeg-index.json: the files that hold the index of a pack's JPEGs, and what they were made of.

packer/format/make_jpeg_index.py makes them, packer/format/jpeg_index.py reads them; docs/formats.md describes them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from packer.errors import UsageError, printable
from packer.format.beside import BesideList
from packer.format.manifest import FileEntry, IndexEntry, Manifest, ShardEntry
from packer.format.pack_paths import INDEX_SUFFIX
from packer.stores import is_url
from packer.system import sync_path

JPEG_INDEX_NAME = "jpeg-index.json"
JPEG_INDEX_PREFIX = "jpeg-index."
JPEG_INDEX = re.compile(r"jpeg-index\.(?:json|[a-z0-9.-]+\.arrow)")
"""Names of the files."""
OF_VERSION = re.compile(r"\.v[1-9]\d*\.arrow$", re.ASCII)
"""At the end of the name of a file that a version of a pack has first."""
WORK_FOLDER = "jpeg-index.partial"
"""The folder in a pack where the files grow."""
VERSION = 1
INTERVALS = {"row": 0, "4": 4}
"""What the user writes -> MCUs between two entries; 0: an entry per row of them."""


def interval_of(option: str, text: str) -> int:
    """Return the interval that the user has written, ``row`` or ``4``. Raise UsageError if it is another word."""
    if str(text) not in INTERVALS:
        raise UsageError(option, f"must be {' or '.join(INTERVALS)}, got {text!r}")
    return INTERVALS[str(text)]


def index_file_of(shard: ShardEntry, version: int | None = None) -> str:
    """Return the name of a shard's file: ``jpeg-index.shard-00000.arrow``, or ``jpeg-index.shard-00000.v2.arrow``.

    It does not begin as the files of the shard do: packer 0.2 takes any that does for a shard of another pack.

    Args:
        shard: The shard.
        version: The version of its pack that has the file first. None: the pack has no versions.
    """
    name = OF_VERSION.sub(".arrow", f"{JPEG_INDEX_PREFIX}{shard.index.name.removesuffix(INDEX_SUFFIX)}.arrow")
    return name if version is None else f"{name.removesuffix('.arrow')}.v{version}.arrow"


@dataclass(frozen=True, slots=True)
class ShardJpegIndex:
    """The index file of a shard."""

    container: str
    """Name of the shard's container file."""
    container_sha256: str
    """Digest of the container that the index was made of."""
    rows_sha256: str
    """Digest of the shard's own index, which says which bytes of the container are its records."""
    index: IndexEntry


@dataclass(frozen=True)
class JpegIndexList(BesideList):
    """The content of jpeg-index.json."""

    NAME: ClassVar[str] = JPEG_INDEX_NAME
    FORMAT: ClassVar[str] = "packer-jpeg-index"
    VERSION: ClassVar[int] = VERSION
    NOT_CARRIED: ClassVar[str] = "the index of JPEGs is not copied: packer index makes that of the new pack"

    interval: int
    """Blocks (MCUs) between two entries of an index; 0: an entry per row of blocks."""
    made_with: str
    """Version of packer-fast."""
    indexed: int
    """Records with an index."""
    without: Mapping[str, int]
    """Why records have none -> their number."""
    shards: tuple[ShardJpegIndex, ...]
    """In the order of the manifest."""
    version: int = VERSION

    @property
    def data_files(self) -> tuple[FileEntry, ...]:
        """The index files."""
        return tuple(shard.index for shard in self.shards)

    def problem(self, manifest: Manifest) -> str:
        """Return why it cannot be that of a pack; empty if it can."""
        made_of = [(one.container, one.container_sha256, one.rows_sha256) for one in self.shards]
        here = [(shard.container.name, shard.container.sha256, shard.index.sha256) for shard in manifest.shards]
        names = {OF_VERSION.sub(".arrow", one.index.name) for one in self.shards}
        if made_of != here or names != {index_file_of(shard) for shard in manifest.shards}:
            return "was made of other files than those of the pack"
        return ""

    @staticmethod
    def again(pack: str, file: str = "") -> str:
        """Return the next step if the index of a pack, its folder or URL, is damaged."""
        if is_url(pack):
            return "make it again in a copy, and send that: packer pull, packer index, packer push"
        return f"make it again: packer index {printable(shlex.quote(pack))}"


def own_files(folder: str) -> list[str]:
    """Return the names of all index files in a pack, also of those that are not listed; jpeg-index.json first."""
    names = (name for name in os.listdir(folder) if name.startswith(JPEG_INDEX_PREFIX) and name != WORK_FOLDER)
    return sorted(names, key=lambda name: (name != JPEG_INDEX_NAME, name))


def remove_files(folder: str, names: Iterable[str]) -> None:
    """Remove index files from a pack, jpeg-index.json first. Raise OSError."""
    for name in sorted(names, key=lambda name: name != JPEG_INDEX_NAME):
        os.unlink(os.path.join(folder, name))
        if name == JPEG_INDEX_NAME:
            sync_path(folder)  # without the list the files are no index, whichever of them are left
    sync_path(folder)
