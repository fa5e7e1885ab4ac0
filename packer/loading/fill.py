"""Fills rows of a batch with images of a pack: what one thread does for its part of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import BadImage, DamagedPack, UsageError
from packer.format.pack import Pack
from packer.images.decode import Decoder, decode
from packer.images.header import Mode
from packer.images.jpeg import HEADROOM, decode_into, decode_reduced, extents
from packer.images.resize import Interpolation, resample
from packer.loading.crop import Crop, Regions
from packer.loading.draws import uniform
from packer.loading.gather import Gather
from packer.types import Image, Int64

Rows = NDArray[Any]
"""(n, height, width, channels), C-contiguous: a part of the batch's memory."""


@dataclass(frozen=True, slots=True)
class View:
    """How a batch looks at each image: its crop, the chance of a horizontal flip, and the seed of both."""

    crop: Crop | None = None
    flip: float = 0.0
    seed: int = 0

    @property
    def identity(self) -> dict[str, str | int | float | None]:
        """What of it a state holds: equal here and in a state that may be resumed."""
        crop = self.crop
        # the default repr is an address, another one in each process
        told = type(crop).__qualname__ if type(crop).__repr__ is object.__repr__ else repr(crop)
        return {"view_seed": self.seed, "crop": None if crop is None else told, "flip": float(self.flip)}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError where a state is of another view. Those of packer 0.1.0 say the seed alone."""
        here = self.identity
        seed = state.get("view_seed")
        if type(seed) is not int or seed != here["view_seed"]:
            problem = f"has seed {seed!r} for crops and flips, here {here['view_seed']}"
            raise UsageError("state", problem, "give its seed")
        if "crop" not in state and "flip" not in state:
            return
        for name in ("crop", "flip"):
            if name not in state:
                raise UsageError("state", f"has no {name}", "resume with what the state was made with, or begin anew")
            if type(state[name]) is not type(here[name]) or state[name] != here[name]:
                problem = f"has {name} {state[name]!r}, here {here[name]!r}"
                raise UsageError("state", problem, f"give its {name}, or begin anew")


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where the images of some records go: the region of each that fills its row, and whether it is mirrored."""

    regions: Regions | None
    flipped: NDArray[np.bool_] | None


class RowFiller:
    """Fills rows for records; one for all threads, holds nothing that they change."""

    def __init__(self, pack: Pack, view: View, decoder: str = "auto", verify: bool = True) -> None:
        """Raises ValueError where the images differ in shape and no crop makes them alike."""
        self.pack = pack
        self.view = view
        self.decoder = cast(Decoder, decoder)
        self.verify = verify
        # a crop of the caller's own making may name no filter
        self.interpolation: Interpolation = getattr(view.crop, "interpolation", "area")
        shape = pack.manifest.shape
        self.mode = cast(Mode, pack.manifest.mode)
        self.channels = self._channels()
        if view.crop is not None:
            self.output = view.crop.output(None if shape is None else shape[:2])
        elif shape is None:
            raise ValueError(f"{pack.path}: images differ in size; give a crop, such as RandomResizedCrop(224)")
        else:
            self.output = shape[:2]

    def _channels(self) -> int:
        shape = self.pack.manifest.shape
        if shape is not None:
            return shape[2]
        channels = np.unique(np.asarray(self.pack.column("channels")))
        if len(channels) != 1:
            raise ValueError(f"{self.pack.path}: images of {channels.tolist()} channels do not fit one batch")
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
            raise ValueError(f"{self.pack.path}: 8-bit and 16-bit images do not fit one batch")
        return np.dtype(self.pack.dtype_of(0))

    def placement(self, records: Int64, epoch: int) -> Placement:
        """Crop and flip of each record: they depend on (seed, epoch, record) alone."""
        view = self.view
        draws = 0 if view.crop is None else view.crop.draws
        if not draws and not view.flip:
            random = np.zeros((len(records), 1))
        else:
            random = uniform(view.seed, epoch, records, draws + 1)
        regions = None
        if view.crop is not None:
            widths, heights = self._sizes(records)
            regions = view.crop.regions(widths, heights, random[:, 1:])
        return Placement(regions, random[:, 0] < view.flip if view.flip else None)

    def _sizes(self, records: Int64) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shape = self.pack.manifest.shape
        if shape is not None:
            return np.full(len(records), float(shape[1])), np.full(len(records), float(shape[0]))
        widths, heights = self._all_sizes
        return widths[records].astype(np.float64), heights[records].astype(np.float64)

    @cached_property
    def _all_sizes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.asarray(self.pack.column("width")), np.asarray(self.pack.column("height"))

    def fill(self, records: Int64, placement: Placement, rows: Rows) -> None:
        """Put the image of each record into its row. Raises DamagedPack, naming the record."""
        if self.verify:
            self.pack.check(records)
        encoding = self.pack.manifest.encoding
        if self._own_jpeg and placement.regions is None:
            self._decode_whole(records, rows)
        elif encoding != "raw":
            self._decode(records, placement.regions, rows)
        elif placement.regions is None:
            out = torch.from_numpy(rows.reshape(len(rows), -1).view(np.uint8))
            self._gather(self.pack.offsets[records], out)
        else:
            self._cut(records, placement.regions, rows)
        if placement.flipped is not None:
            for i in np.flatnonzero(placement.flipped).tolist():
                flip(rows[i])

    @cached_property
    def _gather(self) -> Gather:
        size = self.pack.record_bytes
        assert size is not None
        return Gather(self.pack.region, size)

    def _cut(self, records: Int64, regions: Regions, rows: Rows) -> None:
        """Parts of raw images, read out of the map without copying the rest."""
        pack, region = self.pack, self.pack.region.data
        starts, sizes = pack.offsets[records].tolist(), pack.sizes[records].tolist()
        widths, heights = (values.astype(int).tolist() for values in self._sizes(records))
        parts = zip(starts, sizes, widths, heights, regions.tolist(), strict=True)
        for i, (start, size, width, height, part) in enumerate(parts):
            if size != width * height * self.channels * self.dtype.itemsize:
                raise pack.damage(int(records[i]), f"has {size} bytes, which are no {width}x{height} image")
            image = np.frombuffer(region[start : start + size], self.dtype).reshape(height, width, self.channels)
            place(image, part, 1, rows[i], self.interpolation)

    @cached_property
    def _own_jpeg(self) -> bool:
        """Whether records are JPEGs of packer's own making, upright and of a size that the index has: no header needs
        to be read."""
        return self.pack.manifest.encoding == "jpeg" and self.decoder in ("auto", "simplejpeg")

    def _decode_whole(self, records: Int64, rows: Rows) -> None:
        """JPEGs of packer's own making, right into their rows: what Python does for one would cost as much as a
        small one's decode, so it is little."""
        region = self.pack.region.data
        starts, sizes = self.pack.offsets[records].tolist(), self.pack.sizes[records].tolist()
        for i, (row, start, size) in enumerate(zip(rows, starts, sizes, strict=True)):
            try:
                decode_into(region[start : start + size], row)
            except BadImage as error:
                raise self._damaged(int(records[i]), error) from None

    def _damaged(self, record: int, error: BadImage) -> DamagedPack:
        return self.pack.damage(record, f"cannot be decoded: {error.problem}")

    def _decode(self, records: Int64, regions: Regions | None, rows: Rows) -> None:
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
                    # as many pixels as the build allowed and packed
                    image = decode(bytes(data), self.mode, self.decoder, least, int(width * height))
                factor = reduced_by((int(height), int(width)), image)
            except BadImage as error:
                raise self._damaged(int(records[i]), error) from None
            if part is None:
                rows[i] = image
            else:
                place(image, part, factor, rows[i], self.interpolation)

    def _at_least(self, part: list[float], width: float, height: float) -> tuple[int, int]:
        """The smallest (width, height) that the whole image may be decoded at without visible loss to this part."""
        if self.interpolation == "nearest":
            return int(width), int(height)
        across, down = HEADROOM * self.output[1], HEADROOM * self.output[0]
        return math.ceil(width * across / part[2]), math.ceil(height * down / part[3])


def reduced_by(shape: tuple[int, int], image: Image) -> int:
    """1, 2, 4 or 8: how many times `image` is smaller than (height, width). Raises BadImage where it is none of them.

    Not the quotient of two sides: 17 pixels at 1/8 are 3.
    """
    for factor in (1, 2, 4, 8):
        if image.shape[:2] == (extents(shape[0], factor), extents(shape[1], factor)):
            return factor
    raise BadImage("", f"decodes to shape {image.shape}, the index says {shape}")


def place(image: Image, part: list[float], factor: int, row: Rows, interpolation: Interpolation = "area") -> None:
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
    """The part of an image that reaches beyond it, black where there is nothing."""
    canvas = np.zeros((height, width, image.shape[2]), image.dtype)
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + width, image.shape[1]), min(y + height, image.shape[0])
    if x2 > x1 and y2 > y1:
        canvas[y1 - y : y2 - y, x1 - x : x2 - x] = image[y1:y2, x1:x2]
    return canvas


def flip(row: Rows) -> None:
    """Mirror one image left to right, in place."""
    cv2.flip(row, 1, dst=row)


__all__ = ["Placement", "RowFiller", "View", "flip", "place"]
