"""The contract of all samplers: one global order an epoch, of which every rank takes its stride."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.samplers import state
from packer.samplers.permutation import PIECE, Records
from packer.samplers.ranks import Ranks, launched, whole
from packer.samplers.records import chosen, length_of, manifest_digest, numbers_digest

Data = int | Sized
"""What is sampled: a number of records, a Pack, a PackedDataset, or whatever has a length."""


class Sampler(ABC):
    """An order of record numbers as a pure function of (seed, epoch), shared out to ranks.

    The order is the same on every rank and for any number of them. With G = batch_size * world_size, global
    batch b is positions b*G to (b+1)*G - 1 of it, and rank r takes every world_size-th of them from the r-th on.
    So the samples of a global batch do not depend on how many ranks share it, and a run may be resumed by another
    number of ranks with the same G. A DataLoader with `sampler=` and `batch_size=` makes the same batches as
    `rank_batches`. Every rank gets equally many samples:

    - drop_last=False: where world_size does not divide the samples, the first few of the order are handed out
      once more at the end: `padded` of them, at most world_size - 1.
    - drop_last=True: the end of the order that does not fill one sample a rank (in a DataLoader), or one global
      batch (in `rank_batches`), is left out, other samples each epoch where the order is shuffled.

    Call `set_epoch` before each epoch: without it all epochs have the same order. A rank and world_size that are not
    given are those of torch.distributed when an iteration begins, that is, when its first sample is asked for; the
    process group may be made after the sampler. Samplers pickle; iterating is not thread-safe, all else is.
    """

    kind: str
    """Its name in a state."""

    def __init__(  # noqa: PLR0913 - what all samplers take
        self,
        data: Data,
        seed: int,
        *,
        records: ArrayLike | None,
        num_samples: int | None = None,
        drop_last: bool,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        self.seed = whole("seed", seed, 0, (1 << 64) - 1)
        self.drop_last = bool(drop_last)
        self._given = rank, world_size
        self._warned = False
        self._pack_digest = manifest_digest(data)
        self.num_records = length_of(data)
        """Records of the pack, chosen or not."""
        self._chosen = None if records is None else chosen(records, self.num_records)
        self.num_chosen = self.num_records if self._chosen is None else len(self._chosen)
        """Records that are sampled: all, or those of `records`."""
        self.num_samples = self.num_chosen if num_samples is None else whole("num_samples", num_samples, 1)
        """Samples of an epoch, of all ranks together, before padding or dropping."""
        self.epoch = 0
        self.times_set = 0
        """How often an epoch was set: two equal numbers say that nobody has set one in between."""
        self._start = 0
        self._ranks()

    @abstractmethod
    def _order(self, epoch: int) -> Records:
        """(num_samples,) numbers from 0 to num_chosen - 1, in the order of this epoch."""

    def _options(self) -> Mapping[str, state.Scalar]:
        """What else the order depends on, beside seed, epoch and records."""
        return {}

    @property
    def rank(self) -> int:
        """Number of this process: the one given, or what torch.distributed says now."""
        return Ranks.of(*self._given).rank

    @property
    def world_size(self) -> int:
        """Number of processes: the one given, or what torch.distributed says now."""
        return Ranks.of(*self._given).world_size

    def _ranks(self) -> Ranks:
        """This process and how many there are. Raises UsageError if a rank would get no record."""
        ranks = Ranks.of(*self._given)
        if (records := min(self.num_samples, self.num_chosen)) < ranks.world_size:
            few = f"{records} records for {ranks.world_size} ranks: some would get none"
            raise UsageError("world_size", few, "use fewer ranks, or give more records")
        return ranks

    def _begin(self) -> Ranks:
        """The ranks of an iteration, which stay the same to its end. Warns once if they are probably wrong."""
        ranks = self._ranks()
        if None in self._given and not self._warned and (processes := launched()) > 1:
            self._warned = True
            warnings.warn(
                f"WORLD_SIZE is {processes}, but torch.distributed has no process group: this process reads as rank "
                f"{ranks.rank} of {ranks.world_size}; call torch.distributed.init_process_group before the first "
                "batch, or give rank and world_size to the sampler",
                stacklevel=3,
            )
        return ranks

    @property
    def padded(self) -> int:
        """Samples at the end of an epoch that are handed out for the second time, of all ranks together."""
        return 0 if self.drop_last else -self.num_samples % self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; from its beginning, unless a state of this epoch was loaded."""
        number = whole("epoch", epoch, 0)
        self.times_set += 1
        if number != self.epoch:
            self.epoch, self._start = number, 0

    def order(self, epoch: int | None = None) -> Records:
        """(num_samples,) record numbers, int32 or int64: the whole epoch (default: that of `set_epoch`), all ranks."""
        order = self._order(self.epoch if epoch is None else whole("epoch", epoch, 0))
        return order if self._chosen is None else self._chosen[order]

    def __len__(self) -> int:
        """Samples that this rank gets in a whole epoch."""
        return (self.num_samples + self.padded) // self.world_size

    def __iter__(self) -> Iterator[int]:
        """This rank's record numbers; after `load_state_dict` the rest of that epoch, once.

        Begins with its first number: one that is never asked for any takes nothing of a loaded state.
        """
        ranks = self._begin()
        start, self._start = self._start, 0
        if start < self.num_samples:
            size = PIECE * ranks.world_size
            for records in self._pieces(self.order(), start, len(self) * ranks.world_size, size, ranks):
                yield from records.tolist()

    def num_batches(self, batch_size: int) -> int:
        """Batches of `rank_batches` in a whole epoch, the same for every rank.

        Raises UsageError where drop_last would leave none.
        """
        size = self.global_batch(batch_size)
        if self.drop_last and self.num_samples < size:
            few = f"{self.num_samples} samples do not fill one batch of {batch_size} on {self.world_size} ranks"
            raise UsageError("drop_last", few, "use smaller batches, or drop_last=False")
        return self.num_samples // size if self.drop_last else -(-self.num_samples // size)

    def rank_batches(self, batch_size: int, epoch: int | None = None, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """This rank's record numbers of each batch, int64 (batch_size,), the last maybe shorter.

        Args: samples of a batch on this rank; the epoch (default: that of `set_epoch`); the global position to
        begin at, an edge of global batches or the end. Raises UsageError at once where these cannot be.
        """
        ranks = self._begin()
        size = self.global_batch(batch_size)
        end = self.num_batches(batch_size) * size if self.drop_last else len(self) * ranks.world_size
        start = state.position_of(self, start, size)
        number = self.epoch if epoch is None else whole("epoch", epoch, 0)
        return self._batches(number, start, end, size, ranks)

    def _batches(self, epoch: int, start: int, end: int, size: int, ranks: Ranks) -> Iterator[NDArray[np.int64]]:
        if start < min(end, self.num_samples):
            for records in self._pieces(self.order(epoch), start, end, size, ranks):
                yield records.astype(np.int64)

    @staticmethod
    def _pieces(order: Records, start: int, end: int, size: int, ranks: Ranks) -> Iterator[Records]:
        """A rank's share of the positions from start to end, `size` positions at a time."""
        for first in range(start, end, size):
            beyond = min(first + size, end)
            share = slice(first + ranks.rank, beyond, ranks.world_size)
            if beyond <= len(order):
                yield order[share]
            else:
                yield order[np.arange(share.start, share.stop, share.step) % len(order)]

    def global_batch(self, batch_size: int) -> int:
        """Samples of a batch on all ranks together."""
        return whole("batch_size", batch_size, 1) * self.world_size

    def state_dict(self, position: int, batch_size: int) -> dict[str, Any]:
        """Where an epoch stands after `position` samples, of all ranks together: a small dict, fit for JSON (state.py).

        After b batches the position is min(b * global_batch(batch_size), num_samples).
        """
        return state.state_of(self, self.epoch, position, self.global_batch(batch_size))

    def load_state_dict(self, state_dict: Mapping[str, Any], batch_size: int) -> int:
        """Take the epoch of a state, and return its position: the `start` of `rank_batches`.

        The next iteration of this sampler, in a DataLoader, begins there too. Raises UsageError that names what
        differs where the state is of another order or batch size, and changes nothing then.
        """
        epoch, position = state.checked(self, state_dict, self.global_batch(batch_size))
        self.epoch, self._start = epoch, position
        return position

    @cached_property
    def identity(self) -> dict[str, state.Scalar]:
        """All that the order depends on but the epoch: equal here and in a state that may be resumed."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "num_records": self.num_records,
            "num_samples": self.num_samples,
            "drop_last": self.drop_last,
            "pack": self._pack_digest,
            "records": None if self._chosen is None else numbers_digest(self._chosen),
            **self._options(),
        }

    def __repr__(self) -> str:
        of = f"{self.num_chosen} of {self.num_records}" if self._chosen is not None else f"{self.num_records}"
        return f"<{type(self).__name__}: {of} records, seed {self.seed}, rank {self.rank} of {self.world_size}>"
