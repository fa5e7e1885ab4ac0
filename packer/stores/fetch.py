"""Threads that fetch the blocks of a remote pack: first those that somebody waits for, then announced ones in order.

Neighbors are fetched with one request. Blocks of runs of records that are announced for later fill up the requests of
those that are needed sooner, to aligned groups, so that what is left of a run are whole groups, too.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from packer.errors import PackerError, StorageError
from packer.model.annotation import Int64
from packer.stores.blocks import Blocks
from packer.stores.cache import Cache
from packer.stores.store import check_process
from packer.stores.waiting import check_ended, start, write_file
from packer.system import at_fork

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_THREADS = 64
"""Requests in flight."""
JOINED_BLOCKS = 4
"""Most blocks of one request."""
NOW, SOON, LATER = range(3)
FULL = (errno.ENOSPC, errno.EDQUOT)
IDLE_S = 5.0
OTHERS_S = 0.01
"""How often to look for blocks that another process fetches."""
GIVE_UP_S = 0.1


class Fetcher:
    """Fetches blocks. The packs of a process that have the same folder share one; its threads end when it is collected.

    Args:
        blocks: where they go.
        read: returns the bytes of (file, start, stop).
        space: makes room for what is written.
    """

    def __init__(self, blocks: Blocks, read: Callable[[int, int, int], Buffer], space: Cache) -> None:
        self.blocks = blocks
        self._work = _Work(blocks, read, space)
        weakref.finalize(self, self._work.close).atexit = False

    def announce(self, blocks: Int64, later: bool = False) -> None:
        """Fetch blocks in the background, in this order, after those of earlier calls; `later`: after all others."""
        if (absent := self.blocks.absent(blocks)) and not self._work.forked:
            self._work.request(absent, LATER if later else SOON)

    def is_busy(self) -> bool:
        """Return whether blocks are asked for that have not come."""
        with self._work._changed:  # threads take them from one to the other
            return any(self._work.queues) or bool(self._work.flying)

    def begin(self) -> object:
        """Begin to announce; return what `end` takes."""
        token = object()
        self._work.announcers[token] = None
        return token

    def end(self, token: object) -> None:
        """Drop what was announced and not begun, if nobody else announces. It never waits."""
        self._work.announcers.pop(token, None)
        self._work.stale = not self._work.announcers

    def need(self, blocks: Int64) -> None:
        """Return when blocks are there, before all that was only announced.

        Raises:
            DamagedPack, StorageError: if one cannot be fetched.
            UsageError: if one is missing in a forked process.
        """
        if absent := self.blocks.absent(blocks):
            check_process()
            self._work.wait(absent)

    def put(self, path: str, data: Buffer) -> None:
        """Write a whole file beside the blocks."""
        size = len(memoryview(data))
        with self._work.space.room(size):
            self._work.write(partial(write_file, path, data), size)

    def rewrite(self, file: int, start: int, data: Buffer) -> None:
        """Write bytes of (held) blocks that came wrong."""
        self._work.write(partial(self.blocks.write, file, start, data), len(memoryview(data)))


class _Work:
    """What threads need; it does not keep the Fetcher alive."""

    def __init__(self, blocks: Blocks, read: Callable[[int, int, int], Buffer], space: Cache) -> None:
        self.blocks, self._read, self.space = blocks, read, space
        self._pid = os.getpid()
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """Begin without threads: in a new object, and in a forked child."""
        self.forked = self._pid != os.getpid()
        self._changed = threading.Condition(threading.Lock())
        """Guards all of this; notified of what waiters wait for."""
        self._given = threading.Condition(self._changed._lock)  # type: ignore[attr-defined]
        """Notified of what threads wait for."""
        self.queues: tuple[dict[int, None], ...] = ({}, {}, {})
        """Of blocks that somebody waits for (NOW), that are needed next (SOON), and of runs of records (LATER)."""
        self.announcers: dict[object, None] = {}
        self.stale = False
        """Whether what was announced is no longer wanted."""
        self.flying: set[int] = set()
        self._failed: dict[int, tuple[int, PackerError]] = {}
        self._failures = 0
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self.closed = False

    def request(self, blocks: Iterable[int], when: int) -> None:
        """Put blocks that are not there into a queue, unless they are in an earlier one."""
        with self._changed:
            self._request(blocks, when)

    def _request(self, blocks: Iterable[int], when: int) -> None:
        for block in blocks:
            if block not in self.flying and block not in self.queues[NOW] and block not in self.queues[min(when, SOON)]:
                for queue in self.queues[when + 1 :]:
                    queue.pop(block, None)
                self.queues[when][block] = None
        waiting = -(-sum(map(len, self.queues)) // (JOINED_BLOCKS if when else 1))
        for _ in range(min(waiting - self._idle, MOST_THREADS - len(self._threads))):
            if self.closed:
                break
            try:
                self._threads.add(start(self._run))
            except RuntimeError as error:  # no more threads, or the interpreter ends
                if not self._threads:
                    raise StorageError("store", f"cannot be read: {error}", "allow more threads") from None
                break
        self._given.notify(waiting)

    def wait(self, blocks: list[int]) -> None:
        """Return when blocks are there."""
        with self._changed:
            before = self._failures
            while blocks := [block for block in blocks if not self.blocks.states[block]]:
                for block in blocks:
                    number, error = self._failed.get(block, (0, None))
                    if error is not None and number > before:
                        raise error
                check_ended()
                if self.closed:
                    raise StorageError("store", "the program ends")
                self._request(blocks, NOW)
                ours = self.flying.issuperset(blocks)
                self._changed.wait(GIVE_UP_S if ours else OTHERS_S)

    def _next(self) -> list[int]:
        """Return the neighbors to fetch next, out of the queues; none if there is nothing to do."""
        if self.stale:
            self.queues[SOON].clear()
            self.queues[LATER].clear()
            self.stale = False
        for queue in self.queues:
            while queue:
                found = self._with_neighbors(next(iter(queue)), queue)
                for one in found:
                    for other in self.queues:
                        other.pop(one, None)
                if not all(self.blocks.states[found[0] : found[-1] + 1]) and not self.flying.intersection(found):
                    self.flying.update(found)
                    return found
        return []

    def _with_neighbors(self, block: int, queue: dict[int, None]) -> list[int]:
        """Return a block and those beside it in the same file that are in its queue, or in its group of LATER."""
        later = self.queues[LATER]
        begin, end = self.blocks.layout.first_blocks[(file := int(self.blocks.layout.files[block])) : file + 2].tolist()
        group = begin + (block - begin) // JOINED_BLOCKS * JOINED_BLOCKS

        def joins(other: int) -> bool:
            if later and group <= other < group + JOINED_BLOCKS and other in later:
                return bool(other < end)
            return queue is not later and other in queue and begin <= other < end

        first, stop = block, block + 1
        while stop - first < JOINED_BLOCKS and joins(stop):
            stop += 1
        while stop - first < JOINED_BLOCKS and joins(first - 1):
            first -= 1
        return list(range(first, stop))

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while not (found := [] if self.closed else self._next()):
                    self._idle += 1
                    asked = self._given.wait(IDLE_S) and not self.closed
                    self._idle -= 1
                    if not asked and (self.closed or not any(self.queues)):
                        self._threads.discard(me)
                        return
            failure: PackerError | None = None
            try:
                self._fetch(found)
            except PackerError as error:
                failure = error
            except BaseException as error:
                failure = StorageError("store", f"cannot be read: {error!r}")
            with self._changed:
                self.flying.difference_update(found)
                if failure is not None:
                    self._failures += 1
                    self._failed.update(dict.fromkeys(found, (self._failures, failure)))
                elif self._failed:
                    for block in found:
                        self._failed.pop(block, None)
                self._changed.notify_all()

    def _fetch(self, blocks: list[int]) -> None:
        with self.blocks.claimed(blocks[0], len(blocks)) as claimed:
            for first, count in claimed:
                if self.closed:
                    return
                file, start, stop = self.blocks.layout.span(first, count)
                data = self._read(file, start, stop)
                with self.space.room(stop - start):
                    self.write(partial(self.blocks.fill, first, count, data), stop - start)
        if not claimed:  # another process fetches them: whoever waits for them would ask again at once
            time.sleep(OTHERS_S)

    def write(self, act: Callable[[], None], size: int) -> None:
        """Write bytes of blocks; if the disk is full, make room."""
        since = time.monotonic()
        while not self.closed:
            try:
                act()
                return
            except StorageError:
                raise
            except OSError as error:
                if error.errno not in FULL:
                    problem = f"cannot be written: {error.strerror or error}"
                    raise StorageError(self.blocks.place, problem, "check the disk, or pass cache_dir=") from None
            self.space.when_full(size, since)  # another thread may take it first

    def close(self) -> None:
        """Let the threads end. It takes no lock: the garbage collector may call it in one that holds it."""
        self.closed = True
        if self._changed._lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                for queue in self.queues:
                    queue.clear()
                self._given.notify_all()
                self._changed.notify_all()
            finally:
                self._changed._lock.release()  # type: ignore[attr-defined]


_all: weakref.WeakSet[_Work] = weakref.WeakSet()


def _in_child() -> None:
    for work in list(_all):
        work.reset()


at_fork(after_in_child=_in_child)


@atexit.register
def _end() -> None:
    """End the threads of iterations that were left (`packer.stores.waiting` waits for them)."""
    for work in list(_all):
        work.close()
