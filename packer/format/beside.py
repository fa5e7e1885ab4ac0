"""Lists of files beside the shards of a pack that its manifest does not name: the index of its JPEGs, its sidecars.

A pack is the same with them, without them, and to a packer that has never heard of them. The list in PACK is that of
its newest version; that of an earlier one is in the folder of the version, as its manifest is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from packer.errors import DamagedPack, PackerError, StorageError
from packer.format.manifest import MAX_MANIFEST_BYTES, FileEntry, Manifest, digest_of, from_json_value
from packer.format.pack_paths import VERSIONS, numbers_in, own_folder, version_folder
from packer.system import open_regular
from packer.system.atomic import replacing


@dataclass(frozen=True)
class BesideList:
    """The content of a list; a subclass has a field for each member of its JSON, ``version`` among them."""

    NAME: ClassVar[str]
    """Name of the file."""
    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]
    NOT_CARRIED: ClassVar[str]
    """A note for packs that are made of one that has it."""

    @property
    def data_files(self) -> Sequence[FileEntry]:
        """The files that it lists."""
        raise NotImplementedError

    def problem(self, manifest: Manifest) -> str:
        """Return why it cannot be that of a pack; empty if it can."""
        raise NotImplementedError

    @staticmethod
    def again(pack: str, file: str = "") -> str:
        """Return the next step if the list of a pack, its folder or URL, is damaged, or a file of it."""
        raise NotImplementedError

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content as hexadecimal digits."""
        return digest_of(self._content)

    @property
    def _content(self) -> dict[str, Any]:
        return {"format": self.FORMAT, **asdict(self)}

    def to_json(self) -> bytes:
        """Return the content of the file: ASCII JSON with a digest of everything else in it."""
        return (json.dumps({**self._content, "digest": self.digest}, indent=1) + "\n").encode("ascii")

    @property
    def bytes(self) -> int:
        """Size of all files but the list."""
        return sum(file.bytes for file in self.data_files)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files, the list last."""
        text = self.to_json()
        return (*self.data_files, FileEntry(self.NAME, len(text), hashlib.sha256(text).hexdigest()))

    def write(self, folder: str, before: str = "") -> None:
        """Write the list into a folder, durably and in one step; `before` comes before its name.

        Raises:
            StorageError: It cannot be written.
        """
        from packer.system.storage import storage_errors  # which reading does not need

        path = os.path.join(folder, before + self.NAME)
        with storage_errors(path), replacing(path) as file:
            file.write(self.to_json())


L = TypeVar("L", bound=BesideList)
NEXT = "next-"
"""What comes before the name of a list of a version that is written before the manifest which it fits."""


def read_beside(kind: type[L], folder: str, manifest: Manifest) -> L | None:
    """Return the list of a kind of files beside a pack; None if it has none.

    Args:
        kind: The class of the list.
        folder: The pack.
        manifest: Its manifest.

    Raises:
        DamagedPack: It was altered, or is that of another pack.
        StorageError: It cannot be read.
    """
    text = beside_text(kind, folder, manifest)
    return None if text is None else parse_beside(kind, folder, text, manifest)


def beside_text(kind: type[BesideList], folder: str, manifest: Manifest) -> bytes | None:
    """Return the content of the list of a pack, or of a version of it; None if it has none.

    Raises:
        StorageError: It is unreadable.
    """
    if (own := own_folder(folder)) != folder:
        return _text_of_version(kind, own, manifest)
    text = list_text(kind, folder)
    if text is None or not os.path.isdir(os.path.join(folder, VERSIONS)) or fits(kind, text, manifest):
        return text
    # a change died before it has put the list of the new version there
    numbers = reversed(numbers_in(folder))
    others = [list_text(kind, version_folder(folder, number)) for number in numbers]
    right = (one for one in others if one is not None and fits(kind, one, manifest))
    return next(right, None if text in others else text)


def _text_of_version(kind: type[BesideList], own: str, manifest: Manifest) -> bytes | None:
    text = list_text(kind, own)
    if text is not None and not fits(kind, text, manifest):  # a purge died before it has put the next list there
        text = list_text(kind, own, NEXT) or text
    if text is None and manifest.base:  # of the newest version, if it was changed since; or there was no change
        text = list_text(kind, manifest.base)
        text = text if text is not None and fits(kind, text, manifest) else None
    return text


def files_of_version(kinds: Iterable[type[BesideList]], own: str, manifest: Manifest, strict: bool = False) -> set[str]:
    """Return the names of the files beside a version whose folder this is.

    A list that cannot be read is an error if `strict`; else it is left out.
    """
    names = set[str]()
    for kind in kinds:
        with nullcontext() if strict else suppress(PackerError):
            if (text := _text_of_version(kind, own, manifest)) is not None:
                names.update(file.name for file in parse_beside(kind, own, text, manifest).data_files)
    return names


def fits(kind: type[BesideList], text: bytes, manifest: Manifest) -> bool:
    """Return whether this is the content of a list of a pack, and not damaged."""
    try:
        parse_beside(kind, "", text, manifest)
    except DamagedPack:
        return False
    return True


def list_text(kind: type[BesideList], folder: str, before: str = "") -> bytes | None:
    """Return the content of a list in a folder, with `before` its name; None if there is none.

    Raises:
        StorageError: It is unreadable.
    """
    path = os.path.join(folder, before + kind.NAME)
    try:
        with open_regular(path) as file:
            return file.read(MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(path, error.strerror or str(error)) from None


def parse_beside(kind: type[L], pack: str, text: bytes, manifest: Manifest, next_step: str = "") -> L:
    """Parse the content of a list; `pack`, a folder or URL, and `next_step` are for messages.

    Raises:
        DamagedPack: It was altered, or is that of another pack.
    """
    path, next_step = os.path.join(pack, kind.NAME), next_step or kind.again(pack)
    try:
        content = json.loads(text)
        if content["digest"] != digest_of(content):
            raise DamagedPack(path, "does not match its own digest: it was altered", next_step)
        if content.pop("format") != kind.FORMAT or content["version"] != kind.VERSION:
            problem = f"has version {content['version']!r}, not {kind.VERSION}"
            raise DamagedPack(path, problem, f"update packer, or {next_step}")
        content.pop("digest")
        found: L = from_json_value(kind, content)
        if found.to_json() != text:
            raise DamagedPack(path, "was not written by packer: it was altered", next_step)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedPack(path, f"is not readable: {error!r}", next_step) from None
    if problem := found.problem(manifest):
        raise DamagedPack(path, problem, next_step)
    if not all(0 <= file.bytes < 1 << 62 for file in found.data_files):
        raise DamagedPack(path, "has a file without a valid size", next_step)
    return found
