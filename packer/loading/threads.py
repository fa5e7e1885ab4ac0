"""Threads that prepare the parts of batches: an executor with an overhead of 3 us per task, not 30.

`concurrent.futures` uses a lock, a condition and several Python calls for each task, all under the GIL: as long as two
threads take to copy 500 small images. Here a task goes through two C queues.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import torch

from packer.system import at_fork

END_S = 1.0
"""Maximum time to wait for a finished thread to end, which normally takes microseconds."""
FORK_S = 5.0
"""Maximum time that a fork waits for the work of threads."""

Task = Callable[[int], Any]
_Outcome = tuple[int, Any, BaseException | None]


class Results:
    """The results of a batch's tasks, in the order of their numbers."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done: SimpleQueue[_Outcome] = SimpleQueue()

    def wait(self) -> list[Any]:
        """Return all results. Raise the exception of a task unchanged."""
        results: list[Any] = [None] * self._count
        for _ in range(self._count):
            number, result, error = self._done.get()
            if error is not None:
                raise error
            results[number] = result
        return results


class ThreadPool:
    """A pool of `size` threads, in each of which torch uses one core. It must be closed."""

    def __init__(self, size: int) -> None:
        self._tasks: SimpleQueue[tuple[Results, int, Task] | None] = SimpleQueue()
        self._closed = False
        self._busy = [threading.Lock() for _ in range(size)]
        own = torch.get_num_threads()
        ready: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(ready, lock), name=f"packer_{i}", daemon=True)
            for i, lock in enumerate(self._busy)
        ]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            ready.get()
        # restore the default for new threads, which these threads have changed too
        restore = threading.Thread(target=torch.set_num_threads, args=(own,))
        restore.start()
        wait_for_end(restore)
        for pool in list(_pools):
            pool.forget_if_gone()
        _pools.add(self)

    def run(self, count: int, task: Task) -> Results:
        """Run task(0) to task(count - 1) in the threads."""
        results = Results(count)
        for number in range(count):
            self._tasks.put((results, number, task))
        return results

    def close(self, wait: bool = True) -> None:
        """Drop tasks that have not started. The threads end after the others; optionally wait for that."""
        self._closed = True
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                wait_for_end(thread)
            self.forget_if_gone()

    def forget_if_gone(self) -> None:
        """Remove a closed pool whose threads have ended, so that a fork need not wait for it."""
        if self._closed and not any(map(_is_there, self._threads)):
            _pools.discard(self)

    def pause(self, until: float) -> list[threading.Lock]:
        """Keep threads from starting work, wait for them until this time, and return the locks to release."""
        if self._closed:
            for thread in self._threads:
                wait_for_end(thread, max(0.0, until - time.monotonic()))
            self.forget_if_gone()
            return []
        return [lock for lock in self._busy if lock.acquire(timeout=max(0.0, until - time.monotonic()))]

    def _work(self, ready: SimpleQueue[None], busy: threading.Lock) -> None:
        torch.get_num_threads()  # sets the default now, which would otherwise override the next line on first use
        torch.set_num_threads(1)  # otherwise torch would start as many threads in each of these
        _forking.in_a_pool = True
        ready.put(None)
        while (item := self._tasks.get()) is not None:
            results, number, task = item
            try:
                with busy:
                    outcome: _Outcome = (number, task(number), None)
            except BaseException as error:  # it belongs to the consumer now
                outcome = (number, None, error)
            results._done.put(outcome)
            del item, results, task, outcome  # the memory of a batch is free when nothing refers to it


def wait_for_end(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for the end of a thread, including its system thread.

    `join` returns while the thread still runs the destructors of libraries. OpenCV's destructor holds a lock, for which
    a process forked at that moment would wait forever at its first image.
    """
    thread.join(timeout_s)
    until = time.monotonic() + END_S
    while not thread.is_alive() and _is_there(thread) and time.monotonic() < until:
        time.sleep(20e-6)


def _is_there(thread: threading.Thread) -> bool:
    """Return whether a thread is still running, even if only destructors of libraries."""
    return thread.is_alive() or (sys.platform == "linux" and os.path.exists(f"/proc/self/task/{thread.native_id}"))


class _Forking(threading.local):
    """The locks held by the forking thread."""

    def __init__(self) -> None:
        self.in_a_pool = False
        self.paused: list[threading.Lock] = []


_forking = _Forking()
_pools: set[ThreadPool] = set()
"""All pools whose threads may be running, including those that were closed without waiting."""


def _before_fork() -> None:
    """Before a fork, wait until no thread works: a child has no threads, but inherits the state of every lock."""
    if not _forking.in_a_pool:  # a task that forks must not wait for itself
        until = time.monotonic() + FORK_S
        for pool in list(_pools):
            _forking.paused.extend(pool.pause(until))


def _after_fork() -> None:
    while _forking.paused:
        _forking.paused.pop().release()


at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    """Wait for the threads of iterations that were left early.

    A thread that comes back from torch while the interpreter shuts down would end the process with SIGABRT.
    """
    for pool in list(_pools):
        pool.close()
