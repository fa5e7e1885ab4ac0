"""The engine that packs shards on this machine: worker processes, each making whole shards.

`ProcessPoolExecutor` notices a worker that dies, which `multiprocessing.Pool` does not. Workers are forked
from a server that has loaded the libraries once, never from the caller, whose threads a fork would break.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import wait as wait_for
from types import ModuleType
from typing import Any

from packer.build.result import ShardResult
from packer.build.shard import ShardJob, pack_shard
from packer.build.signals import held_signals
from packer.errors import WorkerDied

POLL_S = 0.1
_done: Any = None
_bad: Any = None
_stop: Any = None


class LocalEngine:
    """Runs shard jobs in `workers` processes. A context manager: leaving it ends the processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["packer.build.shard", "packer.verify"])
        self._done = context.Value("q", 0)
        self._bad = context.Value("q", 0)
        self._stop = context.Event()
        self._pool = ProcessPoolExecutor(
            workers, context, initializer=_begin, initargs=(self._done, self._bad, self._stop)
        )
        self._processes: dict[int, Any] = {}

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with held_signals():
            self._stop.set()
            if kind is not None:
                for process in self._running().values():
                    process.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def warm_up(self) -> None:
        """Start the processes now, so that they load their libraries while the plan is made."""
        with held_signals(), _without_main():  # a process that is half started could not be ended
            for _ in range(self.workers):
                self._pool.submit(os.getpid)

    def run(
        self, jobs: Sequence[ShardJob], tick: Callable[[int, int], None]
    ) -> Iterator[tuple[int, ShardResult]]:
        """Yield (number of the job, its result) as they come; `tick(done, bad)` is called about every 0.1 s.

        What `tick` raises ends the run. Raises WorkerDied where a process ends by itself.
        """
        threads = threads_of(len(jobs), self.workers)
        with held_signals(), _without_main():
            futures: dict[Future[ShardResult], int] = {
                self._pool.submit(_work, replace(job, threads=n)): i
                for i, (job, n) in enumerate(zip(jobs, threads, strict=True))
            }
        waiting = set(futures)
        while waiting:
            self._processes = self._running()
            finished, waiting = wait(waiting, POLL_S, FIRST_COMPLETED)
            tick(self._done.value, self._bad.value)
            for future in sorted(finished, key=lambda f: futures[f]):
                try:
                    yield futures[future], future.result()
                except BrokenProcessPool:
                    raise self._death() from None

    def _running(self) -> dict[int, Any]:
        return dict(getattr(self._pool, "_processes", None) or {})

    def _death(self) -> WorkerDied:
        codes = {p.exitcode for p in self._processes.values() if p.exitcode} - {-signal.SIGTERM}
        how = ", ".join(sorted(_how(code) for code in codes)) or "no exit code"
        step = "free memory or take fewer --workers" if -signal.SIGKILL in codes else "build again"
        return WorkerDied("", f"a worker process died ({how})", step)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that are started in here do not import the caller's script.

    They need nothing of it, and a script that builds a pack without an ``if __name__ == "__main__":`` would build
    it again in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def threads_of(jobs: int, workers: int) -> list[int]:
    """Threads of each job, so that all cores work to the end.

    Full rounds of shards have one thread each; where the last round has fewer shards than workers, its
    shards share the workers' cores among them.
    """
    last_round = jobs % workers
    threads = [1] * (jobs - last_round)
    return threads + [-(-workers // max(1, last_round))] * last_round


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _begin(done: Any, bad: Any, stop: Any) -> None:
    """What a worker process does first."""
    global _done, _bad, _stop
    _done, _bad, _stop = done, bad, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(job: ShardJob) -> ShardResult:
    def report(done: int, bad: int) -> bool:
        with _done.get_lock():
            _done.value += done
        if bad:
            with _bad.get_lock():
                _bad.value += bad
        return not _stop.is_set()

    return pack_shard(job, report)
