"""Copies a pack from a store to a folder: ranges in parallel, each file verified, published by one rename."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from packer.errors import AnyPath, DamagedPack, StorageError, UsageError
from packer.format.digests import sha256_of
from packer.format.jpeg_index_list import write_list
from packer.format.manifest import FileEntry
from packer.format.objects import jpeg_index_at, manifest_at
from packer.model.annotation import Progress
from packer.packing.publish import Output
from packer.stores import clean_url, is_url, join_url, open_store
from packer.stores.base import NoObject, Object, ObjectChanged, Store
from packer.stores.threads import all_of, pool
from packer.stores.transfer import read_range
from packer.system.atomic import is_own_file, make_own_folder, open_own
from packer.system.locks import LOCK, remove_folder
from packer.system.storage import storage_errors

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
    index = jpeg_index_at(store, manifest, progress.note)
    files = manifest.files if index is None else (*manifest.files, *index.files[:-1])
    output = PulledOutput(os.path.abspath(os.fsdecode(pack)), store, overwrite)
    with output:
        resumed = output.fetch(files, progress)
        if index is not None:
            write_list(output.folder, index)
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
