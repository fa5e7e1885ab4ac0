"""Rank and world size, and validation of integer arguments."""

from __future__ import annotations

import math
import operator
import os
import re
import sys
import warnings
from collections.abc import Sized
from functools import cache
from types import new_class
from typing import Any, NamedTuple

import numpy as np

from packer.errors import UsageError

LAUNCHERS = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),  # torchrun, accelerate, Ray Train, Composer
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
    ("PMI_SIZE", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
    ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),  # srun: "8(x4)"; SLURM_NTASKS_PER_NODE is only a maximum
)
"""Variables of launchers: the number of all processes, and of those on a machine."""

MACHINES = "GROUP_WORLD_SIZE"
"""Variable of torchrun: the number of machines."""


class Ranks(NamedTuple):
    """Process `rank` of `world_size` processes that train together, on `nodes` machines with equally many each.

    The ranks of a machine are consecutive. `nodes` is 1 for orders that do not depend on it.
    """

    rank: int
    world_size: int
    nodes: int = 1

    @property
    def node(self) -> int:
        """Number of the machine."""
        return self.rank // (self.world_size // self.nodes)

    @property
    def first(self) -> int:
        """The first position of this rank, then every world_size-th: all of a machine are `node` modulo nodes."""
        return self.rank % (self.world_size // self.nodes) * self.nodes + self.node

    @staticmethod
    def of(rank: int | None, world_size: int | None) -> Ranks:
        """Return the ranks, with None replaced by those of torch.distributed, or of a single process.

        Raise UsageError if the rank is not below the world size.
        """
        group = _process_group()
        here = Ranks(0, 1) if group is None else Ranks(group.get_rank(), group.get_world_size())
        count = here.world_size if world_size is None else check_int("world_size", world_size, 1)
        number = here.rank if rank is None else check_int("rank", rank, 0)
        if number >= count:
            raise UsageError("rank", f"must be below world_size {count}, got {number}", "give both")
        return Ranks(number, count)


def nodes_of(world_size: int, local_world_size: int | None) -> int | None:
    """Return the number of machines of `world_size` ranks; None if it is unknown.

    `local_world_size` is the number of ranks on each. Default: that of the launcher, if it started `world_size`
    processes (a sampler for one of several groups of ranks has another world size).

    Raise UsageError if it does not divide `world_size`.
    """
    local = _launched(world_size) if local_world_size is None else check_int("local_world_size", local_world_size, 1)
    if world_size == 1:  # also before there is a process group
        return 1
    if local is None:
        return None
    machines = os.environ.get(MACHINES, "") if local_world_size is None else ""
    if machines.isdecimal() and int(machines) * local != world_size:
        problem = f"is {local} here, but {world_size} ranks are on {int(machines)} machines"
        raise UsageError("local_world_size", problem, "start equally many ranks on each machine")
    if world_size % local:
        problem = f"is {local}, which does not divide world_size {world_size}: each machine must run equally many ranks"
        raise UsageError("local_world_size", problem)
    return world_size // local


def _launched(world_size: int) -> int | None:
    """Return the ranks on each machine, as the launcher of `world_size` processes says."""
    for all_ranks, of_machine in LAUNCHERS:
        local = re.fullmatch(r"0*([1-9]\d*)(\(x\d+\))?", os.environ.get(of_machine, ""))
        if local and os.environ.get(all_ranks) == str(world_size):
            return int(local[1])
    return None


def _process_group() -> Any:
    """Return torch.distributed if it is initialized, else None."""
    # not imported here: if torch is not loaded, it cannot be initialized
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def warn_if_ungrouped(ranks: Ranks) -> bool:
    """Warn if a launcher (torchrun) has started several processes and they have no process group; return whether."""
    launched = os.environ.get("WORLD_SIZE", "")
    if not launched.isdecimal() or int(launched) < 2 or _process_group() is not None:
        return False
    warnings.warn(
        f"WORLD_SIZE is {launched}, but torch.distributed has no process group: this process reads as rank "
        f"{ranks.rank} of {ranks.world_size}; call torch.distributed.init_process_group before the first "
        "batch, or give rank and world_size to the sampler",
        stacklevel=4,
    )
    return True


def as_distributed(kind: Any) -> Any:
    """Return a class that is also torch's DistributedSampler, or the class itself if torch is not loaded."""
    module = sys.modules.get("torch.utils.data.distributed")
    base = getattr(module, "DistributedSampler", None)
    return kind if base is None else _default_process_group(kind, base)


@cache
def _default_process_group(*kinds: Any) -> Any:
    return new_class(kinds[0].__name__, kinds)


def as_number(value: Any) -> float:
    """Return a number of Python, numpy or torch as float; NaN for anything else, True and text too."""
    try:
        return math.nan if isinstance(value, (bool, np.bool_, str, bytes)) else float(value)
    except (TypeError, ValueError):
        return math.nan


def check_int(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return `value` as an int from `least` to `most`. Raise UsageError if it is not one."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(name, f"must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(name, f"must be an integer {bounds}, got {value!r}")
    return number


def length_of(data: int | Sized) -> int:
    """Return the number of records of `data`. Raise UsageError if it is not a number and has no length."""
    if isinstance(data, str | bytes | os.PathLike):
        problem = f"must be a pack, a dataset or a number of records, got {data!r}"
        raise UsageError("data", problem, "open it first, with packer.open_pack")
    return len(data) if isinstance(data, Sized) else check_int("data", data, 0)


def even_batch(samples: int, ranks: int, most: int) -> int:
    """Return the largest batch size, `most` at most, with which all ranks have as many batches and none a sample twice.

    Trainers that add up results of all ranks after each batch need it with ``pad=False``: a rank with a batch more than
    the others would wait for them forever. 0 if there is none, as of fewer samples than ranks.
    """
    sizes = (size for size in range(most, 0, -1) if not 0 < samples % (size * ranks) < ranks)
    return next(sizes, 0) if samples >= ranks else 0
