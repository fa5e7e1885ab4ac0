"""Where batches lie on the CPU: memory that is used again once nothing refers to it, or that two processes share."""

from __future__ import annotations

import os
import sys
import weakref
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from packer.system import at_fork
from packer.system.locks import Locked

RECYCLED_BYTES = 1 << 20
"""Below this, the allocator itself has memory at hand."""
ALIGNED = 64
"""Bytes: what torch aligns its own memory to."""

Memory = NDArray[np.uint8]


def _references(arrays: list[Memory] | dict[int, Memory], number: int) -> int:
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


class SharedPool(Locked):
    """Shared memory for the batches of a worker, used again when the process that received one has dropped it.

    New pages of shared memory take three times as long as filling them. A buffer is free when nothing in this process
    refers to it, and it is not with another process: `sent` and `received` note that in memory that both have.
    """

    MOST = 64
    SPARE = 3
    """Free buffers that are kept: as many as a consumer drops at once, that has fallen behind."""

    def __init__(self) -> None:
        super().__init__()  # a thread sends the batches that another one makes
        self._states = shared_memory(self.MOST).zero_()
        self._state = self._states.numpy()  # autograd's modes do not matter to an array
        self._buffers: dict[int, torch.Tensor] = {}
        self._arrays: dict[int, Memory] = {}
        """The same, which what `take` returns refers to."""

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self, size: int) -> torch.Tensor:
        """Return memory of undefined content, uint8 (size,)."""
        if size < RECYCLED_BYTES:
            return shared_memory(size)
        with self.lock:
            free = self._free()
            number = next((n for n in free if size <= len(self._arrays[n]) <= 2 * size), None)
            spare = [n for n in free if n != number]
            for n in spare[self.SPARE :] if number is not None else spare:
                self._drop(n)
            if number is None and (number := self._add(size)) is None:
                return shared_memory(size)
            return torch.from_numpy(self._arrays[number][:size])

    def _free(self) -> list[int]:
        """Return the numbers of free buffers, and forget those that a fork of the other process still has."""
        found = []
        for number in list(self._arrays):
            # the references first: the thread that sends a batch notes it before it drops the last one
            if _references(self._arrays, number) == _FREE:
                if self._state[number] == FORKED:
                    self._drop(number)
                elif self._state[number] == HERE:
                    found.append(number)
        return found

    def _drop(self, number: int) -> None:
        del self._buffers[number], self._arrays[number]
        self._state[number] = HERE

    def _add(self, size: int) -> int | None:
        """Return the number of a new buffer; None if there are as many as can be."""
        number = next((n for n in range(self.MOST) if n not in self._buffers), None)
        if number is not None:
            self._buffers[number] = shared_memory(size)
            self._arrays[number] = self._buffers[number].numpy()
        return number

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the buffer that a tensor is over; None if it is over other memory."""
        start = tensor.untyped_storage().data_ptr()
        with self.lock:
            return next((number for number, buffer in self._buffers.items() if buffer.data_ptr() == start), None)

    def sent(self, tensor: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Note that a tensor over buffer `number` is sent, and return the arguments of `received`."""
        self._state[number] = AWAY
        return _like(tensor, self._buffers[number]), self._states, number


HERE, AWAY, FORKED = range(3)
"""What is known of a buffer that was sent: it was dropped, it is in use, or it was dropped but a fork may have it."""


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

    def __copy__(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)  # not by __reduce_ex__, which says that it is sent

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = copied = self.as_subclass(torch.Tensor).clone()
        return copied


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def received(tensor: torch.Tensor, states: torch.Tensor, number: int) -> torch.Tensor:
    """Return a tensor that the pool of another process has sent, and note there when nothing refers to it any more."""
    # over an array, to which every view refers
    memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()
    dropped = weakref.finalize(memory, _on_dropped, states.numpy(), number, os.getpid(), _forks[0])
    dropped.atexit = False
    return _like(tensor, torch.from_numpy(memory))


def _on_dropped(state: Memory, number: int, pid: int, forks: int) -> None:
    if pid == os.getpid():  # else this is a fork of the process that received it
        state[number] = HERE if forks == _forks[0] else FORKED


_forks = [0]
"""How often this process has been forked: a fork may still read a batch that was received before."""


def _count_fork() -> None:
    _forks[0] += 1


at_fork(before=_count_fork)


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
