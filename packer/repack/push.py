"""Copies a pack from a folder to a store, under the same names."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from packer.errors import AnyPath, DamagedPack, StorageError, UsageError, printable
from packer.format.digests import sha256_of
from packer.format.jpeg_index_list import JPEG_INDEX_NAME, JpegIndexList, read_jpeg_index_list
from packer.format.manifest import FileEntry, Manifest, read_manifest
from packer.format.mmap import check_files
from packer.format.objects import find_manifest
from packer.model.annotation import Progress
from packer.packing.journal import checked_line, line_of
from packer.packing.objects import (
    BUILDS,
    check_complete,
    check_no_others,
    is_same,
    objects_in,
    publish_manifest,
)
from packer.stores import clean_url, is_url, join_url, open_store
from packer.stores.base import ABSENT, NoObject, Object, ObjectChanged, Store
from packer.stores.threads import all_of, pool
from packer.stores.transfer import sha256_of_object, upload

CLAIM = f"{BUILDS}push.json"
"""Names the pack whose push is unfinished: two packs have the same file names, and other bytes."""
THREADS = 4


@dataclass(frozen=True, slots=True)
class PushReport:
    """The result of `push`."""

    url: str
    digest: str
    """Of the pack at the URL; another than that of the folder if that refers to files elsewhere."""
    files: int
    bytes: int
    sent: int
    """Files that were not there yet."""
    linked: int
    """Files that the folder refers to, and the URL has."""
    seconds: float


def push(pack: AnyPath, url: AnyPath, progress: Progress | None = None) -> PushReport:
    """Copy a pack to a URL where no other is. If it is interrupted, the same call resumes.

    Args:
        pack: The folder of the pack.
        url: Where to copy it.
        progress: Receives the stage pushing, in bytes.

    Raises:
        UsageError: Another pack, or something else, is there.
        DamagedPack: A file is missing or does not match its digest; nothing is published.
        StorageError: A file cannot be read, or an object cannot be written.
    """
    started = time.monotonic()
    progress = progress or Progress()
    folder = os.fsdecode(pack)
    if is_url(folder):
        raise UsageError(folder, "is a URL, and packer push reads a folder", "packer pull it first")
    if not is_url(url):
        raise UsageError(url, "is not a URL", "packer push PACK s3://bucket/pack; for a folder, use cp -r")
    old = read_manifest(folder)
    index = read_jpeg_index_list(folder, old)
    linked = dict.fromkeys(old.linked, "")
    manifest = replace(old, linked=linked)  # all its files are with it there
    store = open_store(clean_url(url))
    journal = _Journal(store, manifest)
    sent = 0
    if not _is_there(journal, manifest):
        paths = {file.name: old.path_of(folder, file.name) for file in old.files}
        check_files([(paths[file.name], file.bytes) for file in old.files])  # before hours of uploads
        journal.claim()
        sent = _send(journal, manifest, paths, progress)
        check_complete(store, manifest.files, journal.written)
        publish_manifest(store, manifest, ABSENT)
    with suppress(StorageError):
        journal.remove()
    files = manifest.files if index is None else (*manifest.files, *index.files)
    if index is not None:
        sent += _send_index(store, folder, index, progress)
    size = sum(file.bytes for file in files)
    count = sum(bool(path) for path in old.linked.values())
    seconds = time.monotonic() - started
    return PushReport(store.url, manifest.digest, len(files), size, sent, count, seconds)


def _is_there(journal: _Journal, manifest: Manifest) -> bool:
    """Return whether this very pack is there, with all files. Raise UsageError if it is another, or something else."""
    store = journal.store
    found = find_manifest(store)
    if found is None:
        journal.check_claim()
        check_no_others(store, manifest.files)
        return False
    if found.digest != manifest.digest:
        raise UsageError(store.url, f"has another pack (digest {found.digest[:12]})", "choose another URL")
    there = objects_in(store)
    return all(file.name in there and there[file.name].size == file.bytes for file in manifest.files)


class _Journal:
    """The files of an unfinished push that are there, an object each."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store = store
        self.folder = f"{BUILDS}{manifest.digest[:16]}/"
        self.written: dict[str, Object] = {}
        self._claim = json.dumps({"digest": manifest.digest}).encode("ascii")

    def check_claim(self) -> None:
        """Raise UsageError if the URL is claimed for another pack."""
        with suppress(NoObject):
            if bytes(self.store.read(CLAIM)) != self._claim:
                problem = "has an unfinished push of another pack"
                raise UsageError(self.store.url, problem, "finish it, choose another URL, or see packer clean")

    def claim(self) -> None:
        """Claim the URL for this pack, and read which of its files are there."""
        try:
            self.store.write(CLAIM, self._claim, ABSENT)
        except ObjectChanged:
            self.check_claim()
        there = objects_in(self.store)
        for found in self.store.names(self.folder):
            content = None
            with suppress(NoObject):
                content = checked_line(bytes(self.store.read(found.name)))
            if content is not None:
                one = Object(content["name"], content["size"], content["etag"], 0.0)
                if is_same(there.get(one.name), one):
                    self.written[one.name] = one
        self.there = there

    def add(self, found: Object) -> None:
        """Record that a file is there."""
        content = {"name": found.name, "size": found.size, "etag": found.etag}
        self.store.write(f"{self.folder}{found.name}.json", line_of(content))
        self.written[found.name] = found

    def remove(self) -> None:
        """Remove the journal."""
        names = [found.name for found in self.store.names(self.folder)]
        with suppress(NoObject):
            names += [CLAIM] if bytes(self.store.read(CLAIM)) == self._claim else []
        if names:
            self.store.delete(names)


def _send(journal: _Journal, manifest: Manifest, paths: dict[str, str], progress: Progress) -> int:
    """Upload the files that are not there yet, and return how many."""
    left = [file for file in manifest.files if file.name not in journal.written]
    if journal.written:
        progress.note(
            f"note: resuming an unfinished push: {len(journal.written)} of {len(manifest.files)} files are there"
        )
    progress.stage("pushing", sum(file.bytes for file in left), "bytes")
    stopped = threading.Event()

    def send(file: FileEntry) -> bool:
        path = paths[file.name]
        found = journal.there.get(file.name)
        absent = found is None
        if stopped.is_set():
            return False
        _check(path, file)
        if found is None:
            found = upload(journal.store, file.name, path, progress.advance, stopped.is_set)
        elif found.size != file.bytes or sha256_of_object(journal.store, found, progress.advance) != file.sha256:
            where = join_url(journal.store.url, file.name)
            raise UsageError(where, "exists and is another file", "remove it, or choose another URL")
        journal.add(found)
        return absent

    with pool(THREADS) as threads:
        futures = [threads.submit(send, file) for file in left]
        try:
            return sum(all_of(futures))
        except BaseException:
            stopped.set()
            raise


def _send_index(store: Store, folder: str, index: JpegIndexList, progress: Progress) -> int:
    """Upload the files of the index of the JPEGs that are not there yet, its list last, and return how many."""
    text, there = index.to_json(), objects_in(store)
    complete = all(file.name in there and there[file.name].size == file.bytes for file in index.files)
    with suppress(NoObject):
        if complete and bytes(store.read(JPEG_INDEX_NAME)) == text:
            return 0
        store.delete([JPEG_INDEX_NAME])  # its files are replaced
    progress.stage("pushing", index.bytes, "bytes")

    def send(file: FileEntry) -> bool:
        path, found = os.path.join(folder, file.name), there.get(file.name)
        if found is not None and found.size == file.bytes and sha256_of_object(store, found) == file.sha256:
            progress.advance(file.bytes)
            return False
        _check(path, file, f"packer index {printable(folder)}")
        upload(store, file.name, path, progress.advance)
        return True

    with pool(THREADS) as threads:
        sent = sum(all_of([threads.submit(send, shard.index) for shard in index.shards]))
    store.write(JPEG_INDEX_NAME, text)
    return sent + 1


def _check(path: str, file: FileEntry, step: str = "") -> None:
    """Raise DamagedPack if a file of the pack is not as it was written."""
    try:
        intact = os.path.getsize(path) == file.bytes and sha256_of(path) == file.sha256
    except OSError as error:
        raise StorageError(path, f"cannot be read: {error.strerror or error}") from None
    if not intact:
        step = step or f"packer repair {printable(os.path.dirname(path))}"
        raise DamagedPack(path, "was altered: it does not match its digest", step)
