"""A dataset that reads packs of several containers side by side, and what it read, as digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from packer import PackedDataset, collate


def digest(batch: tuple[Any, Any]) -> str:
    """SHA-256 over all images and targets of a collated batch, their shapes and dtypes."""
    images, targets = batch
    state = hashlib.sha256()
    for tensor in [*images, *_tensors(targets)]:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        state.update(tensor.numpy().tobytes())
    return state.hexdigest()


def _tensors(targets: Any) -> list[torch.Tensor]:
    if isinstance(targets, torch.Tensor):
        return [targets]
    return [torch.as_tensor(value) for target in targets for value in target.values() if not isinstance(value, list)]


class SideBySide(Dataset[list[str]]):
    """Item k of `batches`: the digest of that batch out of each dataset. It is read where the worker is."""

    def __init__(self, datasets: Sequence[PackedDataset], batches: Sequence[Sequence[int]]) -> None:
        self.datasets = list(datasets)
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, k: int) -> list[str]:
        batch = self.batches[k]
        return [digest(collate(data.__getitems__([i % len(data) for i in batch]))) for data in self.datasets]
