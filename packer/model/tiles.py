"""Tiles of large images: where they lie, and what each has of the annotation of its image.

Both are what SAHI's `slice_coco` makes (https://github.com/obss/sahi): the same windows, and the same objects in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from packer.errors import UsageError, option
from packer.model.annotation import Annotation, Float32, Int64, UInt8
from packer.model.fields import with_boxes
from packer.model.geometry import (
    Float64,
    Geometry,
    clip_polygon,
    clipped,
    extent_inside,
    hide_outside,
    move,
    polygon_area,
)
from packer.model.rle import NO_MASK, encode, lengths_of, write

Window = tuple[int, int, int, int]
"""x, y, width and height, in pixels of the whole image."""
WINDOW = "window"
"""The field that says which part of its image a tile is."""
DEFAULT_OVERLAP, DEFAULT_MIN_VISIBLE = 0.2, 0.1
"""Those of SAHI."""
LARGEST = 65535
"""Pixels of a side."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How images are cut into tiles, and which objects stay in them."""

    width: int
    height: int
    overlap: float = DEFAULT_OVERLAP
    """Share of a tile's width and height that it has in common with the next one."""
    min_visible: float = DEFAULT_MIN_VISIBLE
    """An object stays if a tile has at least this share of its area, both in whole square pixels."""

    def __post_init__(self) -> None:
        if not (1 <= self.width <= LARGEST and 1 <= self.height <= LARGEST):
            raise UsageError(option("tile"), f"must be 1 to {LARGEST} pixels, got {self.width}x{self.height}")

    def windows(self, width: int, height: int) -> Int64:
        """Return the windows on an image of this size, row by row, (n, 4): x, y, width, height.

        The last ones are moved back to the edge; an image that is smaller than a tile has one of its own size.
        """
        across, down = self._starts(width, self.width), self._starts(height, self.height)
        y, x = (grid.ravel() for grid in np.meshgrid(down, across, indexing="ij"))
        sides = np.broadcast_to([min(self.width, width), min(self.height, height)], (len(x), 2))
        return np.concatenate([np.stack([x, y], axis=1), sides], axis=1)

    def _starts(self, side: int, tile: int) -> Int64:
        step = tile - int(self.overlap * tile)
        count = 1 if side <= tile else -(-(side - tile) // step) + 1
        return np.minimum(np.arange(count) * step, max(side - tile, 0))


class TileCutter:
    """Cuts the annotation of one image along with its tiles.

    Args:
        annotation: That of the whole image.
        size: (width, height) of the image.
        min_visible: As of a `Tiling`.

    Raises:
        ValueError: A mask is not that of such an image.
    """

    def __init__(self, annotation: Annotation, size: tuple[int, int], min_visible: float) -> None:
        self._annotation, self._size, self._min_visible = annotation, size, min_visible
        boxes = np.zeros((0, 4)) if annotation.boxes is None else annotation.boxes.astype(np.float64)
        self._boxes, self._areas = boxes, _areas_of(boxes)
        self._masks = None if annotation.rles is None else lengths_of(annotation.rles, size[0] * size[1])
        self._outlines = [self._outline(number) for number in range(len(boxes))]
        for number, outline in enumerate(self._outlines):
            if outline is not None:
                self._areas[number] = polygon_area(outline)
        for number, lengths in enumerate(self._masks or ()):
            if len(lengths):
                self._areas[number] = lengths[1::2].sum()

    def _outline(self, number: int) -> Float32 | None:
        polygons, obb = self._annotation.polygons, self._annotation.obb
        if polygons is not None and len(polygons[number]) >= 3:
            return polygons[number]
        return None if obb is None else obb[number]

    def cut(self, window: Window) -> Annotation:
        """Return what a tile has of the annotation.

        Boxes, polygons and masks are cut at the edges of the window; the box of an object that is cut and has an
        outline is that around what is left of the outline. Keypoints outside keep their coordinates and get
        visibility 0; landmarks and the corners of oriented boxes stay where they are. What belongs to the whole image
        is that of each tile.

        Args:
            window: The tile, in pixels of the image.
        """
        annotation, (x, y, width, height) = self._annotation, window
        annotation = replace(annotation, window=np.array([*window, *self._size], np.int32))
        frame = Geometry(1, 0, -x, 0, 1, -y, width, height)
        if annotation.boxes is None:
            return move(annotation, frame)
        cut = np.clip(self._boxes - [x, y, x, y], 0, [width, height, width, height])
        keep, masks = (cut[:, 0] < cut[:, 2]) & (cut[:, 1] < cut[:, 3]), list[UInt8]()
        for number in np.flatnonzero(keep).tolist():
            area, mask = self._seen(number, window, cut)
            keep[number] = _stays(area, self._areas[number], self._min_visible)
            masks += [mask] if keep[number] else []
        kept = move(with_boxes(annotation, keep), frame)
        polygons, keypoints = kept.polygons, kept.keypoints
        return replace(
            kept,
            boxes=cut[keep].astype(np.float32),
            polygons=None if polygons is None else tuple(clip_polygon(one, width, height) for one in polygons),
            keypoints=None if keypoints is None else hide_outside(keypoints, width, height),
            rles=None if self._masks is None else tuple(masks),
        )

    def _seen(self, number: int, window: Window, cut: Float64) -> tuple[float, UInt8]:
        """Return how much of an object is in a window, and its mask there; its box becomes that around what is left."""
        x, y, width, height = window
        if self._masks is not None and len(lengths := self._masks[number]):
            pixels = np.zeros((height, width), np.uint8)
            write(lengths, self._size[::-1], np.arange(y, y + height), np.arange(x, x + width), pixels)
            area = float(pixels.sum())
            if 0 < area < self._areas[number]:
                down, across = (np.flatnonzero(pixels.any(axis=axis)) for axis in (1, 0))
                cut[number] = across[0], down[0], across[-1] + 1, down[-1] + 1
            return area, encode(pixels) if area else NO_MASK
        outline = self._outlines[number]
        if outline is None:
            return float(_areas_of(cut[number : number + 1])[0]), NO_MASK
        points = outline.astype(np.float64) - [x, y]
        if (points >= 0).all() and (points <= [width, height]).all():
            return self._areas[number], NO_MASK
        area = polygon_area(clipped(points, width, height))
        if area:
            cut[number] = extent_inside(points, width, height)
        return area, NO_MASK


def _areas_of(boxes: Float64) -> Float64:
    areas: Float64 = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _stays(seen: float, whole: float, min_visible: float) -> bool:
    """Return whether enough of an object is seen: of whole square pixels, as SAHI counts them, if it has any."""
    return seen > 0 and (int(seen) >= min_visible * int(whole) if whole >= 1 else seen >= min_visible * whole)
