"""Fills rows of a batch with mosaics: images of several records, and the labels of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.images.opencv import resample
from packer.loading.affine import warp_row
from packer.loading.annotations import BatchAnnotations
from packer.loading.augmentation import Augmentation, CropParams
from packer.loading.decoding import flip_rows, sizes_of
from packer.loading.epoch_order import EpochOrder
from packer.loading.fill import ImageFiller
from packer.loading.instance_rows import read_instances
from packer.loading.mosaic import MOSAIC_STREAM, Mosaic, after, in_whole_pixels_of_both, undone, upright_maps
from packer.model.annotation import OF_PIXELS, Image, Int64
from packer.model.fields import INSTANCES
from packer.samplers.order import Float64, records_in, uniform
from packer.system.locks import Locked

KEPT, KEPT_BYTES = 96, 128 << 20
"""Images that are kept, at most: those of 64 positions, and of threads that are ahead. For mosaics of 640 they have 1.2
MB each; of larger ones fewer are kept."""
UPRIGHT = 1e-9
"""What rounding leaves of a rotation that is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """The images on the canvases of a batch, those of one canvas after another, in the order in which they are put."""

    rows: Int64
    """Of the batch, (m,)."""
    records: Int64
    resized: Int64
    """Width and height of the whole images there, (m, 2)."""
    cuts: Float64
    """What of each is shown, in pixels of the canvas from its own corner, (m, 4): x, y, width, height."""
    regions: Float64
    """The same in its own pixels."""
    places: Int64
    """Where, in pixels of what is drawn, (m, 4): x, y, and where it ends."""
    on_canvas: Float64
    """Maps from the images to their canvas, (m, 2, 3)."""
    to_output: Float64
    """Maps from the images to the output, after everything else, (m, 2, 3)."""
    shown: NDArray[np.bool_]
    """Whether anything of it is."""

    def __getitem__(self, chosen: Any) -> Tiles:
        """Return some of them."""
        return Tiles(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class MosaicParams:
    """What is in each row of a batch."""

    turns: CropParams
    """The flips and turns of the rows, after everything else."""
    tiles: Tiles
    warps: Float64
    """Maps from canvases to what is shown of them, before flips and turns, (n, 2, 3)."""
    direct: NDArray[np.bool_]
    """In which rows images are drawn where they are shown, not on a canvas that is warped, (n,)."""

    def __getitem__(self, rows: slice) -> MosaicParams:
        """Return those of some of the rows."""
        first, last, _ = rows.indices(len(self.direct))
        tiles = self.tiles[(self.tiles.rows >= first) & (self.tiles.rows < last)]
        tiles = replace(tiles, rows=tiles.rows - first)
        return MosaicParams(self.turns[rows], tiles, self.warps[rows], self.direct[rows])


class _Kept(Locked):
    """Images that were resized last, for all threads: at most `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.images: dict[int, Image] = {}

    def add(self, record: int, image: Image) -> None:
        """Keep an image, and not the one that has been kept longest if there are too many."""
        with self.lock:
            self.images[record] = image
            while len(self.images) > self._most:
                del self.images[next(iter(self.images))]


class MosaicFiller(ImageFiller):
    """Fills rows of a batch with mosaics.

    Args:
        pack: the pack.
        augmentation: the mosaic, and flips, turn and affine map of each canvas.
        order: the records of an epoch, from which the other images of a mosaic are drawn.
        decoder: JPEG decoder.
        verify: verify the checksum of each record when this process first reads it.
    """

    def __init__(self, pack: Pack, augmentation: Augmentation, order: EpochOrder, decoder: str, verify: bool) -> None:
        super().__init__(pack, augmentation, decoder, verify)
        self._order = order
        crop = augmentation.crop
        assert isinstance(crop, Mosaic)
        self._mosaic = crop
        self._canvas = 2 * crop.size
        self._kept = _Kept(min(KEPT, max(1, KEPT_BYTES // self.row_bytes)))

    def params(self, samples: Int64, epoch: int) -> Any:
        """Return what is in the row of each sample: it depends on (seed, epoch, record, visit) and the order alone."""
        mosaic, augmentation = self._mosaic, self.augmentation
        base = augmentation.with_crop(None).params(samples, epoch, self.output, partial(sizes_of, self.pack))
        random = uniform(augmentation.seed ^ MOSAIC_STREAM, epoch, samples, 2 + mosaic.tiles)
        joined = mosaic.joins(random[:, 0], epoch)
        counts = np.where(joined, mosaic.tiles, 1)
        rows, firsts = np.repeat(np.arange(len(samples)), counts), np.cumsum(counts) - counts
        records = np.empty(len(rows), np.int64)
        others = np.ones(len(rows), np.bool_)
        others[firsts] = False
        records[firsts] = records_in(samples)
        records[others] = self._order.near(epoch, records_in(samples)[joined], random[joined, 3:]).ravel()
        sizes = np.stack(sizes_of(self.pack, records), axis=1)
        resized = mosaic.resized(sizes)
        corners = (mosaic.size - resized) // 2
        several = np.repeat(joined, counts)
        grid = resized[several].reshape(-1, mosaic.tiles, 2)
        corners[several] = mosaic.corners(grid, random[joined, 1:3]).reshape(-1, 2)
        ends = np.where(several, mosaic.low + self._canvas, mosaic.size), np.where(several, mosaic.low, 0)
        limits = np.hstack([end[:, None] - corners for end in reversed(ends)]).astype(np.float64)
        return self._drawn(base, rows, records, (sizes, resized), corners, limits)

    def _drawn(
        self, base: CropParams, rows: Int64, records: Int64, sizes: tuple[Float64, Int64], corners: Int64,
        limits: Float64,
    ) -> MosaicParams:  # fmt: skip
        """Return the parameters of rows whose images begin at these corners, in pixels of the output.

        Args:
            base: flips, turns and maps of the rows.
            rows: of each image, (m,).
            records: their numbers.
            sizes: their own width and height, and those on the canvas, (m, 2) each.
            corners: where they begin, (m, 2).
            limits: what of each the canvas has, in pixels of it, (m, 4).
        """
        count, canvas = int(rows.max(initial=-1)) + 1, self._canvas
        turns = replace(base, affine=None)
        identity = np.broadcast_to(upright_maps(np.ones((1, 2)), np.zeros((1, 2))), (count, 2, 3))
        turned = turns.maps() if turns.flips else None
        turned = identity if turned is None else turned
        # a map after the turns is another one before them
        warps = identity if base.affine is None else after(undone(turned), after(base.affine, turned))
        direct: NDArray[np.bool_] = np.abs(warps[:, (0, 1), (1, 0)]).max(axis=1) < UPRIGHT
        onto = identity.copy()
        onto[:, :, 2] -= self._mosaic.low
        drawn = np.where(direct[:, None, None], warps, onto)[rows]
        pixels = np.where(direct[rows], self._mosaic.size, canvas)[:, None].repeat(2, axis=1)
        own, resized = sizes
        scale = upright_maps(resized / own, np.zeros_like(own))
        put = upright_maps(np.ones_like(own), corners)
        found = in_whole_pixels_of_both(after(drawn, put), resized.astype(np.float64), limits, pixels)
        cuts, places, placed, shown = found
        later = np.where(direct[:, None, None], identity, after(warps, undone(onto)))
        to_output = after(after(turned, later)[rows], after(placed, scale))
        on_canvas = after(onto[rows], after(put, scale))
        regions = cuts * np.tile(own / resized, 2)
        tiles = Tiles(rows, records, resized, cuts, regions, places, on_canvas, to_output, shown)
        return MosaicParams(turns, tiles, later, direct)

    def fill(self, records: Int64, params: Any, rows: Any) -> None:
        """Draw each mosaic in its row; `records` are in `params`, too. Raise DamagedPack if one cannot be read."""
        tiles = params.tiles

        def read(tile: int, out: Image) -> None:
            image = images[records[tile]]
            cut, size = tiles.cuts[tile].tolist(), out.shape[1::-1]
            x, y, across, down = map(int, cut)
            if self.interpolation != "fast" or [x, y, across, down] != cut:
                out[:] = resample(image, size, self.interpolation, cut)
                return
            part = image[y : y + down, x : x + across]
            if part.shape == out.shape:
                out[:] = part
            else:  # as Ultralytics: it is less than half the work of averages, and few images shrink to half
                cv2.resize(part, size, out, 0, 0, cv2.INTER_LINEAR)

        with self.pack.reader.held(np.unique(tiles.records)):
            images, records = self._images(tiles[tiles.shown]), tiles.records.tolist()
            self._draw(params, rows, read, self._mosaic.fill, nearest=False)
        flip_rows(rows, params.turns)

    def _images(self, tiles: Tiles) -> dict[int, Image]:
        """Return the whole images of some tiles by record, resized for the canvas, and keep them for the next ones."""
        records, firsts = np.unique(tiles.records, return_index=True)
        with self._kept.lock:
            found: dict[int, Any] = {record: self._kept.images.get(record) for record in records.tolist()}
        lacking = np.array([image is None for image in found.values()], np.bool_)
        sizes, resized = np.stack(sizes_of(self.pack, records), axis=1), tiles.resized[firsts]
        whole = (sizes == resized).all(axis=1)
        if self.pack.manifest.encoding == "raw":  # whole ones as they are in the pack, which are not copied
            if self.verify:
                self.pack.reader.check(records[whole])
            found.update(zip(records[whole].tolist(), self.mapped(records[whole], tuple(sizes[whole].T)), strict=True))
            lacking &= ~whole
        for place in np.flatnonzero(lacking).tolist():
            rows = np.empty((1, *resized[place, ::-1].tolist(), self.channels), self.dtype)
            region = None if whole[place] else np.concatenate([[0, 0], sizes[place]])[None]
            self._fill(records[place : place + 1], CropParams(region, None, rows.shape[1:3]), rows)
            found[int(records[place])] = rows[0]
            self._kept.add(int(records[place]), rows[0])
        return found

    def _cut_of(self, tiles: Tiles, tile: int) -> CropParams:
        """Return the crop that makes what is shown of an image."""
        left, top, right, bottom = tiles.places[tile].tolist()
        region, output = tiles.regions[tile : tile + 1], (bottom - top, right - left)
        return CropParams(region, None, output, interpolation=self.interpolation)

    def _draw(
        self, params: MosaicParams, rows: Any, read: Callable[[int, Any], None], fill: float, nearest: bool
    ) -> None:
        """Draw in each row what `read` writes of its tiles, which is not turned yet."""
        tiles = params.tiles
        bounds = np.searchsorted(tiles.rows, np.arange(len(rows) + 1)).tolist()
        places, shown = tiles.places.tolist(), tiles.shown.tolist()
        for number, row in enumerate(rows):
            direct = params.direct[number]
            canvas = row if direct else np.empty((self._canvas, self._canvas, *row.shape[2:]), row.dtype)
            canvas[:] = fill
            for tile in range(bounds[number], bounds[number + 1]):
                if shown[tile]:
                    left, top, right, bottom = places[tile]
                    read(tile, canvas[top:bottom, left:right])
            if not direct:
                warp_row(canvas, params.warps[number], row, fill, nearest)

    def targets_of(self, targets: Any, records: Int64, params: Any, out: NDArray[Any] | None = None) -> Any:
        """Return the targets of mosaics: masks (n, height, width), or annotations; as `of` does."""
        if targets.are_masks:
            return targets.as_masks(self._part(targets.parts[0], params), out)
        tiles, canvas = params.tiles, (self._canvas, self._canvas)
        found = targets.annotations(tiles.records).moved(tiles.on_canvas)
        found = targets.cut(found, canvas, dropping=False)
        if not tiles.shown.all() and (boxes := found.columns.get("boxes")) is not None:
            found = found.having(np.repeat(tiles.shown, boxes.counts), boxes.counts)
        maps = after(tiles.to_output, undone(tiles.on_canvas))
        found = targets.moved(found, maps, params.turns.reflected[tiles.rows] if params.turns.flips else None)
        found = targets.cut(found, self.output)
        if targets.has_instances:
            self._add_instances(found, params)
        found = found.grouped(tiles.rows)
        for part in targets.parts:
            values = self._part(part, params) if part.spec.kind in OF_PIXELS else part.read(records)
            found.images[part.name] = targets.values_of(part, values)
        return found

    def _part(self, part: Any, params: MosaicParams) -> NDArray[Any]:
        """Return a part with pixels of each mosaic."""
        tiles, kind = params.tiles, part.spec.kind

        def value(tile: int) -> NDArray[Any]:
            found: NDArray[Any] = part.read(tiles.records[tile : tile + 1], self._cut_of(tiles, tile))[0]
            return found

        def read(tile: int, out: NDArray[Any]) -> None:
            out[:] = value(tile)

        tail = () if kind == "mask" else value(0).shape[2:]
        rows = np.empty((len(params.direct), *self.output, *tail), part.dtype)
        self._draw(params, rows, read, 0 if kind == "image" else part.spec.border, nearest=kind != "image")
        for number, row in enumerate(rows):
            _turn(params.turns, number, row)
        return rows

    def _add_instances(self, found: BatchAnnotations, params: MosaicParams) -> None:
        """Add the masks of the objects that are left of each image; no image lies on another."""
        tiles = params.tiles
        masks: list[NDArray[np.uint8]] = []
        counts = found.columns["boxes"].counts
        for tile, (row, count) in enumerate(zip(tiles.rows.tolist(), counts.tolist(), strict=True)):
            side = self.output[0] if params.direct[row] else self._canvas
            drawn = np.zeros((count, side, side), np.uint8)
            left, top, right, bottom = tiles.places[tile].tolist()
            if count:
                cut = self._cut_of(tiles, tile)
                one = np.array([tile])
                (shown,) = read_instances(self.pack, tiles.records[one], found.take(one), cut)
                drawn[:, top:bottom, left:right] = shown
            masks.append(drawn)
        del found.columns[INSTANCES.target]
        found.images[INSTANCES.target] = [
            torch.from_numpy(self._shown(params, row, drawn)) for row, drawn in zip(tiles.rows, masks, strict=True)
        ]

    def _shown(self, params: MosaicParams, row: int, drawn: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return masks of objects as they are shown, (k, height, width)."""
        masks = drawn
        if not params.direct[row]:
            masks = np.zeros((len(drawn), *self.output), np.uint8)
            for mask, whole in zip(masks, drawn, strict=True):
                warp_row(whole, params.warps[row], mask, nearest=True)
        for mask in masks:
            _turn(params.turns, row, mask)
        return masks


def _turn(turns: CropParams, row: int, pixels: NDArray[Any]) -> None:
    """Flip and turn pixels (height, width, ...) of any dtype."""
    if turns.flips:
        turned = pixels.copy()
        if turns.flipped is not None and turns.flipped[row]:
            turned = turned[:, ::-1]
        turns.view_before_turns(row, pixels)[:] = turned
