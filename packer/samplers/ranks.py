"""Rank and world size, and validation of integer arguments."""

from __future__ import annotations

import math
import operator
import os
import sys
import warnings
from collections.abc import Sized
from functools import cache
from types import new_class
from typing import Any, NamedTuple

import numpy as np

from packer.errors import UsageError


class Ranks(NamedTuple):
    """Process `rank` of `world_size` processes that train together."""

    rank: int
    world_size: int

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
    return kind if base is None else _joined(kind, base)


@cache
def _joined(*kinds: Any) -> Any:
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
    return len(data) if isinstance(data, Sized) else check_int("data", data, 0)
