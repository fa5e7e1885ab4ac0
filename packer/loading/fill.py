"""Fills rows of a batch with images of a pack; each thread does this for its part of a batch."""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import Any, cast

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import BadImage, DamagedPack
from packer.format.mmap import Region
from packer.format.pack import Pack
from packer.images.decode import Decoder, decode
from packer.images.header import Mode
from packer.images.jpeg import HEADROOM, decode_into, decode_reduced, extents
from packer.images.resize import Interpolation, resample
from packer.loading.augmentation import Augmentation, CropParams
from packer.loading.crop import Regions
from packer.types import Image, Int64

BatchSlice = NDArray[Any]
"""(n, height, width, channels), C-contiguous: a part of a batch's memory."""


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
    assert pack.record_bytes is not None
    return Gather(pack.region, pack.record_bytes)


def overlapping_rows(mapped: NDArray[np.uint8], record_bytes: int) -> torch.Tensor:
    """Return a view of mapped bytes with a row of `record_bytes` for each byte offset: (offsets, record_bytes).

    Offsets need not be aligned, and may be in any shard. The tensor must never be written to.
    """
    with warnings.catch_warnings():
        # torch warns because it has no read-only tensors; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(mapped)
    return torch.as_strided(tensor, (tensor.numel() - record_bytes + 1, record_bytes), (1, 1))


class ImageFiller:
    """Fills rows of a batch with the images of records. All threads share it; it has no mutable state.

    Args:
        pack: the pack.
        augmentation: crop and flip of each image.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.

    Raises:
        ValueError: if the images differ in shape and there is no crop.
    """

    def __init__(self, pack: Pack, augmentation: Augmentation, decoder: str = "auto", verify: bool = True) -> None:
        self.pack = pack
        self.augmentation = augmentation
        self.decoder = cast(Decoder, decoder)
        self.verify = verify
        # a user's crop may have no interpolation
        self.interpolation: Interpolation = getattr(augmentation.crop, "interpolation", "area")
        shape = pack.manifest.shape
        self.mode = cast(Mode, pack.manifest.mode)
        self.channels = self._channels()
        if augmentation.crop is not None:
            self.output = augmentation.crop.output(None if shape is None else shape[:2])
        elif shape is None:
            raise ValueError(f"{pack.path}: images differ in size; give a crop, such as RandomResizedCrop(224)")
        else:
            self.output = shape[:2]

    def with_augmentation(self, augmentation: Augmentation) -> ImageFiller:
        """Return one with other crops of the same pack."""
        return ImageFiller(self.pack, augmentation, self.decoder, self.verify)

    def _channels(self) -> int:
        shape = self.pack.manifest.shape
        if shape is not None:
            return shape[2]
        channels = np.unique(np.asarray(self.pack.column("channels")))
        if len(channels) != 1:
            raise ValueError(f"{self.pack.path}: images with {channels.tolist()} channels cannot be in one batch")
        return int(channels[0])

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of each row."""
        return (*self.output, self.channels)

    @cached_property
    def dtype(self) -> Any:
        """uint8 or uint16."""
        dtypes = np.unique(np.asarray(self.pack.column("dtype"))).tolist()
        if len(dtypes) != 1:
            raise ValueError(f"{self.pack.path}: 8-bit and 16-bit images cannot be in one batch")
        return np.dtype(self.pack.dtype_of(0))

    def params(self, records: Int64, epoch: int) -> CropParams:
        """Return crop and flip of each record: they depend on (seed, epoch, record) alone."""
        return self.augmentation.params(records, epoch, self.output, self._sizes)

    def _sizes(self, records: Int64) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shape = self.pack.manifest.shape
        if shape is not None:
            return np.full(len(records), float(shape[1])), np.full(len(records), float(shape[0]))
        widths, heights = self._all_sizes
        return widths[records].astype(np.float64), heights[records].astype(np.float64)

    @cached_property
    def _all_sizes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.asarray(self.pack.column("width")), np.asarray(self.pack.column("height"))

    def fill(self, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        """Write the image of each record to its row. Raise DamagedPack, naming the record, if one cannot be read."""
        if self.verify:
            self.pack.check(records)
        encoding = self.pack.manifest.encoding
        if self._own_jpeg and params.regions is None:
            self._decode_whole(records, rows)
        elif encoding != "raw":
            self._decode(records, params.regions, rows)
        elif params.regions is None:
            out = torch.from_numpy(rows.reshape(len(rows), -1).view(np.uint8))
            self._gather(self.pack.offsets[records], out)
        else:
            self._cut(records, params.regions, rows)
        if params.flipped is not None:
            for i in np.flatnonzero(params.flipped).tolist():
                cv2.flip(rows[i], 1, dst=rows[i])

    @cached_property
    def _gather(self) -> Gather:
        return gather_of(self.pack)

    def _cut(self, records: Int64, regions: Regions, rows: BatchSlice) -> None:
        """Resize parts of raw images, reading only those parts from the map."""
        pack, region = self.pack, self.pack.region.data
        starts, sizes = pack.offsets[records].tolist(), pack.sizes[records].tolist()
        widths, heights = (values.astype(int).tolist() for values in self._sizes(records))
        parts = zip(starts, sizes, widths, heights, regions.tolist(), strict=True)
        for i, (start, size, width, height, part) in enumerate(parts):
            if size != width * height * self.channels * self.dtype.itemsize:
                raise pack.damage(int(records[i]), f"has {size} bytes, which is not a {width}x{height} image")
            image = np.frombuffer(region[start : start + size], self.dtype).reshape(height, width, self.channels)
            resize_into(image, part, 1, rows[i], self.interpolation)

    @cached_property
    def _own_jpeg(self) -> bool:
        """Whether records are JPEGs encoded by packer, upright and of the size in the index, so no header is read."""
        return self.pack.manifest.encoding == "jpeg" and self.decoder in ("auto", "simplejpeg")

    def _decode_whole(self, records: Int64, rows: BatchSlice) -> None:
        """Decode JPEGs encoded by packer directly into their rows.

        The Python overhead must be small, because it could exceed the decode of a small image.
        """
        region = self.pack.region.data
        starts, sizes = self.pack.offsets[records].tolist(), self.pack.sizes[records].tolist()
        for i, (row, start, size) in enumerate(zip(rows, starts, sizes, strict=True)):
            try:
                decode_into(region[start : start + size], row)
            except BadImage as error:
                raise self._damaged(int(records[i]), error) from None

    def _damaged(self, record: int, error: BadImage) -> DamagedPack:
        return self.pack.damage(record, f"cannot be decoded: {error.problem}")

    def _decode(self, records: Int64, regions: Regions | None, rows: BatchSlice) -> None:
        pack, region = self.pack, self.pack.region.data
        widths, heights = (values.tolist() for values in self._sizes(records))
        starts, sizes = pack.offsets[records].tolist(), pack.sizes[records].tolist()
        parts = [None] * len(rows) if regions is None else regions.tolist()
        for i, (start, size, width, height, part) in enumerate(zip(starts, sizes, widths, heights, parts, strict=True)):
            data = region[start : start + size]
            least = None if part is None else self._at_least(part, width, height)
            try:
                if self._own_jpeg and least is not None:
                    image = decode_reduced(data, (int(width), int(height)), self.channels, least)
                else:
                    # the build has already limited the number of pixels
                    image = decode(bytes(data), self.mode, self.decoder, least, int(width * height))
                factor = reduced_by((int(height), int(width)), image)
            except BadImage as error:
                raise self._damaged(int(records[i]), error) from None
            if part is None:
                rows[i] = image
            else:
                resize_into(image, part, factor, rows[i], self.interpolation)

    def _at_least(self, part: list[float], width: float, height: float) -> tuple[int, int]:
        """Return the smallest (width, height) at which to decode the whole image without visible loss in this part."""
        if self.interpolation == "nearest":
            return int(width), int(height)
        across, down = HEADROOM * self.output[1], HEADROOM * self.output[0]
        return math.ceil(width * across / part[2]), math.ceil(height * down / part[3])


def reduced_by(shape: tuple[int, int], image: Image) -> int:
    """Return the factor by which `image` is smaller than (height, width): 1, 2, 4 or 8. Raise BadImage otherwise.

    This is not the quotient of two sides, because decoding rounds up: 17 pixels at 1/8 are 3.
    """
    for factor in (1, 2, 4, 8):
        if image.shape[:2] == (extents(shape[0], factor), extents(shape[1], factor)):
            return factor
    raise BadImage("", f"decodes to shape {image.shape}, but the index says {shape}")


def resize_into(
    image: Image, part: list[float], factor: int, row: Image, interpolation: Interpolation = "area"
) -> None:
    """Resize the part (x, y, width, height) of an image into `row`; `image` may be 1/`factor` of the full one."""
    # edges are rounded, not the size: half a pixel at both ends would reach beyond the image
    x, y = round(part[0] / factor), round(part[1] / factor)
    width, height = round((part[0] + part[2]) / factor) - x, round((part[1] + part[3]) / factor) - y
    out_height, out_width = row.shape[:2]
    width, height = max(1, width), max(1, height)
    inside = x >= 0 and y >= 0 and x + width <= image.shape[1] and y + height <= image.shape[0]
    if not inside:
        image, x, y = _bordered(image, x, y, width, height), 0, 0
    resample(image[y : y + height, x : x + width], (out_width, out_height), interpolation, out=row)


def _bordered(image: Image, x: int, y: int, width: int, height: int) -> Image:
    """Return a part that extends beyond the image, with black pixels outside it."""
    canvas = np.zeros((height, width, image.shape[2]), image.dtype)
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + width, image.shape[1]), min(y + height, image.shape[0])
    if x2 > x1 and y2 > y1:
        canvas[y1 - y : y2 - y, x1 - x : x2 - x] = image[y1:y2, x1:x2]
    return canvas
