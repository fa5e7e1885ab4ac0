"""jpeg-index.json: the files that hold the index of a pack's JPEGs, and what they were made of.

They are not in the manifest, and no other file of the pack knows them: a pack is the same with them, without them, and
to a packer that has never heard of them. packer/format/make_jpeg_index.py makes them, packer/format/jpeg_index.py
reads them; docs/formats.md describes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from packer.errors import DamagedPack, StorageError, UsageError, printable
from packer.format.manifest import (
    INDEX_SUFFIX,
    MAX_MANIFEST_BYTES,
    FileEntry,
    IndexEntry,
    Manifest,
    ShardEntry,
    digest_of,
    from_json_value,
)
from packer.stores import is_url
from packer.system import open_regular, sync_path
from packer.system.atomic import replacing

JPEG_INDEX_NAME = "jpeg-index.json"
JPEG_INDEX_PREFIX = "jpeg-index."
JPEG_INDEX = re.compile(r"jpeg-index\.(?:json|[a-z0-9.-]+\.arrow)")
"""Names of the files."""
WORK_FOLDER = "jpeg-index.partial"
"""The folder in a pack where the files grow."""
VERSION = 1
FORMAT = "packer-jpeg-index"
INTERVALS = {"row": 0, "4": 4}
"""What the user writes -> MCUs between two entries; 0: an entry per row of them."""


def interval_of(option: str, text: str) -> int:
    """Return the interval that the user has written, ``row`` or ``4``. Raise UsageError if it is another word."""
    if str(text) not in INTERVALS:
        raise UsageError(option, f"must be {' or '.join(INTERVALS)}, got {text!r}")
    return INTERVALS[str(text)]


def index_file_of(shard: ShardEntry) -> str:
    """Return the name of a shard's file: ``jpeg-index.shard-00000.arrow``.

    It does not begin as the files of the shard do: packer 0.2 takes any that does for a shard of another pack.
    """
    return f"{JPEG_INDEX_PREFIX}{shard.index.name.removesuffix(INDEX_SUFFIX)}.arrow"


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
class JpegIndexList:
    """The content of jpeg-index.json."""

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

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content as hexadecimal digits."""
        return digest_of(self._content)

    @property
    def _content(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def to_json(self) -> bytes:
        """Return the content of the file: ASCII JSON with a digest of everything else in it."""
        return (json.dumps({**self._content, "digest": self.digest}, indent=1) + "\n").encode("ascii")

    @property
    def bytes(self) -> int:
        """Size of all files but jpeg-index.json."""
        return sum(shard.index.bytes for shard in self.shards)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files, jpeg-index.json last."""
        text = self.to_json()
        own = FileEntry(JPEG_INDEX_NAME, len(text), hashlib.sha256(text).hexdigest())
        return (*(shard.index for shard in self.shards), own)


def make_again(pack: str) -> str:
    """Return the next step if the index of a pack, its folder or URL, is damaged."""
    if is_url(pack):
        return "make it again in a copy, and send that: packer pull, packer index, packer push"
    return f"make it again: packer index {printable(shlex.quote(pack))}"


def read_jpeg_index_list(folder: str, manifest: Manifest) -> JpegIndexList | None:
    """Return the list of a pack's index files; None if the pack has no index.

    Args:
        folder: The pack.
        manifest: Its manifest.

    Raises:
        DamagedPack: It was altered, or is that of another pack.
        StorageError: It cannot be read.
    """
    text = list_text(folder)
    if text is None:
        return None
    return parse_jpeg_index_list(os.path.join(folder, JPEG_INDEX_NAME), text, manifest, make_again(folder))


def list_text(folder: str) -> bytes | None:
    """Return the content of a pack's jpeg-index.json; None if there is none. Raise StorageError if it is unreadable."""
    path = os.path.join(folder, JPEG_INDEX_NAME)
    try:
        with open_regular(path) as file:
            return file.read(MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None


def parse_jpeg_index_list(path: str, text: bytes, manifest: Manifest, next_step: str) -> JpegIndexList:
    """Parse the content of a jpeg-index.json; `path` and `next_step` are for messages.

    Raises:
        DamagedPack: It was altered, or is that of another pack.
    """
    try:
        content = json.loads(text)
        if content["digest"] != digest_of(content):
            raise DamagedPack(path, "does not match its own digest: it was altered", next_step)
        if content.pop("format") != FORMAT or content["version"] != VERSION:
            raise DamagedPack(
                path, f"has version {content['version']!r}, not {VERSION}", f"update packer, or {next_step}"
            )
        content.pop("digest")
        found: JpegIndexList = from_json_value(JpegIndexList, content)
        if found.to_json() != text:
            raise DamagedPack(path, "was not written by packer: it was altered", next_step)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedPack(path, f"is not readable: {error!r}", next_step) from None
    made_of = [(one.container, one.container_sha256, one.rows_sha256, one.index.name) for one in found.shards]
    here = [(s.container.name, s.container.sha256, s.index.sha256, index_file_of(s)) for s in manifest.shards]
    if made_of != here:
        raise DamagedPack(path, "was made of other files than those of the pack", next_step)
    if not all(0 <= shard.index.bytes < 1 << 62 for shard in found.shards):
        raise DamagedPack(path, "has a file without a valid size", next_step)
    return found


def write_list(folder: str, found: JpegIndexList) -> None:
    """Write jpeg-index.json into a folder, durably and in one step. Raise StorageError on failure."""
    from packer.system.storage import storage_errors  # which reading does not need

    path = os.path.join(folder, JPEG_INDEX_NAME)
    with storage_errors(path), replacing(path) as file:
        file.write(found.to_json())


def own_files(folder: str) -> list[str]:
    """Return the names of all index files in a pack, also of those that are not listed; jpeg-index.json first."""
    names = (name for name in os.listdir(folder) if name.startswith(JPEG_INDEX_PREFIX) and name != WORK_FOLDER)
    return sorted(names, key=lambda name: (name != JPEG_INDEX_NAME, name))


def not_carried(folders: Iterable[str]) -> list[str]:
    """Return a note for a pack that is made of these ones, if one of them has an index of JPEGs; else nothing."""
    if any(os.path.isfile(os.path.join(folder, JPEG_INDEX_NAME)) for folder in folders):
        return ["the index of JPEGs is not copied: packer index makes that of the new pack"]
    return []


def remove_files(folder: str, names: Iterable[str]) -> None:
    """Remove index files from a pack, jpeg-index.json first. Raise OSError."""
    for name in sorted(names, key=lambda name: name != JPEG_INDEX_NAME):
        os.unlink(os.path.join(folder, name))
        if name == JPEG_INDEX_NAME:
            sync_path(folder)  # without the list the files are no index, whichever of them are left
    sync_path(folder)
