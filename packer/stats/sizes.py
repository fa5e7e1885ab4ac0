"""Sizes of the images, out of the index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.format.pack import Pack
from packer.stats.labels import Spread

MOST_COMMON = 5


@dataclass(frozen=True)
class SizeStats:
    """How large the packed images are."""

    width: Spread
    height: Spread
    aspect: Spread
    """Width by height."""
    record_bytes: Spread
    distinct: int
    """Different sizes."""
    common: tuple[tuple[int, int, int], ...]
    """(width, height, images) of the most common sizes, the most common first."""


def size_stats(pack: Pack) -> SizeStats:
    """Sizes of all images of a pack."""
    width = np.asarray(pack.column("width")).astype(np.int64)
    height = np.asarray(pack.column("height")).astype(np.int64)
    codes, counts = np.unique(width << 32 | height, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_COMMON]
    common = ((int(codes[i] >> 32), int(codes[i] & 0xFFFFFFFF), int(counts[i])) for i in order)
    return SizeStats(
        width=Spread.of(width),
        height=Spread.of(height),
        aspect=Spread.of(width / np.maximum(height, 1)),
        record_bytes=Spread.of(pack.sizes),
        distinct=len(codes),
        common=tuple(common),
    )
