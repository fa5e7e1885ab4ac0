"""Batches of bytes mixed with themselves, and made floats, as timm's loader does it: the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch

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


def planar_floats(images: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return (values - mean) / std, float32 (n, channels, height, width), contiguous, of bytes on the CPU.

    Args:
        images: uint8 (n, channels, height, width), channels last in memory.
        mean: of each channel, for values from 0 to 255.
        std: likewise.
    """
    rows = images.permute(0, 2, 3, 1).numpy()
    made = np.empty(images.shape, np.float32)
    planes = np.empty(images.shape[1:], np.uint8)
    means, stds = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (mean, std))
    for row, out in zip(rows, made, strict=True):
        cv2.split(row, list(planes))
        np.copyto(out, planes)
        np.subtract(out, means, out=out)
        np.divide(out, stds, out=out)
    return torch.from_numpy(made)
