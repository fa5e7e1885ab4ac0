"""`dataset`, `batch_sampler` and `collate_fn` of a PackedLoader, for libraries that rebuild a DataLoader from them.

accelerate's `skip_first_batches` makes a DataLoader whose batch sampler leaves out the first batches. The batch sampler
here yields the number of each batch, and the dataset takes that batch from the loader: skipped batches cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from torch.utils.data import Dataset

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.samplers import Sampler

T = TypeVar("T")
RunFrom = Callable[[int], Iterator[Any]]
"""Starts an iteration at a batch."""


class _BatchNumber(NamedTuple):
    """A batch of one iteration."""

    run: object
    number: int
    is_last: bool


class BatchNumbers:
    """`loader.batch_sampler`: the number of each batch.

    Args:
        sampler: the sampler of the loader; libraries set its epoch.
        batch_size: samples of a batch on this rank.
    """

    def __init__(self, sampler: Sampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = sampler.drop_last

    def __len__(self) -> int:
        return self.sampler.num_batches(self.batch_size)

    def __iter__(self) -> Iterator[list[_BatchNumber]]:
        run, count = object(), len(self)
        return ([_BatchNumber(run, number, number + 1 == count)] for number in range(count))

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch."""
        self.sampler.set_epoch(epoch)


class Batches(Dataset[Any]):
    """`loader.dataset`: as long as the pack; returns the batches that `BatchNumbers` names."""

    def __init__(self, pack: Pack, run_from: RunFrom) -> None:
        self.pack = pack
        self._run_from = run_from
        self._run: object = None
        self._batches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, numbers: Sequence[Any]) -> Any:
        batch = numbers[0]
        if not isinstance(batch, _BatchNumber):
            problem = "returns whole batches of the loader, not samples"
            raise UsageError("loader.dataset", problem, "use a PackedDataset of the pack")
        if batch.run is not self._run:
            self._run, self._batches = batch.run, self._run_from(batch.number)
        made = next(self._batches)
        if batch.is_last:
            self._batches.close()  # type: ignore[attr-defined]
        return made


def as_made(batch: T) -> T:
    """Return `batch` unchanged: it is collated already."""
    return batch
