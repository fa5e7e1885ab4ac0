"""Hands jobs to worker processes, and sees to it that one image costs no more than itself.

Where a decoder crashes or hangs, its worker dies or is killed, and no other. The job is run again with one thread, so
that the counters say which row it is; where it happens there a second time, the row is refused and the job is run
again without it. Results of other jobs are not touched.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for
from typing import Any

from packer.errors import DecoderCrashed, DecoderHung, StorageError, WorkerDied
from packer.packing.counters import BAD, DONE, TURNS
from packer.packing.workers import Hall, RemoteError, Work, Worker

POLL_S = 0.1
LONGEST_TURN_S = 1.0
"""A pause of this process that is longer (Ctrl-Z, a slow disk) is not counted to a worker."""
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}

Tick = Callable[[int, int], None]
"""Called with (rows done, of these bad)."""


@dataclass(slots=True)
class Task:
    """A job on its way."""

    number: int
    job: Any
    """Has `threads` and `refused`."""
    again: bool = False
    """It runs a second time, with one thread."""


@dataclass(slots=True)
class Run:
    """A task in a worker."""

    task: Task
    worker: Worker
    turns: int = 0
    still_s: float = 0.0
    """For so long it has been decoding the same images."""
    hung: bool = False


class Supervisor:
    """Runs jobs in at most `places` workers, which it starts as they are needed."""

    def __init__(self, places: int, decode_timeout_s: float | None) -> None:
        self.places = places
        self.decode_timeout_s = decode_timeout_s
        self._hall: Hall | None = None
        self._idle: list[Worker] = []
        self._running: dict[int, Run] = {}
        self._done = self._bad = 0

    def warm_up(self) -> None:
        """Start the fork server and a first worker, while there is something else to do."""
        self._idle.append(self._idle_worker())

    def end(self, now: bool) -> None:
        """Let all processes end; `now` also those that are at work."""
        workers = [*self._idle, *(run.worker for run in self._running.values())]
        for worker in workers:
            if now or worker not in self._idle:
                worker.process.terminate()
            else:
                worker.dismiss()
        for worker in workers:
            worker.end()
        self._idle, self._running = [], {}

    def run(self, work: Work, jobs: Sequence[Any], tick: Tick) -> Iterator[tuple[int, Any]]:
        """Yield (number of the job, its result) as they come; `tick` is called about every 0.1 s.

        What `tick` or the work raises ends the run. Raises WorkerDied where a worker ends by itself, but for a crash
        while it decodes.
        """
        waiting = deque(Task(number, job) for number, job in enumerate(jobs))
        self._done = self._bad = 0
        before = time.monotonic()
        while waiting or self._running:
            while waiting and len(self._running) < self.places:
                self._begin(work, waiting.popleft())
            handles = {h: place for place, run in self._running.items() for h in (run.worker.pipe, _end_of(run))}
            ready = wait_for(list(handles), POLL_S)
            now = time.monotonic()
            self._kill_hung(min(now - before, LONGEST_TURN_S))
            before = now
            finished = []
            for place in sorted({handles[handle] for handle in ready}):
                run = self._running.pop(place)
                result = run.worker.result()
                if result is None:
                    waiting.appendleft(self._after_death(run))
                    continue
                self._done += run.worker.count(DONE)
                self._bad += run.worker.count(BAD)
                if run.hung:  # it was done just before it was killed
                    run.worker.end()
                else:
                    self._idle.append(run.worker)
                finished.append((run.task.number, result))
            tick(*self._progress())
            for number, result in sorted(finished, key=lambda item: item[0]):
                if isinstance(result, RemoteError):
                    raise result.error from RuntimeError(f"in a worker:\n{result.trace}")
                yield number, result

    def _progress(self) -> tuple[int, int]:
        workers = [run.worker for run in self._running.values()]
        done = self._done + sum(worker.count(DONE) for worker in workers)
        return done, self._bad + sum(worker.count(BAD) for worker in workers)

    def _idle_worker(self) -> Worker:
        """A living worker without a job."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.is_alive():
                return worker
            worker.end()  # somebody has killed it while it had nothing to do
        try:
            if self._hall is None:
                self._hall = Hall(self.places)
            return Worker(self._hall, min(set(range(self.places)) - set(self._running)))
        except (OSError, EOFError) as error:  # no descriptor, no process, no memory, no temporary folder is free
            problem = f"cannot start a worker process: {getattr(error, 'strerror', None) or error or 'it ended'}"
            raise StorageError("", problem, "take fewer --workers, or raise the limits of the system") from None

    def _begin(self, work: Work, task: Task) -> None:
        worker = self._idle_worker()
        self._running[worker.place] = Run(task, worker)
        with suppress(OSError):  # dead: its end is noticed as any other
            worker.begin(work, task.job)

    def _kill_hung(self, passed_s: float) -> None:
        if self.decode_timeout_s is None:
            return
        for run in self._running.values():
            turns = run.worker.count(TURNS)
            moves = turns != run.turns or run.worker.decoding is None
            run.turns, run.still_s = turns, 0.0 if moves else run.still_s + passed_s
            if run.still_s > self.decode_timeout_s and not run.hung:
                run.hung = True
                run.worker.process.kill()

    def _after_death(self, run: Run) -> Task:
        """What is to be done again now that the worker of `run` is dead. Raises WorkerDied."""
        code = run.worker.end()
        row = run.worker.decoding
        crashed = code is not None and -code in CRASHES
        if not crashed and not run.hung:
            raise died(code)
        task = run.task
        if not task.again:
            return Task(task.number, replace(task.job, threads=1), again=True)
        if row is None:  # it was not decoding
            raise died(code)
        if crashed:
            problem = f"its decoder has crashed twice ({_how(code)})"
            error: DecoderCrashed | DecoderHung = DecoderCrashed("", problem, "re-save it with an image editor")
        else:
            problem = f"was not decoded within {self.decode_timeout_s:g} s, twice"
            error = DecoderHung("", problem, "raise --decode-timeout, or re-save it with an image editor")
        return replace(task, job=replace(task.job, refused={**task.job.refused, row: error}))


def _end_of(run: Run) -> Any:
    return run.worker.process.sentinel


def died(code: int | None) -> WorkerDied:
    """The error of a build whose worker has ended with this exit code."""
    step = "free memory or take fewer --workers" if code == -signal.SIGKILL else "build again"
    return WorkerDied("", f"a worker process died ({_how(code)})", step)


def _how(code: int | None) -> str:
    if code is None:
        return "no exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
