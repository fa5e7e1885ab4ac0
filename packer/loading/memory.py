"""Where batches lie on the CPU: memory that is used again once nothing refers to it, or that two processes share."""

from __future__ import annotations

import sys

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from packer.system.locked import Locked

RECYCLED_BYTES = 1 << 20
"""Below this, the allocator itself has memory at hand."""
ALIGNED = 64
"""Bytes: what torch aligns its own memory to."""

Memory = NDArray[np.uint8]


def _references(arrays: list[Memory], number: int) -> int:
    return sys.getrefcount(arrays[number])


_FREE = _references([np.zeros(1, np.uint8)], 0)
"""The result of `_references` for an array that only its list refers to."""


class BufferPool(Locked):
    """Buffers of one size, for batches on the CPU.

    Allocating a large batch takes longer than filling it, because the kernel zeroes each page, and pinned memory
    takes even longer. A tensor over a buffer refers to it, and so does every view of that tensor: a buffer without
    references is free. A batch that the consumer keeps is therefore never overwritten; the pool grows instead.

    Args:
        size: bytes of each buffer.
        pinned: whether they are page-locked, for asynchronous copies to a GPU.
    """

    def __init__(self, size: int, pinned: bool = False) -> None:
        super().__init__()  # two iterations may run at once, in two threads
        self.size = size
        self.pinned = pinned
        self._buffers: list[Memory] = []

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self) -> Memory:
        """Return a free buffer, uint8 (size,), with undefined content."""
        with self.lock:
            for number in range(len(self._buffers)):
                if _references(self._buffers, number) == _FREE:
                    return self._aligned(number)
            if self.pinned:
                memory = torch.empty(self.size, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
            else:  # unlike torch, numpy asks for huge pages, of which the kernel zeroes 2 MB at once
                memory = np.empty(self.size + ALIGNED, np.uint8)
            self._buffers.append(memory)
            return self._aligned(len(self._buffers) - 1)

    def _aligned(self, number: int) -> Memory:
        memory = self._buffers[number]  # numpy aligns to 16 bytes only
        start = -memory.ctypes.data % ALIGNED
        return memory[start : start + self.size]

    def trim(self, count: int, spare: int = 0) -> None:
        """Release free buffers but `spare`, while there are more than `count`, after the consumer has kept batches."""
        # the garbage collector may call this within `take`, so it must not wait; the next call will release them
        if (lock := self.lock).acquire(blocking=False):
            try:
                for number in reversed(range(len(self._buffers))):
                    if len(self._buffers) <= count or _references(self._buffers, number) != _FREE:
                        continue
                    if spare:
                        spare -= 1
                    else:
                        del self._buffers[number]
            finally:
                lock.release()


class BatchMemory:
    """Memory for the batches of a dataset, which come in any size."""

    def __init__(self) -> None:
        self._pool = BufferPool(0)

    def take(self, size: int) -> torch.Tensor:
        """Return memory of undefined content that nothing else refers to, uint8 (size,).

        The memory of a batch that is gone is used again. One more free buffer is kept, for consumers that drop a batch
        when they have the next one.
        """
        pool = self._pool
        if size < max(RECYCLED_BYTES, pool.size // 2):  # a small batch that is kept must not hold a large buffer
            return torch.from_numpy(np.empty(size, np.uint8))
        if size > pool.size:
            pool = self._pool = BufferPool(size)
        memory = pool.take()
        pool.trim(0, spare=1)
        return torch.from_numpy(memory[:size])


def is_in_worker() -> bool:
    """Return whether this is a worker process of a torch DataLoader."""
    return get_worker_info() is not None


def shared_memory(size: int) -> torch.Tensor:
    """Return memory of undefined content that can be sent to another process without a copy, uint8 (size,)."""
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    if not size:
        return empty
    storage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]  # as default_collate
    return empty.set_(storage, 0, (size,), (1,))
