"""Which records of a pack are measured: all of a small one, runs from all over a large one."""

from __future__ import annotations

import numpy as np

from packer.format.pack import Pack
from packer.system import available_bytes
from packer.types import Int64

MOST_BYTES = 1 << 30
"""More than any cache of a processor holds, and read from a slow disk in seconds."""
MOST_DECODED = 1 << 14
"""Encoded images: reading them once, to warm up, should take seconds too."""
RUNS = 16


def chosen_records(pack: Pack, images: int | None) -> Int64:
    """Numbers of the records to measure, rising: `images` of them, or as many as can be read in a few seconds.

    They are runs of neighbours from all over the pack, so that a disk reads them as it reads the whole.
    """
    each = max(1.0, float(pack.sizes.sum()) / len(pack))
    most = int(available_bytes() / 4 / each)
    if images is None:
        images = int(MOST_BYTES / each)
        if pack.manifest.encoding != "raw":
            images = min(images, MOST_DECODED)
    count = max(1, min(len(pack), most, images))
    if count == len(pack):
        return np.arange(count)
    runs = min(RUNS, count)
    firsts = np.arange(runs) * len(pack) // runs
    lengths = np.full(runs, count // runs) + (np.arange(runs) < count % runs)
    return np.concatenate([np.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)])
