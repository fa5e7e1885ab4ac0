"""The engine that packs shards on this machine: worker processes, each making whole shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from packer.packing.headers import HeaderJob, Headers, read_headers
from packer.packing.measure import MeasureJob, measure
from packer.packing.result import ShardResult
from packer.packing.signals import held_signals
from packer.packing.supervise import Supervisor
from packer.packing.write_shard import ShardJob, pack_shard

DECODE_TIMEOUT_S = 60.0


class LocalEngine:
    """Runs shard jobs in up to `workers` processes. A context manager: leaving it ends the processes.

    An image on which the decoder crashes, or which it does not finish in `decode_timeout_s` (None: no limit), is
    rejected; its worker is replaced.
    """

    def __init__(self, workers: int, decode_timeout_s: float | None = DECODE_TIMEOUT_S) -> None:
        self.workers = workers
        self._supervisor = Supervisor(workers, decode_timeout_s)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with held_signals():
            self._supervisor.end(now=kind is not None)

    def warm_up(self) -> None:
        """Load the libraries now, in the server that the workers are forked from, while the source is read."""
        self._supervisor.warm_up()

    def measure(self, job: MeasureJob) -> list[tuple[int, int]]:
        """(bytes encoded, bytes of pixels) of each image of the job that is good."""
        ((_, sizes),) = self._supervisor.run(measure, [job], lambda done, bad: None)
        return list(sizes)

    def read_headers(self, jobs: Sequence[HeaderJob]) -> Iterator[tuple[int, Headers]]:
        """Yield (number of the job, the headers of its images) as they come."""
        if len(jobs) < 2:
            yield from enumerate(map(read_headers, jobs))
        else:
            yield from self._supervisor.run(read_headers, jobs, lambda done, bad: None)

    def run(self, jobs: Sequence[ShardJob], tick: Callable[[int, int], None]) -> Iterator[tuple[int, ShardResult]]:
        """Yield (number of the job, its result) as they come; `tick(done, bad)` is called about every 0.1 s.

        What `tick` raises ends the run. Raises WorkerDied where a process ends by itself.
        """
        threads = threads_of(len(jobs), self.workers)
        shared = [replace(job, threads=n) for job, n in zip(jobs, threads, strict=True)]
        yield from self._supervisor.run(pack_shard, shared, tick)


def threads_of(jobs: int, workers: int) -> list[int]:
    """Threads of each job, so that all cores work to the end.

    Full rounds of shards have one thread each; where the last round has fewer shards than workers, its
    shards share the workers' cores among them.
    """
    last_round = jobs % workers
    threads = [1] * (jobs - last_round)
    return threads + [-(-workers // max(1, last_round))] * last_round
