"""A flag for each record; of many records in a bit each: 100 million take 12.5 MB. Memory is taken when it is set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.model.annotation import Int64
from packer.system.locked import Locked

IN_BYTES = 1 << 21
"""Up to so many flags have a byte each: picking bits takes 5 % of the time of a batch of raw images."""
_BIT = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.uint8)


class Bits(Locked):
    """`count` flags, all False. Thread-safe; a process may fork while its threads set flags."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._flags = np.zeros(count, np.bool_) if count <= IN_BYTES else None
        self._bytes = np.zeros(-(-count // 8) if self._flags is None else 0, np.uint8)

    def __getitem__(self, numbers: Int64) -> NDArray[np.bool_]:
        """Return the flags of `numbers`, bool (n,)."""
        if self._flags is not None:
            return self._flags[numbers]
        found: NDArray[np.bool_] = self._bytes.take(numbers >> 3) & _BIT.take(numbers & 7) != 0
        return found

    def has(self, number: int) -> bool:
        """Return one flag."""
        if self._flags is not None:
            return bool(self._flags[number])
        return bool(self._bytes[number >> 3] >> (number & 7) & 1)

    def set(self, numbers: Int64) -> None:
        """Set the flags of `numbers`."""
        if self._flags is not None:
            self._flags[numbers] = True
            return
        with self.lock:  # neighbors share a byte
            np.bitwise_or.at(self._bytes, numbers >> 3, _BIT.take(numbers & 7))

    def clear(self, numbers: Int64) -> None:
        """Clear the flags of `numbers`."""
        if self._flags is not None:
            self._flags[numbers] = False
            return
        with self.lock:
            np.bitwise_and.at(self._bytes, numbers >> 3, ~_BIT.take(numbers & 7))
