"""What other libraries rebuild a PackedLoader from: `dataset`, `batch_sampler` and `collate_fn`, as of a DataLoader.

accelerate's `skip_first_batches` makes a DataLoader of these, whose batch sampler leaves out the first batches. The
"indices" of a batch are its number here, and the loader makes the batch: skipped ones cost nothing.
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
"""Begins an iteration at a batch."""


class _BatchNumber(NamedTuple):
    """A batch of one iteration over a batch sampler."""

    run: object
    number: int
    is_last: bool


class BatchNumbers:
    """`loader.batch_sampler`: the number of each batch.

    Args:
        sampler: that of the loader, by which others set the epoch.
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
        """Set the epoch that comes next."""
        self.sampler.set_epoch(epoch)


class Batches(Dataset[Any]):
    """`loader.dataset`: has the length of the pack, and makes the batches that `BatchNumbers` names."""

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
            problem = "makes the loader's own batches, and has no samples"
            raise UsageError("loader.dataset", problem, "use a PackedDataset of the pack")
        if batch.run is not self._run:
            self._run, self._batches = batch.run, self._run_from(batch.number)
        made = next(self._batches)
        if batch.is_last:
            self._batches.close()  # type: ignore[attr-defined]
        return made


def as_made(batch: T) -> T:
    """Return a batch: the `collate_fn` of batches that are made already."""
    return batch
