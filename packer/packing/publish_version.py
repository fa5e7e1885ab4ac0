"""Changes a pack in place: a new version takes the place of the pack in one step, and the earlier ones stay.

What is new is written into ``PACK/versions/N.partial``. Then the folder gets its name, its files take theirs in PACK,
and the new pack.json replaces the old one; until then the pack is what it was, whatever happens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from packer.errors import AnyPath, PackerError, StorageError, UsageError
from packer.format.beside import NEXT, BesideList, files_of_version, fits, list_text
from packer.format.lists import Listing, write_lists
from packer.format.manifest import FileEntry, Manifest, read_manifest
from packer.format.pack_paths import MANIFEST_NAME, PARTIAL_SUFFIX, VERSIONS, numbers_in, version_folder
from packer.format.sidecar_list import BESIDE
from packer.format.verify_records import write_companions
from packer.format.versions import (
    MADE_NAME,
    Made,
    check_newest,
    current_number,
    date_text,
    files_of_versions,
    newest_number,
    read_made,
    read_version,
)
from packer.packing.recorded import command_of
from packer.system import sync_path
from packer.system.atomic import make_own_folder, remove, replacing, write_new
from packer.system.locks import LOCK, FolderLock, lock_folder, remove_folder
from packer.system.pool import held_signals
from packer.system.storage import storage_errors

NEWEST = "newest.json"
"""The new pack.json, in the folder of its version until it gets its place."""
LISTS = {kind.NAME for kind in BESIDE}
"""Lists beside a pack, which each version has in its own folder, and the newest also in PACK."""
PLACED = "placed.json"
"""A list of a version until it gets its place in PACK."""
WORK = "update"
"""The folder beside the versions of a pack in which an update writes new shards."""
UNFINISHED = re.compile(r".+\.[0-9a-f]{8}\.tmp")
"""Names of files that a killed process has left."""
_OF_VERSION = re.compile(r"\.v\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a pack."""

    number: int
    path: str
    """``PACK@2``."""
    made: Made
    records: int
    classes: int

    def to_json(self) -> dict[str, Any]:
        """Return it as ``packer log --json`` prints it."""
        facts = {"number": self.number, "path": self.path, "records": self.records, "classes": self.classes}
        return facts | asdict(self.made)


def versions_of(pack: AnyPath) -> list[Version]:
    """Return the versions of a pack, the first one first; a pack that was never changed in place has one.

    Args:
        pack: The folder of the pack.

    Raises:
        PackNotFound: It is not a pack.
        DamagedPack: The manifest of a version was altered, or is missing.
        StorageError: A file cannot be read.
    """
    path, given = check_newest(pack, "packer log"), os.fsdecode(pack).rstrip("/")
    manifest = read_manifest(path)
    newest, found = current_number(path, manifest), []
    for number in [one for one in numbers_in(path) if one <= newest] or [1]:
        its = manifest if number == newest else read_version(path, number)
        made = read_made(path, number) if os.path.isdir(version_folder(path, number)) else _first_made(path, its)
        found.append(Version(number, f"{given}@{number}", made, its.records, len(its.classes)))
    return found


def _first_made(pack: str, manifest: Manifest) -> Made:
    """Return what made a pack that was never changed in place."""
    modified = os.stat(os.path.join(pack, MANIFEST_NAME)).st_mtime
    parents = tuple(origin.digest for origin in manifest.made_from)
    counts = {name: manifest.counts[name] for name in ("packed", "rejected", "skipped")}
    return Made(manifest.digest, command_of(manifest, os.path.basename(pack)), date_text(modified), parents, counts)


class NextVersion:
    """The next version of a pack. A context manager: entering locks the versions of the pack, exiting unlocks them.

    What a change that died has left is removed on entering, and what is not published on exiting.

    Args:
        pack: The folder of the pack.
        command: The command that changes it, as the log shows it.

    Raises:
        PackNotFound: It is not a pack.
        UsageError: It is an earlier version of a pack, or a URL.
        DamagedPack: Its manifest was altered, or its versions are those of another pack.
    """

    def __init__(self, pack: AnyPath, command: str) -> None:
        self.path = check_newest(pack, f"packer {command.split(' ')[1]}")
        self.manifest = read_manifest(self.path)
        """That of the version which is now the newest."""
        self._command = command
        self._lock: FolderLock | None = None
        self._versions = os.path.join(self.path, VERSIONS)
        self.number = 0
        """Its number; known when the versions are locked."""
        self._published = False

    @property
    def folder(self) -> str:
        """Where its new files are written."""
        return version_folder(self.path, self.number) + PARTIAL_SUFFIX

    def name(self, file: str) -> str:
        """Return the name of a new file that takes the place of `file`: ``shard-00000.v2.index.arrow``."""
        stem, _, ending = _OF_VERSION.sub("", file, count=1).partition(".")
        return f"{stem}.v{self.number}.{ending}"

    def __enter__(self) -> NextVersion:
        try:
            with held_signals():
                self._open()
        except OSError as error:
            self._leave()
            raise StorageError(error.filename or self.path, error.strerror or str(error)) from None
        except BaseException:
            self._leave()
            raise
        return self

    def _open(self) -> None:
        self._lock = lock_folder(self._versions)
        if self._lock is None:
            raise UsageError(self.path, "is being changed by another packer", "wait until it has ended")
        self.manifest = read_manifest(self.path)  # that of before may have been replaced
        current = current_number(self.path, self.manifest)
        self.number = current + 1
        self._recover(current)
        make_own_folder(self.folder)

    def _recover(self, current: int) -> None:
        """Remove what changes that died have left: versions that never became the newest one, and their files."""
        numbers = numbers_in(self.path)
        begun = [number for number in numbers if number > current]
        if begun:  # what cannot be read is an error: which files are whose is not known then
            kept = files_of_versions(self.path, {*numbers} - {*begun}, strict=True)
            kept |= {file.name for file in self.manifest.files}
            kept |= files_of_version(BESIDE, self.path, self.manifest, strict=True)
            for name in files_of_versions(self.path, begun, strict=True) - kept:
                remove(os.path.join(self.path, name))
        for number in begun:
            discard_version(version_folder(self.path, number))
        for name in os.listdir(self._versions):
            if name.removesuffix(PARTIAL_SUFFIX).isdigit() and name.endswith(PARTIAL_SUFFIX):
                remove(os.path.join(self._versions, name))
        self._settle({*numbers} - {*begun}, current)

    def _settle(self, numbers: Iterable[int], current: int) -> None:
        """Let all lists be where they belong, which a change that died when it was done has not done."""
        folders = {number: version_folder(self.path, number) for number in numbers}
        for kind in BESIDE:
            text = list_text(kind, self.path)
            if text is not None and not fits(kind, text, self.manifest):
                others = (list_text(kind, folder) for number, folder in folders.items() if number != current)
                if text in others:  # else it is damaged
                    _place_list(kind, self.path, current)
        for number, folder in folders.items():
            settle_version(folder, read_version(self.path, number))

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        with held_signals():
            if self._lock is None:
                return
            with suppress(PackerError, OSError):
                if self.number and not self._published:
                    self._recover(self.number - 1)
                if {*os.listdir(self._versions)} <= {LOCK}:
                    remove(self._versions, ignore_errors=True)
            self._lock.close()
            self._lock = None

    def publish(
        self,
        manifest: Manifest,
        listings: Iterable[Listing[Any]],
        selections: Mapping[str, bytes] | None = None,
        counts: Mapping[str, int] | None = None,
        ready: Callable[[Manifest], object] = lambda manifest: None,
    ) -> Manifest:
        """Let the new version take the place of the pack.

        Args:
            manifest: Its manifest, without its lists. Its files are in `folder`, or in the pack already.
            listings: The rejected, skipped and changed inputs.
            selections: Name of an option -> the file that it named (include, exclude).
            counts: What was done, for the log.
            ready: Called with the manifest just before it takes its place: whatever happens then, this was done.

        Returns:
            The manifest with the entries of the lists and of the companions of new shards.

        Raises:
            StorageError: A file cannot be written; the pack is as it was.
        """
        try:
            listed = write_lists(self.folder, listings, selections or {})
            lists = {name: self._kept_or_new(entry, self.manifest.lists.get(name)) for name, entry in listed.items()}
            own = {*os.listdir(self.folder)}
            new = tuple(shard for shard in manifest.shards if shard.container.name in own)
            companions = write_companions(self.folder, replace(manifest, shards=new, base=""))
            manifest = replace(manifest, lists=lists, companions=companions, base="")
            ready(manifest)
            self._commit(manifest, counts or {})
        except OSError as error:
            step = "the new version is in its place, but perhaps not on the disk: check that, and run packer verify"
            step = step if self._published else "the pack is as it was: try again"
            raise StorageError(error.filename or self.path, error.strerror or str(error), step) from None
        return manifest

    def _kept_or_new(self, entry: FileEntry, before: FileEntry | None) -> FileEntry:
        """Return the entry of a list: of the one that the pack has if it is the same, else under its new name."""
        path = os.path.join(self.folder, entry.name)
        if before is not None and (before.bytes, before.sha256) == (entry.bytes, entry.sha256):
            os.unlink(path)
            return before
        new = replace(entry, name=self.name(entry.name))
        os.rename(path, os.path.join(self.folder, new.name))
        return new

    def _commit(self, manifest: Manifest, counts: Mapping[str, int]) -> None:
        text = manifest.to_json()
        parents = dict.fromkeys((self.manifest.digest, *(origin.digest for origin in manifest.made_from)))
        made = Made(manifest.digest, self._command, date_text(), tuple(parents), dict(counts))
        names = [name for name in os.listdir(self.folder) if name not in LISTS]
        for path in (os.path.join(self.path, name) for name in names):
            if os.path.lexists(path):
                raise UsageError(path, "is in the way: it is not of this pack", "move it away")
        write_new(os.path.join(self.folder, NEWEST), text)
        _write_facts(self.folder, text, made)
        target = version_folder(self.path, self.number)
        with held_signals():
            self._keep_current()
            os.rename(self.folder, target)
            sync_path(self._versions)
            for name in names:
                os.rename(os.path.join(target, name), os.path.join(self.path, name))
            sync_path(self.path)
            os.replace(os.path.join(target, NEWEST), os.path.join(self.path, MANIFEST_NAME))
            self._published = True
            sync_path(self.path)
            _place_lists(self.path, self.number, manifest)

    def _keep_current(self) -> None:
        """Keep the lists of what is beside the pack, and its manifest if it is changed for the first time."""
        folder = version_folder(self.path, self.number - 1)
        if is_new := not os.path.isdir(folder):
            folder += PARTIAL_SUFFIX
            make_own_folder(folder)
        for kind in BESIDE:
            text = list_text(kind, self.path)
            if text is not None and fits(kind, text, self.manifest):
                with replacing(os.path.join(folder, kind.NAME)) as file:
                    file.write(text)
        if is_new:
            _write_facts(folder, self.manifest.to_json(), _first_made(self.path, self.manifest))
            os.rename(folder, folder.removesuffix(PARTIAL_SUFFIX))
            sync_path(self._versions)


def _place_lists(pack: str, number: int, manifest: Manifest) -> None:
    """Let the lists beside a pack be those of its newest version; that of the one before it has its own."""
    for kind in BESIDE:
        before = list_text(kind, pack)
        if before is None or not fits(kind, before, manifest):
            _place_list(kind, pack, number)
    sync_path(pack)


def _place_list(kind: type[BesideList], pack: str, number: int) -> None:
    """Let the list beside a pack be that of this version."""
    folder = version_folder(pack, number)
    if (text := list_text(kind, folder)) is None:
        remove(os.path.join(pack, kind.NAME))
    else:
        remove(os.path.join(folder, PLACED))
        write_new(os.path.join(folder, PLACED), text)
        os.replace(os.path.join(folder, PLACED), os.path.join(pack, kind.NAME))


def settle_version(folder: str, manifest: Manifest) -> None:
    """Let the lists in the folder of a version be those of its manifest, and remove what a dead change left there.

    Raises:
        OSError: A name cannot be changed.
    """
    for kind in BESIDE:
        if (text := list_text(kind, folder, NEXT)) is not None:
            path = os.path.join(folder, NEXT + kind.NAME)
            if fits(kind, text, manifest):
                os.replace(path, os.path.join(folder, kind.NAME))
            else:
                remove(path)
    for name in os.listdir(folder):
        if name == PLACED or UNFINISHED.fullmatch(name):
            remove(os.path.join(folder, name))


def forget_list(pack: str, manifest: Manifest, name: str) -> None:
    """Remove the copy of a list that the newest version of a pack has, before the list beside the pack is changed.

    Raises:
        UsageError: The pack was changed since it was opened.
        DamagedPack: The versions are those of another pack.
        OSError: It cannot be removed.
    """
    if read_manifest(pack).digest != manifest.digest:  # what was made is for other records
        raise UsageError(pack, "was changed by another packer meanwhile", "run the command again")
    if (number := newest_number(pack, manifest)) is not None:
        remove(os.path.join(version_folder(pack, number), name))


def discard_unfinished_update(pack: str) -> None:
    """Remove the shards that an update of a pack has left which died.

    Raises:
        UsageError: It is still at work.
        StorageError: They cannot be removed.
    """
    folder = os.path.join(pack, VERSIONS, WORK + PARTIAL_SUFFIX)
    with storage_errors(folder):
        if not os.path.lexists(folder):
            return
        if (lock := lock_folder(folder)) is None:
            raise UsageError(pack, "is being updated by another packer", "wait until it has ended")
        remove_folder(folder, lock)
        remove(folder)


def discard_version(folder: str) -> None:
    """Remove the folder of a version, which is none any more as soon as its name is another. Raise OSError."""
    if os.path.lexists(folder):
        partial = folder + PARTIAL_SUFFIX
        remove(partial)
        os.rename(folder, partial)
        sync_path(os.path.dirname(folder))
        remove(partial)


def _write_facts(folder: str, manifest: bytes, made: Made) -> None:
    """Write the manifest of a version, and what made it, into its folder."""
    write_new(os.path.join(folder, MANIFEST_NAME), manifest)
    write_new(os.path.join(folder, MADE_NAME), made.to_json())
    sync_path(folder)
