"""Holds the small files of a store: labels, which are opened one after the other, and more than once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from packer.errors import BadImage
from packer.sources.archives.objects import submit
from packer.stores.base import NoObject

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
