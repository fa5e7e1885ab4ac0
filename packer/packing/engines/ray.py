"""The engine ray: tasks on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import ray

from packer.errors import UsageError, option, printable

HOST_AND_PORT = re.compile(r"(?:ray://)?([^:/]+):(\d{1,5})")
CONNECT_S = 10.0


class RayExecutor:
    """As much of an executor of `concurrent.futures` as an engine needs."""

    def __init__(self) -> None:
        self._remote: dict[Callable[..., Any], Any] = {}

    @property
    def _max_workers(self) -> int:
        return int(ray.cluster_resources().get("CPU", 0))

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a function on a node with a free core; Ray runs it again if that node dies.

        To cancel the future ends the task, too, if it runs.
        """
        if function not in self._remote:
            self._remote[function] = ray.remote(num_cpus=1, max_retries=3, scheduling_strategy="SPREAD")(function)
        reference = self._remote[function].remote(*args)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda done: ray.cancel(reference, force=True) if done.cancelled() else None)
        return future


@contextmanager
def executor(address: str) -> Iterator[RayExecutor]:
    """Yield an executor on the cluster at an address; empty: as `ray.init` finds it, or one on this machine."""
    ours = not ray.is_initialized()
    if ours:
        _check_answers(address or os.environ.get("RAY_ADDRESS", ""))
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(address=address or None, include_dashboard=None if address else False, **quiet)
    try:
        yield RayExecutor()
    finally:
        if ours:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise UsageError if nothing answers at ``HOST:PORT``, which Ray would try for many minutes."""
    if (there := HOST_AND_PORT.fullmatch(address)) is None:
        return
    try:
        socket.create_connection((there[1], int(there[2])), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        problem = f"no Ray cluster answers at {printable(address)}: {error}"
        raise UsageError(option("engine"), problem, "give the address that ray start --head prints") from None
