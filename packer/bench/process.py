"""Runs each measurement in a fresh process, and watches its memory from outside."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from typing import Any

from packer.bench.job import Job
from packer.bench.result import Measured, Row
from packer.bench.watcher import Watcher
from packer.errors import PackerError
from packer.packing.signals import held_signals
from packer.packing.workers import PRELOADED, installed_code_only, without_main

SAMPLE_S = 0.02
LOOK, LEAVE = "look", "leave"
"""What a process says of its memory: look at it from now on, leave it alone."""
END_S = 5.0
"""A process that has sent its result may take so long to end."""


class FolderFails(PackerError):
    """The plain folder cannot be read as most scripts do."""


class Hall:
    """Forks processes from a server that has loaded the libraries: a fresh one costs milliseconds, and shares nothing
    with the one before."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        # what builds preload too: there is one such server in a process
        self._context.set_forkserver_preload([*PRELOADED, "packer.bench.work"])
        with held_signals(), installed_code_only():  # Ctrl-C is for this process, not for the servers
            resource_tracker.ensure_running()
            forkserver.ensure_running()  # before a build starts one that lacks torch

    def run(self, job: Job) -> Measured:
        """Do one measurement. Raises what it raises."""
        here, there = self._context.Pipe()
        process = self._context.Process(target=_child, args=(there, job))
        try:
            # a process that is half started could not be ended; signals that come meanwhile end it here
            with held_signals(), without_main(), installed_code_only():
                process.start()
                there.close()
            here.recv()  # it has begun
            before = peak = _memory_bytes(process.pid or 0)
            here.send(None)
            wait_s = None
            while True:
                while not here.poll(wait_s):
                    peak = max(peak, _memory_bytes(process.pid or 0))
                found = here.recv()
                if found not in (LOOK, LEAVE):
                    break
                peak = max(peak, _memory_bytes(process.pid or 0))
                wait_s = SAMPLE_S if found == LOOK else None
                here.send(None)
            process.join(END_S)
        except EOFError:
            process.join()
            raise PackerError("bench", f"the process of {job.kind} has died ({process.exitcode})") from None
        finally:
            here.close()
            _end(process)
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, Measured)
        return replace(found, peak_bytes=max(0, peak - before))


def one_round(jobs: dict[str, Job], rows: dict[str, Row], watcher: Watcher) -> None:
    """Measure each job once, in another order each round: what one leaves behind meets another."""
    hall, names = Hall(), list(jobs)
    turn = max(len(row.rounds) for row in rows.values()) % len(names)
    for name in names[turn:] + names[:turn]:
        watcher.doing(name)
        try:
            rows[name].rounds.append(hall.run(jobs[name]))
        except FolderFails as error:  # an image that packer reads, and this library does not
            rows[name].left_out = f"it fails here ({error.problem.partition(': ')[2]})"
            rows[name].rounds.clear()
            del jobs[name]
        watcher.done(1)


def _end(process: Any) -> None:
    """End a process and its workers, whatever they are doing."""
    if process.pid is None:
        return  # it was not started
    if process.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not lead a group yet
    process.join()


def _child(pipe: Any, job: Job) -> None:
    from packer.bench.work import measure

    os.setpgid(0, 0)  # Ctrl-C does not reach it; its workers can be ended with it

    def said(word: Any) -> None:
        pipe.send(word)
        pipe.recv()

    @contextmanager
    def watched() -> Iterator[None]:
        said(LOOK)
        yield
        said(LEAVE)

    said(True)
    try:
        found: Any = measure(job, watched)
    except PackerError as error:
        found = error
    except Exception as error:
        kind = FolderFails if job.kind.startswith("folder") else PackerError
        found = kind("bench", f"{job.kind}: {(str(error).strip() or repr(error)).splitlines()[-1]}")
    pipe.send(found)
    pipe.close()


def _memory_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process and its children, no page cache; pages that several share count once."""
    total = 0
    for one in (pid, *_children_of(pid)):
        with suppress(OSError, ValueError), open(f"/proc/{one}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    return total


def _children_of(pid: int) -> Iterator[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        yield from map(int, file.read().split())
