"""Which of how many processes this one is."""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from typing import Any

from packer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ranks:
    """Process `rank` of `world_size` that train together."""

    rank: int
    world_size: int

    @staticmethod
    def of(rank: int | None, world_size: int | None) -> Ranks:
        """These, or for None what torch.distributed says where it is initialised, or else one process alone.

        Raises UsageError where the rank is not among them.
        """
        here = _from_torch()
        count = here.world_size if world_size is None else whole("world_size", world_size, 1)
        number = here.rank if rank is None else whole("rank", rank, 0)
        if number >= count:
            raise UsageError("rank", f"must be below world_size {count}, got {number}", "give both")
        return Ranks(number, count)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int from `least` to `most`. Raises UsageError that quotes it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(name, f"must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(name, f"must be a whole number {bounds}, got {value!r}")
    return number


def launched() -> int:
    """Number of processes that a launcher (torchrun) says it has started, if they have no process group yet; else 1."""
    count = os.environ.get("WORLD_SIZE", "")
    return int(count) if count.isdecimal() and _process_group() is None else 1


def _from_torch() -> Ranks:
    group = _process_group()
    return Ranks(0, 1) if group is None else Ranks(group.get_rank(), group.get_world_size())


def _process_group() -> Any:
    """torch.distributed if it is initialised, else None."""
    # not imported: a process in which nobody has imported torch cannot have initialised it
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None
