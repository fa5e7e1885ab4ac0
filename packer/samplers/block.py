"""A shuffle in two steps: reads runs of a shard in order, and mixes them within a window of several runs.

Each epoch divides the shards into blocks of consecutive records (at different points each epoch, so that neighbors
are separated), shuffles the blocks of all shards, and shuffles the samples within each `window` blocks.

Use it for packs larger than memory on spinning disks or network storage: a block is one sequential read, and only one
window, block * window records, needs to be in memory at a time. Larger blocks read faster, larger windows mix better.

Do not use it if random reads are as fast as sequential ones (a pack in memory or on an SSD): there `ShuffleSampler`
mixes better at no cost. Nor if neighbors are similar, above all in a pack sorted by class: a window then holds at most
as many classes as blocks, batches are unbalanced, and batch statistics and the loss fluctuate. Such a pack causes a
warning (`SortedPackWarning`); build it with ``--shuffle SEED``.

On several machines, each reads all blocks for its share of every window. With `nodes`, each reads only its own part of
the pack, the same in every epoch. The records are cut into `nodes` runs, one for each *canonical node*; each run is
shuffled as above, and the order takes a sample of each in turn. Position p belongs to canonical node p % nodes, and
machine m of M reads the canonical nodes c with c % M == m, for any M that divides `nodes`. So the order is the same
for any such number of machines, and every global batch has the same share of each run.

The idea is that of the shuffle "py1br" of mosaicml/streaming, whose blocks are called windows here, and whose
`num_canonical_nodes` is `nodes`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import cache, partial
from heapq import merge
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.model.annotation import Int64
from packer.samplers.order import (
    Records,
    SortedPackWarning,
    derive,
    is_sorted_by_class,
    pack_of,
    permutation,
    permutation_function,
    random_bits,
    runs_of_neighbors,
    whole_order,
)
from packer.samplers.ranks import Ranks, check_int, length_of, nodes_of
from packer.samplers.sampler import Sampler

_CUTS, _BLOCKS, _WINDOWS, _NODES = 1, 2, 3, 4  # purpose of a key
_STEP = 1 << 20
_PART = 64  # of a window: for larger parts, a table of the whole window is faster than a search


class BlockShuffleSampler(Sampler):
    """All records once per epoch: blocks in random order, samples shuffled within windows of blocks.

    Warns with SortedPackWarning if the pack is sorted by class, and a window or the part of a machine is not all of it.

    Args:
        data: the pack or dataset, or the number of records of each shard, or the total for a single shard.
        seed: as in `Sampler`; `drop_last`, `pad`, `rank` and `world_size` too.
        block: records per block.
        window: blocks per window; with `nodes`, of all canonical nodes together (at least one of each).
        nodes: number of canonical nodes: parts of the pack, each of which one machine reads. The order is the same for
            any number of machines that divides it, as a state is valid for. Choose one with many divisors that
            is not larger than needed, such as 8, 24 or 64. With drop_last=False, each machine repeats samples of its
            own at the end.
        indices: numbers of the records to sample (default: all); their order does not matter.
        local_world_size: ranks on each machine, for `nodes`; those of a machine must be consecutive. Default: as
            torchrun, accelerate, Ray Train, srun or mpirun say. If it is unknown, all ranks count as one machine, with
            a warning.

    Raises:
        UsageError: if an argument is out of range, or the number of machines does not divide `nodes`.
    """

    kind = "block"

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: int | Sequence[int] | Pack | Sized, seed: int = 0, *, block: int = 256, window: int = 64,
        nodes: int | None = None, indices: ArrayLike | None = None, drop_last: bool = False, pad: bool = True,
        rank: int | None = None, world_size: int | None = None, local_world_size: int | None = None,
    ) -> None:  # fmt: skip
        pack = pack_of(data)
        shards = [shard.records for shard in pack.reader.shards] if pack else _counts(data)
        records = data if pack else sum(shards)
        self.nodes = None if nodes is None else check_int("nodes", nodes, 1)
        self._local_world_size, self._warned_of_nodes = local_world_size, False
        super().__init__(records, seed, indices=indices, drop_last=drop_last, pad=pad, rank=rank, world_size=world_size)
        if (self.nodes or 1) > self.num_indices:
            raise UsageError("nodes", f"is {nodes}, for {self.num_indices} records: some would get none")
        self.block = check_int("block", block, 1)
        self.window = check_int("window", window, 1)
        self._firsts: Int64 = np.unique(self._sort_records(np.cumsum([0, *shards], dtype=np.int64)))
        """Where each shard that has sampled records begins among them, and the end."""
        if pack and ((self.nodes or 1) > 1 or self.block * self.window < self.num_indices):
            self._warn_if_sorted(pack)

    def _warn_if_sorted(self, pack: Pack) -> None:
        sample = runs_of_neighbors(self.num_indices)
        records = sample if self.records is None else self.records[sample]
        labels = pack.reader.values("label", records.ravel().astype(np.int64))
        if is_sorted_by_class(labels.reshape(sample.shape)):
            of_window = f"windows of {self.window} blocks hold few classes; build it with --shuffle SEED, use "
            of_window += "ShuffleSampler, or make the window larger and the block smaller"
            of_part = "the part of a machine has few classes; build it with --shuffle SEED, or leave out nodes"
            text = f"this pack is sorted by class: {of_part if self.nodes else of_window}"
            warnings.warn(text, SortedPackWarning, stacklevel=3)

    def _options(self) -> dict[str, int | str]:
        shards = ",".join(map(str, np.diff(self._firsts)))
        nodes = {} if self.nodes is None else {"nodes": self.nodes}
        return {"block": self.block, "window": self.window, "shards": f"{derive(*shards.encode()):016x}", **nodes}

    def _ranks(self) -> Ranks:
        ranks = super()._ranks()
        if self.nodes is None:
            return ranks
        machines = nodes_of(ranks.world_size, self._local_world_size) or 1
        if self.nodes % machines:
            fit = ", ".join(str(number) for number in range(1, self.nodes + 1) if self.nodes % number == 0)
            problem = f"is {self.nodes}, which {machines} machines do not divide"
            raise UsageError("nodes", problem, f"use a multiple of {machines}, or another number of machines: {fit}")
        return ranks._replace(nodes=machines)

    def _begin(self) -> Ranks:
        ranks = super()._begin()
        if self.nodes and not self._warned_of_nodes and nodes_of(ranks.world_size, self._local_world_size) is None:
            self._warned_of_nodes = True
            warnings.warn(
                f"no launcher says how many of the {ranks.world_size} ranks run on each machine: all count as one "
                "machine, which reads the whole pack; pass local_world_size to the sampler",
                stacklevel=4,
            )
        return ranks

    def _repeated(self, positions: Int64) -> Int64:
        if self.nodes is None:
            return super()._repeated(positions)
        # of the same canonical node, so that no machine reads parts of others
        end = self.num_samples - self.num_samples % self.nodes
        return np.where(positions < self.num_samples, positions, positions % end)

    def windows(self, epoch: int | None = None) -> Iterator[tuple[int, int, Int64]]:
        """Yield what this machine reads in `epoch` (default: that of `set_epoch`): (start, stop, runs) of each window.

        The samples of a window are those of its runs, int64 (k, 2): the first record of each block and the one after
        its last. They stand at the positions from start to stop, or with `nodes`, at every `nodes`-th of them: windows
        of several canonical nodes overlap. Windows come in the order in which they are needed.
        """
        number = self.epoch if epoch is None else check_int("epoch", epoch, 0)
        return merge(*(self._windows(number, node) for node in self.canonical_nodes), key=itemgetter(0))

    @property
    def canonical_nodes(self) -> range:
        """Those that this machine reads; without `nodes`, 0 stands for the whole pack."""
        ranks = self._ranks()
        return range(ranks.node, self.nodes or 1, ranks.nodes)

    @property
    def ranks_per_window(self) -> int:
        """Number of ranks that share the samples of each window: those of a machine, or without `nodes` all."""
        ranks = self._ranks()
        return ranks.world_size // ranks.nodes

    def _windows(self, epoch: int, node: int) -> Iterator[tuple[int, int, Int64]]:
        nodes, stream = self.nodes or 1, self._stream(epoch, node)
        for begin, end, firsts, lengths in stream.windows():
            ends = np.stack([firsts, firsts + lengths - 1], axis=1)
            records = ends if self._indices is None else self._indices[ends].astype(np.int64)
            yield node + begin * nodes, node + (end - 1) * nodes + 1, np.add(records, [0, 1])

    def _stream(self, epoch: int, node: int) -> _Stream:
        """Return the order of a canonical node; without `nodes`, of all records."""
        if self.nodes is None:
            return _Stream(self._firsts, self.block, self.window, (self.seed, epoch))
        size, larger = divmod(self.num_indices, self.nodes)
        begin = node * size + min(node, larger)
        end = begin + size + (node < larger)
        inside = self._firsts[(self._firsts > begin) & (self._firsts < end)]
        firsts = np.array([begin, *inside, end], np.int64)
        return _Stream(firsts, self.block, -(-self.window // self.nodes), (derive(self.seed, _NODES, node), epoch))

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        if self.nodes is None:
            return self._stream(epoch, 0)
        stream, nodes = cache(partial(self._stream, epoch)), self.nodes

        def numbers(positions: Int64) -> Records:
            items, node = np.divmod(positions, nodes)
            out = np.empty(len(positions), np.int64)
            for number in np.unique(node).tolist():
                here = node == number
                out[here] = stream(number)(items[here])
            return out

        return numbers

    def _order(self, epoch: int) -> Records:
        return whole_order(self._numbers(epoch), self.num_indices, self.num_indices, _STEP)


class _Stream:
    """The order of a run of records in one epoch: a function from items of it to positions among the sampled records.

    Its blocks are computed at once, what is in a window when it is needed.

    Args:
        firsts: where each shard begins in the run, and the end of the run.
        block: records per block.
        window: blocks per window.
        key: what the order depends on.
    """

    def __init__(self, firsts: Int64, block: int, window: int, key: tuple[int, int]) -> None:
        begins, ends = firsts[:-1], firsts[1:]
        # the first block of each shard has 1 to `block` records at random, so that the cuts move
        cuts = (random_bits(derive(*key, _CUTS), len(begins)) % np.uint64(block)).astype(np.int64) + 1
        counts = 1 + np.maximum(ends - begins - cuts + block - 1, 0) // block
        number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(begins, counts) + np.maximum(np.repeat(cuts - block, counts) + number * block, 0)
        order = permutation(len(starts), derive(*key, _BLOCKS))
        self._key, self._window = key, window
        self._firsts = starts[order]
        """The first position of each block, in the order of this epoch."""
        lengths = np.diff(starts, append=ends[-1])[order]
        self._items = np.cumsum(lengths) - lengths
        """The item at which each block begins."""
        self._edges = np.append(self._items[::window], firsts[-1] - firsts[0])
        """The item at which each window begins, and the end."""

    def windows(self) -> Iterator[tuple[int, int, Int64, Int64]]:
        """Yield first item, end, and first positions and lengths of the blocks of each window."""
        for number, (begin, end) in enumerate(pairwise(self._edges.tolist())):
            blocks = slice(number * self._window, (number + 1) * self._window)
            yield begin, end, self._firsts[blocks], np.diff(self._items[blocks], append=end)

    def __call__(self, items: Int64) -> Int64:
        """Return the positions of `items`, which are fastest in rising order."""
        window = np.searchsorted(self._edges, items, side="right") - 1
        out = np.empty(len(items), np.int64)
        for start, stop in pairwise([*np.flatnonzero(np.diff(window, prepend=-1)).tolist(), len(items)]):
            out[start:stop] = self._mixed(int(window[start]), items[start:stop])
        return out

    def _mixed(self, window: int, items: Int64) -> Int64:
        """Return the positions of `items`, all of one window."""
        begin, end = self._edges[window : window + 2].tolist()
        mixed = permutation_function(end - begin, derive(*self._key, _WINDOWS, window))(items - begin)
        blocks = slice(window * self._window, (window + 1) * self._window)
        at: Int64 = self._items[blocks] - begin
        shift: Int64 = self._firsts[blocks] - at
        if end - begin <= _PART * len(items):
            mixed += np.repeat(shift, np.diff(at, append=end - begin))[mixed]
        else:
            mixed += shift[np.searchsorted(at, mixed, side="right") - 1]
        return mixed


def _counts(data: Any) -> list[int]:
    """Return the records of each shard."""
    is_list = isinstance(data, np.ndarray) and data.ndim == 1
    if is_list or (isinstance(data, Sequence) and not isinstance(data, str)):
        return [check_int("shard", records, 0) for records in data]
    return [length_of(data)]
