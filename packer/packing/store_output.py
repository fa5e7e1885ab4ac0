"""The output of a build to a store: shards are made in a scratch folder, uploaded beside, and removed.

The pack is there when its pack.json is, which is written last. Until then, `StoreJournal` says what is finished.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from packer.containers import open_container
from packer.errors import StorageError, printable
from packer.format.beside import BesideList
from packer.format.lists import Listing, write_lists
from packer.format.manifest import FileEntry, Manifest
from packer.format.pack_paths import PARTIAL_SUFFIX
from packer.format.sidecar_list import BESIDE
from packer.format.verify_records import write_companion
from packer.model.annotation import Progress
from packer.packing.build_options import BuildOptions
from packer.packing.journal import ShardResult
from packer.packing.partial_builds import BuildPart, FinishedParts, PartOutput
from packer.packing.publish import Output, check_apart
from packer.packing.store_journal import (
    BUILDS,
    TAG_DIGITS,
    StoreJournal,
    check_complete,
    check_free,
    heeds_conditions,
    object_companion,
    object_list,
    object_shard,
    objects_in,
    publish_manifest,
    tagged,
)
from packer.stores import clean_url, join_url, open_store
from packer.stores.store import NoObject, Object, ObjectChanged, StoreFull, sha256_of_object, upload
from packer.system import usable_cores
from packer.system.atomic import make_own_folder, remove, replacing
from packer.system.locks import remove_folder
from packer.system.storage import storage_errors

PAUSES_S = (2.0, 10.0, 30.0)
"""Before an upload is tried again, beyond what the store's own library tries within seconds."""
TAG = re.compile(r"-[0-9a-f]{8}\Z")
T = TypeVar("T")
F = TypeVar("F", bound=FileEntry)


def output_of(options: BuildOptions, progress: Progress, indexes: bool = False) -> Output:
    """Return where a build writes to: a folder, or a store.

    Args:
        options: The options of the build.
        progress: Receives the stage uploading, in shards.
        indexes: Whether the index of every shard must be in the output's folder until the pack is published.

    Raises:
        UsageError: It must not be written there.
        StorageError: The store cannot be reached.
    """
    if options.to_store:
        return StoreOutput(options, progress, indexes)
    if options.job is not None:
        return PartOutput(options.output, options.source, options.overwrite, BuildPart.of(options.job))
    if options.finish:
        return FinishedParts(options.output, options.source, options.overwrite, options.recheck)
    return Output(options.output, options.source, options.overwrite)


class StoreOutput(Output):
    """The URL that a build writes to. A context manager as `Output` is; unpublished work is kept in the store."""

    checked = True

    def __init__(self, options: BuildOptions, progress: Progress, indexes: bool) -> None:
        self.path = clean_url(options.output)
        check_apart(self.path, options.source)
        self.store = open_store(self.path)
        name = hashlib.sha256(self.path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._work_in(os.path.join(options.scratch_folder, f"packer-{name}{PARTIAL_SUFFIX}"))
        self._only_if = check_free(self.store, options.overwrite)
        self._overwrite, self._recheck = options.overwrite, options.recheck
        self._container, self._indexes, self._progress = options.container, indexes, progress
        self._most = options.workers or usable_cores()
        """Uploads at a time: as many shards may be in the scratch folder as are being made."""
        self._uploads: dict[Future[None], str] = {}
        self._pool = ThreadPoolExecutor(self._most, "packer-upload")
        self._cancelled = threading.Event()
        self._there: dict[str, Object] = {}
        self._others: dict[str, Object] = {}
        """Files that are of no shard of this build."""

    @property
    def place(self) -> str:
        """Where unfinished work is kept."""
        return self.path

    def read_journal(self, head: Mapping[str, Any]) -> list[str]:
        """Look for the work of a build with the options `head`, on whatever machine it ran."""
        journal = StoreJournal(self.store, head)
        self._there = objects_in(self.store)
        journal.check(self._there, self._recheck)
        self.journal: StoreJournal = journal
        if self._indexes:
            self._fetch_indexes()
        if heeds_conditions(self.store, journal.folder, bool(self._only_if)):
            return []
        return [f"{self.path} ignores conditions: builds that write there at once do not notice each other"]

    def _fetch_indexes(self) -> None:
        make_own_folder(self.folder)
        for result in self.journal.finished.values():
            if result.entry is not None:
                name = object_shard(result.entry).index.name
                path = os.path.join(self.folder, result.entry.index.name)
                data = self.store.read(name)
                with storage_errors(path), replacing(path, sync=False) as file:
                    file.write(data)

    def restart(self) -> None:
        """Begin anew. Objects of other builds stay, for those may still be running."""
        self._remove_all()
        self.journal.restart()

    def clear(self) -> None:
        """Remove everything from the scratch folder but the indexes of finished shards."""
        super().clear()
        if not self._indexes:
            remove(self.folder)
            os.mkdir(self.folder)

    def add(self, name: str, result: ShardResult) -> None:
        """Upload a shard beside the next ones, and record it when it is there; wait while too many are uploaded."""
        while len(self._uploads) >= self._most:
            self._wait()
        self._wait(0)
        self._name_files(name, result)
        self._uploads[self._pool.submit(self._upload, name, result)] = name

    def _wait(self, timeout_s: float | None = None) -> int:
        """Wait for an upload, and return how many have ended. Raise the error of one that has failed."""
        done, _ = wait(self._uploads, timeout_s, FIRST_COMPLETED) if self._uploads else ((), ())
        for future in done:
            del self._uploads[future]
        for future in done:
            future.result()
        return len(done)

    def _upload(self, name: str, result: ShardResult) -> None:
        """Upload the files of a shard, record it, and remove them."""
        objects: list[Object] = []
        companion = None
        if result.entry is not None:
            local, remote = result.entry, object_shard(result.entry)
            path = os.path.join(self.folder, local.container.name)
            files = [(local.container, remote.container), (local.index, remote.index)]
            if hasattr(open_container(self._container), "companion"):
                companion = write_companion(self._container, path, self.folder)
                files.append((companion, object_companion(companion, remote)))
            objects = [self._object(os.path.join(self.folder, ours.name), its) for ours, its in files]
        self._patiently(lambda: self.journal.record(name, result, objects, companion))
        for ours, _ in files if result.entry is not None else ():
            if not (self._indexes and ours is local.index):
                os.unlink(os.path.join(self.folder, ours.name))

    def upload_file(self, file: F, name: str) -> F:
        """Upload a file of the folder that takes the place of the object `name`; return it with the name it has."""
        plain = TAG.sub("", name.partition(".")[0]) + "." + name.partition(".")[2]
        found = replace(file, name=tagged(plain, file.sha256[:TAG_DIGITS]))
        self._others[found.name] = self._object(os.path.join(self.folder, file.name), found)
        return found

    def _object(self, path: str, file: FileEntry) -> Object:
        """Upload a file, unless the object is there already: readers of another pack may be using it."""
        found = self._there.get(file.name)
        if found is not None and found.size == file.bytes:
            digest = self._patiently(lambda: sha256_of_object(self.store, found))
            if digest == file.sha256:
                return found
        return self._patiently(lambda: upload(self.store, file.name, path, cancelled=self._cancelled.is_set))

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call again after a while if the store fails: it has answered before, and a build takes hours."""
        for pause_s in PAUSES_S:
            try:
                return call()
            except (NoObject, ObjectChanged, StoreFull):
                raise
            except StorageError as error:
                self._progress.note(f"note: {error.told}; trying again in {pause_s:.0f} s")
                if self._cancelled.wait(pause_s):
                    raise
        return call()

    def __exit__(self, kind: Any = None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception) and not issubclass(kind, OSError):
            with suppress(Exception):  # an error in the images: what is finished is kept
                self._flush()
        self._cancelled.set()
        self._pool.shutdown(cancel_futures=True)
        super().__exit__()

    def _leave(self) -> None:
        if self._lock is not None:
            remove_folder(self.partial, self._lock)
        self._close()

    def _flush(self) -> None:
        self._progress.stage("uploading", len(self._uploads), "shards")
        while self._uploads:
            self._progress.advance(self._wait())

    def publish(
        self, manifest: Manifest, listings: Iterable[Listing[Any]], selections: Mapping[str, bytes] | None = None
    ) -> Manifest:
        """Wait for the uploads, write the lists, and then the manifest if the URL is as it was at the start.

        Arguments and answer are those of `Output.publish`; files have the names of the objects.
        """
        self._flush()
        try:
            lists = write_lists(self.folder, listings, selections or {})
        except OSError as error:
            raise StorageError(self.folder, error.strerror or str(error), "choose another --scratch") from None
        written = {name: one for objects in self.journal.objects.values() for name, one in objects.items()}
        written |= self._others
        for name, file in lists.items():
            lists[name] = object_list(file)
            written[lists[name].name] = self._object(os.path.join(self.folder, file.name), lists[name])
        shards = {  # those of a pack that is updated have the names of their objects
            shard.container.name: object_shard(shard) if shard.container.name in self.journal.finished else shard
            for shard in manifest.shards
        }
        companions = dict(manifest.companions)
        companions |= {
            shard.container.name: object_companion(self.journal.companions[name], shard)
            for name, shard in shards.items()
            if name in self.journal.companions
        }
        manifest = replace(manifest, shards=tuple(shards.values()), lists=lists, companions=companions)
        check_complete(self.store, manifest.files, written)
        publish_manifest(self.store, manifest, self._only_if)
        self._published = True
        self._remove_lists_beside()
        for listed in self.beside:
            self._put_beside(listed)
        try:
            self.journal.remove()
        except StorageError as error:
            where = printable(join_url(self.path, BUILDS))
            self._progress.note(f"note: {where} is left there: {error.problem}; packer clean removes it")
        return manifest

    def _remove_lists_beside(self) -> None:
        """Remove the lists of files beside the pack that was there: they say nothing of this one."""
        here = objects_in(self.store) if self._overwrite else {}
        if there := [kind.NAME for kind in BESIDE if kind.NAME in here]:
            with suppress(NoObject):
                self._patiently(lambda: self.store.delete(there))

    def _put_beside(self, listed: BesideList) -> None:
        """Upload files beside the pack, their list last."""
        for file in listed.data_files:
            self._object(os.path.join(self.folder, file.name), file)
        self._patiently(lambda: self.store.write(listed.NAME, listed.to_json()))
