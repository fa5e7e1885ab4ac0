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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

import torch

from packer.stores.waiting import give_up_if
from packer.system import at_fork, openmp_set_threads

POLL_S = 0.5
END_S = 1.0
"""Maximum time to wait for a finished thread to end, which normally takes microseconds."""
FORK_S = 5.0
"""Maximum time that a fork waits for the work of threads."""
LEFT_S = 5.0
"""Maximum time that leaving an iteration early waits for the work of its threads. The garbage collector may do it while
the program holds a lock that the work needs."""

Task = Callable[[int], Any]
_Outcome = tuple[int, Any, BaseException | None]


class Results:
    """The results of a batch's tasks, in the order of their numbers."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done: SimpleQueue[_Outcome] = SimpleQueue()

    def wait(self, helped: ThreadPool | None = None) -> list[Any]:
        """Return all results. Raise the exception of a task unchanged.

        Args:
            helped: a pool whose tasks this thread does while it waits.
        """
        results: list[Any] = [None] * self._count
        for _ in range(self._count):
            while helped is not None and self._done.empty() and helped.help():
                pass
            number, result, error = self._next()
            if error is not None:
                raise error
            results[number] = result
        return results

    def _next(self) -> _Outcome:
        while True:
            try:
                return self._done.get(timeout=POLL_S)
            except Empty:  # Python misses a signal that comes in the last moment before a wait without end
                continue


class ThreadPool:
    """A pool of `size` threads, in each of which torch uses one core.

    It must be closed, also if `start` is interrupted.
    """

    def __init__(self, size: int) -> None:
        self._tasks: SimpleQueue[tuple[Results, int, Task] | None] = SimpleQueue()
        self._closed = False
        self._busy = [threading.Lock() for _ in range(size)]
        self._helping = threading.Lock()
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(lock,), name=f"packer_{i}", daemon=True)
            for i, lock in enumerate(self._busy)
        ]

    def start(self) -> None:
        """Start the threads."""
        for pool in list(_pools):
            pool.forget_if_gone()
        _pools.add(self)
        own = torch.get_num_threads()
        try:
            for thread in self._threads:
                thread.start()
            for _ in self._threads:
                self._ready.get()
        finally:
            if _of_this_thread() is None:
                torch.set_num_threads(own)  # restores the default for new threads, which these threads have changed too

    def run(self, count: int, task: Task) -> Results:
        """Run task(0) to task(count - 1) in the threads."""
        results = Results(count)
        for number in range(count):
            self._tasks.put((results, number, task))
        return results

    def close(self, timeout_s: float | None = None) -> None:
        """Drop tasks that have not started, and wait until the threads have ended after the others.

        Args:
            timeout_s: Maximum time to wait. A thread of a pool never waits: it may be one of these.
        """
        self._closed = True
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._tasks.put(None)
        if not _forking.in_a_pool:
            until = None if timeout_s is None else time.monotonic() + timeout_s
            for thread in self._threads:
                wait_for_end(thread, None if until is None else max(0.0, until - time.monotonic()))
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
        locks = [*self._busy, self._helping]
        return [lock for lock in locks if lock.acquire(timeout=max(0.0, until - time.monotonic()))]

    def help(self) -> bool:
        """Do the next task in the calling thread, with one core; return False if none is waiting."""
        set_threads = _of_this_thread()
        try:
            item = self._tasks.get_nowait()
        except Empty:
            return False
        if item is None or set_threads is None:
            self._tasks.put(item)
            return False
        own, in_a_pool = torch.get_num_threads(), _forking.in_a_pool
        set_threads(1)
        _forking.in_a_pool = True
        try:
            error = _do(*item, self._helping)
        finally:
            _forking.in_a_pool = in_a_pool
            set_threads(own)
        if error is not None and not isinstance(error, Exception):
            raise error  # Ctrl-C, which must not wait for the consumer to ask for that batch
        return True

    def _work(self, busy: threading.Lock) -> None:
        torch.get_num_threads()  # sets the default now, which would otherwise override the next line on first use
        # otherwise torch would start as many threads in each of these
        (_of_this_thread() or torch.set_num_threads)(1)
        _forking.in_a_pool = True
        give_up_if(lambda: self._closed)
        self._ready.put(None)
        while (item := self._tasks.get()) is not None:
            _do(*item, busy)
            del item  # the memory of a batch is free when nothing refers to it


def _do(results: Results, number: int, task: Task, busy: threading.Lock) -> BaseException | None:
    """Do a task, and return its error, which `Results.wait` raises too."""
    result = failure = None
    try:
        with busy:
            result = task(number)
    except BaseException as error:
        failure = error
    results._done.put((number, result, failure))
    return failure


def can_help() -> bool:
    """Return whether `ThreadPool.help` works: if torch's number of threads can be set for one thread alone."""
    return _of_this_thread() is not None


@cache
def _of_this_thread() -> Callable[[int], Any] | None:
    """Return a function that sets torch's number of threads for the calling thread only; None: there is none.

    `torch.set_num_threads` sets that of new threads, too.
    """
    set_threads, own = openmp_set_threads(), torch.get_num_threads()
    if set_threads is None:
        return None
    set_threads(own + 1)
    try:
        return set_threads if torch.get_num_threads() == own + 1 else None
    finally:
        set_threads(own)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Let torch use one core in this thread; all of them where that cannot be set for one thread.

    The threads of OpenMP wait for each other in a loop: beside other programs, two take up to 70 times as long as one.
    """
    set_threads = _of_this_thread()
    if set_threads is None:
        yield
        return
    own = torch.get_num_threads()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(own)


def wait_for_end(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for the end of a thread, including its system thread.

    `join` returns while the thread still runs the destructors of libraries. OpenCV's destructor holds a lock, for which
    a process forked at that moment would wait forever at its first image.
    """
    try:
        thread.join(timeout_s)
    except RuntimeError:  # it was not started, or Ctrl-C came in the middle of that: then nobody can wait for it
        return
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
