"""A worker process as its parent sees it: started, given a job, stopped.

It is started by `subprocess` and not by multiprocessing, which has one fork server and one `__main__` in a process, and
starts nothing in a daemonic one; pebble and loky rest on it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from packer.processes.child import COUNTERS_BYTES, DECODING, READY, ROW, counters_in
from packer.processes.signals import blocked_signals

JOIN_S = 10.0
BOOT = "import sys; sys.path[:] = {path!a}; from packer.processes.child import serve; serve({counters!a}, {preload!a})"
"""`sys` is part of Python itself; all else is imported from that path, and so never from the current folder."""
NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # Windows: Ctrl-C is for the parent
INHERITED = os.name == "posix"
"""A worker gets the file of its counters by its descriptor; else by its name."""
DEAD = object()
"""Stands for the results of a worker that is dead."""

Work = Callable[..., Any]
"""Called as work(job, report, decoding), in the worker."""
Inbox = SimpleQueue[tuple["Worker", Any]]


def import_path() -> list[str]:
    """Where a worker imports from: as this process, but not from the current folder because Python was started so.

    packer itself may have been found there, so its own folder comes last.
    """
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
            with blocked_signals():
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
        assert self.process.stdin is not None
        for field in range(len(self.counters)):
            self.counters[field] = 0
        pickle.dump((work, job), self.process.stdin)
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it, and its group if it leads one."""
        if hasattr(os, "killpg") and self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def end(self) -> int | None:
        """Wait until the process has ended, by force if need be; its exit code."""
        try:
            self.process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(JOIN_S)
        self._reader.join(JOIN_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not self._reader.is_alive():  # it would wait for the reader
                with suppress(OSError):
                    pipe.close()
        if not INHERITED:
            self.counters.release()
            with suppress(OSError):
                os.unlink(self._file)
        return self.process.returncode
