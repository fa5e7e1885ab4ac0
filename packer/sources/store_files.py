"""Reads the objects of a store as files of a source: one request a read, or held if they are small."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import TypeVar

from packer.errors import BadImage, UsageError
from packer.stores import clean_url, open_store
from packer.stores.store import NoObject, ObjectChanged, Store

AT_REST = "build again when the source no longer changes"
VIEWED_BYTES = 512


class FileView:
    """The bytes of an open file by index and slice, like `bytes`; reads only the requested parts.

    It does not map the file, because a read error or a truncation of a mapped file kills the process.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """Take what reads the file (size, start), and its size."""
        self._read_at, self._size = read, size
        self._at, self._part = 0, b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self._size)
            return self._read(start, max(start, stop))
        if not 0 <= key < self._size:
            raise IndexError(key)
        return self._read(key, key + 1)[0]

    def _read(self, start: int, stop: int) -> bytes:
        if start < self._at or stop > self._at + len(self._part):
            self._at, self._part = start, self._read_at(max(stop - start, VIEWED_BYTES), start)
        part = self._part[start - self._at : stop - self._at]
        if len(part) < stop - start:
            raise BadImage("", "changed while the source was being read", AT_REST)
        return part


READS = 32
"""Requests in flight of a process; each takes some 10 to 100 ms, whatever its size."""
MOST_CALLS = 4 * READS
MOST_WAITING_BYTES = 64 << 20
NEAR_BYTES = 256 * 1024
"""What begins this close behind the last read follows it: to read on is as quick as another request."""
FIRST_AHEAD_BYTES = 64 * 1024
MOST_AHEAD_BYTES = 16 << 20
REQUEST_BYTES = 4 << 20
PARTS = 4
BY_CONTAINER = (".windows.net", ".azure.com", ".amazonaws.com", ".cloudflarestorage.com")
"""Hosts of which the first folder of a path is a bucket or container."""
T = TypeVar("T")
R = TypeVar("R")


@lru_cache(maxsize=64)
def store_at(top: str) -> Store:
    """Return the store of a bucket, the same for the whole build."""
    return open_store(top)


def located(url: bytes | str) -> tuple[Store, str]:
    """Return the store of a URL, one for each bucket and process, and the name of the object in it.

    Raises:
        UsageError: The URL is none of a store.
    """
    scheme, _, rest = os.fsdecode(url).partition("://")
    host, _, name = rest.partition("/")
    if not host and not name:
        raise UsageError(url, "names no bucket", "give the URL of the folder that holds the images")
    top = f"{scheme}://{host}"
    if not host or host.endswith(BY_CONTAINER):
        first, _, name = name.partition("/")
        top = f"{top}/{first}"
    return store_at(clean_url(top)), name


def is_listed(url: str) -> bool:
    """Return whether the store of a URL can list its objects: a web server does not."""
    host = url.partition("://")[2].partition("/")[0]
    return not url.startswith(("http://", "https://")) or host.endswith(BY_CONTAINER)


class SourceObject:
    """An object of a store. Use it in one thread at a time."""

    __slots__ = ("_ahead", "_at", "_name", "_part", "_store", "etag", "size")

    def __init__(self, url: bytes, size: int = -1, etag: str = "", content: bytes = b"") -> None:
        """Take the URL, and the size and ETag as they were listed; with a negative size the store is asked for them.

        `content` are its first bytes, if they are known.

        Raises:
            NoObject: There is no such object.
            StorageError: The store cannot be reached.
        """
        self._store, self._name = located(url)
        if size < 0:
            found = self._store.size(self._name)
            size, etag = found.size, found.etag or ""
        self.size, self.etag = size, etag
        self._at, self._part = 0, content
        self._ahead = 0

    def read(self, size: int, start: int) -> bytes:
        """Return up to `size` bytes from `start`, fewer only at the end.

        Raises:
            BadImage: The object was replaced since it was listed.
            NoObject: It is gone.
            StorageError: The store cannot be reached.
        """
        stop = min(start + size, self.size)
        end = self._at + len(self._part)
        if self._at <= start and stop <= end:
            return self._part[start - self._at : stop - self._at]
        follows = bool(self._part) and self._at <= start <= end + max(NEAR_BYTES, self._ahead)
        begun = self._part[start - self._at :] if follows and start < end else b""
        self._ahead = min(max(2 * self._ahead, FIRST_AHEAD_BYTES), MOST_AHEAD_BYTES) if follows else 0
        first = start + len(begun)
        self._at, self._part = start, begun + self._get(first, min(self.size, max(stop, first + self._ahead)))
        return self._part[: stop - start]

    def _get(self, start: int, stop: int) -> bytes:
        def part(first: int) -> bytes:
            end = min(stop, first + REQUEST_BYTES)
            return bytes(memoryview(self._store.read(self._name, first, end, self.etag or None)))

        if stop <= start:
            return b""
        try:
            firsts = range(start, stop, REQUEST_BYTES)
            if len(firsts) == 1:
                return part(start)
            with ThreadPoolExecutor(PARTS) as pool:  # its own, as this may run in one of `submit`
                return b"".join(pool.map(part, firsts))
        except ObjectChanged:
            raise BadImage("", "changed while the source was being read", AT_REST) from None


_pool: ThreadPoolExecutor | None = None
_lock = Lock()


def submit(call: Callable[[T], R], item: T) -> Future[R]:
    """Run a request in a thread of this process, of which there are READS."""
    global _pool  # noqa: PLW0603 - threads are shared by all that reads
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(READS, "packer-source")
    return _pool.submit(call, item)


def at_once(call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield what `call` returns for each item, in order, with READS requests in flight."""
    for _, future in ahead_of(call, items, lambda item: 0):
        yield future.result()


def ahead_of(call: Callable[[T], R], items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[tuple[T, Future[R]]]:
    """Yield each item with its call, which was begun while MOST_CALLS or MOST_HELD_BYTES before it were not taken."""
    waiting: deque[tuple[T, int, Future[R]]] = deque()
    held = 0
    try:
        for item in items:
            size = size_of(item)
            while waiting and (len(waiting) >= MOST_CALLS or held + size > MOST_WAITING_BYTES):
                first, first_size, future = waiting.popleft()
                yield first, future
                held -= first_size
            waiting.append((item, size, submit(call, item)))
            held += size
        while waiting:
            first, _, future = waiting.popleft()
            yield first, future
    finally:
        for *_, future in waiting:
            future.cancel()


SMALL_BYTES = 256 * 1024
MOST_HELD_BYTES = 128 << 20
AHEAD = 64
NEAR = 8
"""A file at most so many behind the last one with its extension follows it: not every image has a label."""


class SmallFiles:
    """The small files of a store, read whole, ahead of those that ask for one after the other, and held."""

    def __init__(self, paths: Sequence[bytes], sizes: Sequence[int], read: Callable[[int], bytes]) -> None:
        """Take the paths in byte order, their sizes, and what reads the file of a number."""
        self._paths, self._sizes, self._read = paths, sizes, read
        self._alike: dict[bytes, list[int]] = {}
        """Extension -> the numbers of the small files that have it."""
        self._last: dict[bytes, int] = {}
        """Extension -> the place in `_alike` of the file that was opened last."""
        self._held: dict[int, Future[bytes]] = {}
        self._held_bytes = 0

    def content(self, number: int) -> bytes:
        """Return the bytes of a file; none if it is large, or cannot be read."""
        if self._sizes[number] > SMALL_BYTES:
            return b""
        extension = _extension(self._paths[number])
        if not self._alike:
            for other, name in enumerate(self._paths):
                if self._sizes[other] <= SMALL_BYTES:
                    self._alike.setdefault(_extension(name), []).append(other)
        alike = self._alike[extension]
        at = bisect_left(alike, number)
        last = self._last.get(extension)
        self._last[extension] = at
        follows = last is not None and 0 < at - last <= NEAR
        futures = [self._begin(other) for other in (alike[at : at + AHEAD] if follows else (number,))]
        try:
            return futures[0].result()
        except (BadImage, NoObject):  # whoever reads it says so
            return b""

    def _begin(self, number: int) -> Future[bytes]:
        if number in self._held:
            return self._held[number]
        future = self._held[number] = submit(self._read, number)
        self._held_bytes += self._sizes[number]
        while self._held_bytes > MOST_HELD_BYTES:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self._held_bytes -= self._sizes[oldest]
        return future


def _extension(path: bytes) -> bytes:
    return path[path.rfind(b".") :] if b"." in path else b""
