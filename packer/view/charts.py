"""The data of the statistics: totals, classes, boxes, sizes, which classes are together, mean shape of landmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from threading import Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, printable, size_text
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.repack.index_columns import equal_files
from packer.stats.columns import BINS, MEDIUM, SMALL, class_counts, digests, value_stats
from packer.stats.pixels import channel_stats, mask_stats
from packer.view.catalog import Catalog
from packer.view.facts import numbers
from packer.view.image_figures import figure_values, offered

_CELLS = 32
"""Cells of a density in each direction."""
_MOST_CLASSES = 1000
_MOST_MATRIX = 30
"""Maximum number of classes in a matrix; of more, the most common pairs are listed."""
_MOST_PAIRS = 24
_MOST_SIZES = 8
_MOST_SHAPES = 50_000
"""Maximum number of records for the mean shape; larger packs are sampled evenly."""


def chart_facts(pack: Pack, catalog: Catalog) -> dict[str, Any]:
    """Return what the tab of statistics shows, for the pack's fields.

    Histograms are {"edges": n + 1 numbers, "counts": n numbers}; densities {"x": edges, "y": edges, "counts": rows}.
    """
    fields = pack.manifest.fields
    equal = equal_files(digests(pack))
    facts: dict[str, Any] = {
        "images": len(pack),
        "bytes": size_text(sum(shard.container.bytes + shard.index.bytes for shard in pack.reader.shards)),
        "equal": len(equal.records) - equal.groups,
        "image_sizes": _image_sizes(catalog),
    }
    codes = _present(pack, catalog)
    facts["classes"] = _classes(pack, codes)
    if "boxes" in fields:
        facts.update(_boxes(catalog))
    if "box_labels" in fields and (together := _together(codes, len(pack.manifest.classes))) is not None:
        facts["together"] = together
    facts["values"] = [
        {"name": one.name, "edges": one.edges, "counts": one.counts, "median": one.spread.median}
        for one in value_stats(pack)
    ]
    facts["figures"] = [
        {**one, **_histogram(figure_values(catalog.fingerprints, one["name"]))} for one in offered(pack)
    ]
    if "landmarks" in fields:
        facts["landmarks"] = _whole_histogram(catalog.ragged("landmarks").lengths)
        if (shape := _mean_shape(catalog)) is not None:
            facts["mean_shape"] = shape
    return facts


def _present(pack: Pack, catalog: Catalog) -> NDArray[np.int64]:
    """Return which classes are in which image: record * classes + class, sorted, each once."""
    classes, codes = len(pack.manifest.classes), [np.zeros(0, np.int64)]
    if "box_labels" in pack.manifest.fields:
        ids = np.asarray(catalog.box_labels, np.int64)
        known = (ids >= 0) & (ids < classes)
        codes.append((np.repeat(np.arange(len(pack)) * classes, catalog.box_counts) + ids)[known])
    if "label" in pack.manifest.fields:
        labels = np.asarray(catalog.labels, np.int64)
        labelled = np.flatnonzero((labels >= 0) & (labels < classes))
        codes.append(labelled * classes + labels[labelled])
    found = np.sort(np.concatenate(codes))
    return np.asarray(found[np.append(True, found[1:] != found[:-1])[: len(found)]])


def _classes(pack: Pack, codes: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the names that are counted, the largest first, and the number of images that have each."""
    found, classes = [], len(pack.manifest.classes)
    images = np.bincount(codes % classes, minlength=classes) if classes else np.zeros(0, np.int64)
    for counts in class_counts(pack):
        of = counts.counts if counts.per_image else images.tolist()
        rows = sorted(zip(range(len(of)), counts.names, counts.counts, of, strict=True), key=lambda row: -row[2])
        shown = [
            {"id": i, "name": printable(name), "count": count, "images": many}
            for i, name, count, many in rows[:_MOST_CLASSES]
        ]
        found.append({"of": counts.of, "rows": shown, "more": max(0, len(rows) - _MOST_CLASSES),
                      "without": counts.unlabelled, "empty": len(counts.empty)})  # fmt: skip
    return found


def _boxes(catalog: Catalog) -> dict[str, Any]:
    boxes = catalog.boxes
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    whole = (wide > 0) & (high > 0)
    areas = catalog.box_areas
    owners = np.repeat(np.arange(len(catalog.box_counts)), catalog.box_counts)
    center_x = (boxes[:, 0] + boxes[:, 2]) / 2 / np.maximum(catalog.widths, 1)[owners]
    center_y = (boxes[:, 1] + boxes[:, 3]) / 2 / np.maximum(catalog.heights, 1)[owners]
    edges = np.linspace(0, 1, _CELLS + 1)
    aspect = float(np.median(catalog.widths / np.maximum(catalog.heights, 1)))
    facts = {
        "boxes": len(boxes),
        "without_boxes": int((catalog.box_counts == 0).sum()),
        "boxes_without_area": len(boxes) - int(whole.sum()),
        "boxes_per_image": _whole_histogram(catalog.box_counts),
        "centers": {**_density(center_x[whole], center_y[whole], edges, edges), "aspect": round(aspect, 4)},
        "box_sizes": [
            int((areas < SMALL).sum()), int(((areas >= SMALL) & (areas < MEDIUM)).sum()), int((areas >= MEDIUM).sum()),
        ],
    }  # fmt: skip
    if whole.any():
        facts["box_aspects"] = _histogram(wide[whole] / high[whole], log=True)
        edges_x, edges_y = _log_edges(wide[whole]), _log_edges(high[whole])
        facts["box_density"] = _density(wide[whole], high[whole], edges_x, edges_y)
    return facts


def _log_edges(values: NDArray[Any]) -> NDArray[np.float64]:
    low, high = float(values.min()), float(values.max())
    return np.geomspace(low * 0.98, max(high, low * 1.2) * 1.02, _CELLS + 1)


def _density(
    x: NDArray[Any], y: NDArray[Any], edges_x: NDArray[np.float64], edges_y: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the number of points in each cell, row by row; those beyond the edges are in the outermost cells."""
    column = np.clip(np.searchsorted(edges_x, x, side="right") - 1, 0, _CELLS - 1)
    row = np.clip(np.searchsorted(edges_y, y, side="right") - 1, 0, _CELLS - 1)
    counts = np.bincount(row * _CELLS + column, minlength=_CELLS * _CELLS).reshape(_CELLS, _CELLS)
    return {"x": numbers(edges_x), "y": numbers(edges_y), "counts": counts.tolist()}


def _image_sizes(catalog: Catalog) -> dict[str, Any]:
    """Return the sizes of the images: all if there are few, else histograms."""
    codes = np.asarray(catalog.widths, np.int64) << 32 | np.asarray(catalog.heights, np.int64)
    found, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_SIZES]
    common = [[int(found[i] >> 32), int(found[i] & 0xFFFFFFFF), int(counts[i])] for i in order]
    facts: dict[str, Any] = {"distinct": len(found), "common": common}
    if len(found) > _MOST_SIZES:
        facts["size"] = _histogram(np.sqrt(catalog.image_areas.astype(np.float64)))
        facts["aspect"] = _histogram(catalog.widths / np.maximum(catalog.heights, 1), log=True)
    return facts


def _histogram(values: NDArray[Any], log: bool = False) -> dict[str, Any]:
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": []}
    if log:
        values = np.log2(values)
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(values, BINS, (low, high))
    edges = np.exp2(edges) if log else edges
    median = float(np.exp2(np.median(values)) if log else np.median(values))
    return {"edges": numbers(edges), "counts": counts.tolist(), "median": round(median, 2), "log": log}


def _whole_histogram(values: NDArray[Any]) -> dict[str, Any]:
    """Return a histogram of integers: a bar for 0, then one for each number, or for several if there are many."""
    highest = int(values.max()) if len(values) else 0
    step = -(-highest // BINS) or 1
    edges = np.array([0, *range(1, highest + step + 1, step)])
    counts, _ = np.histogram(values, edges - 0.5)
    median = float(np.median(values)) if highest else 0.0
    return {"edges": edges.tolist(), "counts": counts.tolist(), "median": median, "whole": True}


def _together(codes: NDArray[np.int64], classes: int) -> dict[str, Any] | None:
    """Return in how many images two classes are together; None if no image has two.

    Returns:
        ``ids``, the most common classes, and ``counts``, a matrix of them, if there are not too many; and ``pairs``,
        the most common ones: (class, class, images).
    """
    if classes < 2:
        return None
    records, ids = codes // classes, codes % classes
    at, found = np.arange(len(codes)), [np.zeros(0, np.int64)]
    for step in range(1, classes):  # those of an image follow one another: each with the next, the one after, ...
        at = at[: np.searchsorted(at, len(codes) - step)]
        at = at[records[at + step] == records[at]]
        if not len(at):
            break
        found.append(_count_codes(ids[at] * classes + ids[at + step]))
    pairs = np.concatenate(found).reshape(-1, 2)
    if not len(pairs):
        return None
    names, where = np.unique(pairs[:, 0], return_inverse=True)
    counts = np.bincount(where, pairs[:, 1]).astype(np.int64)
    order = np.argsort(-counts, kind="stable")
    listed = [[int(names[n] // classes), int(names[n] % classes), int(counts[n])] for n in order[:_MOST_PAIRS]]
    facts: dict[str, Any] = {"pairs": listed}
    images = np.bincount(ids, minlength=classes)
    shown = np.flatnonzero(images)
    if len(shown) <= _MOST_MATRIX:
        shown = shown[np.argsort(-images[shown], kind="stable")]
        places = np.zeros(classes, np.int64)
        places[shown] = np.arange(len(shown))
        matrix = np.diag(images[shown])
        one, other = places[names // classes], places[names % classes]
        matrix[one, other] = matrix[other, one] = counts
        facts.update(ids=shown.tolist(), counts=matrix.tolist())
    return facts


def _count_codes(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct codes and how many there are of each, (2 * n,)."""
    found, counts = np.unique(codes, return_counts=True)
    return np.stack([found, counts], axis=1).reshape(-1)


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


class PixelStats(Progress):
    """Statistics for which all pixels of a pack are read. Threads may share it.

    Args:
        pack: The pack.
        read: `channel_facts` or `class_facts`.
    """

    def __init__(self, pack: Pack, read: Callable[[Pack, Progress], dict[str, Any]]) -> None:
        self._pack, self._read = pack, read
        self._lock = Lock()
        self._thread: Thread | None = None
        self._done, self._error = 0, ""
        self._found: dict[str, Any] = {}

    def facts(self, start: bool) -> dict[str, Any]:
        """Return how far it is (``done`` of ``images``), the ``error``, or what was found when all are read.

        Args:
            start: Whether to begin, if it has not begun.
        """
        with self._lock:
            if start and (self._thread is None or self._error):
                self._done, self._error = 0, ""
                # its end is not waited for when the server ends
                self._thread = Thread(target=self._work, daemon=True)
                self._thread.start()
            begun = self._thread is not None
        facts: dict[str, Any] = {"begun": begun, "done": self._done, "images": len(self._pack)}
        return {**facts, **self._found, **({"error": self._error} if self._error else {})}

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        """Count from the first image again."""
        self._done = 0

    def advance(self, done: int, bad: int = 0) -> None:
        """Count images."""
        self._done += done

    def _work(self) -> None:
        try:
            self._found = self._read(self._pack, self)
        except PackerError as error:
            self._error = str(error)
        except Exception as error:  # the page would wait for a thread that has ended
            self._error = f"{type(error).__name__}: {error}"


def channel_facts(pack: Pack, progress: Progress) -> dict[str, Any]:
    """Return the ``channels``, and whether they include padding: ``padded``."""
    options = [part.manifest.options for part in pack.packs]
    channels = [
        {"channels": one.channels, "dtype": one.dtype, "images": one.images, "mean": one.mean, "std": one.std}
        for one in channel_stats(pack, progress)
    ]
    padded = any(one.get("resize") is not None and one.get("fit") == "pad" for one in options)
    return {"padded": padded, "channels": channels}


def class_facts(pack: Pack, progress: Progress) -> dict[str, Any]:
    """Return the classes of the ``masks``, the largest first."""
    found = [asdict(one) for one in mask_stats(pack, progress)]
    for one in found:
        one["classes"] = sorted(one["classes"], key=lambda row: -row["pixels"])[:_MOST_CLASSES]
        for row in one["classes"]:
            row["name"] = printable(row["name"] or str(row["id"]))
    return {"masks": found}
