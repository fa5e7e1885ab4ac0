"""Reads whole packs into the page cache, and keeps them there (``cache="ram"``)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from packer.errors import PackerError, UsageError, size_text
from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.stores.layout import Layout
from packer.system import available_bytes
from packer.system.locked import Locked

if TYPE_CHECKING:
    from packer.format.remote import Held, Remote

STEP_BYTES = 32 * 1024**2


class RamCache:
    """Reads a pack's shards sequentially in the background.

    The pages are locked if the limit on locked memory (``ulimit -l``) allows it; else they stay until the kernel
    needs the memory. The thread ends with its owner, and unlocks them. What cannot be read is left out: whoever reads
    those records gets the error.

    Raises:
        UsageError: if the pack does not fit into the free memory.
    """

    def __init__(self, pack: Pack) -> None:
        need, free = sum(len(one.region) for one in pack.packs), available_bytes()
        if need > free:
            raise UsageError(
                pack.path, f"has {size_text(need)}, but only {size_text(free)} of memory is free",
                'leave out cache="ram": the page cache keeps what fits',
            )  # fmt: skip
        if any(one.remote is not None and not one.remote.fits() for one in pack.packs):
            raise UsageError("cache_bytes", f"is less than the {size_text(need)} of the pack", 'leave out cache="ram"')
        stop: SimpleQueue[None] = SimpleQueue()
        self._read = threading.Event()
        arguments = [(one.region, one.remote) for one in pack.packs], stop, self._read
        self._thread = threading.Thread(target=_keep, args=arguments, name="packer-ram", daemon=True)
        self._thread.start()
        # no lock and no join: the garbage collector may call this in the same thread, or while a lock is held
        self.close = weakref.finalize(self, stop.put, None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is read that can be; return False if it takes longer than `timeout_s`."""
        return self._read.wait(timeout_s)


class _Owners(Locked):
    """Counts the threads that keep each region locked: locks of memory do not add up.

    A forked child has neither the threads nor the locks of memory.
    """

    def _reset(self) -> None:
        super()._reset()
        self._counts: WeakKeyDictionary[Region, int] = WeakKeyDictionary()

    @contextmanager
    def including(self, regions: list[Region]) -> Iterator[None]:
        """Return a context in which the calling thread is one of them; unlock regions that nobody keeps after it."""
        with self.lock:
            for region in regions:
                self._counts[region] = self._counts.get(region, 0) + 1
        try:
            yield
        finally:
            with self.lock:
                for region in regions:
                    self._counts[region] -= 1
                    if not self._counts[region]:
                        region.unlock()


_owners = _Owners()


def _keep(packs: list[tuple[Region, Remote | None]], stop: SimpleQueue[None], done: threading.Event) -> None:
    held: list[Held] = []
    try:
        for _, remote in packs:
            if remote is not None:
                held.append(remote.all_pinned())
                _fetch_all(remote, stop)
        with _owners.including([region for region, _ in packs]):
            locked = True
            for region, _ in packs:
                for start in range(0, len(region), STEP_BYTES):
                    if not stop.empty():
                        break
                    locked = region.read(start, min(start + STEP_BYTES, len(region)), locked)
            done.set()
            stop.get()
    finally:
        done.set()  # an error must not leave anyone waiting
        for one in held:
            one.close()


def _fetch_all(remote: Remote, stop: SimpleQueue[None]) -> None:
    """Fetch a whole remote pack, up to the first error: whoever reads those records gets it."""
    step = max(1, STEP_BYTES // Layout.BLOCK_BYTES)
    blocks = np.arange(remote.blocks.layout.num_blocks)
    with suppress(PackerError):
        for start in range(0, len(blocks), step):
            if not stop.empty():
                break
            remote.announce(blocks[start : start + 2 * step])
            with remote.held(blocks[start : start + step]):
                pass
