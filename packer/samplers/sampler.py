"""The base class of samplers, one global order per epoch, divided among ranks, and its state; the two plain ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from copy import copy
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from packer.errors import UsageError, plural, printable
from packer.format.versions import version_with
from packer.model.annotation import Int64
from packer.samplers.clock import (
    STATE_VERSION,
    EpochTracker,
    Iteration,
    Scalar,
    check_late,
    check_state,
    consumed,
    dealer,
    next_iteration,
    refuse,
    workers_reader,
)
from packer.samplers.order import (
    MOST_VISITS,
    PIECE,
    VISIT,
    Records,
    check_indices,
    compact,
    derive,
    digest_of,
    in_pieces,
    pack_of,
    permutation,
    permutation_function,
    records_in,
    records_of,
)
from packer.samplers.ranks import Ranks, as_distributed, check_int, length_of, warn_if_ungrouped

PADDED = MOST_VISITS
"""Added to the visit of a sample that is repeated so that every rank has equally many."""

Data = int | Sized
"""What is sampled: a number of records, a Pack, a PackedDataset, or any object with a length."""


class Sampler(ABC):
    """An order of record numbers as a pure function of (seed, epoch), divided among ranks.

    The order is the same for any number of ranks. With G = batch_size * world_size, global batch b is positions b*G to
    (b+1)*G - 1 of it, and rank r takes every world_size-th of them, starting with the r-th (`Ranks.first`). So the
    samples of a global batch do not depend on the number of ranks, and a run may be resumed on another number with
    the same G. A DataLoader with `sampler=` and `batch_size=` makes the same batches as `rank_batches`. Each iteration
    reads the next epoch, or that of `set_epoch` (see `EpochTracker`). Samplers can be pickled; iterating is not
    thread-safe.

    For isinstance a sampler is also a `torch.utils.data.DistributedSampler`, so that other libraries do not divide it
    again. accelerate's `prepare` divides every DataLoader: there each rank iterates over the whole order.

    Args:
        data: the number of records, or the pack or dataset. The numbers of a dataset of some records, `classes=` or
            `indices=`, are those of its samples; a PackedLoader reads the same records.
        seed: seed of the order, 0 to 2**64 - 1.
        indices: numbers of the records to sample (default: all), each once; `subset` selects them.
        drop_last: every rank gets the same number of samples. If False, and world_size does not divide the samples,
            the first few of the order are repeated at the end: `padded` of them, at most world_size - 1. If True, the
            end of the order that does not fill one sample per rank (in a DataLoader), or one global batch (in
            `rank_batches`), is left out: different samples each epoch if the order is shuffled.
        pad: False, to evaluate: each sample comes exactly once, so ranks may differ by one sample (in a DataLoader) or
            one batch (in `rank_batches`), and a rank may get none.
        rank: number of this process. Default: that of torch.distributed when the first sample of an iteration is
            requested; the process group may be created after the sampler.
        world_size: number of processes that share the order; default as for `rank`.

    Raises:
        UsageError: if an argument is out of range, or a rank would get no record.
    """

    kind: str
    """Name of the sampler in a state."""
    held: tuple[str, ...] = ()
    """Fields of a state that are restored from it, rather than compared: what changes while it is read."""

    def __init__(  # noqa: PLR0913 - all but the first have a default, and each stands alone
        self, data: Data, seed: int = 0, *, indices: ArrayLike | None = None, drop_last: bool = False,
        pad: bool = True, rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        self.seed = check_int("seed", seed, 0, (1 << 64) - 1)
        self.drop_last, self.pad = bool(drop_last), bool(pad)
        if self.drop_last and not self.pad:
            problem = "is False, for every sample to come once, but drop_last=True leaves some out"
            raise UsageError("pad", problem, "leave out one of the two")
        self._given, self._warned = (rank, world_size), False
        pack = pack_of(data)
        self._pack_digest = None if pack is None else pack.manifest.digest
        self._pack_path = "" if pack is None else pack.path
        self._members = records_of(data)
        """Numbers in the pack of the records of a dataset, whose samples are numbered otherwise; None: all."""
        count = length_of(data)
        self.num_records = count if self._members is None or pack is None else len(pack)
        """Records of the pack, sampled or not."""
        self._indices = None if indices is None else check_indices(indices, count)
        self.num_indices = count if self._indices is None else len(self._indices)
        """Records that are sampled: all, or those of `indices`."""
        self.num_samples = self.num_indices
        """Samples per epoch of all ranks together, before padding or dropping; a subclass may set another number."""
        self.clock = EpochTracker(None if pack is None else getattr(data, "set_epoch", None))
        self._ranks()

    @property
    def records(self) -> Records | None:
        """Numbers in the pack of the records that are sampled; None: all."""
        if self._members is None:
            return self._indices
        return self._members if self._indices is None else self._members[self._indices]

    def of_pack(self) -> Sampler:
        """Return this sampler with the pack's numbers of records instead of a dataset's; both have one clock."""
        if self._members is None:
            return self
        same = copy(self)
        same._indices, same._members = self.records, None
        return same

    def _sort_records(self, firsts: Int64) -> Int64:
        """Order the sampled records as the pack does; return where those from `firsts` on begin among them."""
        records = self.records
        if records is None:
            return firsts
        order = np.argsort(records)
        self._indices = order.astype(records.dtype) if self._indices is None else self._indices[order]
        return np.searchsorted(records[order], firsts)

    @abstractmethod
    def _order(self, epoch: int) -> Records:
        """Return (num_samples,) numbers from 0 to num_indices - 1, in the order of this epoch.

        A record that comes again is number + visit * VISIT, int64: then it has other random numbers than before.
        """

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        """Return the function from positions in `_order` to its numbers; a subclass may do without the whole order."""
        return self._order(epoch).take

    def _options(self) -> Mapping[str, Scalar]:
        """Return the options that the order depends on, besides seed, epoch and records."""
        return {}

    @property
    def epoch(self) -> int:
        """The epoch that comes next, or that is being read."""
        return self.clock.epoch

    @property
    def rank(self) -> int:
        """Number of this process: as given, or the current one of torch.distributed."""
        return Ranks.of(*self._given).rank

    @property
    def world_size(self) -> int:
        """Number of processes: as given, or the current one of torch.distributed."""
        return Ranks.of(*self._given).world_size

    def _ranks(self) -> Ranks:
        ranks = Ranks.of(*self._given)
        if (records := min(self.num_samples, self.num_indices)) < (ranks.world_size if self.pad else 1):
            few = f"{records} records for {ranks.world_size} ranks: some would get no record"
            raise UsageError("world_size", few, "use fewer ranks, or give more records")
        return ranks

    def _begin(self) -> Ranks:
        """Return the ranks of an iteration, which stay the same until its end. Warn once if they are probably wrong."""
        ranks = self._ranks()
        if None in self._given and not self._warned:
            self._warned = warn_if_ungrouped(ranks)
        return ranks

    @property
    def padded(self) -> int:
        """Samples repeated at the end of an epoch, of all ranks together."""
        return -self.num_samples % self.world_size if self.pad and not self.drop_last else 0

    def set_epoch(self, epoch: int) -> None:
        """Set the next `epoch`. It starts from the beginning, unless a state of this epoch was loaded.

        Raise UsageError if worker processes of a DataLoader have begun to read another one, and would return it.
        """
        check_late(self, self.clock, epoch)
        self.clock.set_epoch(epoch)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """For isinstance also a DistributedSampler: Lightning, Fabric and Ray divide all other samplers again."""
        return as_distributed(type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return object.__new__, (type(self),), self.__dict__

    def order(self, epoch: int | None = None) -> Records:
        """Return the whole `epoch` (default: that of `set_epoch`), all ranks: (num_samples,) record numbers."""
        order = records_in(self._order(self.epoch if epoch is None else check_int("epoch", epoch, 0)))
        order = order.astype(compact(self.num_records), copy=False)
        return order if self._indices is None else self._indices[order]

    def samples_at(self, epoch: int) -> Callable[[Int64], Records]:
        """Return the function from positions in `epoch` to the samples there, record + visit * VISIT.

        It is not thread-safe. `order.records_in` gives the records of samples.
        """
        numbers, indices = self._numbers(epoch), self._indices
        if indices is None:
            return numbers

        def samples(positions: Int64) -> Records:
            found = numbers(positions)
            place = records_in(found)
            mapped: Records = indices[place] + (found - place)
            return mapped

        return samples

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return self._length(self._ranks() if dealer(self._given[1]) is None else Ranks(0, 1))

    def _length(self, ranks: Ranks) -> int:
        return len(range(ranks.first, self._end(ranks), ranks.world_size))

    def _end(self, ranks: Ranks) -> int:
        """Return the position at which an epoch ends, after what is repeated."""
        spare = self.num_samples % ranks.world_size
        if self.drop_last:
            return self.num_samples - spare
        return self.num_samples + (ranks.world_size - spare if spare and self.pad else 0)

    def __iter__(self) -> Iterator[int]:
        """Return this rank's record numbers of the next epoch; after `load_state_dict` the rest of that epoch."""
        return _RankNumbers(self)

    def global_batch(self, batch_size: int) -> int:
        """Return the samples of a batch on all ranks together, `batch_size` on each."""
        return check_int("batch_size", batch_size, 1) * self.world_size

    def num_batches(self, batch_size: int) -> int:
        """Return the batches of `batch_size` samples of this rank's epoch. Raise UsageError if drop_last leaves none.

        With pad=False, ranks may differ by one.
        """
        ranks, size = self._ranks(), self.global_batch(batch_size)
        if self.drop_last and self.num_samples < size:
            few = f"{self.num_samples} samples do not fill a batch of {batch_size} on {plural(self.world_size, 'rank')}"
            raise UsageError("drop_last", few, "use smaller batches, or drop_last=False")
        whole, rest = divmod(self.num_samples, size)
        return whole + (not self.drop_last and rest > (0 if self.pad else ranks.first))

    def rank_batches(self, batch_size: int, epoch: int | None = None, start: int = 0) -> Iterator[Int64]:
        """Return this rank's record numbers of each batch: int64 (batch_size,), the last maybe shorter.

        Args:
            batch_size: samples of a batch on this rank.
            epoch: default: that of `set_epoch`.
            start: the global position to start at, a multiple of the global batch or the end, else UsageError.
        """
        return map(records_in, self.rank_samples(batch_size, epoch, start))

    def rank_samples(self, batch_size: int, epoch: int | None = None, start: int = 0) -> Iterator[Int64]:
        """Return the samples of each batch, record + visit * VISIT.

        Args:
            batch_size: as for `rank_batches`; `epoch` and `start` too.
            epoch: default: that of `set_epoch`.
            start: the global position to start at.
        """
        ranks, size = self._begin(), self.global_batch(batch_size)
        end = self.num_batches(batch_size) * size if self.drop_last else self._end(ranks)
        start = self._check_position(start, size)
        epoch = self.epoch if epoch is None else check_int("epoch", epoch, 0)
        return (samples.astype(np.int64) for samples in self._shares(epoch, start, end, size, ranks))

    def _shares(self, epoch: int, start: int, end: int, size: int, ranks: Ranks) -> Iterator[Records]:
        """Yield a rank's share of the samples from start to end, `size` positions at a time."""
        if start >= min(end, self.num_samples):
            return
        samples = self.samples_at(epoch)

        def padded(positions: Int64) -> Records:
            again = (positions >= self.num_samples) * np.int64(PADDED * VISIT)
            repeated: Records = samples(self._repeated(positions)) + again
            return repeated

        numbers = padded if end > self.num_samples else samples
        yield from in_pieces(numbers, range(start + ranks.first, end, ranks.world_size), size // ranks.world_size)

    def _repeated(self, positions: Int64) -> Int64:
        """Return `positions`, beyond the end of the order those that are repeated there."""
        return positions % self.num_samples

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration started last, as a small dict for JSON.

        Raise UsageError while workers of a DataLoader read ahead. torchdata's StatefulDataLoader allows for that.
        """
        here = consumed(self.clock)
        return self.state_at(here.epoch, here.position)

    def state_at(self, epoch: int, position: int, global_batch: int | None = None) -> dict[str, Any]:
        """Return the state after `position` samples of `epoch`, in batches of `global_batch` of all ranks together."""
        batch = {} if global_batch is None else {"global_batch": global_batch}
        position = self._check_position(position, global_batch or 1)
        held = self._held(epoch, position)
        return {"version": STATE_VERSION, "epoch": epoch, "position": position, **batch, **self.identity, **held}

    def _held(self, epoch: int, position: int) -> Mapping[str, Any]:
        """Return what a state holds of the fields in `held`."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what a state holds of the fields in `held`.

        Args:
            state: with which `check_state` has found nothing wrong.
        """
        if self.held:
            raise NotImplementedError(f"{type(self).__name__} does not restore {', '.join(self.held)}")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from `state_dict`: the next iteration reads the rest of its epoch, or the next epoch.

        Raises:
            UsageError: as for `check_state`; the sampler is then unchanged.
        """
        start = self.check_state(state_dict)
        self.restore(state_dict)
        self.clock.load(*start, min(self._end(self._ranks()), self.num_samples))

    def check_state(self, state: Any, global_batch: int | None = None) -> tuple[int, int]:
        """Return (epoch, position) of a `state` of batches of `global_batch` (None: of any).

        Raises:
            UsageError: if the state has another order or batch size; it names the first difference.
        """
        self._check_version(state)
        batch = {} if global_batch is None else {"global_batch": global_batch}
        epoch, position = check_state(state, {**batch, **self.identity}, self.held)
        try:
            return epoch, self._check_position(position, global_batch or self.world_size)
        except UsageError as error:
            refuse(str(error))

    def _check_version(self, state: Any) -> None:
        """Raise UsageError if a state is that of another version of the pack (`packer.versions_of`)."""
        digest = state.get("pack") if isinstance(state, Mapping) else None
        if not self._pack_path or not isinstance(digest, str) or digest == self._pack_digest:
            return
        if (version := version_with(self._pack_path, digest)) is not None:
            problem = f"is of {printable(version)}, another version of {printable(self._pack_path)}"
            raise UsageError("state", problem, f"open {printable(version)} to resume it, or start over")

    def _check_position(self, position: Any, global_batch: int) -> int:
        """Return a position between two global batches, or at the end. Raise UsageError if it is not one."""
        number = check_int("position", position, 0, self.num_samples)
        if number % global_batch and number != self.num_samples:
            problem = f"must be a multiple of the samples of all ranks at once, {global_batch}, got {number}"
            raise UsageError("position", problem)
        return number

    @cached_property
    def identity(self) -> dict[str, Scalar]:
        """Return everything that the order depends on except the epoch, which must equal the state's."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "num_records": self.num_records,
            "num_samples": self.num_samples,
            "drop_last": self.drop_last,
            "pack": self._pack_digest,
            "records": None if self.records is None else digest_of(self.records),
            **({} if self.pad else {"pad": False}),
            **self._options(),
        }

    def __repr__(self) -> str:
        of = f"{self.num_records}" if self.records is None else f"{self.num_indices} of {self.num_records}"
        samples = f", {self.num_samples} samples per epoch" if self.num_samples != self.num_indices else ""
        return (
            f"<{type(self).__name__}: {of} records{samples}, seed {self.seed}, rank {self.rank} of {self.world_size}>"
        )


class Again(int):
    """The number of a record that came before in its epoch, as an index of a dataset; `visit` says how often."""

    visit: int

    def __new__(cls, record: int, visit: int) -> Again:
        number = super().__new__(cls, record)
        number.visit = visit
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return Again, (int(self), self.visit)


def _indices_of(samples: Records) -> list[int]:
    """Return samples as indices of a dataset."""
    numbers: list[int] = samples.tolist()
    if samples.dtype.itemsize < 8 or not len(samples) or samples.max() < VISIT:
        return numbers
    return [number if number < VISIT else Again(number % VISIT, number // VISIT) for number in numbers]


class _RankNumbers(Iterator[int]):
    """The record numbers of one rank in one epoch. It has a state: torchdata also saves those of iterators."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._loaded_state: Iteration | None = None  # the loaded state
        self._here: Iteration | None = None
        self._rest: Iterator[int] = iter(())
        self._step = 1

    def __next__(self) -> int:
        here = self._here or self._begin()
        for number in self._rest:
            here.position = min(here.position + self._step, self._sampler.num_samples)
            return number
        here.ended = True
        if not self._sampler.pad:  # the others may have had one more
            here.position = self._sampler.num_samples
        raise StopIteration

    def _begin(self) -> Iteration:
        sampler = self._sampler
        loader = dealer(sampler._given[1])
        ranks = sampler._begin() if loader is None else Ranks(0, 1)
        here = self._here = next_iteration(sampler, sampler.clock, self._loaded_state, loader)
        self._step = ranks.world_size
        end, size = sampler._end(ranks), PIECE * self._step
        pieces = sampler._shares(here.epoch, here.position, end, size, ranks)
        self._rest = chain.from_iterable(map(_indices_of, pieces))
        sampler.clock.begin(here, workers_reader(loader), ahead=loader is not None)
        return here

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this iterator."""
        here = self._here or self._sampler.clock.next_start(self._loaded_state)
        return self._sampler.state_at(here.epoch, here.position)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state; at the end of an epoch nothing is left."""
        self._loaded_state = Iteration(*self._sampler.check_state(state_dict))


class SequentialSampler(Sampler):
    """All records in order, the same in every epoch.

    Use it for evaluation and prediction, where every record is needed once and results are matched to keys. It is the
    fastest order on any disk. Do not train with it, because neighbors in a folder are similar (one class, one video).
    With more than one rank, use pad=False: each record comes once (`padded` of them would come twice).

    The order ignores the seed, but a state holds it because crops depend on it. See `Sampler` for the arguments.
    """

    kind = "sequential"

    def _order(self, epoch: int) -> Records:
        return np.arange(self.num_indices, dtype=compact(self.num_indices))


class ShuffleSampler(Sampler):
    """All records in random order, a new one each epoch. Its numbers are computed as they are read.

    Use it for training if random reads are as fast as sequential ones: the pack is in memory (in the page cache) or on
    an SSD. Do not use it for packs larger than memory on spinning disks or network storage, where each record needs a
    seek (`BlockShuffleSampler`), or for classes so rare that most batches lack them (`BalancedSampler`).

    See `Sampler` for the arguments.
    """

    kind = "shuffle"

    def _order(self, epoch: int) -> Records:
        return permutation(self.num_indices, derive(self.seed, epoch))

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        return permutation_function(self.num_indices, derive(self.seed, epoch))
