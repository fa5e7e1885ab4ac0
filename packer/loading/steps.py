"""Batches of a PackedLoader by number of steps: through as many epochs as it takes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from packer.errors import UsageError


class Steps(Iterator[Any]):
    """What `PackedLoader.forever` returns: an iterator of batches, whose length is the number of those to come.

    Args:
        steps: batches in all, those before a loaded state included; None: without end.
        resumed: returns how many a loaded state has read.
        read_on: starts an iteration where the last one stopped, in the rest of that epoch or in the next one; from then
            on its batches are counted here, and no longer `resumed`.
    """

    def __init__(
        self, steps: int | None, resumed: Callable[[], int], read_on: Callable[[Steps], Generator[Any, None, None]]
    ) -> None:
        self._steps = steps
        self._resumed = resumed
        self._read_on = read_on
        self._done: int | None = None
        """None: no batch was asked for, and a state may still be loaded."""
        self._epoch: Generator[Any, None, None] | None = None

    @property
    def done(self) -> int:
        """Batches received, those before a loaded state included."""
        return self._resumed() if self._done is None else self._done

    def __len__(self) -> int:
        """Batches to come on this rank. Raise TypeError if there is no end."""
        if self._steps is None:
            raise TypeError("forever() has no length without steps=")
        return max(0, self._steps - self.done)

    def __next__(self) -> Any:
        """Return the next batch. Raise UsageError if a loaded state has read more than `steps` batches."""
        if self._done is None:
            done = self._resumed()
            if self._steps is not None and done > self._steps:
                problem = f"is {self._steps}, but the state has read {done} batches already"
                raise UsageError("steps", problem, "write the number of all steps, those before the state included")
            self._done, self._epoch = done, self._read_on(self)  # also if none is left: the next one counts from 0
        if self._done == self._steps:
            self.close()
            raise StopIteration
        while True:
            self._epoch = self._epoch or self._read_on(self)
            for batch in self._epoch:
                self._done += 1
                return batch
            self._epoch = None

    def close(self) -> None:
        """End the threads of the loader. If another batch is asked for, they start again with it."""
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None
