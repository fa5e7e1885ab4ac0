"""Datasets and functions that fail, in workers of any start method."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from packer import PackedDataset
from packer.errors import BadImage, DamagedPack, PackerError, StorageError, TooManyBad, UsageError, WorkerDied
from packer.format.manifest import Rejected

KINDS: tuple[PackerError, ...] = (
    DamagedPack("p/shard", "is wrong", "mend it").with_location("p", "shard", "00000042"),
    StorageError("a", "is full"),
    UsageError("--option", "must be 1, got 0", "say 1"),
    WorkerDied("worker 3", "was killed"),
    BadImage(b"\xff.jpg", "is no image"),
    TooManyBad("src", "2 bad", "look", [Rejected(b"a.jpg", "bad-image", "is cut")]),
)


class Raises(Dataset[Any]):
    """Item k raises the k-th kind of error."""

    def __len__(self) -> int:
        return len(KINDS)

    def __getitem__(self, index: int) -> Any:
        raise pickle.loads(pickle.dumps(KINDS[index]))


class OwnError(Exception):
    """An error that cannot be made of one text, nor pickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)


def fails(image: torch.Tensor) -> torch.Tensor:
    """A transform that knows some error of its own."""
    raise ZeroDivisionError("by nought")


def fails_strangely(image: torch.Tensor) -> torch.Tensor:
    """A transform with an error that does not leave the process whole."""
    raise OwnError(1, 2)


def collate_that_finds_damage(samples: Any) -> Any:
    """A collate function that raises an error of packer's."""
    raise DamagedPack("x", "is odd").with_location("/p", "s", "k")


class Started:
    """A worker_init_fn that looks at its dataset."""

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert type(info.dataset) is PackedDataset and info.id == worker
        os.environ["PACKER_STARTED"] = str(worker)


def told(image: torch.Tensor) -> torch.Tensor:
    """The number that Started has left, as an image."""
    return torch.tensor(int(os.environ["PACKER_STARTED"]))


def dies_over_a_batch(image: torch.Tensor) -> torch.Tensor:
    """Killed when half of a batch is written, with the lock of all writers held."""
    results = _of_the_worker("data_queue")
    results._wlock.acquire()
    os.write(results._writer.fileno(), struct.pack("!i", 100_000) + b"x" * 500)
    os.kill(os.getpid(), signal.SIGKILL)
    return image


def dies_with_a_lock(image: torch.Tensor) -> torch.Tensor:
    """Killed while it looks whether the work is over."""
    _of_the_worker("done_event")._cond.acquire()
    os.kill(os.getpid(), signal.SIGKILL)
    return image


def _of_the_worker(name: str) -> Any:
    frame = sys._getframe()
    while name not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals[name]
