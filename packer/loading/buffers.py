"""The memory of batches, used again as soon as nobody refers to it any more."""

from __future__ import annotations

import sys
import threading

import numpy as np
import torch
from numpy.typing import NDArray

Memory = NDArray[np.uint8]


def _references(arrays: list[Memory], number: int) -> int:
    return sys.getrefcount(arrays[number])


_FREE = _references([np.zeros(1, np.uint8)], 0)
"""What `_references` gives for an array that only its list knows."""


class BufferPool:
    """Buffers of one size, for batches that are built on the CPU.

    A fresh allocation of a large batch costs more than filling it (the kernel hands out zeroed pages one by one), and
    pinned memory is dearer still. A tensor over a buffer refers to it, and so does every view of that tensor:
    a buffer without references is free. A batch that the consumer keeps is therefore never overwritten; the
    pool grows instead.
    """

    def __init__(self, size: int, pinned: bool = False) -> None:
        """Args: bytes of each buffer; whether it is page-locked, so that copies to a GPU need no wait."""
        self.size = size
        self.pinned = pinned
        self._buffers: list[Memory] = []
        self._lock = threading.Lock()  # two iterations may go on at once, in two threads

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self) -> Memory:
        """A buffer that nobody refers to, uint8 (size,), its content undefined."""
        with self._lock:
            for number in range(len(self._buffers)):
                if _references(self._buffers, number) == _FREE:
                    return self._buffers[number]
            # torch aligns to 64 bytes; numpy only to 16
            memory = torch.empty(self.size, dtype=torch.uint8, device="cpu", pin_memory=self.pinned).numpy()
            self._buffers.append(memory)
            return memory

    def trim(self, count: int) -> None:
        """Give free buffers back to the system, as long as there are more than `count`: batches were kept once."""
        # the garbage collector may call it within `take`: waiting would be for ever, and the next call will do
        if self._lock.acquire(blocking=False):
            try:
                for number in reversed(range(len(self._buffers))):
                    if len(self._buffers) > count and _references(self._buffers, number) == _FREE:
                        del self._buffers[number]
            finally:
                self._lock.release()
