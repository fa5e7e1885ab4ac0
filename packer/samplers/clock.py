"""The epoch that an iteration reads, its position, and the state that a checkpoint keeps.

A state is a small dict:

    {"version": 1, "epoch": 3, "position": 5120, "kind": "shuffle", "seed": 0, "num_records": 50000,
     "num_samples": 50000, "drop_last": False, "pack": "9f...", "records": None}

`position` counts the samples consumed by all ranks together, so that another number of ranks can resume. A loader adds
`global_batch`, the samples per batch of all ranks. All other fields, and the sampler's own options, must be unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import ReferenceType, ref

from packer.errors import UsageError
from packer.samplers.ranks import check_int

STATE_VERSION = 1

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Iteration:
    """The progress of an iteration."""

    epoch: int
    position: int
    """Samples handed out, of all ranks."""
    ended: bool = False


class Clock:
    """Decides which epoch an iteration reads; a sampler and its loader share one.

    An epoch that was set is the next one read; otherwise it is the epoch after that of the iteration started last. An
    iteration starts with its first sample. After a state was loaded, the rest of its epoch is read, or the next
    epoch if nothing is left.
    """

    def __init__(self, tell: Callable[[int], None] | None = None) -> None:
        self._tell = tell
        """`set_epoch` of a dataset whose transforms depend on the epoch."""
        self.epoch = 0
        """The epoch that comes next, or that is being read."""
        self._last: Iteration | None = None
        """The iteration started last; None before the first one, and after a state was loaded."""
        self._was_set = False
        """Whether an epoch was set since then."""
        self._reader: ReferenceType[Any] | None = None
        """The iterator of a DataLoader whose workers read that iteration ahead."""
        self._ahead = False
        """Whether its numbers are handed out before they are needed, by workers or accelerate."""
        self._refused: Exception | None = None
        """What is wrong with it: raised when an epoch is set."""
        self._loaded: dict[int, int] = {}
        """Epoch and position of a loaded state that no iteration has used yet."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. It starts from the beginning, unless a state of this epoch was loaded."""
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        self.epoch, self._was_set = check_int("epoch", epoch, 0), True

    def refuse(self, error: Exception, *, later: bool) -> None:
        """Raise `error`, at once or later, when an epoch is set."""
        if not later:
            raise error
        self._refused = error

    def unread(self) -> int | None:
        """Return the epoch that workers of a DataLoader read ahead while none of its batches was taken yet."""
        reader = self._reader and self._reader()
        return self._last.epoch if self._last and getattr(reader, "_num_yielded", 1) == 0 else None

    def read_ahead(self) -> bool:
        """Return whether the position is not that of training: batches are read, and not taken yet."""
        reader = self._reader and self._reader()
        left = getattr(reader, "_send_idx", 0) > getattr(reader, "_num_yielded", 0)
        return self._ahead and self._last is not None and (left or not self._last.ended)

    def following(self, told: Iteration | None = None) -> Iteration:
        """Return the start of a new iteration: `told`, unless another epoch was set since."""
        if told is not None and (told.epoch == self.epoch or not self._was_set):
            return told
        epoch = self.epoch + (self._last is not None and not self._was_set)
        return Iteration(epoch, self._loaded.get(epoch, 0))

    def begin(self, iteration: Iteration, reader: Any = None, *, ahead: bool = False) -> None:
        """Record that `iteration` has returned its first sample.

        Args:
            iteration: the progress.
            reader: the iterator of a DataLoader whose workers read it.
            ahead: whether others read it before they need it.
        """
        self._last, self.epoch, self._was_set, self._loaded = iteration, iteration.epoch, False, {}
        self._reader, self._ahead = None if reader is None else ref(reader), ahead or reader is not None
        if self._tell is not None:
            self._tell(iteration.epoch)

    def now(self) -> Iteration:
        """Return what a state describes: the iteration started last, even if another epoch has been set since.

        After the end of that iteration, it is the epoch that was set.
        """
        last = self._last
        return self.following() if last is None or (last.ended and self._was_set) else last

    def load(self, epoch: int, position: int, end: int) -> None:
        """Resume from a position of an epoch that ends at `end`."""
        self._loaded, self._last, self._was_set = {epoch: position}, None, False
        self.epoch = epoch + (position >= end)


def check_state(state: Any, expected: Mapping[str, Scalar]) -> tuple[int, Any]:
    """Return (epoch, position) of a state, the position unchecked.

    Raises:
        UsageError: if one of the `expected` fields is missing or different (it names the first one), if there are
            others, or if the epoch is not one.
    """
    if not isinstance(state, Mapping):
        refuse(f"must be a dict as state_dict gives, got {type(state).__name__}")
    version = state.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        refuse(f"has no valid version: {version!r}")
    if version > STATE_VERSION:
        problem = f"has version {version}, but this packer knows {STATE_VERSION}"
        raise UsageError("state", problem, "install a newer packer")
    for name, here in expected.items():
        if name not in state:
            refuse(f"has no {name}")
        # also the type: True is not 1
        if type(there := state[name]) is not type(here) or there != here:
            refuse(f"{name} is {there!r} in the state, {here!r} here")
    if unknown := sorted({str(name) for name in state} - {*expected, "version", "epoch", "position"}):
        refuse(f"has fields that a {expected['kind']} sampler does not have: {', '.join(unknown)}")
    try:
        return check_int("epoch", state.get("epoch"), 0), state.get("position")
    except UsageError as error:
        refuse(str(error))


def refuse(problem: str) -> NoReturn:
    """Raise the UsageError of a state that does not match."""
    raise UsageError("state", problem, "resume with the same settings, or start over")
