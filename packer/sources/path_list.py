"""Paths of many files as one run of bytes, mapped from a file if they are many: objects take four times the memory."""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from packer.system.spill import Spill

AT_ONCE = 4096


class PathList(Sequence[bytes]):
    """Paths in ascending order."""

    def __init__(self, data: bytes | mmap.mmap, starts: bytes | mmap.mmap) -> None:
        """Read what a `PathWriter` has written.

        Args:
            data: The paths, a zero byte behind each.
            starts: Where each begins, and the end of the last one, int64.
        """
        self._data = data
        self._starts = memoryview(starts).cast("q")

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> PathList:
        """Return these paths, which are in ascending order."""
        writer = PathWriter()
        for path in paths:
            writer.append(path)
        return writer.finish()

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        starts = self._starts
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return self._data[starts[start] : starts[max(start, stop)]].split(b"\0")[:-1]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[starts[index] : starts[index + 1] - 1]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), AT_ONCE):
            yield from self[start : start + AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[PathList], tuple[bytes, bytes]]:
        return PathList, (self._data[:], self._starts.tobytes())

    def __contains__(self, path: Any) -> bool:
        place = bisect_left(self, path)
        return place < len(self) and self[place] == path


class PathWriter:
    """Collects the paths of a `PathList`, in their order."""

    def __init__(self) -> None:
        self._data, self._starts = Spill(), Spill()
        self._starts.append(bytes(8))
        self._end = 0
        self._waiting: list[bytes] = []

    def append(self, path: bytes) -> None:
        """Append a path, which has no zero byte."""
        self.extend((path,))

    def extend(self, paths: Iterable[bytes]) -> None:
        """Append paths."""
        self._waiting += paths
        if len(self._waiting) >= AT_ONCE:
            self._flush()

    def join(self, more: PathList) -> None:
        """Append paths."""
        import numpy as np

        self._flush()
        starts = np.frombuffer(more._starts, np.int64)
        self._data.append(more._data[: starts[-1]])
        self._starts.append((starts[1:] + self._end).tobytes())
        self._end += int(starts[-1])

    def _flush(self) -> None:
        import numpy as np  # a command that fails early does not wait for it

        if waiting := self._waiting:
            self._data.append(b"\0".join(waiting) + b"\0")
            ends = np.cumsum(np.fromiter(map(len, waiting), np.int64, len(waiting)) + 1) + self._end
            self._starts.append(ends.tobytes())
            self._end, self._waiting = int(ends[-1]), []

    def finish(self) -> PathList:
        """Return all paths."""
        self._flush()
        return PathList(self._data.finish(), self._starts.finish())
