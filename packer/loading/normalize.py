"""What happens to a batch on the device it has arrived on: dtype, mean and standard deviation, memory format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Normalize:
    """Turns uint8 images into what a model takes.

    With `mean` and `std` (one for each channel, of values from 0 to 1, as torchvision has them):
    (x / 255 - mean) / std, computed in float32, handed over as `dtype` (float32 where none is given). With
    `dtype` alone: x / 255 for a floating dtype, the values as they are for an integer one. With neither, images
    stay uint8.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.channels_last

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std come together: give both or neither")
        if self.mean is not None and self.std is not None and (len(self.mean) != len(self.std) or 0 in self.std):
            raise ValueError(f"mean and std must have one number a channel, std none of 0; got {self.mean}, {self.std}")
        if self.mean is not None and self.dtype is not None and not self.dtype.is_floating_point:
            raise ValueError(f"normalised images are fractions; {self.dtype} holds none")

    @property
    def nothing(self) -> bool:
        """Whether images stay as they are."""
        return self.mean is None and self.dtype is None

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Images (n, channels, height, width), on any device."""
        if not self.nothing:
            images = self._values(images)
        return images.contiguous(memory_format=self.memory_format)

    def _values(self, images: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype or torch.float32
        if not dtype.is_floating_point:
            return images.to(dtype)
        full = 65535.0 if images.dtype == torch.uint16 else 255.0
        values = images.to(torch.float32)
        if self.mean is None or self.std is None:
            return values.div_(full).to(dtype)
        if images.shape[1] != len(self.mean):
            raise ValueError(f"mean has {len(self.mean)} channels, the images have {images.shape[1]}")
        mean = _per_channel(tuple(float(m) * full for m in self.mean), images.device)
        std = _per_channel(tuple(float(s) * full for s in self.std), images.device)
        return values.sub_(mean).div_(std).to(dtype)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """float32 (1, channels, 1, 1). Kept: to make one on a GPU is a copy that the host waits for, each batch."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)
