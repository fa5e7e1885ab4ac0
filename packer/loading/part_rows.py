"""Reads parts of records for batches: those with pixels are cut and turned as their images are, by the same draw."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.format.sidecars import Sidecar
from packer.images.parts import BY_KIND, decode_part
from packer.images.resize import resize_map
from packer.loading.affine import warp_row
from packer.loading.augmentation import CropParams
from packer.loading.decoding import flip_rows, resize_into, sizes_of
from packer.loading.fill import Gather
from packer.model.annotation import ENCODINGS, Int64, Mask, PartSpec
from packer.model.geometry import nearest
from packer.samplers.order import Float64

AT_ONCE = 16
"""Masks that are widened together, while they are in the cache of a core."""
ON_EDGE = 1e-6
"""Pixels: a center that is so little before the edge of a pixel is on it, but for rounding (crops round so, too)."""


class PartReader:
    """Reads a part of a pack. All threads share it.

    Args:
        pack: the pack.
        spec: the part.
        verify: verify the checksum of each when this process first reads it.
        sidecar: what is read if the part was attached to the pack, with pixels.
    """

    def __init__(self, pack: Pack, spec: PartSpec, verify: bool = True, sidecar: Sidecar | None = None) -> None:
        self._pack, self.spec, self.name, self._verify, self._sidecar = pack, spec, spec.name, verify, sidecar
        self._of_pixels = BY_KIND[spec.kind].of_pixels
        self.dtype = np.dtype(spec.dtype or np.uint8)

    def read(self, records: Int64, params: CropParams | None = None, out: NDArray[Any] | None = None) -> Any:
        """Return the part of records: of masks (n, height, width), of maps and images (n, height, width, channels).

        Other kinds, and pixels of images that are whole and differ in size, are a list of values; None stands for a
        value that a record of another kind lacks.

        Args:
            records: their numbers.
            params: how their images are cut, flipped, turned and moved; None: not at all.
            out: memory for masks, of any dtype that holds their values.

        Raises:
            DamagedPack: if one cannot be read.
        """
        if self._sidecar is not None:
            return self._read(records, params, out)
        reader = self._pack.reader
        with reader.held(records, (self.name,)):
            if self._verify:
                reader.check(records, (self.name,))
            return self._read(records, params, out)

    def _read(self, records: Int64, params: CropParams | None, out: NDArray[Any] | None) -> Any:
        if not self._of_pixels:
            return self._values(records)
        if params is not None and params.affine is not None:
            return self._moved(self._cut(records, params, None), params.affine, out)
        if params is not None and not params.is_whole:
            return self._cut(records, params, out)
        shape = self._pack.manifest.shape
        if shape is None:
            return [value.copy() for value in self._whole(records)]
        return self._fill(records, shape[:2], out)

    def _fill(self, records: Int64, shape: tuple[int, int], out: NDArray[Any] | None) -> NDArray[Any]:
        if self.spec.kind == "mask" and self._sidecar is None:
            starts, sizes = self._pack.reader.places(records, self.name)
            are_rows = (sizes == self._mask_bytes).all() and self._are_raw(records)
        else:
            are_rows = False
        if not are_rows:
            whole = self._whole(records)
            out = np.empty((len(records), *whole[0].shape), self.dtype) if out is None else out
            for row, value in zip(out, whole, strict=True):
                row[:] = value
            return out
        out = np.empty((len(records), *shape), self.dtype) if out is None else out
        if out.dtype == self.dtype:
            self._gather(starts, torch.from_numpy(out.reshape(len(out), -1).view(np.uint8)))
        for first in range(0, len(out) if out.dtype != self.dtype else 0, AT_ONCE):
            found = self._gather(starts[first : first + AT_ONCE]).numpy().view(self.dtype)
            out[first : first + AT_ONCE] = found.reshape(-1, *out.shape[1:])
        return out

    def _are_raw(self, records: Int64) -> bool:
        return bool((self._encodings(records) == ENCODINGS.index("raw")).all())

    def _encodings(self, records: Int64) -> NDArray[Any]:
        return self._pack.reader.values(f"{self.name}_encoding", records)

    @cached_property
    def _mask_bytes(self) -> int:
        shape = self._pack.manifest.shape
        assert shape is not None
        return shape[0] * shape[1] * self.dtype.itemsize

    @cached_property
    def _gather(self) -> Gather:
        return Gather(self._pack.reader.region, self._mask_bytes)

    def _whole(self, records: Int64) -> list[Any]:
        """Return the pixels of records as they are stored; those that are raw are views of the pack."""
        found = self._values(records)
        tails = [value.shape[2:] for value in found if value is not None] or [self._channels]
        for record, value in zip(records.tolist(), found, strict=True):
            if value is not None and value.shape[2:] != tails[0]:
                problem = f"has a {self.name} of {value.shape[2:]} channels, which cannot be in a batch with {tails[0]}"
                raise self._pack.reader.damage_error(record, problem)
        widths, heights = sizes_of(self._pack, records)
        for place, value in enumerate(found):
            if value is None:
                found[place] = np.full(
                    (int(heights[place]), int(widths[place]), *tails[0]), self.spec.border, self.dtype
                )
        return found

    @property
    def _channels(self) -> tuple[int, ...]:
        """The channels of pixels that no record of a batch has, as the end of their shape."""
        if self.spec.kind == "image":
            return (1 if self._pack.manifest.mode == "gray" else 3,)
        return (self.spec.channels,) if self.spec.channels > 1 else ()

    def _values(self, records: Int64) -> list[Any]:
        """Return the values of records; None where there is none."""
        reader, mode = self._pack.reader, self._pack.manifest.mode
        widths, heights = sizes_of(self._pack, records)
        sizes = zip(heights.astype(np.int64).tolist(), widths.astype(np.int64).tolist(), strict=True)
        stored = self._stored(records) if self._sidecar is None else self._sidecar.read(records)
        return [
            None if data is None
            else decode_part(data, encoding, shape, self.spec, mode, partial(reader.damage_error, record))
            for record, shape, (data, encoding) in zip(records.tolist(), sizes, stored, strict=True)
        ]  # fmt: skip

    def _stored(self, records: Int64) -> list[tuple[memoryview | None, str]]:
        """Return the bytes of records, which are views of the pack, and their encodings."""
        data = self._pack.reader.region.data
        rows = (*self._pack.reader.places(records, self.name), self._encodings(records))
        return [
            (None, "") if size < 0 else (data[start : start + size], ENCODINGS[code])
            for start, size, code in zip(*(row.tolist() for row in rows), strict=True)
        ]

    def _cut(self, records: Int64, params: CropParams, out: NDArray[Any] | None) -> NDArray[Any]:
        height, width = params.output
        whole = self._whole(records)
        regions = params.regions
        if regions is None:
            regions = np.array([(0, 0, *value.shape[1::-1]) for value in whole], np.float64)
        if out is None:
            out = np.empty((len(records), height, width, *whole[0].shape[2:]), self.dtype)
        flipped = np.zeros(len(records), np.bool_) if params.flipped is None else params.flipped
        if self.spec.kind != "mask":
            for i, (row, value, region) in enumerate(zip(out, whole, regions.tolist(), strict=True)):
                into = row
                if self.spec.kind == "map":
                    into = params.view_before_turns(i, row)[:, :: -1 if flipped[i] else 1]
                self._resize(value, region, into, params)
            if self.spec.kind == "image":
                flip_rows(out, params)
            return out
        columns, rows = places(regions[:, 0], regions[:, 2], width), places(regions[:, 1], regions[:, 3], height)
        columns[flipped] = columns[flipped, ::-1]
        for i, (row, mask, its_rows, its_columns) in enumerate(zip(out, whole, rows, columns, strict=True)):
            cut_mask(mask, its_rows, its_columns, params.view_before_turns(i, row), self.spec.border)
        return out

    def _moved(self, rows: NDArray[Any], maps: Float64, out: NDArray[Any] | None) -> NDArray[Any]:
        """Return pixels moved by the maps of their images, in `out` if it is given.

        Values of a map are single ones, as those of a mask are: four that are blended may be of two things, one far
        away, or unknown. Further images are black there, whatever their crop has beside them.
        """
        of_image = self.spec.kind == "image"
        out = np.empty_like(rows) if out is None else out
        for row, its_map, into in zip(rows, maps, out, strict=True):
            warp_row(row, its_map, into, 0 if of_image else self.spec.border, nearest=not of_image)
        return out

    def _resize(self, value: Any, region: list[float], row: NDArray[Any], params: CropParams) -> None:
        """Write the part (x, y, width, height) of a map or an image to its row."""
        if self.spec.kind == "image":
            border = min(params.border, np.iinfo(self.dtype).max)
            resize_into(value, region, row, params.interpolation, border=border)
            return
        x, y, across, down = region
        size = row.shape[1], row.shape[0]
        row[:] = resize_map(value, (x, y, across, down), size, self.spec.ignore)
        rows, columns = (
            places(np.array([start]), np.array([extent]), pixels)[0]
            for start, extent, pixels in ((y, down, size[1]), (x, across, size[0]))
        )
        row[(rows < 0) | (rows >= len(value))] = self.spec.border
        row[:, (columns < 0) | (columns >= value.shape[1])] = self.spec.border


def places(start: Float64, extent: Float64, pixels: int) -> Int64:
    """Return the pixels of masks along an axis that those of their crops show, (n, pixels).

    That below the center of each (`packer.model.geometry.nearest`), in whole numbers for crops of whole pixels.
    """
    whole = (start == np.rint(start)) & (extent == np.rint(extent))
    found = nearest(extent.astype(np.int64)[:, None], pixels, start.astype(np.int64)[:, None])
    if not whole.all():
        within = ~whole
        exact = start[within, None] + (2 * np.arange(pixels) + 1) * extent[within, None] / (2 * pixels)
        found[within] = np.floor(exact + ON_EDGE).astype(np.int64)
    return found


def cut_mask(mask: Mask, rows: Int64, columns: Int64, out: Mask, border: float) -> None:
    """Write the pixels of a mask at these rows and columns to `out`; `border` where there are none."""
    height, width = mask.shape
    left, right = sorted((columns[0], columns[-1]))
    if rows[0] >= 0 and rows[-1] < height and left >= 0 and right < width:
        # whole rows are copied, and OpenCV transposes in half the time in which numpy picks single pixels
        out[:] = cv2.transpose(cv2.transpose(mask.take(rows, axis=0)).take(columns, axis=0))
        return
    out[:] = border
    inside_rows, inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    out[np.ix_(inside_rows, inside)] = mask[np.ix_(rows[inside_rows], columns[inside])]
