"""The versions of a pack that was changed in place: which there are, what made each, and which is which.

``PACK/versions/N`` has the manifest of version N, and ``made.json``: what made it. Readers need neither.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field

from packer.errors import AnyPath, DamagedPack, PackerError, UsageError, option, printable
from packer.format.beside import files_of_version
from packer.format.manifest import Manifest, from_json_value, read_manifest
from packer.format.pack_paths import MANIFEST_NAME, VERSIONS, numbers_in, own_folder, version_folder, version_named
from packer.format.sidecar_list import BESIDE
from packer.stores import clean_url, is_url
from packer.system import open_regular

MADE_NAME = "made.json"
MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Made:
    """What made a version of a pack: the content of made.json."""

    digest: str
    """Digest of the version (`Manifest.digest`)."""
    command: str
    """The command, without the folders of its files."""
    date: str
    """When it was made, UTC: ``2026-11-27T18:00:00Z``. Of a pack that was never changed, when pack.json was written."""
    parents: tuple[str, ...] = ()
    """Digests of the packs that it was made from; the version before it is the first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What was done: records deleted, added, ..."""
    former: tuple[str, ...] = ()
    """Digests that it had before records were erased from it (`packer purge`)."""

    def to_json(self) -> bytes:
        """Return the content of the file."""
        content = asdict(self)
        if not self.former:
            del content["former"]
        return (json.dumps(content, indent=1) + "\n").encode("ascii")


def date_text(seconds: float | None = None) -> str:
    """Return a time as `Made.date` has it; None: now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def check_newest(pack: AnyPath, what: str) -> str:
    """Return the absolute path of a pack that is to be changed.

    Raises:
        UsageError: It is an earlier version of a pack, or a URL.
    """
    if is_url(pack):
        raise UsageError(
            clean_url(pack),
            f"is a URL, and {what} works on folders",
            f"copy it first: packer pull {clean_url(pack)} PACK",
        )
    path = os.fsdecode(pack)
    if (named := version_named(path)) is not None and os.path.isdir(own_folder(path)):
        other = f", or write a new one with {option('out')}" if what in ("packer edit", "packer repair") else ""
        raise UsageError(
            path, "is a version of a pack, which stays as it is", f"name the pack, {printable(named[0])}{other}"
        )
    return os.path.abspath(path)


def read_made(pack: str, number: int) -> Made:
    """Read what made a version. Raise DamagedPack if that cannot be read."""
    path = os.path.join(version_folder(pack, number), MADE_NAME)
    try:
        with open_regular(path) as file:
            made: Made = from_json_value(Made, json.loads(file.read(MOST_BYTES)))
            return made
    except (OSError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        problem = getattr(error, "strerror", None) or "is damaged"
        raise DamagedPack(path, f"cannot be read: {problem}", "restore it").with_location(pack) from None


def current_number(pack: str, manifest: Manifest) -> int:
    """Return the number of the newest version of a pack, whose manifest this is: 1 if it was never changed.

    Raises:
        DamagedPack: Its versions are those of another pack.
    """
    numbers = numbers_in(pack)
    for number in reversed(numbers):
        if read_made(pack, number).digest == manifest.digest:
            return number
    if any(os.path.isfile(os.path.join(version_folder(pack, one), MANIFEST_NAME)) for one in numbers if one == 1):
        problem = "holds versions of another pack: pack.json was replaced"
        raise DamagedPack(os.path.join(pack, VERSIONS), problem, "restore pack.json, or move the folder away")
    return 1


def newest_number(pack: str, manifest: Manifest) -> int | None:
    """Return `current_number`; None if the pack was never changed. Raise as that does."""
    return current_number(pack, manifest) if numbers_in(pack) else None


def version_with(pack: str, digest: str) -> str | None:
    """Return the version of a pack that has this digest, as ``PACK@2``; None if no version has that name and digest."""
    named = version_named(pack)
    path = pack if named is None else named[0]
    if is_url(path):
        return None
    for number in numbers_in(path):
        with suppress(DamagedPack):
            name, made = f"{path.rstrip('/')}@{number}", read_made(path, number)
            if digest in (made.digest, *made.former) and not os.path.lexists(name):  # a folder of that name is another
                return name
    return None


def read_version(pack: str, number: int) -> Manifest:
    """Read the manifest of a version of a pack; raise the errors of `read_manifest`."""
    manifest = read_manifest(version_folder(pack, number))
    object.__setattr__(manifest, "base", os.path.abspath(pack))
    return manifest


def files_of_versions(pack: str, numbers: Iterable[int], strict: bool = False) -> set[str]:
    """Return the names of the files of some versions of a pack, and of those beside it that their lists have.

    A manifest or a list that cannot be read is an error if `strict`; else it is left out.
    """
    names = set[str]()
    for number in numbers:
        with nullcontext() if strict else suppress(PackerError):
            manifest = read_version(pack, number)
            names.update(file.name for file in manifest.files)
            names |= files_of_version(BESIDE, version_folder(pack, number), manifest, strict)
    return names
