"""Threads that make the parts of batches: an executor whose tasks cost 3 us, not 30.

`concurrent.futures` spends a lock, a condition and several Python calls on each task, all under the GIL: as long as two
threads take to copy 500 small images. Here a task goes through two C queues.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import torch

END_S = 1.0
"""A thread that has done its work takes microseconds to end."""
FORK_S = 5.0
"""A fork waits so long for what threads are doing; then it happens all the same."""

Task = Callable[[int], Any]
_Outcome = tuple[int, Any, BaseException | None]


class Parts:
    """The results of one batch's tasks: `wait` for them, in the order of their numbers."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done: SimpleQueue[_Outcome] = SimpleQueue()

    def wait(self) -> list[Any]:
        """All results; raises what a task has raised, as it is."""
        results: list[Any] = [None] * self._count
        for _ in range(self._count):
            number, result, error = self._done.get()
            if error is not None:
                raise error
            results[number] = result
        return results


class Crew:
    """`size` threads, each of which torch takes for one core's work. Close it; nothing is left behind."""

    def __init__(self, size: int) -> None:
        self._tasks: SimpleQueue[tuple[Parts, int, Task] | None] = SimpleQueue()
        self._closed = False
        self._at_work = [threading.Lock() for _ in range(size)]
        own = torch.get_num_threads()
        ready: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(ready, lock), name=f"packer_{i}", daemon=True)
            for i, lock in enumerate(self._at_work)
        ]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            ready.get()
        # what they have set for themselves is also the default of all threads that start from now on
        restore = threading.Thread(target=torch.set_num_threads, args=(own,))
        restore.start()
        ended(restore)
        for crew in list(_crews):
            crew.forget_if_gone()
        _crews.add(self)

    def do(self, count: int, task: Task) -> Parts:
        """Have task(0) to task(count - 1) done."""
        parts = Parts(count)
        for number in range(count):
            self._tasks.put((parts, number, task))
        return parts

    def close(self, wait: bool = True) -> None:
        """Drop the tasks that were not begun; the threads end when they have done the others, for which it may wait."""
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
                ended(thread)
            self.forget_if_gone()

    def forget_if_gone(self) -> None:
        """A fork need not wait for threads that are no more."""
        if self._closed and not any(map(_is_there, self._threads)):
            _crews.discard(self)

    def pause(self, until: float) -> list[threading.Lock]:
        """Let no thread begin anything, wait for what they do until that time; returns the locks to release."""
        if self._closed:
            for thread in self._threads:
                ended(thread, max(0.0, until - time.monotonic()))
            self.forget_if_gone()
            return []
        return [lock for lock in self._at_work if lock.acquire(timeout=max(0.0, until - time.monotonic()))]

    def _work(self, ready: SimpleQueue[None], at_work: threading.Lock) -> None:
        torch.get_num_threads()  # takes the default, which would otherwise overrule the next line at the first use
        torch.set_num_threads(1)  # else torch would start as many threads again in each of these
        _forking.of_a_crew = True
        ready.put(None)
        while (item := self._tasks.get()) is not None:
            parts, number, task = item
            try:
                with at_work:
                    outcome: _Outcome = (number, task(number), None)
            except BaseException as error:  # it is the consumer's
                outcome = (number, None, error)
            parts._done.put(outcome)
            del item, parts, task, outcome  # the memory of a batch is free when nobody refers to it


def ended(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for the end of a thread, of the system's too.

    `join` returns while the thread still runs the destructors of libraries. OpenCV holds a lock in its own: a process
    that is forked in that moment would wait for it for ever, at its first image.
    """
    thread.join(timeout_s)
    until = time.monotonic() + END_S
    while not thread.is_alive() and _is_there(thread) and time.monotonic() < until:
        time.sleep(20e-6)


def _is_there(thread: threading.Thread) -> bool:
    """Whether a thread runs, if only the destructors of libraries."""
    return thread.is_alive() or (sys.platform == "linux" and os.path.exists(f"/proc/self/task/{thread.native_id}"))


class _Forking(threading.local):
    """Of the thread that forks."""

    def __init__(self) -> None:
        self.of_a_crew = False
        self.paused: list[threading.Lock] = []


_forking = _Forking()
_crews: set[Crew] = set()
"""All whose threads may be there: those of a crew that was closed without waiting end in their own time."""


def _before_fork() -> None:
    """A child has no threads, but every lock of every library as it is in this moment: none may be in use."""
    if not _forking.of_a_crew:  # a task that forks would wait for itself
        until = time.monotonic() + FORK_S
        for crew in list(_crews):
            _forking.paused.extend(crew.pause(until))


def _after_fork() -> None:
    while _forking.paused:
        _forking.paused.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
