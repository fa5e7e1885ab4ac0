"""The cache folder of remote packs: where it is, what it may hold, and what is evicted first.

    ROOT/packs/<first 16 digits of the pack's digest>-<16 of that of its origin>/
      origin.json        the URL, and the names and sizes of the files that are fetched by blocks
      blocks             what is there of them (`packer.stores.sparse`)
      pack.json, *.index.arrow, and those files

A pack.json does not prove the pixels of a record: its checksum is no secret, and another server could give others that
match it. So packs of two origins (`packer.stores.store.Store.origin`) never share a folder. Folders of version 0.2 and
before, whose names have no origin, are not read any more; they are listed, evicted and cleared as all others.

Nothing is removed but blocks of files that an origin.json names, beside a `blocks`, in such a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packer.errors import AnyPath, StorageError, UsageError, size_text
from packer.stores import is_url
from packer.stores.blocks import BlockLayout
from packer.stores.sparse import NAME, StoredBlocks
from packer.stores.store import Store
from packer.stores.waiting import UNFINISHED, new_name
from packer.system import open_regular
from packer.system.atomic import in_the_way, make_own_folder
from packer.system.locks import lock_folder
from packer.system.storage import file_system

FOLDER = "PACKER_CACHE"
"""Environment variable: the cache folder."""
PRIVATE = 0o700
ORIGIN = "origin.json"
WHAT = "made by packer's cache, which removes the blocks of these files again"
NETWORKS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "fuse.rclone", "fuse.s3fs")
"""File systems whose locks and maps may not be those of other machines."""
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
POLL_S = 0.005
EVICT_WAIT_S = 60.0
ROOM_WAIT_S = 10.0
SHARE_EVICTED = 32
"""A full cache evicts this part of it at once, so that not every request has to."""
FULL_DISK_BYTES = 64 << 20


def cache_root(cache_dir: AnyPath | None = None) -> str:
    """Return the cache folder: the one given, that of the environment, or ~/.cache/packer."""
    found = cache_dir or os.environ.get(FOLDER) or _own_root()
    if is_url(found):
        raise UsageError(
            found, "is a URL, and a cache is a folder on this machine", "pass cache_dir=, or set PACKER_CACHE"
        )
    return os.path.abspath(os.fsdecode(found))


def _own_root() -> str:
    """Return where the cache is if nobody says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(os.path.join(base, "packer"))


def limit_of(cache_bytes: Any) -> int | None:
    """Return a number of bytes, which may be text: ``500GB``. Raise UsageError if it is not one."""
    if cache_bytes is None:
        return None
    text = str(cache_bytes).strip().upper().removesuffix("B").strip()
    unit = text[-1:] if text[-1:].isalpha() else ""
    with suppress(ValueError, OverflowError):
        if not isinstance(cache_bytes, bool) and unit in UNITS:
            size = int(float(text[: len(text) - len(unit)] or "x") * UNITS[unit])
            if size >= 0:
                return size
    raise UsageError("cache_bytes", f"must be a size, got {cache_bytes!r}", 'write "500GB", or a number of bytes')


def make_folder(root: str, digest: str, store: Store, files: Sequence[tuple[str, int]]) -> str:
    """Create the folder of a pack in the cache, unless it is there, and return its path.

    Args:
        root: the cache folder. If it is made here, or is packer's own, only this user can read it.
        digest: of the pack.
        store: of its URL.
        files: (name, bytes) of those that are fetched by blocks.

    Raises:
        UsageError: there is a folder of that name that is not the cache's, or the cache is on a network drive.
        StorageError: it cannot be created.
    """
    packs = os.path.join(root, "packs")
    folder = os.path.join(packs, f"{digest[:16]}-{hashlib.sha256(os.fsencode(store.origin)).hexdigest()[:16]}")
    content = {"what": WHAT, "url": store.url, "files": [list(file) for file in files]}
    try:
        _make_private(root)
        make_own_folder(packs)
        if file_system(packs).startswith(NETWORKS):
            problem = f"is on a network drive ({file_system(packs)}), where processes cannot share a cache"
            raise UsageError(root, problem, "pass cache_dir= on a local disk, or cache_bytes=0 to read into memory")
        if os.path.islink(folder):
            raise in_the_way(folder)
        if not os.path.isdir(folder):
            made = new_name(packs)
            os.mkdir(made)
            with open(os.path.join(made, ORIGIN), "x", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            try:
                os.rename(made, folder)  # complete, or not at all
            except OSError:
                os.unlink(os.path.join(made, ORIGIN))
                os.rmdir(made)
                if not os.path.isdir(folder):
                    raise
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        problem = f"cannot be used as a cache: {error.strerror or error}"
        raise StorageError(root, problem, "pass cache_dir=, or set PACKER_CACHE") from None
    if origin_of(folder) is None:
        raise UsageError(folder, f"is not a folder of packer's cache: it has no valid {ORIGIN}", "pass cache_dir=")
    return folder


def _make_private(root: str) -> None:
    """Make the cache folder, which may hold what needs keys: for this user only. Raise OSError on failure."""
    try:
        os.makedirs(root, PRIVATE)
    except FileExistsError:
        if root != _own_root() or os.path.islink(root):
            return  # who may read a folder that was given is said by whoever made it
        if os.stat(root).st_mode & 0o077:  # made by an earlier version
            with suppress(PermissionError):  # it is somebody else's
                os.chmod(root, PRIVATE)


def origin_of(folder: str) -> dict[str, Any] | None:
    """Return what a folder of the cache says of itself: {"url", "files": [[name, bytes], ...]}, if it does."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open_regular(os.path.join(folder, ORIGIN)) as file:
            origin = json.load(file)
        names = [os.path.basename(name) for name, size in origin["files"] if size >= 0]
        if origin["what"] == WHAT and names == [name for name, _ in origin["files"]] and str(origin["url"]):
            return dict(origin)
    return None


def folders_of(root: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folders of packs in a cache folder, and what they say of themselves (`origin_of`)."""
    packs, names = os.path.join(root, "packs"), list[str]()
    with suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(os.listdir(packs))
    for name in names:
        folder = os.path.join(packs, name)
        if not (name.startswith(UNFINISHED) or os.path.islink(folder)) and (origin := origin_of(folder)) is not None:
            yield folder, origin


@dataclass
class Cache:
    """A cache folder that may hold so much. All threads of a process share one of each.

    Attributes:
        root: the folder.
        limit: bytes of all packs in it together; None: as much as the disk has.
    """

    root: str
    limit: int | None = None
    _left: int = 0
    _pending: int = 0
    """Bytes that have room and are not written yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def packs(self) -> list[StoredBlocks]:
        """Return the packs of the cache that have blocks."""
        found = []
        for folder, origin in folders_of(self.root):
            if os.path.isfile(os.path.join(folder, NAME)):
                names, sizes = zip(*origin["files"], strict=True) if origin["files"] else ((), ())
                found.append(StoredBlocks(folder, names, BlockLayout(sizes)))
        return found

    def used(self) -> int:
        """Return the bytes of all blocks that are there, and of what is not evicted."""
        return sum(pack.here_bytes() for pack in self.packs()) + self.kept()

    def kept(self) -> int:
        """Return the bytes of all indexes and manifests, which are not evicted."""
        return sum(pack.other_bytes() for pack in self.packs())

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Evict what was not used for longest until there is room for so many bytes, which is theirs meanwhile.

        Raises:
            StorageError: nothing that is not in use is left.
        """
        until = time.monotonic() + ROOM_WAIT_S
        while not self._found_room(size, time.monotonic() > until):
            time.sleep(POLL_S)  # what others are about to write, or hold for a moment, can be evicted then
        try:
            yield
        finally:
            with self._lock:
                self._pending -= size

    def when_full(self, size: int, since: float) -> None:
        """Evict so many bytes, and some more, as the disk is full since then (`time.monotonic`).

        Raises:
            StorageError: it has been full for too long.
        """
        with self._lock:
            freed = self.evict(size + FULL_DISK_BYTES)
        if time.monotonic() - since > ROOM_WAIT_S:
            step = "free disk space, pass cache_dir= on another disk, or cache_bytes= with BlockShuffleSampler"
            raise StorageError(self.root, "the disk is full, and all of the cache is in use", step)
        if not freed:
            time.sleep(POLL_S)  # another thread has just made room, or holds for a moment what can be evicted then

    def _found_room(self, size: int, last: bool) -> bool:
        """Make room and keep it; return False if there is none now. Raise StorageError then if it is the last try."""
        with self._lock:
            if self.limit is not None and not self._take(size):
                over = self.used() + self._pending + size - self.limit
                if over > 0 and (freed := self.evict(over + self.limit // SHARE_EVICTED)) < over:
                    if not last:
                        return False
                    problem = f"may hold {size_text(self.limit)}, all of which is in use"
                    problem += f" ({size_text(freed)} was evicted)" if freed else ""
                    raise StorageError(self.root, problem, "pass a larger cache_bytes=")
                # other processes count on the same room
                self._left = max(0, (self.limit - self.used() - self._pending - size) // 4)
            self._pending += size
            return True

    def _take(self, size: int) -> bool:
        self._left -= size
        return self._left >= 0

    def evict(self, size: int) -> int:
        """Evict extents that nobody uses, the least recently used first; return the bytes that this freed."""
        with self._alone():
            found = []
            packs = self.packs()
            for number, pack in enumerate(packs):
                there = np.unique(pack.layout.extents[pack.present()])
                found += [
                    (used, number, e) for used, e in zip(pack.used_s()[there].tolist(), there.tolist(), strict=True)
                ]
            freed = 0
            for _, number, extent in sorted(found):
                if freed >= size:
                    break
                freed += packs[number].evict(extent)
            return freed

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from evicting meanwhile."""
        until = time.monotonic() + EVICT_WAIT_S  # the folder itself: the disk may be too full for a lock file
        while (lock := lock_folder(self.root, "")) is None:
            if time.monotonic() > until:
                raise StorageError(self.root, "another process has been evicting for a minute", "try again")
            time.sleep(POLL_S)
        try:
            yield
        finally:
            lock.close()


_caches: dict[str, Cache] = {}


def cache_at(root: str, limit: int | None) -> Cache:
    """Return the cache of this process in a folder; a new limit replaces the old one."""
    cache = _caches.setdefault(root, Cache(root))
    if limit is not None:
        cache.limit, cache._left = limit, 0
    return cache
