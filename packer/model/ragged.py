"""Rows of different lengths in one array: the boxes of all images, without an object per image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Ragged:
    """n rows; row i is ``values[offsets[i]:offsets[i + 1]]``, a view.

    `values` is an array of any shape, or another Ragged (polygons: images of objects of points).
    `offsets` are n + 1 non-decreasing integers; the first need not be 0.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: NDArray[Any] | Ragged, offsets: NDArray[np.integer[Any]]) -> None:
        if len(offsets) < 1:
            raise ValueError("offsets must hold at least one number, got none")
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int | slice) -> Any:
        """Return row `index`, or the Ragged of a slice of rows with step 1, without a copy."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise IndexError(f"only slices of step 1, got step {step}")
            return Ragged(self.values, self.offsets[start : max(start, stop) + 1])
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[Any]:
        bounds = self.offsets.tolist()
        return (self.values[a:b] for a, b in pairwise(bounds))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {len(self.flat())} in all)"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return an array (n, k, ...). Raise ValueError unless all rows have the same length k."""
        lengths = self.lengths
        k = int(lengths[0]) if len(lengths) else 0
        if not (lengths == k).all():
            raise ValueError(f"rows of {lengths.min()} to {lengths.max()} items do not form an array; use the rows")
        flat = np.asarray(self.flat())
        if copy is False and dtype is not None and flat.dtype != dtype:
            raise ValueError("an array of another dtype needs a copy")
        shaped = flat.reshape(len(self), k, *flat.shape[1:])
        return np.array(shaped, dtype=dtype) if copy else np.asarray(shaped, dtype=dtype)

    @property
    def lengths(self) -> NDArray[np.integer[Any]]:
        """Length of each row, (n,)."""
        return np.diff(self.offsets)

    def flat(self) -> Any:
        """Return all rows one after another: the part of `values` that they cover."""
        return self.values[int(self.offsets[0]) : int(self.offsets[-1])]

    @staticmethod
    def concat(parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of all `parts`, in order; a single part is returned unchanged."""
        if not parts:
            raise ValueError("concat needs at least one Ragged, got none")
        if len(parts) == 1:
            return parts[0]
        flats = [part.flat() for part in parts]
        nested = isinstance(flats[0], Ragged)
        starts = np.cumsum([0, *(len(flat) for flat in flats)], dtype=np.int64)
        # shift the offsets of each part to begin where the previous one ended
        moved = [p.offsets[1:] - p.offsets[0] + s for p, s in zip(parts, starts[:-1], strict=True)]
        offsets = np.concatenate([np.zeros(1, np.int64), *moved])
        return Ragged(Ragged.concat(flats) if nested else np.concatenate(flats), offsets)
