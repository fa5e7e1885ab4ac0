"""Runs jobs on an executor of `concurrent.futures`, which may have processes on many machines.

Each task runs its job in a worker process of its own beside it, so that an image that crashes its decoder costs only
that image there too; a task that is lost with its process or node is submitted again.
"""

from __future__ import annotations

import atexit
import math
import os
import platform
import secrets
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from packer.errors import BadInput, PackerError, StorageError, UsageError, WorkerDied, option, printable
from packer.packing.resume import versions
from packer.system.child import RemoteError
from packer.system.pool import Pool, Tick, Work

POLL_S = 0.1
AHEAD = 2
"""Tasks that are submitted for each that can run, so that none waits for this process."""
PATIENCE_S = 10.0
TRIES = 4
"""How often a task is submitted that is lost with its process, beyond what the executor itself tries."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a node must have, and the worker beside each task."""

    decode_timeout_s: float | None
    preload: str
    paths: tuple[str, ...]
    """What it must see: the source, and where the shards are written."""
    versions: Mapping[str, str]
    """Of the libraries of the process that builds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back: the result of the job, or a RemoteError; and the images done, and the bad ones among them."""

    result: Any
    done: int = 0
    bad: int = 0


class ExecutorEngine:
    """Runs jobs on an executor, as `Pool` does on this machine. A context manager: exiting it ends them."""

    def __init__(
        self,
        name: str,
        opened: Callable[[], AbstractContextManager[Any]],
        size: int | None,
        setup: Setup,
        note: Callable[[str], None],
    ) -> None:
        self._asked = size
        self._note = note
        self._name, self._opened, self._setup = name, opened, setup
        self._exits = ExitStack()
        self._executor: Any = None
        self._running: dict[Future[Answer], tuple[int, int]] = {}
        """(number of the job, tries that are left) of each task."""

    def __enter__(self) -> ExecutorEngine:
        try:
            opened = self._opened()
            if hasattr(opened, "__enter__"):
                self._executor = self._exits.enter_context(opened)
        except PackerError:
            raise
        except Exception as error:
            problem = f"{self._name} cannot be used: {type(error).__name__}: {error}"
            raise UsageError(option("engine"), problem, "see docs/cluster.md") from error
        if not hasattr(self._executor, "submit"):
            kind = type(opened).__name__
            raise UsageError(
                option("engine"), f"{self._name} returned a {kind}", "return an executor of concurrent.futures"
            )
        return self

    @property
    def size(self) -> int:
        """Roughly how many jobs it runs at once: a cluster may grow meanwhile."""
        return self._asked or self._known_size() or 1

    def _known_size(self) -> int | None:
        try:
            size = getattr(self._executor, "_max_workers", None)
        except Exception as error:  # a cluster is asked, which may be gone
            raise self._lost(error) from error
        return None if size is None else int(size)

    def _most(self) -> int:
        """Return how many tasks may be submitted at a time."""
        known = self._known_size()
        return AHEAD * self.size if known and known <= self.size else self.size  # else all that are submitted would run

    def __exit__(self, *_: object) -> None:
        for future in list(self._running):  # if the build has failed
            future.cancel()
        self._exits.close()

    def start(self, workers: int) -> None:
        """Do nothing: the executor starts its workers."""

    def run(self, work: Work, jobs: Sequence[Any], tick: Tick = lambda done, bad: None) -> Iterator[tuple[int, Any]]:
        """Run jobs, and yield (number of the job, its result) as they finish; see `Pool.run`.

        Raises:
            WorkerDied: A task was lost several times.
        """
        waiting = [(number, TRIES) for number in range(len(jobs))][::-1]
        running = self._running
        done = bad = 0
        noted = time.monotonic() + PATIENCE_S
        while waiting or running:
            most = self._most()
            if time.monotonic() > noted:
                noted = time.monotonic() + PATIENCE_S
                if self._known_size() == 0:
                    self._note(f"note: {self._name} has no workers; the build waits for them")
                    noted = math.inf
            while waiting and len(running) < most:
                number, tries = waiting.pop()
                running[self._submitted(work, jobs[number])] = number, tries - 1
            ended = wait(running, POLL_S, FIRST_COMPLETED).done
            for future in ended.union(future for future in running if future.cancelled()):  # by somebody else
                number, tries = running.pop(future)
                noted = time.monotonic() + PATIENCE_S
                answer = self._answer(future, tries)
                if answer is None:
                    waiting.append((number, tries))
                    continue
                if isinstance(answer.result, RemoteError):
                    raise answer.result.error from RuntimeError(f"in a worker:\n{answer.result.trace}")
                done, bad = done + answer.done, bad + answer.bad
                tick(done, bad)
                yield number, answer.result

    def _submitted(self, work: Work, job: Any) -> Future[Answer]:
        try:
            future = self._executor.submit(run_task, work, job, self._setup)
        except Exception as error:
            raise self._lost(error) from error
        if not isinstance(future, Future):
            raise self._not("submit returned", future, "a future of concurrent.futures")
        return future

    def _answer(self, future: Future[Answer], tries: int) -> Answer | None:
        """Return the answer of a task; None if it was lost and is to be submitted again."""
        try:
            answer = future.result()
        except Exception as error:
            if not tries:
                raise self._lost(error) from error
            return None
        if not isinstance(answer, Answer):
            raise self._not("a task returned", answer, "what the function that was submitted returned")
        return answer

    def _not(self, what: str, found: object, wanted: str) -> UsageError:
        problem = f"{self._name}: {what} a {type(found).__name__}, not {wanted}"
        return UsageError(option("engine"), problem, "see docs/cluster.md")

    def _lost(self, error: BaseException) -> WorkerDied:
        last = [line for line in str(error).splitlines() if line.strip()][-1:]  # of Ray, it has the whole traceback
        problem = f"{self._name} has lost a task: {': '.join([type(error).__name__, *last])}"
        return WorkerDied(option("engine"), problem, "look at its nodes, and run the same command to resume")


def run_task(work: Work, job: Any, setup: Setup) -> Answer:
    """Run a job in a worker process beside this one, on whatever node this is."""
    try:
        _check_node(setup)
        with _pool_of(setup) as pool:
            counts = (0, 0)

            def tick(done: int, bad: int) -> None:
                nonlocal counts
                counts = done, bad

            ((_, result),) = pool.run(work, [_anew(job)], tick)
            return Answer(result, *counts)
    except Exception as error:
        if isinstance(error, PackerError) and not isinstance(error, BadInput) and error.where != platform.node():
            error.problem += f" (on {platform.node()})"
        sure = isinstance(error, PackerError) or type(error).__module__ == "builtins"  # certain to be picklable
        return Answer(RemoteError(error if sure else RuntimeError(f"{error!r}"), traceback.format_exc()))


def _anew(job: Any) -> Any:
    """Return a job with files of its own, as the node of another attempt may not be dead; and with one thread, as all
    tasks have: the node may not have more cores to spare.
    """
    return replace(job, attempt=secrets.token_hex(4), threads=1) if hasattr(job, "attempt") else job


def _check_node(setup: Setup) -> None:
    """Raise StorageError if this node does not see the files, or has other libraries, which might write other bytes."""
    for path in setup.paths:
        if not _sees(path):
            step = "put the source and the pack (or --scratch) on a file system that all nodes share"
            raise StorageError(platform.node(), f"this node does not see {printable(path)}", step)
    here, wanted = versions(), setup.versions
    other = [f"{name} {here.get(name)}, not {wanted[name]}" for name in wanted if here.get(name) != wanted[name]]
    if other:
        step = "install the same versions on all nodes, and run the same command to resume"
        raise StorageError(platform.node(), f"this node has {', '.join(other)}", step)


def _sees(path: str) -> bool:
    """Return whether a file or folder is here; an empty folder may be where another machine has mounted one."""
    if not os.path.isdir(path):
        return os.path.isfile(path)
    with suppress(OSError), os.scandir(path) as entries:
        return any(entries)
    return False


_idle: dict[tuple[float | None, str], list[Pool]] = defaultdict(list)
"""Pools of one worker that wait for the next task of this process, by their options."""


@contextmanager
def _pool_of(setup: Setup) -> Iterator[Pool]:
    """Yield a pool of one worker, and keep it for the next task if it is sound."""
    kind = setup.decode_timeout_s, setup.preload
    try:
        pool = _idle[kind].pop()
    except IndexError:
        pool = Pool(1, *kind)
    try:
        yield pool
    except BaseException:
        pool.__exit__()
        raise
    _idle[kind].append(pool)


@atexit.register
def _end_workers() -> None:
    for pools in _idle.values():
        while pools:
            pools.pop().__exit__()
