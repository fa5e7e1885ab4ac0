"""Fills rows of a batch with images of a pack; each thread does this for its part of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, cast

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import BadImage
from packer.format.bits import Bits
from packer.format.pack import Pack
from packer.images.decode import Decoder, decode, is_plain_jpeg
from packer.images.header import Mode, check_header, decoded_shape, read_header, read_header_leniently
from packer.images.jpeg import HEADROOM, REDUCED_SIDE_MIN, decode_into, decode_rows, extents
from packer.images.resample import Interpolation, one_call, resample
from packer.loading.augmentation import Augmentation, CropParams
from packer.loading.crop import Regions
from packer.loading.gather import Gather, gather_of
from packer.samplers.order import Float64
from packer.types import Image, Int64

BatchSlice = NDArray[Any]
"""(n, height, width, channels), C-contiguous: a part of a batch's memory."""
Sizes = tuple[Float64, Float64]
"""Widths and heights of images."""
_CHANNELS = {"gray": 1, "rgb": 3}


class ImageFiller:
    """Fills rows of a batch with the images of records. All threads share it.

    Args:
        pack: the pack.
        augmentation: crop and flip of each image.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.

    Raises:
        ValueError: if the images differ in shape and there is no crop.
    """

    def __init__(self, pack: Pack, augmentation: Augmentation, decoder: str = "auto", verify: bool = True) -> None:
        self.pack, self.augmentation = pack, augmentation
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
        """Return a filler with other crops of the same pack."""
        return ImageFiller(self.pack, augmentation, self.decoder, self.verify)

    def _channels(self) -> int:
        shape = self.pack.manifest.shape
        if shape is not None:
            return shape[2]
        if self.mode in _CHANNELS:
            return _CHANNELS[self.mode]
        if len(channels := self._found("channels")) != 1:
            raise ValueError(f"{self.pack.path}: images with {channels} channels cannot be in one batch")
        return channels[0]

    def _found(self, name: str) -> list[int]:
        """Return the different values in a column of numbers."""
        return sorted({number for part in self.pack.parts(name) for number in np.unique(part).tolist()})

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of each row."""
        return (*self.output, self.channels)

    @cached_property
    def dtype(self) -> Any:
        """uint8 or uint16."""
        if self.pack.manifest.dtype is None and len(self._found("dtype")) != 1:
            raise ValueError(f"{self.pack.path}: 8-bit and 16-bit images cannot be in one batch")
        return np.dtype(self.pack.dtype_of(0))

    def params(self, records: Int64, epoch: int) -> CropParams:
        """Return crop and flip of each record: they depend on (seed, epoch, record) alone."""
        return self.augmentation.params(records, epoch, self.output, self._sizes)

    def _sizes(self, records: Int64) -> Sizes:
        shape = self.pack.manifest.shape
        if shape is not None:
            return np.full(len(records), float(shape[1])), np.full(len(records), float(shape[0]))
        widths, heights = (self.pack.values(name, records) for name in ("width", "height"))
        return widths.astype(np.float64), heights.astype(np.float64)

    def fill(self, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        """Write the image of each record to its row. Raise DamagedPack, naming the record, if one cannot be read."""
        with self.pack.held(records):
            self._fill(records, params, rows)

    def _fill(self, records: Int64, params: CropParams, rows: BatchSlice) -> None:
        if self.verify:
            self.pack.check(records)
        if self.pack.manifest.encoding != "raw":
            self._decode(records, params.regions, rows)
        elif params.regions is None:
            out = torch.from_numpy(rows.reshape(len(rows), -1).view(np.uint8))
            self._gather(self.pack.where(records)[0], out)
        else:
            self._cut(records, params.regions, rows)
        if params.flipped is not None:
            for i in np.flatnonzero(params.flipped).tolist():
                cv2.flip(rows[i], 1, dst=rows[i])

    @cached_property
    def _gather(self) -> Gather:
        return gather_of(self.pack)

    def _data(self, records: Int64) -> list[memoryview]:
        """Return the bytes of each record, mapped."""
        region, (starts, sizes) = self.pack.region.data, self.pack.where(records)
        return [region[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]

    def _cut(self, records: Int64, regions: Regions, rows: BatchSlice) -> None:
        """Resize parts of raw images, reading only those parts from the map."""
        pack = self.pack
        widths, heights = self._sizes(records)
        stored = pack.where(records)[1]
        wrong = np.flatnonzero(stored != widths * heights * self.channels * self.dtype.itemsize)
        for i in wrong.tolist():
            problem = f"has {stored[i]} bytes, which is not a {widths[i]:.0f}x{heights[i]:.0f} image"
            raise pack.damage(int(records[i]), problem)
        sizes = zip(heights.astype(int).tolist(), widths.astype(int).tolist(), strict=True)
        images = (
            np.frombuffer(data, self.dtype).reshape(height, width, self.channels)
            for data, (height, width) in zip(self._data(records), sizes, strict=True)
        )
        self._resize(images, regions, (widths, heights), rows)

    def _resize(self, images: Iterable[Image], parts: Regions, sizes: Sizes, rows: Iterable[Image]) -> None:
        """Resize a part of each image, in pixels of that image, into its row; `sizes` are those of the images."""
        out_height, out_width = self.output
        x, y, width, height = parts.T
        flags = one_call(width / out_width, height / out_height, self.interpolation)
        edges = np.stack([x, y, x + width, y + height], axis=1)
        inside = (x >= 0) & (y >= 0) & (edges[:, 2] <= sizes[0]) & (edges[:, 3] <= sizes[1])
        inside &= (edges == np.rint(edges)).all(axis=1)
        # per image only what must be: the GIL lets one thread run Python at a time
        cuts = np.where(inside[:, None], edges, 0).astype(np.int64).tolist()
        flags = np.where(inside, flags, -1).tolist()
        for image, row, (left, top, right, bottom), flag, part in zip(images, rows, cuts, flags, parts, strict=True):
            if flag >= 0:
                cv2.resize(image[top:bottom, left:right], (out_width, out_height), row, 0, 0, flag)
            else:
                resize_into(image, part.tolist(), row, self.interpolation)

    def _decode(self, records: Int64, regions: Regions | None, rows: BatchSlice) -> None:
        plain = self._plain(records)
        for i in np.flatnonzero(~plain).tolist():
            self._decode_any(int(records[i]), None if regions is None else regions[i].tolist(), rows[i])
        places = np.flatnonzero(plain)
        if not len(places):
            return
        its_rows = list(rows) if len(places) == len(rows) else [rows[i] for i in places.tolist()]
        if regions is None:
            self._decode_whole(records[places], its_rows)
        else:
            self._decode_parts(records[places], regions[places], its_rows)

    @cached_property
    def _kinds(self) -> tuple[Bits, Bits]:
        """Which records of a pack of copied files are plain JPEGs, and which are known not to be."""
        return Bits(len(self.pack)), Bits(len(self.pack))

    def _plain(self, records: Int64) -> NDArray[np.bool_]:
        """Return which records are upright JPEGs of the size in the index, whose header need not be read again.

        JPEGs encoded by packer are. Headers of copied files are read once, because the bytes of a record never change.
        """
        encoding = self.pack.manifest.encoding
        fast = self.decoder in ("auto", "simplejpeg") and not self.pack.manifest.lenient
        if encoding not in ("jpeg", "copy") or not fast:
            return np.zeros(len(records), np.bool_)
        if encoding == "jpeg":
            return np.ones(len(records), np.bool_)
        plain, other = self._kinds
        unknown = records[~(plain[records] | other[records])]
        if len(unknown):
            widths, heights = (sides.astype(int).tolist() for sides in self._sizes(unknown))
            for record, data, width, height in zip(unknown.tolist(), self._data(unknown), widths, heights, strict=True):
                is_plain = is_plain_jpeg(bytes(data), self.mode, (height, width, self.channels))
                (plain if is_plain else other).set(np.array([record]))
        return plain[records]

    def _decode_whole(self, records: Int64, rows: list[Image]) -> None:
        """Decode plain JPEGs directly into their rows."""
        parts = self._data(records)
        done = decode_rows(parts, rows)
        if done < len(rows):
            self._decode_one(int(records[done]), parts[done], rows[done])

    def _decode_one(self, record: int, data: memoryview, image: Image, factor: int = 1) -> Image:
        try:
            decode_into(data, image, factor)
        except BadImage as error:
            raise self.pack.damage(record, f"cannot be decoded: {error.problem}") from None
        return image

    def _decode_parts(self, records: Int64, regions: Regions, rows: list[Image]) -> None:
        """Decode plain JPEGs at 1/1 to 1/8, and resize parts of them into their rows."""
        widths, heights = self._sizes(records)
        factors = self._factors(regions, widths, heights)
        sizes = (np.ceil(heights / factors).astype(int).tolist(), np.ceil(widths / factors).astype(int).tolist())
        numbers = records.tolist(), self._data(records), *sizes, factors.tolist()
        images = (
            self._decode_one(record, data, np.empty((height, width, self.channels), np.uint8), factor)
            for record, data, height, width, factor in zip(*numbers, strict=True)
        )
        self._resize(images, regions / factors[:, None], (widths / factors, heights / factors), rows)

    def _factors(self, regions: Regions, widths: Float64, heights: Float64) -> Int64:
        """Return the factor, 1 to 8, by which each image can be decoded smaller without visible loss in its part."""
        factors = np.ones(len(regions), np.int64)
        if self.interpolation != "nearest":
            room = np.minimum(regions[:, 2] / self.output[1], regions[:, 3] / self.output[0]) / HEADROOM
            for factor in (2, 4, 8):
                factors[(room >= factor) & (np.minimum(widths, heights) >= REDUCED_SIDE_MIN)] = factor
        return factors

    def _decode_any(self, record: int, part: list[float] | None, row: Image) -> None:
        """Decode an image by what its header says, and resize a part of it into the row."""
        # of joined packs, some may have raw images
        image = self.pack.image(record) if self.pack.encoding_of(record) == "raw" else self._decoded(record, part)
        if part is None:
            row[:] = image
        else:
            factor = reduced_by(self.pack.shape_of(record)[:2], image)
            resize_into(image, [side / factor for side in part], row, self.interpolation)

    def _decoded(self, record: int, part: list[float] | None) -> Image:
        height, width, _ = self.pack.shape_of(record)
        data = bytes(self._data(np.array([record]))[0])
        at_least = None if part is None else self._at_least(part, width, height)
        try:
            lenient = self.pack.manifest.lenient
            header = read_header_leniently(data) if lenient else read_header(data)
            # the build has already limited the number of pixels, and decided about animations
            check_header(header, width * height, "first")
            found, expected = decoded_shape(header, self.mode)[:3], (height, width, self.channels)
            if found != expected:
                raise BadImage("", f"decodes to shape {found}, but the index says {expected}")
            return decode(data, self.mode, "lenient" if lenient else self.decoder, at_least, header=header)
        except BadImage as error:
            raise self.pack.damage(record, f"cannot be decoded: {error.problem}") from None

    def _at_least(self, part: list[float], width: int, height: int) -> tuple[int, int]:
        """Return the smallest (width, height) at which to decode the whole image without visible loss in this part."""
        if self.interpolation == "nearest":
            return width, height
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


def resize_into(image: Image, part: list[float], row: Image, interpolation: Interpolation = "area") -> None:
    """Resize the part (x, y, width, height) of an image into `row`; outside the image it is black."""
    x, y, width, height = part
    if x < 0 or y < 0 or x + width > image.shape[1] or y + height > image.shape[0]:
        left, top = math.floor(x), math.floor(y)
        image = _bordered(image, left, top, math.ceil(x + width) - left, math.ceil(y + height) - top)
        x, y = x - left, y - top
    resample(image, row.shape[1::-1], interpolation, (x, y, width, height), out=row)


def _bordered(image: Image, x: int, y: int, width: int, height: int) -> Image:
    """Return a part that extends beyond the image, with black pixels outside it."""
    canvas = np.zeros((height, width, image.shape[2]), image.dtype)
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + width, image.shape[1]), min(y + height, image.shape[0])
    if x2 > x1 and y2 > y1:
        canvas[y1 - y : y2 - y, x1 - x : x2 - x] = image[y1:y2, x1:x2]
    return canvas
