"""Every record of a shard against the checksum that its index has."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from crc32c import crc32c

from packer.errors import DamagedPack
from packer.format.columns import column
from packer.format.extents import lies_outside, overlapping
from packer.format.index import read_index
from packer.system import READ_FLAGS, read_at

WINDOW_BYTES = 1 << 20
ALTERED = "does not match its checksum"
OVERLAPS = "lies where another record lies"


def require_intact(container: str, index: str) -> None:
    """Raise DamagedPack where a record of a shard is not as its index has it."""
    for key, problem in bad_records(container, read_index(index)):
        raise DamagedPack(container, f"record {key} {problem}", "check the disk and the memory of this machine")


def bad_records(container: str, table: Any) -> Iterator[tuple[str, str]]:
    """(key, problem) of every record of a shard whose bytes are not as the index `table` has them."""
    keys: Any = column(table, "key")
    for row, problem in enumerate(record_problems(container, table)):
        if problem is not None:
            yield text_of(keys[row]), problem


def record_problems(container: str, table: Any, among: range | None = None) -> Iterator[str | None]:
    """What is wrong with each row (`among` these) of the index `table`, None where its bytes match their checksum.

    The container is read, never mapped: a file that is cut while it is checked, or a disk that fails, is a problem of
    some records and not the end of the process.
    """
    offsets, sizes, crcs = (np.asarray(column(table, name)) for name in ("offset", "size", "crc32c"))
    with Window(container) as window:
        outside = lies_outside(offsets, sizes, window.file_bytes)
        overlaps = overlapping(offsets, sizes, ~outside)
        refused = outside | overlaps
        part = slice(0, len(offsets)) if among is None else slice(among.start, among.stop)
        numbers = (values[part].tolist() for values in (offsets, sizes, crcs, refused, outside))
        # this loop takes most of the time where images are small: no call but those of the checksum
        start, stop, held, checksum_of = 0, 0, memoryview(b""), crc32c
        for key, offset, size, checksum, is_refused, is_outside in zip(texts(column(table, "key")[part]), *numbers):  # noqa: B905
            if is_refused:
                yield f"lies outside of its file ({size} bytes at {offset})" if is_outside else OVERLAPS
                continue
            if offset < start or offset + size > stop:
                try:
                    start, held = window.holding(offset, size)
                except OSError as error:
                    yield f"cannot be read: {error.strerror or error}"
                    continue
                stop = start + len(held)
            data = held[offset - start : offset - start + size]
            yield None if checksum_of(data, checksum_of(key)) == checksum and len(data) == size else ALTERED


class Window:
    """Reads a file a window at a time: records that lie one behind another cost one read for many."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._start = self._stop = 0
        self._data = memoryview(b"")
        self._descriptor: int | None = None
        self.file_bytes = 0

    def __enter__(self) -> Window:
        try:
            self._descriptor = os.open(self._path, READ_FLAGS)
            self.file_bytes = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def holding(self, offset: int, size: int) -> tuple[int, memoryview]:
        """Where a window begins that holds these bytes, and its bytes; fewer at the end of the file. Raises OSError."""
        if not self._start <= offset <= offset + size <= self._stop:
            ahead = WINDOW_BYTES if offset >= self._start else 0  # jumping about: no more than is asked for
            try:
                self._read(offset, max(size, ahead))
            except OSError:
                self._read(offset, size)  # what lies ahead may be what cannot be read
        return self._start, self._data

    def bytes(self, offset: int, size: int) -> memoryview:
        """These bytes; fewer at the end of the file. Raises OSError."""
        start, data = self.holding(offset, size)
        return data[offset - start : offset - start + size]

    def _read(self, offset: int, size: int) -> None:
        self._start = self._stop = 0
        if self._descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        data = read_at(self._descriptor, size, offset)
        self._data, self._start, self._stop = memoryview(data), offset, offset + len(data)


def texts(rows: Any) -> list[bytes]:
    """The rows of a column of text or bytes."""
    data = rows.flat().tobytes()
    first = int(rows.offsets[0])
    bounds = (rows.offsets - first).tolist()
    return [data[a:b] for a, b in pairwise(bounds)]


def text_of(key: object) -> str:
    """A key for messages."""
    return bytes(key).decode("ascii", "backslashreplace")  # type: ignore[call-overload, no-any-return]
