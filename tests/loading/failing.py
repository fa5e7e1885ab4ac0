"""Datasets and functions that fail, in workers of any start method."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch.utils.data import Dataset

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
