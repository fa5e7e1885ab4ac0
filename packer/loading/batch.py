"""A batch of samples that lies in memory as one tensor, and behaves as the list of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch


class Batch(Sequence[tuple[torch.Tensor, Any]]):
    """What `PackedDataset.__getitems__` returns: (image, target) pairs for whoever looks, one tensor for `collate`.

    `images` is uint8 (n, channels, height, width), channels last in memory; `targets` int64 (n,) or a list.
    """

    __slots__ = ("images", "targets")

    def __init__(self, images: torch.Tensor, targets: torch.Tensor | list[Any]) -> None:
        self.images = images
        self.targets = targets

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> tuple[torch.Tensor, Any] | Batch:
        targets = self.targets[index]
        if isinstance(index, slice):
            return Batch(self.images[index], targets)
        return self.images[index], int(targets) if isinstance(targets, torch.Tensor) else targets

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        targets = self.targets.tolist() if isinstance(self.targets, torch.Tensor) else self.targets
        return zip(self.images, targets, strict=True)
