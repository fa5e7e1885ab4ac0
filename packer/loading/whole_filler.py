"""Batches of whole images of differing sizes, each at the top left of a canvas of the largest."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.loading.annotations import BatchAnnotations
from packer.loading.augmentation import Augmentation, EachParams
from packer.loading.crop import Resize
from packer.loading.decoding import sizes_of
from packer.loading.fill import Floats, ImageFiller
from packer.loading.rescaled import WholeImage
from packer.model.annotation import Image, Int64
from packer.samplers.order import records_in, uniform


class WholeImages(NamedTuple):
    """The images of a batch."""

    canvas: torch.Tensor
    """(n, channels, height, width)."""
    sides: Int64
    """(height, width) of each image, (n, 2)."""

    def alone(self) -> list[torch.Tensor]:
        """Return each image without what is beside it."""
        pairs = zip(self.canvas.unbind(), self.sides.tolist(), strict=True)
        return [image[:, :height, :width] for image, (height, width) in pairs]

    def padded(self) -> torch.Tensor:
        """Return one tensor, with zeros on the right and below."""
        for image, (height, width) in zip(self.canvas.unbind(), self.sides.tolist(), strict=True):
            image[:, height:] = 0
            image[:, :height, width:] = 0
        return self.canvas


@dataclass(frozen=True, slots=True, eq=False)
class WholeRows:
    """Rows of a batch."""

    canvas: NDArray[Any]
    """(n, height, width, channels), or of planar floats (n, channels, height, width)."""
    sides: Int64

    def __len__(self) -> int:
        return len(self.sides)

    def __getitem__(self, rows: slice) -> WholeRows:
        """Return those of some of the images."""
        return WholeRows(self.canvas[rows], self.sides[rows])

    def __iter__(self) -> Iterator[Image]:
        for image, (height, width) in zip(self.canvas, self.sides.tolist(), strict=True):
            yield image[:height, :width]


class WholeFiller(ImageFiller):
    """Fills rows of batches with whole images, resized to sizes of their own if they are.

    Args:
        pack: the pack.
        augmentation: `WholeImage` and flips.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.
    """

    varies = grows = True

    def __init__(self, pack: Pack, augmentation: Augmentation, decoder: str, verify: bool) -> None:
        crop = augmentation.crop
        assert isinstance(crop, WholeImage)
        super().__init__(pack, augmentation.with_crop(Resize((1, 1), crop.interpolation)), decoder, verify)
        self.augmentation, self._crop = augmentation, crop
        # with the largest of its short sides
        most = crop if crop.short is None else replace(crop, short=int(np.max(crop.short)))
        self.output = self._largest(most.resized(*sizes_of(pack, np.arange(len(pack))), np.zeros((len(pack), 1))))

    def with_augmentation(self, augmentation: Augmentation) -> ImageFiller:
        """Return a filler with other crops of the same pack."""
        if isinstance(augmentation.crop, WholeImage):
            return WholeFiller(self.pack, augmentation, self.decoder, self.verify)
        return ImageFiller(self.pack, augmentation, self.decoder, self.verify)

    def for_batch(self, samples: Int64, epoch: int) -> ImageFiller:
        """Return what fills the rows of a batch: its canvas is as large as its largest images."""
        if self.pack.manifest.encoding != "raw":
            _ = self.row_decoder  # which all batches share
        one = copy(self)
        one.output = self._largest(self._sides(samples, epoch))
        return one

    @staticmethod
    def _largest(sides: Int64) -> tuple[int, int]:
        height, width = sides.max(axis=0).tolist()
        return height, width

    def _sides(self, samples: Int64, epoch: int) -> Int64:
        random = uniform(self.augmentation.seed, epoch, samples, 1 + self._crop.num_random)[:, 1:]
        return self._crop.resized(*sizes_of(self.pack, records_in(samples)), random)

    def shaped(self, memory: NDArray[np.uint8], count: int, floats: Floats | None = None) -> Any:
        """Return memory of `count` rows as these rows, or as those of `floats`."""
        return WholeRows(super().shaped(memory, count, floats), np.zeros((count, 2), np.int64))

    def normalize(self, rows: Any, out: Any, floats: Floats) -> None:
        """Write the values of rows to those of `floats`."""
        floats(rows.canvas, out.canvas)
        out.sides[:] = rows.sides

    def tensors(self, rows: Any, planar: bool = False) -> Any:
        """Return rows as the images of a batch."""
        return WholeImages(super().tensors(rows.canvas, planar), rows.sides)

    def params(self, samples: Int64, epoch: int) -> Any:
        """Return the size and flips of each sample."""
        drawn, sides = super().params(samples, epoch), self._sides(samples, epoch)
        stored = np.stack(sizes_of(self.pack, records_in(samples)), axis=1)[:, ::-1]
        each = []
        for row, (side, same) in enumerate(zip(sides.tolist(), (sides == stored).all(axis=1).tolist(), strict=True)):
            its = drawn[row : row + 1]
            each.append(replace(its, output=tuple(side), regions=None if same else its.regions))
        return EachParams(each)

    def _fill(self, records: Int64, params: Any, rows: Any) -> None:
        for row, its in enumerate(params.each):
            height, width = rows.sides[row] = its.output
            alone = (height, width) == rows.canvas.shape[1:3]
            image = rows.canvas[row : row + 1] if alone else np.empty((1, *its.output, self.channels), self.dtype)
            cut = its.regions is None and self.pack.manifest.encoding == "raw"  # they are not of one size
            region = np.array([[0.0, 0.0, width, height]])
            super()._fill(records[row : row + 1], replace(its, regions=region) if cut else its, image)
            if not alone:
                rows.canvas[row, :height, :width] = image[0]
                rows.canvas[row, height:] = 0
                rows.canvas[row, :height, width:] = 0

    def targets_of(self, targets: Any, records: Int64, params: Any, out: NDArray[Any] | None = None) -> Any:
        """Return an array (n, ...), or annotations in pixels of each image, as `of` does. Masks fill the canvas."""
        if targets.is_array and not targets.are_masks:
            return targets.of(records)
        each = [targets.of(records[row : row + 1], its) for row, its in enumerate(params.each)]
        if not targets.are_masks:
            return BatchAnnotations.join(each)
        masks = np.empty((len(records), *self.output), targets.mask_dtype) if out is None else out
        masks[:] = targets.parts[0].spec.ignore or 0
        for mask, its, (one,) in zip(masks, params.each, each, strict=True):
            mask[: its.output[0], : its.output[1]] = one
        return masks
