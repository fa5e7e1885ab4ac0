"""The windows of a block shuffle, as its batches come to them: whole runs of records can be asked for at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from packer.model.annotation import Int64
from packer.samplers import BlockShuffleSampler


class Closable(Protocol):
    """What holds something until it is closed."""

    def close(self) -> None:
        """Hold it no longer."""


@dataclass
class _Window:
    stop: int
    """The position at which it ends."""
    held: list[Closable]
    has_ended: bool = False
    is_open: bool = True

    def close(self) -> None:
        for one in self.held:
            one.close()
        self.is_open = False


class InWindows(Iterator[Int64]):
    """Batches of record numbers, and the windows that they are from.

    Args:
        batches: of the sampler.
        sampler: its windows.
        epoch: of the batches.
        position: the global position at which the first batch begins.
        step: global positions in a batch.
    """

    def __init__(
        self, batches: Iterator[Int64], sampler: BlockShuffleSampler, epoch: int, position: int, step: int
    ) -> None:
        self._batches, self._sampler, self._epoch = batches, sampler, epoch
        self._position, self._step = position, step

    def __next__(self) -> Int64:
        records = next(self._batches)
        self._position += self._step
        return records

    def ahead(self, ask: Callable[[Int64], list[Closable]]) -> Generator[list[_Window]]:
        """Ask for the records of windows: of those that the last batch has reached, and of the next one in advance.

        So two windows are asked for at any time (of each canonical node), unless they are small.

        Args:
            ask: Asks for records, and returns what holds them.

        Yields:
            After each batch, what holds the windows that end in it.
        """
        ranks, most = self._sampler.ranks_per_window, 2 * len(self._sampler.canonical_nodes)
        share = self._sampler.rank % ranks / ranks  # so that ranks of a machine do not all ask for the same first
        windows = self._sampler.windows(self._epoch)
        following = next(windows, None)
        begun: list[_Window] = []
        start = self._position - self._step
        try:
            while True:
                while following and (following[0] < self._position or sum(one.is_open for one in begun) < most):
                    _, stop, runs = following
                    if stop > start:
                        runs = np.roll(runs, -int(share * len(runs)), axis=0)
                        begun.append(_Window(stop, ask(np.concatenate([np.arange(*run) for run in runs.tolist()]))))
                    following = next(windows, None)
                ended = [one for one in begun if one.stop <= self._position and not one.has_ended]
                for one in ended:
                    one.has_ended = True
                yield ended
                begun = [one for one in begun if one.is_open]
        finally:
            for one in begun:
                one.close()
