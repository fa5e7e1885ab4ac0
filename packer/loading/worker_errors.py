"""What goes wrong in a DataLoader's worker, brought to the consumer as it is: packer's errors with all they say."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, get_worker_info

from packer.errors import PackerError

LOOK_S = 1.0
GRACE_S = 6.0
"""Longer than torch's workers need to see that their parent is gone, and to end in good order."""


class Raised(ExceptionWrapper):
    """An error of packer's on its way out of a worker. torch makes others anew, from their text alone."""

    def __init__(self, error: PackerError) -> None:
        super().__init__((type(error), error, error.__traceback__))  # type: ignore[no-untyped-call]
        self.error = error

    def reraise(self) -> NoReturn:
        """Raise it, with the worker's traceback as its cause."""
        raise self.error from RuntimeError(f"in a worker:\n{self.exc_msg}")


class TellingDataset(Dataset[Any]):
    """A dataset that hands out packer's errors instead of raising them: a `Raised` in place of a batch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except PackerError as error:
            return Raised(error)

    def __getitems__(self, indices: Any) -> Any:
        """A batch, as torch's own fetcher makes it."""
        try:
            whole = getattr(self.dataset, "__getitems__", None)
            return whole(indices) if whole else [self.dataset[index] for index in indices]
        except PackerError as error:
            return Raised(error)


class TellingCollate:
    """A collate function that lets a `Raised` pass, and makes one of its own."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        if isinstance(samples, Raised):
            return samples
        try:
            return self.collate(samples)
        except PackerError as error:
            return Raised(error)


class Start:
    """What a worker does first: the user's `worker_init_fn`, for which the dataset is the user's own.

    And it watches its parent: torch's workers look for that themselves, but one that is killed while they start is a
    parent that they never knew, and they wait for ever.
    """

    def __init__(self, given: Callable[[int], None] | None) -> None:
        self.given = given

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        if isinstance(info.dataset, TellingDataset):
            object.__setattr__(info, "dataset", info.dataset.dataset)
        threading.Thread(target=_end_after_the_parent, name="packer-parent", daemon=True).start()
        if self.given is not None:
            self.given(worker)


def _end_after_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    while not _gone(parent):
        time.sleep(LOOK_S)
    time.sleep(GRACE_S)
    os._exit(1)


def _gone(parent: Any) -> bool:
    if os.getppid() == parent.pid:
        return False
    try:  # it is no child of its parent where a server has forked it
        os.kill(parent.pid, 0)
    except ProcessLookupError:
        return True
    return not parent.is_alive()
