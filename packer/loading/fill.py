"""Fills rows of a batch with images of a pack; each thread does this for its part of a batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.images.decode import Decoder
from packer.loading.affine import check_fill, warp_rows
from packer.loading.augmentation import Augmentation, CropParams
from packer.loading.crop import CoverCrop, Letterbox, ResizingCrop, interpolation_of
from packer.loading.decoding import RowDecoder, Sizes, data_of, flip_rows, resize_parts, sizes_of
from packer.model.annotation import Image, Int64
from packer.samplers.bucket_shapes import ShapeBuckets
from packer.samplers.order import records_in


class Gather:
    """Copies records of one size from a pack's region: one call for each part of it, without the GIL.

    Args:
        region: the mapped pack.
        record_bytes: bytes of each record.
    """

    def __init__(self, region: Region, record_bytes: int) -> None:
        self._region, self._record_bytes = region, record_bytes
        parts = [(number, part) for number, part in enumerate(region.parts) if len(part) >= record_bytes]
        self._rows = {number: overlapping_rows(part, record_bytes) for number, part in parts}

    def __call__(self, offsets: Int64, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the records at these offsets, uint8 (n, record_bytes), in `out` if given."""
        if len(self._region.parts) == 1:
            return torch.index_select(self._rows[0], 0, torch.from_numpy(offsets), out=out)
        if out is None:
            out = torch.empty((len(offsets), self._record_bytes), dtype=torch.uint8)
        for number, rows, places in self._region.by_part(offsets):
            found = torch.index_select(self._rows[number], 0, torch.from_numpy(places))
            out.index_copy_(0, torch.from_numpy(rows), found)
        return out


def gather_of(pack: Pack) -> Gather:
    """Return the gather for a pack of raw images of one shape."""
    assert pack.reader.record_bytes is not None
    return Gather(pack.reader.region, pack.reader.record_bytes)


def overlapping_rows(mapped: NDArray[np.uint8], record_bytes: int) -> torch.Tensor:
    """Return a view of mapped bytes with a row of `record_bytes` for each byte offset: (offsets, record_bytes).

    Offsets need not be aligned, and may be in any shard. The tensor must never be written to.
    """
    with warnings.catch_warnings():
        # torch warns because it has no read-only tensors; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(mapped)
    return torch.as_strided(tensor, (tensor.numel() - record_bytes + 1, record_bytes), (1, 1))


class Floats:
    """Turns uint8 or uint16 rows into normalized float32 ones, by the operations of `to_device.Normalize`.

    Args:
        mean: of each channel, for values from 0 to 1; None: values are only divided.
        std: likewise.
        full: the largest value of a pixel.
        channels: of each pixel.
        planar: whether rows are (channels, height, width) then, and not (height, width, channels).
    """

    def __init__(
        self, mean: Sequence[float] | None, std: Sequence[float] | None, full: float, channels: int, planar: bool
    ) -> None:
        self.planar = planar
        self._mean = None if mean is None else np.array([one * full for one in mean], np.float32)
        self._std = np.array([full] * channels if std is None else [one * full for one in std], np.float32)

    def __call__(self, rows: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the values of rows (n, height, width, channels) to `out`."""
        count, height, width, channels = rows.shape
        if self.planar:
            rows = rows.transpose(0, 3, 1, 2)
        else:  # lines of numbers, for numpy is slow where an axis has three
            rows, out = (some.reshape(count, height, width * channels) for some in (rows, out))
        np.copyto(out, rows)
        for operation, each in ((np.subtract, self._mean), (np.divide, self._std)):
            if each is not None:
                operation(out, each.reshape(-1, 1, 1) if self.planar else np.tile(each, width), out=out)


BatchSlice = NDArray[Any]
"""(n, height, width, channels), C-contiguous: a part of a batch's memory."""
_CHANNELS = {"gray": 1, "rgb": 3}


class ImageFiller:
    """Fills rows of a batch with the images of records. All threads share it.

    Args:
        pack: the pack.
        augmentation: crop, flips, turn and map of each image.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.

    Raises:
        ValueError: if the images differ in shape and there is no crop.
        UsageError: if images are to be turned that are not square, or cannot have the fill of their maps or borders.
    """

    varies = False
    """Whether batches differ in shape."""
    grows = False
    """Whether they do so much that memory is made for those that come, and not for the largest."""
    has_views = False
    """Whether a batch has several crops of an image, and targets of each."""

    def __init__(self, pack: Pack, augmentation: Augmentation, decoder: str = "auto", verify: bool = True) -> None:
        self.pack, self.augmentation = pack, augmentation
        self.decoder = cast(Decoder, decoder)
        self.verify = verify
        self.interpolation = interpolation_of(augmentation.crop)
        shape = pack.manifest.shape
        self.channels = self._channels()
        if augmentation.crop is not None:
            self.output = augmentation.crop.output(None if shape is None else shape[:2])
        elif shape is None:
            raise ValueError(f"{pack.path}: images differ in size; give a crop, such as RandomResizedCrop(224)")
        else:
            self.output = shape[:2]
        height, width = self.output
        if augmentation.rotate90 and height != width:
            problem = f"needs square images, but these are {width}x{height}"
            raise UsageError("rotate90", problem, f"crop a square, such as RandomResizedCrop({min(self.output)})")
        for name, filled in (("affine", getattr(augmentation.affine, "fill", 0)), ("crop", augmentation.border)):
            if filled:
                check_fill(name, filled, self.channels, np.iinfo(self.dtype).max)

    def with_augmentation(self, augmentation: Augmentation) -> ImageFiller:
        """Return a filler with other crops of the same pack."""
        return ImageFiller(self.pack, augmentation, self.decoder, self.verify)

    def for_batch(self, samples: Int64, epoch: int) -> ImageFiller:
        """Return what fills the rows of a batch: this filler, unless batches differ in shape."""
        return self

    def _channels(self) -> int:
        shape = self.pack.manifest.shape
        if shape is not None:
            return shape[2]
        if self.pack.manifest.mode in _CHANNELS:
            return _CHANNELS[self.pack.manifest.mode]
        if len(channels := self._found("channels")) != 1:
            raise ValueError(f"{self.pack.path}: images with {channels} channels cannot be in one batch")
        return channels[0]

    def _found(self, name: str) -> list[int]:
        """Return the different values in a column of numbers."""
        return sorted({number for part in self.pack.reader.shard_columns(name) for number in np.unique(part).tolist()})

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of each row."""
        return (*self.output, self.channels)

    @cached_property
    def dtype(self) -> Any:
        """uint8 or uint16."""
        if self.pack.manifest.dtype is None and len(self._found("dtype")) != 1:
            raise ValueError(f"{self.pack.path}: 8-bit and 16-bit images cannot be in one batch")
        return np.dtype(self.pack.reader.dtype_of(0))

    @property
    def row_numbers(self) -> int:
        """Pixels times channels of each row."""
        return math.prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of each row."""
        return int(self.row_numbers * self.dtype.itemsize)

    def shaped(self, memory: NDArray[np.uint8], count: int, floats: Floats | None = None) -> Any:
        """Return memory of `count` rows as these rows, or as those of `floats`."""
        if floats is None:
            return memory.view(self.dtype).reshape(count, *self.row_shape)
        height, width, channels = self.row_shape
        shape = (channels, height, width) if floats.planar else self.row_shape
        return memory.view(np.float32).reshape(count, *shape)

    def normalize(self, rows: Any, out: Any, floats: Floats) -> None:
        """Write the values of rows to those of `floats`."""
        floats(rows, out)

    def tensors(self, rows: Any, planar: bool = False) -> Any:
        """Return rows as the images of a batch, (n, channels, height, width)."""
        return torch.from_numpy(rows) if planar else torch.from_numpy(rows).permute(0, 3, 1, 2)

    def params(self, samples: Int64, epoch: int) -> CropParams:
        """Return crop, flips, turn and map of each sample: they depend on (seed, epoch, record, visit) alone."""
        return self.augmentation.params(samples, epoch, self.output, partial(sizes_of, self.pack))

    def targets_of(self, targets: Any, records: Int64, params: Any, out: NDArray[Any] | None = None) -> Any:
        """Return those of the `targets.Targets` of a pack that belong to images with these `params`, as `of` does."""
        return targets.of(records, params, out)

    def fill(self, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        """Write the image of each record to its row. Raise DamagedPack, naming the record, if one cannot be read."""
        with self.pack.reader.held(records):
            self._fill(records, params, rows)

    def _fill(self, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        if self.verify:
            self.pack.reader.check(records)
        if isinstance(self.augmentation.crop, ResizingCrop):
            self._cut_by(self.augmentation.crop, records, params, rows)
        elif self.pack.manifest.encoding != "raw":
            self.row_decoder.decode(records, params, rows)
        else:
            if params.regions is None:
                out = torch.from_numpy(rows.reshape(len(rows), -1).view(np.uint8))
                self._gather(self.pack.reader.places(records)[0], out)
            else:
                self._cut(records, params, rows)
            flip_rows(rows, params)
        self.warp(rows, params)

    def warp(self, rows: BatchSlice, params: CropParams) -> None:
        """Move the images in rows by their maps."""
        if self.augmentation.affine is not None:
            warp_rows(rows, params.affine, self.augmentation.affine.fill)

    @cached_property
    def row_decoder(self) -> RowDecoder:
        """Decodes encoded images."""
        return RowDecoder(self.pack, self.decoder, self.channels, self.interpolation, self.verify)

    @property
    def decoded_by(self) -> str:
        """What decodes JPEGs: the version of the native decoder, or the name of another; "" for a raw pack."""
        return "" if self.pack.manifest.encoding == "raw" else self.row_decoder.name

    @cached_property
    def _gather(self) -> Gather:
        return gather_of(self.pack)

    def _cut(self, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        """Resize parts of raw images, reading only those parts from the map."""
        sizes, regions = sizes_of(self.pack, records), params.regions
        assert regions is not None
        resize_parts(self.mapped(records, sizes), regions, sizes, list(rows), self.interpolation, params.border)

    def _cut_by(self, crop: ResizingCrop, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        """Let a crop resize the whole images, at their full size."""
        if self.pack.manifest.encoding == "raw":
            images = self.mapped(records, sizes_of(self.pack, records))
        else:
            images, _ = self.row_decoder.images(records, np.ones(len(records)))
        assert params.regions is not None and params.choices is not None
        for image, region, choice, row in zip(images, params.regions, params.choices.tolist(), rows, strict=True):
            crop.fill_row(image, region, choice, row)
        flip_rows(rows, params)

    def mapped(self, records: Int64, sizes: Sizes) -> Iterator[Image]:
        """Return raw images as views of the map; `sizes` are theirs."""
        pack, (widths, heights) = self.pack, sizes
        stored = pack.reader.places(records)[1]
        wrong = np.flatnonzero(stored != widths * heights * self.channels * self.dtype.itemsize)
        for i in wrong.tolist():
            problem = f"has {stored[i]} bytes, which is not a {widths[i]:.0f}x{heights[i]:.0f} image"
            raise pack.reader.damage_error(int(records[i]), problem)
        shapes = zip(heights.astype(int).tolist(), widths.astype(int).tolist(), strict=True)
        return (
            np.frombuffer(data, self.dtype).reshape(height, width, self.channels)
            for data, (height, width) in zip(data_of(pack, records), shapes, strict=True)
        )


class BucketFiller(ImageFiller):
    """Fills rows of batches of differing shape: all images of a batch are of one bucket.

    Args:
        pack: the pack.
        augmentation: crop and flip of each image; the crop has no size. None: that of the buckets.
        buckets: the shapes, of which each image has one.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.

    Raises:
        UsageError: if the crop has a size, or cannot have another one.
    """

    varies = True

    def __init__(
        self, pack: Pack, augmentation: Augmentation, buckets: ShapeBuckets, decoder: str, verify: bool
    ) -> None:
        crop = augmentation.crop or (CoverCrop() if buckets.fit == "cover" else Letterbox())
        if not isinstance(crop, CoverCrop | Letterbox) or crop.size is not None:
            problem = f"is {crop!r}, but the shapes are those of the sampler's buckets"
            raise UsageError("crop", problem, "write packer.CoverCrop(), packer.Letterbox(), or leave it out")
        self._crop, self._buckets = crop, buckets
        self._fillers: dict[int, ImageFiller] = {}
        largest = max(buckets.shapes, key=lambda shape: shape[0] * shape[1])
        super().__init__(pack, augmentation.with_crop(replace(crop, size=largest)), decoder, verify)
        self.augmentation = augmentation.with_crop(crop)

    def with_augmentation(self, augmentation: Augmentation) -> ImageFiller:
        """Return a filler with other crops of the same pack."""
        return BucketFiller(self.pack, augmentation, self._buckets, self.decoder, self.verify)

    def for_batch(self, samples: Int64, epoch: int) -> ImageFiller:
        """Return what fills the rows of a batch, whose shape is that of its first image."""
        number = int(self._buckets.of(*sizes_of(self.pack, records_in(samples[:1])))[0])
        if number not in self._fillers:
            if self.pack.manifest.encoding != "raw":
                _ = self.row_decoder  # which all shapes share
            one = copy(self)
            one.output = self._buckets.shapes[number]
            one.augmentation = self.augmentation.with_crop(replace(self._crop, size=one.output))
            self._fillers[number] = one
        return self._fillers[number]
