"""The journal of an unfinished build to a store: an object for each finished shard, below ``.build/`` at the URL.

The folder is named after the options of the build, so that the same build resumes on any machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from packer.format.manifest import FileEntry
from packer.packing.journal import Journal, ShardResult, checked_line, content_of, line_of, result_of
from packer.packing.objects import BUILDS, is_same
from packer.stores.base import NoObject, Object, ObjectChanged, Store
from packer.stores.threads import all_of, pool
from packer.stores.transfer import sha256_of_object

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
