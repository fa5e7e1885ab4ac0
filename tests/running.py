"""Runs the command line, in this process or in another, and looks at what a build leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import audit_guard
from forking import SERVER

from packer.__main__ import main
from packer.system import ENDING_SIGNALS
from packer.system.pool import Pool

ROOT = Path(__file__).resolve().parent.parent
GUARD_S = 240
"""Ends a process that hangs; on a busy machine, a build of a second has taken more than a minute."""


@dataclass(frozen=True)
class Ran:
    """What a command has said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """What is wrong, without the next step."""
        lines = self.err.splitlines()
        return lines[: len(lines) - len(self.steps)]

    @property
    def steps(self) -> list[str]:
        """The next step, ``try: ...``, and the lines below it."""
        lines = self.err.splitlines()
        return lines[next((number for number, line in enumerate(lines) if line.startswith("try: ")), len(lines)) :]


def run(*arguments: Any) -> Ran:
    """A command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                words = [_text(a) for a in arguments]
                with audit_guard.command(words):
                    code = main(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return Ran(code, out.getvalue(), err.getvalue())


@contextmanager
def jobs_here() -> Iterator[None]:
    """Meanwhile pools run their jobs in this process: a worker takes a third of a second to start.

    Jobs and results are pickled as on their way to a worker. Benchmarks keep their processes.
    """
    start, run = Pool.start, Pool.run

    def is_bench(pool: Pool) -> bool:
        return "packer.bench" in pool._preload

    def start_here(pool: Pool, workers: int) -> None:
        if is_bench(pool):
            start(pool, workers)

    def run_here(pool: Pool, work: Any, jobs: Sequence[Any], tick: Any = lambda done, bad: None) -> Iterator[Any]:
        if is_bench(pool):
            yield from run(pool, work, jobs, tick)
            return
        counts = [0, 0]

        def report(done: int, bad: int) -> None:
            counts[:] = counts[0] + done, counts[1] + bad

        for number, job in enumerate(jobs):
            result = work(pickle.loads(pickle.dumps(job)), report, lambda row: nullcontext())
            tick(*counts)
            yield number, pickle.loads(pickle.dumps(result))

    with mock.patch.object(Pool, "start", start_here), mock.patch.object(Pool, "run", run_here):
        yield


def good(*arguments: Any) -> Ran:
    """A command that must succeed."""
    ran = run(*arguments)
    assert ran.code == 0, ran.err
    return ran


def refused(code: int, *arguments: Any) -> str:
    """A command that must fail with this exit code, one line, and a next step; returns them as one line."""
    ran = run(*arguments)
    assert ran.code == code, ran
    assert len(ran.error_lines) == 1, ran.err
    assert "Traceback" not in ran.err and "bug" not in ran.err
    return "; ".join([*ran.error_lines, *ran.steps]).replace("; try: ", "; ")


@contextmanager
def signals_heard() -> Iterator[None]:
    """Let processes that are started meanwhile hear signals that this one was started to ignore (nohup, `&`)."""
    ignored = [number for number in ENDING_SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)  # not inherited: another program begins with the default
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """A command in a process group of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, "-m", "packer", *map(_text, arguments)]
    options.setdefault("cwd", ROOT)
    with signals_heard():
        return subprocess.Popen(command, text=True, errors="surrogateescape", start_new_session=True, **options)


@contextmanager
def killed_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill what is left of the session that a process leads: a test that fails must not wait for it."""
    try:
        yield
    finally:
        for pid in members_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def run_apart(*arguments: Any, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """A command in a process of its own, with these variables added."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **(env or {})}
    with start(*arguments, env=environment, **({"cwd": cwd} if cwd else {})) as process, killed_at_last(process):
        out, err = process.communicate(timeout=GUARD_S)
    return Ran(process.returncode, out, err)


def run_script(script: str, *arguments: Any) -> str:
    """Return the output of a Python script in a separate process, which must succeed and print no errors."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(_text, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_S, env=environment, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def forked(work: Callable[[], bytes]) -> bytes:
    """What `work` says in a forked child; killed after a while."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.close(writer)
    killer = threading.Timer(GUARD_S, os.kill, (pid, 9))
    killer.start()
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    killer.cancel()
    killer.join()
    return said


def digests(pack: Path) -> dict[str, str]:
    """SHA-256 of every file of a pack."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(pack.iterdir())}


def anonymous_bytes(pid: int | str = "self") -> int:
    """Memory that a process has filled itself: neither files that it maps, nor what others do, changes it."""
    lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def kept_bytes() -> int:
    """Memory of this process, without what malloc only keeps in store."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return anonymous_bytes()


def members_of(session: int) -> dict[int, int]:
    """The living processes of a session, each with its parent (zombies are not alive)."""
    return {pid: int(fields[1]) for pid, fields in _processes() if int(fields[3]) == session and fields[0] not in "ZX"}


def workers_of(session: int) -> list[int]:
    """The worker processes of a build that leads its session."""
    return [pid for pid, parent in members_of(session).items() if parent == session]


def _processes() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                # state, parent, group, session, ... follow the name, which may hold anything
                called, _, fields = Path("/proc", name, "stat").read_text().rpartition(")")
                if not called.endswith(f"({SERVER}"):
                    yield int(name), fields.split()


class Threads:
    """The threads that have begun since and still live; those of earlier tests may end meanwhile, and do not count."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def __len__(self) -> int:
        return len(set(threading.enumerate()) - self._before)


def until(condition: Callable[[], Any], timeout_s: float) -> bool:
    """Whether the condition comes true in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def _text(argument: Any) -> str:
    return os.fsdecode(argument) if isinstance(argument, (bytes, os.PathLike)) else str(argument)
