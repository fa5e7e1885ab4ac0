"""Builds to a store: the objects of a pack, the step that publishes it, and the journal of an unfinished build.

The journal is an object for each finished shard, below ``.build/`` at the URL.
The folder is named after the options of the build, so that the same build resumes on any machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from packer.errors import StorageError, UsageError, printable
from packer.format.manifest import FileEntry, Manifest, ShardEntry
from packer.format.pack_paths import MANIFEST_NAME
from packer.packing.journal import Journal, ShardResult, checked_line, content_of, line_of, result_of
from packer.stores import join_url
from packer.stores.store import ABSENT, AGAIN, NoObject, Object, ObjectChanged, Store, sha256_of_object
from packer.stores.waiting import all_of, pool

BUILDS = ".build/"
"""Below it, each unfinished build or push has a folder with an object for each shard or file that is there."""
TAG_DIGITS = 8
TAGGED = re.compile(r"(?:shard-\d{5,}|data|rejected|skipped|changed|include|exclude)-[0-9a-f]{8}\.[a-z0-9.]+")
"""Names that a build gives to objects."""
PLAIN = re.compile(r"(?:shard-\d{5,}\.(?!json$)[a-z0-9.]+|data\.(?:mdb|index\.arrow))")
"""Names that a build gives to the files of a folder, and `packer push` keeps."""
LOOKED_AT = 2000


# A pack as objects of a store: their names, what else may be there, and the one step that publishes it.
#
# Names of objects carry the digest of their content, so that two builds never write different bytes to one name, and a
# reader of a pack that is replaced keeps its objects. pack.json is written last, and only if it is as it was before.


def tagged(name: str, tag: str) -> str:
    """Return the name of an object: ``shard-00012-3f9a2c1b.lmdb``."""
    stem, _, rest = name.partition(".")
    return f"{stem}-{tag}.{rest}"


def object_shard(shard: ShardEntry) -> ShardEntry:
    """Return a shard with the names of its objects. Both have one tag, as both have one stem in a folder."""
    digest = hashlib.sha256(f"{shard.container.sha256} {shard.index.sha256}".encode("ascii"))
    tag = digest.hexdigest()[:TAG_DIGITS]
    container, index = shard.container, shard.index
    return replace(
        shard,
        container=replace(container, name=tagged(container.name, tag)),
        index=replace(index, name=tagged(index.name, tag)),
    )


def object_companion(companion: FileEntry, shard: ShardEntry) -> FileEntry:
    """Return the companion of an `object_shard` with the name of its object."""
    extension = companion.name.partition(".")[2]
    return replace(companion, name=f"{shard.container.name.partition('.')[0]}.{extension}")


def object_list(file: FileEntry) -> FileEntry:
    """Return a list of a pack with the name of its object."""
    return replace(file, name=tagged(file.name, file.sha256[:TAG_DIGITS]))


def check_free(store: Store, overwrite: bool) -> str | None:
    """Check that a pack may be written to a URL.

    Args:
        store: The URL.
        overwrite: Whether there may be one.

    Returns:
        The `only_if` with which its pack.json is to be written.

    Raises:
        UsageError: There is a pack, or something else.
    """
    try:
        found = store.size(MANIFEST_NAME)
    except NoObject:
        check_no_others(store)
        return ABSENT
    if not overwrite:
        raise UsageError(store.url, "exists", "choose another --out, or replace it with --overwrite")
    return found.etag


def check_no_others(store: Store, files: Iterable[FileEntry] = ()) -> None:
    """Raise UsageError if there are objects that no build or push leaves: it may be a folder of images.

    Args:
        store: The URL.
        files: Files whose names may be there.
    """
    names = {file.name for file in files}
    for found in islice(store.names(), LOOKED_AT):
        name = found.name
        if not (name.startswith(BUILDS) or name in names or TAGGED.fullmatch(name)):
            problem = f"has other objects, such as {printable(name)}"
            raise UsageError(store.url, problem, "choose a URL below which nothing is")


def objects_in(store: Store) -> dict[str, Object]:
    """Return the objects directly below a URL, by name."""
    return {found.name: found for found in store.folders()[1]}


def check_complete(store: Store, files: Iterable[FileEntry], written: Mapping[str, Object]) -> None:
    """Check that every file of a pack is there as it was written, before its pack.json is.

    Args:
        store: The URL.
        files: The files.
        written: What the store said of them when they were written.

    Raises:
        StorageError: An object was removed or replaced.
    """
    there = objects_in(store)
    for file in files:
        found = there.get(file.name)
        if found is None:
            with suppress(NoObject):  # a list may be late
                found = store.size(file.name)
        before = written.get(file.name)
        if found is None:
            raise StorageError(join_url(store.url, file.name), "was removed since it was written", AGAIN)
        if found.size != file.bytes or not (before is None or is_same(found, before)):
            raise StorageError(join_url(store.url, file.name), "was replaced since it was written", AGAIN)


def is_same(found: Object | None, before: Object) -> bool:
    """Return whether an object is the version that it was, as far as the store says."""
    if found is None or found.size != before.size:
        return False
    if found.etag is None or before.etag is None:
        return True
    return found.etag.strip('"') == before.etag.strip('"')  # some servers list it without quotes


def publish_manifest(store: Store, manifest: Manifest, only_if: str | None) -> None:
    """Write pack.json if the one in the store is still as it was, or already this one.

    Args:
        store: The URL.
        manifest: The manifest.
        only_if: The version to replace, as in `Store.write`.

    Raises:
        UsageError: Another build was faster.
        StorageError: It cannot be written.
    """
    data = manifest.to_json()
    try:
        store.write(MANIFEST_NAME, data, only_if)
    except StorageError as error:
        with suppress(StorageError):  # the answer may have been lost, but not the object
            if bytes(store.read(MANIFEST_NAME)) == data:
                return
        if isinstance(error, ObjectChanged):
            problem = "another build has published a pack there meanwhile"
            raise UsageError(store.url, problem, "choose another URL, or build with --overwrite") from None
        raise


def heeds_conditions(store: Store, folder: str, replacing: bool) -> bool:
    """Return whether a store writes objects only if a condition holds; some that speak S3 ignore it.

    Args:
        store: The URL.
        folder: Below which to try it.
        replacing: Try the replacement of a version, else the creation.
    """
    name = f"{folder}probe"
    store.write(name, b"")
    try:
        store.write(name, b"", '"0"' if replacing else ABSENT)
    except ObjectChanged:
        return True
    return False


ELSEWHERE = ("source",)
"""Options that may differ on another machine: each shard has the digests of its inputs."""
HEAD = "options.json"
READERS = 32


class StoreJournal(Journal):
    """The journal of the build with the options `head`; `objects` has what the store says of each file of a shard."""

    def __init__(self, store: Store, head: Mapping[str, Any]) -> None:
        self.store = store
        asked = {name: value for name, value in head["asked"].items() if name not in ELSEWHERE}
        text = json.dumps({**head, "asked": asked}, sort_keys=True)
        self.folder = f"{BUILDS}{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}/"
        self.objects: dict[str, dict[str, Object]] = {}
        """Of each finished shard, by the names of the objects."""
        self.companions: dict[str, FileEntry] = {}
        """Companion of each container file that has one, with its local name."""
        self._given = dict(head)
        super().__init__(store.url)

    def _read(self) -> None:
        names = [found.name for found in self.store.names(self.folder)]
        shards = [name for name in names if name.endswith(".json") and name != self.folder + HEAD]
        with pool(READERS) as threads:
            contents = all_of([threads.submit(self._content, name) for name in shards])
        if shards or self.folder + HEAD in names:
            self.head = self._given
        for content in filter(None, contents):  # a damaged line: the shard is packed again
            name = ""
            try:
                objects = [Object(name, size, etag, 0.0) for name, size, etag in content["objects"]]
                name = str(content["name"])
                self.finished[name] = result_of(content)
                self.objects[name] = {found.name: found for found in objects}
                if content["companion"] is not None:
                    self.companions[name] = FileEntry(**content["companion"])
            except (KeyError, TypeError, ValueError):
                self.forget(name)

    def _content(self, name: str) -> dict[str, Any] | None:
        try:
            return checked_line(bytes(self.store.read(name)))
        except NoObject:  # a build that has just ended
            return None

    def forget(self, name: str) -> None:
        """Take a shard as unfinished."""
        self.finished.pop(name, None)
        self.objects.pop(name, None)
        self.companions.pop(name, None)

    def check(self, there: Mapping[str, Object], content: bool) -> None:
        """Forget the shards whose objects are not as they were.

        Args:
            there: The objects at the URL.
            content: Read them again, and compare digests.
        """
        for name, objects in list(self.objects.items()):
            if not all(is_same(there.get(one.name), one) for one in objects.values()):
                self.forget(name)
        if content:
            with pool(READERS) as threads:
                names = list(self.finished)
                intact = all_of([threads.submit(self._is_intact, name) for name in names])
                for name, good in zip(names, intact, strict=True):
                    if not good:
                        self.forget(name)

    def _is_intact(self, name: str) -> bool:
        entry = self.finished[name].entry
        if entry is None:
            return True
        digests = {entry.container.sha256, entry.index.sha256}
        if name in self.companions:
            digests.add(self.companions[name].sha256)
        try:
            return {sha256_of_object(self.store, found) for found in self.objects[name].values()} == digests
        except (NoObject, ObjectChanged):
            return False

    def begin(self, head: Mapping[str, Any]) -> None:
        """Write the options, for who looks what there is."""
        self.head = dict(head)
        self.store.write(self.folder + HEAD, json.dumps(self.head, indent=1).encode("ascii"))

    def mark(self, failed: bool) -> None:
        """Do nothing: builds with other options have journals of their own."""

    def restart(self) -> None:
        """Take everything as unfinished; shards that are packed again replace their objects here."""
        self.head, self.finished, self.objects, self.companions = None, {}, {}, {}

    def record(self, name: str, result: ShardResult, objects: list[Object], companion: FileEntry | None) -> None:
        """Record that the objects of a shard are there."""
        content = {
            "name": name,
            **content_of(result),
            "objects": [[found.name, found.size, found.etag] for found in objects],
            "companion": None if companion is None else asdict(companion),
        }
        self.store.write(f"{self.folder}{name}.json", line_of(content))
        if companion is not None:
            self.companions[name] = companion
        self.objects[name] = {found.name: found for found in objects}
        self.finished[name] = result

    def remove(self) -> None:
        """Remove the journal, as the pack is published. Raise StorageError if that fails."""
        names = [found.name for found in self.store.names(self.folder)]
        if names:
            self.store.delete(names)
