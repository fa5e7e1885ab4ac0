"""Reads masks of records, cut and mirrored as their images are: by whole numbers, so that no value is made up."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import BadImage
from packer.format.pack import Pack
from packer.images.masks import decode_stored
from packer.loading.crop import CropParams
from packer.loading.decoding import sizes_of
from packer.loading.fill import Gather
from packer.model.annotation import ENCODINGS, Int64, Mask
from packer.model.geometry import nearest
from packer.samplers.order import Float64

AT_ONCE = 16
"""Masks that are widened together, while they are in the cache of a core."""


class MaskReader:
    """Reads a part of the kind mask. All threads share it.

    Args:
        pack: the pack.
        name: the part.
        verify: verify the checksum of each mask when this process first reads it.
    """

    def __init__(self, pack: Pack, name: str, verify: bool = True) -> None:
        self._pack, self.name, self._verify = pack, name, verify
        facts = pack.manifest.masks[name]
        self.dtype, self._dtype_name = np.dtype(facts.dtype), facts.dtype
        self.border = facts.ignore or 0
        """The value of pixels beside the image, and of an image without a mask."""

    def read(
        self, records: Int64, params: CropParams | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any] | list[Mask]:
        """Return the masks of records, (n, height, width); a list if they are whole and differ in size.

        Args:
            records: their numbers.
            params: how their images are cut and mirrored; None: not at all.
            out: memory for them, of any dtype that holds their values.

        Raises:
            DamagedPack: if one cannot be read.
        """
        reader = self._pack.reader
        with reader.held(records, (self.name,)):
            if self._verify:
                reader.check(records, (self.name,))
            regions = None if params is None else params.regions
            if regions is not None or (params is not None and params.flipped is not None):
                assert params is not None
                out = np.empty((len(records), *params.output), self.dtype) if out is None else out
                self._cut(records, params, out)
                return out
            shape = self._pack.manifest.shape
            if shape is None:
                return [mask.copy() for mask in self._whole(records)]
            out = np.empty((len(records), *shape[:2]), self.dtype) if out is None else out
            self._fill(records, out)
            return out

    def _fill(self, records: Int64, out: NDArray[Any]) -> None:
        starts, sizes = self._pack.reader.places(records, self.name)
        if (sizes == self.dtype.itemsize * out[0].size).all() and self._is_raw(records):
            if out.dtype == self.dtype:
                self._gather(starts, torch.from_numpy(out.reshape(len(out), -1).view(np.uint8)))
            for first in range(0, len(out) if out.dtype != self.dtype else 0, AT_ONCE):
                found = self._gather(starts[first : first + AT_ONCE]).numpy().view(self.dtype)
                out[first : first + AT_ONCE] = found.reshape(-1, *out.shape[1:])
            return
        for row, mask in zip(out, self._whole(records), strict=True):
            row[:] = mask

    def _is_raw(self, records: Int64) -> bool:
        return bool((self._encodings(records) == ENCODINGS.index("raw")).all())

    def _encodings(self, records: Int64) -> NDArray[Any]:
        return self._pack.reader.values(f"{self.name}_encoding", records)

    @cached_property
    def _gather(self) -> Gather:
        shape = self._pack.manifest.shape
        assert shape is not None
        return Gather(self._pack.reader.region, shape[0] * shape[1] * self.dtype.itemsize)

    def _whole(self, records: Int64) -> list[Mask]:
        """Return the masks of records as they are stored; those that are raw are views of the pack."""
        reader = self._pack.reader
        widths, heights = sizes_of(self._pack, records)
        starts, sizes = reader.places(records, self.name)
        data = reader.region.data
        rows = (records, starts, sizes, heights, widths, self._encodings(records))
        return [
            self._decoded(record, data[start : start + size] if size >= 0 else None, (int(high), int(wide)), code)
            for record, start, size, high, wide, code in zip(*(row.tolist() for row in rows), strict=True)
        ]

    def _decoded(self, record: int, data: memoryview | None, shape: tuple[int, int], code: int) -> Mask:
        if data is None:
            return np.full(shape, self.border, self.dtype)
        try:
            return decode_stored(data, ENCODINGS[code], shape, self._dtype_name)
        except BadImage as error:
            raise self._pack.reader.damage_error(record, f"has a {self.name} that {error.problem}") from None

    def _cut(self, records: Int64, params: CropParams, out: NDArray[Any]) -> None:
        height, width = params.output
        masks = self._whole(records)
        regions = params.regions
        if regions is None:
            regions = np.array([(0, 0, *mask.shape[::-1]) for mask in masks], np.float64)
        columns, rows = places(regions[:, 0], regions[:, 2], width), places(regions[:, 1], regions[:, 3], height)
        if params.flipped is not None:
            columns[params.flipped] = columns[params.flipped, ::-1]
        for row, mask, its_rows, its_columns in zip(out, masks, rows, columns, strict=True):
            cut_mask(mask, its_rows, its_columns, row, self.border)


def places(start: Float64, extent: Float64, pixels: int) -> Int64:
    """Return the pixels of masks along an axis that those of their crops show, (n, pixels).

    That below the center of each (`packer.model.geometry.nearest`), in whole numbers for crops of whole pixels.
    """
    whole = (start == np.rint(start)) & (extent == np.rint(extent))
    found = nearest(extent.astype(np.int64)[:, None], pixels, start.astype(np.int64)[:, None])
    if not whole.all():
        within = ~whole
        exact = start[within, None] + (2 * np.arange(pixels) + 1) * extent[within, None] / (2 * pixels)
        found[within] = np.floor(exact).astype(np.int64)
    return found


def cut_mask(mask: Mask, rows: Int64, columns: Int64, out: Mask, border: int) -> None:
    """Write the pixels of a mask at these rows and columns to `out`; `border` where there are none."""
    height, width = mask.shape
    left, right = sorted((columns[0], columns[-1]))
    if rows[0] >= 0 and rows[-1] < height and left >= 0 and right < width:
        out[:] = mask.take(rows, axis=0).take(columns, axis=1)
        return
    out[:] = border
    inside_rows, inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    out[np.ix_(inside_rows, inside)] = mask[np.ix_(rows[inside_rows], columns[inside])]
