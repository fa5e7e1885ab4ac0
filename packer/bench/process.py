"""Runs each measurement in a fresh process, and watches its memory from outside.

The process is forked from a worker that has loaded the libraries, which takes milliseconds and shares nothing with
earlier measurements.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from packer.bench.measure import memory_bytes
from packer.bench.report import Job, Measured, Row
from packer.errors import PackerError
from packer.model.annotation import Progress
from packer.system import PORTABLE, lead_group
from packer.system.pool import Pool

POLL_S = 0.02
LOOK, LEAVE = "look", "leave"
"""Messages of a process: start or stop watching its memory."""
END_S = 5.0
"""Maximum time for a process to end after it has sent its result."""


class FolderFails(PackerError):
    """The plain folder cannot be read with an ordinary DataLoader."""


def measuring() -> Pool:
    """Return a pool with one worker, from which measurements are forked."""
    return Pool(1, None, "packer.bench.work")


def one_round(pool: Pool, rows: Iterable[Row], progress: Progress) -> None:
    """Measure each row once, in a different order each round, to spread the effects of one on the next."""
    rows = [row for row in rows if not row.left_out]
    turn = max(len(row.rounds) for row in rows) % len(rows)
    for row in rows[turn:] + rows[:turn]:
        try:
            ((_, measured),) = pool.run(measure_apart, [row.job])
            row.rounds.append(measured)
        except FolderFails as error:  # an image that packer can read but this library cannot
            row.left_out = f"it fails here ({error.problem.partition(': ')[2]})"
            row.rounds.clear()
        progress.advance(1)


def measure_apart(job: Job, report: Callable[[int, int], None], decoding: Any) -> Measured:
    """Run one measurement in a process forked from this worker, and raise its exceptions."""
    lead_group()  # killing this worker then kills its children too
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there, job))  # type: ignore[attr-defined]
    process.start()
    there.close()
    try:
        here.recv()  # it has begun
        before = peak = memory_bytes(process.pid or 0)
        here.send(None)
        wait_s = None
        while True:
            while not here.poll(wait_s):
                peak = max(peak, memory_bytes(process.pid or 0))
            received = here.recv()
            if received not in (LOOK, LEAVE):
                break
            peak = max(peak, memory_bytes(process.pid or 0))
            wait_s = POLL_S if received == LOOK else None
            here.send(None)
    except EOFError:
        process.join()
        what = f"the process of {'your loader' if job.loader else job.kind} died ({process.exitcode})"
        raise PackerError(job.loader or "bench", what) from None
    finally:
        here.close()
        process.join(END_S)
        process.kill()
        process.join()
    if isinstance(received, BaseException):
        raise received
    assert isinstance(received, Measured)
    return replace(received, peak_bytes=max(0, peak - before))


def _end_with_parent() -> None:
    """End this process when its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _child(pipe: Any, job: Job) -> None:
    from packer.bench.work import measure

    if PORTABLE:  # elsewhere it is killed with the worker's group, and measures without another thread
        _end_with_parent()

    def tell(message: Any) -> None:
        pipe.send(message)
        pipe.recv()

    @contextmanager
    def watched() -> Iterator[None]:
        tell(LOOK)
        yield
        tell(LEAVE)

    tell("begun")
    try:
        answer: Any = measure(job, watched)
    except PackerError as error:
        answer = error
    except Exception as error:
        kind = FolderFails if job.kind.startswith("folder") else PackerError
        answer = kind("bench", f"{job.kind}: {(str(error).strip() or repr(error)).splitlines()[-1]}")
    pipe.send(answer)
    pipe.close()
