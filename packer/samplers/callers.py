"""What depends on who asks for numbers: accelerate, Lightning or worker processes. Only the call stack shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from packer.errors import UsageError
from packer.samplers.clock import Clock, Iteration

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


def workers_reader(dealt_by: Any) -> Any:
    """Return the iterator of a DataLoader that is calling, if it reads ahead in worker processes; else None.

    None also for accelerate's loaders (`dealer`): they set the epoch before, and on some ranks take no batch.
    """
    readers = [caller for caller, _ in _callers(WORKERS) if "MultiProcessing" in type(caller).__name__]
    return readers[0] if readers and dealt_by is None else None


def next_iteration(sampler: object, clock: Clock, told: Iteration | None = None, dealt_by: Any = None) -> Iteration:
    """Return the start of the next iteration: what Lightning resumes, or `told`, or the next epoch.

    Args:
        sampler: whose order is read.
        clock: its clock.
        told: the loaded state of the iterator, if there is one.
        dealt_by: accelerate's loader (`dealer`).

    Raises:
        UsageError: if Lightning resumes the middle of an epoch, and its checkpoint has no state of its loader.
    """
    if told is None and hasattr(dealt_by, "iteration"):
        clock.set_epoch(dealt_by.iteration)  # accelerate does not reach a sampler through several wrappers
    resumed = resumed_by_lightning(sampler)
    if resumed is None:
        return clock.following(told)
    clock.set_epoch(resumed.epoch)
    here = clock.following(told)
    place = f"Lightning resumes epoch {resumed.epoch} after batch {resumed.batches}"
    if resumed.batches and not here.position:
        problem = f"has no state in the checkpoint, but {place}: records would be read twice, or never"
        instead = "resume from the end of an epoch; from then on use PackedLoader, or torchdata's StatefulDataLoader"
        clock.refuse(UsageError("loader", problem, instead), later=resumed.early)
    elif told not in (None, here) and getattr(resumed.loader, SNAPSHOTS, 1) != 1:
        problem = f"of batches of epoch {told.epoch} would be skipped, but {place}"
        clock.refuse(UsageError(SNAPSHOTS, problem, "use 1"), later=resumed.early)
    return here


def check_late(sampler: object, clock: Clock, epoch: int) -> None:
    """Raise UsageError if workers of a DataLoader have begun to read another epoch than the one that is being set."""
    ahead = clock.unread()
    # Lightning may set the epoch before once more, which it has finished
    if ahead not in (None, epoch) and (ahead, 0) != (resumed_by_lightning(sampler) or ())[:2]:
        late = f"{epoch} is set after the workers of a DataLoader have begun to read epoch {ahead}"
        raise UsageError("epoch", late, "set it before iter(loader), or use PackedLoader, or num_workers=0")


def consumed(clock: Clock) -> Iteration:
    """Return what a state describes.

    Raise UsageError if that is not what training has got, and the caller is not torchdata, which allows for it.
    """
    if clock.read_ahead() and not any(_callers(TORCHDATA)):
        problem = "is ahead of training: workers of a DataLoader, or accelerate, have read batches not trained on yet"
        instead = "use PackedLoader or torchdata's StatefulDataLoader, or save state_at(epoch, samples of all ranks)"
        raise UsageError("state_dict", problem, instead)
    return clock.now()
