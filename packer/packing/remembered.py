"""What the user's state folder remembers of the folder that a pack was built from: where it is, and when it was listed.

A pack itself holds neither times nor absolute paths, so that equal inputs give equal packs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from xxhash import xxh3_128

from packer.errors import PackerError
from packer.format.manifest import from_json_value
from packer.sources.paths import PathList
from packer.sources.source import NEVER_NS, Tree
from packer.stores import clean_url, is_url
from packer.system.state import StateFiles

MARGIN_NS = 2_000_000_000
"""Some file systems tell times in steps of two seconds."""
MOST_FILES = 200
"""Of the state folder: the oldest ones are removed."""
MOST_FOLDERS = 20_000
"""Of a source, that are remembered."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A source as it was when a pack was made of it."""

    source: str
    """Its absolute path, or its URL."""
    until_ns: int
    """A file that last changed before is as the pack has it; in ns since the epoch."""
    images: str
    """Digest of the names of all images."""
    files: str
    """Digest of the names of all other files."""
    folders: Mapping[str, int] | None = None
    """The inode of each folder, by its path relative to the source; of an archive, its own. None: there are too many.

    Another folder that has taken the name has other files, with old times.
    """

    @classmethod
    def of(cls, source: str, tree: Tree, began_ns: int) -> Seen:
        """Return what is to be remembered of a source that was listed from `began_ns` on."""
        until_ns = began_ns - MARGIN_NS
        if is_url(source):  # the clock of the store counts: what it tells of objects is in order
            known = () if tree.stamps is None else (tree.stamps.of_images, tree.stamps.of_files)
            times = [stamps[:, 0] for stamps in known if len(stamps)]
            until_ns = max((int(some[some < NEVER_NS].max(initial=0)) for some in times), default=0)
        digests = digest_of_names(tree.images), digest_of_names(tree.files)
        folders = {} if is_url(source) else inodes_of(tree) if len(tree.folders) < MOST_FOLDERS else None
        return cls(place_of(source), until_ns, *digests, folders)


def inodes_of(tree: Tree) -> dict[str, int]:
    """Return the inode of each folder of a source on a disk, as `Seen.folders`; folders in archives have none."""
    found = {}
    for folder in (b"", *tree.folders):
        with suppress(OSError):
            found[os.fsdecode(folder)] = os.stat(os.path.join(tree.root, folder) if folder else tree.root).st_ino
    return found


def place_of(source: str) -> str:
    """Return a source as it is remembered: independent of the working directory."""
    return clean_url(source) if is_url(source) else os.path.abspath(source)


def digest_of_names(paths: Sequence[bytes]) -> str:
    """Return the XXH3-128 of paths in their order."""
    digest = xxh3_128()
    if isinstance(paths, PathList):
        starts, data = paths.buffers()
        digest.update(memoryview(data)[: int(starts[-1])])
        return str(digest.hexdigest())
    for start in range(0, len(paths), 1024):  # all at once would take the memory of all
        digest.update(b"".join(path + b"\0" for path in paths[start : start + (1024)]))
    return str(digest.hexdigest())


def remember(digest: str, seen: Seen) -> None:
    """Remember what the pack with this digest was made of. A state folder that cannot be written is no error."""
    files = StateFiles("sources", "where packs were built from")
    with suppress(PackerError, OSError), files.changing():
        files.write(digest[:32], {"digest": digest, **asdict(seen)}, sync=False)
        files.keep(MOST_FILES)


def recall(digests: Iterable[str]) -> Seen | None:
    """Return what is remembered of the first of these packs of which anything is."""
    files = StateFiles("sources", "where packs were built from")

    for digest in digests:

        def parse(found: Any, wanted: str = digest) -> Seen | None:
            if found.pop("digest") != wanted:
                return None
            seen: Seen = from_json_value(Seen, found)
            return seen

        with suppress(PackerError):  # damaged, or not readable: as if there were nothing
            if (seen := files.read(digest[:32], parse, None)) is not None:
                return seen
    return None
