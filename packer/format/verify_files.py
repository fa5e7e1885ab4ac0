"""The files of a pack as such: sizes, digests, and what else lies in its directory."""

from __future__ import annotations

import os
import re

from packer.errors import StorageError
from packer.format.digests import Progress, crc32c_of, sha256_of
from packer.format.manifest import MANIFEST_NAME, FileEntry, IndexEntry, Manifest
from packer.format.verify_problems import Problem

ALTERED = "was altered: its digest is not the one that the pack says"
SHARD_NAME = re.compile(r"(shard-\d+|data(?=\.(mdb|index\.arrow)$))\.")
"""How the files of a shard begin; a single LMDB shard is called data.mdb."""


def check_file(folder: str, file: FileEntry, progress: Progress) -> Problem | None:
    """Size and digest of one file; for an index also the checksum that readers look at."""
    path = os.path.join(folder, file.name)
    try:
        if not os.path.isfile(path):  # a pipe would be waited for
            return Problem(file.name, None, "is no file" if os.path.lexists(path) else "is missing")
        size = os.path.getsize(path)
        if size != file.bytes:
            return Problem(file.name, None, f"has {size} bytes where the pack says {file.bytes}")
        if sha256_of(path, progress) != file.sha256:
            return Problem(file.name, None, ALTERED)
        if isinstance(file, IndexEntry) and crc32c_of(path) != file.crc32c:
            return Problem(file.name, None, "does not match the checksum that the pack says for readers")
    except FileNotFoundError:
        return Problem(file.name, None, "is missing")
    except OSError as error:
        return Problem(file.name, None, f"cannot be read: {error.strerror or error}")
    return None


def check_names(manifest: Manifest) -> list[Problem]:
    """Names that stand twice in the manifest."""
    seen: set[str] = {MANIFEST_NAME}
    problems = []
    for shard in manifest.shards:
        for file in (shard.container, shard.index):
            if file.name in seen:
                problems.append(Problem(file.name, None, "is listed twice in the manifest"))
            seen.add(file.name)
    return problems


def unlisted(folder: str, manifest: Manifest) -> tuple[list[Problem], list[str]]:
    """What the directory holds and the manifest does not list.

    Shards and indexes are problems: the pack was put together of two, or renamed. Other files are only named.
    """
    listed = {file.name for shard in manifest.shards for file in (shard.container, shard.index)}
    try:
        others = sorted(set(os.listdir(folder)) - listed - {MANIFEST_NAME})
    except OSError as error:
        raise StorageError(folder, error.strerror or str(error)) from None
    shards = [name for name in others if SHARD_NAME.match(name)]
    problems = [Problem(name, None, "looks like a shard, and the manifest does not list it") for name in shards]
    return problems, [name for name in others if name not in shards]
