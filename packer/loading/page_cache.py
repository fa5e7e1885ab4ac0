"""Reads a pack into the page cache: the records of the next batches, or the whole pack (``cache="ram"``).

The kernel cannot prefetch these by itself, because it does not know the order.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from packer.errors import UsageError, size_text
from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.system import available_bytes
from packer.types import Int64

if TYPE_CHECKING:
    from packer.format.remote import Remote

AHEAD_BYTES = 64 * 1024**2
"""Enough for a disk to sort many requests at once, little enough to stay in any page cache."""
LEAD_BATCHES = 4
WARM = 0.98
STEP_BYTES = 32 * 1024**2


def announced(batches: Iterable[Int64], pack: Pack) -> Iterator[Int64]:
    """Yield the same record numbers, requesting their bytes from the disk AHEAD_BYTES in advance.

    Do nothing if the pack is in the page cache already, which is checked once, at the start.
    """
    if pack.remote is not None:
        yield from _fetched(batches, pack, pack.remote)
        return
    if pack.region.share_in_memory(pack.offsets) >= WARM:
        yield from batches
        return
    source = iter(batches)
    waiting: deque[tuple[Int64, int]] = deque()
    ahead = 0
    while True:
        # the lead grows by a few batches with each batch, so that the first one does not wait
        for _ in range(LEAD_BATCHES):
            if (waiting and ahead > AHEAD_BYTES) or (records := next(source, None)) is None:
                break
            sizes = pack.sizes[records]
            pack.region.fetch(pack.offsets[records], sizes)
            waiting.append((records, int(sizes.sum())))
            ahead += waiting[-1][1]
        if not waiting:
            return
        following, size = waiting.popleft()
        ahead -= size
        yield following


def _fetched(batches: Iterable[Int64], pack: Pack, remote: Remote) -> Iterator[Int64]:
    """Yield the same record numbers, asking the store for their blocks in advance."""
    source = iter(batches)
    waiting: deque[tuple[Int64, int]] = deque()
    ahead = 0
    pid = remote.blocks.pin()
    try:
        while True:
            for _ in range(LEAD_BATCHES):
                if (waiting and ahead > AHEAD_BYTES) or (records := next(source, None)) is None:
                    break
                sizes = pack.sizes[records]
                remote.announce(remote.blocks_of(pack.offsets[records], sizes))
                waiting.append((records, int(sizes.sum())))
                ahead += waiting[-1][1]
            if not waiting:
                return
            following, size = waiting.popleft()
            ahead -= size
            yield following
    finally:
        remote.blocks.unpin(pid)


class RamCache:
    """Reads a pack's shards sequentially in the background.

    The pages are locked if the limit on locked memory (``ulimit -l``) allows it; else they stay until the kernel
    needs the memory. The thread ends with its owner, and unlocks them.

    Raises:
        UsageError: if the pack does not fit into the free memory.
    """

    def __init__(self, pack: Pack) -> None:
        need, free = len(pack.region), available_bytes()
        if need > free:
            raise UsageError(
                pack.path, f"has {size_text(need)}, but only {size_text(free)} of memory is free",
                'leave out cache="ram": the page cache keeps what fits',
            )  # fmt: skip
        stop: SimpleQueue[None] = SimpleQueue()
        self._read = threading.Event()
        arguments = pack.region, stop, self._read
        self._thread = threading.Thread(target=_keep, args=arguments, name="packer-ram", daemon=True)
        self._thread.start()
        # no lock and no join: the garbage collector may call this in the same thread, or while a lock is held
        self.close = weakref.finalize(self, stop.put, None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is read; return False if it takes longer than `timeout_s`."""
        return self._read.wait(timeout_s)


_owners: WeakKeyDictionary[Region, int] = WeakKeyDictionary()
"""Number of threads that keep each region locked: locks of memory do not add up."""
_lock = threading.Lock()


def _keep(region: Region, stop: SimpleQueue[None], done: threading.Event) -> None:
    with _lock:
        _owners[region] = _owners.get(region, 0) + 1
    locked = True
    for start in range(0, len(region), STEP_BYTES):
        if not stop.empty():
            break
        locked = region.read(start, min(start + STEP_BYTES, len(region)), locked)
    done.set()
    stop.get()
    with _lock:
        _owners[region] -= 1
        if not _owners[region]:
            region.unlock()
