"""Where batches lie on the CPU: memory that is used again once nothing refers to it, or that two processes share."""

from __future__ import annotations

import sys
import weakref
from functools import cache
from typing import Any

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


class SharedPool:
    """Shared memory for the batches of a worker, used again when the process that received one has dropped it.

    New pages of shared memory take three times as long as filling them. A buffer is free when nothing in this process
    refers to it, and it is not with another process: `sent` and `received` note that in memory that both have.
    """

    MOST = 64

    def __init__(self) -> None:
        self._away = shared_memory(self.MOST).zero_()
        self._buffers: list[torch.Tensor] = []
        self._arrays: list[Memory] = []
        """The same, which what `take` returns refers to."""

    def take(self, size: int) -> torch.Tensor:
        """Return memory of undefined content, uint8 (size,)."""
        if size < RECYCLED_BYTES:
            return shared_memory(size)
        away = self._away.tolist()
        for number in range(len(self._arrays)):
            if not away[number] and _references(self._arrays, number) == _FREE:
                if len(self._arrays[number]) < size or len(self._arrays[number]) > 2 * size:
                    self._buffers[number] = shared_memory(size)
                    self._arrays[number] = self._buffers[number].numpy()
                return torch.from_numpy(self._arrays[number][:size])
        memory = shared_memory(size)
        if len(self._buffers) == self.MOST:
            return memory
        self._buffers.append(memory)
        self._arrays.append(memory.numpy())
        return torch.from_numpy(self._arrays[-1])

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the buffer that a tensor is over; None if it is over other memory."""
        start = tensor.untyped_storage().data_ptr()
        return next((number for number, buffer in enumerate(self._buffers) if buffer.data_ptr() == start), None)

    def sent(self, tensor: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Note that a tensor over buffer `number` is sent, and return the arguments of `received`."""
        self._away[number] = 1
        return _like(tensor, self._buffers[number]), self._away, number


def _like(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return a tensor as `tensor` is over its own memory, over another of the same content, uint8 (size,)."""
    whole = memory[: len(memory) // tensor.itemsize * tensor.itemsize].view(tensor.dtype)
    return torch.as_strided(whole, tensor.shape, tensor.stride(), tensor.storage_offset())


class SentTensor(torch.Tensor):
    """A tensor over memory of this worker's pool: a plain one where it is received, and after any operation."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = self.as_subclass(torch.Tensor)
        number = shared_pool().number_of(plain)
        return (_as_it_is, (plain,)) if number is None else (received, shared_pool().sent(plain, number))


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def received(tensor: torch.Tensor, away: torch.Tensor, number: int) -> torch.Tensor:
    """Return a tensor that the pool of another process has sent, and note there when nothing refers to it any more."""
    # over an array, to which every view refers
    memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()
    weakref.finalize(memory, away.__setitem__, number, 0)
    return _like(tensor, torch.from_numpy(memory))


@cache
def shared_pool() -> SharedPool:
    """Return the pool of this worker."""
    return SharedPool()


def shared_memory(size: int) -> torch.Tensor:
    """Return memory of undefined content that can be sent to another process without a copy, uint8 (size,)."""
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    if not size:
        return empty
    storage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]  # as default_collate
    return empty.set_(storage, 0, (size,), (1,))
