"""The data of the charts: classes, boxes, sizes, the mean shape of the landmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import printable
from packer.format.pack import Pack
from packer.stats.columns import class_counts
from packer.view.catalog import Catalog
from packer.view.facts import numbers

_BINS = 30
_MOST_CLASSES = 200
_MOST_SHAPES = 50_000
"""Maximum number of records for the mean shape; larger packs are sampled evenly."""


def chart_facts(pack: Pack, catalog: Catalog) -> dict[str, Any]:
    """Return histograms {"edges": n + 1 numbers, "counts": n numbers} and the mean shape, for the pack's fields."""
    fields = pack.manifest.fields
    facts: dict[str, Any] = {
        "images": len(pack),
        "classes": _classes(pack),
        "image_sizes": _histogram(np.sqrt(catalog.image_areas.astype(np.float64))),
        "image_aspects": _histogram(catalog.widths / np.maximum(catalog.heights, 1), log=True),
    }
    if "boxes" in fields:
        sides = (catalog.boxes[:, 2:] - catalog.boxes[:, :2]).astype(np.float64)
        whole = sides[(sides > 0).all(axis=1)]
        facts["boxes"] = len(sides)
        facts["boxes_without_area"] = len(sides) - len(whole)
        facts["boxes_per_image"] = _whole_histogram(catalog.box_counts)
        facts["box_sizes"] = _histogram(np.sqrt(whole[:, 0] * whole[:, 1]))
        facts["box_aspects"] = _histogram(whole[:, 0] / whole[:, 1], log=True)
    if "landmarks" in fields and (shape := _mean_shape(catalog)) is not None:
        facts["mean_shape"] = shape
    return facts


def _classes(pack: Pack) -> list[dict[str, Any]]:
    """Return the classes of images and of boxes, the largest first."""
    found = []
    for counts in class_counts(pack):
        rows = sorted(zip(range(len(counts.counts)), counts.names, counts.counts, strict=True), key=lambda row: -row[2])
        shown = [{"id": i, "name": printable(name), "count": count} for i, name, count in rows[:_MOST_CLASSES]]
        found.append({"of": counts.of, "rows": shown, "more": max(0, len(rows) - _MOST_CLASSES)})
    return found


def _histogram(values: NDArray[Any], log: bool = False) -> dict[str, Any]:
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": []}
    if log:
        values = np.log2(values)
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(values, _BINS, (low, high))
    edges = np.exp2(edges) if log else edges
    median = float(np.exp2(np.median(values)) if log else np.median(values))
    return {"edges": numbers(edges), "counts": counts.tolist(), "median": round(median, 2), "log": log}


def _whole_histogram(values: NDArray[Any]) -> dict[str, Any]:
    """Return a histogram of integers, with one bar for each, or for several if there are many."""
    highest = int(values.max()) if len(values) else 0
    step = highest // _BINS + 1
    edges = np.arange(0, highest + step + 1, step)
    counts, _ = np.histogram(values, edges - 0.5)
    return {"edges": edges.tolist(), "counts": counts.tolist(), "median": float(np.median(values)), "whole": True}


def _mean_shape(catalog: Catalog) -> dict[str, Any] | None:
    """Return mean and std of each landmark as shares of width and height, of images with the most common number."""
    column = catalog.ragged("landmarks")
    lengths = column.lengths
    some = np.flatnonzero(lengths)
    if not len(some):
        return None
    points = int(np.bincount(lengths[some]).argmax())
    rows = np.flatnonzero(lengths == points)
    rows = rows[:: -(-len(rows) // _MOST_SHAPES)]
    at = column.offsets[rows][:, None] + np.arange(points)
    shapes = np.asarray(column.values)[at].astype(np.float64)
    shapes /= np.stack([catalog.widths[rows], catalog.heights[rows]], axis=1)[:, None, :]
    aspect = float(np.median(catalog.widths[rows] / catalog.heights[rows]))
    mean, spread = shapes.mean(axis=0), shapes.std(axis=0)
    return {
        "records": len(rows), "aspect": aspect,
        "mean": np.round(mean, 4).tolist(), "spread": np.round(spread, 4).tolist(),
    }  # fmt: skip
