"""The epoch that an iteration reads, its position, and the state that a checkpoint keeps.

A state is a small dict:

    {"version": 2, "epoch": 3, "position": 5120, "kind": "shuffle", "seed": 0, "num_records": 50000,
     "num_samples": 50000, "drop_last": False, "pack": "9f...", "records": None}

`position` counts the samples consumed by all ranks together, so that another number of ranks can resume. A loader adds
`global_batch`, the samples per batch of all ranks. All other fields, and the sampler's own options, must be unchanged;
`pad` is there if it is False. A `WeightedSampler` adds its weights, which are restored.
States of version 1 have the same order; but then a record had the same crop each time that it came in an epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn
from weakref import ReferenceType, ref

from packer.errors import UsageError
from packer.samplers.ranks import check_int

STATE_VERSION = 2

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Iteration:
    """The progress of an iteration."""

    epoch: int
    position: int
    """Samples handed out, of all ranks."""
    ended: bool = False


class EpochTracker:
    """Decides which epoch an iteration reads; a sampler and its loader share one.

    An epoch that was set is the next one read; otherwise it is the epoch after that of the iteration started last. An
    iteration starts with its first sample. After a state was loaded, the rest of its epoch is read, or the next
    epoch if nothing is left.
    """

    def __init__(self, on_epoch: Callable[[int], None] | None = None) -> None:
        self._on_epoch = on_epoch
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

    def next_start(self, loaded_state: Iteration | None = None) -> Iteration:
        """Return the start of a new iteration: `loaded_state`, unless another epoch was set since."""
        if loaded_state is not None and (loaded_state.epoch == self.epoch or not self._was_set):
            return loaded_state
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
        if self._on_epoch is not None:
            self._on_epoch(iteration.epoch)

    def current(self) -> Iteration:
        """Return what a state describes: the iteration started last, even if another epoch has been set since.

        After the end of that iteration, it is the epoch that was set.
        """
        last = self._last
        return self.next_start() if last is None or (last.ended and self._was_set) else last

    def go_on(self, end: int) -> None:
        """Let the next iteration read the rest of an epoch that ends at `end`, unless another one was set since."""
        if self._last is not None and not self._was_set:
            self.load(self._last.epoch, self._last.position, end)

    def load(self, epoch: int, position: int, end: int) -> None:
        """Resume from a position of an epoch that ends at `end`."""
        self._loaded, self._last, self._was_set = {epoch: position}, None, False
        self.epoch = epoch + (position >= end)


def check_state(state: Any, expected: Mapping[str, Scalar], held: tuple[str, ...] = ()) -> tuple[int, Any]:
    """Return (epoch, position) of a state, the position unchecked; it may have the fields in `held`, too.

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
    if unknown := sorted({str(name) for name in state} - {*expected, *held, "version", "epoch", "position"}):
        refuse(f"has fields that a {expected['kind']} sampler does not have: {', '.join(unknown)}")
    try:
        return check_int("epoch", state.get("epoch"), 0), state.get("position")
    except UsageError as error:
        refuse(str(error))


def refuse(problem: str) -> NoReturn:
    """Raise the UsageError of a state that does not match."""
    raise UsageError("state", problem, "resume with the same settings, or start over")


ACCELERATE = ("accelerate.data_loader",)
LIGHTNING = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
SNAPSHOTS = "snapshot_every_n_steps"
TORCHDATA = ("torchdata.stateful_dataloader.stateful_dataloader", "torchdata.stateful_dataloader.sampler")
WORKERS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")


def _callers(modules: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Yield `self` and the name of the methods of these modules that are running, the innermost first."""
    if not any(module in sys.modules for module in modules):
        return
    frame = sys._getframe(1)
    while frame is not None:
        # of no other frames: their locals would live longer if they are looked at
        if frame.f_globals.get("__name__") in modules and (caller := frame.f_locals.get("self")) is not None:
            yield caller, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]


def dealer(world_size: int | None) -> Any:
    """Return the loader or batch sampler of accelerate that is calling and divides the order itself, or None.

    accelerate's `prepare` divides the batches of every DataLoader among the processes, and a sampler cannot opt out.

    Raise UsageError if a world size above 1 was given: the order would be divided twice.
    """
    callers = [caller for caller, _ in _callers(ACCELERATE)]
    if not any(type(caller).__name__ in ("BatchSamplerShard", "DataLoaderDispatcher") for caller in callers):
        return None
    if world_size not in (None, 1):
        problem = f"is {world_size}, and accelerate divides the batches again: records would never be read"
        raise UsageError("world_size", problem, "leave out rank and world_size")
    return callers[-1]  # the loader, which knows the epoch


def is_dispatched() -> bool:
    """Return whether accelerate sends the batches that are read to the other processes (`dispatch_batches=True`).

    They receive the bytes of a tensor into a contiguous one, whatever its order in memory is. A forked worker inherits
    the answer.
    """
    state: Any = sys.modules.get("accelerate.state")
    if state is None or not state.GradientState._shared_state:
        return False
    return type(state.GradientState().active_dataloader).__name__ == "DataLoaderDispatcher"


class Resumed(NamedTuple):
    """What Lightning's Trainer is about to train on."""

    epoch: int
    batches: int
    """Those of this epoch that it has trained on already."""
    loader: Any
    early: bool
    """Whether it has not set the epoch yet. It hides an error raised now behind one of its own."""


def resumed_by_lightning(sampler: object) -> Resumed | None:
    """Return what Lightning reads first with a sampler: only while it prepares its training loaders or resumes.

    A DataLoader with workers reads from then on, but Lightning sets the epoch later.
    """
    for loop, method in _callers(LIGHTNING):
        resumes = loop.epoch_loop.restarting
        if not resumes and method != "setup_data":
            return None
        for loader in loop._combined_loader.flattened:
            batches = getattr(loader, "batch_sampler", None)
            if sampler is getattr(loader, "sampler", None) or sampler is getattr(batches, "sampler", None):
                return Resumed(*_place(loop, resumes), loader, method == "setup_data")
        return None
    return None


def _place(loop: Any, resumes: bool) -> tuple[int, int]:
    epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress
    if not resumes or epochs.started == epochs.processed:
        return epochs.processed, 0
    return (epochs.processed + 1, 0) if batches.is_last_batch else (epochs.processed, batches.current.processed)


def workers_reader(divided_by: Any) -> Any:
    """Return the iterator of a DataLoader that is calling, if it reads ahead in worker processes; else None.

    None also for accelerate's loaders (`dealer`): they set the epoch before, and on some ranks take no batch.
    """
    readers = [caller for caller, _ in _callers(WORKERS) if "MultiProcessing" in type(caller).__name__]
    return readers[0] if readers and divided_by is None else None


def next_iteration(
    sampler: object, clock: EpochTracker, loaded_state: Iteration | None = None, divided_by: Any = None
) -> Iteration:
    """Return the start of the next iteration: what Lightning resumes, or `loaded_state`, or the next epoch.

    Args:
        sampler: whose order is read.
        clock: its clock.
        loaded_state: the loaded state of the iterator, if there is one.
        divided_by: accelerate's loader (`dealer`).

    Raises:
        UsageError: if Lightning resumes the middle of an epoch, and its checkpoint has no state of its loader.
    """
    if loaded_state is None and hasattr(divided_by, "iteration"):
        clock.set_epoch(divided_by.iteration)  # accelerate does not reach a sampler through several wrappers
    resumed = resumed_by_lightning(sampler)
    if resumed is None:
        return clock.next_start(loaded_state)
    clock.set_epoch(resumed.epoch)
    here = clock.next_start(loaded_state)
    place = f"Lightning resumes epoch {resumed.epoch} after batch {resumed.batches}"
    if resumed.batches and not here.position:
        problem = f"has no state in the checkpoint, but {place}: records would be read twice, or never"
        instead = "resume from the end of an epoch; from then on use PackedLoader, or torchdata's StatefulDataLoader"
        clock.refuse(UsageError("loader", problem, instead), later=resumed.early)
    elif loaded_state not in (None, here) and getattr(resumed.loader, SNAPSHOTS, 1) != 1:
        problem = f"of batches of epoch {loaded_state.epoch} would be skipped, but {place}"
        clock.refuse(UsageError(SNAPSHOTS, problem, "use 1"), later=resumed.early)
    return here


def check_late(sampler: object, clock: EpochTracker, epoch: int) -> None:
    """Raise UsageError if workers of a DataLoader have begun to read another epoch than the one that is being set."""
    ahead = clock.unread()
    # Lightning may set the epoch before once more, which it has finished
    if ahead not in (None, epoch) and (ahead, 0) != (resumed_by_lightning(sampler) or ())[:2]:
        late = f"{epoch} is set after the workers of a DataLoader have begun to read epoch {ahead}"
        raise UsageError("epoch", late, "set it before iter(loader), or use PackedLoader, or num_workers=0")


def consumed(clock: EpochTracker) -> Iteration:
    """Return what a state describes.

    Raise UsageError if that is not what training has got, and the caller is not torchdata, which allows for it.
    """
    if clock.read_ahead() and not any(_callers(TORCHDATA)):
        problem = "is ahead of training: workers of a DataLoader, or accelerate, have read batches not trained on yet"
        instead = "use PackedLoader or torchdata's StatefulDataLoader, or save state_at(epoch, samples of all ranks)"
        raise UsageError("state_dict", problem, instead)
    return clock.current()
