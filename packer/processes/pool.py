"""Hands jobs to worker processes, and sees to it that one image costs no more than itself.

If a decoder crashes or hangs, its worker dies, and no other. The job is run again with one thread; if it happens there
too, the row that the counters name is refused, and the job is run again without it.

Workers are started by `subprocess`: multiprocessing, pebble and loky start nothing in a daemonic process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from packer.errors import DecoderCrashed, DecoderHung, PackerError, StorageError, WorkerDied
from packer.processes.child import BAD, COUNTERS_BYTES, DECODING, DONE, READY, ROW, TURNS, RemoteError, counters_in
from packer.processes.signals import held_signals, run_held
from packer.system import PORTABLE, blocked_group_signals, kill_group

POLL_S = 0.1
LONGEST_TURN_S = 1.0
"""A pause of this process that is longer (Ctrl-Z, a slow disk) is not counted to a worker."""
CRASHES = {getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")}
JOIN_S = 10.0
BOOT = "import sys; sys.path[:] = {path!a}; from packer.processes.child import serve; serve({counters!a}, {preload!a})"
"""`sys` is part of Python itself; all else is imported from that path, and so never from the current folder."""
NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # Windows: Ctrl-C is for the parent
INHERITED = not PORTABLE
"""A worker gets the file of its counters by its descriptor; else by its name."""
DEAD = object()
"""Stands for the results of a worker that is dead."""

Work = Callable[..., Any]
"""Called as work(job, report, decoding), in the worker."""
Tick = Callable[[int, int], None]
"""Called with (rows done, of these bad)."""
Inbox = SimpleQueue[tuple["Worker", Any]]


def import_path() -> list[str]:
    """Return where a worker imports from: as this process, but not from the current folder, where it may be started."""
    # packer itself may have been found there: its own folder comes last
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [*dict.fromkeys([*(entry for entry in sys.path if isinstance(entry, str) and entry), home])]


class Worker:
    """A process that is started, and puts what it sends into `inbox`."""

    def __init__(self, inbox: Inbox, preload: str) -> None:
        """Start it. Raises OSError or RuntimeError if the system lacks something.

        Args:
            inbox: Gets its results, and DEAD when it is dead.
            preload: Modules that it imports before its first job, with spaces between them.
        """
        handle, self._file = tempfile.mkstemp(prefix="packer-worker-")
        try:
            os.write(handle, bytes(COUNTERS_BYTES))  # a page that a full disk does not give would be SIGBUS later
            self.counters = counters_in(self._file)
            if INHERITED:
                os.unlink(self._file)  # nothing of it stays, whoever is killed
            boot = BOOT.format(path=import_path(), counters=handle if INHERITED else self._file, preload=preload)
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
            command = [sys.executable, *flags, "-c", boot]
            with blocked_group_signals():
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, creationflags=NEW_GROUP,
                    pass_fds=(handle,) if INHERITED else (),
                )  # fmt: skip
            self._reader = threading.Thread(target=self._receive, args=(inbox,), name="packer-worker", daemon=True)
            self._reader.start()
        except BaseException:
            with suppress(OSError):
                os.unlink(self._file)
            raise
        finally:
            os.close(handle)

    def _receive(self, inbox: Inbox) -> None:
        output: Any = self.process.stdout
        try:
            while (line := output.readline()) and not line.endswith(READY):
                pass
            while True:
                inbox.put((self, pickle.load(output)))
        except Exception:  # EOFError, or what it has sent is cut
            inbox.put((self, DEAD))

    @property
    def decoding(self) -> int | None:
        """The row that is being decoded; exact where the job has one thread."""
        return self.counters[ROW] - 1 if self.counters[DECODING] else None

    def begin(self, work: Work, job: Any) -> None:
        """Give it a job. Raises OSError if it is dead."""
        jobs: Any = self.process.stdin
        for field in range(len(self.counters)):
            self.counters[field] = 0
        pickle.dump((work, job), jobs)
        jobs.flush()

    def kill(self) -> None:
        """Kill it, and its group if it leads one."""
        if self.process.returncode is None:
            kill_group(self.process.pid)
        self.process.kill()

    def end(self) -> int | None:
        """Wait until the process has ended, by force if need be, and return its exit code."""
        try:
            self.process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(JOIN_S)
        self._reader.join(JOIN_S)
        pipes: Any = (self.process.stdin, self.process.stdout)
        for pipe in () if self._reader.is_alive() else pipes:  # closing one would wait for the reader
            with suppress(OSError):
                pipe.close()
        if not INHERITED:
            self.counters.release()
            with suppress(OSError):
                os.unlink(self._file)
        return self.process.returncode


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

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        run_held(self._end)

    def _end(self) -> None:
        workers = [*self._idle, *self._running]
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.end()
        self._idle, self._running = [], {}

    def start(self, workers: int) -> None:
        """Let so many living workers wait for jobs: starting takes a moment, of which nothing is felt here.

        Raises StorageError if the system lacks something for it.
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
        """Run jobs, several at a time. What `tick` or the work raises ends the run.

        Args:
            work: Runs a job, in a worker.
            jobs: A job whose worker crashes or hangs while it decodes is run again if it is a dataclass with `threads`
                and `refused`; it may have `clear()`, which removes what the dead worker has left.
            tick: Called about every 0.1 s.

        Yields:
            (number of the job, its result), as they come.

        Raises:
            WorkerDied: A worker has ended otherwise.
        """
        waiting = deque(Run(number, job, again=False) for number, job in enumerate(jobs))
        done = bad = 0
        before = time.monotonic()
        while waiting or self._running:
            free = min(len(waiting), self.size - len(self._running))
            self.start(free)  # all of them, before the first job, which may have to wait until its worker reads it
            for _ in range(free):
                worker, run = self._idle.pop(0), waiting.popleft()  # it was started first
                self._running[worker] = run
                with suppress(OSError):  # dead: its end is noticed as any other
                    worker.begin(work, run.job)
            arrived = self._arrived()
            now = time.monotonic()
            self._kill_hung(min(now - before, LONGEST_TURN_S))
            before = now
            finished = []
            for worker, result in arrived:
                if worker not in self._running:  # it had nothing to do when it died
                    continue
                run = self._running.pop(worker)
                if result is DEAD:
                    waiting.appendleft(self._after_death(worker, run))
                    continue
                done, bad = done + worker.counters[DONE], bad + worker.counters[BAD]
                if run.hung:  # it was done just before it was killed
                    worker.end()
                else:
                    self._idle.append(worker)
                finished.append((run.number, result))
            running = [worker.counters for worker in self._running]
            tick(done + sum(one[DONE] for one in running), bad + sum(one[BAD] for one in running))
            for number, result in sorted(finished, key=lambda item: item[0]):
                if isinstance(result, RemoteError):
                    raise result.error from RuntimeError(f"in a worker:\n{result.trace}")
                yield number, result

    def _arrived(self) -> list[tuple[Worker, Any]]:
        """What workers have sent, and which have died; after POLL_S at most."""
        arrived = []
        with suppress(Empty):
            arrived.append(self._inbox.get(timeout=POLL_S))
            while True:
                arrived.append(self._inbox.get_nowait())
        # a process that somebody has forked just then may hold a dead worker's pipe open
        return arrived or [(worker, DEAD) for worker in self._running if worker.process.poll() is not None]

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
        """Return what is to be done again now that `worker` is dead. Raises WorkerDied."""
        row, code = worker.decoding, worker.end()
        crashed = code is not None and -code in CRASHES
        may_go_on = (crashed or run.hung) and hasattr(run.job, "refused")
        if not may_go_on or (run.again and row is None):  # None: it was not decoding
            step = "free memory or take fewer --workers" if code == -getattr(signal, "SIGKILL", 0) else "build again"
            raise WorkerDied("", f"a worker process died ({_how(code)})", step)
        if hasattr(run.job, "clear"):
            run.job.clear()
        if not run.again:
            return Run(run.number, replace(run.job, threads=1), again=True)
        if crashed:
            problem = f"its decoder has crashed twice ({_how(code)})"
            error: PackerError = DecoderCrashed("", problem, "re-save it with an image editor")
        else:
            problem = f"was not decoded within {self._decode_timeout_s:g} s, twice"
            error = DecoderHung("", problem, "raise --decode-timeout, or re-save it with an image editor")
        return Run(run.number, replace(run.job, refused={**run.job.refused, row: error}), again=True)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
