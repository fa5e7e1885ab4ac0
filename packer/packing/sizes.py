"""The sizes of all images of a plan, where shards are cut, and how large the pack will be; computed piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.containers import open_container
from packer.images.resize import Resize
from packer.model.fields import FIELD_NAMES
from packer.packing.convert import UNREAD, Recipe
from packer.packing.rows import pieces
from packer.samplers.order import shuffled
from packer.system.spill import Spill

AT_ONCE = 1 << 17
DEFAULT_SHARD_BYTES, LARGE_SHARD_BYTES = 128 << 20, 1 << 30
LARGE_PACK_BYTES = 256 << 30
MOST_SHARDS = 16384
"""Linux lets a process map 65,530 files, and a reader maps two for each shard."""
MOST_RECORDS = 100_000
"""Of a shard: tiny images would otherwise all be in one, which one worker packs, and an interrupted build loses."""
INDEX_ROW_BYTES = 100
JSON_BYTES = 195
"""Of an annotation in a container, without path and labels."""
NPY_HEADER_BYTES = 128
ANNOTATION_COPIES = 3  # in the container, in the index, and one for longer names: measured


class Facts:
    """The sizes of all inputs as arrays."""

    def __init__(self, table: Any, resize: Resize | None) -> None:
        """Take the columns bytes, height, width, channels and wide of a table; the images will be resized."""
        names = ("bytes", "height", "width", "channels", "wide")
        columns = {name: table.column(name).to_numpy() for name in names}
        codes = table.column("code").to_numpy() if "code" in table.column_names else np.empty(0)  # packs have none
        self.unknown = resize is None and bool((codes == UNREAD).any())
        """Whether there are images whose headers are read later, with an effect on the shape."""
        self.source_bytes: NDArray[np.int64] = columns["bytes"]
        self.channels = columns["channels"]
        self.wide = columns["wide"]
        sizes = np.stack([columns["width"], columns["height"]], axis=1).astype(np.int64)
        if resize is not None and len(sizes):
            unique, where = np.unique(sizes, axis=0, return_inverse=True)
            sizes = np.array([resize.output_size(w, h) for w, h in unique.tolist()])[where.reshape(-1)]
        self.width, self.height = sizes[:, 0], sizes[:, 1]
        self.raw_bytes: NDArray[np.int64] = self.width * self.height * self.channels * np.where(self.wide, 2, 1)

    def uniform(self) -> tuple[tuple[int, int, int] | None, str | None]:
        """Return the shape and the dtype that all images share, None if they differ or are not known yet."""
        if not len(self.wide) or (self.wide != self.wide[0]).any():
            return None, None
        dtype = "uint16" if self.wide[0] else "uint8"
        if self.unknown or any((c != c[0]).any() for c in (self.height, self.width, self.channels)):
            return None, dtype
        return (int(self.height[0]), int(self.width[0]), int(self.channels[0])), dtype


class AllFacts:
    """What a plan needs of the `Facts` of a long table, read in pieces."""

    def __init__(self, table: Any, recipe: Recipe, ratio: Callable[[], float]) -> None:
        """Read a table.

        Args:
            table: The table of inputs.
            recipe: What becomes of the images.
            ratio: Returns the encoded bytes per byte of pixels; it is estimated if they are encoded.
        """
        estimated = ratio() if recipe.encode not in ("raw", "copy") else 1.0
        self.unknown, self.source_bytes = False, 0
        self._uniform: set[tuple[tuple[int, int, int] | None, str | None]] = set()
        sizes = Spill()
        for _, piece in pieces(table):
            facts = Facts(piece, recipe.resize)
            self.unknown |= facts.unknown
            self.source_bytes += int(facts.source_bytes.sum())
            self._uniform.add(facts.uniform())
            stored = facts.source_bytes if recipe.encode == "copy" else facts.raw_bytes
            sizes.append((stored if estimated == 1 else np.ceil(stored * estimated).astype(np.int64)).data)
        self.image_bytes: NDArray[np.int64] = np.frombuffer(sizes.finish(), np.int64)

    def uniform(self) -> tuple[tuple[int, int, int] | None, str | None]:
        """Return the shape and the dtype that all images share, None if they differ or are not known yet."""
        if len(self._uniform) == 1:
            return next(iter(self._uniform))
        dtypes = {dtype for _, dtype in self._uniform}
        return None, dtypes.pop() if len(dtypes) == 1 else None


def permuted(values: NDArray[np.int64], order: tuple[int, int]) -> NDArray[np.int64]:
    """Return values in a packing order."""
    to, result = shuffled(*order), Spill()
    for start, part in _parts(values):
        result.append(values[to(np.arange(start, start + len(part)))].data)
    return np.frombuffer(result.finish(), np.int64)


def stored_bytes(name: str, raw: bool, image_bytes: NDArray[np.int64], table: Any) -> int:
    """Return the size of a pack: images, annotations and index as the container stores them.

    Args:
        name: The container.
        raw: Whether the images are stored as pixels.
        image_bytes: Stored size of each image.
        table: Its columns ``path`` and those of annotations count, as in the table of inputs and in an index.
    """
    container = open_container(name)
    header = NPY_HEADER_BYTES if raw else 0
    rows = len(image_bytes)
    path_bytes, label_bytes = (
        sum(int(table.column(name).nbytes) for name in names)
        for names in (("path",), [name for name in table.column_names if name in FIELD_NAMES])
    )
    if hasattr(container, "stored_bytes") and rows:
        mean_path, mean_labels = path_bytes / rows, label_bytes / rows
        note_bytes = JSON_BYTES + mean_path + (ANNOTATION_COPIES - 1) * mean_labels
        index_bytes = int(rows * (INDEX_ROW_BYTES + mean_path + mean_labels))
        sizes = (int(container.stored_bytes(part + header, note_bytes)) for _, part in _parts(image_bytes))
        return sum(sizes) + index_bytes
    blocks = sum(int((-(-(part + header) // container.block_bytes)).sum()) for _, part in _parts(image_bytes))
    records = rows * (container.overhead_bytes + INDEX_ROW_BYTES)
    return blocks * container.block_bytes + records + ANNOTATION_COPIES * label_bytes


def _parts(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (first number, values): what is computed of all of them does not fit into memory."""
    return ((start, values[start : start + AT_ONCE]) for start in range(0, len(values), AT_ONCE))


def default_shard_bytes(image_bytes: int) -> int:
    """Return the size of the shards of a pack with so many bytes of images, if none is chosen."""
    size = DEFAULT_SHARD_BYTES if image_bytes < LARGE_PACK_BYTES else LARGE_SHARD_BYTES
    while size * MOST_SHARDS < image_bytes:
        size *= 2
    return size


def cuts_of(image_bytes: NDArray[np.int64], shard_bytes: int | None) -> tuple[int, ...]:
    """Return the row numbers at which shards begin, and the end; shards have about the same size.

    One that would have more than MOST_RECORDS is divided. With `shard_bytes` None, there is only one.
    """
    n = len(image_bytes)
    if n == 0:
        return (0, 0)
    total = int(image_bytes.sum())
    shards = 1 if shard_bytes is None else min(n, max(1, -(-total // shard_bytes)))
    targets = np.array([total * k / shards for k in range(1, shards)])
    cuts, done, before = {0, n}, 0, 0
    for start, sizes in _parts(image_bytes):
        ends = np.cumsum(sizes) + before
        before = int(ends[-1])
        here = int(np.searchsorted(targets, before, side="right"))
        cuts.update((np.searchsorted(ends, targets[done:here], side="left") + start + 1).tolist())
        done = max(done, here)
    by_size = sorted(cut for cut in cuts if cut <= n)
    return tuple(by_size if shard_bytes is None else _divided(by_size))


def _divided(cuts: list[int]) -> Iterator[int]:
    """Yield the cuts, and those that divide shards of more than MOST_RECORDS evenly."""
    for start, stop in pairwise(cuts):
        parts = -(-(stop - start) // MOST_RECORDS)
        yield from (start + (stop - start) * part // parts for part in range(parts))
    yield cuts[-1]
