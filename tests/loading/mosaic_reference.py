"""What a mosaic shows: one image and one label at a time, in plain numpy, by the rules of Ultralytics' Mosaic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import Mosaic, PackedLoader
from packer.loading.mosaic import MOSAIC_STREAM
from packer.samplers.order import records_in, uniform

Matrix = NDArray[np.float64]
FINE = 3
"""Places are looked at by this share of a pixel: ids may be thinner than a pixel."""
Place = tuple[int, int, int, int]
"""x, y on the canvas, width, height."""


@dataclass
class Shown:
    """The images on the canvas of one row of a batch, and what is done to the canvas."""

    records: list[int]
    places: list[Place]
    to_output: Matrix
    """From the canvas, (3, 3)."""
    canvas: int
    reflected: bool

    def to_canvas(self, tile: int, width: int, height: int) -> Matrix:
        """The map of an image of this size to its place on the canvas, (3, 3)."""
        x, y, wide, high = self.places[tile]
        return np.array([[wide / width, 0, x], [0, high / height, y], [0, 0, 1]])


def resized(width: int, height: int, size: int) -> tuple[int, int]:
    """The size at which an image lies on the canvas."""
    if max(width, height) == size:
        return width, height
    ratio = size / max(width, height)
    return min(math.ceil(width * ratio), size), min(math.ceil(height * ratio), size)


def around(sizes: list[tuple[int, int]], x: int, y: int) -> list[Place]:
    """Four images around a point."""
    starts = ((1, 1), (0, 1), (1, 0), (0, 0))
    return [(x - a * w, y - b * h, w, h) for (a, b), (w, h) in zip(starts, sizes, strict=True)]


def nine(sizes: list[tuple[int, int]], size: int) -> list[Place]:
    """Nine images, the first in the middle, the others clockwise from above, each against the one before it."""
    w0, h0 = sizes[0]
    places: list[Place] = []
    for i, (w, h) in enumerate(sizes):
        wp, hp = sizes[i - 1]
        x, y = (
            (0, 0), (0, -h), (wp, -h), (w0, 0), (w0, hp), (w0 - w, h0), (w0 - wp - w, h0), (-w, h0 - h),
            (-w, h0 - hp - h),
        )[i]  # fmt: skip
        places.append((x + size // 2, y + size // 2, w, h))
    return places


def places_of(images: list[tuple[int, int]], size: int, tiles: int, across: float, down: float) -> list[Place]:
    """Where images of these (width, height) lie; four of them around a point by random numbers, a single one alone."""
    sizes = [resized(*one, size) for one in images]
    low = size // 2
    if len(sizes) == 1:
        ((wide, high),) = sizes
        return [(low + (size - wide) // 2, low + (size - high) // 2, wide, high)]
    if tiles == 9:
        return nine(sizes, size)
    span = 2 * size - 2 * low
    return around(sizes, low + int(across * span), low + int(down * span))


def turned(turns: Any, row: int, size: int) -> Matrix:
    """The flips and the turn of a row, (3, 3)."""
    made = np.eye(3)
    for flags, axis in ((turns.flipped, 0), (turns.upended, 1)):
        if flags is not None and flags[row]:
            flip = np.eye(3)
            flip[axis, axis], flip[axis, 2] = -1, size
            made = flip @ made
    return made[[1, 0, 2]] if turns.transposed is not None and turns.transposed[row] else made


def shown(loader: PackedLoader, samples: Any, epoch: int) -> Iterator[Shown]:
    """What is in each row of a batch, by the random numbers of the loader."""
    mosaic: Any = loader._augmentation.crop
    assert isinstance(mosaic, Mosaic)
    size, order = mosaic.size, records_in(loader.sampler.samples_at(epoch)(np.arange(loader.sampler.num_samples)))
    turns = loader._augmentation.with_crop(None).params(samples, epoch, (size, size), None)  # type: ignore[arg-type]
    random = uniform(loader._augmentation.seed ^ MOSAIC_STREAM, epoch, samples, 2 + mosaic.tiles)
    closed = mosaic.close_epoch is not None and epoch >= mosaic.close_epoch
    for row, (own, numbers) in enumerate(zip(records_in(samples).tolist(), random.tolist(), strict=True)):
        chance, down, across = numbers[0], numbers[2], numbers[1]
        alone = closed or chance >= mosaic.chance
        records = [own] if alone else [own, *(shortly_before(order.tolist(), own, one) for one in numbers[3:])]
        sizes = [loader.pack.reader.shape_of(record)[1::-1] for record in records]
        places, low = places_of(sizes, size, mosaic.tiles, across, down), size // 2
        cut = np.array([[1, 0, -low], [0, 1, -low], [0, 0, 1.0]])
        moved = np.eye(3) if turns.affine is None else np.vstack([turns.affine[row], [0, 0, 1]])
        reflected = bool(turns.flips) and bool(turns.reflected[row])
        yield Shown(records, places, moved @ turned(turns, row, size) @ cut, 2 * size, reflected)


def shortly_before(order: list[int], record: int, random: float) -> int:
    """The record that comes 8, 16, ... or 64 positions before another one, from the start of an epoch on at its end."""
    return order[(order.index(record) - 8 * (1 + int(random * 8))) % len(order)]


@dataclass
class Seen:
    """Which image each place of an output should show, and which place in it: arrays of places between pixels, too."""

    tiles: NDArray[np.int64]
    """-1: none."""
    x: NDArray[np.float64]
    y: NDArray[np.float64]

    def pixels(self, images: list[NDArray[Any]], fill: Any, linear: bool) -> NDArray[Any]:
        """What is at these places, interpolated or below them, around each pixel of an output: (n, size, size, ...)."""
        out = np.empty((*self.x.shape, *images[0].shape[2:]), np.float64)
        out[:] = fill
        for tile, image in enumerate(images):
            inside = self.tiles == tile
            out[inside] = sampled(image, self.x[inside], self.y[inside], linear)
        return self.around_each(out)

    def of_one(self, tile: int, mask: NDArray[Any]) -> NDArray[Any]:
        """What is seen of a mask of one image, 0 elsewhere, around each pixel of an output: (n, size, size)."""
        out, inside = np.zeros(self.x.shape), self.tiles == tile
        out[inside] = sampled(mask, self.x[inside], self.y[inside], False)
        return self.around_each(out)

    def around_each(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values at all places at most a pixel from the center of each pixel, across and down."""
        steps = 2 * FINE
        ends = len(values) - steps
        return np.stack([
            values[down : down + ends : FINE, across : across + ends : FINE]
            for down in range(steps + 1) for across in range(steps + 1)
        ])  # fmt: skip


def seen(one: Shown, sizes: list[tuple[int, int]], size: int) -> Seen:
    """Look from an output of `size` into images of these (width, height)."""
    y, x = np.mgrid[: (size + 1) * FINE + 1, : (size + 1) * FINE + 1] / FINE - 0.5
    x, y, _ = np.tensordot(np.linalg.inv(one.to_output), np.stack([x, y, np.ones_like(x)]), 1)
    found = Seen(np.full(x.shape, -1), np.zeros_like(x), np.zeros_like(y))
    on_canvas = (x >= 0) & (x < one.canvas) & (y >= 0) & (y < one.canvas)
    for tile, (width, height) in enumerate(sizes):
        left, top, wide, high = one.places[tile]
        across, down = (x - left) * width / wide, (y - top) * height / high
        inside = on_canvas & (across >= 0) & (across < width) & (down >= 0) & (down < height)
        found.tiles[inside], found.x[inside], found.y[inside] = tile, across[inside], down[inside]
    return found


def sampled(image: NDArray[Any], x: NDArray[Any], y: NDArray[Any], linear: bool) -> NDArray[Any]:
    """Values of an image at places inside it, those of its edge continued."""
    height, width = image.shape[:2]
    if not linear:
        found: NDArray[Any] = image[np.floor(y).astype(int), np.floor(x).astype(int)].astype(np.float64)
        return found
    left, top = np.floor(x - 0.5).astype(int), np.floor(y - 0.5).astype(int)
    made = np.zeros((len(x), *image.shape[2:]))
    for row, down in ((top, 1 - (y - 0.5 - top)), (top + 1, y - 0.5 - top)):
        for column, across in ((left, 1 - (x - 0.5 - left)), (left + 1, x - 0.5 - left)):
            values = image[row.clip(0, height - 1), column.clip(0, width - 1)].astype(np.float64)
            made += (down * across).reshape(-1, *[1] * (image.ndim - 2)) * values
    return made


def moved(points: Any, matrix: Matrix) -> NDArray[Any]:
    """Points (..., 2)."""
    made: NDArray[Any] = np.asarray(points, np.float64) @ matrix[:2, :2].T + matrix[:2, 2]
    return made


def box_around(box: Any, matrix: Matrix) -> NDArray[Any]:
    """The box around the moved corners of a box."""
    x, y, right, bottom = np.asarray(box, np.float64).tolist()
    corners = moved([(x, y), (right, y), (right, bottom), (x, bottom)], matrix)
    return np.concatenate([corners.min(axis=0), corners.max(axis=0)])
