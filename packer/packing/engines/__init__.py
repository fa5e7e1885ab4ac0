"""Who runs the jobs of a build: processes of this machine, Ray, dask, or any executor of `concurrent.futures`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from packer.errors import NotInstalled, UsageError, option, printable
from packer.packing.engines.executor import ExecutorEngine, Setup
from packer.packing.resume import versions
from packer.system import usable_cores
from packer.system.machine import install_command
from packer.system.pool import Pool
from packer.system.registry import Registry

_REGISTRY = Registry(
    {"ray": "packer.packing.engines.ray:executor", "dask": "packer.packing.engines.dask:executor"}, "packer.engines"
)
"""Engines: a name, and the function that returns the executor, of what follows the name: an address, or nothing."""
LOCAL = "local"
FORMS = f"{LOCAL}, ray[:ADDRESS], dask[:SCHEDULER] or MODULE:FUNCTION"


Engine: TypeAlias = Pool | ExecutorEngine
"""Runs jobs in other processes. A context manager: exiting it ends them."""


def open_engine(
    name: str,
    workers: int | None,
    decode_timeout_s: float | None,
    preload: str,
    paths: tuple[str, ...] = (),
    note: Callable[[str], None] = print,
) -> Engine:
    """Return an engine.

    Args:
        name: ``local``, ``ray[:ADDRESS]``, ``dask[:SCHEDULER]``, or ``MODULE:FUNCTION``, which returns an executor.
        workers: Number of worker processes of this machine, or of jobs at once. None: as many as there are cores.
        decode_timeout_s: A worker that decodes the same images for longer is killed. None: no limit.
        preload: Modules that each worker imports when it starts, separated by spaces.
        paths: What all nodes of a cluster must see: the source, and where the shards are written.
        note: Called with what the user should know.

    Raises:
        NotInstalled: Its library is missing.
        UsageError: There is no such engine.
    """
    if not isinstance(name, str):
        raise UsageError(
            option("engine"), f"must be a text: {FORMS}; got {name!r}", "return the executor from a function"
        )
    if name == LOCAL:
        return Pool(workers or usable_cores(), decode_timeout_s, preload)
    return ExecutorEngine(name, _opener(name), workers, Setup(decode_timeout_s, preload, paths, versions()), note)


def _opener(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return the function that opens the executor of an engine."""
    module, _, function = name.partition(":")
    if module in _REGISTRY.names:
        return partial(_known(module), function)
    if not module or not function:
        raise UsageError(option("engine"), f"must be {FORMS}; got {printable(name)}")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        step = "name a module that Python can import here, with PYTHONPATH=. for one in this folder"
        raise UsageError(option("engine"), f"{printable(module)} cannot be imported: {error}", step) from None
    if not callable(found):
        problem = f"{printable(module)} has no function {printable(function)}"
        raise UsageError(option("engine"), problem, f"give {FORMS}")
    opened: Callable[[], AbstractContextManager[Any]] = found
    return opened


def _known(name: str) -> Callable[[str], AbstractContextManager[Any]]:
    """Return the function of an engine that has a name. Raise NotInstalled if it cannot be imported."""
    try:
        found: Callable[[str], AbstractContextManager[Any]] = _REGISTRY.load(name)
    except ModuleNotFoundError:
        raise NotInstalled(option("engine"), f"{name} is not installed", install_command(name)) from None
    except ImportError as error:
        problem = f"{name} cannot be imported: {error}"
        raise UsageError(option("engine"), problem, "repair its installation") from None
    return found


def threads_of(jobs: int, workers: int) -> list[int]:
    """Return the number of threads of each job, chosen to keep all cores busy until the end.

    Jobs have one thread each, except that the last round shares all cores if it has fewer shards than workers.
    """
    last_round = jobs % workers
    threads = [1] * (jobs - last_round)
    return threads + [-(-workers // max(1, last_round))] * last_round


def with_threads(jobs: Sequence[Any], workers: int) -> list[Any]:
    """Return jobs, dataclasses, with their number of `threads`: those of `threads_of`."""
    return [replace(job, threads=n) for job, n in zip(jobs, threads_of(len(jobs), workers), strict=True)]
