"""What is beside the versions of a pack whose deleted records are erased: the index of its JPEGs, and its sidecars."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from packer.errors import DamagedPack, UsageError
from packer.format.beside import BesideList
from packer.format.manifest import Manifest
from packer.format.pack_paths import version_folder
from packer.format.sidecar_list import BESIDE
from packer.format.versions import read_version
from packer.repack.carry import NewFiles, carry
from packer.repack.index_jpegs import work_folder
from packer.repack.links import Source, Taken
from packer.repack.survivors import Kept
from packer.system.atomic import remove
from packer.system.locks import growing_folder

FIRST = 1_000_000
"""The numbers in the names of files that earlier versions get are beyond those of versions."""


@contextmanager
def nothing_grows(pack: str) -> Iterator[None]:
    """Let no other process write anything beside the shards of a pack, and remove what one has left unfinished.

    Raises:
        UsageError: One does.
    """
    sidecars = os.path.join(pack, "sidecars")
    with work_folder(pack), growing_folder(sidecars, "attach", "attach or packer detach"):
        yield


def beside_newest(pack: str, manifest: Manifest, folder: str, number: int) -> None:
    """Write what is beside a new version that has the records of the one before it.

    Args:
        pack: The folder of the pack.
        manifest: The new version.
        folder: Where its new files are.
        number: Of the new version.

    Raises:
        DamagedPack: It was altered.
    """
    source = Source(pack)
    carry([Taken(source, shard) for shard in range(len(manifest.shards))], manifest, NewFiles(folder, number))


def beside_earlier(
    pack: str, number: int, manifest: Manifest, kept: Sequence[Kept], folder: str
) -> tuple[list[BesideList], str]:
    """Write what is beside an earlier version for the records that it keeps.

    Args:
        pack: The folder of the pack.
        number: Of the version, which is as it was yet.
        manifest: What it becomes.
        kept: What is left of its shards.
        folder: Where its new files are.

    Returns:
        Its lists, and a note if it loses them.
    """
    # not by the name PACK@1, which may also be that of another folder
    source = Source(version_folder(pack, number), read_version(pack, number))
    there = {*os.listdir(pack), *os.listdir(folder)}
    taken = {int(found[1]) for name in there if (found := re.search(r"\.v(\d+)\.", name))}
    new = NewFiles(folder, max(FIRST, *taken, 0) + 1)
    try:
        if any(len(one.old) > 1 for one in kept):
            raise UsageError(source.path, "has records of several shards in one")
        lists, _ = carry([Taken(source, one.old[0]) for one in kept], manifest, new)
    except (DamagedPack, UsageError) as error:
        return [], f"what was attached to {os.path.basename(pack)}@{number} is removed: it {error.problem}"
    finally:
        for kind in BESIDE:  # they are written where those of the version are, when it has become what it becomes
            remove(os.path.join(folder, kind.NAME))
    return lists, ""
