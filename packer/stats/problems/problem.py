"""What a problem of a data set is, and the columns in which problems are looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import printable
from packer.format.content import NO_CLASS, FlatColumns
from packer.format.pack import Pack

EXAMPLES = 6
SHOWN = 4
"""Records with which an example was compared that are shown beside it."""
WRONG, CHECK, NOTE = "wrong", "check", "note"
"""Levels: something is wrong; worth a look, because some of it is often wrong; good to know."""


Place = tuple[int, int, int, int]
"""x1, y1, x2, y2 in pixels."""


@dataclass(frozen=True)
class Example:
    """A record that shows a problem."""

    record: int
    key: str
    path: str
    detail: str
    boxes: tuple[int, ...] = ()
    """Which of its boxes it is about."""
    place: Place | None = None
    """Or which part of the image."""
    pack: str = ""
    """The name of its pack, if there are several."""
    neighbors: tuple[int, ...] = ()
    """Records with which it was compared."""


@dataclass(frozen=True, eq=False)
class DataProblem:
    """Records that have the same problem."""

    kind: str
    """Its name, for programs: ``leak``, ``small-box``, ..."""
    level: str
    """wrong, check or note."""
    title: str
    text: str
    """What was found, why it matters, and what to do."""
    objects: int
    """Number of boxes, pairs of boxes, groups of files or classes; that of `records` if it is about whole images."""
    records: NDArray[np.int64]
    """The numbers of the records, without repetition: the worst first, or in order."""
    examples: tuple[Example, ...]

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.records)


class ProblemColumns(FlatColumns):
    """The columns of a pack in which problems are looked for. Nothing is read but the index."""

    def __init__(self, pack: Pack) -> None:
        super().__init__(pack)
        self.fields = frozenset(pack.manifest.fields)
        self.classes = [printable(name) for name in pack.manifest.classes]

    @cached_property
    def box_classes(self) -> NDArray[np.int32]:
        """Class id of each box, (m,); -1 for none, and for one that is not among the classes."""
        ids = self.box_labels
        return np.where((ids >= 0) & (ids < len(self.classes)), ids, NO_CLASS).astype(np.int32)

    def class_name(self, class_id: int) -> str:
        """Return the name of a class; ``without class`` for -1."""
        return self.classes[class_id] if 0 <= class_id < len(self.classes) else "without class"

    def example(self, record: int, detail: str, boxes: Sequence[int] = (), place: Place | None = None) -> Example:
        """Return a record as an example; `boxes` are numbers among the boxes of all records."""
        path: Any = self.pack.column("path")
        inside = tuple(int(box - self.firsts[record]) for box in boxes)
        its_pack = self.pack_names[int(self.pack_numbers(np.array([record]))[0])] if len(self.pack_names) > 1 else ""
        return Example(record, self.pack.key(record), printable(bytes(path[record])), detail, inside, place, its_pack)

    def problem(
        self,
        head: tuple[str, str, str],
        text: str,
        records: NDArray[np.int64],
        objects: int | None = None,
        detail: Callable[[int], str] = lambda record: "",
    ) -> DataProblem:
        """Return a problem of whole images, the first of which are examples; `head` is its kind, level and title."""
        examples = tuple(self.example(record, detail(record)) for record in records[:EXAMPLES].tolist())
        return DataProblem(*head, text, len(records) if objects is None else objects, records, examples)

    def pack_numbers(self, records: NDArray[Any]) -> NDArray[np.int64]:
        """Return which of `pack.packs` each of these records is in."""
        ends = np.cumsum([len(pack) for pack in self.pack.packs])
        return np.asarray(np.searchsorted(ends, records, side="right"), np.int64)


def distinct(records: NDArray[Any]) -> NDArray[np.int64]:
    """Return numbers without repetition, each where it is first."""
    numbers, first = np.unique(records, return_index=True)
    return np.asarray(numbers[np.argsort(first)], np.int64)


def list_text(names: Sequence[str], most: int = 6) -> str:
    """Return names as text, the first ones if there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def usual(values: NDArray[Any], factor: float, deviations: float) -> tuple[float, float]:
    """Return the median of values (logarithms), and how far from it a value is still usual.

    That is `deviations` times the standard deviation, estimated by the median absolute deviation, but at least `factor`
    times as large or as small as the median.
    """
    median = median_of(values)
    return median, max(deviations * 1.4826 * median_of(np.abs(values - median)), float(np.log(factor)))


def median_of(values: NDArray[Any]) -> float:
    """Return the median; of two values in the middle, the larger."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])
