"""Mean and std of each channel over all pixels of a pack: exact, from whole-number sums, streamed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.cores import usable_cores
from packer.ops.opencv import cv2, quiet_opencv
from packer.pack import Pack

BLOCK_BYTES = 256 << 10
"""Small raw images are put together to so many bytes, which stay in a cache: a call of OpenCV costs as 4 KiB do."""
TASK_BYTES = 8 << 20
ROUND_IMAGES = 512
MOST_PIXELS = 1 << 24
"""Of 8 bits in one call: its sums of squares stay far below 2**53, where doubles are exact."""

Progress = Callable[[int], None]
Kind = tuple[int, str]
"""Channels and dtype of an image."""


@dataclass(frozen=True)
class ChannelStats:
    """Mean and std of the pixels of all images of one kind, each pixel counting the same, scaled to 0..1."""

    channels: int
    dtype: str
    images: int
    pixels: int
    mean: tuple[float, ...]
    """Of each channel, divided by the dtype's highest value (255 or 65535)."""
    std: tuple[float, ...]
    """Of the population (divided by n), on the same scale."""


class Sums:
    """Sum and sum of squares of each channel, as Python's whole numbers."""

    def __init__(self, channels: int) -> None:
        self.images = self.pixels = 0
        self.sums = [0] * channels
        self.squares = [0] * channels
        self._planes: list[NDArray[np.uint8]] = []

    def planes_for(self, image: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Memory for the channels of an image; the same again for the next of its size."""
        if not self._planes or self._planes[0].shape != image.shape[:2]:
            self._planes = [np.empty(image.shape[:2], np.uint8) for _ in range(image.shape[2])]
        return self._planes

    def add(self, other: Sums) -> None:
        """Take another's images in."""
        self.images += other.images
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]

    def stats(self, kind: Kind) -> ChannelStats:
        """Mean and std; rounded once, at the end."""
        n, highest = self.pixels, int(np.iinfo(kind[1]).max)
        pairs = list(zip(self.sums, self.squares, strict=True))
        mean = tuple(float(Fraction(total, n * highest)) for total, _ in pairs)
        variance = (Fraction(n * squares - total * total, (n * highest) ** 2) for total, squares in pairs)
        return ChannelStats(*kind, self.images, n, mean, tuple(math.sqrt(v) for v in variance))


@quiet_opencv()  # the threads here are enough
def channel_stats(
    pack: Pack, progress: Progress | None = None, threads: int | None = None, verify: bool = True
) -> tuple[ChannelStats, ...]:
    """Mean and std of each kind of image in the pack, gray first.

    Args: `threads`, one a core by default; `verify`, whether records are held against their checksums. Raises
    DamagedPack, naming the record, where one does not match or cannot be decoded.
    """
    size = _one_size(pack)
    images = ROUND_IMAGES if size is None else max(1, TASK_BYTES // size)
    parts = (np.arange(start, min(start + images, len(pack))) for start in range(0, len(pack), images))

    def work(records: NDArray[np.int64]) -> dict[Kind, Sums]:
        if verify:
            pack.check(records)
        return _of_images(pack, records) if size is None else _of_raw_images(pack, records, size)

    totals: dict[Kind, Sums] = {}
    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        try:
            for records, found in _mapped(pool, work, parts):
                for kind, sums in found.items():
                    totals.setdefault(kind, Sums(kind[0])).add(sums)
                if progress is not None:
                    progress(len(records))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(totals[kind].stats(kind) for kind in sorted(totals))


def _mapped(pool: ThreadPoolExecutor, work: Any, parts: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """(part, work(part)), in order, with few parts waiting: those of a large pack are not all made at once."""
    waiting: list[tuple[Any, Any]] = []
    for part in parts:
        waiting.append((part, pool.submit(work, part)))
        if len(waiting) > 64:
            first, future = waiting.pop(0)
            yield first, future.result()
    for part, future in waiting:
        yield part, future.result()


def _one_size(pack: Pack) -> int | None:
    """Bytes of each record, where all are raw 8-bit images of one shape."""
    return pack.record_bytes if pack.manifest.dtype == "uint8" else None


def _of_raw_images(pack: Pack, records: NDArray[np.int64], size: int) -> dict[Kind, Sums]:
    """Raw images of one shape: small ones are copied into blocks, as rows of one picture."""
    shape = pack.manifest.shape
    assert shape is not None
    sums, offsets = Sums(shape[2]), pack.offsets[records]
    # item i is what lies at byte i: numpy copies those that are asked for, wherever they begin
    items: Any = np.ndarray((len(pack.region) - size + 1,), f"V{size}", pack.region, strides=(1,))
    together = BLOCK_BYTES // size
    if together < 2:
        for offset in offsets.tolist():
            _add_pixels(sums, pack.region[offset : offset + size].reshape(shape))
    else:
        for start in range(0, len(offsets), together):
            block = items[offsets[start : start + together]].view(np.uint8)
            _add_pixels(sums, block.reshape(-1, shape[0] * shape[1], shape[2]))
    sums.images = len(records)
    return {(shape[2], "uint8"): sums}


def _of_images(pack: Pack, records: NDArray[np.int64]) -> dict[Kind, Sums]:
    found: defaultdict[Kind, Sums] = defaultdict()
    for i in records.tolist():
        image = pack.image(i)
        kind = image.shape[2], image.dtype.name
        sums = found[kind] if kind in found else found.setdefault(kind, Sums(image.shape[2]))
        _add_pixels(sums, image)
        sums.images += 1
    return dict(found)


def _add_pixels(sums: Sums, image: NDArray[Any]) -> None:
    """Add the pixels of (rows, columns, channels)."""
    sums.pixels += image.shape[0] * image.shape[1]
    if image.dtype != np.uint8:
        for c in range(image.shape[2]):
            plane = image[:, :, c].astype(np.uint64)
            sums.sums[c] += int(plane.sum())
            sums.squares[c] += int((plane * plane).sum())
        return
    rows = max(1, MOST_PIXELS // image.shape[1])
    for start in range(0, len(image), rows):
        part = image[start : start + rows]
        totals = cv2.sumElems(part)
        planes = cv2.split(part, sums.planes_for(part)) if part.shape[2] > 1 else [part]
        for c, plane in enumerate(planes):
            sums.sums[c] += round(totals[c])
            # the norm is a root that OpenCV squares again: the nearest whole number is the sum
            sums.squares[c] += round(cv2.norm(plane, cv2.NORM_L2SQR))
