"""What is there of the blocks of a remote pack, and what this process uses of it; also in anonymous memory."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Int64
from packer.system import at_fork


class BlockLayout:
    """Which blocks and extents the files of a pack have; both are numbered from 0 through all files.

    Args:
        sizes: bytes of each file.
    """

    BLOCK_BYTES = 1 << 20
    EXTENT_BLOCKS = 8
    """Few, because a shuffle of runs reads a little of every shard, and what it reads cannot be evicted."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        counts = np.array([-(-size // self.BLOCK_BYTES) for size in sizes], np.int64)
        extents = -(-counts // self.EXTENT_BLOCKS)
        self.first_blocks: Int64 = np.concatenate([[0], np.cumsum(counts)])
        """The first block of each file, and the end."""
        self.files: NDArray[np.int32] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        """The file of each block."""
        inside = np.arange(len(self.files)) - self.first_blocks[self.files]
        ends = np.array(self.sizes, np.int64)[self.files]
        self.block_sizes: Int64 = np.minimum(self.BLOCK_BYTES, ends - inside * self.BLOCK_BYTES)
        """The bytes of each block; the last one of a file may be smaller."""
        first_extents = (np.cumsum(extents) - extents)[self.files]
        self.extents: NDArray[np.int32] = (first_extents + inside // self.EXTENT_BLOCKS).astype(np.int32)
        """The extent of each block."""
        self.num_blocks, self.num_extents = len(self.files), int(extents.sum())

    @cached_property
    def first_of_extent(self) -> Int64:
        """The first block of each extent, and the end."""
        return np.searchsorted(self.extents, np.arange(self.num_extents + 1))

    def span(self, first: int, count: int) -> tuple[int, int, int]:
        """Return (file, start, stop) of blocks of one file, in bytes."""
        file = int(self.files[first])
        start = (first - int(self.first_blocks[file])) * self.BLOCK_BYTES
        return file, start, min(start + count * self.BLOCK_BYTES, self.sizes[file])


def runs(numbers: Any) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of each run of neighbors in increasing numbers."""
    first = count = -1
    for number in numbers:
        if number == first + count and count > 0:
            count += 1
        else:
            if count > 0:
                yield first, count
            first, count = int(number), 1
    if count > 0:
        yield first, count


class Blocks:
    """What is there, and what this process uses of it. All threads and all packs opened here share one.

    Attributes:
        states: one byte for each block, 1 if it is there.
        generations: one number for each extent; another one says that it was evicted in between.
        place: where they are, for messages.
    """

    place = "memory"
    states: NDArray[np.uint8]
    generations: NDArray[np.uint64]

    def __init__(self, layout: BlockLayout) -> None:
        self.layout = layout
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Begin without anything in use: in a new object, and in a forked child."""
        self._lock = threading.Lock()
        self._pins = np.zeros(self.layout.num_extents, np.int32)
        self._all_pins = 0
        self.period = 0
        """Counts how often all extents were pinned after a time when they were not."""
        self._dropped: deque[tuple[int, Int64 | None]] = deque()
        self._pid = os.getpid()

    # -- what is in use is not evicted

    def pin(self, extents: Int64 | None = None) -> int:
        """Keep extents (None: all) from being evicted; each number must stand there once. Return what `unpin` takes."""
        with self._lock:
            if extents is None:
                if not self._all_pins:
                    self._take(np.flatnonzero(self._pins == 0))
                    self.period += 1
                self._all_pins += 1
            else:
                if not self._all_pins:
                    self._take(extents[self._pins[extents] == 0])
                self._pins[extents] += 1
        self._release()
        return self._pid

    def pin_if_all(self, period: int | None = None) -> bool:
        """Pin all extents if they are pinned already, and still (without a break) since a period (None: any)."""
        with self._lock:
            pinned = self._all_pins > 0 and period in (None, self.period)
            self._all_pins += pinned
        self._release()
        return pinned

    def unpin(self, pid: int, extents: Int64 | None = None) -> None:
        """Undo a `pin`. It never waits: the garbage collector may call it while this thread holds the lock."""
        self._dropped.append((pid, extents))
        self._release()

    def _release(self) -> None:
        """Undo what was dropped. Whoever holds the lock at this moment does it afterwards."""
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                while self._dropped:
                    self._undo(*self._dropped.popleft())
            finally:
                self._lock.release()

    def _undo(self, pid: int, extents: Int64 | None) -> None:
        if pid != self._pid:
            return  # pinned before a fork, by the parent
        if extents is None:
            self._all_pins -= 1
            if not self._all_pins:
                self._give(np.flatnonzero(self._pins == 0))
        else:
            self._pins[extents] -= 1
            if not self._all_pins:
                self._give(extents[self._pins[extents] == 0])

    def _take(self, extents: Int64) -> None:
        """Lock extents, shared, for this process."""

    def _give(self, extents: Int64) -> None:
        """Release them."""

    # -- blocks

    def absent(self, blocks: Int64) -> list[int]:
        """Return which of these blocks are not there."""
        found: list[int] = blocks[self.states[blocks] == 0].tolist()
        return found

    @contextmanager
    def claimed(self, first: int, count: int) -> Iterator[list[tuple[int, int]]]:
        """Claim the right to fetch neighboring blocks; yield runs (first, count) of those that are absent and claimed.

        The others are there, or another process fetches them.
        """
        yield list(runs(self.absent(np.arange(first, first + count))))

    def fill(self, first: int, count: int, data: Any) -> None:
        """Write blocks that are claimed, and say that they are there. Raise OSError on failure."""
        file, start, _ = self.layout.span(first, count)
        self.write(file, start, data)
        self._mark(first, count)

    def write(self, file: int, start: int, data: Any) -> None:
        """Write bytes of a file. Raise OSError on failure."""
        raise NotImplementedError

    def _mark(self, first: int, count: int) -> None:
        raise NotImplementedError

    def is_current(self) -> bool:
        """Return whether what was opened is still what others open."""
        return True


class MemoryBlocks(Blocks):
    """Blocks in anonymous memory, which forked children share; nothing is ever evicted.

    Args:
        layout: the blocks of the files.
        starts: where each file begins in the memory.
    """

    def __init__(self, layout: BlockLayout, starts: Sequence[int]) -> None:
        super().__init__(layout)
        self._starts = list(starts)
        end = self._starts[-1] + layout.sizes[-1] if layout.sizes else 0
        self._memory = memoryview(mmap.mmap(-1, max(1, end)))
        self.content = np.frombuffer(self._memory.toreadonly(), np.uint8)
        """All bytes, read-only."""
        self.states = np.frombuffer(mmap.mmap(-1, max(1, layout.num_blocks)), np.uint8)[: layout.num_blocks]
        self.generations = np.zeros(layout.num_extents, np.uint64)

    def write(self, file: int, start: int, data: Any) -> None:
        """Write bytes of a file."""
        start += self._starts[file]
        view = memoryview(data).cast("B")
        self._memory[start : start + len(view)] = view

    def _mark(self, first: int, count: int) -> None:
        self.states[first : first + count] = 1


_all: weakref.WeakSet[Blocks] = weakref.WeakSet()


def _in_child() -> None:
    for blocks in list(_all):
        blocks._reset()


at_fork(after_in_child=_in_child)
