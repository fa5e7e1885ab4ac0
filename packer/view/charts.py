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
from packer.stats.columns import MEDIUM, SMALL, class_counts, digests, value_columns
from packer.stats.pixels import channel_stats, mask_stats
from packer.view.catalog import Catalog
from packer.view.histograms import CELLS, Owners, class_parts, density, density_edges, histogram, whole_histogram
from packer.view.image_figures import figure_values, offered

_MOST_CLASSES = 1000
_MOST_MATRIX = 30
"""Maximum number of classes in a matrix: those of most images."""
_MOST_PAIRS = 24
_MOST_SIZES = 8
_MOST_SHAPES = 50_000
"""Maximum number of records for the mean shape; larger packs are sampled evenly."""


def chart_facts(pack: Pack, catalog: Catalog) -> dict[str, Any]:
    """Return what the tab of statistics shows, for the pack's fields.

    Histograms are as `histogram` explains; densities {"x": edges, "y": edges, "counts": rows}.
    """
    fields = pack.manifest.fields
    owners = _owners(pack)
    equal = equal_files(digests(pack))
    facts: dict[str, Any] = {
        "images": len(pack),
        "bytes": size_text(sum(shard.container.bytes + shard.index.bytes for shard in pack.reader.shards)),
        "equal": len(equal.records) - equal.groups,
        "image_sizes": _image_sizes(catalog, owners),
    }
    codes = _present(pack, catalog)
    facts["classes"] = _classes(pack, catalog, codes)
    if "boxes" in fields:
        facts.update(_boxes(catalog, owners))
    if "box_labels" in fields and (together := _together(codes, len(pack.manifest.classes))) is not None:
        facts["together"] = together
    facts["values"] = [{"name": name, **histogram(values, owners)} for name, values in value_columns(pack).items()]
    facts["figures"] = [
        {**one, **histogram(figure_values(catalog.fingerprints, one["name"]), owners)} for one in offered(pack)
    ]
    if "landmarks" in fields:
        facts["landmarks"] = whole_histogram(catalog.ragged("landmarks").lengths, owners)
        if (shape := _mean_shape(catalog)) is not None:
            facts["mean_shape"] = shape
    return facts


def _owners(pack: Pack) -> Owners:
    lengths = [len(part) for part in pack.packs]
    return Owners(np.repeat(np.arange(len(lengths)), lengths), len(lengths))


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


def _classes(pack: Pack, catalog: Catalog, codes: NDArray[np.int64]) -> list[dict[str, Any]]:
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
        if len(pack.packs) > 1:
            parts = class_parts(pack, catalog, counts.of)
            shown = [{**row, "parts": parts[:, row["id"]].tolist()} for row in shown]
        found.append({"of": counts.of, "rows": shown, "more": max(0, len(rows) - _MOST_CLASSES),
                      "without": counts.unlabelled, "empty": len(counts.empty)})  # fmt: skip
    return found


def _boxes(catalog: Catalog, owners: Owners) -> dict[str, Any]:
    wide, high, center_x, center_y = (catalog.box_values(f"box_{name}") for name in ("width", "height", "x", "y"))
    whole = ~np.isnan(wide)
    areas = catalog.box_areas
    edges = np.linspace(0, 100, CELLS + 1)
    aspect = float(np.median(catalog.widths / np.maximum(catalog.heights, 1)))
    facts = {
        "boxes": len(catalog.boxes),
        "without_boxes": int((catalog.box_counts == 0).sum()),
        "boxes_without_area": int((~whole).sum()),
        "boxes_per_image": whole_histogram(catalog.box_counts, owners),
        "centers": {**density(center_x[whole], center_y[whole], edges, edges), "aspect": round(aspect, 4)},
        "box_sizes": [
            int((areas < SMALL).sum()), int(((areas >= SMALL) & (areas < MEDIUM)).sum()), int((areas >= MEDIUM).sum()),
        ],
    }  # fmt: skip
    if whole.any():
        of_boxes = owners.of(catalog.box_records)
        facts["box_aspects"] = histogram(catalog.box_values("box_aspect"), of_boxes, log=True)
        edges_x, edges_y = density_edges(wide[whole]), density_edges(high[whole])
        facts["box_density"] = density(wide[whole], high[whole], edges_x, edges_y)
    return facts


def _image_sizes(catalog: Catalog, owners: Owners) -> dict[str, Any]:
    """Return the sizes of the images: all if there are few, else histograms."""
    codes = np.asarray(catalog.widths, np.int64) << 32 | np.asarray(catalog.heights, np.int64)
    found, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_SIZES]
    common = [[int(found[i] >> 32), int(found[i] & 0xFFFFFFFF), int(counts[i])] for i in order]
    facts: dict[str, Any] = {"distinct": len(found), "common": common}
    if len(found) > _MOST_SIZES:
        facts["size"] = histogram(np.sqrt(catalog.image_areas.astype(np.float64)), owners)
        facts["aspect"] = histogram(catalog.image_aspects, owners, log=True)
    return facts


def _together(codes: NDArray[np.int64], classes: int) -> dict[str, Any] | None:
    """Return in how many images two classes are together; None if no image has two.

    Returns:
        ``ids``, the classes of most images, and ``counts``, a matrix of them; the number of ``classes`` that occur; and
        ``pairs``, the most common ones: (class, class, images).
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
    present = np.flatnonzero(images)
    shown = present[np.argsort(-images[present], kind="stable")][:_MOST_MATRIX]
    places = np.full(classes, -1)
    places[shown] = np.arange(len(shown))
    matrix = np.diag(images[shown])
    one, other = places[names // classes], places[names % classes]
    both = (one >= 0) & (other >= 0)
    matrix[one[both], other[both]] = matrix[other[both], one[both]] = counts[both]
    facts.update(ids=shown.tolist(), counts=matrix.tolist(), classes=len(present))
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
    """What takes long, because all of a pack is read: computed in the background. Threads may share it.

    Args:
        pack: The pack.
        read: What computes it, such as `channel_facts`.
    """

    def __init__(self, pack: Pack, read: Callable[[Pack, Progress], dict[str, Any]]) -> None:
        self._pack, self._read = pack, read
        self._lock = Lock()
        self._thread: Thread | None = None
        self._done, self._error = 0, ""
        self._stage, self._total = "", len(pack)
        self._found: dict[str, Any] = {}

    def facts(self, start: bool) -> dict[str, Any]:
        """Return how far it is (``done`` of ``images`` in its ``stage``), the ``error``, or what was found at the end.

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
        facts: dict[str, Any] = {"begun": begun, "done": self._done, "images": self._total, "stage": self._stage}
        return {**facts, **self._found, **({"error": self._error} if self._error else {})}

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        """Count from the first image again."""
        self._done, self._stage, self._total = 0, name, total or 0

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
