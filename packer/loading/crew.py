"""Threads that make the parts of batches: an executor whose tasks cost 3 us, not 30.

`concurrent.futures` spends a lock, a condition and several Python calls on each task, all under the GIL: as long as two
threads take to copy 500 small images. Here a task goes through two C queues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import torch

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
        own = torch.get_num_threads()
        ready: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(ready,), name=f"packer_{i}", daemon=True) for i in range(size)
        ]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            ready.get()
        # what they have set for themselves is also the default of all threads that start from now on
        restore = threading.Thread(target=torch.set_num_threads, args=(own,))
        restore.start()
        restore.join()

    def do(self, count: int, task: Task) -> Parts:
        """Have task(0) to task(count - 1) done."""
        parts = Parts(count)
        for number in range(count):
            self._tasks.put((parts, number, task))
        return parts

    def close(self) -> None:
        """Drop the tasks that were not begun, wait for the others, end the threads."""
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, ready: SimpleQueue[None]) -> None:
        torch.get_num_threads()  # takes the default, which would otherwise overrule the next line at the first use
        torch.set_num_threads(1)  # else torch would start as many threads again in each of these
        ready.put(None)
        while (item := self._tasks.get()) is not None:
            parts, number, task = item
            try:
                outcome: _Outcome = (number, task(number), None)
            except BaseException as error:  # it is the consumer's
                outcome = (number, None, error)
            parts._done.put(outcome)
            del item, parts, task, outcome  # the memory of a batch is free when nobody refers to it
