"""Normalizes and converts images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Normalize:
    """Normalizes and converts uint8 images.

    Args:
        mean: mean of each channel, for values from 0 to 1, as in torchvision; None: do not normalize.
        std: standard deviation of each channel. With mean and std: (x / 255 - mean) / std, computed in float32.
        dtype: dtype of the result; default float32 with mean and std, else uint8. Without mean and std: x / 255 for a
            floating dtype, unchanged values for an integer one.
        memory_format: memory format of the result.

    Raises:
        ValueError: if the arguments cannot be combined.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.channels_last

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std must be given together")
        if self.mean is not None and self.std is not None:
            try:
                finite = all(math.isfinite(number) for number in (*self.mean, *self.std))
            except TypeError:
                finite = False
            if not finite or len(self.mean) != len(self.std) or not all(number > 0 for number in self.std):
                problem = f"mean and std must have one number per channel, std above 0; got {self.mean}, {self.std}"
                raise ValueError(problem)
            if any(number > 1 for number in self.mean):
                raise ValueError(f"mean and std are for values from 0 to 1: divide them by 255; got mean {self.mean}")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise ValueError(f"dtype must be a torch.dtype such as torch.float32, got {self.dtype!r}")
        if self.mean is not None and self.dtype is not None and not self.dtype.is_floating_point:
            raise ValueError(f"normalized images are fractions, which {self.dtype} cannot hold: use torch.float32")
        if self.memory_format not in (formats := (torch.channels_last, torch.contiguous_format)):
            raise ValueError(f"memory_format must be {formats[0]} or {formats[1]}, got {self.memory_format!r}")
        if not self.holds(torch.uint8):
            raise ValueError(f"dtype is {self.dtype}, which cannot hold 0 to 255: use torch.float32 or torch.int16")

    def holds(self, stored: torch.dtype) -> bool:
        """Return whether the result can hold all values of images of the dtype `stored`, uint8 or uint16."""
        dtype = self.dtype
        if dtype is None or dtype.is_floating_point:
            return True
        return not dtype.is_complex and dtype != torch.bool and torch.iinfo(dtype).max >= torch.iinfo(stored).max

    @property
    def nothing(self) -> bool:
        """Whether images are unchanged."""
        return self.mean is None and self.dtype is None

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Normalize images (n, channels, height, width) on their device."""
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
            raise ValueError(f"mean has {len(self.mean)} channels, but the images have {images.shape[1]}")
        mean = _per_channel(tuple(float(m) * full for m in self.mean), images.device)
        std = _per_channel(tuple(float(s) * full for s in self.std), images.device)
        return values.sub_(mean).div_(std).to(dtype)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Return float32 (1, channels, 1, 1), cached because creating it on a GPU is a blocking copy."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)
