"""Packs at URLs: copied from a folder to a store and back, under the same names; and what builds have left there."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from packer.errors import AnyPath, DamagedPack, StorageError, UsageError, printable
from packer.format.beside import BesideList, read_beside
from packer.format.digests import sha256_of
from packer.format.jpeg_index_list import JPEG_INDEX
from packer.format.manifest import FileEntry, Manifest, read_manifest
from packer.format.mmap import check_files
from packer.format.pack_objects import beside_at, find_manifest, manifest_at
from packer.format.pack_paths import MANIFEST_NAME
from packer.format.sidecar_list import BESIDE, SIDECAR_FILE
from packer.model.annotation import Progress
from packer.packing.journal import checked_line, line_of
from packer.packing.publish import Output
from packer.packing.store_journal import (
    BUILDS,
    PLAIN,
    TAGGED,
    check_complete,
    check_no_others,
    is_same,
    objects_in,
    publish_manifest,
)
from packer.stores import clean_url, is_url, join_url, open_store
from packer.stores.store import ABSENT, NoObject, Object, ObjectChanged, Store, read_range, sha256_of_object, upload
from packer.stores.waiting import all_of, pool
from packer.system.atomic import is_own_file, make_own_folder, open_own
from packer.system.locks import LOCK, remove_folder
from packer.system.storage import storage_errors

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
    beside = [found for kind in BESIDE if (found := read_beside(kind, folder, old)) is not None]
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
    files = (*manifest.files, *(file for listed in beside for file in listed.files))
    sent += sum(_send_beside(store, old, folder, listed, progress) for listed in beside)
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


def _send_beside(store: Store, pack: Manifest, folder: str, listed: BesideList, progress: Progress) -> int:
    """Upload the files beside a pack that are not there yet, their list last, and return how many."""
    text, there = listed.to_json(), objects_in(store)
    complete = all(file.name in there and there[file.name].size == file.bytes for file in listed.files)
    with suppress(NoObject):
        if complete and bytes(store.read(listed.NAME)) == text:
            return 0
        store.delete([listed.NAME])  # its files are replaced
    progress.stage("pushing", listed.bytes, "bytes")

    def send(file: FileEntry) -> bool:
        path, found = pack.path_of(folder, file.name), there.get(file.name)
        if found is not None and found.size == file.bytes and sha256_of_object(store, found) == file.sha256:
            progress.advance(file.bytes)
            return False
        _check(path, file, listed.again(folder, file.name))
        upload(store, file.name, path, progress.advance)
        return True

    with pool(THREADS) as threads:
        sent = sum(all_of([threads.submit(send, file) for file in listed.data_files]))
    store.write(listed.NAME, text)
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


RANGE_BYTES = 8 << 20
IN_FLIGHT = 16
FILES = 4
PART, HAVE = ".part", ".have"
"""A file that is not whole, and which of its ranges are there, a byte each."""


@dataclass(frozen=True, slots=True)
class PullReport:
    """The result of `pull`."""

    path: str
    url: str
    records: int
    files: int
    bytes: int
    resumed: int
    """Files that an earlier, interrupted call had fetched."""
    seconds: float


def pull(url: AnyPath, pack: AnyPath, overwrite: bool = False, progress: Progress | None = None) -> PullReport:
    """Copy the pack at a URL to a new folder. If it is interrupted, the same call resumes from NAME.partial.

    Args:
        url: The pack.
        pack: The new folder.
        overwrite: Replace an existing pack.
        progress: Receives the stage pulling, in bytes.

    Raises:
        PackNotFound: The URL has no pack.
        UsageError: The folder exists.
        DamagedPack: An object does not match its digest; nothing is published.
        StorageError: An object cannot be read, or a file cannot be written.
    """
    started = time.monotonic()
    progress = progress or Progress()
    if not is_url(url):
        raise UsageError(url, "is not a URL", "packer pull s3://bucket/pack PACK; for a folder, use cp -r")
    if is_url(pack):
        raise UsageError(clean_url(pack), "is a URL, and packer pull writes a folder", "name a folder")
    store = open_store(clean_url(url))
    manifest = manifest_at(store)
    if elsewhere := [name for name, path in manifest.linked.items() if path]:
        problem = f"refers to files of another machine, such as {elsewhere[0]}"
        raise DamagedPack(store.url, problem, "copy it to a store with packer push, which takes them along")
    beside = [found for kind in BESIDE if (found := beside_at(kind, store, manifest, progress.note)) is not None]
    files = (*manifest.files, *(file for listed in beside for file in listed.data_files))
    output = PulledOutput(os.path.abspath(os.fsdecode(pack)), store, overwrite)
    with output:
        resumed = output.fetch(files, progress)
        for listed in beside:
            listed.write(output.folder)
        output.publish_folder(manifest)
    size = sum(file.bytes for file in files)
    seconds = time.monotonic() - started
    return PullReport(output.path, store.url, manifest.records, len(files), size, resumed, seconds)


class PulledOutput(Output):
    """The folder that a pack is copied to."""

    def __init__(self, path: str, store: Store, overwrite: bool) -> None:
        self._store = store
        self._stopped = threading.Event()
        super().__init__(path, store.url.removeprefix("file://") if store.url.startswith("file:") else "", overwrite)

    def fetch(self, files: Sequence[FileEntry], progress: Progress) -> int:
        """Fetch the files that are not in the folder; return how many are."""
        if self.journal.head is not None:
            raise UsageError(self.partial, "holds an unfinished build", "finish it, remove it, or name another folder")
        make_own_folder(self.folder)
        self._keep_only({file.name + end for file in files for end in ("", PART, HAVE)})
        left = [file for file in files if not self._is_whole(file)]
        whole = len(files) - len(left)
        if os.listdir(self.folder):
            progress.note(f"note: resuming an unfinished pull: {whole} of {len(files)} files are there")
        progress.stage("pulling", sum(file.bytes for file in left), "bytes")
        with pool(FILES) as fetching, pool(IN_FLIGHT) as ranges:
            futures = [fetching.submit(self._fetch, file, ranges, progress) for file in left]
            try:
                all_of(futures)
            except BaseException:
                self._stopped.set()
                raise
        return whole

    def _is_whole(self, file: FileEntry) -> bool:
        path = os.path.join(self.folder, file.name)
        with suppress(OSError):
            return is_own_file(path) and os.path.getsize(path) == file.bytes and sha256_of(path) == file.sha256
        return False

    def _fetch(self, file: FileEntry, ranges: Executor, progress: Progress) -> None:
        """Fetch a file, verify it, and give it its name."""
        path = os.path.join(self.folder, file.name)
        part, have = path + PART, path + HAVE
        while not self._stopped.is_set():
            with storage_errors(part), open(open_own(part), "r+b") as data, open(open_own(have), "r+b") as marks:
                data.truncate(file.bytes)
                there = marks.read()
                numbers = range(-(-file.bytes // RANGE_BYTES))
                missing = [number for number in numbers if there[number : number + 1] != b"1"]
                progress.advance(file.bytes - sum(_size(file, number) for number in missing))
                list(ranges.map(partial(self._fetch_range, file, progress), missing))
                os.fsync(data.fileno())
            if self._stopped.is_set():
                return
            if sha256_of(part) == file.sha256:
                os.replace(part, path)
                os.unlink(have)
                return
            os.unlink(have)  # what an interrupted call has left may be of another version, or not on the disk
            os.unlink(part)
            progress.advance(-file.bytes)
            if len(missing) == len(numbers):
                where = join_url(self._store.url, file.name)
                raise DamagedPack(where, "does not match its digest", "packer verify it, and build or push it again")

    def _fetch_range(self, file: FileEntry, progress: Progress, number: int) -> None:
        if self._stopped.is_set():
            return
        start, size = number * RANGE_BYTES, _size(file, number)
        try:
            piece = read_range(self._store, Object(file.name, file.bytes, None, 0.0), start, start + size)
        except NoObject:
            raise DamagedPack(
                join_url(self._store.url, file.name), "is missing", "build or push the pack again"
            ) from None
        except ObjectChanged as error:
            step = "packer verify it, and build or push it again"
            raise DamagedPack(error.where, f"{error.problem}, not as its manifest says", step) from None
        except StorageError:
            self._stopped.set()  # before another file begins
            raise
        for end, content, offset in ((PART, piece, start), (HAVE, b"1", number)):
            path = os.path.join(self.folder, file.name + end)
            with storage_errors(path), open(open_own(path, create=False), "r+b") as target:
                target.seek(offset)
                target.write(content)
        progress.advance(size)

    def _leave(self) -> None:
        if self._lock is not None and not self._published and set(os.listdir(self.partial)) <= {LOCK}:
            remove_folder(self.partial, self._lock)
        self._close()


def _size(file: FileEntry, number: int) -> int:
    """Return the size of a range of a file."""
    return min(RANGE_BYTES, file.bytes - number * RANGE_BYTES)


DAY_S = 86_400.0
DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """What is at a URL that no pack needs."""

    url: str
    objects: tuple[Object, ...]
    """What may be removed, by name."""
    recent: tuple[Object, ...]
    """The same, but it, or the pack that replaced it, is too new: somebody may be building, or reading it. All, if the
    store does not say when objects were written."""
    unknown: tuple[Object, ...]
    """What is not removed: objects beside a pack that is not there, which may be the only copies."""


def find_unreferenced(url: AnyPath, older_than_s: float = DAY_S) -> Unreferenced:
    """Return the objects that unfinished and replaced packs have left at a URL.

    Only names that packer makes are looked at, directly below the URL and in its ``.build/``. Without a pack.json, only
    the objects that the journal of an unfinished build names count as unreferenced.

    Args:
        url: Where packs were built or pushed.
        older_than_s: Age of what may be removed. A journal is as old as its last object, and so are its shards.

    Raises:
        DamagedPack: There is a pack.json that cannot be read: then nothing can be known.
        StorageError: The store cannot be read.
    """
    if not is_url(url):
        raise UsageError(url, "is not a URL", "in a folder, remove NAME.partial")
    store = open_store(clean_url(url))
    before = time.time() - older_than_s
    try:
        found = find_manifest(store)
    except DamagedPack as error:
        error.next_step = f"nothing is removed: restore {MANIFEST_NAME} first"
        raise
    here = objects_in(store)
    written = here.pop(MANIFEST_NAME).modified_s if MANIFEST_NAME in here else 0.0
    needed = set() if found is None else {file.name for file in found.files}
    for kind in BESIDE:
        if found is not None and (listed := beside_at(kind, store, found, lambda note: None)) is not None:
            needed |= {file.name for file in listed.files}
    recent, old, of_running, of_given_up = _builds(store, before)
    unknown: list[Object] = []
    for name, one in here.items():
        is_beside = found is not None and (JPEG_INDEX.fullmatch(name) or SIDECAR_FILE.fullmatch(name))
        if name in needed or not (is_beside or TAGGED.fullmatch(name) or PLAIN.fullmatch(name)):
            continue
        if name in of_running or not one.modified_s or max(one.modified_s, written) > before:
            recent.append(one)
        elif found is not None or name in of_given_up:
            old.append(one)
        else:
            unknown.append(one)
    return Unreferenced(store.url, *(tuple(sorted(group)) for group in (old, recent, unknown)))


def clean(found: Unreferenced, progress: Progress | None = None) -> None:
    """Remove `Unreferenced.objects`. Raise StorageError if that fails.

    Args:
        found: What `find_unreferenced` returned.
        progress: Receives the stage removing, in objects.
    """
    progress = progress or Progress()
    progress.stage("removing", len(found.objects), "objects")
    store = open_store(found.url)
    # the journals last: without one, its objects would be taken for the only copies
    names = sorted((one.name for one in found.objects), key=lambda name: (name.startswith(BUILDS), name))
    for start in range(0, len(names), DELETED_AT_ONCE):
        some = names[start : start + DELETED_AT_ONCE]
        with suppress(NoObject):
            store.delete(some)
        progress.advance(len(some))


def _builds(store: Store, before: float) -> tuple[list[Object], list[Object], set[str], set[str]]:
    """Return the journals of builds that may be running, and of those that are given up; and what each of them name."""
    folders: dict[str, list[Object]] = {}
    for one in store.names(BUILDS):
        folders.setdefault(one.name.rpartition("/")[0], []).append(one)
    running: list[Object] = []
    given_up: list[Object] = []
    of_running, of_given_up = set[str](), set[str]()
    for folder, objects in sorted(folders.items(), reverse=True):  # .build/ itself, with the claim of a push, last
        times = [one.modified_s for one in objects]
        recent = max(times) > before or not min(times) or (running and folder == BUILDS.rstrip("/"))
        (running if recent else given_up).extend(objects)
        (of_running if recent else of_given_up).update(_journal_objects(store, objects))
    return running, given_up, of_running, of_given_up


def _journal_objects(store: Store, objects: Iterable[Object]) -> Iterable[str]:
    """Yield the names of the objects that a journal names."""
    for one in objects:
        with suppress(NoObject):
            content = checked_line(bytes(store.read(one.name)))
            if content is not None and "objects" in content:  # of a build
                yield from (name for name, *_ in content["objects"])
            elif content is not None and "name" in content:  # of a push
                yield content["name"]
