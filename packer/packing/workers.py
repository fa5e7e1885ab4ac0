"""A worker process of a build, from both sides: started, given a job, watched; and what it does in there.

Each has a pipe of its own for jobs and results, and a row of counters in shared memory that outlives it. So a worker
that dies takes no other with it, and what it was decoding is known.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait as wait_for
from types import ModuleType
from typing import Any

from packer.errors import PackerError
from packer.packing.counters import DECODING, ROW, Counters, Reporter
from packer.packing.signals import held_signals

PRELOADED = ["packer.packing.write_shard", "packer.packing.measure", "packer.format.verify"]
JOIN_S = 10
Work = Callable[..., Any]
"""Called as work(job, report, decoding), in the worker."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error of a worker, and where it was raised there."""

    error: Exception
    trace: str


class Hall:
    """Where the workers of one build are started: one fork server, and the counters of `places` workers.

    Workers are forked from a server that has loaded the libraries once, never from the caller, whose threads a fork
    would break.
    """

    def __init__(self, places: int) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        with installed_code_only():
            resource_tracker.ensure_running()  # later it would let Ctrl-C through to the fork server when that starts
        self.counters = Counters(places)


class Worker:
    """The parent's view of a worker process; it sits at the `place` of the hall."""

    def __init__(self, hall: Hall, place: int) -> None:
        self.place = place
        self.process: Any = None
        self._counters = hall.counters
        self._counters.clear(place)
        with held_signals(), without_main():  # a process that is half started could not be ended
            self.pipe, theirs = hall.context.Pipe()
            with theirs:
                self.process = hall.context.Process(target=_serve, args=(theirs, hall.counters, place), daemon=True)
                with installed_code_only():  # the first one starts the fork server
                    self.process.start()

    def count(self, field: int) -> int:
        """One of the counters of its job."""
        return self._counters.get(self.place, field)

    @property
    def decoding(self) -> int | None:
        """The row that is being decoded; exact where the job has one thread."""
        return self.count(ROW) - 1 if self.count(DECODING) else None

    def begin(self, work: Work, job: Any) -> None:
        """Give it a job. Raises OSError where it is dead."""
        self._counters.clear(self.place)
        self.pipe.send((work, job))

    def result(self) -> Any:
        """What it has sent; None where it is dead."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def end(self) -> int | None:
        """Wait until the process has ended, by force if need be; its exit code."""
        self.process.join(JOIN_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(JOIN_S)
        code = self.process.exitcode
        self.pipe.close()
        return None if code is None else int(code)

    def dismiss(self) -> None:
        """Let an idle worker go home; `end` waits for it."""
        with suppress(OSError):
            self.pipe.send(None)


@contextmanager
def without_main() -> Iterator[None]:
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


@contextmanager
def installed_code_only() -> Iterator[None]:
    """Pythons that are started in here import nothing from the current folder.

    multiprocessing starts its servers by ``python -c``, which looks there first, before all libraries: a cv2.py among
    somebody's images would be run. Python 3.10 knows no way around it.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _serve(pipe: Any, counters: Counters, place: int) -> None:
    """What a worker process does: one job after another, until it is sent None or its parent is gone."""
    for number in (signal.SIGINT, signal.SIGHUP):  # they reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reporter = Reporter(counters, place)
    with suppress(EOFError, OSError):  # the parent is gone
        while (task := pipe.recv()) is not None:
            work, job = task
            try:
                result = work(job, reporter.report, reporter.decoding)
            except Exception as error:
                result = RemoteError(_sendable(error), traceback.format_exc())
            del task, job
            pipe.send(result)


def _sendable(error: Exception) -> Exception:
    """The error, or one that surely survives the way to the parent."""
    if isinstance(error, PackerError) or type(error).__module__ == "builtins":
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
