"""Runs jobs in worker processes, so that an image that crashes its decoder costs only that image.

If a decoder crashes or hangs, only its worker dies. The job runs again with one thread; if it happens again, the row
that the counters name is rejected, and the job runs again without it.

Workers are started with `subprocess`, because multiprocessing, pebble and loky cannot start any in a daemonic process.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from packer.errors import DecoderCrashed, DecoderHung, PackerError, StorageError, WorkerDied
from packer.system import ENDING_SIGNALS, PORTABLE, blocked_group_signals, kill_group
from packer.system.child import BAD, COUNTERS_BYTES, DECODING, DONE, READY, ROW, TURNS, RemoteError, counters_in


@contextmanager
def held_signals() -> Iterator[None]:
    """Delay signals that arrive in this context until its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no signal handler in this thread
        return
    came: list[int] = []
    before = {}
    try:
        for number in ENDING_SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None:  # None: not installed by Python, so it could not be restored
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in came:  # the first one ends the build unless it is ignored (nohup)
            signal.raise_signal(sent)


def run_held(action: Callable[[], None]) -> None:
    """Run an action to its end even if signals arrive just before they are delayed. It may run twice.

    Exceptions that the signals raise are raised afterwards.
    """
    came: BaseException | None = None
    while True:
        try:
            with held_signals():
                action()
            break
        except (KeyboardInterrupt, SystemExit) as error:
            came = error
    if came is not None:
        raise came


POLL_S = 0.1
LONGEST_TURN_S = 1.0
"""Longer pauses of this process (Ctrl-Z, a slow disk) do not count towards a worker's timeout."""
CRASHES = {getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")}
JOIN_S = 10.0
BOOT = "import sys; sys.path[:] = {path!a}; from packer.system.child import serve; serve({counters!a}, {preload!a})"
"""`sys` is built in; everything else is imported from that path, and so never from the current folder."""
NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # on Windows, only the parent gets Ctrl-C
INHERITED = not PORTABLE
"""Whether a worker receives the file of its counters as a descriptor rather than by name."""
DEAD = object()
"""Put into the inbox in place of a result when a worker has died."""

Work = Callable[..., Any]
"""Called as work(job, report, decoding), in the worker."""
Tick = Callable[[int, int], None]
"""Called with (rows done, bad rows among them)."""
Inbox = SimpleQueue[tuple["Worker", Any]]


def import_path() -> list[str]:
    """Return the import path of a worker: that of this process without the current folder, which may hold anything."""
    # packer's own folder is added at the end because packer may have been imported from the current folder
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [*dict.fromkeys([*(entry for entry in sys.path if isinstance(entry, str) and entry), home])]


class Worker:
    """A worker process. Its results are put into `inbox`."""

    def __init__(self, inbox: Inbox, preload: str) -> None:
        """Start the process. Raise OSError or RuntimeError if the system cannot.

        Args:
            inbox: Receives its results, and DEAD when it has died.
            preload: Modules to import before the first job, separated by spaces.
        """
        handle, self._file = tempfile.mkstemp(prefix="packer-worker-")
        try:
            os.write(handle, bytes(COUNTERS_BYTES))  # allocates the page: on a full disk a map would raise SIGBUS later
            self.counters = counters_in(self._file)
            if INHERITED:
                os.unlink(self._file)  # so that no file is left behind, whichever process is killed
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
        except Exception:  # EOFError, or a truncated result
            inbox.put((self, DEAD))

    @property
    def decoding(self) -> int | None:
        """The row that is being decoded; exact if the job has one thread."""
        return self.counters[ROW] - 1 if self.counters[DECODING] else None

    def begin(self, work: Work, job: Any) -> None:
        """Send it a job. Raise OSError if it is dead."""
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
        """Wait for the process to end, kill it if necessary, and return its exit code."""
        try:
            self.process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(JOIN_S)
        self._reader.join(JOIN_S)
        pipes: Any = (self.process.stdin, self.process.stdout)
        for pipe in () if self._reader.is_alive() else pipes:  # closing a pipe would wait for its reader
            with suppress(OSError):
                pipe.close()
        if not INHERITED:
            self.counters.release()
            with suppress(OSError):
                os.unlink(self._file)
        return self.process.returncode


@dataclass(slots=True)
class Run:
    """A job and its state."""

    number: int
    job: Any
    again: bool
    """Whether this is its second run, with one thread."""
    turns: int = 0
    still_s: float = 0.0
    """How long it has been decoding the same images."""
    hung: bool = False


class Pool:
    """Runs jobs in at most `size` worker processes. A context manager: exiting it ends the processes."""

    def __init__(self, size: int, decode_timeout_s: float | None, preload: str) -> None:
        """Create a pool without starting workers.

        Args:
            size: Number of workers.
            decode_timeout_s: A worker that decodes the same images for longer is killed. None: no limit.
            preload: Modules that each worker imports when it starts, separated by spaces.
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
        """Start workers in the background until this number of them waits for jobs.

        Raises StorageError if the system cannot start a process.
        """
        for worker in [worker for worker in self._idle if worker.process.poll() is not None]:
            self._idle.remove(worker)  # it was killed while idle
            worker.end()
        try:
            while len(self._idle) < workers:
                with held_signals():  # a half-started process could not be ended
                    self._idle.append(Worker(self._inbox, self._preload))
        except OSError as error:  # out of descriptors, processes, memory or temporary space
            problem = f"cannot start a worker process: {error.strerror or error}"
            raise StorageError("", problem, "use fewer --workers, or raise the limits of the system") from None

    def run(self, work: Work, jobs: Sequence[Any], tick: Tick = lambda done, bad: None) -> Iterator[tuple[int, Any]]:
        """Run jobs in parallel. An exception in `tick` or in the work ends the run.

        Args:
            work: Runs a job, in a worker.
            jobs: Each is taken when a worker is free. If that crashes or hangs while decoding, the job runs again if it
                is a dataclass with `threads` and `refused`; a method `clear()` removes the files of the dead worker.
            tick: Called about every 0.1 s.

        Yields:
            (number of the job, its result), as jobs finish.

        Raises:
            WorkerDied: A worker died for another reason.
        """
        waiting: deque[int | Run] = deque(range(len(jobs)))
        done, bad, before = 0, 0, time.monotonic()
        while waiting or self._running:
            free = min(len(waiting), self.size - len(self._running))
            self.start(free)  # all before the first job is sent: sending blocks until the worker reads
            for _ in range(free):
                each = waiting.popleft()  # making its job takes time if it is a partition
                run = each if isinstance(each, Run) else Run(each, jobs[each], again=False)
                worker = self._idle.pop(0)  # the one started first is likely to be ready
                self._running[worker] = run
                with suppress(OSError):  # the worker is dead; `_arrived` will notice
                    worker.begin(work, run.job)
            arrived = self._arrived()
            self._kill_hung(min((now := time.monotonic()) - before, LONGEST_TURN_S))
            before = now
            finished = []
            for worker, result in arrived:
                if worker not in self._running:  # it died while idle
                    continue
                run = self._running.pop(worker)
                if result is DEAD:
                    waiting.appendleft(self._after_death(worker, run))
                    continue
                done, bad = done + worker.counters[DONE], bad + worker.counters[BAD]
                if run.hung:  # it finished just before it was killed
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
        """Return the results that have arrived and the workers that have died, after at most POLL_S."""
        arrived = []
        with suppress(Empty):
            arrived.append(self._inbox.get(timeout=POLL_S))
            while True:
                arrived.append(self._inbox.get_nowait())
        # a process forked at that moment may hold a dead worker's pipe open
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
        """Return the run that repeats the job of a dead worker, or raise WorkerDied."""
        row, code = worker.decoding, worker.end()
        crashed = code is not None and -code in CRASHES
        may_go_on = (crashed or run.hung) and hasattr(run.job, "refused")
        if not may_go_on or (run.again and row is None):  # None: it was not decoding
            step = "free memory or use fewer --workers" if code == -getattr(signal, "SIGKILL", 0) else "build again"
            raise WorkerDied("", f"a worker process died ({_how(code)})", step)
        if hasattr(run.job, "clear"):
            run.job.clear()
        if not run.again:
            return Run(run.number, replace(run.job, threads=1), again=True)
        if crashed:
            problem = f"crashed the decoder twice ({_how(code)})"
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


WATCH_S = 0.002


@dataclass(frozen=True)
class Ran:
    """How a command ended.

    Attributes:
        code: Exit code; negative: the signal that killed it.
        text: What it printed, on standard output and standard error.
        killed: Whether it was killed here.
    """

    code: int
    text: str
    killed: bool


def run_packer(arguments: Sequence[str], kill_when: Callable[[], bool] | None = None) -> Ran:
    """Run ``packer ARGUMENTS`` in a process of its own, and kill it and its workers when a condition comes true.

    Args:
        arguments: Command and options.
        kill_when: The condition, asked every few milliseconds. None: it runs to its end.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path()), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "packer", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        killed = False
        try:
            while kill_when is not None and process.poll() is None and not killed:
                if killed := kill_when():
                    kill_group(process.pid)
                    process.kill()
                else:
                    time.sleep(WATCH_S)
            text, _ = process.communicate()
        except BaseException:
            kill_group(process.pid)
            process.kill()
            raise
    return Ran(process.returncode, text, killed)
