"""The bytes of an open file by index, for parsers that need few of them."""

from __future__ import annotations

from collections.abc import Callable

from packer.errors import BadImage

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
