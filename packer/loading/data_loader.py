"""packer.DataLoader: torch's DataLoader, in which the death of a worker is one error, and never a hang.

torch reports a dead worker as RuntimeError, ConnectionResetError or EOFError, whichever comes first, or in the middle
of the training step, or (killed while it wrote a batch, or held a lock) never. Here it is `WorkerDied`, out of `next`.
"""

from __future__ import annotations

import copy
import io
import os
import queue
import signal
import time
import weakref
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from packer.errors import PackerError, WorkerDied
from packer.loading.worker_errors import Start, TellingCollate, TellingDataset

LOOK_S = 0.5
"""How often the workers are looked at while their batches do not come."""
DYING_S = 2.0
"""How long after its connection is gone a process may still count as alive."""

_LOOK = "look at what it printed; num_workers=0 shows where it happens"
_NEXT = {
    "SIGKILL": "it may have run out of memory: use fewer workers or smaller batches",
    "SIGBUS": "either /dev/shm is full (fewer workers or smaller batches; PackedLoader needs none of it), or a file of "
    "the pack was cut while it was read (a pack must be replaced, never changed)",
}


class DataLoader(torch.utils.data.DataLoader[Any]):
    """`torch.utils.data.DataLoader`, with all its options, and errors that say what happened.

    - A worker that dies (killed, out of memory, crashed, left by `sys.exit`) raises `packer.errors.WorkerDied` out of
      the loop, within seconds, for every start method, with the worker's number, process id, and how it ended; the
      other workers are ended. The next loop begins with new ones.
    - An error of packer's in a worker comes out as it was raised there: a DamagedPack with its pack, shard and key.
      Other errors come as in torch: of their own type, if that can be made of one text, with the worker's traceback.

    torch's own DataLoader reads a PackedDataset as well: errors keep their kind there, but not their attributes; and
    give it a `timeout=`, or a worker killed at the wrong moment may leave it waiting for ever.
    """

    def __iter__(self) -> _BaseDataLoaderIter:
        kept: Any = getattr(self, "_iterator", None)
        if isinstance(kept, _Workers) and kept.died is not None:
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if not self.num_workers:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        told = copy.copy(self)
        if not isinstance(self.dataset, IterableDataset):
            told.__dict__["dataset"] = TellingDataset(self.dataset)
            told.__dict__["collate_fn"] = TellingCollate(self.collate_fn)
        told.__dict__["worker_init_fn"] = Start(self.worker_init_fn)
        return _Workers(told)


class _Workers(_MultiProcessingDataLoaderIter):
    """The worker processes of one loop, or of all loops where they are persistent."""

    died: tuple[str, str] | None = None
    """Which worker has died, and how."""

    def __init__(self, loader: DataLoader) -> None:
        self._workers = []
        self._lost: list[int] = []
        self._looked_s = time.monotonic()
        self._owner = os.getpid()
        try:
            super().__init__(loader)
        except Exception as error:
            self._explain(error)
            raise
        self._guard(False)  # it would raise in the middle of what the consumer does between two batches

    @property
    def _worker_result_queue(self) -> Any:
        return self.__dict__["results"]

    @_worker_result_queue.setter
    def _worker_result_queue(self, results: Any) -> None:
        # before anyone reads: also torch's thread that pins memory
        results.get = _Patient(results, self)
        self.__dict__["results"] = results

    def __next__(self) -> Any:
        if self.died is not None:
            raise self._death(*self.died)
        try:
            return super().__next__()
        except StopIteration:
            raise
        except Exception as error:
            self._explain(error)
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        try:
            super()._reset(loader, first_iter)
        except Exception as error:
            self._explain(error)
            raise

    def _try_get_data(self, timeout: float = 5.0) -> Any:
        end = time.monotonic() + timeout
        while (now := time.monotonic()) < end:
            if now > self._looked_s + LOOK_S:  # the batches of the others may keep coming
                self._looked_s = now
                if self.dead():
                    raise RuntimeError("a worker has died")
            # raises RuntimeError where nothing comes and a worker is dead
            found: Any = super()._try_get_data(min(end - now, LOOK_S))  # type: ignore[no-untyped-call]
            if found[0]:
                return found
        return False, None

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        if not shutdown and self._workers[worker_id].exitcode is not None:
            # torch would look at an event now, whose lock the dead one may hold
            self._lost.append(worker_id)
            self._workers_status[worker_id] = False
            return
        super()._mark_worker_as_unavailable(worker_id, shutdown)

    def dead(self) -> list[int]:
        """Numbers of the workers that have ended though they had work left."""
        status = getattr(self, "_workers_status", None) or [True] * len(self._workers)
        return self._lost + [i for i, w in enumerate(self._workers) if status[i] and w.exitcode is not None]

    def _explain(self, error: Exception) -> None:
        """Raise WorkerDied where that is the reason for `error`."""
        if isinstance(error, PackerError) or not (dead := self.dead()):
            return
        worker = self._workers[dead[0]]
        self.died = f"DataLoader worker {dead[0]} (process {worker.pid})", _how(worker.exitcode or 0)
        self._end()
        raise self._death(*self.died) from None

    @staticmethod
    def _death(who: str, how: str) -> WorkerDied:
        return WorkerDied(who, how, next((step for signal_name, step in _NEXT.items() if signal_name in how), _LOOK))

    def _guard(self, on: bool) -> None:
        """Whether torch looks for dead workers whenever a child of this process ends, and raises right there."""
        if on is not self._worker_pids_set:
            if on:
                signal_handling._set_worker_pids(id(self), tuple(w.pid for w in self._workers))  # type: ignore[attr-defined, misc]
            else:
                signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = on

    def _shutdown_workers(self) -> None:
        # a forked process that drops its copy must not end its parent's workers
        if getattr(self, "_shutdown", True) or os.getpid() != self._owner:
            return
        if self.dead() or self._unheard():
            self._end()
            return
        try:
            # a worker killed in this very moment may hold a lock that torch waits for here
            self._guard(True)
            super()._shutdown_workers()
        except RuntimeError:
            self._end()

    def _unheard(self) -> bool:
        """Whether nothing that is sent to the workers arrives: the garbage collector ends the threads that send first.

        So it is where an error's traceback refers to this object; torch then waits for each worker for 5 s.
        """
        queues: list[Any] = self._index_queues
        return any(q._close is not None and not q._close.still_active() for q in queues)

    def _end(self) -> None:
        """End the workers without asking them: they may wait for a lock that the dead one holds."""
        self._shutdown = True
        with suppress(ValueError):
            self._guard(False)
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(5)
        for indices in self._index_queues:
            indices.cancel_join_thread()
            indices.close()
        if hasattr(self, "_pin_memory_thread"):
            self._pin_memory_thread_done_event.set()
            self._pin_memory_thread.join(10)  # it looks at that every LOOK_S


class _Patient:
    """`get` of the queue of batches, which does not wait for the rest of what a dead worker had begun to write."""

    def __init__(self, results: Any, workers: _Workers) -> None:
        # weak: the workers end when nobody refers to them any more
        self._results = weakref.ref(results)
        self._workers = weakref.ref(workers)
        self._file: int = results._reader.fileno()
        results._reader._recv = self._receive

    def __call__(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next batch; queue.Empty after `timeout` seconds, and where its worker died over it."""
        results: Any = self._results()
        try:
            if not block or timeout is None:
                return type(results).get(results, block, timeout)
            return self._before(time.monotonic() + timeout, results)
        except (OSError, EOFError):
            end = time.monotonic() + DYING_S
            while time.monotonic() < end:
                if self._dead():
                    raise queue.Empty from None
                time.sleep(0.01)
            raise

    def _before(self, end_s: float, results: Any) -> Any:
        """The next batch; queue.Empty when the time is over, or soon after nobody wants it any more."""
        while True:
            left = end_s - time.monotonic()
            try:
                return type(results).get(results, True, max(0.0, min(left, LOOK_S)))
            except queue.Empty:
                workers = self._workers()
                if left <= LOOK_S or workers is None or workers._shutdown:
                    raise

    def _dead(self) -> bool:
        workers = self._workers()
        return workers is None or bool(workers.dead())

    def _receive(self, size: int) -> io.BytesIO:
        """As `multiprocessing.connection.Connection._recv`, which waits without an end."""
        buffer = io.BytesIO()
        while (left := size - buffer.tell()) > 0:
            while not wait([self._file], LOOK_S):
                if self._dead():
                    raise EOFError
            chunk = os.read(self._file, left)
            if not chunk:
                raise EOFError
            buffer.write(chunk)
        return buffer


def _how(exit_code: int) -> str:
    """How a process has ended, of its exit code as multiprocessing has it."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code} before its work was done"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


__all__ = ["DataLoader"]
