"""How the files of a remote pack are divided: into blocks, which are fetched, and extents, which are evicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Int64


class Layout:
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
