"""Batches of bytes mixed with themselves, and made floats, as timm's loader does it: the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch

from packer.loading.memory import BufferPool

Box = tuple[int, int, int, int]
"""top, bottom, left, right in pixels."""


def mix_bytes(images: torch.Tensor, share: float) -> None:
    """Blend each image with its counterpart, the one as far from the end as it is from the start.

    Args:
        images: uint8 (n, channels, height, width), changed in place.
        share: of the image itself, 0 to 1.
    """
    if images.device.type != "cpu":
        values = images.float()
        images.copy_(torch.round(values * share + values.flip(0) * (1 - share)))
        return
    for first in range((len(images) + 1) // 2):  # two at a time, which the caches of the processor hold
        pair = images[first], images[-1 - first]
        here, there = (one.float() for one in pair)
        mixed = torch.round(here * share + there * (1 - share))
        pair[1].copy_(torch.round(there * share + here * (1 - share)))
        pair[0].copy_(mixed)


def paste_bytes(images: torch.Tensor, box: Box) -> None:
    """Give each image a part of its counterpart, in place."""
    top, bottom, left, right = box
    part = images[:, :, top:bottom, left:right]
    part.copy_(part.flip(0))


class PlanarFloats:
    """Makes floats of bytes on the CPU, in memory that is used again.

    Args:
        mean: of each channel, for values from 0 to 255.
        std: likewise.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (mean, std))
        self._pool = BufferPool(0)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return (values - mean) / std, float32, contiguous.

        Args:
            images: uint8 (n, channels, height, width), channels last in memory.
        """
        rows, size = images.permute(0, 2, 3, 1).numpy(), 4 * images.numel()
        if size > self._pool.size:
            self._pool = BufferPool(size)
        made = self._pool.take()[:size].view(np.float32).reshape(images.shape)
        planes = np.empty(images.shape[1:], np.uint8)
        for row, out in zip(rows, made, strict=True):
            cv2.split(row, list(planes))
            np.copyto(out, planes)
            np.subtract(out, self._mean, out=out)
            np.divide(out, self._std, out=out)
        return torch.from_numpy(made)
