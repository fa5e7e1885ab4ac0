"""Makes one batch of many samples: images stacked, targets as training loops take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from packer.loading.batch import Batch


def collate(samples: Sequence[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor | list[torch.Tensor], Any]:
    """(images, targets) of a list of (image, target); the `collate_fn` of a DataLoader over a PackedDataset.

    Images of one shape become one tensor (n, channels, height, width), others stay a list, as torchvision's
    detection models take them. Class ids become int64 (n,); dicts of boxes and landmarks stay a list.
    """
    if isinstance(samples, Batch):
        return samples.images, samples.targets
    images = [image for image, _ in samples]
    targets: Any = [target for _, target in samples]
    if all(isinstance(target, int) for target in targets):
        targets = torch.tensor(targets, dtype=torch.int64)
    if images and all(isinstance(i, torch.Tensor) and i.shape == images[0].shape for i in images):
        return stacked(images), targets
    return images, targets


def stacked(images: list[torch.Tensor]) -> torch.Tensor:
    """One tensor of all images; channels last in memory where the first one is (torch.stack alone loses that)."""
    if images[0].dim() != 3 or not images[0].permute(1, 2, 0).is_contiguous():
        return torch.stack(images)
    return torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)
