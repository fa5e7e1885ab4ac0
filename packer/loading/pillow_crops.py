"""Crops with the pixels of Pillow's filters, for trainers whose own loaders resize with Pillow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from packer.images.pillow_ops import resized
from packer.loading.crop import CenterCrop, RandomResizedCrop, Regions
from packer.model.annotation import Image
from packer.samplers.order import Float64

_ANTIALIASED = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}
"""The filters that torch has, too: four times as fast as Pillow, and within two levels of it."""


@dataclass(frozen=True)
class PillowRandomCrop(RandomResizedCrop):
    """`RandomResizedCrop` with filters of Pillow, one of them at random for each image, for training.

    Bilinear and bicubic are computed by torch: in photos, one value in a hundred differs from Pillow's by one level.
    """

    filters: tuple[str, ...] = ("bilinear",)
    """Names of Pillow's filters, each as likely."""

    num_random = RandomResizedCrop.num_random + 1

    def regions(self, widths: Float64, heights: Float64, random: Float64) -> Regions:
        """Return those of `RandomResizedCrop`."""
        return super().regions(widths, heights, random[:, :-1])

    def choices(self, random: Float64) -> NDArray[np.int64]:
        """Return the number of the filter of each image."""
        return (random[:, -1] * len(self.filters)).astype(np.int64)

    def fill_row(self, image: Image, region: Float64, choice: int, row: Image) -> None:
        """Cut out the region, and resize it."""
        x, y, width, height = region.astype(int).tolist()
        part, filter = image[y : y + height, x : x + width], self.filters[choice]
        if filter not in _ANTIALIASED:
            row[:] = resized(np.ascontiguousarray(part), row.shape[1::-1], filter)
            return
        # a copy: raw images are mapped, and torch knows no tensors that cannot be written
        pixels, made = (torch.from_numpy(one).permute(2, 0, 1)[None] for one in (part.copy(), row))
        # interpolate() has no out=, and returns planes, which would be copied pixel by pixel
        _ANTIALIASED[filter](pixels, row.shape[:2], False, None, None, out=made)


@dataclass(frozen=True)
class PillowCenterCrop(CenterCrop):
    """`CenterCrop` after a resize of the whole image by Pillow, for evaluation: the same numbers."""

    filter: str = "bilinear"
    """Name of Pillow's filter."""
    stretched: tuple[int, int] | None = None
    """(height, width) of all images before the cut, whatever their aspect ratio; None: their short side is `resize`."""

    def choices(self, random: Float64) -> NDArray[np.int64]:
        """Return zeros: there is nothing to choose."""
        return np.zeros(len(random), np.int64)

    def fill_row(self, image: Image, region: Float64, choice: int, row: Image) -> None:
        """Resize the image, and cut out its center as torchvision's ``CenterCrop`` does; what is beside it is black."""
        height, width = self._scaled(*image.shape[:2])
        if (height, width) != image.shape[:2]:
            image = resized(np.ascontiguousarray(image), (width, height), self.filter)
        missing = [max(0, side - have) for side, have in zip(row.shape[:2], (height, width), strict=True)]
        if any(missing):
            edges = [(some // 2, (some + 1) // 2) for some in missing]
            image = np.pad(image, (*edges, (0, 0)))
        # rounded as by Python, to even
        top, left = (round((have - side) / 2.0) for side, have in zip(row.shape[:2], image.shape[:2], strict=True))
        row[:] = image[top : top + row.shape[0], left : left + row.shape[1]]

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image is resized."""
        if self.stretched is not None:
            return self.stretched
        short = self.resize
        if short is None or min(height, width) == short:
            return height, width
        # as torchvision's Resize, which drops fractions
        return (short, int(short * width / height)) if height <= width else (int(short * height / width), short)
