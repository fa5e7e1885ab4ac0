"""Histograms and densities of columns, with edges that a filter of the records can take: a bar is what it finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.stats.columns import BINS
from packer.view.catalog import Catalog

CELLS = 32
"""Cells of a density in each direction."""
_DIGITS = 6


class Owners:
    """Which of the packs that are shown together has each value, to compare them.

    Args:
        owners: The number of the pack of each value, (n,).
        packs: The number of packs.
    """

    def __init__(self, owners: NDArray[np.int64], packs: int) -> None:
        self._owners, self._packs = owners, packs

    def of(self, rows: NDArray[Any]) -> Owners:
        """Return those of some of the values, by their numbers or a mask."""
        return Owners(self._owners[rows], self._packs)

    def counts(self, places: NDArray[Any], bins: int) -> dict[str, Any]:
        """Return how many values are in each bin, ``counts``, and of several packs, in ``parts``, how many of each."""
        counts = np.bincount(self._owners * bins + places, minlength=self._packs * bins).reshape(self._packs, bins)
        parts = {"parts": counts.tolist()} if self._packs > 1 else {}
        return {"counts": counts.sum(axis=0).tolist(), **parts}


def class_parts(pack: Pack, catalog: Catalog, of: str) -> NDArray[np.int64]:
    """Return how many images, boxes or tags of each class are in each of several packs, (packs, classes)."""
    numbers = np.repeat(np.arange(len(pack.packs)), [len(part) for part in pack.packs])
    classes = len(pack.manifest.tags if of == "tags" else pack.manifest.classes)
    if of == "tags":
        column = catalog.ragged("tags")
        flags = np.asarray(column.flat()).reshape(-1, classes)
        rows, ids = np.nonzero(flags)
        numbers = numbers[np.flatnonzero(column.lengths)[rows]]
    else:
        ids = np.asarray(catalog.box_labels if of == "boxes" else catalog.labels, np.int64)
        known = (ids >= 0) & (ids < classes)
        numbers, ids = (numbers[catalog.box_records] if of == "boxes" else numbers)[known], ids[known]
    found = np.bincount(numbers * classes + ids, minlength=len(pack.packs) * classes)
    return np.asarray(found.reshape(len(pack.packs), classes), np.int64)


def histogram(values: NDArray[Any], owners: Owners, log: bool = False) -> dict[str, Any]:
    """Return a histogram with round edges: {"edges": n + 1, "counts": n, "median", "log"}, and ``parts``.

    A value is in bin i if edges[i] <= value < edges[i + 1]; the last has its upper edge, too. NaN is in none.

    Args:
        values: (m,); positive for `log`.
        owners: The packs that the values are from.
        log: Whether bins are of equal width in logarithms.
    """
    known = np.isfinite(values)
    values, owners = values[known].astype(np.float64), owners.of(known)
    if not len(values):
        return {"edges": [], "counts": []}
    edges = (_log_edges if log else _edges)(float(values.min()), float(values.max()))
    counts = owners.counts(place_of(values, edges), len(edges) - 1)
    return {"edges": edges.tolist(), **counts, "median": round(float(np.median(values)), 4), "log": log}


def whole_histogram(values: NDArray[Any], owners: Owners) -> dict[str, Any]:
    """Return a histogram of integers: a bar for 0, then one for each number, or for several if there are many."""
    highest = int(values.max()) if len(values) else 0
    step = -(-highest // BINS) or 1
    edges = np.array([0, *range(1, highest + step + 1, step)])
    median = float(np.median(values)) if highest else 0.0
    counts = owners.counts(place_of(values, edges), len(edges) - 1)
    return {"edges": edges.tolist(), **counts, "median": median, "whole": True}


def place_of(values: NDArray[Any], edges: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bin of each value, (n,); those beyond the edges are in the outermost ones."""
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)


def density(
    x: NDArray[Any], y: NDArray[Any], edges_x: NDArray[np.float64], edges_y: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the number of points in each cell, row by row."""
    cells = place_of(y, edges_y) * CELLS + place_of(x, edges_x)
    counts = np.bincount(cells, minlength=CELLS * CELLS).reshape(CELLS, CELLS)
    return {"x": edges_x.tolist(), "y": edges_y.tolist(), "counts": counts.tolist()}


def density_edges(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return edges of cells of equal width in logarithms, around all values."""
    low, high = float(values.min()), float(values.max())
    return np.array([_short(edge) for edge in np.geomspace(low * 0.98, max(high, low * 1.2) * 1.02, CELLS + 1)])


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """Return multiples of 1, 2 or 5 times a power of ten, at most BINS + 2, around `low` and `high`."""
    width = high - low
    if not width:
        return np.array([low, low + 1.0])
    power = 10.0 ** math.floor(math.log10(width / BINS))
    step = next(power * by for by in (1, 2, 5, 10) if width / (power * by) <= BINS)
    edges = np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64) * step
    return _around(edges, low, high)


def _log_edges(low: float, high: float) -> NDArray[np.float64]:
    """Return powers of two, or roots of them, at most BINS + 2, around `low` and `high`."""
    width = math.log2(high / low)
    step = 2.0 ** max(-4, math.ceil(math.log2(max(width, 1e-9) / BINS)))
    numbers = np.arange(math.floor(math.log2(low) / step), math.ceil(math.log2(high) / step) + 1)
    return _around(np.exp2(numbers * step), low, high)


def _around(edges: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return edges with few digits that grow, and have `low` and `high` between them."""
    edges = np.unique([_short(edge) for edge in edges.tolist()])
    inner = edges[(edges > low) & (edges < high)]
    first, last = edges[0] if edges[0] <= low else low, edges[-1] if edges[-1] >= high else high
    return np.array([first, *inner, last if last > first else first + 1.0])


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
