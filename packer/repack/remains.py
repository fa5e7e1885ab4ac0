"""Where bytes of erased records still are when a pack has none of them any more, as far as that can be known."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from packer.errors import printable
from packer.format.manifest import Manifest
from packer.format.pack_paths import MANIFEST_NAME, PARTIAL_SUFFIX

BESIDE = (PARTIAL_SUFFIX, ".repaired")
"""What follows the name of a pack in those of folders that a build or a repair leaves beside it."""


@dataclass(frozen=True, slots=True)
class Remains:
    """A file that may hold bytes of erased records, and that packer does not change."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.why}"


def other_names(pack: str, names: Iterable[str]) -> Iterator[Remains]:
    """Yield the other names of files of a pack that will be removed: those in packs beside it, or that there are some.

    Args:
        pack: The folder of the pack.
        names: Of the files.
    """
    shared = {}
    for name in names:
        with suppress(OSError):
            found = os.lstat(os.path.join(pack, name))
            if found.st_nlink > 1:
                shared[found.st_dev, found.st_ino] = name, found.st_nlink - 1
    if not shared:
        return
    known = dict.fromkeys(shared, 0)
    for path in _files_beside(pack):
        with suppress(OSError):
            found = os.lstat(path)
            if (key := (found.st_dev, found.st_ino)) in shared:
                known[key] += 1
                yield Remains(
                    path, f"is the same file as {printable(shared[key][0])} was: delete them in that pack, and purge it"
                )
    for key, (name, others) in shared.items():
        if left := others - known[key]:
            why = f"has {left} more {'name' if left == 1 else 'names'} elsewhere: find -inum {key[1]}"
            yield Remains(os.path.join(pack, name), why)


def _files_beside(pack: str) -> Iterator[str]:
    """Yield the files of the packs in the folder of a pack."""
    above = os.path.dirname(pack)
    with suppress(OSError):
        for name in sorted(os.listdir(above)):
            folder = os.path.join(above, name)
            if folder != pack and os.path.isfile(os.path.join(folder, MANIFEST_NAME)):
                yield from (os.path.join(folder, one) for one in sorted(os.listdir(folder)))


def leftovers(pack: str) -> Iterator[Remains]:
    """Yield the folders beside a pack that a build or a repair has left."""
    for ending in BESIDE:
        if os.path.lexists(path := pack + ending):
            yield Remains(path, "was left by a build or a repair, and may hold them: finish it, or remove it")


def elsewhere(pack: str, manifest: Manifest, names: Iterable[str], unknown: Iterable[str]) -> Iterator[Remains]:
    """Yield the files of other tools that the shards of a pack are.

    Args:
        pack: The folder of the pack.
        manifest: Its manifest, before anything is erased.
        names: Containers that hold deleted records.
        unknown: Others of which that is not known. They are named if the pack leaves anything out.
    """
    for name in names:
        if manifest.linked.get(name):
            yield Remains(
                os.path.normpath(manifest.path_of(pack, name)), "is of another tool, which packer does not change"
            )
    if manifest.counts.get("skipped"):
        for name in unknown:
            why = "is of another tool, and holds all its images, also those that the pack leaves out"
            yield Remains(os.path.normpath(manifest.path_of(pack, name)), why)
