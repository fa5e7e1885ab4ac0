"""The engine dask: tasks on the workers of dask.distributed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client

from packer.errors import UsageError, option, printable


class DaskExecutor:
    """As much of an executor of `concurrent.futures` as an engine needs."""

    def __init__(self, client: Client, tasks: Any) -> None:
        self._client = client
        self.submit = tasks.submit

    @property
    def _max_workers(self) -> int:
        return sum(self._client.nthreads().values())


@contextmanager
def executor(address: str) -> Iterator[Any]:
    """Yield an executor on the workers of a scheduler (its address or JSON file), or of this machine if it is empty."""
    if not address:
        where: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    elif address.endswith(".json"):
        if not os.path.exists(address):  # dask would wait for it
            raise UsageError(address, "no such file", "start dask scheduler with --scheduler-file, or give its address")
        where = {"scheduler_file": address}
    elif not address.rpartition(":")[2].isdecimal():
        raise UsageError(option("engine"), f"dask: {printable(address)} has no port", "give dask:tcp://HOST:8786")
    else:
        where = {"address": address}
    with Client(**where, set_as_default=False) as client:
        tasks = client.get_executor(retries=3, pure=False)
        try:
            yield DaskExecutor(client, tasks)
        finally:
            tasks.shutdown(wait=False)  # the engine has canceled its tasks, and dask may have no worker to say so
