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
from queue import Empty, SimpleQueue
from typing import Any

from packer.errors import DecoderCrashed, DecoderHung, StorageError, WorkerDied
from packer.processes.child import BAD, DONE, TURNS, RemoteError
from packer.processes.signals import held_signals
from packer.processes.worker import DEAD, Inbox, Work, Worker

POLL_S = 0.1
LONGEST_TURN_S = 1.0
"""A pause of this process that is longer (Ctrl-Z, a slow disk) is not counted to a worker."""
CRASHES = {getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")}

Tick = Callable[[int, int], None]
"""Called with (rows done, of these bad)."""


@dataclass(slots=True)
class Run:
    """A job in a worker."""

    number: int
    job: Any
    again: bool
    """It runs a second time, with one thread."""
    turns: int = 0
    still_s: float = 0.0
    """For so long it has been decoding the same images."""
    hung: bool = False


class Pool:
    """Runs jobs in at most `size` worker processes. A context manager: leaving it ends the processes."""

    def __init__(self, size: int, decode_timeout_s: float | None, preload: str) -> None:
        """Start nothing yet.

        Args:
            size: Number of workers.
            decode_timeout_s: A worker that decodes the same images for longer is killed; None: never.
            preload: Modules that each worker imports when it starts, with spaces between them.
        """
        self.size = size
        self._decode_timeout_s = decode_timeout_s
        self._preload = preload
        self._inbox: Inbox = SimpleQueue()
        self._idle: list[Worker] = []
        self._running: dict[Worker, Run] = {}
        self._done = self._bad = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        with held_signals():
            workers = [*self._idle, *self._running]
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.end()
            self._idle, self._running = [], {}

    def start(self, workers: int) -> None:
        """See to it that so many living workers wait for jobs: starting takes a moment, of which nothing is felt here.

        Raises StorageError where the system lacks something for it.
        """
        for worker in [worker for worker in self._idle if worker.process.poll() is not None]:
            self._idle.remove(worker)  # somebody has killed it while it had nothing to do
            worker.end()
        try:
            while len(self._idle) < workers:
                with held_signals():  # a process that is half started could not be ended
                    self._idle.append(Worker(self._inbox, self._preload))
        except OSError as error:  # no descriptor, no process, no memory, no temporary folder is free
            problem = f"cannot start a worker process: {error.strerror or error}"
            raise StorageError("", problem, "take fewer --workers, or raise the limits of the system") from None

    def run(self, work: Work, jobs: Sequence[Any], tick: Tick = lambda done, bad: None) -> Iterator[tuple[int, Any]]:
        """Yield (number of the job, its result) as they come; `tick` is called about every 0.1 s.

        What `tick` or the work raises ends the run. Raises WorkerDied where a worker ends by itself, but for a crash
        while it decodes, if the job can be run again: it is a dataclass with `threads` and `refused`, and may have
        `clear()`, which removes what the dead worker has left.
        """
        waiting = deque(Run(number, job, again=False) for number, job in enumerate(jobs))
        self._done = self._bad = 0
        before = time.monotonic()
        while waiting or self._running:
            free = min(len(waiting), self.size - len(self._running))
            self.start(free)  # all of them, before the first job, which may have to wait until its worker reads it
            for _ in range(free):
                self._begin(work, waiting.popleft())
            arrived = self._arrived()
            now = time.monotonic()
            self._kill_hung(min(now - before, LONGEST_TURN_S))
            before = now
            finished = []
            for worker, result in arrived:
                run = self._running.pop(worker, None)
                if run is None:  # it had nothing to do when it died
                    continue
                if result is DEAD:
                    waiting.appendleft(self._after_death(worker, run))
                    continue
                self._done += worker.counters[DONE]
                self._bad += worker.counters[BAD]
                if run.hung:  # it was done just before it was killed
                    worker.end()
                else:
                    self._idle.append(worker)
                finished.append((run.number, result))
            tick(*self._progress())
            for number, result in sorted(finished, key=lambda item: item[0]):
                if isinstance(result, RemoteError):
                    raise result.error from RuntimeError(f"in a worker:\n{result.trace}")
                yield number, result

    def _begin(self, work: Work, run: Run) -> None:
        worker = self._idle.pop(0)  # it was started first
        self._running[worker] = run
        with suppress(OSError):  # dead: its end is noticed as any other
            worker.begin(work, run.job)

    def _arrived(self) -> list[tuple[Worker, Any]]:
        """What workers have sent, and which have died; after POLL_S at most."""
        arrived = []
        try:
            arrived.append(self._inbox.get(timeout=POLL_S))
            while True:
                arrived.append(self._inbox.get_nowait())
        except Empty:
            pass
        if not arrived:  # a process that somebody has forked just then may hold a dead worker's pipe open
            arrived += [(worker, DEAD) for worker in self._running if worker.process.poll() is not None]
        return arrived

    def _progress(self) -> tuple[int, int]:
        done = self._done + sum(worker.counters[DONE] for worker in self._running)
        return done, self._bad + sum(worker.counters[BAD] for worker in self._running)

    def _kill_hung(self, passed_s: float) -> None:
        if self._decode_timeout_s is None:
            return
        for worker, run in self._running.items():
            turns = worker.counters[TURNS]
            moves = turns != run.turns or worker.decoding is None
            run.turns, run.still_s = turns, 0.0 if moves else run.still_s + passed_s
            if run.still_s > self._decode_timeout_s and not run.hung:
                run.hung = True
                worker.kill()

    def _after_death(self, worker: Worker, run: Run) -> Run:
        """What is to be done again now that `worker` is dead. Raises WorkerDied."""
        row = worker.decoding
        code = worker.end()
        crashed = code is not None and -code in CRASHES
        if not (crashed or run.hung) or not hasattr(run.job, "refused"):
            raise died(code)
        if hasattr(run.job, "clear"):
            run.job.clear()
        if not run.again:
            return Run(run.number, replace(run.job, threads=1), again=True)
        if row is None:  # it was not decoding
            raise died(code)
        if crashed:
            problem = f"its decoder has crashed twice ({_how(code)})"
            error: DecoderCrashed | DecoderHung = DecoderCrashed("", problem, "re-save it with an image editor")
        else:
            problem = f"was not decoded within {self._decode_timeout_s:g} s, twice"
            error = DecoderHung("", problem, "raise --decode-timeout, or re-save it with an image editor")
        return Run(run.number, replace(run.job, refused={**run.job.refused, row: error}), again=True)


def died(code: int | None) -> WorkerDied:
    """The error of a build whose worker has ended with this exit code."""
    step = "free memory or take fewer --workers" if code == -getattr(signal, "SIGKILL", 0) else "build again"
    return WorkerDied("", f"a worker process died ({_how(code)})", step)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
