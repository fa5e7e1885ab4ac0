"""Whether a pack is sorted by class, so that records near one another are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SORTED_BELOW = 0.1
"""A pack with less than this share of the label changes of a shuffled one counts as sorted."""


class SortedPackWarning(UserWarning):
    """A pack is sorted by class where the order of training depends on its not being so."""


def label_changes(labels: NDArray[Any]) -> tuple[int, float]:
    """How often the label differs from the one before, and how often it would on average in a random order.

    Two places next to each other in a random order hold the same class with the probability
    sum(n_c * (n_c - 1)) / (n * (n - 1)), n_c being the records of class c.
    """
    n = len(labels)
    if n < 2:
        return 0, 0.0
    _, counts = np.unique(labels, return_counts=True)
    same = float((counts * (counts - 1.0)).sum()) / (n * (n - 1.0))
    return int(np.count_nonzero(labels[1:] != labels[:-1])), (n - 1) * (1 - same)


def is_sorted_by_class(labels: NDArray[Any]) -> bool:
    """Whether labels (n,) come in long runs: sorted, or nearly so. Never where there is but one class."""
    changes, shuffled = label_changes(labels)
    return changes < SORTED_BELOW * shuffled
