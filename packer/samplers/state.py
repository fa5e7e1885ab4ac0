"""Where an epoch stands, as a small dict: made, and refused where it is of another order.

    {"version": 1, "epoch": 3, "position": 5120, "global_batch": 512, "kind": "shuffle", "seed": 0,
     "num_records": 50000, "num_samples": 50000, "drop_last": False, "pack": "9f...", "records": None}

`position` counts the samples that all ranks together have consumed, so that another number of ranks with the
same global batch goes on where these stopped. The rest, and the sampler's own options, must be as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from packer.errors import UsageError
from packer.samplers.ranks import whole

if TYPE_CHECKING:
    from packer.samplers.base import Sampler

VERSION = 1

Scalar = str | int | float | bool | None


def state_of(sampler: Sampler, epoch: int, position: int, global_batch: int) -> dict[str, Any]:
    """The state after `position` samples of an epoch."""
    return {
        "version": VERSION,
        "epoch": epoch,
        "position": position_of(sampler, position, global_batch),
        "global_batch": global_batch,
        **sampler.identity,
    }


def position_of(sampler: Sampler, position: Any, global_batch: int) -> int:
    """A position checked to lie between two global batches, or at the end."""
    number = whole("position", position, 0, sampler.num_samples)
    if number % global_batch and number != sampler.num_samples:
        raise UsageError("position", f"must be a multiple of the global batch, {global_batch}, got {number}")
    return number


def checked(sampler: Sampler, state: Any, global_batch: int) -> tuple[int, int]:
    """(epoch, position) of a state that fits this sampler. Raises UsageError that names the first misfit."""
    if not isinstance(state, Mapping):
        _refuse(f"must be a dict as state_dict gives, got {type(state).__name__}")
    version = state.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        _refuse(f"has no valid version: {version!r}")
    if version > VERSION:
        raise UsageError("state", f"is of version {version}, known here is {VERSION}", "install a newer packer")
    expected = {"global_batch": global_batch, **sampler.identity}
    for name, here in expected.items():
        if name not in state:
            _refuse(f"has no {name}")
        there = state[name]
        # also the type: True is no 1
        if type(there) is not type(here) or there != here:
            _refuse(f"{name} is {there!r} in the state, {here!r} here")
    if unknown := [str(name) for name in state if name not in expected and name not in _OWN]:
        _refuse(f"has fields that no {sampler.kind} sampler has: {', '.join(sorted(unknown))}")
    try:
        epoch = whole("epoch", state.get("epoch"), 0)
        return epoch, position_of(sampler, state.get("position"), global_batch)
    except UsageError as error:
        _refuse(f"{error.where}: {error.problem}")  # type: ignore[str-bytes-safe]


_OWN = ("version", "epoch", "position")


def _refuse(problem: str) -> NoReturn:
    raise UsageError("state", problem, "resume with what the state was made with, or begin anew")
