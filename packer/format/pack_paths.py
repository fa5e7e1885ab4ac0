"""What a path says: whether it is a pack, or a version of one, ``PACK@2``; and what else it may be.

``PACK/pack.json`` is the newest version, and ``PACK/versions/N/pack.json`` each of them. All other files are in PACK,
under names that are not used again for other bytes, so that a version needs no copy of what it shares with others.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress

from packer.errors import AnyPath, PackNotFound

MANIFEST_NAME = "pack.json"
PARTIAL_SUFFIX = ".partial"
INDEX_SUFFIX = ".index.arrow"

VERSIONS = "versions"
"""The folder in a pack."""
WAS_URL = re.compile(r"(?:^|/)([a-zA-Z][a-zA-Z0-9+.-]+):/+(.+)")
"""A URL, also as part of what `os.path.abspath` has made of it."""
_NAMED = re.compile(r"(.+)@([1-9]\d{0,8})", re.DOTALL)


def version_named(path: str) -> tuple[str, int] | None:
    """Return the pack and the number that a path names, ``PACK@2``; None if it names no version, but a folder."""
    found = _NAMED.fullmatch(path.rstrip("/"))
    return None if found is None or os.path.lexists(path) else (found[1], int(found[2]))


def version_folder(pack: str, number: int) -> str:
    """Return the folder of what only one version of a pack has."""
    return os.path.join(pack, VERSIONS, str(number))


def numbers_in(pack: str) -> list[int]:
    """Return the numbers of the folders of versions in a pack, sorted: also of one that was begun, but never made."""
    names: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(os.path.join(pack, VERSIONS))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and not name.startswith("0"))


def own_folder(pack: str) -> str:
    """Return the folder with the manifest of a pack, and with what is beside its shards: itself, or that of a version.

    Args:
        pack: The folder of a pack, or ``PACK@2``.
    """
    named = version_named(pack)
    if named is None or not os.path.isdir(version_folder(*named)):
        # the only version of a pack that was never changed
        return pack if named is None or named[1] > 1 else named[0]
    return version_folder(*named)


def names_a_pack(path: AnyPath) -> bool:
    """Return whether `path` is a pack, even an unfinished one, rather than a folder of images."""
    folder = own_folder(os.fsdecode(path))
    unfinished = folder.rstrip("/").endswith(PARTIAL_SUFFIX) and os.path.isdir(folder)
    return unfinished or os.path.isfile(os.path.join(folder, MANIFEST_NAME))


def no_pack(folder: str) -> PackNotFound:
    """Return the error for a path that is not a pack, with what it is instead."""
    if (named := version_named(folder)) is not None and names_a_pack(named[0]):
        step = f"packer log {shlex.quote(named[0])} lists its versions"
        return PackNotFound(folder, f"has no version {named[1]}", step)
    if not os.path.lexists(folder):
        if (url := WAS_URL.search(folder)) is not None:
            name = f"{url[1]}://{'/' if url[1] == 'file' else ''}{url[2]}"
            return PackNotFound(name, "is a URL, and this works on folders", f"copy it first: packer pull {name} PACK")
        partial = folder.rstrip("/") + PARTIAL_SUFFIX
        hint = f"its build did not finish ({partial} exists): run it again" if os.path.isdir(partial) else ""
        return PackNotFound(folder, "no such pack", hint or "build one: packer build FOLDER")
    if folder.rstrip("/").endswith(PARTIAL_SUFFIX):
        return PackNotFound(folder, "is an unfinished build, not a pack", "run the same packer build again")
    if os.path.isdir(folder):
        return PackNotFound(folder, f"is not a pack: it has no {MANIFEST_NAME}", _pack_of(folder))
    beside = os.path.dirname(folder)
    step = f"name it: {beside}" if names_a_pack(beside) else "pass the directory that packer build wrote"
    return PackNotFound(folder, "is a file, but a pack is a directory", step)


def _pack_of(folder: str) -> str:
    """Return the next step for a folder that is not a pack: the pack that was made of it, else how to make one."""
    name = os.path.basename(os.path.abspath(folder))
    names = _names_in(folder)
    if indexes := [found for found in names if found.endswith(INDEX_SUFFIX)]:
        if len(names) == len(indexes):  # those of packer adopt
            return f"restore its {MANIFEST_NAME}, or make it again: its images are in other files"
        return f"restore its {MANIFEST_NAME}, or rebuild it: packer repair {shlex.quote(folder)}"
    beside = _names_in(os.path.dirname(os.path.abspath(folder)))
    packs = [os.path.join(os.path.dirname(folder.rstrip("/")), n) for n in beside if os.path.splitext(n)[0] == name]
    made = next(filter(names_a_pack, packs), "")
    return f"name the pack that was built of it: {made}" if made else f"packer build {shlex.quote(folder)}"


def _names_in(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []
