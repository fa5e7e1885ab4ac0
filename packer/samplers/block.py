"""A shuffle in two steps: reads runs of a shard in order, and mixes them within a window of several runs.

Each epoch divides the shards into blocks of consecutive records (at different points each epoch, so that neighbors
are separated), shuffles the blocks of all shards, and shuffles the samples within each `window` blocks.

Use it for packs larger than memory on spinning disks or network storage: a block is one sequential read, and only one
window, block * window records, needs to be in memory at a time. Larger blocks read faster, larger windows mix better.

Do not use it if random reads are as fast as sequential ones (a pack in memory or on an SSD): there `ShuffleSampler`
mixes better at no cost. Nor if neighbors are similar, above all in a pack sorted by class: a window then holds at most
as many classes as blocks, batches are unbalanced, and batch statistics and the loss fluctuate. Such a pack causes a
warning (`SortedPackWarning`); build it with ``--shuffle SEED``. On several machines, each reads all blocks for its
share of every window, so that the order does not depend on the number of ranks.

The idea is that of the shuffle "py1br" of mosaicml/streaming, whose blocks are called windows here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.format.pack import Pack
from packer.samplers.base import Sampler
from packer.samplers.order import (
    Records,
    SortedPackWarning,
    compact,
    derive,
    is_sorted_by_class,
    permutation,
    random_bits,
)
from packer.samplers.ranks import check_int, length_of
from packer.samplers.subset import pack_of
from packer.types import Int64

_CUTS, _BLOCKS, _WINDOWS = 1, 2, 3  # purpose of a key


class BlockShuffleSampler(Sampler):
    """All records once per epoch: blocks in random order, samples shuffled within windows of blocks.

    Warns with SortedPackWarning if the pack is sorted by class and a window does not hold all of it.

    Args:
        data: the pack or dataset, or the number of records of each shard, or the total for a single shard.
        seed: as in `Sampler`; `drop_last`, `rank` and `world_size` too.
        block: records per block.
        window: blocks per window.
        indices: numbers of the records to sample (default: all); their order does not matter.

    Raises:
        UsageError: if an argument is out of range.
    """

    kind = "block"

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: int | Sequence[int] | Pack | Sized, seed: int = 0, *, block: int = 256, window: int = 64,
        indices: ArrayLike | None = None, drop_last: bool = False, rank: int | None = None,
        world_size: int | None = None,
    ) -> None:  # fmt: skip
        pack = pack_of(data)
        shards = [shard.records for shard in pack.shards] if pack else _counts(data)
        records = pack or sum(shards)
        super().__init__(records, seed, indices=indices, drop_last=drop_last, rank=rank, world_size=world_size)
        self.block = check_int("block", block, 1)
        self.window = check_int("window", window, 1)
        firsts = np.cumsum([0, *shards], dtype=np.int64)
        if self._indices is not None:
            self._indices.sort()
            firsts = np.searchsorted(self._indices, firsts)
        self._firsts: Int64 = np.unique(firsts)
        """Where each shard that has sampled records begins among them, and the end."""
        if pack and self.block * self.window < self.num_indices:
            self._warn_if_sorted(np.asarray(pack.column("label")))

    def _warn_if_sorted(self, labels: NDArray[Any]) -> None:
        if is_sorted_by_class(labels if self._indices is None else labels[self._indices]):
            warnings.warn(
                f"this pack is sorted by class: windows of {self.window} blocks hold few classes; build it with "
                "--shuffle SEED, use ShuffleSampler, or make the window larger and the block smaller",
                SortedPackWarning,
                stacklevel=3,
            )

    def _options(self) -> dict[str, int | str]:
        shards = ",".join(map(str, np.diff(self._firsts)))
        return {"block": self.block, "window": self.window, "shards": f"{derive(*shards.encode()):016x}"}

    def _blocks(self, epoch: int) -> tuple[Int64, Int64]:
        """Return the first position and the length of each block, in the order of this epoch."""
        begins, ends = self._firsts[:-1], self._firsts[1:]
        # the first block of each shard has 1 to `block` records at random, so that the cuts move
        cuts = random_bits(derive(self.seed, epoch, _CUTS), len(begins)) % np.uint64(self.block) + np.uint64(1)
        starts = np.concatenate(
            [
                np.concatenate(([begin], np.arange(begin + cut, end, self.block)))
                for begin, cut, end in zip(begins.tolist(), cuts.tolist(), ends.tolist(), strict=True)
            ]
        )
        lengths = np.diff(starts, append=ends[-1])
        shuffled = permutation(len(starts), derive(self.seed, epoch, _BLOCKS))
        return starts[shuffled], lengths[shuffled]

    def windows(self, epoch: int | None = None) -> Iterator[tuple[int, Int64]]:
        """Yield what `epoch` reads (default: that of `set_epoch`), for reading ahead: (position, runs) of each window.

        runs: int64 (k, 2), the first record of each block and the one after its last. The samples at the
        positions from this one to that of the next window are those of these runs.
        """
        position = 0
        for begin, length in self._windows(self.epoch if epoch is None else check_int("epoch", epoch, 0)):
            first, last = begin, begin + length - 1
            if self._indices is not None:
                first, last = self._indices[first], self._indices[last]
            yield position, np.stack([first, last + 1], axis=1).astype(np.int64)
            position += int(length.sum())

    def _windows(self, epoch: int) -> Iterator[tuple[Int64, Int64]]:
        starts, lengths = self._blocks(epoch)
        for first in range(0, len(starts), self.window):
            yield starts[first : first + self.window], lengths[first : first + self.window]

    def _order(self, epoch: int) -> Records:
        out = np.empty(self.num_indices, compact(self.num_indices))
        done = 0
        for number, (begin, length) in enumerate(self._windows(epoch)):
            before = np.cumsum(length) - length
            window = np.arange(int(length.sum())) + np.repeat(begin - before, length)
            end = done + len(window)
            out[done:end] = window[permutation(len(window), derive(self.seed, epoch, _WINDOWS, number))]
            done = end
        return out


def _counts(data: Any) -> list[int]:
    """Return the records of each shard."""
    if isinstance(data, Sequence) or (isinstance(data, np.ndarray) and data.ndim == 1):
        return [check_int("shard", records, 0) for records in data]
    return [length_of(data)]
