"""Runs each measurement in a fresh process, and watches its memory from outside.

The process is forked from a worker that has loaded the libraries: that costs milliseconds, and shares nothing with the
one before.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from packer.bench.job import Job
from packer.bench.result import Measured, Row
from packer.bench.watcher import Watcher
from packer.errors import PackerError
from packer.processes.pool import Pool

SAMPLE_S = 0.02
LOOK, LEAVE = "look", "leave"
"""What a process says of its memory: look at it from now on, leave it alone."""
END_S = 5.0
"""A process that has sent its result may take so long to end."""


class FolderFails(PackerError):
    """The plain folder cannot be read as most scripts do."""


def measuring() -> Pool:
    """The worker that measurements are forked from."""
    return Pool(1, None, "packer.bench.work")


def one_round(pool: Pool, jobs: dict[str, Job], rows: dict[str, Row], watcher: Watcher) -> None:
    """Measure each job once, in another order each round: what one leaves behind meets another."""
    names = list(jobs)
    turn = max(len(row.rounds) for row in rows.values()) % len(names)
    for name in names[turn:] + names[:turn]:
        watcher.doing(name)
        try:
            ((_, found),) = pool.run(measure_apart, [jobs[name]])
            rows[name].rounds.append(found)
        except FolderFails as error:  # an image that packer reads, and this library does not
            rows[name].left_out = f"it fails here ({error.problem.partition(': ')[2]})"
            rows[name].rounds.clear()
            del jobs[name]
        watcher.done(1)


def measure_apart(job: Job, report: Callable[[int, int], None], decoding: Any) -> Measured:
    """Do one measurement, in a process forked from this one, which must be a worker. Raises what it raises."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # who ends this worker ends all below it
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there, job))  # type: ignore[attr-defined]
    process.start()
    there.close()
    try:
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
    except EOFError:
        process.join()
        raise PackerError("bench", f"the process of {job.kind} has died ({process.exitcode})") from None
    finally:
        here.close()
        process.join(END_S)
        process.kill()
        process.join()
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, Measured)
    return replace(found, peak_bytes=max(0, peak - before))


def _child(pipe: Any, job: Job) -> None:
    from packer.bench.work import measure

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
