"""Executors for --engine: MODULE:FUNCTION of a user."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from tempfile import mkdtemp
from typing import Any

LOST: list[str] = []
"""The names of the shards whose tasks were lost."""


def removing(executor: Executor, folder: str) -> Executor:
    """Let an executor remove a folder when it is shut down."""
    shutdown = executor.shutdown

    def and_remove(*args: Any, **kwargs: Any) -> None:
        shutdown(*args, **kwargs)
        shutil.rmtree(folder, ignore_errors=True)

    executor.shutdown = and_remove  # type: ignore[method-assign]
    return executor


def threads() -> Executor:
    """Tasks in threads of this process; the jobs run in workers all the same."""
    return ThreadPoolExecutor(2)


def processes() -> Executor:
    """Tasks in processes of their own."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver"))


class Losing(ThreadPoolExecutor):
    """Loses the task of each shard as often as it is told, after it has run: as a node that dies before it answers."""

    def __init__(self, times: int) -> None:
        super().__init__(2)
        self.times = times

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        _, job, _ = args
        name = getattr(job, "name", None)

        def run() -> Any:
            answer = function(*args, **kwargs)
            if name is not None and LOST.count(name) < self.times:
                LOST.append(name)
                raise BrokenProcessPool("the node is gone")
            return answer

        return super().submit(run)


def losing() -> Executor:
    """Each shard is lost three times."""
    return Losing(3)


def hopeless() -> Executor:
    """Each shard is lost for ever."""
    return Losing(1000)


class Elsewhere(ThreadPoolExecutor):
    """A node for which the setup of tasks is another one."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(1)
        self.change = change

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        work, job, setup = args
        return super().submit(function, work, job, self.change(setup), **kwargs)


def other_versions() -> Executor:
    """A node with another library, as far as it says."""
    return Elsewhere(lambda setup: replace(setup, versions={**setup.versions, "numpy": "0.1"}))


def nothing_mounted() -> Executor:
    """A node where the folders are empty mount points."""
    empty = mkdtemp()
    return removing(Elsewhere(lambda setup: replace(setup, paths=(empty,))), empty)


class Idle(ThreadPoolExecutor):
    """A cluster that has no workers when it is asked."""

    _max_workers = property(lambda self: 0, lambda self, value: None)

    def _adjust_thread_count(self) -> None: ...


def idle() -> Executor:
    """Nothing runs."""
    return Idle()


class Leaving(Executor):
    """A cluster whose worker goes when it has run the first task."""

    _max_workers = 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task: Future[Any] = Future()
        if self._max_workers:
            task.set_result(function(*args, **kwargs))
            self._max_workers = 0
        return task


def leaving() -> Executor:
    """Nothing runs after the first task."""
    return Leaving()


class Wrong(Executor):
    """Returns the same for every task."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.answer


def none() -> Executor:
    """Tasks return nothing."""
    future: Future[Any] = Future()
    future.set_result(None)
    return Wrong(future)


def canceled() -> Executor:
    """Tasks are canceled, which `concurrent.futures.wait` does not see."""
    future: Future[Any] = Future()
    future.cancel()
    return Wrong(future)


def text() -> Executor:
    """There are no futures."""
    return Wrong("done")


class Gone(ThreadPoolExecutor):
    """A cluster whose scheduler has died."""

    @property
    def _max_workers(self) -> int:
        raise ConnectionResetError("the scheduler is gone")

    @_max_workers.setter
    def _max_workers(self, value: int) -> None: ...


def gone() -> Executor:
    """Nobody answers."""
    return Gone(1)


def other_disk() -> Executor:
    """A node with another disk, as far as it says."""
    return Elsewhere(lambda setup: replace(setup, paths=tuple(f"/elsewhere{path}" for path in setup.paths)))


class Jobs(ThreadPoolExecutor):
    """Jobs of submitit, which are not futures; a thread waits for each."""

    def __init__(self, folder: str) -> None:
        import submitit

        super().__init__(2)
        self.slurm = submitit.AutoExecutor(folder, cluster="local")
        self.slurm.update_parameters(timeout_min=5)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(lambda: self.slurm.submit(function, *args, **kwargs).result())


def submitit() -> Executor:
    """Jobs of Slurm; here, processes of this machine."""
    folder = mkdtemp()
    return removing(Jobs(folder), folder)


def loky() -> Executor:
    """Processes of loky."""
    from loky import get_reusable_executor

    return get_reusable_executor(2)


def parsl() -> Executor:
    """Workers of parsl, here on this machine."""
    from parsl.concurrent import ParslPoolExecutor
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    workers = HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=2, provider=LocalProvider())
    folder = mkdtemp()
    return removing(ParslPoolExecutor(Config(executors=[workers], run_dir=folder)), folder)


ENDS: list[str] = []
"""How the tasks of `stuck` have ended when it is shut down."""


class Stuck(Executor):
    """Runs one task; the others wait for ever."""

    def __init__(self) -> None:
        self.tasks: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(Future())
        if len(self.tasks) == 1:
            self.tasks[0].set_result(function(*args, **kwargs))
        return self.tasks[-1]

    def shutdown(self, *_: Any, **__: Any) -> None:
        ENDS.extend("canceled" if task.cancelled() else "done" if task.done() else "waits" for task in self.tasks)


def stuck() -> Executor:
    """One node that is busy with something else."""
    return Stuck()


def nothing() -> list[int]:
    """No executor."""
    return []
