"""Batches of patches: whole images at their own aspect ratio, cut into squares, and padded to one length."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.loading.annotations import BatchAnnotations
from packer.loading.augmentation import Augmentation, EachParams
from packer.loading.crop import Resize
from packer.loading.decoding import sizes_of
from packer.loading.fill import Floats, ImageFiller
from packer.model.annotation import Int64
from packer.samplers.order import records_in
from packer.samplers.patches import PatchBuckets


class Patches(dict[str, Any]):
    """The images of a batch, with the names of timm's NaFlex.

    patches: (n, length, patch * patch * channels); patch_coord: int64 (n, length, 2), row and column; patch_valid: bool
    (n, length), false where there is none: those have the values of black pixels.
    """

    def flat(self) -> Patches:
        """Return them as they are handed out: until then, patches are images (n, channels, length, patch * patch)."""
        patches = self["patches"].permute(0, 2, 3, 1)
        return Patches({**self, "patches": patches.reshape(*patches.shape[:2], -1)})


@dataclass(frozen=True, slots=True, eq=False)
class PatchRows:
    """Rows of a batch."""

    patches: NDArray[Any]
    """(n, length, patch * patch, channels)."""
    grids: Int64
    """Rows and columns of patches of each image, (n, 2)."""

    def __len__(self) -> int:
        return len(self.grids)

    def __getitem__(self, rows: slice) -> PatchRows:
        """Return those of some of the images."""
        return PatchRows(self.patches[rows], self.grids[rows])


class PatchFiller(ImageFiller):
    """Fills rows of a batch with the patches of images.

    Args:
        pack: the pack.
        augmentation: flip of each image; there is no crop.
        buckets: the patches, and how many there are.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.

    Raises:
        UsageError: if there is a crop.
    """

    varies = True

    def __init__(
        self, pack: Pack, augmentation: Augmentation, buckets: PatchBuckets, decoder: str, verify: bool
    ) -> None:
        if augmentation.crop is not None:
            raise UsageError("crop", "cannot be combined with PatchBuckets, which show whole images", "leave it out")
        super().__init__(pack, augmentation.with_crop(Resize((buckets.patch, buckets.patch))), decoder, verify)
        self.augmentation, self._buckets, self._length = augmentation, buckets, buckets.lengths[-1]

    def with_augmentation(self, augmentation: Augmentation) -> ImageFiller:
        """Return a filler with another flip."""
        return PatchFiller(self.pack, augmentation, self._buckets, self.decoder, self.verify)

    def for_batch(self, samples: Int64, epoch: int) -> ImageFiller:
        """Return what fills the rows of a batch, whose length is that of its first image."""
        if self.pack.manifest.encoding != "raw":
            _ = self.row_decoder  # which all lengths share
        one = copy(self)
        one._length = self._buckets.lengths[int(self._buckets.of(*sizes_of(self.pack, records_in(samples[:1])))[0])]
        return one

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """(length, patch * patch, channels) of each row."""
        return self._length, self._buckets.patch**2, self.channels

    def shaped(self, memory: NDArray[np.uint8], count: int, floats: Floats | None = None) -> Any:
        """Return memory of `count` rows as these rows, or as those of `floats`."""
        return PatchRows(super().shaped(memory, count, floats), np.zeros((count, 2), np.int64))

    def normalize(self, rows: Any, out: Any, floats: Floats) -> None:
        """Write the values of rows to those of `floats`."""
        floats(rows.patches, out.patches)
        out.grids[:] = rows.grids

    def tensors(self, rows: Any, planar: bool = False) -> Any:
        """Return rows as the images of a batch."""
        places, (count, columns) = (
            np.arange(rows.patches.shape[2 if planar else 1]),
            (rows.grids.prod(axis=1), rows.grids[:, 1]),
        )
        valid = places < count[:, None]
        coord = np.stack(np.divmod(places, columns[:, None]), axis=2) * valid[:, :, None]
        return Patches(
            patches=super().tensors(rows.patches, planar),
            patch_coord=torch.from_numpy(coord),
            patch_valid=torch.from_numpy(valid),
        )

    def params(self, samples: Int64, epoch: int) -> Any:
        """Return the size in patches, and the flips, of each sample."""
        widths, heights = sizes_of(self.pack, records_in(samples))
        sides = np.stack(self._buckets.grids(widths, heights, self._length), axis=1) * self._buckets.patch
        drawn, filter = super().params(samples, epoch), self.interpolation
        regions = np.stack([np.zeros_like(widths), np.zeros_like(widths), widths, heights], axis=1)
        return EachParams(
            [
                replace(drawn[row : row + 1], regions=regions[row : row + 1], output=side, interpolation=filter)
                for row, side in enumerate(map(tuple, sides.tolist()))
            ]
        )

    def _fill(self, records: Int64, params: Any, rows: Any) -> None:
        patch = self._buckets.patch
        for row, its in enumerate(params.each):
            high, wide = its.output[0] // patch, its.output[1] // patch
            image = np.empty((1, *its.output, self.channels), self.dtype)
            super()._fill(records[row : row + 1], its, image)
            squares = image.reshape(high, patch, wide, patch, self.channels).transpose(0, 2, 1, 3, 4)
            rows.patches[row, : high * wide] = squares.reshape(high * wide, patch**2, self.channels)
            rows.patches[row, high * wide :] = 0
            rows.grids[row] = high, wide

    def targets_of(self, targets: Any, records: Int64, params: Any, out: NDArray[Any] | None = None) -> Any:
        """Return an array (n, ...), or annotations in pixels of each image, which differ in size; as `of` does."""
        if targets.is_array:
            return targets.of(records)
        each = [targets.of(records[row : row + 1], its) for row, its in enumerate(params.each)]
        return BatchAnnotations.join(each)
