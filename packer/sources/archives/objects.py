"""Reads the objects of a store as files of a source: one request a read, and reading ahead where reads follow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import TypeVar

from packer.errors import BadImage, UsageError
from packer.sources.archives.file_view import AT_REST
from packer.stores import clean_url, open_store
from packer.stores.base import ObjectChanged, Store

READS = 32
"""Requests in flight of a process; each takes some 10 to 100 ms, whatever its size."""
MOST_CALLS = 4 * READS
MOST_HELD_BYTES = 64 << 20
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
def opened(top: str) -> Store:
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
    return opened(clean_url(top)), name


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
            while waiting and (len(waiting) >= MOST_CALLS or held + size > MOST_HELD_BYTES):
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
