"""Reads from a cold disk what the next batches need: the loader knows its order, the kernel does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from packer.format.pack import Pack
from packer.types import Int64

AHEAD_BYTES = 64 * 1024**2
"""Far enough that a disk has many requests at once to sort, little enough to stay in any page cache."""
LEAD_BATCHES = 4
WARM = 0.98


def announced(batches: Iterable[Int64], pack: Pack) -> Iterator[Int64]:
    """The same record numbers; those that come are asked of the disk AHEAD_BYTES before they are handed out.

    Costs nothing where the pack is in the page cache already: that is looked at once, at the start.
    """
    if pack.region.share_in_memory(pack.offsets) >= WARM:
        yield from batches
        return
    source = iter(batches)
    waiting: deque[tuple[Int64, int]] = deque()
    ahead = 0
    while True:
        # the lead grows by a few batches with each that is handed out: the first one does not wait for it
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
