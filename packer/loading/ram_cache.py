"""``cache="ram"``: the whole pack is read ahead into the page cache, and kept there where the system allows it."""

from __future__ import annotations

import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.pack import Pack
from packer.paging import available_bytes, keep
from packer.text import size_text

STEP_BYTES = 32 * 1024**2


class RamCache:
    """Reads a pack's shards in the background, from their beginning to their end, as disks like it.

    The pages are locked where the limit on locked memory (``ulimit -l``) allows it; elsewhere they stay until
    the kernel needs them for something else. Ends with its owner.
    """

    def __init__(self, pack: Pack) -> None:
        """Raises UsageError where the pack does not fit into the memory that is free."""
        need, free = len(pack.region), available_bytes()
        if need > free:
            raise UsageError(
                pack.path, f"has {size_text(need)}, and {size_text(free)} of memory are free",
                'leave out cache="ram": the page cache keeps what fits',
            )  # fmt: skip
        stop = threading.Event()
        self._thread = threading.Thread(target=_read, args=(pack.region, stop), name="packer-ram", daemon=True)
        self._thread.start()
        # no join: the garbage collector may call it in that very thread, or where somebody holds a lock
        self.close = weakref.finalize(self, stop.set)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all is read; False where `timeout_s` seconds were not enough."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def _read(region: NDArray[np.uint8], stop: threading.Event) -> None:
    locked = True
    for start in range(0, len(region), STEP_BYTES):
        if stop.is_set():
            return
        size = min(STEP_BYTES, len(region) - start)
        locked = locked and keep(region, start, size)
        if not locked:
            region[start : start + size : 4096].max()  # touching a byte of each page brings it in
